"""Models known by what they give for examples: probabilities, numbers or classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

_CUT = 0.5


class OutputModel:
    """A model with the methods of a scikit-learn model that a run calls.

    One probability for an example is that of class 1; several are those of the classes 0, 1, 2 and
    so on.
    """

    def outputs(self, given: pd.DataFrame | NDArray[Any]) -> NDArray[Any]:
        """Return what the model gives for examples, [rows] or [rows, classes]."""
        raise NotImplementedError

    def numbers(self, given: pd.DataFrame | NDArray[Any]) -> NDArray[np.float64]:
        """Return the outputs as numbers, [rows] or [rows, classes]."""
        found = _checked(self.outputs(given), len(given))
        if found.dtype.kind in "OSU":
            raise ValueError("it gives text, and metrics of numbers take none")
        return found.astype(np.float64)

    def predict_proba(self, given: pd.DataFrame | NDArray[Any]) -> NDArray[np.float64]:
        """Return the probability of each class [rows, classes]."""
        found = _checked(self.outputs(given), len(given))
        if not _are_fractions(found):
            raise ValueError(f"it gives classes ({found.dtype}) and no probabilities")
        return _probabilities(found)

    def predict(self, given: pd.DataFrame | NDArray[Any]) -> NDArray[Any]:
        """Return the class that the model gives, or the most probable one; of two, 1 from 0.5 on."""
        found = _checked(self.outputs(given), len(given))
        if not _are_fractions(found):
            return found
        found = _probabilities(found)
        if found.shape[1] == 2:
            return (found[:, 1] >= _CUT).astype(np.int64)
        return found.argmax(axis=1)


class OutputsOnce(OutputModel):
    """A model whose outputs for some examples are computed once, whatever is wanted of them."""

    def __init__(self, model: OutputModel) -> None:
        self._model = model
        self._found: NDArray[Any] | None = None
        for name in ("feature_names_in_", "n_features_in_"):
            if hasattr(model, name):
                setattr(self, name, getattr(model, name))

    def outputs(self, given: pd.DataFrame | NDArray[Any]) -> NDArray[Any]:
        """See `OutputModel.outputs`; ``given`` are always the same examples."""
        if self._found is None:
            self._found = self._model.outputs(given)
        return self._found


def _checked(found: NDArray[Any], rows: int) -> NDArray[Any]:
    """Return outputs as [rows] or [rows, classes]."""
    if found.ndim not in (1, 2) or len(found) != rows:
        raise ValueError(f"it gives an array of shape {found.shape} for {rows:,} examples")
    return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found


def _are_fractions(found: NDArray[Any]) -> bool:
    return found.ndim == 2 or found.dtype.kind == "f"


def _probabilities(found: NDArray[Any]) -> NDArray[np.float64]:
    shares = found.astype(np.float64)
    outside = shares[~((shares >= 0) & (shares <= 1))]
    if outside.size:
        raise ValueError(
            f"it gives {outside[0]:g}, which is no probability; metrics of classes take probabilities "
            "or, as integers or text, classes"
        )
    return np.column_stack([1 - shares, shares]) if shares.ndim == 1 else shares
