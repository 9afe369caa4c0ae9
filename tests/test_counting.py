"""Counts of slices, however they are counted and cut, against plain loops over the examples."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicebeam.metrics import counting
from slicebeam.metrics.counting import (
    CountReader,
    Ragged,
    Resampling,
    RowBlock,
    Tables,
    Unit,
    merge_states,
)
from slicebeam.metrics.lattice import Lattice
from slicebeam.metrics.randomness import poisson_weights, splitmix64

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Table:
    """A small random table: the codes of each example, as sets for list features."""

    def __init__(self, seed: int, *, rows: int = 40, sizes: tuple[int, ...] = ()) -> None:
        rng = np.random.default_rng(seed)
        features = len(sizes) or int(rng.integers(1, 5))
        self.sizes = sizes or tuple(rng.integers(1, 5, features).tolist())
        self.multi = tuple((rng.random(features) < 0.35).tolist())
        self.unmatched = tuple(
            bool(multi or draw < 0.3)
            for multi, draw in zip(self.multi, rng.random(features), strict=True)
        )
        self.lattice = Lattice(self.sizes, 3, self.multi, self.unmatched)
        self.rows = rows
        self.cells = rng.integers(0, 4, rows)
        self.ids = rng.permutation(10 * rows)[:rows].astype(np.uint64)
        self.codes: list[list[set[int]]] = []
        for feature, multi in enumerate(self.multi):
            radix = int(self.lattice.radices[feature])
            most = radix + 1 if multi else 1
            self.codes.append(
                [
                    set(rng.choice(radix, int(rng.integers(0, most)), replace=False).tolist())
                    if multi
                    else {int(rng.integers(0, radix))}
                    for _ in range(rows)
                ]
            )

    def block(self, begin: int, end: int) -> RowBlock:
        def column(feature: int) -> NDArray[np.int64] | Ragged:
            mine = self.codes[feature][begin:end]
            flat = np.array([code for codes in mine for code in sorted(codes)], np.int64)
            if not self.multi[feature]:
                return flat
            # A list column that is a part of a longer one does not begin at 0.
            offsets = np.cumsum([0] + [len(codes) for codes in mine]) + 3
            return Ragged(offsets, np.concatenate([[0, 0, 0], flat]).astype(np.int64))

        rows, ids = slice(begin, end), self.ids[begin:end]
        return RowBlock(end - begin, column, self.cells[rows], ids, ids)

    def blocks(self, cuts: list[int]) -> list[RowBlock]:
        edges = sorted({0, self.rows, *(cut % (self.rows + 1) for cut in cuts)})
        return [self.block(begin, end) for begin, end in itertools.pairwise(edges)]

    def slices(self, features: tuple[int, ...]) -> list[tuple[int, ...]]:
        return list(itertools.product(*(range(self.sizes[f]) for f in features)))

    def key(self, features: tuple[int, ...], codes: tuple[int, ...]) -> int:
        digits = [
            int(self.lattice.offsets[f]) + code + 1 for f, code in zip(features, codes, strict=True)
        ]
        return int(self.lattice.keys(np.array([digits]))[0])

    def members(self, features: tuple[int, ...], codes: tuple[int, ...]) -> list[int]:
        return [
            row
            for row in range(self.rows)
            if all(code in self.codes[f][row] for f, code in zip(features, codes, strict=True))
        ]

    def counts(
        self, features: tuple[int, ...], codes: tuple[int, ...], resampling: Resampling | None
    ) -> list[list[int]]:
        layers = [[0] * 4]
        layers += [[0] * 4 for _ in range(resampling.replicates if resampling else 0)]
        for row in self.members(features, codes):
            cell = int(self.cells[row])
            layers[0][cell] += 1
            for b in range(len(layers) - 1):
                weight = poisson_weights(resampling.seed, b, self.ids[row : row + 1])[0]
                layers[1 + b][cell] += int(weight)
        return layers

    def all_counts(
        self, tuples: list[tuple[int, ...]], resampling: Resampling | None = None
    ) -> dict[int, list[list[int]]]:
        return {
            self.key(features, codes): self.counts(features, codes, resampling)
            for features in tuples
            for codes in self.slices(features)
        }

    def tuples(self) -> list[tuple[int, ...]]:
        features = range(len(self.sizes))
        return [t for level in (1, 2, 3) for t in itertools.combinations(features, level)]


def counted(
    table: Table, units: list[Unit], cuts: list[int], resampling: Resampling | None, seed: int
) -> list[dict[int, list[list[int]]]]:
    """Count units over row blocks that are dealt to several states, merged in a random grouping."""
    rng = np.random.default_rng(seed)
    blocks = table.blocks(cuts)
    owners = rng.integers(0, 3, len(blocks))
    states = []
    for owner in range(3):
        tables = Tables(units, table.lattice, 4, resampling)
        for block, mine in zip(blocks, owners, strict=True):
            if mine == owner:
                tables.add(block)
        states.append(tables.state())
    order = rng.permutation(3)
    first = merge_states(units, [states[order[0]], states[order[1]]])
    state = merge_states(units, [states[order[2]], first])
    layers = 1 + (resampling.replicates if resampling else 0)
    totals = table.counts((), (), resampling)
    assert state[0][0].tolist() == totals
    reader = CountReader(table.lattice, 4, layers, 1)
    found = []
    for unit, some in zip(units, reader.slices(units, state), strict=True):
        nonempty = sum(any(layers[0]) for layers in some.counts.tolist())
        assert some.nonempty == nonempty
        if unit.candidates is None:
            assert nonempty == some.keys.size
        else:
            assert some.keys.tolist() == unit.candidates.tolist()
        assert some.keys.size == np.unique(some.keys).size
        found.append(dict(zip(some.keys.tolist(), some.counts.tolist(), strict=True)))
    return found


SEEDS = st.integers(0, 2**32)
CUTS = st.lists(st.integers(0, 100), max_size=6)


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, cuts=CUTS, replicates=st.integers(0, 2), parts=st.integers(1, 4))
def test_whole_tuples_however_counted(
    seed: int, cuts: list[int], replicates: int, parts: int
) -> None:
    table = Table(seed)
    resampling = Resampling(replicates, seed) if replicates else None
    tuples = table.tuples()
    expected = table.all_counts(tuples, resampling)
    nonempty = {key: value for key, value in expected.items() if any(value[0])}
    for units in (
        [Unit(features, "dense") for features in tuples],
        [
            Unit(features, "sparse", part=part, parts=parts)
            for features in tuples
            for part in range(parts)
        ],
    ):
        found: dict[int, Any] = {}
        for some in counted(table, units, cuts, resampling, seed):
            assert not found.keys() & some.keys()
            found.update(some)
        assert found == nonempty


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, cuts=CUTS, replicates=st.integers(0, 2), parts=st.integers(1, 3))
def test_listed_candidates_however_counted(
    seed: int, cuts: list[int], replicates: int, parts: int
) -> None:
    table = Table(seed)
    rng = np.random.default_rng(seed)
    resampling = Resampling(replicates, seed) if replicates else None
    units, wanted = [], []
    for features in table.tuples():
        slices = table.slices(features)
        some = rng.permutation(len(slices))[: int(rng.integers(1, len(slices) + 1))]
        keys = np.array([table.key(features, slices[i]) for i in some], np.int64)
        counts = [table.counts(features, slices[i], resampling) for i in some]
        units.append(Unit(features, "dense", candidates=keys))
        wanted.append(dict(zip(keys.tolist(), counts, strict=True)))
        cells = table.lattice.key_cells(keys, features).astype(np.uint64)
        part_of = splitmix64(cells) % np.uint64(parts)
        for part in range(parts):
            mine = keys[part_of == part]
            units.append(Unit(features, "sparse", candidates=mine, part=part, parts=parts))
            wanted.append({key: wanted_count(wanted, key) for key in mine.tolist()})
    assert counted(table, units, cuts, resampling, seed) == wanted


def wanted_count(wanted: list[dict[int, Any]], key: int) -> Any:
    return next(some[key] for some in wanted if key in some)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, cuts=CUTS, replicates=st.integers(0, 2))
def test_inside_base_slices(seed: int, cuts: list[int], replicates: int) -> None:
    table = Table(seed)
    rng = np.random.default_rng(seed)
    resampling = Resampling(replicates, seed) if replicates else None
    features_of = range(len(table.sizes))
    units, wanted = [], []
    for level in (1, 2):
        for features in itertools.combinations(features_of, level):
            others = [f for f in features_of if f not in features]
            if not others:
                continue
            slices = table.slices(features)
            chosen = rng.permutation(len(slices))[: int(rng.integers(1, len(slices) + 1))]
            bases = np.sort([table.key(features, slices[i]) for i in chosen])
            candidates: dict[int, Any] = {}
            for i in chosen:
                for extension in others:
                    for code in range(table.sizes[extension]):
                        if rng.random() < 0.3:
                            continue
                        pairs = [*zip(features, slices[i], strict=True), (extension, code)]
                        names, codes = zip(*sorted(pairs), strict=True)
                        candidates[table.key(names, codes)] = table.counts(names, codes, resampling)
            keys = rng.permutation(np.array(list(candidates), np.int64))
            units.append(Unit(features, "inside", tuple(others), bases=bases, candidates=keys))
            wanted.append(candidates)
    assert counted(table, units, cuts, resampling, seed) == wanted


@pytest.mark.parametrize("lookup", [0, 1 << 18])
@pytest.mark.parametrize("spread", [0, 10**9])
def test_the_fast_paths_count_the_same(
    monkeypatch: pytest.MonkeyPatch, lookup: int, spread: int
) -> None:
    """Searched and looked-up bases, added and scattered tables, merged and waiting codes."""
    monkeypatch.setattr(counting, "_LOOKUP_CELLS", lookup)
    monkeypatch.setattr(counting, "_SPREAD_OUT", spread)
    monkeypatch.setattr(counting, "ROWS_AT_A_TIME", 5)
    for seed in range(8):
        test_inside_base_slices.hypothesis.inner_test(seed, [7, 20, 33], 2)
        test_whole_tuples_however_counted.hypothesis.inner_test(seed, [3, 9, 21], 2, 2)


def test_small_slices_are_counted_but_not_reported() -> None:
    table = Table(11, rows=60)
    units = [Unit(features, "dense") for features in table.tuples()]
    tables = Tables(units, table.lattice, 4, None)
    tables.add(table.block(0, 60))
    reader = CountReader(table.lattice, 4, 1, 5)
    found = list(reader.slices(units, tables.state()))
    for features, some in zip(table.tuples(), found, strict=True):
        sizes = {
            table.key(features, c): len(table.members(features, c)) for c in table.slices(features)
        }
        assert some.nonempty == sum(size > 0 for size in sizes.values())
        kept = dict(zip(some.keys.tolist(), some.counts[:, 0].sum(axis=1).tolist(), strict=True))
        assert kept == {key: size for key, size in sizes.items() if size >= 5}


def test_merging_nothing() -> None:
    table = Table(3)
    units = [Unit((0,), "dense"), Unit((0,), "sparse")]
    empty = Tables(units, table.lattice, 4, None).state()
    assert merge_states(units, []) == []
    merged = merge_states(units, [empty, empty])
    assert [len(arrays) for arrays in merged] == [1, 1, 0]
    reader = CountReader(table.lattice, 4, 1, 1)
    assert [some.keys.size for some in reader.slices(units, merged)] == [0, 0]
