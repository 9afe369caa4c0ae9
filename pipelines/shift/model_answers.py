"""Answers of the user's model: a scikit-learn file, or a model handler of Beam's, called in this process."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from slicebeam.metrics.errors import OptionError
from slicebeam.metrics.imported import imported, one_line
from slicebeam.pipelines.paid_api.calls import Answer
from slicebeam.transforms.encode.models import LoadedModel, load_model, model_features
from slicebeam.transforms.storage.publish import sha256_of
from slicebeam.transforms.storage.storage import open_input, storage_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicebeam.pipelines.paid_api.calls import Item
    from slicebeam.pipelines.paid_api.ledger import Ledger

# Items of a batch at most: what a killed run computes again.
_BATCH = 64


@dataclass(frozen=True)
class AnsweringModel:
    """A model, and the columns that it reads, empty for all; ``content`` is the hash of its file, if any."""

    name: str
    columns: tuple[str, ...]
    predict: Callable[[Sequence[dict[str, Any]]], Sequence[Any]]
    content: str | None = None
    batch_size: int = _BATCH

    def buy(self, items: Sequence[Item], ledger: Ledger, on_answer: Callable[[], None]) -> None:
        """Record the answers to items that the ledger has none of, batch by batch."""
        missing = [item for item in items if item.key not in ledger.answers]
        for begin in range(0, len(missing), self.batch_size):
            batch = missing[begin : begin + self.batch_size]
            ledger.sent_all([item.key for item in batch])
            values = map(_scalar, self.predict([dict(item.fields) for item in batch]))
            ledger.answered_all(
                [
                    Answer(item.key, value, "no prediction" if value is None else None)
                    for item, value in zip(batch, values, strict=True)
                ]
            )
            for _ in batch:
                on_answer()


def open_model(name: str, features: Sequence[str], columns: Sequence[str]) -> AnsweringModel:
    """Return the model that ``--model`` names: a scikit-learn file, or ``module:factory`` of a handler of Beam's."""
    _, colon, factory = name.partition(":")
    if colon and "://" not in name:
        model = _of_handler(name, factory, tuple(features))
    else:
        loaded = load_model(name)
        read = tuple(model_features(loaded) or features)
        if not read:
            raise OptionError(
                f"--model {name} does not say which columns it reads; name them with --features"
            )
        with open_input(storage_path(name, "--model")) as stream:
            content = f"sha256:{sha256_of(stream)}"
        predict = partial(_predicted, LoadedModel(loaded, list(read), name))
        model = AnsweringModel(name, read, predict, content)
    for column in model.columns:
        if column not in columns:
            raise OptionError(
                f"--model {name} reads column {column!r}, which the data does not have"
            )
    return model


def _predicted(model: LoadedModel, rows: Sequence[dict[str, Any]]) -> list[Any]:
    predicted: list[Any] = model.classes(pa.Table.from_pylist(list(rows))).to_pylist()
    return predicted


def _of_handler(name: str, factory: str, columns: tuple[str, ...]) -> AnsweringModel:
    from apache_beam.ml.inference.base import ModelHandler

    create = imported(name, "--model")
    if not callable(create):
        raise OptionError(
            f"--model {name}: {factory} is not a function that returns a model handler"
        )
    try:
        handler = create()
    except Exception as error:
        raise OptionError(f"--model {name}: {factory}() failed: {one_line(error)}") from error
    if not isinstance(handler, ModelHandler):
        raise OptionError(
            f"--model {name}: {factory}() returns a {type(handler).__name__}, not a ModelHandler of "
            "apache_beam.ml.inference"
        )
    loaded: list[Any] = []

    def predict(rows: Sequence[dict[str, Any]]) -> list[Any]:
        if not loaded:
            loaded.append(handler.load_model())
        batch = [reduce(_applied, handler.get_preprocess_fns(), row) for row in rows]
        results = handler.run_inference(batch, loaded[0])
        return [reduce(_applied, handler.get_postprocess_fns(), result) for result in results]

    most = handler.batch_elements_kwargs().get("max_batch_size", _BATCH)
    return AnsweringModel(name, columns, predict, batch_size=min(most, _BATCH))


def _applied(value: Any, function: Callable[[Any], Any]) -> Any:
    return function(value)


def _scalar(result: Any) -> Any:
    """Return a prediction as JSON has it; None if it is not a single finite value."""
    value = getattr(result, "inference", result)
    value = getattr(value, "item", lambda: value)() if getattr(value, "size", 1) == 1 else None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, bool, int, float)) else None
