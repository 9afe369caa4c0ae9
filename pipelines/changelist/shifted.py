"""The section of a ChangeList that reports how the confusion matrix of a prediction API shifted."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from slicebeam.pipelines.changelist.parts import Estimate, Part

Matrix = tuple[tuple[float, ...], ...]


class ChangedCell(Part):
    """A cell of the confusion matrix that changed significantly."""

    label: Any
    prediction: Any = Field(default=None, description="null: an answer that is not a class")
    shift: Estimate = Field(description="new minus old probability of this label and prediction")
    p_value: float
    p_adjusted: float


class ShiftStratum(Part):
    """Items of one label and one bin of the difficulty, and how many were queried."""

    label: Any
    low: float | None = Field(default=None, description="least difficulty; null: no bound")
    high: float | None = Field(
        default=None, description="difficulty below which all are; null: no bound"
    )
    missing: bool = Field(
        default=False, description="whether these are the items without a difficulty"
    )
    size: int
    calls: int
    variance: float | None = Field(
        default=None,
        description="estimated variance of what the estimate sums, over all cells and times their "
        "squared weights: MASA's uncertainty score σ², after use of the old predictions; absent of "
        "fewer than two answers",
    )
    optimal_calls: float | None = Field(
        default=None,
        description="of all calls, by share times square root of the variance: the least error, if "
        "items could repeat; it may exceed the size",
    )


class ShiftFocus(Part):
    """The weighted sum of the cells of the confusion matrix that --focus names."""

    of: str = Field(description="accuracy, label:prediction, or the file of the weights")
    weights: Matrix
    before: float
    after: Estimate
    shift: Estimate = Field(description="new minus old")
    p_value: float
    significant: bool
    higher_is_better: bool | None = Field(
        default=None, description="absent if right predictions and wrong ones have weights"
    )
    direction: Literal["improved", "degraded", "none"]

    def line(self) -> str:
        """Return how it changed, as a sentence without its end."""
        words = {"degraded": "significantly worse", "improved": "significantly better"}
        called = words.get(self.direction, "significant") if self.significant else "not significant"
        low, middle, high = self.shift.lo or 0.0, self.shift.value or 0.0, self.shift.hi or 0.0
        return (
            f"--focus {self.of}: {self.before:.4g} → {self.after.value or 0.0:.4g} ({middle:+.4f} "
            f"[{low:+.4f}, {high:+.4f}], p = {self.p_value:.2g}, {called})"
        )


class ShiftCost(Part):
    """The queried items and their cost."""

    calls: int = Field(description="answers in the estimate")
    replayed: int = Field(description="of these, answers that the ledger had from earlier runs")
    no_result: int = Field(description="of these, answers that are not a class")
    unaccounted: int = Field(
        default=0, description="further calls without an answer, which may have been charged"
    )
    price: float | None = Field(default=None, description="of a call")
    currency: str | None = None
    spent: float | None = Field(default=None, description="price of all answers, replayed ones too")


class SliceShift(Part):
    """The shift on a slice of the pool, from the calls that all slices share."""

    slice_id: str
    calls: int = Field(description="of the items of the slice")
    old_matrix: Matrix | None = None
    new_matrix: Matrix = Field(description="of the items of the slice: it sums to 1")
    shift: Matrix
    shift_lo: Matrix
    shift_hi: Matrix


class Shift(Part):
    """How the confusion matrix Pr(label = i, prediction = j) of an API changed."""

    method: Literal["plus", "masa", "proportional"]
    labels: tuple[Any, ...] = Field(description="of the rows of the matrices")
    predictions: tuple[Any, ...] = Field(
        description="of their columns; null is an answer that is not a class"
    )
    old_matrix: Matrix
    new_matrix: Matrix
    new_errors: Matrix = Field(
        description="standard errors of the new matrix, widened for the unseen"
    )
    shift: Matrix = Field(description="new minus old")
    shift_lo: Matrix
    shift_hi: Matrix
    confidence: float = Field(description="of the intervals, and of the target error")
    focus: ShiftFocus | None = Field(default=None, description="of --focus")
    corrected_for: str = Field(description="how the significance of cells was corrected")
    changed: tuple[ChangedCell, ...] = Field(description="cells that changed, the largest first")
    frobenius_bound: float = Field(
        description="upper bound of the Frobenius error of the new matrix, with that confidence; of its "
        "cells times the weights of the focus, if there is one"
    )
    stopped: Literal["budget", "target_error", "pool"] = Field(
        description="why no more items were queried: the budget was spent, the target error was reached, "
        "or every item was queried"
    )
    budget: int | None = Field(default=None, description="calls")
    target_error: float | None = None
    reliance: float | None = Field(
        default=None, description="weight of the old predictions as a control variate, 0 to 1"
    )
    old_from: Literal["predictions", "document"] = Field(
        description="whether the old matrix comes from known predictions, or from an earlier "
        "document, whose errors then widen the intervals"
    )
    cost: ShiftCost
    strata: tuple[ShiftStratum, ...]
    slices: tuple[SliceShift, ...] = ()
    warnings: tuple[str, ...] = ()
