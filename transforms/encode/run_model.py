"""Predictions of a model file by Beam RunInference: an element is a chunk of examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from apache_beam.ml.inference.base import ModelHandler, RunInference

from slicebeam.transforms.encode.extract_predictions import model_column
from slicebeam.transforms.encode.models import load_model, predict, predict_scores

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slicebeam.transforms.encode.extract_predictions import Side
    from slicebeam.transforms.encode.sources import Chunk


class ChunkModelHandler(ModelHandler):
    """Runs a model on whole chunks; RunInference shares it within a worker.

    Parameters
    ----------
    path : pickle, joblib or ONNX file, or folder of a SavedModel
    columns : what the model reads, in its order
    positive : the class whose probability is also needed, if any
    """

    def __init__(self, path: str, columns: Sequence[str], side: Side, positive: Any = None) -> None:
        super().__init__()
        self.path, self.columns, self.side = path, list(columns), side
        self.positive = positive

    def load_model(self) -> Any:
        """Load the model, once a worker."""
        return load_model(self.path)

    def run_inference(
        self,
        batch: Sequence[Chunk],
        model: Any,
        inference_args: dict[str, Any] | None = None,  # noqa: ARG002  (Beam passes it)
    ) -> Iterable[Chunk]:
        """Yield each chunk with its predictions, and scores where they are wanted."""
        for chunk in batch:
            predicted = predict(model, chunk.table, self.columns, self.path)
            table = chunk.table.append_column(model_column(self.side), predicted)
            if self.positive is not None:
                scores = predict_scores(model, chunk.table, self.columns, self.path, self.positive)
                table = table.append_column(model_column(self.side, score=True), scores)
            yield chunk.with_table(table)

    def batch_elements_kwargs(self) -> dict[str, int]:
        """Return the size of a batch: one, since a chunk is a batch already."""
        return {"min_batch_size": 1, "max_batch_size": 1}


def run_model(path: str, columns: Sequence[str], side: Side, positive: Any) -> RunInference:
    """Return the transform that adds a model's predictions to chunks."""
    return RunInference(ChunkModelHandler(path, columns, side, positive))
