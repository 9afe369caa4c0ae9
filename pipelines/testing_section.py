"""The part of the ChangeList that says what was tested and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from slicebeam.metrics.base import METHODS
from slicebeam.metrics.distinct_groups import ENOUGH_GROUPS
from slicebeam.metrics.registry import metric
from slicebeam.metrics.slice_test import OF_CELLS
from slicebeam.metrics.statistic_space import BUCKETS
from slicebeam.pipelines import changelist as doc
from slicebeam.pipelines.results import CONFIDENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from slicebeam.pipelines.iterations import Searched
    from slicebeam.pipelines.preparation import Prepared
    from slicebeam.pipelines.results import MetricResult, Results
    from slicebeam.pipelines.run_config import RunConfig


def testing(
    config: RunConfig, prepared: Prepared, searched: Searched, results: Results
) -> doc.Testing:
    """Return what was tested and how."""
    first = results.metrics[0]
    alpha, family = config.used_alpha, sum(searched.tests_per_level)
    levels = len(searched.tests_per_level)
    sentences = {
        "fdr-level": f"Among the significant slices of all levels together at most {alpha:.0%} are "
        f"expected to be false (Benjamini-Hochberg at {alpha:g}/{levels} within each level).",
        "fwer-level": f"With probability {1 - alpha:.0%} no significant slice is false "
        f"(Bonferroni at {alpha:g}/{levels} within each level).",
        "fwer-tarone": f"With probability {1 - alpha:.0%} no significant slice is false (Tarone: "
        f"Bonferroni at {alpha:g}/{levels} within each level, without the slices that are too small "
        "ever to be significant).",
        "bh": f"Among the significant slices at most {alpha:.0%} are expected to be false "
        "(Benjamini-Hochberg over all levels).",
        "by": f"Among the significant slices at most {alpha:.0%} are expected to be false, however "
        "the tests depend on each other (Benjamini-Yekutieli over all levels).",
        "none": "Exploratory: nothing was corrected for having tested many slices.",
    }
    if prepared.given is not None:
        sentences = _sentences_of_check(alpha, family)
    expected = alpha * sum(searched.tested_per_level) if config.used_correction == "none" else None
    replicates = None
    if config.draws_replicates:
        unit: Literal["rows", "groups", "cells"] = "groups" if config.group else "rows"
        if config.used_test in OF_CELLS:
            unit = "cells"
        replicates = doc.Bootstrap(
            replicates=config.used_replicates,
            unit=unit,
            seed=config.seed,
        )
    return doc.Testing(
        test=_tests_used(config, first),
        alternative=config.alternative,
        alpha=alpha,
        correction=config.used_correction,
        corrected_for=sentences[config.used_correction],
        confidence=CONFIDENCE,
        bootstrap=replicates,
        min_slice_size=config.used_min_slice_size,
        family_size=family,
        family_per_level=searched.tests_per_level,
        tested_per_level=searched.tested_per_level,
        significant=int(first.significant.sum()),
        degraded=int((first.significant & _worse(first)).sum()),
        expected_false=expected,
        warnings=tuple(_warnings(config, prepared, searched, results)),
    )


def _sentences_of_check(alpha: float, family: int) -> dict[str, str]:
    """Return what the corrections promise where all slices are one family."""
    false_ones = f"Among the significant slices at most {alpha:.0%} are expected to be false"
    none_false = f"With probability {1 - alpha:.0%} no significant slice is false"
    return {
        "fdr-level": f"{false_ones} (Benjamini-Hochberg over the {family:,} checked slices).",
        "fwer-level": f"{none_false} (Bonferroni over the {family:,} checked slices).",
        "fwer-tarone": f"{none_false} (Tarone: Bonferroni over those of the {family:,} checked slices "
        "that are large enough ever to be significant).",
        "bh": f"{false_ones} (Benjamini-Hochberg over the {family:,} checked slices).",
        "by": f"{false_ones}, however the tests depend on each other (Benjamini-Yekutieli over the "
        f"{family:,} checked slices).",
        "none": "Exploratory: nothing was corrected for having tested many slices.",
    }


def _tests_used(config: RunConfig, first: MetricResult) -> str:
    """Return the tests of the slices, the most frequent one first."""
    if config.is_paper:
        return f"AutoSlicer's t over {config.used_replicates} Poisson replicates, uncalibrated"
    counts = np.bincount(first.method, minlength=len(METHODS))[1:]
    order = np.argsort(-counts, kind="stable")
    used = [METHODS[1 + code] for code in order.tolist() if counts[code]]
    return "; ".join(used) or "none: there was nothing to test"


def _warnings(
    config: RunConfig, prepared: Prepared, searched: Searched, results: Results
) -> Iterator[str]:
    if prepared.given is not None and config.data == prepared.given.wanted.data:
        yield (
            "This is the data in which the slices were found: what was chosen for its p-value has a "
            "small one here too. Check on new data."
        )
    called = results.keys[results.metrics[0].significant]
    few = int(np.count_nonzero(np.isin(searched.few_groups, called)))
    if few:
        yield (
            f"{few:,} significant slices have fewer than {ENOUGH_GROUPS} groups: their intervals and "
            "p-values are rough."
        )
    for name in prepared.scaling.rough:
        yield (
            f"{name}: the largest value or weight dwarfs the others, so that sums without it are rough; "
            "bound it."
        )
    if prepared.space.ranked:
        error = np.max([one.value_error for one in results.metrics], axis=0)
        rough = int(np.count_nonzero(error))
        if rough:
            slices = "slice" if rough == 1 else "slices"
            which = "that can't be significant whatever it is"
            if config.resamples_examples:
                which = "that are far from significant by a first, quick test"
            if config.is_paper:
                which = "that are not reported"
            yield (
                f"AUC is exact but for {rough:,} listed {slices} {which}: there scores are counted in "
                f"{BUCKETS} buckets, and it is off by at most {_upward(float(error.max()))} (each "
                "slice's own bound: value_error in slices.parquet)."
            )


def _worse(measured: MetricResult) -> NDArray[np.bool_]:
    """Return on which slices the metric is worse than its reference."""
    worse: NDArray[np.bool_] = (measured.delta > 0) != metric(measured.name).higher_is_better
    return worse & (measured.delta != 0)


def _upward(bound: float) -> str:
    """Return a bound with two digits, not below what it is."""
    text = f"{bound:.1e}"
    if float(text) < bound:
        digit = 10.0 ** (int(text.partition("e")[2]) - 1)
        text = f"{float(text) + digit:.1e}"
    return f"{float(text):g}"
