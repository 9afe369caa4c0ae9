"""Metrics of counts: shares by the law of counts, F1 and shares against the parent."""

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric
from tests.metrics.measures.test_metric import Examples, random_members
from tests.metrics.significance.test_few_cells import enumerated
from tests.option_words import ALTERNATIVES


def marks(name, examples, *, old=False):
    """Which examples a share counts, and which are in its denominator."""
    y, p = examples.label == 1, examples.predicted[old] == 1
    every = np.ones(examples.rows, bool)
    return {
        "accuracy": (y == p, every),
        "error_rate": (y != p, every),
        "precision": (y & p, p),
        "recall": (y & p, y),
        "fnr": (y & ~p, y),
        "fpr": (p & ~y, ~y),
        "specificity": (~p & ~y, ~y),
        "f1": (y & p, y | p),
        "prediction_rate": (p, every),
        "label_rate": (y, every),
    }[name]


def mid_p(law, x, name, alternative):
    tails = law.sf(x) + law.pmf(x) / 2, law.cdf(x) - law.pmf(x) / 2
    both = min(1, 2 * min(tails))
    worse, better = tails[::-1] if metric(name).higher_is_better else tails
    return {"worse": worse, "better": better, "both": both}[alternative]


SHARES = "accuracy error_rate precision recall fnr fpr specificity f1 prediction_rate label_rate"


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("name", SHARES.split())
def test_shares_are_tested_by_the_mid_p_within_the_denominator(name, alternative):
    examples, members = Examples.random(21, 900), random_members(22, 12, 900)
    marked, within = marks(name, examples)
    # All of the denominator, a few of it, and none.
    few = np.flatnonzero(within)[:5]
    members[1] |= within
    members[2, few] = members[3] = False
    members[2:4] &= ~within
    members[2, few] = True
    slices = examples.of([name], "overall", members)
    tested = metric(name).test(slices, alternative)
    N, K = int(within.sum()), int((within & marked).sum())
    for at, (held, p, reason) in enumerate(zip(members, tested.p, tested.reasons, strict=True)):
        n, x = int((held & within).sum()), int((held & marked).sum())
        assert metric(name).inputs(slices.rows([at])) == {"n": n, "x": x, "N": N, "K": K}
        is_small = n == 0 or (n < 10 and n < held.sum())
        assert (reason != 0) == (is_small or n == N)
        expected = 1 if reason else mid_p(stats.hypergeom(N, K, n), x, name, alternative)
        assert p == pytest.approx(expected, rel=1e-7, abs=1e-12)
    assert (tested.reasons == 0).sum() >= 8


FIXED = ["accuracy", "error_rate", "recall", "fnr", "fpr", "specificity", "prediction_rate"]


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("name", FIXED)
def test_shares_of_two_models_are_tested_by_mcnemars_mid_p(name, alternative):
    examples, members = Examples.random(21, 900), random_members(22, 12, 900)
    (new, within), (old, _) = (marks(name, examples, old=side) for side in (False, True))
    slices = examples.of([name], "baseline", members)
    tested = metric(name).test(slices, alternative)
    assert not tested.reasons.any()
    for held, p, one in zip(members, tested.p, range(len(slices)), strict=True):
        b, c = int((held & new & ~old).sum()), int((held & old & ~new).sum())
        counts = {"n": int((held & within).sum()), "b (only new marked)": b, "c (only old)": c}
        assert metric(name).inputs(slices.rows([one])) == counts
        expected = mid_p(stats.binom(b + c, 0.5), b, name, alternative)
        assert p == pytest.approx(expected, rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_f1_of_two_models_against_the_parent_is_by_the_delta_method(*, weighted):
    """The gradient by each example's weight is taken numerically."""
    examples, parent = Examples.random(5, 300, weighted=weighted), np.arange(300) < 200
    child = np.arange(300) < 60
    weight = examples.weight if weighted else np.ones(300)

    def gap(weights):
        """F1 of the new model less that of the old."""
        found = []
        for old in (False, True):
            marked, within = marks("f1", examples, old=old)
            # 2·TP / (2·TP + FP + FN)
            found.append(2 * weights @ marked / (weights @ marked + weights @ within))
        return found[0] - found[1]

    def slopes(held):
        step = np.eye(300) * 1e-5
        return (gap(weight * held + step) - gap(weight * held - step)) / 2e-5

    own, above = slopes(child), slopes(parent)
    space, f1 = examples.space(["f1"], "baseline"), metric("f1")
    sums, totals = examples.reduced(space, np.stack([child, parent]))
    freedom = f1.effective_n(Slices(sums[:1], space))[0] - 1
    # The interval of the difference of the models, by the same gradient; Wilson's where that is wider.
    every = np.ones(300, bool)
    sums_of_all, _ = examples.reduced(space, every[None])
    size, z2 = f1.effective_n(Slices(sums_of_all, space))[0], stats.norm.ppf(0.975) ** 2
    arm = stats.t.ppf(0.975, size - 1) * np.linalg.norm(slopes(every) * weight)
    assert arm > 2 * z2 / (size + z2)
    ends = np.ravel(f1.delta_interval(Slices(sums_of_all, space, totals), 0.95))
    np.testing.assert_allclose(ends, [gap(weight) - arm, gap(weight) + arm], rtol=1e-3)
    terms = child * (own - above) ** 2 + (parent & ~child) * above**2
    t = (gap(weight * child) - gap(weight * parent)) / (terms @ weight**2) ** 0.5
    for worse, expected in ((True, stats.t.cdf(t, freedom)), (False, stats.t.sf(t, freedom))):
        p = f1.p_refine(
            *(Slices(one[None], space, totals) for one in sums),
            f1.tail("worse" if worse else "better"),
        )
        assert p == pytest.approx(expected, rel=1e-3)


def test_shares_against_the_parent_are_random_subsets_of_it():
    examples, parent = Examples.random(5, 300), np.arange(300) < 200
    child = np.arange(300) < 60
    counts = []
    (new, _), (old, _) = (marks("accuracy", examples, old=side) for side in (False, True))
    for held in (child, parent):
        counts += [held.sum(), (held & old & ~new).sum(), (held & new & ~old).sum()]
    marked, within = marks("precision", examples)
    N, K = int((parent & within).sum()), int((parent & marked).sum())
    n, x = int((child & within).sum()), int((child & marked).sum())
    exact = mid_p(stats.hypergeom(N, K, n), x, "precision", "worse")
    for name, comparison, expected in (
        ("accuracy", "baseline", pytest.approx(enumerated(*counts), rel=0.02)),
        ("precision", "overall", pytest.approx(exact, rel=1e-9)),
    ):
        own, slices = metric(name), examples.of([name], comparison, np.stack([child, parent]))
        assert own.p_refine(slices.rows([0]), slices.rows([1]), own.tail("worse"))[0] == expected
    slices = examples.of(["accuracy"], "baseline", np.stack([child, parent]))
    change = new.astype(float) - old
    varied = [change[child].var(), change[parent].var()]
    np.testing.assert_allclose(metric("accuracy").change_variance(slices), varied)
