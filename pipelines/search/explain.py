"""How a slice got its p-value, so that a statistician can repeat it by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.registry import metric
from slicebeam.metrics.significance import outcome_codes

if TYPE_CHECKING:
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.search.iteration_records import SearchResult
    from slicebeam.pipelines.search.results import MetricResult, Results
    from slicebeam.pipelines.search.slices_table import SliceNames

_WHY = {
    outcome_codes.HYPERGEOMETRIC: "x of the n examples of the denominator are marked, of N and K "
    "in all the data: X ~ Hypergeom(N, K, n), with half of the "
    "probability of the observed value. Exact, for any size.",
    outcome_codes.LIKELIHOOD_RATIO: "as the hypergeometric mid-p, whose variance is above 1,000 here, where the "
    "corrected signed root r* of G² agrees with it to 1e-4 (p above 1e-30; 1e-3 below): p = Φ(∓r*).",
    outcome_codes.MCNEMAR: "of the examples that only one of the models marks, b and c: B ~ "
    "Binomial(b + c, ½), with half of the probability of the observed "
    "value.",
    outcome_codes.CELL_PERMUTATION: "the law of the metric if the slice's counts were those of a random subset; "
    "its tail by mean, deviation and skewness (Pearson type III).",
    outcome_codes.DELTA_METHOD: "t = delta/√V, V = Σ k·(g_new − g_old)²: k is the slice's count plus ½ in each joint "
    "cell that occurs in the data, g the gradient of each model's metric; 2V²/Σ k·(g_new − g_old)⁴ "
    "degrees of freedom. Of p with g at the slice's counts and with g at k, the larger.",
    outcome_codes.RANDOM_SUBSET: "S, the slice's sum of x = value − mean of all (times the weight), as that of n "
    "of the N examples drawn at random: K(a, b) = Σ log(1 − f + f·e^(a + b·x)) over all examples, "
    "f = n/N; ∂K/∂a = n, ∂K/∂b = S; r = ±√(2(a·n + b·S − K)), q = b·√(det K″/(N·f·(1−f))), "
    "w = r + log(q/r)/r, p = Φ(∓w) (Robinson 1982). The values are compressed to 512 points; "
    "up to three outliers are in or out. The interval is Hall's, from the moments of slice and "
    "complement.",
    outcome_codes.HALL_PAIRED: "t of the mean change of each example, bent by Hall's cubic for the skewness of "
    "the changes of all examples.",
    outcome_codes.SIGN_FLIP: "all n examples changed by the same amount, so there is no t. If either sign were "
    "equally likely, all n would have that of the change with probability 2^-n (2^(1-n) two-sided); n is "
    "Kish's effective number with weights. Where the changes of all examples are skewed the other way, "
    "p is at least that of Hall's paired t.",
    outcome_codes.AUC_Z: "AUC of a random subset of positives and negatives: mean, variance and skewness from "
    "the placements of all examples; its tail by a beta law.",
    outcome_codes.LINEARISED: "t of the weighted metric: linearised variance, Kish's effective number of "
    "examples as degrees of freedom.",
    outcome_codes.BOOTSTRAP_ROWS: "delta / sd of its Poisson replicates of the examples, t on B − 1 degrees of "
    "freedom.",
    outcome_codes.BOOTSTRAP_GROUPS: "delta / sd of its Poisson replicates, in which all examples of a group get "
    "the same weight, t on B − 1 degrees of freedom.",
    outcome_codes.PAPER: "delta / sd of its replicates, t on B − 1 degrees of freedom. Uncalibrated.",
}


def explain(
    text: str,
    key: int | None,
    config: RunConfig,
    prepared: EncodedDataset,
    searched: SearchResult,
    results: Results,
    names: SliceNames,
) -> tuple[str, ...]:
    """Return the lines that explain the tests of a slice, or say that it was not tested.

    Parameters
    ----------
    key : of the slice; None for an id that was not found
    """
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
    each = "; each metric has its own correction" if len(results.metrics) > 1 else ""
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
        lines += [f"    test: {outcome_codes.METHODS[method]}", f"    {_WHY[method]}"]
    if reason:
        lines.append(f"    p = 1 without a test: {outcome_codes.REASONS[reason]}")
    else:
        tail = own.tail(config.alternative)
        lines.append(
            f"    p = {measured.p[at]:.6g} (--alternative {config.alternative}: {tail} tail"
            f"{'s' if tail == 'both' else ''}), q = {measured.q[at]:.6g}"
        )
    inputs = own.inputs(results.sums[at], prepared.of_all, prepared.space)
    lines += [f"    {name} = {_number(number)}" for name, number in inputs.items()]
    if config.resamples_examples and measured.name == config.metric[0]:
        lines.append(f"    B = {config.used_replicates} replicates, seed {config.seed}")
    return lines


def _number(number: float) -> str:
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:.10g}"
