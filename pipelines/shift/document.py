"""Puts the ChangeList of a shift together."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slicebeam.metrics.shift.allocation import optimal_calls
from slicebeam.metrics.testing.multiplicity import bh_adjusted
from slicebeam.pipelines.changelist import shifted
from slicebeam.pipelines.changelist.changes import Change, Comparison, MetricEntry, Model
from slicebeam.pipelines.changelist.dataset import Dataset
from slicebeam.pipelines.changelist.discovered import PredicateDefinition
from slicebeam.pipelines.changelist.document import ShiftChangeList
from slicebeam.pipelines.changelist.parts import Condition, Estimate, Predicate
from slicebeam.pipelines.changelist.provenance import Provenance
from slicebeam.pipelines.changelist.slices import Origin, Size, Slice
from slicebeam.pipelines.config.shift import ACCURACY
from slicebeam.pipelines.shift.focus import higher_is_better
from slicebeam.transforms.encode.predicates import slice_hashes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.pipelines.config.shift import ShiftConfig
    from slicebeam.pipelines.shift.assessment import Assessment
    from slicebeam.pipelines.shift.findings import ShiftFindings, SliceFindings, ValueChange
    from slicebeam.pipelines.shift.pool import LabelledPool
    from slicebeam.transforms.encode.predicates import Singleton

# From so many labels on MASA's estimate of the accuracy is too high by more than its error.
_MANY_LABELS = 10
_MOST_REASONS = 3
_PRESENTATION = {"data", "output", "work_dir", "runner_config", "runner_option", "chunk_rows"}


@dataclass(frozen=True)
class Bill:
    """The queried items and their cost.

    Attributes
    ----------
    limit : calls that the budget buys; None without one
    replayed : answers that an earlier run had paid
    source : what answered: the file of the API, of the model, or a column
    without_class : why answers are no class, and how many for each reason
    strange_classes : of answers by the file of the API, which were never seen before
    """

    limit: int | None
    price: float | None
    currency: str | None
    replayed: int
    unaccounted: int
    source: str
    without_class: Sequence[tuple[str, int]] = ()
    strange_classes: Sequence[Any] = ()


def build(
    config: ShiftConfig,
    pool: LabelledPool,
    assessed: Assessment,
    found: ShiftFindings,
    slices: Sequence[SliceFindings],
    predicates: Sequence[Sequence[Singleton]],
    bill: Bill,
    runner: str,
    warnings: Sequence[str] = (),
) -> ShiftChangeList:
    """Return the document of a shift."""
    fingerprint = _fingerprint(pool)
    options = config.resolved()
    shown = {k: v for k, v in options.items() if k not in _PRESENTATION | {"memory_budget"}}
    identity = json.dumps([fingerprint, shown], sort_keys=True).encode()
    change = _accuracy(found.accuracy, pool.rows, config.confidence, found.accuracy.p, None)
    labels, predictions, columns = _classes(pool, assessed, found)
    described, matrices = _slices(config, slices, predicates, pool, columns)
    section = _section(
        config, pool, assessed, found, bill, (labels, predictions, columns), matrices, warnings
    )
    return ShiftChangeList(
        changelist_id=hashlib.sha256(identity).hexdigest()[:16],
        title=f"Shift of {bill.source}",
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
                name=bill.source,
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
        slices=described,
        provenance=Provenance(
            tool_version=version("slicebeam"),
            command="shift",
            runner=runner,
            seed=config.seed,
            config=options,
        ),
    )


def _fingerprint(pool: LabelledPool) -> str:
    content = json.dumps([pool.rows, pool.fingerprint, list(pool.classes)], sort_keys=True)
    return "sha256:" + hashlib.sha256(content.encode()).hexdigest()


def _classes(
    pool: LabelledPool, assessed: Assessment, found: ShiftFindings
) -> tuple[list[Any], list[Any], IntArray]:
    """Return the labels, the predictions, and the columns of the matrices that are reported."""
    labels = [pool.classes[code] for code in pool.labels.tolist()]
    none = len(pool.classes)
    has_none = bool((assessed.codes == none).any() or found.old[:, none].any())
    columns = np.arange(none + 1 if has_none else none)
    predictions = [*pool.classes, None]
    return labels, [predictions[column] for column in columns.tolist()], columns


def _section(
    config: ShiftConfig,
    pool: LabelledPool,
    assessed: Assessment,
    found: ShiftFindings,
    bill: Bill,
    classes: tuple[list[Any], list[Any], IntArray],
    slices: tuple[shifted.SliceShift, ...],
    warnings: Sequence[str],
) -> shifted.Shift:
    labels, predictions, columns = classes
    alpha = 1 - config.confidence
    cells = np.argwhere(found.q[:, columns] <= alpha)
    order = np.argsort([-abs(found.shift[row, columns[column]]) for row, column in cells])
    calls = int(assessed.items.size)
    return shifted.Shift(
        method=config.used_method,
        labels=tuple(labels),
        predictions=tuple(predictions),
        old_matrix=_matrix(found.old, columns),
        new_matrix=_matrix(found.new, columns),
        new_errors=_matrix(found.errors, columns),
        shift=_matrix(found.shift, columns),
        shift_lo=_matrix(found.low, columns),
        shift_hi=_matrix(found.high, columns),
        confidence=config.confidence,
        focus=_focus(config, assessed, found, columns),
        corrected_for=(
            f"Of the cells called changed, at most {alpha:.0%} are expected to be unchanged "
            f"(Benjamini and Hochberg over {found.q.size:,} cells, those of 'no result' among "
            "them)."
        ),
        changed=tuple(
            shifted.ChangedCell(
                label=labels[row],
                prediction=predictions[column],
                shift=_estimate(
                    found.shift[row, columns[column]],
                    found.low[row, columns[column]],
                    found.high[row, columns[column]],
                    config.confidence,
                ),
                p_value=float(found.p[row, columns[column]]),
                p_adjusted=float(found.q[row, columns[column]]),
            )
            for row, column in cells[order].tolist()
        ),
        frobenius_bound=found.bound,
        stopped=assessed.stopped,
        budget=bill.limit,
        target_error=config.target_error,
        reliance=found.reliance,
        old_from="predictions" if config.old_prediction else "document",
        cost=shifted.ShiftCost(
            calls=calls,
            replayed=bill.replayed,
            no_result=int(np.count_nonzero(assessed.codes == len(pool.classes))),
            unaccounted=bill.unaccounted,
            price=bill.price,
            currency=None if bill.price is None else bill.currency,
            spent=None if bill.price is None else round((calls + assessed.lost) * bill.price, 9),
        ),
        strata=_strata(config, pool, assessed, found),
        slices=slices,
        warnings=(*warnings, *_warnings(config, assessed, found, bill)),
    )


def _matrix(values: FloatArray, columns: IntArray) -> shifted.Matrix:
    return tuple(tuple(row) for row in values[:, columns].tolist())


def _estimate(value: float, low: float, high: float, confidence: float) -> Estimate:
    return Estimate(value=float(value), lo=float(low), hi=float(high), confidence=confidence)


def _accuracy(
    change: ValueChange, rows: int, confidence: float, p: float, adjusted: float | None
) -> Change:
    significant = (p if adjusted is None else adjusted) <= 1 - confidence
    direction: Literal["improved", "degraded", "none"] = "none"
    if change.shift != 0:
        direction = "improved" if change.shift > 0 else "degraded"
    return Change(
        metric="accuracy",
        n=rows,
        after=_estimate(change.new, change.new_low, change.new_high, confidence),
        before=Estimate(value=change.old),
        delta=_estimate(change.shift, change.low, change.high, confidence),
        p_value=p,
        p_adjusted=adjusted,
        test="normal",
        significant=significant,
        direction=direction,
    )


def _focus(
    config: ShiftConfig, assessed: Assessment, found: ShiftFindings, columns: IntArray
) -> shifted.ShiftFocus | None:
    change, weights = found.focus, assessed.strata.weights
    if change is None or weights is None:
        return None
    better = higher_is_better(weights, assessed.strata)
    direction: Literal["improved", "degraded", "none"] = "none"
    if better is not None and change.shift != 0:
        direction = "improved" if (change.shift > 0) == better else "degraded"
    return shifted.ShiftFocus(
        of=config.focus or "",
        weights=_matrix(weights, columns),
        before=change.old,
        after=_estimate(change.new, change.new_low, change.new_high, config.confidence),
        shift=_estimate(change.shift, change.low, change.high, config.confidence),
        p_value=change.p,
        significant=change.p <= 1 - config.confidence,
        higher_is_better=better,
        direction=direction,
    )


def _strata(
    config: ShiftConfig, pool: LabelledPool, assessed: Assessment, found: ShiftFindings
) -> tuple[shifted.ShiftStratum, ...]:
    if found.variances is None:
        raise TypeError("the whole pool has strata")
    optimal = optimal_calls(assessed.strata.share, found.variances, assessed.items.size)
    edges: list[float | None] = [None, *pool.edges.tolist(), None]
    strata = []
    for row, place, size, calls, variance, best in zip(
        pool.stratum_row.tolist(),
        pool.stratum_bin.tolist(),
        pool.sizes.tolist(),
        assessed.sample.asked[0].tolist(),
        *(
            [None if np.isnan(one) else float(one) for one in each]
            for each in (found.variances, optimal)
        ),
        strict=True,
    ):
        strata.append(
            shifted.ShiftStratum(
                label=pool.classes[int(pool.labels[row])],
                low=edges[place] if place >= 0 else None,
                high=edges[place + 1] if place >= 0 else None,
                missing=place < 0 and config.difficulty is not None,
                size=size,
                calls=calls,
                variance=variance,
                optimal_calls=best,
            )
        )
    return tuple(strata)


def _slices(
    config: ShiftConfig,
    slices: Sequence[SliceFindings],
    predicates: Sequence[Sequence[Singleton]],
    pool: LabelledPool,
    columns: IntArray,
) -> tuple[tuple[Slice, ...], tuple[shifted.SliceShift, ...]]:
    """Return the slices with their accuracies, the worst first, and with their matrices."""
    changes = [one.found.accuracy for one in slices]
    adjusted = bh_adjusted([change.p for change in changes], len(changes))
    order = np.lexsort((np.array([change.shift for change in changes]), adjusted))
    hashes = slice_hashes([predicates[one.number] for one in slices])
    described, matrices = [], []
    for at in order.tolist():
        one, change = slices[at], changes[at]
        conditions = predicates[one.number]
        slice_id = f"{int(hashes[at]):016x}"
        described.append(
            Slice(
                slice_id=slice_id,
                name=" & ".join(map(str, conditions)),
                origin=Origin(method="manual" if config.by else "imported"),
                definition=PredicateDefinition(
                    predicate=Predicate(
                        all=tuple(Condition(**part.to_json()) for part in conditions)
                    )
                ),
                cross_size=len(conditions),
                size=Size(n=one.size, share=one.size / pool.rows),
                impact=one.size * change.shift,
                changes=(
                    _accuracy(change, one.size, config.confidence, change.p, float(adjusted[at])),
                ),
            )
        )
        found = one.found
        matrices.append(
            shifted.SliceShift(
                slice_id=slice_id,
                calls=one.calls,
                old_matrix=_matrix(found.old, columns),
                new_matrix=_matrix(found.new, columns),
                shift=_matrix(found.shift, columns),
                shift_lo=_matrix(found.low, columns),
                shift_hi=_matrix(found.high, columns),
            )
        )
    return tuple(described), tuple(matrices)


def _warnings(
    config: ShiftConfig, assessed: Assessment, found: ShiftFindings, bill: Bill
) -> list[str]:
    warnings = []
    labels, calls = assessed.strata.shape[0], int(assessed.items.size)
    if config.used_method == "masa":
        warnings.append(
            "MASA chooses items by the answers: it neglects strata without errors so far, so its "
            "accuracy is biased, mostly upwards, and its interval is widened to allow for that. "
            f"With {labels} labels "
            + ("the bias is larger than the error. " if labels >= _MANY_LABELS else "it is small. ")
            + "--method plus or proportional is unbiased."
        )
    none = int(np.count_nonzero(assessed.codes == assessed.strata.shape[1] - 1))
    if none:
        why = [f"{number:,} {reason}" for reason, number in bill.without_class[:_MOST_REASONS]]
        if len(bill.without_class) > _MOST_REASONS:
            why.append("…")
        warnings.append(
            f"{none:,} of {calls:,} answers are not a class and count as 'no result'"
            + (f": {', '.join(why)}." if why else ".")
        )
    if bill.strange_classes:
        classes = ", ".join(map(repr, bill.strange_classes))
        warnings.append(
            f"'labels' in the --api file maps answers to class {classes}, which occurs neither as "
            "a label nor as an old prediction."
        )
    if bill.unaccounted:
        number = f"{bill.unaccounted:,} call{'s' if bill.unaccounted > 1 else ''}"
        warnings.append(
            f"{number} got no answer (a time-out, a dropped connection or a killed run); their items "
            + (
                "were sent again, so a model that is paid by the call may have charged twice."
                if config.model
                else "were sent again with the same idempotency key. An API that does not "
                "recognise the key charged twice; with lost_calls: count, no item is sent "
                "twice."
            )
        )
    if assessed.lost:
        number = f"{assessed.lost:,} call{'s' if assessed.lost > 1 else ''}"
        warnings.append(
            f"{number} got no answer (a time-out, a dropped connection or a killed run) and count as "
            "paid (lost_calls: count); other items took their place, and these are never sent again."
        )
    if config.target_error is not None and assessed.stopped == "budget":
        warnings.append(
            "The budget was spent before the target error was reached: the error is below "
            f"{found.bound:.4f} with {config.confidence:.0%} confidence, not "
            f"{config.target_error:g}."
        )
    return warnings


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
