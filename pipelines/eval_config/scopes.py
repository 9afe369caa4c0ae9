"""Reads the slices and thresholds of an EvalConfig."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import OptionError, nearest_hint
from slicebeam.pipelines.eval_config.thresholds import CrossSpec, SliceSpec, Threshold, typed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DIRECTIONS: dict[int, Any] = {1: "lower", 2: "higher"}


def slice_spec(where: str, spec: Any) -> SliceSpec:
    """Return what a SlicingSpec names."""
    if spec.slice_keys_sql:
        raise OptionError(
            f"{where}: slice_keys_sql cannot run; write feature_keys and feature_values, or "
            "predicates for --slices"
        )
    both = sorted(set(spec.feature_keys) & set(spec.feature_values))
    if both:
        raise OptionError(f"{where}: {both[0]!r} is in feature_keys and feature_values; keep one")
    values = tuple(sorted((name, typed(value)) for name, value in spec.feature_values.items()))
    return SliceSpec(tuple(sorted(set(spec.feature_keys))), values)


def cross_spec(spec: Any) -> CrossSpec:
    """Return what a CrossSlicingSpec names."""
    where = "cross_slicing_specs"
    others = tuple(slice_spec(where, one) for one in spec.slicing_specs)
    return CrossSpec(slice_spec(where, spec.baseline_spec), others)


def thresholds_of(where: str, metric: str, config: Any) -> Iterator[Threshold]:
    """Yield the thresholds of a MetricConfig."""
    if config.HasField("threshold"):
        yield from _bounds(where, metric, None, config.threshold)
    yield from _scoped(where, metric, config.per_slice_thresholds, config.cross_slice_thresholds)


def _scoped(where: str, metric: str, by_slice: Any, by_cross: Any) -> Iterator[Threshold]:
    for each in by_slice:
        if not each.slicing_specs:
            raise OptionError(f"{where}: per_slice_thresholds has no slicing_specs")
        for spec in each.slicing_specs:
            scope = slice_spec(f"{where} per_slice_thresholds", spec)
            yield from _bounds(where, metric, scope, each.threshold)
    for each in by_cross:
        for spec in each.cross_slicing_specs:
            yield from _bounds(where, metric, cross_spec(spec), each.threshold)


def sub_keys(spec: Any) -> tuple[str, ...]:
    """Return what the names of a MetricsSpec's numbers end in: the class, rank or average each is of.

    Thresholds hold of every one of them, as `_create_sub_keys` of TFMA's metric_specs.py has it.
    """
    found = [f"@classId:{one}" for one in spec.binarize.class_ids.values]
    found += [f"@k:{one}" for one in spec.binarize.k_list.values]
    found += [f"@topK:{one}" for one in spec.binarize.top_k_list.values]
    if spec.HasField("aggregate"):
        kinds = ("micro_average", "macro_average", "weighted_macro_average")
        kind = next((one for one in kinds if getattr(spec.aggregate, one)), "")
        if not kind:
            raise OptionError(f"aggregate has no average; set one of {', '.join(kinds)}")
        average = f"@{kind.removesuffix('_average')}"
        found += [f"@topK:{one}{average}" for one in spec.aggregate.top_k_list.values] or [average]
    return tuple(found) or ("",)


def thresholds_by_name(
    where: str, spec: Any, keys: set[str], own_name: Callable[[str, str], str]
) -> Iterator[Threshold]:
    """Yield the thresholds of a MetricsSpec, which are by the names of its metrics.

    Parameters
    ----------
    keys : names of its metrics
    own_name : returns the name of a number, given that of its metric and one of `sub_keys`
    """
    maps = (spec.thresholds, spec.per_slice_thresholds, spec.cross_slice_thresholds)
    for name in sorted({name for one in maps for name in one}):
        if name not in keys:
            raise OptionError(
                f"{where}: a threshold is for {name!r}, a metric that is saved with the model, which "
                f"is not run{nearest_hint(name, sorted(keys))} name its class in metrics"
            )
        by_slice = by_cross = ()
        if name in spec.per_slice_thresholds:
            by_slice = spec.per_slice_thresholds[name].thresholds
        if name in spec.cross_slice_thresholds:
            by_cross = spec.cross_slice_thresholds[name].thresholds
        for number in (own_name(name, one) for one in sub_keys(spec)):
            if name in spec.thresholds:
                yield from _bounds(where, number, None, spec.thresholds[name])
            yield from _scoped(where, number, by_slice, by_cross)


def _bounds(
    where: str, metric: str, scope: SliceSpec | CrossSpec | None, threshold: Any
) -> Iterator[Threshold]:
    def number(message: Any, name: str) -> float | None:
        return float(getattr(message, name).value) if message.HasField(name) else None

    if threshold.HasField("value_threshold"):
        bound = threshold.value_threshold
        low, high = number(bound, "lower_bound"), number(bound, "upper_bound")
        yield Threshold(metric, "value", scope, low, high)
    if threshold.HasField("change_threshold"):
        bound = threshold.change_threshold
        sizes = {name: number(bound, name) for name in ("absolute", "relative")}
        direction = _DIRECTIONS.get(bound.direction)
        if direction is None and any(one is not None for one in sizes.values()):
            raise OptionError(
                f"{where}: change_threshold has no direction; add LOWER_IS_BETTER or HIGHER_IS_BETTER"
            )
        yield Threshold(metric, "change", scope, direction=direction, **sizes)
