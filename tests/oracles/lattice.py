"""The lattice of slices and the search strategies, as plain transcriptions.

Source: Liu, Rosen and Paul Suganthan (2022), AutoSlicer, appendix A.1, algorithms 1 and 2.

A singleton predicate is named by ``(feature, index of its value in the domain)``; a slice is the
frozenset of the names of its singletons, and the empty frozenset is the overall slice.  A slice
is a *subset* of another when its predicate contains the other's: in terms of names, when it is a
superset.
"""

import itertools
from fractions import Fraction
from typing import NamedTuple

import numpy as np

OVERALL = frozenset()


class Searched(NamedTuple):
    """The candidates of each iteration and the sizes of all of them, empty ones included.

    `estimates` are those of algorithm 2: k, the estimated number of non-empty candidates.
    """

    generated: list
    visited: dict
    significant: set
    estimates: list = ()


def singletons(domains):
    """Name every singleton predicate of the feature domains."""
    return {
        (feature, index): predicate
        for feature, predicates in domains.items()
        for index, predicate in enumerate(predicates)
    }


def all_slices(masks, max_cross_size, min_size):
    """Count every conjunction of singletons on different features, by their masks, at all levels.

    A conjunction is never larger than its parts, so what is too small is not extended.
    """
    found = {}

    def extend(parent, parent_rows):
        for name, singleton_rows in masks.items():
            # Features in their order, so that each conjunction is met once.
            if parent and name[0] <= max(parent)[0]:
                continue
            child, rows = parent | {name}, parent_rows & singleton_rows
            n = int(np.count_nonzero(rows))
            if n >= min_size:
                found[child] = n
                if len(child) < max_cross_size:
                    extend(child, rows)

    if max_cross_size:
        extend(OVERALL, np.True_)
    return found


def counter(masks):
    return lambda conjunction: int(
        np.count_nonzero(np.logical_and.reduce([masks[name] for name in conjunction]))
    )


def children(parent, ids):
    """Yield the parent with one singleton on another feature, for every such singleton."""
    taken = {feature for feature, _ in parent}
    for name in ids:
        if name[0] not in taken:
            yield parent | {name}


def is_subset_of_any(candidate, slices):
    parts = [itertools.combinations(candidate, size + 1) for size in range(len(candidate))]
    return any(frozenset(part) in slices for part in itertools.chain(*parts))


def algorithm_1(ids, evaluate, significant, max_cross_size, min_size):
    """Search level by level, and end where an iteration has no candidate.

    `evaluate` gives the size of a slice, `significant` the significant ones of all slices of at
    least `min_size` that were visited so far, anew after each iteration.
    """
    generated, visited, found, small, previous = [], {}, set(), set(), {OVERALL}
    for _ in range(max_cross_size):
        candidates = {
            child
            for parent in previous
            for child in children(parent, ids)
            if not is_subset_of_any(child, found) and not is_subset_of_any(child, small)
        }
        if not candidates:
            break
        generated.append(candidates)
        sizes = {candidate: evaluate(candidate) for candidate in candidates}
        visited.update(sizes)
        small |= {candidate for candidate, n in sizes.items() if n < min_size}
        found = _significant(significant, visited, min_size)
        previous = candidates - small - found
    return Searched(generated, visited, found)


def algorithm_2(
    ids, evaluate, rank, significant, max_cross_size, min_size, iterations, max_candidates, order
):
    """Search from the slices of the lowest rank: in the paper, their p-value.

    `rank` is of a visited slice of at least `min_size` and may depend on which slices are visited;
    `order` is the key that breaks ties. I = `iterations`, of which the first visits all singletons;
    no further slice is popped once the estimate has reached K = `max_candidates`.

    The queue holds the slices of at least `min_size` and below the maximal cross size that were
    never popped.  Those that are significant when an iteration begins stay where they are: all
    their children would be pruned.

    Rates and k are exact fractions, so that k reaches K when it does on paper.  The overall slice
    is not empty, therefore the rate of cross size 0 is 1 and the first k the number of singletons.
    """
    generated, estimates, visited, found, small, popped = [], [], {}, set(), set(), set()
    for iteration in range(iterations):
        rates = _non_empty_rates(visited, max_cross_size)
        candidates, k = set(), Fraction(0)
        if iteration == 0:
            candidates = set(children(OVERALL, ids))
            k = len(candidates) * rates[1]
        else:
            waiting = [
                conjunction
                for conjunction, n in visited.items()
                if n >= min_size
                and len(conjunction) < max_cross_size
                and conjunction not in found
                and conjunction not in popped
            ]
            waiting.sort(key=lambda conjunction: (rank(conjunction, visited), order(conjunction)))
            for parent in waiting:
                if k >= max_candidates:
                    break
                popped.add(parent)
                for child in children(parent, ids):
                    if child in visited or child in candidates:
                        continue
                    if is_subset_of_any(child, found) or is_subset_of_any(child, small):
                        continue
                    candidates.add(child)
                    k += rates[len(child)]
        if not candidates:
            break
        generated.append(candidates)
        estimates.append(float(k))
        sizes = {candidate: evaluate(candidate) for candidate in candidates}
        visited.update(sizes)
        small |= {candidate for candidate, n in sizes.items() if n < min_size}
        found = _significant(significant, visited, min_size)
    return Searched(generated, visited, found, estimates)


def _significant(significant, visited, min_size):
    return set(significant({one: n for one, n in visited.items() if n >= min_size}))


def _non_empty_rates(visited, max_cross_size):
    """Return NonEmptyRate for the cross sizes 0 to `max_cross_size`."""
    rates = [Fraction(1)]
    for cross_size in range(1, max_cross_size + 1):
        sizes = [n for conjunction, n in visited.items() if len(conjunction) == cross_size]
        non_empty = sum(n > 0 for n in sizes)
        rates.append(Fraction(non_empty, len(sizes)) if sizes else rates[-1])
    return rates
