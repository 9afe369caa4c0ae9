"""What is imported of TensorFlow Model Analysis, only where somebody names it."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from slicebeam.metrics.errors import InputError


def tfma_module(name: str = "", needed_by: str = "this") -> Any:
    """Return TensorFlow Model Analysis, or a module of it; the first import takes some seconds.

    Parameters
    ----------
    name : of the module, such as ``proto.config_pb2``; empty for the package
    needed_by : what needs it, for the error

    Raises
    ------
    InputError
        It is not installed, or can't be imported.
    """
    package = "tensorflow_model_analysis"
    # What TensorFlow has to say of processors and missing GPUs is no line for a user.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("ABSL_MIN_LOG_LEVEL", "3")
    try:
        import_module(package)
        return import_module(f"{package}.{name}" if name else package)
    except ImportError as error:
        raise InputError(
            f"{needed_by} needs TensorFlow Model Analysis ({error}); pip install 'slicebeam[tfma]'"
        ) from error
