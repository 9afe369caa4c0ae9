"""``--tolerance``: the gate's *worse* is then significantly worse by more than that."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtr, stdtrit

from slicebeam.metrics.errors import OptionError
from slicebeam.metrics.measures.registry import metric
from slicebeam.metrics.measures.slice_test import has_margin_test, worse_by_more_p
from slicebeam.pipelines.changelist.parts import CONFIDENCE
from slicebeam.pipelines.changelist.testing import Tolerated
from slicebeam.pipelines.search.significance import adjusted_overall, q_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slicebeam.metrics.arrays import FloatArray
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.search.results import MetricResult, Results


def tolerances(texts: Sequence[str], config: RunConfig) -> dict[str, float]:
    """Return the tolerance of each metric that has one."""
    found: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        if equals and name not in config.metric:
            raise OptionError(
                f"--tolerance {text}: {name!r} is not a metric of this run; they are "
                f"{', '.join(config.metric)}; repeat --tolerance for each"
            )
        try:
            tolerance = float(number)
        except ValueError:
            tolerance = math.nan
        if not 0 < tolerance < math.inf:
            raise OptionError(
                f"--tolerance {text}: {number!r} is not a number above 0, such as .005"
            )
        for one in [name] if equals else config.metric:
            if one in found:
                raise OptionError(f"--tolerance {text}: {one} has a tolerance already")
            low, high = metric(one).range
            if tolerance >= high - low:
                raise OptionError(
                    f"--tolerance {text}: {one} lies between {low:g} and {high:g}, so it never falls by that much"
                )
            found[one] = tolerance
    for one in found:
        _check(one, config)
    return found


def _check(name: str, config: RunConfig) -> None:
    if config.since is not None:
        raise OptionError(
            "--tolerance does not hold for the changes since an earlier run; leave --since or --tolerance out"
        )
    if config.is_paper:
        raise OptionError("--tolerance needs a calibrated test; leave --test paper out")
    weighted = config.weight is not None
    if not has_margin_test(name, config.comparison, weighted=weighted):
        others = "means" if weighted else "shares, such as accuracy and recall, and means"
        if config.comparison == "baseline":
            others = "all but auc and rmse"
        raise OptionError(
            f"--tolerance: {name}{' with --weight' if weighted else ''} has no test against a tolerance; leave it "
            f"out of --metric, or name those that have one by NAME=NUMBER: {others}"
        )


def check_published(document: SearchChangeList, tolerance: Mapping[str, float]) -> None:
    """Refuse to judge a published result by another tolerance: OptionError."""
    tests = document.testing.metrics
    published = {
        test.metric: test.tolerated.tolerance for test in tests if test.tolerated is not None
    }
    if published != dict(tolerance):
        raise OptionError(
            "--tolerance: the published result was judged by another one; leave --resume out to run it again"
        )


def with_tolerances(
    document: SearchChangeList, tolerance: Mapping[str, float], results: Results
) -> SearchChangeList:
    """Return a document that says where significantly worse metrics are so by more than is tolerated."""
    config, prepared = results.config, results.prepared
    overall = [
        math.nan if change.p_value is None or change.reason else change.p_value
        for change in document.global_
    ]
    for number, change in enumerate(document.global_):
        if not math.isnan(overall[number]) and (margin := tolerance.get(change.metric)):
            p = worse_by_more_p(change.metric, prepared.slices(), margin, "both")
            fell = change.direction == "degraded"
            overall[number] = max(overall[number], float(p[0])) if fell else 1.0
    holm = adjusted_overall(config, np.array(overall))
    tests = []
    for number, tested in enumerate(document.testing.metrics):
        if tested.metric in tolerance:
            margin, measured = tolerance[tested.metric], results.metrics[number]
            p = _p_values(measured, margin, results)
            # A p of 1 changes no other q, and slices of a check that are too small are not among the tests.
            worse = np.flatnonzero(p < 1.0)
            levels = prepared.lattice.cross_sizes(results.keys[worse])
            q = q_values(config, p[worse], levels, results.searched.tests_per_level)
            is_tested = not math.isnan(overall[number])
            tolerated = Tolerated(
                tolerance=margin,
                degraded=int(np.count_nonzero(q <= config.used_alpha)),
                p_value=overall[number] if is_tested else None,
                p_adjusted=float(holm[number]) if is_tested else None,
                significant=bool(holm[number] <= config.used_alpha),
            )
            tested = tested.model_copy(update={"tolerated": tolerated})  # noqa: PLW2901
        tests.append(tested)
    testing = document.testing.model_copy(update={"metrics": tuple(tests)})
    return document.model_copy(update={"testing": testing})


def _p_values(measured: MetricResult, margin: float, results: Results) -> FloatArray:
    """Return p-values [slices]; 1 where a slice is not significantly worse."""
    config, gain = results.config, measured.gain
    at = np.flatnonzero(measured.significant & (gain < -margin))
    p = np.ones(measured.p_value.shape)
    if config.resamples_examples:
        # The interval is t's over the replicates.
        freedom = config.used_replicates - 1
        reach = (
            0.5 * (measured.ci_high - measured.ci_low)[at] / stdtrit(freedom, 0.5 + CONFIDENCE / 2)
        )
        p[at] = stdtr(freedom, (gain[at] + margin) / reach)
        p[at] = np.minimum((2.0 if config.alternative == "both" else 1.0) * p[at], 1.0)
    else:
        slices = results.prepared.slices(results.sums[at])
        p[at] = worse_by_more_p(measured.name, slices, margin, config.alternative)
    return np.maximum(p, np.where(p < 1.0, measured.p_value, 1.0))
