"""Compares the measurements of a check with the thresholds of an EvalConfig."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.registry import metric
from slicebeam.pipelines.eval_config.plan import eval_plan
from slicebeam.pipelines.eval_config.thresholds import Measured, validate
from slicebeam.pipelines.tfma.found_metrics import no_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from slicebeam.pipelines.changelist.parts import Estimate
    from slicebeam.pipelines.changelist.tfma import TfmaMetric
    from slicebeam.pipelines.changelist.validation import Validation
    from slicebeam.pipelines.config.check import CheckConfig
    from slicebeam.pipelines.eval_config.native_metrics import ConfiguredMetric
    from slicebeam.pipelines.eval_config.plan import EvalPlan
    from slicebeam.pipelines.eval_config.thresholds import SliceKey
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.search.results import Results
    from slicebeam.pipelines.search.slices_table import SliceNames

    Floats = NDArray[np.float64]


def validation(
    config: CheckConfig,
    prepared: EncodedDataset,
    results: Results,
    names: SliceNames,
    found: Sequence[TfmaMetric],
) -> Validation | None:
    """Return which thresholds are met; None if the EvalConfig has none."""
    if config.eval_config is None or prepared.given is None:
        return None
    plan = eval_plan(config.eval_config, has_baseline=config.comparison == "baseline")
    if not plan.thresholds:
        return None
    slices = measured(
        plan, config, prepared, results, names, _by_slice(plan, found, config.eval_config)
    )
    return validate(plan.thresholds, plan.crosses, slices)


def _by_slice(
    plan: EvalPlan, found: Sequence[TfmaMetric], uri: str
) -> dict[str | None, dict[str, tuple[float, float]]]:
    """Return what TFMA computed, by slice (None for all examples) and metric."""
    held = {one.metric for one in plan.thresholds}
    by_name = {(one.metric, one.name): one for one in found}
    values: dict[str | None, dict[str, tuple[float, float]]] = defaultdict(dict)
    for number in plan.found:
        key = number.key
        entry = by_name.get((number.text, number.number))
        if entry is None and key in held:
            raise no_number(uri, number.text, number.number)
        if entry is not None:
            values[None][key] = _pair(entry.overall, entry.overall_before)
            for one in entry.slices:
                values[one.slice_id][key] = _pair(one.after, one.before)
    return values


def _pair(after: Estimate, before: Estimate | None) -> tuple[float, float]:
    values = (after.value, None if before is None else before.value)
    new, old = (math.nan if value is None else value for value in values)
    return new, old


def measured(
    plan: EvalPlan,
    config: CheckConfig,
    prepared: EncodedDataset,
    results: Results,
    names: SliceNames,
    found: Mapping[str | None, Mapping[str, tuple[float, float]]],
) -> dict[SliceKey, Measured]:
    """Return the EvalConfig's metrics on its slices, all examples first.

    A slice of fewer examples than ``min_slice_size`` has no values.
    """
    if prepared.given is None:
        raise TypeError("a check without slices")
    whole = prepared.of_all[None, : prepared.space.columns]
    sums = np.concatenate([whole, results.sums])
    values = {one.key: _values(one, config, prepared, sums) for one in plan.metrics}
    slices: dict[SliceKey, Measured] = {}
    if plan.is_overall:
        own = {key: (float(new[0]), float(old[0])) for key, (new, old) in values.items()}
        slices[()] = Measured("all examples", None, {**own, **found.get(None, {})})
    ids, texts = names.ids(results.keys).to_pylist(), names.texts(results.keys).to_pylist()
    predicates = prepared.given.membership.predicates
    for at, key in enumerate(results.keys.tolist()):
        # Slices are numbered from 1 in the order in which they were given.
        slice_key = tuple(sorted((one.field, one.value) for one in predicates[key - 1]))
        is_small = results.sizes[at] < plan.smallest
        own = {
            name: (float(new[at + 1]), float(old[at + 1]))
            for name, (new, old) in ({} if is_small else values).items()
        }
        others = {} if is_small else found.get(ids[at], {})
        slices[slice_key] = Measured(texts[at], ids[at], {**own, **others})
    return slices


def _values(
    one: ConfiguredMetric, config: CheckConfig, prepared: EncodedDataset, sums: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Return a metric of the new and of the old model on each slice (sums [slices, columns])."""
    space, name = prepared.space, one.native.name
    if name == "example_count":
        size = space.sizes(sums).astype(np.float64)
        if space.weighted:
            size = space.weights(sums).sum(axis=1) * 2.0**space.weight_exponent
        return size, size
    prediction = config.score or config.prediction
    columns = {"mean:label": config.label, "mean:prediction": prediction}
    if name == "calibration":
        total, of = (
            metric(f"mean:{column}").value(sums, space) for column in (prediction, config.label)
        )
        ratio = np.divide(total, of, out=np.full(total.shape, np.nan), where=~np.isclose(of, 0.0))
        return ratio, np.full(ratio.shape, math.nan)
    own = metric(f"mean:{columns[name]}" if name in columns else name)
    # Where there is one class only, TFMA has 0.
    undefined = 0.0 if name == "auc" else math.nan
    new = np.nan_to_num(own.value(sums, space), nan=undefined)
    if space.comparison == "baseline":
        return new, np.nan_to_num(own.value(sums, space, old=True), nan=undefined)
    return new, np.full(new.shape, math.nan)
