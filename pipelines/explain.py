"""How a slice got its p-value, so that a statistician can repeat it by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics import base
from slicebeam.metrics.registry import metric

if TYPE_CHECKING:
    from slicebeam.pipelines.iterations import Searched
    from slicebeam.pipelines.preparation import Prepared
    from slicebeam.pipelines.results import MetricResult, Results
    from slicebeam.pipelines.run_config import RunConfig
    from slicebeam.pipelines.slices_table import SliceNames

_WHY = {
    base.HYPERGEOMETRIC: "x of the n examples of the denominator are marked, of N and K in all the "
    "data: X ~ Hypergeom(N, K, n), the observed value by half. Exact, for any size.",
    base.LIKELIHOOD_RATIO: "as the hypergeometric mid-p, whose variance is above 1,000 here, where the "
    "corrected signed root r* of G² agrees with it to 2e-5: p = Φ(∓r*).",
    base.MCNEMAR: "of the examples that only one of the models marks, b and c: B ~ Binomial(b + c, ½), "
    "the observed value by half.",
    base.CELL_PERMUTATION: "the law of the metric if the slice's counts were those of a random subset; "
    "its tail by mean, deviation and skewness (Pearson type III).",
    base.DELTA_METHOD: "t of the change: its variance by the gradients of both models' metrics over the "
    "joint counts, half an example added to each.",
    base.HALL_WELCH: "Welch's t of the slice's mean against that of the m other examples, each "
    "variance at least what γ²/2 further values of the other side's variance would make it, γ the "
    "skewness; then T = t + G·t²/3 + G²·t³/27 + G/6, G = γ·(r^1.5/√n − (1−r)^1.5/√m), r the slice's "
    "part of the variance (Hall 1992).",
    base.HALL_PAIRED: "t of the mean change of each example, bent by Hall's cubic for the skewness of "
    "the changes of all examples.",
    base.AUC_Z: "AUC of a random subset of positives and negatives: mean, variance and skewness from "
    "the placements of all examples; its tail by a beta law.",
    base.LINEARISED: "t of the weighted metric: linearised variance, Kish's effective number of "
    "examples as degrees of freedom.",
    base.BOOTSTRAP_CELLS: "delta / sd of its Poisson replicates drawn from the counts, t on B − 1 "
    "degrees of freedom.",
    base.BOOTSTRAP_ROWS: "delta / sd of its Poisson replicates of the examples, t on B − 1 degrees of "
    "freedom.",
    base.BOOTSTRAP_GROUPS: "delta / sd of its Poisson replicates, in which all examples of a group get "
    "the same weight, t on B − 1 degrees of freedom.",
    base.PERMUTATION: "the mean of a random subset of n of the N examples: its exact mean, deviation "
    "and skewness; tail by Pearson type III.",
    base.PAPER: "delta / sd of its replicates, t on B − 1 degrees of freedom. Uncalibrated.",
}


def explain(
    text: str,
    key: int | None,
    config: RunConfig,
    prepared: Prepared,
    searched: Searched,
    results: Results,
    names: SliceNames,
) -> tuple[str, ...]:
    """Return the lines that explain the tests of a slice, or say that it was not tested.

    Parameters
    ----------
    text : what the user called it
    key : of the slice; None for an id that was not looked up
    """
    at = _position(text, key, results, names)
    if at is None:
        return (f"{text}: not tested: {_why_untested(config, searched, results)}.",)
    level = int(prepared.lattice.cross_sizes(results.keys[at : at + 1])[0])
    family = searched.tests_per_level
    name = names.texts(results.keys[at : at + 1]).to_pylist()[0]
    lines = [f"{name} (n = {int(results.sizes[at]):,}, level {level})"]
    for measured in results.metrics:
        lines += _metric_lines(measured, at, config, prepared, results)
    each = "; each metric has its own correction" if len(results.metrics) > 1 else ""
    lines.append(
        f"  q: {config.used_correction}; {family[level - 1]:,} slices of level {level} could be "
        f"tested, {sum(family):,} in all; L = {len(family)}; significant where q <= "
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


def _why_untested(config: RunConfig, searched: Searched, results: Results) -> str:
    why = f"it has fewer than {config.used_min_slice_size:,} examples"
    if searched.strategy != "batch":
        why += f", or --strategy {searched.strategy} did not visit it"
    if results.saved == "significant":
        why += ", or it is not significant, and only significant slices were kept"
    return why


def _metric_lines(
    measured: MetricResult, at: int, config: RunConfig, prepared: Prepared, results: Results
) -> list[str]:
    method, reason = int(measured.method[at]), int(measured.reason[at])
    own = metric(measured.name)
    first = (
        f"  {measured.name}: {measured.value[at]:.6g}, reference {measured.reference[at]:.6g}, delta "
        f"{measured.delta[at]:+.6g} [{measured.low[at]:+.6g}, {measured.high[at]:+.6g}]"
    )
    lines = [first]
    if method:
        lines += [f"    test: {base.METHODS[method]}", f"    {_WHY[method]}"]
    if reason:
        lines.append(f"    p = 1 without a test: {base.REASONS[reason]}")
    else:
        tail = own.tail(config.alternative)
        lines.append(
            f"    p = {measured.p[at]:.6g} (--alternative {config.alternative}: {tail} tail"
            f"{'s' if tail == 'both' else ''}), q = {measured.q[at]:.6g}"
        )
    inputs = own.inputs(results.sums[at], prepared.of_all, prepared.space)
    lines += [f"    {name} = {_number(number)}" for name, number in inputs.items()]
    if config.draws_replicates and measured.name == config.metric[0]:
        lines.append(f"    B = {config.used_replicates} replicates, seed {config.seed}")
    return lines


def _number(number: float) -> str:
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:.10g}"
