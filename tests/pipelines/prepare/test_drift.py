"""Whether something became more frequent, against scipy's binomial test."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.significance.count_tests import p_more_frequent
from slicebeam.pipelines.prepare.drift import drift_lines
from slicebeam.pipelines.prepare.given_domains import GivenDomains
from slicebeam.transforms.encode.domains import ColumnSummary, FeatureDomain
from slicebeam.transforms.encode.frozen_domains import FrozenDomain
from slicebeam.transforms.encode.predicates import Singleton


@pytest.mark.parametrize(("examples", "before"), [(4000, 4000), (100, 5000), (10**6, 300)])
@pytest.mark.parametrize("then", [0, 1, 40])
def test_against_the_conditional_binomial(examples, before, then):
    now = np.array([0, 1, 2, 20, 45, 90])
    expected = [
        stats.binomtest(k, k + then, examples / (examples + before), "greater").pvalue
        if k + then
        else 1.0
        for k in now.tolist()
    ]
    assert p_more_frequent(now, examples, then, before) == pytest.approx(expected, rel=1e-9)


def test_false_alarms_stay_below_the_level():
    rng = np.random.default_rng(6)
    now, then = rng.binomial(2000, 0.02, 20_000), rng.binomial(3000, 0.02, 20_000)
    p = p_more_frequent(now, 2000, then, 3000)
    for level in (0.05, 0.01, 0.001):
        # Three standard errors above the level at the most.
        assert (p <= level).mean() <= level + 3 * np.sqrt(level / p.size)
    assert (p <= 0.05).mean() > 0.03


def noted(now, examples=10**6):
    """The lines about a column of a million examples that had 40,000 missing and 1,000 others."""
    singletons = (Singleton("x", "==", "a"), Singleton("x", "not_in", ["a"]))
    then = FeatureDomain(
        "x", "categorical", "string", singletons, seen=ColumnSummary(40_000, 1_000, 500)
    )
    frozen = {"x": FrozenDomain(then, 10**6)}
    given = GivenDomains("DOC", 10**6, frozen, (), (), (), {}, None)
    return drift_lines(given, [replace(then, seen=now)], examples, 20)


def test_a_share_is_noted_where_it_grew_by_half_and_surely():
    # At a million examples a quarter more is certain, and is what any two nights differ by.
    assert float(p_more_frequent(50_000, 10**6, 40_000, 10**6)) < 1e-100
    assert noted(ColumnSummary(50_000, 1_000, 500)) == ()
    assert noted(ColumnSummary(59_000, 1_499, 500)) == ()
    assert noted(ColumnSummary(60_000, 1_499, 500)) == ("x: 6.0% missing, 4.0% in DOC.",)
    assert noted(ColumnSummary(20_000, 1_500, 500)) == (
        "x: 0.15% have other values, 0.10% in DOC.",
    )
    # Of few examples, twice the share may be chance.
    assert noted(ColumnSummary(80, 0, 0), 1000) == ("x: 8.0% missing, 4.0% in DOC.",)
    assert noted(ColumnSummary(60, 0, 0), 1000) == ()
    # Too few to be tested.
    assert noted(ColumnSummary(19, 0, 0), 100) == ()


AMONG = "that is one slice, so bin the column again with --top-values"


@pytest.mark.parametrize(("other", "is_most"), [(500_000, False), (500_001, True)])
def test_others_that_are_most_values(other, is_most):
    line = "x: 50.0% have other values, 0.10% in DOC"
    remedy = f"; {AMONG} instead of --domains" if is_most else ""
    assert noted(ColumnSummary(0, other, 500)) == (f"{line}{remedy}.",)
    # Missing values are no others.
    (said,) = noted(ColumnSummary(40_000, other - 20_000, 500))
    assert (AMONG in said) == is_most
    assert (AMONG in noted(ColumnSummary(40_000, other - 20_001, 500))[0]) is False


@pytest.mark.parametrize("option", ["--domains", "--since"])
@pytest.mark.parametrize("side", ["below", "above"])
def test_values_beyond_an_end_that_are_most(option, side):
    singletons = (Singleton("x", "<", 0), Singleton("x", ">=", 0))
    then = FeatureDomain(
        "x", "numeric", "double", singletons, seen=ColumnSummary(0, low=-5, high=7)
    )
    frozen = {"x": FrozenDomain(then, 1000)}
    given = GivenDomains("DOC", 1000, frozen, (), (), (), {}, None, option)
    end = {"below": -5, "above": 7}[side]
    instead = " instead of --domains" if option == "--domains" else ""
    remedy = f"; that is one slice, so bin the column again with --bins{instead}"
    for count, said in ((400, ""), (401, remedy)):
        seen = replace(ColumnSummary(200, below=0, above=0), **{side: count})
        line = f"x: 20.0% missing, none in DOC; 40.{count - 400}% {side} {end}, none in DOC{said}."
        assert drift_lines(given, [replace(then, seen=seen)], 1000, 20) == (line,)


def test_others_that_were_most_values_before_are_no_news():
    singletons = (Singleton("x", "==", "a"), Singleton("x", "not_in", ["a"]))
    then = FeatureDomain("x", "categorical", "string", singletons, seen=ColumnSummary(0, 800, 5))
    given = GivenDomains("DOC", 1000, {"x": FrozenDomain(then, 1000)}, (), (), (), {}, None)
    assert drift_lines(given, [replace(then, seen=ColumnSummary(0, 900, 5))], 1000, 20) == ()
