"""The oracle of lattice and significance, against cases worked by hand and exact fractions."""

import itertools
from fractions import Fraction

import pandas as pd

from tests.oracles import lattice, predicates, significance

# --- lattice: ten examples, three features of two values
#
#   sizes   a0 5  a1 5  b0 8  b1 2  c0 5  c1 5
#   pairs   a0b0 3  a0b1 2  a1b0 5  a1b1 0   a0c0 3  a0c1 2  a1c0 2  a1c1 3
#           b0c0 4  b0c1 4  b1c0 1  b1c1 1
#   triples a0b0c0 2  a0b0c1 1  a0b1c0 1  a0b1c1 1  a1b0c0 2  a1b0c1 3  a1b1c0 0  a1b1c1 0

TOY = pd.DataFrame({name: map(int, text) for name, text in (("a", "0000011111"), ("b", "0001100000"), ("c", "0010100111"))})  # fmt: skip
DOMAINS = {
    feature: [{"all": [{"field": feature, "op": "==", "value": value}]} for value in (0, 1)]
    for feature in TOY.columns
}
NAMED = lattice.singletons(DOMAINS)
MASKS = {name: predicates.mask(TOY, predicate) for name, predicate in NAMED.items()}
COUNT = lattice.counter(MASKS)


def cut(text):
    return frozenset((text[i], int(text[i + 1])) for i in range(0, len(text), 2))


def cuts(text):
    return {cut(word) for word in text.split()}


def by_name(conjunction):
    return len(conjunction), sorted(conjunction)


def always(text):
    """Return a significance rule: these slices, as soon as they are visited."""
    return lambda visited: cuts(text) & set(visited)


SINGLES = "a0 a1 b0 b1 c0 c1"


def test_algorithm_1_prunes_subsets_of_the_significant_along_every_path():
    result = lattice.algorithm_1(list(NAMED), COUNT, always("a1c1"), 3, 2)
    # a1b0c1 is also a child of a1b0 and of b0c1, which are not significant.
    assert result.generated[2] == cuts("a0b0c0 a0b0c1 a1b0c0")
    result = lattice.algorithm_1(list(NAMED), COUNT, always("a0"), 3, 2)
    pairs = cuts("a1b0 a1b1 a1c0 a1c1 b0c0 b0c1 b1c0 b1c1")
    assert result.generated[1:] == [pairs, cuts("a1b0c0 a1b0c1")]
    assert result.significant == cuts("a0")


def priority(p, *, significant="", K=3, iterations=5, L=3, order=by_name):
    values = {cut(name): value for name, value in p.items()}
    rule = always(significant) if isinstance(significant, str) else significant
    return lattice.algorithm_2(
        list(NAMED), COUNT, lambda one, _: values.get(one, 0.5), rule, L, 2, iterations, K, order
    )


P = {"a1": 0.01, "b0": 0.02, "a1c1": 0.02}


def test_algorithm_2_counts_candidates_by_the_rate_of_earlier_iterations():
    result = priority(P, iterations=4)
    assert result.generated == [
        cuts(SINGLES),
        # a1 alone: 4 candidates at the rate of cross size 1, which is 1.
        cuts("a1b0 a1b1 a1c0 a1c1"),
        # 3 of these 4 were not empty. b0 adds three (2.25), a1c1 one; a1b1 is too small.
        cuts("a0b0 b0c0 b0c1 a1b0c1"),
        # 6 of 7 pairs were not empty. a0 adds three (18/7), b1 two; the rest was there already.
        cuts("a0b1 a0c0 a0c1 b1c0 b1c1"),
    ]
    assert result.estimates == [6.0, 4.0, 3.0, float(Fraction(30, 7))]


def test_algorithm_2_counts_a_small_slice_as_not_empty():
    result = priority({"b1": 0.01}, iterations=3)
    # Of these, a1b1 is empty; b1c0 and b1c1 hold one example, less than the minimum.
    assert result.generated[1] == cuts("a0b1 a1b1 b1c0 b1c1")
    assert result.generated[2] == cuts("a0b0 a0c0 a0c1 a1b0 a1c0 a1c1")
    assert result.estimates == [6.0, 4.0, 4.5]


def test_algorithm_2_breaks_ties_by_the_order():
    assert priority(P, K=2, iterations=3).generated[2] == cuts("a0b0 b0c0 b0c1")
    longest_first = priority(P, K=2, iterations=3, order=lambda one: (-len(one), sorted(one)))
    assert longest_first.generated[2] == cuts("a0b0 b0c0 b0c1 a1b0c1")
    assert longest_first.estimates[2] == 3.0


def test_algorithm_2_leaves_out_what_became_significant():
    at = itertools.count(1)
    # b0 waits in the queue when the second iteration makes it significant.
    result = priority(P, significant=lambda _: cuts("b0") if next(at) >= 2 else set(), iterations=3)
    assert result.generated[1] == cuts("a1b0 a1b1 a1c0 a1c1")
    assert result.generated[2] == cuts("a0b1 a0c0 a0c1 b1c0 b1c1")
    assert (result.estimates[2], result.significant) == (3.75, cuts("b0"))


SIZES = {name: COUNT(frozenset([name])) for name in NAMED}
VISITED = {one: COUNT(one) for one in cuts(SINGLES) | cuts("a1b0 a1b1 a1c0 a1c1")}


def test_level_bound_by_hand():
    # n_min = 2.  ab: a1b0, and 2 more cells with 5 examples left; ac: a1c0, a1c1 and 2 more
    # cells with 5 examples left; bc: 4 cells.
    assert significance.level_bound(2, SIZES, VISITED, 10, 2) == 3 + 4 + 4
    # n_min = 3: b1 (2) is too small.  ab: a1b0 and 1 cell; ac: a1c1, and of 2 cells 5 examples
    # fill one; bc: 2 cells.
    assert significance.level_bound(2, SIZES, VISITED, 10, 3) == 2 + 2 + 2
    assert significance.level_bound(1, SIZES, VISITED, 10, 3) == 5
    # 8 cells and 10 examples: 5 slices of two; of b0 only, 4 cells, 3 slices of three.
    assert significance.level_bound(3, SIZES, VISITED, 10, 2) == 5
    assert significance.level_bound(3, SIZES, VISITED, 10, 3) == 3
    # Of a list, in ac both cells can be large, whatever the rows that are left.
    assert significance.level_bound(2, SIZES, VISITED, 10, 3, {"c"}) == 2 + 3 + 2
    # Of 8 cells, the two below a1b1, which is too small, cannot be large.
    assert significance.level_bound(3, SIZES, VISITED, 10, 2, {"c"}) == 6
