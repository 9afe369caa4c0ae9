"""The lattice of slices and the search strategies, as plain transcriptions.

Source: Liu, Rosen and Paul Suganthan (2022), AutoSlicer, appendix A.1, algorithms 1 and 2.

A singleton predicate is named by ``(feature, index of its value in the domain)``; a slice is the
frozenset of the names of its singletons, and the empty frozenset is the overall slice.  A slice
is a *subset* of another when its predicate contains the other's: in terms of names, when it is a
superset.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

Id = tuple[str, int]
Slice = frozenset[Id]
OVERALL: Slice = frozenset()


class Iterative(NamedTuple):
    """What algorithm 1 did."""

    generated: list[set[Slice]]
    """The candidates of each iteration, empty ones included."""
    visited: dict[Slice, int]
    """The size of every candidate, empty ones included."""
    significant: set[Slice]


class Priority(NamedTuple):
    """What algorithm 2 did."""

    generated: list[set[Slice]]
    """The candidates of each iteration, empty ones included."""
    estimates: list[float]
    """k, the estimated number of non-empty candidates, of each iteration."""
    visited: dict[Slice, int]
    """The size of every candidate, empty ones included."""
    significant: set[Slice]


def singletons(domains: dict[str, list[dict[str, Any]]]) -> dict[Id, dict[str, Any]]:
    """Name every singleton predicate of the feature domains."""
    return {
        (feature, index): predicate
        for feature, predicates in domains.items()
        for index, predicate in enumerate(predicates)
    }


def predicate_of(conjunction: Slice, named: dict[Id, dict[str, Any]]) -> dict[str, Any]:
    """Return the predicate of a slice: the conditions of its singletons, in the order of names."""
    return {"all": [part for name in sorted(conjunction) for part in named[name]["all"]]}


def all_slices(masks: dict[Id, np.ndarray], max_cross_size: int, min_size: int) -> dict[Slice, int]:
    """Count every conjunction of singletons on different features, at all levels.

    Parameters
    ----------
    masks : dict of bool arrays, all of one length
        The examples of each singleton.
    max_cross_size : int
        The most singletons in a slice.
    min_size : int
        Smaller slices are left out.  A conjunction is never larger than its parts, so what is
        too small is not extended.

    Returns
    -------
    dict
        The number of examples of each slice.
    """
    found: dict[Slice, int] = {}
    features = sorted({feature for feature, _ in masks})
    by_feature = {
        feature: [(name, rows) for name, rows in masks.items() if name[0] == feature]
        for feature in features
    }

    def extend(parent: Slice, parent_rows: np.ndarray | None, first_feature: int) -> None:
        for position in range(first_feature, len(features)):
            for name, singleton_rows in by_feature[features[position]]:
                rows = singleton_rows if parent_rows is None else parent_rows & singleton_rows
                n = int(np.count_nonzero(rows))
                if n < min_size:
                    continue
                child = parent | {name}
                found[child] = n
                if len(child) < max_cross_size:
                    extend(child, rows, position + 1)

    if max_cross_size >= 1:
        extend(OVERALL, None, 0)
    return found


def counter(masks: dict[Id, np.ndarray]) -> Callable[[Slice], int]:
    """Return a function that counts the examples of one slice."""

    def evaluate(conjunction: Slice) -> int:
        return int(np.count_nonzero(np.logical_and.reduce([masks[name] for name in conjunction])))

    return evaluate


def children(parent: Slice, ids: Iterable[Id]) -> Iterator[Slice]:
    """Yield the parent with one singleton on another feature, for every such singleton."""
    taken = {feature for feature, _ in parent}
    for name in ids:
        if name[0] not in taken:
            yield parent | {name}


def is_subset_of_any(candidate: Slice, slices: Collection[Slice]) -> bool:
    """Tell whether a candidate is one of the slices, or a subset of one."""
    return any(
        frozenset(part) in slices
        for size in range(1, len(candidate) + 1)
        for part in itertools.combinations(candidate, size)
    )


def algorithm_1(
    ids: Collection[Id],
    evaluate: Callable[[Slice], int],
    significant: Callable[[dict[Slice, int]], set[Slice]],
    max_cross_size: int,
    min_size: int,
) -> Iterative:
    """Search level by level.

    Parameters
    ----------
    ids : collection of ids
        All singletons.
    evaluate : callable
        The size of a slice; called once for every candidate.
    significant : callable
        The significant slices, given all slices of at least `min_size` that were visited so far.
        It is called after each iteration, and what it returns replaces what it returned before.
    max_cross_size, min_size : int
        L and N_min of the paper.

    Returns
    -------
    Iterative
        Iterations without a candidate are not recorded: the search ends there.
    """
    if max_cross_size < 1:
        raise ValueError(f"max_cross_size is at least 1, not {max_cross_size}")
    generated: list[set[Slice]] = []
    visited: dict[Slice, int] = {}
    found: set[Slice] = set()
    small: set[Slice] = set()
    previous: set[Slice] = {OVERALL}

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
    return Iterative(generated, visited, found)


def algorithm_2(
    ids: Collection[Id],
    evaluate: Callable[[Slice], int],
    p_value: Callable[[Slice], float],
    significant: Callable[[dict[Slice, int]], set[Slice]],
    max_cross_size: int,
    min_size: int,
    iterations: int,
    max_candidates: float,
    order: Callable[[Slice], Any],
) -> Priority:
    """Search from the slices with the lowest p-values.

    Parameters
    ----------
    ids, evaluate, significant, max_cross_size, min_size
        As for `algorithm_1`.
    p_value : callable
        The p-value of a visited slice of at least `min_size`.
    iterations : int
        I of the paper; the first one visits all singletons.
    max_candidates : number
        K of the paper: no further slice is popped once the estimate has reached it.
    order : callable
        The key that breaks ties between equal p-values, the smallest first.

    Returns
    -------
    Priority
        Iterations without a candidate are not recorded: the search ends there.

    Notes
    -----
    The queue holds the slices of at least `min_size` and below the maximal cross size that were
    never popped.  Those that are significant when an iteration begins stay where they are: all
    their children would be pruned.

    Rates and k are exact fractions, so that k reaches K when it does on paper.  The overall slice
    is not empty, therefore the rate of cross size 0 is 1 and the first k the number of singletons.
    """
    if max_cross_size < 1:
        raise ValueError(f"max_cross_size is at least 1, not {max_cross_size}")
    generated: list[set[Slice]] = []
    estimates: list[float] = []
    visited: dict[Slice, int] = {}
    found: set[Slice] = set()
    small: set[Slice] = set()
    popped: set[Slice] = set()

    for iteration in range(iterations):
        rates = _non_empty_rates(visited, max_cross_size)
        candidates: set[Slice] = set()
        k = Fraction(0)
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
            waiting.sort(key=lambda conjunction: (p_value(conjunction), order(conjunction)))
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
    return Priority(generated, estimates, visited, found)


def topmost(slices: Collection[Slice]) -> set[Slice]:
    """Keep the slices that are not subsets of another one among them."""
    return {
        conjunction for conjunction in slices if not any(other < conjunction for other in slices)
    }


def _significant(
    significant: Callable[[dict[Slice, int]], set[Slice]],
    visited: dict[Slice, int],
    min_size: int,
) -> set[Slice]:
    large = {conjunction: n for conjunction, n in visited.items() if n >= min_size}
    found = set(significant(dict(large)))
    if not found <= set(large):
        raise ValueError(f"significant but not visited, or too small: {found - set(large)}")
    return found


def _non_empty_rates(visited: dict[Slice, int], max_cross_size: int) -> list[Fraction]:
    """Return NonEmptyRate for the cross sizes 0 to `max_cross_size`."""
    rates = [Fraction(1)]
    for cross_size in range(1, max_cross_size + 1):
        sizes = [n for conjunction, n in visited.items() if len(conjunction) == cross_size]
        non_empty = sum(n > 0 for n in sizes)
        rates.append(Fraction(non_empty, len(sizes)) if sizes else rates[-1])
    return rates
