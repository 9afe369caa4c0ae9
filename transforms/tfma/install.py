"""What is imported of TensorFlow Model Analysis, only where somebody names it."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError, install_hint

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Let nothing through to stderr: TensorFlow tells of processors there, past Python and any setting."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def tfma_module(name: str = "", needed_by: str = "this") -> Any:
    """Return TensorFlow Model Analysis, or a module of it; the first import takes some seconds."""
    package = "tensorflow_model_analysis"
    try:
        if package not in sys.modules:
            with _without_chatter():
                import_module(package)
        return import_module(f"{package}.{name}" if name else package)
    except ImportError as error:
        raise InputError(
            f"{needed_by} needs TensorFlow Model Analysis ({error}); {install_hint('tfma')}"
        ) from error


# Classes that call a function named in their arguments, or are what others derive from.
_ABSTRACT = frozenset({"Metric", "MeanMetricWrapper", "SumOverBatchSizeMetricWrapper"})
_HOMES = ("tensorflow_model_analysis.", "tf_keras.", "keras.")


def metric_names() -> list[str]:
    """Return the classes of metrics that TFMA and Keras have: all that a name stands for."""
    classes = dict(vars(tfma_module("utils.keras_lib").tf_keras.metrics))
    classes |= tfma_module("metrics.metric_types").registered_metrics()
    return sorted(
        name
        for name, kind in classes.items()
        if is_metric(kind) and kind.__module__.startswith(_HOMES) and name not in _ABSTRACT
    )


def is_metric(kind: object) -> bool:
    """Return whether something is a class of metrics, or of losses, which TFMA takes for metrics."""
    keras = tfma_module("utils.keras_lib").tf_keras
    bases = (tfma_module("metrics.metric_types").Metric, keras.metrics.Metric, keras.losses.Loss)
    return isinstance(kind, type) and issubclass(kind, bases)
