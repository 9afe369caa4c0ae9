"""R² of random and of other slices: error rates of the test, coverage of the intervals."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.counting.statistic_space import Deviations
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric
from slicebeam.metrics.significance.outcome_codes import Reason
from slicebeam.metrics.significance.random_subset import Population
from tests.metrics.measures.test_metric import Examples
from tests.random_subsets import saddle_point

N, SLICES, R2 = 20_000, 3000, metric("r2")


def regression(law):
    rng = np.random.default_rng(0)
    truth, guess = {
        "normal": lambda y, e: (y, y + 0.6 * e),
        "unequal": lambda y, e: (y + 2, y + 2 + e * (0.3 + 0.3 * np.abs(y))),
        "skewed": lambda y, e: (np.exp(1 + y), np.exp(1 + y) + e),
        "counts": lambda y, e: (np.round(np.exp(y)), np.round(np.exp(y)) + 1.5 * e),
    }[law](*rng.normal(size=(2, N)))
    return replace(Examples.random(1, N), truth=truth, guess=(guess, guess))


def slices_of(examples, rows):
    """Slices of some rows each, with all examples."""
    space = examples.space(["r2"], "overall")
    columns = examples.matrix(space)
    inside = np.stack([columns[some, : space.columns].sum(axis=0) for some in rows])
    return Slices(inside, space, columns.sum(axis=0))


@pytest.mark.parametrize("n", [50, 400])
@pytest.mark.parametrize("law", ["unequal", "skewed", "counts"])
def test_random_slices_are_called_at_the_nominal_rate(law, n):
    examples, rng = regression(law), np.random.default_rng(2)
    slices = slices_of(examples, [rng.choice(N, n, replace=False) for _ in range(SLICES)])
    for alternative in ("worse", "better", "both"):
        p = R2.test(slices, alternative).p
        for level in (0.05, 0.01):
            # Three standard errors of the simulation.
            most = 1.25 * level + 3 * (level / SLICES) ** 0.5
            assert (p <= level).mean() <= most
            assert (p <= level).mean() >= 0.4 * level - 3 * (level / SLICES) ** 0.5
    truth = R2.value(slices.total)[0]
    for interval, expected in ((R2.value_interval, truth), (R2.delta_interval, 0.0)):
        low, high = interval(slices, 0.95)
        assert 0.93 <= ((low <= expected) & (expected <= high)).mean() <= 0.985


def test_numbers_follow_from_the_examples():
    """Two slices: one whose errors vary as they do, and one of small errors, whose variance is that of all."""
    examples = regression("unequal")
    y, e2 = examples.truth, (examples.guess[0] - examples.truth) ** 2
    members = np.stack([np.arange(N) < 90, (e2 < 0.01) & (np.arange(N) < 3000)])
    slices = examples.of(["r2"], "overall", members)
    z2, slope = (y - y.mean()) ** 2, e2.mean() / y.var()
    u = e2 - e2.mean() - slope * (z2 - y.var())
    correlation, excess = np.corrcoef(e2, z2)[0, 1], z2.var() / y.var() ** 2
    worse, better = (R2.test(slices, side).p for side in ("worse", "better"))
    (low, high), (below, above) = R2.value_interval(slices, 0.9), R2.delta_interval(slices, 0.9)
    for at, held in enumerate(members):
        n, V, A = held.sum(), y[held].var(), e2[held].mean()
        tails = saddle_point(u, n, n * (A - slope * V * n / (n - 1)))
        np.testing.assert_allclose([worse[at], better[at]], tails, rtol=0.02, atol=1e-12)
        b = A * excess**0.5
        variance = e2[held].var() + b**2 - 2 * correlation * e2[held].std() * b
        assert (variance > u.var()) == (at == 0)
        arm = stats.t.ppf(0.95, n - 1) * (max(variance, u.var()) / (n - 1)) ** 0.5 / V
        ends = [1 - A / V - arm, min(1 - A / V + arm, 1)]
        np.testing.assert_allclose([low[at], high[at]], ends, rtol=1e-3)
        assert above[at] - below[at] == pytest.approx(2 * arm * (1 - n / N) ** 0.5, rel=1e-3)


def test_a_slice_of_larger_errors_is_found_and_its_interval_covers():
    examples, rng = regression("normal"), np.random.default_rng(3)
    bad = np.arange(N) < N // 10
    guess = examples.guess[0] + 0.6 * bad * (examples.guess[0] - examples.truth)
    examples = replace(examples, guess=(guess, guess))
    slices = slices_of(examples, [rng.choice(N // 10, 100, replace=False) for _ in range(600)])
    assert (R2.test(slices, "worse").p <= 0.005).mean() > 0.9
    assert (R2.test(slices, "better").p > 0.9).mean() > 0.9
    low, high = R2.value_interval(slices, 0.95)
    error = examples.guess[0] - examples.truth
    truth = 1 - np.mean(error[bad] ** 2) / examples.truth[bad].var()
    assert 0.92 <= ((low <= truth) & (truth <= high)).mean() <= 0.99


def test_what_has_no_r2_and_what_explains_alike_everywhere():
    examples, members = Examples.random(3, 300), np.arange(300)[None] < [[80], [300]]
    constant = replace(examples, truth=np.where(members[0], 2.0, examples.truth))
    guess = examples.truth.mean() + 0.3 * (examples.truth - examples.truth.mean())
    alike = replace(examples, guess=(guess, guess))
    for some, reasons in (
        (constant, [Reason.UNDEFINED, Reason.WHOLE]),
        (alike, [Reason.CONSTANT, Reason.WHOLE]),
        (replace(examples, guess=(examples.truth,) * 2), [Reason.CONSTANT, Reason.WHOLE]),
    ):
        slices = some.of(["r2"], "overall", members)
        tested = R2.test(slices, "both")
        assert (tested.reasons.tolist(), tested.p.tolist()) == (reasons, [1.0, 1.0])
    slices = alike.of(["r2"], "overall", members)
    rounded = Deviations(0.0, Population((-1e-14, 1e-14), (150.0, 150.0)))
    slices = replace(slices, space=replace(slices.space, deviations=(("r2", rounded),)))
    assert R2.test(slices, "both").reasons.tolist() == [Reason.CONSTANT, Reason.WHOLE]
    assert np.isnan(R2.value(constant.of(["r2"], "overall", members))[0])
