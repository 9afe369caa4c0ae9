"""How a slice got its p-value, so that a statistician can repeat it by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.registry import metric
from slicebeam.metrics.significance.outcome_codes import METHODS, REASONS

if TYPE_CHECKING:
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.search.iteration_records import SearchResult
    from slicebeam.pipelines.search.results import MetricResult, Results
    from slicebeam.pipelines.search.slices_table import SliceNames


def explain(
    text: str,
    key: int | None,
    config: RunConfig,
    prepared: EncodedDataset,
    searched: SearchResult,
    results: Results,
    names: SliceNames,
) -> tuple[str, ...]:
    """Return the lines that explain the tests of a slice, or say that it was not tested."""
    at = _position(text, key, results, names)
    if at is None:
        return (f"{text}: not tested: {_why_untested(config, searched, results)}.",)
    level = int(prepared.lattice.cross_sizes(results.keys[at : at + 1])[0])
    family = searched.tests_per_level
    # Slices that were not visited are counted by an upper bound.
    bound = "at most " if sum(family) > sum(searched.tested_per_level) else ""
    name = names.texts(results.keys[at : at + 1]).to_pylist()[0]
    lines = [f"{name} (n = {int(results.sizes[at]):,}, level {level})"]
    for measured in results.metrics:
        lines += _metric_lines(measured, at, config, prepared, results)
    number = len(results.metrics)
    each = f"; times {number}, the number of metrics" if number > 1 else ""
    lines.append(
        f"  q: {config.used_correction}; {bound}{family[level - 1]:,} slices of level {level} "
        f"could be tested, {sum(family):,} in all; L = {len(family)}; significant where q <= "
        f"{config.used_alpha:g}{each}"
    )
    return tuple(lines)


def _position(text: str, key: int | None, results: Results, names: SliceNames) -> int | None:
    if key is None:
        ids = np.asarray(names.ids(results.keys).to_numpy(zero_copy_only=False))
        found = np.flatnonzero(ids == text)
    else:
        found = np.flatnonzero(results.keys == key)
    return int(found[0]) if found.size else None


def _why_untested(config: RunConfig, searched: SearchResult, results: Results) -> str:
    why = f"it has fewer than {config.used_min_slice_size:,} examples"
    if searched.strategy != "batch":
        why += f", or --strategy {searched.strategy} did not visit it"
    if results.saved == "significant":
        why += ", or it is not significant, and only significant slices were kept"
    return why


def _metric_lines(
    measured: MetricResult, at: int, config: RunConfig, prepared: EncodedDataset, results: Results
) -> list[str]:
    method, reason = int(measured.method[at]), int(measured.reason[at])
    own = metric(measured.name)
    first = (
        f"  {measured.name}: {measured.value[at]:.6g}, reference {measured.reference[at]:.6g}, delta "
        f"{measured.delta[at]:+.6g} [{measured.low[at]:+.6g}, {measured.high[at]:+.6g}]"
    )
    lines = [first]
    if method:
        lines.append(f"    test: {METHODS[method]}")
    if reason:
        lines.append(f"    p = 1 without a test: {REASONS[reason]}")
    else:
        tail = own.tail(config.alternative)
        lines.append(
            f"    p = {measured.p[at]:.6g} (--alternative {config.alternative}: {tail} tail"
            f"{'s' if tail == 'both' else ''}), q = {measured.q[at]:.6g}"
        )
    inputs = own.inputs(prepared.slices(results.sums[[at]]))
    lines += [f"    {name} = {_number(number)}" for name, number in inputs.items()]
    if config.resamples_examples and measured.name == config.metric[0]:
        lines.append(f"    B = {config.used_replicates} replicates, seed {config.seed}")
    return lines


def _number(number: float) -> str:
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:.10g}"
