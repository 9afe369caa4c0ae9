"""Whether a significant slice adds to others: *new*, *refines* or *inherited*, or a duplicate.

Duplicates are different predicates that hold for the same examples.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from slicebeam.metrics.counting.counting_plan import Budget, plan_listed
from slicebeam.metrics.counting.lattice import Keys, Lattice, contains
from slicebeam.metrics.counting.membership import hash_sums
from slicebeam.metrics.measures.registry import metric
from slicebeam.metrics.randomness import splitmix64
from slicebeam.pipelines.prepare.exact_auc import has_error, put_ranking
from slicebeam.pipelines.search.counter import SliceTable, tables_of
from slicebeam.transforms.count.slice_sums import slice_sums, sum_slices

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray, NDArray, Pair
    from slicebeam.metrics.kinds import Tail
    from slicebeam.metrics.measures.metric import Metric, Slices
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.search.counter import SliceCounter
    from slicebeam.pipelines.search.significance import SecondTests

NO_LABEL, NEW, REFINES, INHERITED = range(4)
LABELS: tuple[Any, ...] = (None, "new", "refines", "inherited")
# By whether a child is above its parents.
_TAILS: tuple[tuple[bool, Tail], ...] = ((True, "upper"), (False, "lower"))
# A child refines its parents when it is worse than each of them by this much, at this p.
REFINE_P = 0.01
REFINE_MARGIN = 0.02
# Where hashing takes longer, the first shard separates most slices before the others are read.
_SECONDS_WORTH_A_SAMPLE = 4.0
# Conjunctions of up to so many predicates are looked at for what their parts imply.
_LONGEST_IMPLICATION = 3


def says_more(label: NDArray[np.int8]) -> BoolArray:
    """Return which slices say more than those above them."""
    return np.isin(label, (NEW, REFINES))


def parent_sums(second_tests: SecondTests, kept: SliceTable, significant: BoolArray) -> SliceTable:
    """Return the sums of slices and of the parents of significant ones, counted where the search did not, by key."""
    counter, prepared = second_tests.counter, second_tests.prepared
    lattice, space = prepared.lattice, prepared.space
    known = SliceTable(kept.keys, {"sums": kept["sums"]}).by_key()
    levels, needed = lattice.cross_sizes(kept.keys), significant.any(axis=1)
    missing = [np.zeros(0, np.int64)]
    for level in range(2, lattice.max_cross_size + 1):
        parents = list(lattice.parents(kept.keys[needed & (levels == level)]))
        missing += [parent[~contains(known.keys, parent)] for parent in parents]
    unknown = np.unique(np.concatenate(missing))
    if unknown.size:
        none = np.zeros(unknown.size, np.int64)
        planned = plan_listed(unknown, none, none, lattice, counter.budget)
        parts, _ = counter.count("parents", planned, counts_only=True)
        counted = (table.counts(space) for table in tables_of(parts))
        known = SliceTable.joined([known, *counted]).by_key()
    _make_exact(known, second_tests, kept, significant)
    return known


def _make_exact(
    known: SliceTable, second_tests: SecondTests, kept: SliceTable, significant: BoolArray
) -> None:
    """Count the exact AUC, and average precision, of those parents of significant slices on which a label depends."""
    prepared, keys = second_tests.prepared, kept.keys
    lattice = prepared.lattice
    levels = lattice.cross_sizes(keys)
    open_ones = [np.zeros(0, np.int64)]
    for number in second_tests.ranked:
        own = metric(second_tests.config.metric[number])
        for level in range(2, lattice.max_cross_size + 1):
            mine = np.flatnonzero(significant[:, number] & (levels == level))
            for parents in lattice.parents(keys[mine]):
                at = known.at(parents)
                rough = np.flatnonzero(has_error(known["sums"][at], prepared.space))
                child, above = kept["sums"][mine[rough]], known["sums"][at[rough]]
                some = label_is_open(own, prepared.slices(child), prepared.slices(above))
                open_ones.append(at[rough][some])
    at = np.unique(np.concatenate(open_ones))
    if at.size:
        counted, _ = second_tests.exact.count("parents-exact", known.keys[at], known["sums"][at])
        for one in counted:
            put_ranking(known["sums"], known.at(one.keys), one, prepared.space)


def labels(
    own: Metric,
    kept: SliceTable,
    significant: BoolArray,
    delta: FloatArray,
    parents: SliceTable,
    prepared: EncodedDataset,
) -> tuple[NDArray[np.int8], Keys, FloatArray]:
    """Return label, key of the best parent, that with the largest p, and p of the refinement test [slices].

    A slice *refines* if it is worse than each parent by test and margin; *new* has none called the same way above.
    """
    lattice, keys, sums = prepared.lattice, kept.keys, kept["sums"]
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
            above = parents["sums"][parents.at(parent)]
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
            above_up, above_down = (contains(called_above[up], ancestor) for up in (True, False))
            below |= np.where(harm_up, above_up, above_down)
        refines = (worst_p < REFINE_P) & (margin >= REFINE_MARGIN)
        label[mine] = np.where(~below, NEW, np.where(refines, REFINES, INHERITED))
    return label, best, p_refine


def _refinement(own: Metric, slices: Slices, parents: Slices, upward: BoolArray) -> Pair:
    """Return the p-values of refinement, and how much further slices deviate the same way than their parents [pairs]."""
    p = np.empty(len(slices))
    for side, tail in _TAILS:
        some = np.flatnonzero(upward == side)
        if some.size:
            p[some] = own.p_refine(slices.rows(some), parents.rows(some), tail)
    return p, np.where(upward, 1, -1) * (own.delta(slices) - own.delta(parents))


def label_is_open(own: Metric, slices: Slices, parents: Slices) -> BoolArray:
    """Return of which children [pairs] the error of the parent's area leaves the label open, by its two ends."""
    upward = own.delta(slices) > 0
    refines = []
    for side in (-1, 1):
        moved = replace(parents, sums=parents.space.moved(parents.sums, side))
        p, ahead = _refinement(own, slices, moved, upward)
        refines.append((p < REFINE_P) & (ahead >= REFINE_MARGIN))
    error = own.value_error(parents)
    if parents.is_paired:
        error = error + own.value_error(parents.old)
    is_open: BoolArray = (refines[0] != refines[1]) | (error >= REFINE_MARGIN)
    return is_open


def same_examples(
    kept: SliceTable, significant: BoolArray, shown_in: IntArray, counter: SliceCounter
) -> Keys:
    """Return for each slice the key of the shortest one with the same examples that says more in the most metrics."""
    keys, sums, prepared = kept.keys, kept["sums"], counter.prepared
    same, levels = keys.copy(), prepared.lattice.cross_sizes(keys)
    shown = shown_in > 0
    mine = np.flatnonzero(significant)
    if mine.size < 2:
        return same
    _, group, members = np.unique(sums[mine], axis=0, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    # What is like nothing that is shown need not be known.
    is_shown = np.bincount(group, shown[mine], minlength=members.size) > 0
    repeated = (members[group] > 1) & is_shown[group]
    alike, group = mine[repeated], group[repeated]
    if alike.size == 0:
        return same
    sizes = prepared.space.sizes(sums)
    nested = nested_classes(keys, sizes, alike, prepared.lattice)
    # One slice of each class is hashed, where its group has several.
    _, first = np.unique(nested, return_index=True)
    classes = np.bincount(group[first], minlength=members.size)
    hashed = first[classes[group[first]] > 1]
    found = _hashes(keys[alike[hashed]], sizes[alike[hashed]], counter)
    merged = np.arange(nested.max() + 1)
    _, representative, found_class = np.unique(found, return_index=True, return_inverse=True)
    merged[nested[hashed]] = nested[hashed][representative][found_class.reshape(-1)]
    number = merged[nested]
    order = np.lexsort((keys[alike], levels[alike], -shown_in[alike], number))
    begins = np.concatenate([[True], np.diff(number[order]) != 0])
    owner = alike[order][np.flatnonzero(begins)][np.cumsum(begins) - 1]
    same[alike[order]] = np.where(shown[owner], keys[owner], keys[alike[order]])
    return same


def nested_classes(keys: Keys, sizes: IntArray, positions: IntArray, lattice: Lattice) -> IntArray:
    """Return numbers [positions] that are equal where nesting shows the examples to be the same.

    If a conjunction has as many examples as one of its parts, that part implies the rest.
    """
    by_key = np.argsort(keys)
    ordered = keys[by_key]
    levels = lattice.cross_sizes(keys)
    longer, shorter = [positions], [positions]
    implied: list[tuple[Keys, IntArray]] = []
    for level in range(2, min(lattice.max_cross_size, _LONGEST_IMPLICATION) + 1):
        some = np.flatnonzero(levels == level)
        digits = lattice.digits(keys[some])[:, :level]
        for left_out in range(level):
            part = lattice.keys(np.delete(digits, left_out, axis=1))
            known = np.flatnonzero(contains(ordered, part))
            at = by_key[np.searchsorted(ordered, part[known])]
            equal = known[sizes[at] == sizes[some[known]]]
            implied.append((part[equal], digits[equal, left_out]))
            longer.append(some[equal])
            shorter.append(at[sizes[at] == sizes[some[known]]])
    closed = _closures(keys[positions], implied, lattice)
    order = np.argsort(closed, kind="stable")
    alike = np.flatnonzero(np.diff(closed[order]) == 0)
    longer.append(positions[order[alike]])
    shorter.append(positions[order[alike + 1]])
    rows, columns = np.concatenate(longer), np.concatenate(shorter)
    shape = (keys.size, keys.size)
    links = coo_array((np.ones(rows.size, bool), (rows, columns)), shape=shape)
    _, component = connected_components(links, directed=False)
    _, number = np.unique(component[positions], return_inverse=True)
    return np.asarray(number, np.int64).reshape(-1)


def _closures(
    conjunctions: Keys, implied: list[tuple[Keys, IntArray]], lattice: Lattice
) -> NDArray[np.uint64]:
    """Return a hash of each conjunction with the singletons, by their digits, that its parts imply."""
    causes = np.concatenate([np.zeros(0, np.int64), *(cause for cause, _ in implied)])
    effects = np.concatenate([np.zeros(0, np.int64), *(effect for _, effect in implied)])
    order = np.argsort(causes, kind="stable")
    causes, effects = causes[order], effects[order]
    levels = lattice.cross_sizes(conjunctions)
    digits = lattice.digits(conjunctions)
    row, column = np.nonzero(digits)
    slices, singles = [row], [digits[row, column]]
    for level in range(1, lattice.max_cross_size + 1):
        mine = np.flatnonzero(levels == level)
        for part in lattice.subsets(
            conjunctions[mine], range(1, min(level, _LONGEST_IMPLICATION) + 1)
        ):
            begin = np.searchsorted(causes, part, side="left")
            count = np.searchsorted(causes, part, side="right") - begin
            owner = np.repeat(np.arange(part.size), count)
            within = np.arange(owner.size) - np.repeat(np.cumsum(count) - count, count)
            slices.append(mine[owner])
            singles.append(effects[begin[owner] + within])
    pairs = np.unique(np.concatenate(slices) * lattice.base + np.concatenate(singles))
    hashed = splitmix64((pairs % lattice.base).astype(np.uint64))
    closed = np.zeros(conjunctions.size, np.uint64)
    np.add.at(closed, pairs // lattice.base, hashed)
    return closed


def _hashes(keys: Keys, sizes: IntArray, counter: SliceCounter) -> NDArray[np.uint64]:
    """Return numbers [slices] that are equal where the slices hold the same examples."""
    found = np.arange(keys.size, dtype=np.uint64)
    undecided = np.arange(keys.size)
    prepared, run = counter.prepared, counter.run
    lattice, rows, shards = prepared.lattice, prepared.rows, prepared.shards

    def expected() -> float:
        """Return the seconds of hashing the undecided slices."""
        budget, (_, tuples) = Budget(rows, 1, 1, 1, 1), lattice.feature_sets(keys[undecided])
        return len(tuples) * budget.select + float(budget.inside(sizes[undecided].sum()))

    stages, seconds = {"hashes": shards}, expected()
    if seconds > _SECONDS_WORTH_A_SAMPLE:
        # Most slices that are alike by chance differ in any part of the data.
        stages = {"first-hashes": shards[:1], **stages}
    for stage, some_shards in stages.items():
        if undecided.size == 0:
            break
        if undecided.size < keys.size:
            seconds = expected()
        folder, some = run.work.folder(stage), keys[undecided]
        wired = sum_slices(
            hash_sums, some, lattice, some_shards, folder, seconds, run.engine.workers
        )
        of_shards = seconds * len(some_shards) / len(shards)
        known, sums = slice_sums(run.parts(stage, wired, seconds=of_shards))
        sums = sums[np.searchsorted(known, some)]
        found[undecided] = sums
        _, inverse, members = np.unique(sums, return_inverse=True, return_counts=True)
        lone = members[inverse.reshape(-1)] == 1
        # A slice that is like no other keeps a number that no other has.
        found[undecided[lone]] = undecided[lone]
        undecided = undecided[~lone]
    return found
