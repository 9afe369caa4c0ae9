"""A small table of codes with all its slices, and what the choice of findings needs of it."""

from copy import copy
from itertools import combinations

import numpy as np
from scipy.sparse import csc_array, csr_array
from scipy.special import ndtr

from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.metrics.findings.choice import Candidates, Choice
from slicebeam.metrics.findings.conditional import DeviationLaw
from slicebeam.metrics.findings.groups import CellSums, GroupSums
from slicebeam.metrics.findings.inside import InsideCounts
from slicebeam.metrics.measures.target_sums import TargetSums
from slicebeam.metrics.significance.random_subset import Population, bin_edges, bin_sums, population


def deviation_law(target, weight):
    """The law of weighted deviations: of each value where they are few, of bins where not."""
    deviations = weight * (target - np.average(target, weights=weight))
    values, counts = np.unique(deviations, return_counts=True)
    if values.size > 64:
        unit = 2.0**-40
        edges = bin_edges(values[0], values[-1], deviations.std())
        return DeviationLaw(population(bin_sums(deviations, edges, unit), edges, unit))
    steps = np.diff(values)
    span = steps.min() if np.allclose(steps / steps.min(), np.rint(steps / steps.min())) else 0.0
    return DeviationLaw(Population(tuple(values), tuple(counts * 1.0), span))


def target_columns(layout, target, weight=1.0):
    """Return the columns [examples, columns] of single examples."""
    return np.stack([weight**a * target**b for a, b in layout.powers], axis=-1)


class EncodedTable:
    """Rows of codes [rows, features] and their targets, and all slices of enough rows."""

    def __init__(
        self, codes, target, kind, weight=None, counted=None, levels=2, smallest=20, blocks=1
    ):
        kept = np.ones(len(codes), bool) if counted is None else counted
        self.codes, self.levels, self.blocks = codes[kept], levels, blocks
        self.rows = int(kept.sum())
        self.layout = TargetSums(kind, weighted=weight is not None)
        self.weight = np.ones(self.rows) if weight is None else np.asarray(weight, float)[kept]
        columns = [self.weight, self.weight**2][: 1 + self.layout.weighted]
        self.row_sizes = np.stack(columns, axis=1)
        self.lattice = Lattice(tuple((codes.max(axis=0) + 1).tolist()), levels)
        found = [self._of(features, smallest) for features in self._tuples()]
        self.slice_of, *found = zip(*found, strict=True)
        self.begins = np.cumsum([0, *map(len, found[0])])
        self.keys, self.level = map(np.concatenate, found)
        self.tests = [int((self.level == level).sum()) for level in range(1, levels + 1)]
        self._sum(np.asarray(target, float)[kept])

    def with_target(self, target):
        """Return a table of the same slices."""
        other = copy(self)
        other._sum(np.asarray(target, float))
        return other

    def _sum(self, target):
        self.target = target
        self.row_sums = target_columns(self.layout, target, self.weight)
        self.everything = self.row_sums.sum(axis=0)
        counts = self.layout.kind == "rate" and not self.layout.weighted
        self.law = None if counts else deviation_law(target, self.weight)
        sizes = [self._summed(column) for column in self.row_sizes.T]
        self.sizes, self.total = np.stack(sizes, axis=1), self._summed(self.weight * target)

    def _summed(self, column):
        each = zip(self.slice_of, np.diff(self.begins), strict=True)
        return np.concatenate([np.bincount(at, column, n + 1)[1:] for at, n in each])

    def _tuples(self):
        features = range(self.codes.shape[1])
        return [some for size in range(1, self.levels + 1) for some in combinations(features, size)]

    def _of(self, features, smallest):
        cell, cells = np.zeros(self.rows, np.int64), 1
        for feature in features:
            radix = int(self.lattice.radices[feature])
            cell, cells = cell * radix + self.codes[:, feature], cells * radix
        count = np.bincount(cell, minlength=cells)
        some = np.flatnonzero((count >= smallest) & (count < self.rows))
        # By row, from 1 on; 0 where the slice of the row is too small.
        number = np.zeros(cells, np.int32)
        number[some] = np.arange(1, some.size + 1)
        keys = self.lattice.cell_keys(features, some)
        return number[cell], keys, np.full(some.size, len(features))

    def members(self, candidate):
        at = np.searchsorted(self.begins, candidate, side="right") - 1
        return self.slice_of[at] == candidate - self.begins[at] + 1

    def conditions(self, candidate):
        digits = self.lattice.digits(self.keys[[candidate]])[0]
        digits = digits[digits > 0]
        features = self.lattice.feature_of[digits]
        codes = digits - 1 - self.lattice.offsets[features]
        return tuple(zip(features.tolist(), codes.tolist(), strict=True))

    def significant(self, alpha=0.05, *, upward=True):
        """Return which slices differ from all rows, by a normal law and Bonferroni in each level."""
        w, second = self.sizes[:, 0], self.sizes[:, -1]
        mean = (self.weight * self.target).sum() / self.weight.sum()
        z = (self.total - w * mean) / np.sqrt(second * self.target.var())
        p = ndtr(-z if upward else z)
        return p <= alpha / (self.levels * np.array(self.tests)[self.level - 1])

    def candidates(self, significant=None, *, upward=True, harm=None):
        mean = (self.weight * self.target).sum() / self.weight.sum()
        delta = self.total / self.sizes[:, 0] - mean if harm is None else harm
        called = self.significant(upward=upward) if significant is None else significant
        sign = 1.0 if upward else -1.0
        return Candidates(self.level, self.keys, self.sizes, self.total, called, sign * delta)

    def counting(self):
        """Return a function that counts a finding's rows, in blocks that are added up."""
        masks, added, known = np.zeros(self.rows, np.int64), [], {}

        def count(chosen, positions):
            if "table" not in known:
                held = [np.flatnonzero(self.members(at)) for at in positions]
                ends, rows = np.cumsum([0, *map(len, held)]), np.concatenate(held)
                shape = self.rows, positions.size
                known["table"] = csc_array((np.ones(rows.size), rows, ends), shape=shape).tocsr()
            inside = np.flatnonzero(self.members(chosen))
            distinct, pattern = np.unique(masks[inside], return_inverse=True)
            sums = np.zeros((distinct.size, self.row_sums.shape[1]))
            tables = [csr_array((distinct.size, positions.size)) for _ in self.row_sizes.T]
            for some in np.array_split(np.arange(inside.size), self.blocks):
                rows = inside[some]
                np.add.at(sums, pattern[some], self.row_sums[rows])
                for number, size in enumerate(self.row_sizes[rows].T):
                    at = pattern[some], np.arange(rows.size)
                    of_rows = csr_array((size, at), shape=(distinct.size, rows.size))
                    tables[number] = tables[number] + of_rows @ known["table"][rows]
            masks[inside] |= 1 << len(added)
            added.append(chosen)
            columns = [table.tocoo() for table in tables]
            sizes = np.stack([column.data for column in columns], axis=1)
            return InsideCounts(distinct, sums, columns[0].row, columns[0].col, sizes)

        count.masks = masks
        return count

    def find(self, candidates=None, *, upward=True, group=None, **options):
        counted = self.counting()

        def count_groups(_found, chosen, masks):
            rank = np.argsort(masks)
            pattern = rank[np.searchsorted(masks[rank], counted.masks)]
            cells, cell = np.unique(group * masks.size + pattern, return_inverse=True)

            def summed(rows):
                both = (self.weight, self.weight * self.target)
                return [np.bincount(cell, values * rows, cells.size) for values in both]

            of = []
            for candidate in chosen:
                own = self.members(candidate)
                held = np.unique(cell[own])
                of.append(CellSums(held, *(values[held] for values in summed(own))))
            return GroupSums(cells // masks.size, cells % masks.size, *summed(1.0), of)

        return Choice(
            candidates=self.candidates(upward=upward) if candidates is None else candidates,
            everything=self.everything,
            layout=self.layout,
            count_inside=counted,
            upward=upward,
            tests_per_level=self.tests,
            law=self.law,
            count_groups=count_groups if group is not None else None,
            **options,
        ).run()
