"""The calibration error of random and of other slices: values, error rates of the test, what a search finds."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import calibration_curve

from slicebeam.metrics.counting.statistic_space import Deviations, Range, fixed_point
from slicebeam.metrics.errors import InputError
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.one_model import bin_of, number_of_bins, part_edges
from slicebeam.metrics.measures.registry import metric, statistic_space
from slicebeam.metrics.measures.slice_test import check_comparison
from slicebeam.metrics.significance.outcome_codes import Reason
from slicebeam.metrics.significance.random_subset import bin_sums, population
from tests.refusals import refuses
from tests.running import rows_of, search

N, NAME = 40_000, "calibration_error:10"
ECE = metric(NAME)


def examples(law, rows=N, seed=0):
    """Scores and labels, of a model that is calibrated or not."""
    rng = np.random.default_rng(seed)
    score = rng.beta(1.2, 3, rows) if law != "rare" else rng.beta(0.5, 12, rows)
    rate = np.clip(score * 1.4, 0, 1) if law == "low" else score
    return score, rng.random(rows) < rate


def by_sklearn(score, label, bins=10):
    """A bin is empty or in scikit-learn's curve."""
    curve = calibration_curve(label, score, n_bins=bins)
    at = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], score)
    held = np.bincount(at, minlength=bins)
    return np.abs(np.subtract(*curve)) @ held[held > 0] / len(score)


def slices_of(score, label, rows, name=NAME):
    """Slices of some rows each, with all examples, as a search prepares them."""
    residuals = score - label
    space = statistic_space([name], "overall")
    bins, unit = bin_of(residuals, number_of_bins(name)), 2.0**-40
    span = Range(float(residuals.min()), float(residuals.max()))
    space = space.scaled({(name, False): span}, 1.0, len(score))
    columns = [np.ones(len(score), np.int64)]
    for term, scale in zip(space.all_terms, space.scales, strict=True):
        own = term.bin is None or bins == term.bin
        columns.append(fixed_point(np.where(own, residuals**term.power, 0.0), scale))
    if np.ptp(residuals) > 0:
        edges = part_edges(name, residuals.mean())
        sums = bin_sums(residuals - residuals.mean(), edges, unit)
        sums[2] = 0
        held = Deviations(residuals.mean(), population(sums, edges, unit))
        space = replace(space, deviations=((name, held),))
    matrix = np.stack(columns, axis=1)
    inside = np.stack([matrix[some].sum(axis=0)[: space.columns] for some in rows])
    return Slices(inside, space, matrix.sum(axis=0))


def check_rates(p, slack=2.0):
    """Hold how often random slices are called against the levels, with so many errors of the simulation."""
    for level in (0.05, 0.01):
        rate, error = (p <= level).mean(), slack * (level / p.size) ** 0.5
        assert 0.7 * level - error <= rate <= 1.15 * level + error


@pytest.mark.parametrize("bins", [5, 10, 15])
def test_values_are_those_of_scikit_learn(bins):
    score, label = examples("calibrated", 3000)
    # On edges, and as close together as where other values are summed about their middle.
    score[:1000] = np.round(score[:1000], 1)
    rows = [np.arange(1000), np.arange(1000, 1040), score > 0.3, label]
    slices = slices_of(score, label, rows, f"calibration_error:{bins}")
    own = metric(f"calibration_error:{bins}")
    expected = [by_sklearn(score[some], label[some], bins) for some in rows]
    np.testing.assert_allclose(own.value(slices), expected, rtol=1e-12)
    near = slices_of(0.5 + score / 50, label | True, rows[:2], own.name)
    expected = [by_sklearn(0.5 + score[some] / 50, label[some] | True, bins) for some in rows[:2]]
    np.testing.assert_allclose(own.value(near), expected, rtol=1e-12)


@pytest.mark.parametrize(("law", "n"), [("calibrated", 40), ("low", 300)])
def test_the_law_is_that_of_random_subsets(law, n):
    (score, label), rng = examples(law), np.random.default_rng(1)
    rows = [rng.choice(N, n, replace=False, shuffle=False) for _ in range(1000)]
    slices = slices_of(score, label, rows)
    order, below = np.argsort(ECE.value(slices)), (np.arange(1000) + 0.5) / 1000
    for side, expected in (("worse", 1 - below), ("better", below)):
        p = ECE.test(slices, side).p
        np.testing.assert_allclose(p[order], expected, atol=0.05)
        check_rates(p, slack=3.0)


def test_random_parts_of_a_slice_are_not_worse_than_it():
    (score, label), rng = examples("calibrated"), np.random.default_rng(3)
    high = np.flatnonzero(score > 0.4)[:2000]
    rows = [rng.choice(high, 400, replace=False) for _ in range(1500)]
    slices, parent = slices_of(score, label, rows), slices_of(score, label, [high])
    parents = replace(slices, sums=np.repeat(parent.sums, 1500, axis=0))
    for worse in (True, False):
        p = ECE.p_refine(slices, parents, ECE.tail("worse" if worse else "better"))
        # The sum of few absolute values is skewed.
        assert 0.02 < (p <= 0.05).mean() < 0.08
        assert 0.45 < p.mean() < 0.55
    assert np.all(ECE.p_refine(parents, parents, ECE.tail("worse")) == 1.0)
    of_one_label = slices_of(score, label, [high[label[high]][:500]])
    assert ECE.p_refine(of_one_label, parent, ECE.tail("worse")) < 1e-9
    assert ECE.p_refine(of_one_label, parent, ECE.tail("better")) > 0.99


def test_a_slice_that_cannot_be_tested():
    (score, label), rows = examples("calibrated", 500), [np.arange(60), np.arange(500)]
    for some, reason in ((score, 0), (np.full(500, 0.3), Reason.CONSTANT)):
        slices = slices_of(some, label & (reason == 0), rows)
        assert ECE.test(slices, "both").reasons.tolist() == [reason, Reason.WHOLE]
        assert np.isnan([*ECE.value_interval(slices, 0.9), *ECE.delta_interval(slices, 0.9)]).all()
    empty = slices_of(score, label, [np.arange(0)])
    assert np.isnan(ECE.value(empty)).all()
    assert ECE.test(empty, "worse").reasons.tolist() == [Reason.UNDEFINED]


def test_what_it_does_not_take_is_refused_by_name():
    for bins in ("4", "51", "7.5", "nan", "ten", ""):
        why = "the number of bins must be a whole number from 5 to 50"
        refuses(InputError, f"calibration_error:{bins}: {why}", metric, f"calibration_error:{bins}")
    refuses(InputError, f"{NAME} has no test of two models", check_comparison, NAME, "baseline")
    for option, why in (("weighted", "takes no weights"), ("resampled", "is larger by chance")):
        with pytest.raises(InputError, match=f"--metric {NAME} {why}"):
            check_comparison(NAME, "overall", **{option: True})


def test_a_search_finds_where_scores_are_off(tmp_path):
    (score, label), rng = examples("calibrated", 6000), np.random.default_rng(4)
    frame = pd.DataFrame({"s": score, "y": label, "site": rng.choice(list("PQRST"), 6000)})
    # Too high for half, too low for the others: right on average.
    off = frame["site"] == "P"
    frame.loc[off, "y"] = rng.random(off.sum()) < np.where(score > 0.3, 0.9, 0.02)[off]
    frame.to_parquet(tmp_path / "data.parquet")
    options = {"data": (str(tmp_path / "data.parquet"),), "label": "y", "score": "s"}
    options |= {"features": ("site",), "metric": (NAME, "brier")}
    found = search(tmp_path / "out", **options)
    rows = [(row, held) for row, held in rows_of(found, frame) if row.metric == NAME]
    expected = slices_of(score, frame["y"].to_numpy(), [np.flatnonzero(held) for _, held in rows])
    tested = ECE.test(expected, "worse")
    for (row, held), p in zip(rows, tested.p, strict=True):
        assert row.value == pytest.approx(by_sklearn(frame["s"][held], frame["y"][held]))
        assert row.reference == pytest.approx(by_sklearn(frame["s"], frame["y"]))
        assert row.p_value == pytest.approx(p, rel=1e-6)
        assert row.significant == (row.slice == "site = P")
        assert np.isnan(row.ci_low)
    assert len(rows) == 5
    for wrong, why in (({"group": "site"}, "a bootstrap"), ({"test": "bootstrap-rows"}, "--test")):
        refuses(InputError, why, search, tmp_path / "no", **options | wrong)
    frame.assign(s=2 * score).to_parquet(tmp_path / "data.parquet")
    refuses(InputError, f"{NAME} takes probabilities, 0 to 1", search, tmp_path / "no", **options)
