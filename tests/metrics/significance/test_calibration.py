"""Short versions of the calibration benchmark: every bar, and that wrong statistics miss them.

The draws are fewer and the tolerances wider by about four standard errors. The full designs are in
``benchmarks/calibration.py``.
"""

import numpy as np
import pytest

from benchmarks import calibration, calibration_auc
from benchmarks import calibration_average_precision as of_average_precision
from benchmarks import calibration_counts as counts
from benchmarks import calibration_designs as designs
from benchmarks import calibration_means as means
from slicebeam.metrics.measures.ranking import AveragePrecision
from slicebeam.metrics.significance import auc, average_precision, count_tests, random_subset
from slicebeam.pipelines.search.strategies import Priority
from tests.conftest import slow


def test_mid_p_against_scipy(monkeypatch):
    assert designs.mid_p_against_scipy(tables=300).passed
    ours = count_tests.mid_p
    monkeypatch.setattr(count_tests, "mid_p", lambda *table: ours(*table) * (1 + 1e-7))
    assert not designs.mid_p_against_scipy(tables=300).passed


@pytest.mark.parametrize(("design", "size", "wrong"), [
    (designs.many_expected, {"draws": 10_000, "sizes": 12}, {"test": designs.wald_p}),
    (designs.few_expected, {"draws": 4000, "step": 4}, {"test": designs.wald_p}),
    (designs.deep_tail, {}, {"normal": True}),
    (designs.paper_mode, {"draws": 20_000, "slack": 0.003}, {"sizes": (50,)}),
    slow(designs.paired_models, {"draws": 30_000}, {"exact": True}),
    slow(designs.mean_losses, {"draws": 3000, "sizes": (50, 400), "slack": 0.004}, {"corrected": False}),
    slow(designs.ranking, {"draws": 2000, "step": 3, "slack": 0.006}, {"conditional": False}),
    slow(designs.inherited_children, {"data_sets": 40, "slack": 0.003}, {"against_all": True}),
    slow(calibration.priority_selection, {"permutations": 200, "slack": 0.03}, {"within_batch": True}),
    slow(calibration.group_bootstrap, {"draws": 300, "slack": 0.015}, {"draws": 60, "by_group": False}),
])  # fmt: skip
def test_the_bar_is_met_and_missed_by_a_wrong_statistic(design, size, wrong):
    assert design(**size).passed
    assert not design(**(size | wrong)).passed


def test_power():
    # The bars are .02 below the power, which is five standard errors of 10,000 draws.
    assert designs.power(draws=10_000).passed


def test_means_of_few_values(monkeypatch):
    few = {"columns": counts.COLUMNS[1:4], "sizes": (25, 50)}
    assert counts.few_values(**few).passed
    monkeypatch.setattr(counts, "subset_p", random_subset.sum_p_value)
    assert not counts.few_values(**few).passed


def test_intervals_of_auc(monkeypatch):
    nothing = tuple(np.zeros(2) for _ in range(2))
    ends = auc.gain_interval(np.array([np.nan, 0.0]), nothing, nothing, [0, 2], 5, 0.95)
    np.testing.assert_array_equal(ends, np.nan)
    assert calibration_auc.intervals(slices=300, step=4, slack=0.03).passed
    raised = auc._raised
    for wrong in (
        lambda spread, *_: spread + 1e-12,
        # As far below the slice's own variance as above it.
        lambda *of: np.minimum(raised(*of), (of[0] * of[1] + 20 * of[2]) / (of[1] + 19)),
    ):
        monkeypatch.setattr(auc, "_raised", wrong)
        assert not calibration_auc.intervals(slices=100, step=4, slack=0.06).passed


def test_intervals_of_average_precision(monkeypatch):
    assert of_average_precision.intervals(draws=500, step=5, slack=0.03).passed
    variance = AveragePrecision._variance
    monkeypatch.setattr(AveragePrecision, "_variance", lambda *of: variance(*of) / 2)
    assert not of_average_precision.intervals(draws=500, step=4, slack=0.03).passed


@pytest.mark.slow
def test_average_precision_of_random_slices(monkeypatch):
    # Of 4,000 draws a rate at .01 of one side has a standard error of .22.
    assert of_average_precision.random_slices(draws=4000, step=4, slack=0.9).passed
    moments = average_precision.moments_with_linear_part

    def of_smaller_spread(*of):
        drawn = moments(*of)
        return drawn._replace(sd=0.85 * drawn.sd)

    monkeypatch.setattr(average_precision, "moments_with_linear_part", of_smaller_spread)
    average_precision._drawn.cache_clear()
    assert not of_average_precision.random_slices(draws=4000, step=4, slack=0.9).passed
    average_precision._drawn.cache_clear()


@pytest.mark.slow
def test_permuted_adult():
    # The rate of a single permutation varies by .004.
    found = calibration.permuted_adult(permutations=6, two_sided=2, slack=0.006)
    assert found.passed, found
    wrong = calibration.permuted_adult(
        permutations=2, two_sided=0, slack=0.006, test="paper", correction="none"
    )
    assert not wrong.passed


@pytest.mark.slow
def test_planted_slices():
    found = calibration.planted_slices(data_sets=5, slack=0.1)
    assert found.passed, found
    assert not calibration.planted_slices(data_sets=1, slack=0.1, correction="none").passed


@pytest.mark.slow
def test_priority_selection_by_false_discoveries():
    """Without a real slice every call is false: their rate is the share of searches with one."""
    found = calibration.priority_selection(permutations=100, slack=0.03, correction="fdr-level")
    assert found.passed, found


def test_the_priority_search_ranks_by_p(monkeypatch):
    ranked = []

    class Noted(Priority):
        def next(self, known):
            ranked.append(np.isfinite(known.first_p).sum())
            return super().next(known)

    monkeypatch.setattr(calibration, "Priority", Noted)
    calibration._prioritised(range(1), within_batch=False, correction="fwer-level")
    assert 0 == ranked[0] < ranked[1] < ranked[2]


def test_each_is_applied_in_order():
    assert designs.in_turn(np.square, range(3)) == [0, 1, 4]


@pytest.mark.slow
def test_means_of_random_slices():
    # 15,000 draws: four standard errors of a rate at .01 are nearly half of it on one side.
    names = ("bimodal log loss", "heavy")
    found = means.random_slices(draws=15_000, names=names, sizes=(20, 60), slack=0.3)
    assert found.passed, found
    names = ("bimodal log loss",)
    wrong = means.random_slices(draws=15_000, names=names, sizes=(50, 150), slack=0.3, by_hall=True)
    assert not wrong.passed, wrong


@pytest.mark.slow
def test_permuted_losses():
    # Of 10 searches 3 is the most that chance allows once in a thousand times.
    assert means.permuted_losses(searches=10, kinds=("log_loss", "weighted"), slack=0.2).passed
