"""Predictions of a model by Beam RunInference: an element is a chunk of examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from apache_beam.ml.inference.base import ModelHandler, RunInference

from slicebeam.transforms.encode.extract_predictions import Given, model_column
from slicebeam.transforms.encode.models import LoadedModel, OutputModel, load_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slicebeam.transforms.encode.column import Chunk
    from slicebeam.transforms.encode.extract_predictions import Side

# What is wanted of a model: methods of `LoadedModel`.
Wanted = Mapping[Given, Callable[[LoadedModel, pa.Table], pa.Array]]


class ChunkModelHandler(ModelHandler):
    """Runs a model (see `load_model`) on whole chunks; RunInference shares it within a worker."""

    def __init__(self, path: str, columns: Sequence[str], side: Side, wanted: Wanted) -> None:
        super().__init__()
        self.path, self.columns, self.side, self.wanted = path, list(columns), side, wanted

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
            loaded = model.once() if isinstance(model, OutputModel) else model
            own, table = LoadedModel(loaded, self.columns, self.path), chunk.table
            for kind, predict in self.wanted.items():
                column = predict(own, chunk.table)
                table = table.append_column(model_column(self.side, kind), column)
            yield chunk.with_table(table)

    def batch_elements_kwargs(self) -> dict[str, int]:
        """Return the size of a batch: one, since a chunk is a batch already."""
        return {"min_batch_size": 1, "max_batch_size": 1}


def run_model(path: str, columns: Sequence[str], side: Side, wanted: Wanted) -> RunInference:
    """Return the transform that adds a model's predictions to chunks."""
    return RunInference(ChunkModelHandler(path, columns, side, wanted))
