"""Whether a significant slice adds to those above it: *new*, *refines* or *inherited*."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.counting.counting_plan import plan_listed
from slicebeam.metrics.counting.lattice import contains
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.registry import metric
from slicebeam.pipelines.prepare.exact_auc import has_error, put_ranking
from slicebeam.pipelines.search.slice_counter import parts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.metrics.metric import Metric, Slices
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.search.iterations import Iterations

NO_LABEL, NEW, REFINES, INHERITED = range(4)
LABELS = (None, "new", "refines", "inherited")
# By whether a child is above its parents.
_TAILS: tuple[tuple[bool, Tail], ...] = ((True, "upper"), (False, "lower"))
# A child refines its parents when it is worse than each of them by this much, at this p.
REFINE_P = 0.01
REFINE_MARGIN = 0.02


def says_more(label: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Return which slices say more than those above them."""
    return np.isin(label, (NEW, REFINES))


class ParentSums:
    """The sums of the parents of significant slices, counted where the search did not."""

    def __init__(
        self,
        prepared: EncodedDataset,
        iterations: Iterations,
        keys: Keys,
        sums: NDArray[np.int64],
        needed: NDArray[np.bool_],
    ) -> None:
        self.lattice = prepared.lattice
        order = np.argsort(keys)
        self.keys, self.sums = keys[order], sums[order]
        missing = [np.zeros(0, np.int64)]
        levels = self.lattice.cross_sizes(keys)
        for level in range(2, self.lattice.max_cross_size + 1):
            children = keys[needed & (levels == level)]
            parents = list(self.lattice.parents(children))
            missing += [parent[~contains(self.keys, parent)] for parent in parents]
        unknown = np.unique(np.concatenate(missing))
        if unknown.size:
            self._count(unknown, prepared, iterations)

    def _count(self, unknown: Keys, prepared: EncodedDataset, iterations: Iterations) -> None:
        none = np.zeros(unknown.size, np.int64)
        planned = plan_listed(unknown, none, none, self.lattice, iterations.counter.budget)
        parts, _ = iterations.counter.count("parents", planned, counts_only=True)
        keys, sums = [self.keys], [self.sums]
        for batch in parts_of(parts):
            keys.append(batch.column("key").to_numpy())
            every = range(prepared.space.columns)
            sums.append(np.stack([batch.column(f"c{i}").to_numpy() for i in every], axis=1))
        order = np.argsort(np.concatenate(keys))
        self.keys, self.sums = np.concatenate(keys)[order], np.concatenate(sums)[order]

    def make_exact(
        self,
        keys: Keys,
        sums: NDArray[np.int64],
        significant: NDArray[np.bool_],
        iterations: Iterations,
    ) -> None:
        """Count the exact AUC of those parents of significant slices on which a label depends."""
        prepared = iterations.prepared
        levels = self.lattice.cross_sizes(keys)
        open_ones = [np.zeros(0, np.int64)]
        for number in iterations.second_tests.ranked:
            own = metric(iterations.config.metric[number])
            for level in range(2, self.lattice.max_cross_size + 1):
                mine = np.flatnonzero(significant[:, number] & (levels == level))
                for parents in self.lattice.parents(keys[mine]):
                    at = np.searchsorted(self.keys, parents)
                    rough = np.flatnonzero(has_error(self.sums[at], prepared.space))
                    child, above = sums[mine[rough]], self.sums[at[rough]]
                    some = label_is_open(own, prepared.slices(child), prepared.slices(above))
                    open_ones.append(at[rough][some])
        at = np.unique(np.concatenate(open_ones))
        if at.size == 0:
            return
        counted, _ = iterations.second_tests.exact.count(
            "parents-exact", self.keys[at], self.sums[at]
        )
        for one in counted:
            put_ranking(self.sums, np.searchsorted(self.keys, one.keys), one, prepared.space)

    def of(self, keys: Keys) -> NDArray[np.int64]:
        """Return the sums [slices, columns] of known slices."""
        return self.sums[np.searchsorted(self.keys, keys)]


def labels(
    own: Metric,
    keys: Keys,
    sums: NDArray[np.int64],
    significant: NDArray[np.bool_],
    delta: NDArray[np.float64],
    parents: ParentSums,
    prepared: EncodedDataset,
) -> tuple[NDArray[np.int8], Keys, NDArray[np.float64]]:
    """Return label, key of the best parent and p of the refinement test [slices].

    *new*: no slice above it is significant in the same direction. *refines*: it is worse than each
    immediate parent, by the test and by a margin. *inherited*: what its parents have explains it. The
    best parent is the one that explains it best: that with the largest p.
    """
    lattice = prepared.lattice
    levels = lattice.cross_sizes(keys)
    label = np.where(significant, NEW, NO_LABEL).astype(np.int8)
    best = np.zeros(keys.size, np.int64)
    p_refine = np.full(keys.size, np.nan)
    # Only a slice that deviates the same way can explain one below it.
    upward = delta > 0
    called_above = {up: np.sort(keys[significant & (upward == up)]) for up in (False, True)}
    for level in range(2, lattice.max_cross_size + 1):
        mine = np.flatnonzero(significant & (levels == level))
        if mine.size == 0:
            continue
        children, counted = keys[mine], sums[mine]
        harm_up = upward[mine]
        worst_p, margin = np.full(mine.size, -1.0), np.full(mine.size, np.inf)
        for parent in lattice.parents(children):
            above = parents.of(parent)
            # Whichever way the slice deviates, it must deviate further than its parent.
            p = np.empty(mine.size)
            for side, tail in _TAILS:
                some = np.flatnonzero(harm_up == side)
                if some.size == 0:
                    continue
                # Many slices are the same examples, or at least the same counts, as others.
                both = np.concatenate([counted[some], above[some]], axis=1)
                distinct, position = np.unique(both, axis=0, return_inverse=True)
                child, its_parent = np.split(distinct, 2, axis=1)
                tested = own.p_refine(prepared.slices(child), prepared.slices(its_parent), tail)
                p[some] = tested[position.reshape(-1)]
            parent_delta = own.delta(prepared.slices(above))
            ahead = np.where(harm_up, 1, -1) * (delta[mine] - parent_delta)
            better = p > worst_p
            best[mine] = np.where(better, parent, best[mine])
            worst_p, margin = np.maximum(worst_p, p), np.minimum(margin, ahead)
        p_refine[mine] = worst_p
        below = np.zeros(mine.size, bool)
        for ancestor in lattice.subsets(children, range(1, level)):
            held = np.where(
                upward[mine],
                contains(called_above[True], ancestor),
                contains(called_above[False], ancestor),
            )
            below |= held
        refines = (worst_p < REFINE_P) & (margin >= REFINE_MARGIN)
        label[mine] = np.where(~below, NEW, np.where(refines, REFINES, INHERITED))
    return label, best, p_refine


def label_is_open(own: Metric, slices: Slices, parents: Slices) -> NDArray[np.bool_]:
    """Return of which children [pairs] the error of the parent's AUC leaves open if they refine it.

    Test and margin are monotone in that AUC, so its ends decide; errors as large as the margin leave it open.
    """
    delta = own.delta(slices)
    upward = delta > 0
    refines = []
    for side in (-1, 1):
        moved = replace(parents, sums=parents.space.moved(parents.sums, side))
        p = np.empty(len(slices))
        for side_up, tail in _TAILS:
            some = np.flatnonzero(upward == side_up)
            if some.size:
                p[some] = own.p_refine(slices.rows(some), moved.rows(some), tail)
        ahead = np.where(upward, 1, -1) * (delta - own.delta(moved))
        refines.append((p < REFINE_P) & (ahead >= REFINE_MARGIN))
    error = own.value_error(parents)
    if parents.is_paired:
        error = error + own.value_error(parents.old)
    is_open: NDArray[np.bool_] = (refines[0] != refines[1]) | (error >= REFINE_MARGIN)
    return is_open
