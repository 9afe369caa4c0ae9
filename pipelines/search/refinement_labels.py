"""Whether a significant slice adds to those above it: *new*, *refines* or *inherited*."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.counting.counting_plan import plan_listed
from slicebeam.metrics.counting.lattice import contains
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.measures.registry import metric
from slicebeam.pipelines.prepare.exact_auc import has_error, put_ranking
from slicebeam.pipelines.search.slice_counter import SliceTable, tables_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.metrics.measures.metric import Metric, Slices
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
        self, iterations: Iterations, kept: SliceTable, significant: NDArray[np.bool_]
    ) -> None:
        self.prepared, self.lattice = iterations.prepared, iterations.prepared.lattice
        self.known = SliceTable(kept.keys, {"sums": kept["sums"]}).by_key()
        keys, needed = kept.keys, significant.any(axis=1)
        missing = [np.zeros(0, np.int64)]
        levels = self.lattice.cross_sizes(keys)
        for level in range(2, self.lattice.max_cross_size + 1):
            children = keys[needed & (levels == level)]
            parents = list(self.lattice.parents(children))
            missing += [parent[~contains(self.known.keys, parent)] for parent in parents]
        unknown = np.unique(np.concatenate(missing))
        if unknown.size:
            self._count(unknown, iterations)
        self._make_exact(iterations, kept, significant)

    def _count(self, unknown: Keys, iterations: Iterations) -> None:
        none = np.zeros(unknown.size, np.int64)
        planned = plan_listed(unknown, none, none, self.lattice, iterations.counter.budget)
        parts, _ = iterations.counter.count("parents", planned, counts_only=True)
        every = range(self.prepared.space.columns)
        counted = (
            SliceTable(table.keys, {"sums": table.stacked("c", every)})
            for table in tables_of(parts)
        )
        self.known = SliceTable.joined([self.known, *counted]).by_key()

    def _make_exact(
        self, iterations: Iterations, kept: SliceTable, significant: NDArray[np.bool_]
    ) -> None:
        """Count the exact AUC, and average precision, of those parents of significant slices on which a label depends."""
        prepared, known, keys = self.prepared, self.known, kept.keys
        levels = self.lattice.cross_sizes(keys)
        open_ones = [np.zeros(0, np.int64)]
        for number in iterations.second_tests.ranked:
            own = metric(iterations.config.metric[number])
            for level in range(2, self.lattice.max_cross_size + 1):
                mine = np.flatnonzero(significant[:, number] & (levels == level))
                for parents in self.lattice.parents(keys[mine]):
                    at = known.at(parents)
                    rough = np.flatnonzero(has_error(known["sums"][at], prepared.space))
                    child, above = kept["sums"][mine[rough]], known["sums"][at[rough]]
                    some = label_is_open(own, prepared.slices(child), prepared.slices(above))
                    open_ones.append(at[rough][some])
        at = np.unique(np.concatenate(open_ones))
        if at.size == 0:
            return
        counted, _ = iterations.second_tests.exact.count(
            "parents-exact", known.keys[at], known["sums"][at]
        )
        for one in counted:
            put_ranking(known["sums"], known.at(one.keys), one, prepared.space)

    def of(self, keys: Keys) -> NDArray[np.int64]:
        """Return the sums [slices, columns] of known slices."""
        sums: NDArray[np.int64] = self.known["sums"][self.known.at(keys)]
        return sums


def labels(
    own: Metric,
    kept: SliceTable,
    significant: NDArray[np.bool_],
    delta: NDArray[np.float64],
    parents: ParentSums,
) -> tuple[NDArray[np.int8], Keys, NDArray[np.float64]]:
    """Return label, key of the best parent and p of the refinement test [slices].

    *new*: no slice above it is significant in the same direction. *refines*: it is worse than each
    immediate parent, by the test and by a margin. *inherited*: what its parents have explains it. The
    best parent is the one that explains it best: that with the largest p.
    """
    prepared, lattice, keys, sums = parents.prepared, parents.lattice, kept.keys, kept["sums"]
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
            # Many slices are the same examples, or at least the same counts, as others.
            both = np.column_stack([counted, above, harm_up])
            distinct, position = np.unique(both, axis=0, return_inverse=True)
            width = counted.shape[1]
            child, its_parent = distinct[:, :width], distinct[:, width:-1]
            p, ahead = _refinement(
                own, prepared.slices(child), prepared.slices(its_parent), distinct[:, -1] > 0
            )
            p, ahead = p[position.reshape(-1)], ahead[position.reshape(-1)]
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


def _refinement(
    own: Metric, slices: Slices, parents: Slices, upward: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the p-values of refinement, and how much further the slices deviate than their parents [pairs].

    Whichever way a slice deviates, it must deviate further.
    """
    p = np.empty(len(slices))
    for side, tail in _TAILS:
        some = np.flatnonzero(upward == side)
        if some.size:
            p[some] = own.p_refine(slices.rows(some), parents.rows(some), tail)
    return p, np.where(upward, 1, -1) * (own.delta(slices) - own.delta(parents))


def label_is_open(own: Metric, slices: Slices, parents: Slices) -> NDArray[np.bool_]:
    """Return of which children [pairs] the error of the parent's AUC, or average precision, leaves open if they refine it.

    Test and margin are monotone in it, so its ends decide; errors as large as the margin leave it open.
    """
    upward = own.delta(slices) > 0
    refines = []
    for side in (-1, 1):
        moved = replace(parents, sums=parents.space.moved(parents.sums, side))
        p, ahead = _refinement(own, slices, moved, upward)
        refines.append((p < REFINE_P) & (ahead >= REFINE_MARGIN))
    error = own.value_error(parents)
    if parents.is_paired:
        error = error + own.value_error(parents.old)
    is_open: NDArray[np.bool_] = (refines[0] != refines[1]) | (error >= REFINE_MARGIN)
    return is_open
