"""Predictions of a model by Beam RunInference: an element is a chunk of examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from apache_beam.ml.inference.base import ModelHandler, RunInference

from slicebeam.transforms.encode.extract_predictions import model_column
from slicebeam.transforms.encode.models import LoadedModel, OutputModel, load_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from slicebeam.transforms.encode.column import Chunk
    from slicebeam.transforms.encode.extract_predictions import Side


@dataclass(frozen=True)
class WantedPredictions:
    """What is wanted of a model: classes, probabilities of the positive class, or numbers.

    `outputs`: whether to return raw outputs, as TFMA expects them. `threshold`: the probability from which
    the positive class is predicted; None for the model's own classes.
    """

    classes: bool = False
    scores: bool = False
    numbers: bool = False
    outputs: bool = False
    positive: Any = None
    threshold: float | None = None


class ChunkModelHandler(ModelHandler):
    """Runs a model (see `load_model`) on whole chunks; RunInference shares it within a worker."""

    def __init__(
        self, path: str, columns: Sequence[str], side: Side, wanted: WantedPredictions
    ) -> None:
        super().__init__()
        self.path, self.columns, self.side = path, list(columns), side
        self.wanted = wanted

    def load_model(self) -> Any:
        """Load the model, once a worker."""
        return load_model(self.path)

    def run_inference(
        self,
        batch: Sequence[Chunk],
        model: Any,
        inference_args: dict[str, Any] | None = None,  # noqa: ARG002  (Beam passes it)
    ) -> Iterable[Chunk]:
        """Yield each chunk with what is wanted of the model."""
        for chunk in batch:
            table = chunk.table
            for kind, values in self._predicted(model, chunk.table):
                table = table.append_column(model_column(self.side, kind), values)
            yield chunk.with_table(table)

    def _predicted(self, model: Any, table: pa.Table) -> Iterable[tuple[Any, pa.Array]]:
        loaded = model.once() if isinstance(model, OutputModel) else model
        wanted, model = self.wanted, LoadedModel(loaded, self.columns, self.path)
        if wanted.classes and wanted.threshold is not None:
            yield "class", model.above(table, wanted.positive, wanted.threshold)
        elif wanted.classes:
            yield "class", model.classes(table)
        if wanted.scores:
            yield "score", model.scores(table, wanted.positive)
        if wanted.numbers:
            yield "number", model.numbers(table)
        if wanted.outputs:
            yield "output", model.outputs(table, wanted.positive)

    def batch_elements_kwargs(self) -> dict[str, int]:
        """Return the size of a batch: one, since a chunk is a batch already."""
        return {"min_batch_size": 1, "max_batch_size": 1}


def run_model(
    path: str, columns: Sequence[str], side: Side, wanted: WantedPredictions
) -> RunInference:
    """Return the transform that adds a model's predictions to chunks."""
    return RunInference(ChunkModelHandler(path, columns, side, wanted))
