"""How each metric over all examples changed since an earlier run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.registry import metric
from slicebeam.metrics.testing.multiplicity import holm_adjusted
from slicebeam.pipelines.changelist.changes import Change, Difference, OverallSince
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.search.results import CONFIDENCE
from slicebeam.pipelines.search.summary import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.testing.difference import RunDifference
    from slicebeam.pipelines.config.slices import RunConfig

_SMALLEST_SHOWN = 1e-300


def overall_since(
    config: RunConfig, then: SearchChangeList, now: SearchChangeList, metrics: Iterable[str]
) -> tuple[OverallSince, ...]:
    """Return the metrics over all examples then and now, with the tests of their differences.

    These are tests of independent samples: of values, of two models also of deltas, all one family (Holm).
    """
    pairs = [(_overall(then, name), _overall(now, name)) for name in metrics]
    names = [after.metric for _, after in pairs]
    estimates: list[tuple[Estimate | None, Estimate | None]]
    estimates = [(before.after, after.after) for before, after in pairs]
    estimates += [(before.delta, after.delta) for before, after in pairs]
    changes = _differences(config, names * 2, estimates)
    is_baseline = config.comparison == "baseline"
    return tuple(
        OverallSince(
            metric=after.metric,
            n_now=after.n,
            n_then=before.n,
            now=after.after,
            then=before.after,
            value_change=value,
            delta_now=after.delta,
            delta_then=before.delta,
            delta_change=delta,
            reason=_reason(config, before, after)
            if value is None or (delta is None and is_baseline)
            else None,
        )
        for (before, after), value, delta in zip(
            pairs, changes[: len(pairs)], changes[len(pairs) :], strict=True
        )
    )


def _overall(document: SearchChangeList, name: str) -> Change:
    return next(one for one in document.global_ if one.metric == name)


def _reason(config: RunConfig, before: Change, after: Change) -> str:
    for when, change in (("then", before), ("now", after)):
        if change.after.value is None:
            return f"{change.metric} was undefined {when}"
    if config.group:
        return "examples are grouped, and only slices are resampled by groups"
    return "one of the runs has no interval for it"


def _differences(
    config: RunConfig,
    names: Sequence[str],
    estimates: Sequence[tuple[Estimate | None, Estimate | None]],
) -> list[Difference | None]:
    """Return the tested differences of estimates (then, now); None for those without intervals."""
    from slicebeam.metrics.testing.difference import difference

    before, after = (tuple(np.array([_numbers(pair[at]) for pair in estimates]).T) for at in (0, 1))
    found = difference(after, before, CONFIDENCE)
    adjusted = adjusted_overall(config, found.p)
    changes: list[Difference | None] = [None] * len(estimates)
    for at in np.flatnonzero(~np.isnan(found.p)).tolist():
        changes[at] = tested_difference(config, names[at], found, adjusted, at)
    return changes


def adjusted_overall(config: RunConfig, p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the p-values [tests] of changes over all examples, one family, by Holm's method; NaN stays."""
    tested = ~np.isnan(p)
    adjusted = p.copy()
    if config.used_correction != "none":
        adjusted[tested] = holm_adjusted(p[tested])
    return adjusted


def _numbers(one: Estimate | None) -> tuple[float, float, float]:
    if one is None or one.value is None or one.lo is None or one.hi is None:
        return np.nan, np.nan, np.nan
    return one.value, one.lo, one.hi


def tested_difference(
    config: RunConfig, name: str, found: RunDifference, adjusted: NDArray[np.float64], at: int
) -> Difference:
    """Return one of many tested differences of a metric for the document."""
    value, low, high, p = (float(one[at]) for one in found)
    worse = (value > 0) != metric(name).higher_is_better
    return Difference(
        difference=Estimate(value=value, lo=low, hi=high, confidence=CONFIDENCE),
        p_value=p,
        p_adjusted=float(adjusted[at]),
        significant=bool(adjusted[at] <= config.used_alpha),
        direction="none" if value == 0 else "degraded" if worse else "improved",
    )


def has_fallen(change: Change | Difference | None) -> bool:
    """Return whether a change is significant, and for the worse."""
    return change is not None and change.significant and change.direction == "degraded"


def has_worsened(one: OverallSince) -> bool:
    """Return whether a metric over all examples is significantly worse than then, or its delta is."""
    return has_fallen(one.value_change) or has_fallen(one.delta_change)


def change_text(one: Change) -> str:
    """Return how a metric over all examples differs between two models, in a few words."""
    before = None if one.before is None else one.before.value
    return f"{_moved(one.metric, before, one.after.value)}{_tested_text(one.delta, one)}"


def overall_text(one: OverallSince) -> str:
    """Return how a metric over all examples changed, in a few words."""
    text = _moved(one.metric, one.then.value, one.now.value)
    if one.value_change is not None:
        text += _tested_text(one.value_change.difference, one.value_change)
    if one.delta_now is not None and one.delta_then is not None:
        deltas = [
            "undefined" if delta.value is None else f"{delta.value:+.3f}"
            for delta in (one.delta_then, one.delta_now)
        ]
        text += f"; delta {deltas[0]} → {deltas[1]}"
        if one.delta_change is not None:
            text += _tested_text(one.delta_change.difference, one.delta_change)
    if one.reason is not None:
        text += f"; not tested: {one.reason}"
    return text


def _moved(name: str, then: float | None, now: float | None) -> str:
    own = metric(name)
    return f"{own.title} over all examples {shown(own, then)} → {shown(own, now)}"


def _tested_text(difference: Estimate | None, change: Change | Difference) -> str:
    if difference is None or difference.value is None:
        return ""
    low, high = difference.lo, difference.hi
    within = "" if low is None or high is None else f" [{low:+.3f}, {high:+.3f}]"
    words = {"degraded": "significantly worse", "improved": "significantly better"}
    called = words.get(change.direction, "the same") if change.significant else "not significant"
    p = ""
    if change.p_value is not None:
        # Of very small p-values no float holds the digits.
        is_shown = change.p_value > _SMALLEST_SHOWN
        p = f"p = {change.p_value:.2g}, " if is_shown else "p < 1e-300, "
    return f" ({difference.value:+.3f}{within}, {p}{called})"


def overall_json(one: OverallSince) -> dict[str, Any]:
    """Return what ``--json`` and the log say of a metric over all examples."""
    facts: dict[str, Any] = {
        "metric": one.metric,
        "value": one.now.value,
        "value_then": one.then.value,
    }
    facts |= _change_json("", one.value_change)
    if one.delta_now is not None and one.delta_then is not None:
        facts |= {"delta": one.delta_now.value, "delta_then": one.delta_then.value}
        facts |= _change_json("delta_", one.delta_change)
    return facts


def _change_json(prefix: str, change: Difference | None) -> dict[str, Any]:
    if change is None:
        return {f"{prefix}difference": None, f"{prefix}significant": False}
    return {
        f"{prefix}difference": change.difference.value,
        f"{prefix}ci_low": change.difference.lo,
        f"{prefix}ci_high": change.difference.hi,
        f"{prefix}p_value": change.p_value,
        f"{prefix}q_value": change.p_adjusted,
        f"{prefix}significant": change.significant,
        f"{prefix}direction": change.direction,
    }
