"""Vectors of texts by a model handler of the user's own, as Beam's RunInference takes it."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.errors import OptionError, SlicebeamError
from slicebeam.metrics.imported import imported, one_line
from slicebeam.transforms.discovery.encoder_cache import CachedEncoder, fingerprint_of
from slicebeam.transforms.encode.models import array_of, inferences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slicebeam.transforms.discovery.encoder_cache import Keep
    from slicebeam.transforms.storage.storage import StoragePath

# Texts of a batch, where the handler does not say how many.
_TOGETHER = 64
# Models that a process has loaded at once.
_MOST_LOADED = 2


def handler_encoder(name: str, cache: StoragePath | None) -> CachedEncoder:
    """Return the encoder of ``module:function``, which is called once to see that it works.

    It returns a ``ModelHandler`` that gets texts, and whose inferences are vectors. Only the import path
    identifies it: if the model changes, rename it, or delete the embeddings.
    """
    _handler(name)
    return CachedEncoder(name, fingerprint_of(f"handler {name}"), cache, partial(_embed, name))


def _handler(name: str) -> Any:
    from apache_beam.ml.inference.base import KeyedModelHandler, ModelHandler

    function = name.partition(":")[2]
    found = imported(name, "--encoder")
    if not callable(found):
        raise OptionError(
            f"--encoder {name}: {function} is not a function that returns a model handler"
        )
    try:
        handler = found()
    except Exception as error:
        raise OptionError(f"--encoder {name}: {function}() failed: {one_line(error)}") from error
    if not isinstance(handler, ModelHandler) or isinstance(handler, KeyedModelHandler):
        raise OptionError(
            f"--encoder {name}: {function}() returns a {type(handler).__name__}, not a ModelHandler of "
            "apache_beam.ml.inference whose examples are texts"
        )
    return handler


@lru_cache(_MOST_LOADED)
def _loaded(name: str) -> tuple[Any, Any]:
    handler = _handler(name)
    try:
        handler.set_environment_vars()
        return handler, handler.load_model()
    except Exception as error:
        raise OptionError(
            f"--encoder {name}: loading the model failed: {one_line(error)}"
        ) from error


def _embed(name: str, texts: Sequence[str], keep: Keep) -> None:
    handler, model = _loaded(name)
    together = int(handler.batch_elements_kwargs().get("max_batch_size", _TOGETHER))
    for start in range(0, len(texts), together):
        batch = texts[start : start + together]
        keep(slice(start, start + len(batch)), _vectors(name, handler, model, batch))


def _vectors(name: str, handler: Any, model: Any, batch: Sequence[str]) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):
            vectors = [
                array_of(value).astype(np.float32)
                for value in inferences(handler, model, batch, len(batch))
            ]
    except SlicebeamError:
        raise
    except Exception as error:
        raise OptionError(
            f"--encoder {name}: the model failed on {len(batch)} texts: {one_line(error)}"
        ) from error
    if len(vectors) != len(batch):
        raise OptionError(
            f"--encoder {name}: the model gives {len(vectors)} inferences for {len(batch)} texts"
        )
    shapes = sorted({vector.shape for vector in vectors})
    if len(shapes) > 1 or len(shapes[0]) != 1 or not shapes[0][0]:
        raise OptionError(
            f"--encoder {name}: its inferences have shape {' and '.join(map(str, shapes))}; each "
            "must be one vector, all of the same length"
        )
    whole = np.stack(vectors)
    if not np.isfinite(whole).all():
        row = int(np.flatnonzero(~np.isfinite(whole).all(axis=1))[0])
        raise OptionError(
            f"--encoder {name}: the vector of the text {batch[row][:60]!r} contains numbers that "
            "are not finite"
        )
    return whole
