"""The result of a shift: the matrices before and after, what changed, and its ChangeList."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.measures.multiplicity import bh_adjusted
from slicebeam.metrics.shift.allocation import optimal_calls
from slicebeam.metrics.shift.estimates import (
    Sample,
    Subpools,
    error_bound,
    estimate,
    stratum_variances,
    summarise,
    weighted_sum_errors,
)
from slicebeam.pipelines.changelist import shifted
from slicebeam.pipelines.changelist.changes import Change, Comparison, MetricEntry, Model
from slicebeam.pipelines.changelist.document import Dataset, Provenance, ShiftChangeList
from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.changelist.slices import Origin, Size, Slice
from slicebeam.pipelines.config.shift import ACCURACY
from slicebeam.pipelines.shift.changes import (
    MatrixChange,
    ValueChange,
    shown_estimate,
    shown_matrix,
)
from slicebeam.pipelines.shift.focus import higher_is_better
from slicebeam.transforms.encode.definitions import Condition, Predicate, PredicateDefinition
from slicebeam.transforms.encode.predicates import slice_hashes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.shift.estimates import MatrixEstimate
    from slicebeam.pipelines.config.shift import ShiftConfig
    from slicebeam.pipelines.shift.assessment import Assessment
    from slicebeam.pipelines.shift.old_matrix import Old
    from slicebeam.pipelines.shift.pool import LabelledPool
    from slicebeam.transforms.encode.predicates import Singleton

# From so many labels on MASA's estimate of the accuracy is too high by more than its error.
_MANY_LABELS = 10
_MOST_REASONS = 3
_NO_IDENTITY = {
    *("data", "output", "work_dir", "runner_config", "runner_option", "beam", "chunk_rows"),
    "memory_budget",
}


class SliceChange(NamedTuple):
    """The change of a slice, by its number: its examples, and how many of them were queried."""

    number: int
    size: int
    calls: int
    matrix: MatrixChange
    accuracy: ValueChange


class Bill(NamedTuple):
    """What the queried items cost.

    ``limit``: calls that the budget buys; None without one. ``replayed``: answers that an earlier
    run had paid. ``unaccounted``: further calls without an answer, which may have been charged.
    ``without_class``: why answers are no class, and how many for each reason.
    """

    limit: int | None
    price: float | None
    currency: str | None
    replayed: int = 0
    unaccounted: int = 0
    without_class: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True)
class ShiftResult:
    """The result of an assessment; ``predicates`` are those of the slices, in their order."""

    config: ShiftConfig
    pool: LabelledPool
    assessed: Assessment
    old: Old
    bill: Bill
    predicates: Sequence[Sequence[Singleton]] = ()

    @cached_property
    def estimate(self) -> MatrixEstimate:
        """The estimate of the whole pool."""
        return summarise(self.config.used_method, self.assessed.strata, self.assessed.sample)

    @cached_property
    def whole(self) -> MatrixChange:
        """The change of the whole pool."""
        old, confidence = self.old, self.config.confidence
        return MatrixChange.of(self.estimate, 0, old.matrix, old.errors, confidence)

    @cached_property
    def accuracy(self) -> ValueChange:
        """The change of the accuracy."""
        # Calls that follow other cells leave strata with a few answers, which may agree by chance.
        widened = self.config.focus not in (None, ACCURACY)
        error = float(self.estimate.accuracy_errors(widened=widened)[0])
        value, old = float(self.estimate.accuracy[0]), self.old
        return ValueChange.of(
            old.accuracy, value, error, self.config.confidence, old.accuracy_error
        )

    @cached_property
    def bound(self) -> float:
        """Upper bound of the Frobenius error of the new matrix."""
        return float(error_bound(self.estimate, self.config.confidence)[0])

    @cached_property
    def columns(self) -> IntArray:
        """The columns of the matrices that are reported; the last one of all is "no result"."""
        none = len(self.pool.classes)
        has_none = bool((self.assessed.codes == none).any() or self.whole.old[:, none].any())
        return np.arange(none + 1 if has_none else none)

    def to_changelist(self, runner: str) -> ShiftChangeList:
        """Return the document of the shift."""
        config, pool = self.config, self.pool
        content = json.dumps([pool.rows, pool.fingerprint, list(pool.classes)], sort_keys=True)
        fingerprint = "sha256:" + hashlib.sha256(content.encode()).hexdigest()
        options = config.resolved()
        shown = {name: value for name, value in options.items() if name not in _NO_IDENTITY}
        identity = json.dumps([fingerprint, shown], sort_keys=True).encode()
        change = self.accuracy.of_accuracy(pool.rows)
        slices, matrices = self._slices()
        section = self._section(matrices)
        source = config.replay_prediction or config.api or config.model or ""
        return ShiftChangeList(
            changelist_id=hashlib.sha256(identity).hexdigest()[:16],
            title=f"Shift of {source}",
            summary=_summary(section, change),
            created_at=datetime.now(timezone.utc),
            dataset=Dataset(
                name=Path(config.data[0]).name,
                uri=config.data,
                fingerprint=fingerprint,
                n=pool.rows,
                id_field=config.example_id,
                label_field=config.label,
                classes=pool.classes,
                domains=(),
                left_out=(),
            ),
            models=(
                Model(
                    key="before",
                    role="before",
                    name=config.old_prediction or Path(config.old_matrix or "").name,
                    prediction_field=config.old_prediction,
                ),
                Model(
                    key="after",
                    role="after",
                    name=source,
                    prediction_field=config.replay_prediction,
                    model_uri=config.api or config.model,
                ),
            ),
            comparison=Comparison(kind="baseline", before="before", after="after"),
            metrics=(
                MetricEntry(
                    key="accuracy",
                    name="Accuracy",
                    kind="pointwise",
                    range=(0.0, 1.0),
                    higher_is_better=True,
                    primary=True,
                ),
            ),
            global_=(change,),
            shift=section,
            slices=slices,
            provenance=Provenance(
                tool_version=version("slicebeam"),
                command="shift",
                runner=runner,
                seed=config.seed,
                config=options,
            ),
        )

    def _section(self, slices: tuple[shifted.SliceShift, ...]) -> shifted.Shift:
        config, assessed, whole, bill = self.config, self.assessed, self.whole, self.bill
        labels = tuple(self.pool.classes[code] for code in self.pool.labels.tolist())
        predictions = (*self.pool.classes, None)[: self.columns.size]
        alpha = 1 - config.confidence
        cells = np.argwhere(whole.q[:, self.columns] <= alpha)
        cells = cells[np.argsort(-np.abs(whole.shift[tuple(cells.T)]))]
        calls = int(assessed.items.size)
        return shifted.Shift(
            method=config.used_method,
            labels=labels,
            predictions=predictions,
            **whole.matrices(self.columns),
            new_errors=shown_matrix(whole.errors, self.columns),
            confidence=config.confidence,
            focus=self._focus(),
            corrected_for=(
                f"Of the cells called changed, at most {alpha:.0%} are expected to be unchanged "
                f"(Benjamini and Hochberg over {whole.q.size:,} cells, those of 'no result' among "
                "them)."
            ),
            changed=tuple(
                shifted.ChangedCell(
                    label=labels[cell[0]],
                    prediction=predictions[cell[1]],
                    shift=shown_estimate(
                        whole.shift[cell], whole.low[cell], whole.high[cell], config.confidence
                    ),
                    p_value=float(whole.p[cell]),
                    p_adjusted=float(whole.q[cell]),
                )
                for cell in map(tuple, cells.tolist())
            ),
            frobenius_bound=self.bound,
            stopped=assessed.stopped,
            budget=bill.limit,
            target_error=config.target_error,
            reliance=float(self.estimate.reliance[0]) if config.used_method == "plus" else None,
            old_from="predictions" if config.old_prediction else "document",
            cost=shifted.ShiftCost(
                calls=calls,
                replayed=bill.replayed,
                no_result=self._without_class,
                unaccounted=bill.unaccounted,
                price=bill.price,
                currency=None if bill.price is None else bill.currency,
                spent=None
                if bill.price is None
                else round((calls + assessed.lost) * bill.price, 9),
            ),
            strata=self._strata(),
            slices=slices,
            warnings=(*self.old.warnings, *self._warnings()),
        )

    @property
    def _without_class(self) -> int:
        return int(np.count_nonzero(self.assessed.codes == len(self.pool.classes)))

    def _focus(self) -> shifted.ShiftFocus | None:
        """Return how the weighted sum of the cells changed; errors of old cells are independent."""
        config, old = self.config, self.old
        strata, sample = self.assessed.strata, self.assessed.sample
        weights = strata.weights
        if weights is None:
            return None
        change = self.accuracy
        if config.focus != ACCURACY:
            is_plus, is_masa = config.used_method == "plus", config.used_method == "masa"
            # What each label contributes at least and at most.
            limits = tuple(
                float(strata.label_share @ end)
                for end in (weights.min(axis=1), weights.max(axis=1))
            )
            error = weighted_sum_errors(strata, sample, weights, control=is_plus, starved=is_masa)
            change = ValueChange.of(
                float((weights * old.matrix).sum()),
                float((weights * self.whole.new).sum()),
                float(error[0]),
                config.confidence,
                float(np.sqrt(np.square(weights * old.errors).sum())),
                (limits[0], limits[1]),
            )
        better = higher_is_better(weights, strata)
        return shifted.ShiftFocus(
            of=config.focus or "",
            weights=shown_matrix(weights, self.columns),
            before=change.before,
            after=change.after,
            shift=change.shift,
            p_value=change.p,
            significant=change.p <= 1 - config.confidence,
            higher_is_better=better,
            direction=change.direction(higher_is_better=better),
        )

    def _strata(self) -> tuple[shifted.ShiftStratum, ...]:
        pool, strata, sample = self.pool, self.assessed.strata, self.assessed.sample
        variances = stratum_variances(strata, sample, self.estimate.reliance)[0]
        optimal = optimal_calls(strata.share, variances, self.assessed.items.size)
        edges: list[float | None] = [None, *pool.edges.tolist(), None]
        columns = (
            pool.stratum_row,
            pool.stratum_bin,
            pool.sizes,
            sample.asked[0],
            variances,
            optimal,
        )
        return tuple(
            shifted.ShiftStratum(
                label=pool.classes[int(pool.labels[row])],
                low=edges[place] if place >= 0 else None,
                high=edges[place + 1] if place >= 0 else None,
                missing=place < 0 and self.config.difficulty is not None,
                size=size,
                calls=calls,
                variance=None if np.isnan(variance) else variance,
                optimal_calls=None if np.isnan(best) else best,
            )
            for row, place, size, calls, variance, best in zip(
                *(column.tolist() for column in columns), strict=True
            )
        )

    def slice_changes(self) -> list[SliceChange]:
        """Return the change of each slice that has examples.

        All slices share the calls: an item outside of a slice counts as 0 in all its cells
        (`slicebeam.metrics.shift.estimates.estimate`). The error of an accuracy is widened by what was
        not seen, as those of the cells are, since a slice may have few calls or none.
        """
        counts, strata, confidence = self.pool.slices, self.assessed.strata, self.config.confidence
        if counts is None or counts.old is None:
            return []
        used = np.flatnonzero(counts.sizes > 0)
        sizes = counts.sizes[used].astype(np.float64)
        old = np.zeros((used.size, *strata.shape))
        old[:, :, :-1] = counts.old[used] / sizes[:, None, None]
        slices = Subpools(sizes / self.pool.rows, counts.labels[used] / sizes[:, None], old)
        sample, calls = self._counted(used)
        control = self.config.used_method == "plus"
        found = estimate(strata, sample, control=control, slices=slices)
        errors, accuracies = found.accuracy_errors(widened=True), strata.accuracy(old)
        return [
            SliceChange(
                number,
                int(counts.sizes[number]),
                int(calls[run]),
                MatrixChange.of(found, run, old[run], 0.0, confidence),
                ValueChange.of(
                    float(accuracies[run]),
                    float(found.accuracy[run]),
                    float(errors[run]),
                    confidence,
                ),
            )
            for run, number in enumerate(used.tolist())
        ]

    def _counted(self, used: IntArray) -> tuple[Sample, IntArray]:
        """Return the counts of each slice's items in place of runs, and its queried items."""
        assessed, items, ragged = self.assessed, self.pool.items, self.pool.items.slices
        if ragged is None or items.old is None:
            raise TypeError("a pool without slices")
        place = np.full(int(np.max(used, initial=-1)) + 1, -1)
        place[used] = np.arange(used.size)
        begin, end = ragged.offsets[assessed.items], ragged.offsets[assessed.items + 1]
        call = np.repeat(np.arange(assessed.items.size), end - begin)
        first = np.repeat(begin - np.concatenate([[0], np.cumsum(end - begin)[:-1]]), end - begin)
        run = place[ragged.codes[first + np.arange(call.size)]]
        item = assessed.items[call]
        new, old = assessed.codes[call], items.old[item].astype(np.int64)
        sample = Sample.empty(used.size, *assessed.sample.new.shape[1:])
        sample.asked[:] = assessed.sample.asked
        stratum = items.stratum[item]
        for counts, codes, keep in (
            (sample.new, new, slice(None)),
            (sample.old, old, slice(None)),
            (sample.both, new, old == new),
        ):
            np.add.at(counts, (run[keep], stratum[keep], codes[keep]), 1)
        return sample, np.bincount(run, minlength=used.size)

    def _slices(self) -> tuple[tuple[Slice, ...], tuple[shifted.SliceShift, ...]]:
        """Return the slices with their accuracies, the worst first, and with their matrices."""
        changes = self.slice_changes()
        adjusted = bh_adjusted([each.accuracy.p for each in changes], len(changes))
        order = np.lexsort((np.array([each.accuracy.moved for each in changes]), adjusted))
        hashes = slice_hashes([self.predicates[each.number] for each in changes])
        described, matrices = [], []
        for at in order.tolist():
            change = changes[at]
            conditions = self.predicates[change.number]
            slice_id = f"{int(hashes[at]):016x}"
            described.append(
                Slice(
                    slice_id=slice_id,
                    name=" & ".join(map(str, conditions)),
                    origin=Origin(method="manual" if self.config.by else "imported"),
                    definition=PredicateDefinition(
                        predicate=Predicate(
                            all=tuple(Condition(**part.to_json()) for part in conditions)
                        )
                    ),
                    cross_size=len(conditions),
                    size=Size(n=change.size, share=change.size / self.pool.rows),
                    impact=change.size * change.accuracy.moved,
                    changes=(change.accuracy.of_accuracy(change.size, float(adjusted[at])),),
                )
            )
            matrices.append(
                shifted.SliceShift(
                    slice_id=slice_id, calls=change.calls, **change.matrix.matrices(self.columns)
                )
            )
        return tuple(described), tuple(matrices)

    def _warnings(self) -> list[str]:
        config, assessed, bill = self.config, self.assessed, self.bill
        warnings = []
        labels, calls = assessed.strata.shape[0], int(assessed.items.size)
        if config.used_method == "masa":
            warnings.append(
                "MASA chooses items by the answers: it neglects strata without errors so far, so its "
                "accuracy is biased, mostly upwards, and its interval is widened to allow for that. "
                f"With {labels} labels "
                + (
                    "the bias is larger than the error. "
                    if labels >= _MANY_LABELS
                    else "it is small. "
                )
                + "--method plus or proportional is unbiased."
            )
        if self._without_class:
            why = [f"{number:,} {reason}" for reason, number in bill.without_class[:_MOST_REASONS]]
            if len(bill.without_class) > _MOST_REASONS:
                why.append("…")
            warnings.append(
                f"{self._without_class:,} of {calls:,} answers are not a class and count as 'no result'"
                + (f": {', '.join(why)}." if why else ".")
            )
        without = "got no answer (a time-out, a dropped connection or a killed run)"
        if bill.unaccounted:
            warnings.append(
                f"{_calls(bill.unaccounted)} {without}; their items "
                + (
                    "were sent again, so a model that is paid by the call may have charged twice."
                    if config.model
                    else "were sent again with the same idempotency key. An API that does not "
                    "recognise the key charged twice; with lost_calls: count, no item is sent "
                    "twice."
                )
            )
        if assessed.lost:
            warnings.append(
                f"{_calls(assessed.lost)} {without} and count as paid (lost_calls: count); other items "
                "took their place, and these are never sent again."
            )
        if config.target_error is not None and assessed.stopped == "budget":
            warnings.append(
                "The budget was spent before the target error was reached: the error is below "
                f"{self.bound:.4f} with {config.confidence:.0%} confidence, not "
                f"{config.target_error:g}."
            )
        return warnings


def _calls(number: int) -> str:
    return f"{number:,} call{'s' if number > 1 else ''}"


def _summary(section: shifted.Shift, change: Change) -> str:
    delta, calls = change.delta or Estimate(), section.cost.calls
    before = change.before.value if change.before else None
    text = (
        f"Accuracy is {change.after.value or 0:.1%}, was {before or 0:.1%}: "
        f"{100 * (delta.value or 0):+.1f} points ({section.confidence:.0%} interval "
        f"{100 * (delta.lo or 0):+.1f} to {100 * (delta.hi or 0):+.1f}), from {calls:,} calls"
    )
    if section.cost.spent is not None:
        text += f" for {money(section.cost.spent)} {section.cost.currency}"
    if section.focus is not None and section.focus.of != ACCURACY:
        text += f". {section.focus.line()}"
    number = len(section.changed)
    cells = f"{number:,} cell{'s' if number > 1 else ''}" if number else "No cell"
    return f"{text}. {cells} of the confusion matrix changed significantly."


def money(amount: float) -> str:
    """Return an amount with as many digits as it has, two at least.

    >>> [money(0.075), money(1234.5)]
    ['0.075', '1,234.50']
    """
    digits = f"{amount:,.6f}".rstrip("0")
    return digits if len(digits.rpartition(".")[2]) >= 2 else f"{amount:,.2f}"
