"""The loss of each example, which a mixture may take into account; for metrics that have one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from slicebeam.metrics.registry import metric

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import BoolArray, FloatArray
    from slicebeam.transforms.encode.extract_predictions import Predicted


@dataclass(frozen=True)
class Losses:
    """Losses of examples by the new model, and by the old one where there are two.

    `new`, `old`: float64 [rows]. `is_zero_one`: whether every loss is 0 or 1, as those of right and
    wrong classes are.
    """

    new: FloatArray
    old: FloatArray | None
    is_zero_one: bool

    @property
    def change(self) -> FloatArray:
        """D = loss before minus loss after, above 0 where it improved; of one model, minus its loss."""
        return -self.new if self.old is None else self.old - self.new

    @property
    def each(self) -> list[FloatArray]:
        """One column for each model."""
        return [self.new] if self.old is None else [self.new, self.old]


def has_losses(name: str) -> bool:
    """Return whether each example has a loss of its own in a metric, or is right or wrong in it."""
    needs = metric(name).needs
    return bool(needs.values) or needs.predicted_classes


def losses_of(predicted: Predicted, name: str, *, baseline: bool) -> Losses | None:
    """Return the losses of a chunk's examples; None for a metric without, such as AUC.

    `name`: of the metric: the value that it averages, else whether the predicted class is wrong.
    `baseline`: whether the old model's are there too.
    """
    sides = (False, True) if baseline else (False,)
    values = metric(name).needs.values
    if values:
        # What is better when it is higher is no loss.
        sign = -1.0 if metric(name).higher_is_better else 1.0
        new, *old = (sign * predicted.values[values[0], side] for side in sides)
        is_zero_one = all(bool(np.isin(loss, (0, 1)).all()) for loss in (new, *old))
        return Losses(new, old[0] if old else None, is_zero_one)
    wrong = [_wrong(predicted, old=side) for side in sides]
    new_wrong, *old_wrong = [one.astype(np.float64) for one in wrong if one is not None]
    return Losses(new_wrong, old_wrong[0] if old_wrong else None, is_zero_one=True)


def _wrong(predicted: Predicted, *, old: bool) -> BoolArray:
    """Return which examples the model puts in a wrong class."""
    if ("wrong", old) in predicted.indicators:
        return predicted.indicators["wrong", old]
    if ("predicted", old) in predicted.indicators and ("positive", False) in predicted.indicators:
        return predicted.indicators["predicted", old] != predicted.indicators["positive", False]
    side = "baseline" if old else "prediction"
    same = pc.equal(predicted.pairs["label"], predicted.pairs[side])
    right: BoolArray = pc.fill_null(same, False).to_numpy(zero_copy_only=False)
    return ~right
