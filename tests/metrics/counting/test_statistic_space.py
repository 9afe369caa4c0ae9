"""Where each statistic stands, and the fixed point in which values are summed."""

import itertools
from dataclasses import replace
from math import fsum

import numpy as np
import pytest

from slicebeam.metrics.counting.statistic_space import (
    BUCKETS,
    Range,
    StatisticSpace,
    Term,
    fixed_point,
)
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric, metrics, statistic_space
from slicebeam.metrics.randomness import poisson_weights
from slicebeam.metrics.significance.auc import placements
from tests.option_words import COMPARISONS

ROWS = 20_000


def every_space():
    names = [name for name in metrics() if "macro" not in name]
    return [
        statistic_space(some, comparison, weighted=weighted)
        for some in (["accuracy"], ["f1", "accuracy"], ["log_loss"], ["auc"], names)
        for comparison in COMPARISONS
        for weighted in (False, True)
    ]


@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("indicators", [(), ("wrong",), ("positive", "predicted", "wrong")])
def test_a_cell_is_the_sum_of_its_digits(indicators, comparison, classes):
    space = StatisticSpace(indicators, comparison, classes=classes)
    sizes = [size for _, size in space.axes.values()]
    assert space.cells == np.prod(sizes, dtype=int)
    # The first axis is the lowest digit; each combination is one cell.
    for cell, digits in enumerate(itertools.product(*(range(size) for size in sizes[::-1]))):
        made = 0
        for (axis, old), digit in zip(space.axes, digits[::-1], strict=True):
            made += space.stride(axis, old=old) * digit
            assert space.code(axis, old=old)[cell] == digit
            if axis in indicators:
                assert space.holds(axis, old=old)[cell] == bool(digit)
        assert made == cell
    names = [axis for axis, old in space.axes if not old]
    assert names == [*indicators, *(["label_class", "predicted_class"] if classes else [])]
    of_old = {axis for axis, old in space.axes if old}
    paired = comparison == "baseline"
    expected = {name for name in names if name not in ("positive", "label_class")}
    assert of_old == (expected if paired else set())
    assert space.sides == (2 if paired else 1)


def test_what_is_of_the_example_is_the_same_for_both_models():
    space = StatisticSpace(("positive", "predicted"), "baseline", classes=3)
    for axis in ("positive", "label_class"):
        np.testing.assert_array_equal(space.code(axis), space.code(axis, old=True))
    for axis in ("predicted", "predicted_class"):
        assert (space.code(axis) != space.code(axis, old=True)).any()


@pytest.mark.parametrize("space", every_space())
def test_columns_do_not_overlap(space):
    """Each read of a sum sees its own columns, and together they see all."""
    space = replace(
        space, scales=(1.0,) * (len(space.terms) + len(space.total_terms)), weight_scales=(1.0, 1.0)
    )
    sums = np.arange(space.raw_columns + len(space.total_terms))[None, :]
    seen = space.counts(sums)[0].tolist()
    if space.weighted:
        seen += space.weights(sums)[0].astype(int).tolist()
        seen += space.weights(sums, 2)[0].astype(int).tolist()
    assert space.cell_columns == len(seen)
    seen += [int(space.term(sums, term)[0]) for term in space.terms]
    if space.ranked:
        for old in (False, True)[: space.sides]:
            histogram = space.histogram(sums, old=old)
            assert histogram.shape == (1, 2, BUCKETS)
            seen += histogram.ravel().tolist()
    assert seen == list(range(space.raw_columns))
    assert space.sizes(sums)[0] == sum(range(space.cells))
    assert space.passes == 1 + 2 * space.weighted + len(space.terms) + space.ranked * space.sides
    totals = space.reduce(sums, np.maximum(sums, sums.max()))[0]
    assert totals.size == space.columns + len(space.total_terms)
    for term, wanted in zip(space.total_terms, sums[0, space.raw_columns :].tolist(), strict=True):
        assert space.total_term(totals, term) == wanted


def log_losses(rows=ROWS):
    rng = np.random.default_rng(0)
    score = np.clip(rng.beta(0.4, 0.4, rows), np.finfo(float).eps, 1 - np.finfo(float).eps)
    return -np.log(np.where(rng.random(rows) < score, score, 1 - score))


def scaled(values, weights=None, name="log_loss"):
    space = statistic_space([name], "overall", weighted=weights is not None)
    heaviest = 1.0 if weights is None else float(weights.max())
    ranges = {(name, False): Range(float(values.min()), float(values.max()))}
    return space.scaled(ranges, heaviest, values.size)


def fixed(space, term, values, weights=None):
    """The summands of a term in fixed point."""
    every = (*space.terms, *space.total_terms)
    power = (values - space.shift(term.value)) ** term.power
    if weights is not None:
        power = power * weights**term.weight_power
    return fixed_point(power, space.scales[every.index(term)])


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_agree_with_exact_ones(*, weighted):
    values = log_losses()
    weights = np.random.default_rng(1).gamma(2, 1, ROWS) if weighted else None
    # Terms are rounded to a part of the largest one: the square of weight times loss.
    near = 1e-11 if weighted else 1e-12
    space = scaled(values, weights)
    assert space.shift("log_loss") == 0
    sums = np.zeros((1, space.raw_columns), np.int64)
    members = np.random.default_rng(2).permutation(ROWS)[:500]
    for some in (slice(None), members):
        for at, term in enumerate(space.terms):
            sums[0, space.cell_columns + at] = fixed(space, term, values, weights)[some].sum()
            weight = 1.0 if weights is None else weights**term.weight_power
            exact = fsum((values**term.power * weight)[some].tolist())
            assert space.term(sums, term)[0] == pytest.approx(exact, rel=near)
    of_all = [fixed(space, term, values, weights).sum() for term in space.total_terms]
    totals = np.concatenate([sums[0], of_all])
    for term in space.total_terms:
        weight = 1.0 if weights is None else weights**term.weight_power
        exact = fsum((values**term.power * weight).tolist())
        assert space.total_term(totals, term) == pytest.approx(exact, rel=near)


def test_sums_do_not_depend_on_the_order():
    values = log_losses()
    space = scaled(values)
    whole = fixed(space, space.terms[1], values)
    shuffled = np.random.default_rng(3).permutation(values)
    halves = [fixed(space, space.terms[1], part).sum() for part in np.split(shuffled, 2)]
    assert whole.sum() == sum(halves)


@pytest.mark.parametrize("rows", [1, 2, 100, 12_345])
@pytest.mark.parametrize("size", [1e-30, 1.0, 36.04, 2.0**40, 1e75])
@pytest.mark.parametrize("heaviest", [1.0, 1e-9, 3e6])
def test_no_sum_overflows(rows, size, heaviest):
    """All examples are the largest, in any replicate, and in twice as many examples."""
    space = statistic_space(["bias"], "baseline", weighted=True)
    ranges = {("bias", old): Range(-size, size) for old in (False, True)}
    space = space.scaled(ranges, heaviest, rows)
    assert len(space.scales) == len(space.terms) + len(space.total_terms)
    drawn = [
        poisson_weights(0, b, np.arange(rows, dtype=np.uint64)).astype(int) for b in range(200)
    ]
    times = max(int(one.sum()) for one in drawn)
    for term, scale in zip((*space.terms, *space.total_terms), space.scales, strict=True):
        doubled = 2.0 if term.source == "change" else 1.0
        value = np.array([(doubled * size) ** term.power * heaviest**term.weight_power])
        unit = int(fixed_point(value, scale)[0])
        assert unit > 2**20
        assert unit * times < 2**63
        assert unit * (2 * rows + 60) < 2**63
    for power, scale in zip((heaviest, heaviest**2), space.weight_scales, strict=True):
        assert int(fixed_point(np.array([power]), scale)[0]) * times < 2**63


def test_scales_are_powers_of_two():
    space = scaled(log_losses(), np.random.default_rng(0).gamma(2, 1, ROWS))
    for scale in (*space.scales, *space.weight_scales):
        assert np.frexp(scale)[0] == 0.5


def test_parts_of_a_sum_are_told_where_no_value_is_negative():
    values = np.linspace(0, 9, ROWS)
    for shift, is_share in ((0.0, True), (-1.0, False)):
        space = scaled(values + shift, name="mean:x")
        assert metric("mean:x").target(space).is_share is is_share


def test_narrow_ranges_keep_their_variance():
    """Values of 1e9 ± 1, whose squares differ in digits that no float64 has."""
    values = 1e9 + np.random.default_rng(4).uniform(-1, 1, ROWS)
    space = scaled(values, name="mean:x")
    assert space.shift("mean:x") == pytest.approx(1e9, abs=1)
    sums = np.zeros((1, space.raw_columns), np.int64)
    sums[0, 0] = ROWS
    for at, term in enumerate(space.terms):
        sums[0, 1 + at] = fixed(space, term, values).sum()
    totals = np.append(sums[0], fixed(space, space.total_terms[0], values).sum())
    own = metric("mean:x")
    moments = own.of_all(Slices(sums, space, totals))  # type: ignore[attr-defined]
    centred = values - space.shift("mean:x")
    mean = float(moments.mean) + space.shift("mean:x")
    assert mean == pytest.approx(fsum(values) / ROWS, rel=1e-15)
    assert float(moments.variance) == pytest.approx(centred.var(ddof=1), rel=1e-10)
    cube = np.mean((centred - centred.mean()) ** 3) / centred.var() ** 1.5
    assert float(moments.skewness) == pytest.approx(cube, abs=1e-9)
    assert own.value(Slices(sums, space))[0] == pytest.approx(values.mean(), rel=1e-15)
    # A finding's mean is computed from targets, about the shift.
    assert own.of_target(centred[:1], space)[0] == pytest.approx(values[0], rel=1e-15)
    low, high = own.value_interval(Slices(sums, space, totals), 0.95)
    assert values.mean() - 1 < low[0] < values.mean() < high[0] < values.mean() + 1


def test_wide_ranges_are_not_shifted():
    """Losses around 0 keep a sum of exactly 0 where all are 0."""
    assert scaled(np.array([0.0, 0.1, 5.0])).shift("log_loss") == 0
    constant = scaled(np.full(10, 7.25))
    assert constant.shift("log_loss") == 7.25
    assert (fixed(constant, constant.terms[1], np.full(10, 7.25)) == 0).all()
    nothing = scaled(np.zeros(10))
    assert nothing.shift("log_loss") == 0
    assert (fixed(nothing, nothing.terms[0], np.zeros(10)) == 0).all()


def test_both_models_have_one_shift():
    """Sums of the new and the old value are subtracted from each other."""
    ranges = {("mse", False): Range(1000.0, 1001.0), ("mse", True): Range(1002.0, 1003.0)}
    space = statistic_space(["mse"], "baseline").scaled(ranges, 1.0, 100)
    assert space.shift("mse") == 1001.5
    new, old = (Term("mse", source, 1) for source in ("new", "old"))
    assert space.scales[space.terms.index(new)] == space.scales[space.terms.index(old)]


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_buckets_are_reduced_to_placements(comparison):
    rng = np.random.default_rng(5)
    of_one = ["average_precision"] if comparison == "overall" else []
    space = statistic_space(["auc", "brier", *of_one], comparison)
    space = space.scaled({("brier", old): Range(0.0, 1.0) for old in (False, True)}, 1.0, 1000)
    sums = rng.integers(0, 4, (30, space.raw_columns))
    begin = space.cell_columns + len(space.terms)
    # A slice without positives, one without examples.
    sums[3, begin + BUCKETS : begin + 2 * BUCKETS] = 0
    sums[4] = 0
    totals = rng.integers(30, 60, (1, space.raw_columns + len(space.total_terms)))
    reduced = space.reduce(sums, totals)
    assert reduced.shape == (30, space.columns)
    assert reduced.dtype == np.int64
    np.testing.assert_array_equal(reduced[:, :begin], sums[:, :begin])
    for old in (False, True)[: space.sides]:
        own = placements(space.histogram(sums, old=old))
        for name, read in space.placements(reduced, old=old)._asdict().items():
            np.testing.assert_allclose(read, getattr(own, name), atol=1e-15)
    assert np.isnan(space.placements(reduced).auc).tolist() == [i in (3, 4) for i in range(30)]
    rest = placements(space.histogram(totals) - space.histogram(sums)).auc
    np.testing.assert_allclose(space.area(reduced).complement, rest, atol=1e-15)
    # The same of one slice alone, and of the whole, whose total terms are kept.
    np.testing.assert_array_equal(space.reduce(sums[7:8], totals)[0], reduced[7])
    assert space.reduce(sums[:0], totals).shape == (0, space.columns)
    whole = space.reduce(totals, totals)
    assert np.isnan(space.area(whole).complement).all()
    kept = len(space.total_terms)
    assert whole[0, whole.shape[1] - kept :].tolist() == totals[0, -kept:].tolist()
    assert space.term(whole[0], space.terms[0]) == space.term(totals[0], space.terms[0])


def test_without_scores_nothing_is_reduced():
    space = statistic_space(["accuracy", "mse"], "overall")
    sums = np.arange(2 * space.raw_columns).reshape(2, -1)
    assert space.reduce(sums, sums[:1]) is sums
