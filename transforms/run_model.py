"""Predictions of a model file by Beam RunInference: an element is a chunk of examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from apache_beam.ml.inference.base import ModelHandler, RunInference

from slicebeam.transforms.extract_predictions import load_model, model_column, predict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slicebeam.transforms.extract_predictions import Side
    from slicebeam.transforms.sources import Chunk


class ChunkModelHandler(ModelHandler):
    """Runs a scikit-learn model on whole chunks; RunInference shares it within a worker.

    Parameters
    ----------
    path : pickle or joblib file
    columns : what the model reads, in its order
    side : which of the two models it is
    """

    def __init__(self, path: str, columns: Sequence[str], side: Side) -> None:
        super().__init__()
        self.path, self.columns, self.side = path, list(columns), side

    def load_model(self) -> Any:
        """Load the model, once a worker."""
        return load_model(self.path)

    def run_inference(
        self,
        batch: Sequence[Chunk],
        model: Any,
        inference_args: dict[str, Any] | None = None,  # noqa: ARG002  (Beam passes it)
    ) -> Iterable[Chunk]:
        """Yield each chunk with a column of the predicted classes."""
        for chunk in batch:
            predicted = predict(model, chunk.table, self.columns, self.path)
            table = chunk.table.append_column(model_column(self.side), predicted)
            yield chunk.with_table(table)

    def batch_elements_kwargs(self) -> dict[str, int]:
        """Return the size of a batch: one, since a chunk is a batch already."""
        return {"min_batch_size": 1, "max_batch_size": 1}


def run_model(path: str, columns: Sequence[str], side: Side) -> RunInference:
    """Return the transform that adds a model's predictions to chunks."""
    return RunInference(ChunkModelHandler(path, columns, side))
