"""Counts of slices, however they are counted and cut, against plain loops over the examples."""

import copy
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicebeam.metrics.arrays import Ragged
from slicebeam.metrics.counting import counting
from slicebeam.metrics.counting.counting import Resampling, RowBlock, SumReader, Tables, Unit
from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.metrics.counting.statistic_space import BUCKETS, StatisticSpace
from slicebeam.metrics.measures.registry import statistic_space
from slicebeam.metrics.randomness import poisson_weights

# Four cells and nothing else; weights; values; scores; all at once, of two models.
COUNTS = StatisticSpace(("positive", "wrong"), "overall")
WEIGHTS = StatisticSpace(("wrong",), "overall", weighted=True)
VALUES = statistic_space(["log_loss", "mse", "accuracy"], "baseline")
SCORES = statistic_space(["auc"], "overall")
EVERYTHING = statistic_space(["auc", "log_loss", "recall"], "baseline", weighted=True)
SPACES = [COUNTS, WEIGHTS, VALUES, SCORES, EVERYTHING]
COLUMNS = ("cells", "ids", "positions", "weights", "terms", "buckets")


class Table:
    """A small random table: the codes of each example, as sets for list features."""

    def __init__(self, seed, *, rows=40, sizes=(), space=COUNTS):
        rng = np.random.default_rng(seed)
        features = len(sizes) or int(rng.integers(1, 5))
        self.sizes = sizes or tuple(rng.integers(1, 5, features).tolist())
        self.multi = tuple((rng.random(features) < 0.35).tolist())
        self.unmatched = tuple(
            bool(multi or draw < 0.3)
            for multi, draw in zip(self.multi, rng.random(features), strict=True)
        )
        self.lattice = Lattice(self.sizes, 3, self.multi, self.unmatched)
        self.rows, self.space = rows, space
        self.cells = rng.integers(0, space.cells, rows)
        self.ids = rng.permutation(10 * rows)[:rows].astype(np.uint64)
        self.positions = self.ids
        self.weights = rng.integers(0, 1000, (2 if space.weighted else 0, rows))
        terms = len(space.terms) + len(space.total_terms)
        self.terms = rng.integers(-(2**40), 2**40, (terms, rows))
        self.buckets = rng.integers(0, 2 * BUCKETS, (space.sides if space.ranked else 0, rows))
        self.codes = []
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

    def block(self, begin, end):
        def column(feature):
            mine = self.codes[feature][begin:end]
            flat = np.array([code for codes in mine for code in sorted(codes)], np.int64)
            if not self.multi[feature]:
                return flat
            # A list column that is a part of a longer one does not begin at 0.
            offsets = np.cumsum([0] + [len(codes) for codes in mine]) + 3
            return Ragged(offsets, np.concatenate([[0, 0, 0], flat]).astype(np.int64))

        rows = slice(begin, end)
        return RowBlock(end - begin, column, *(getattr(self, name)[..., rows] for name in COLUMNS))

    def reordered(self, order):
        """The same examples in another order."""
        other = copy.copy(self)
        other.codes = [[codes[row] for row in order.tolist()] for codes in self.codes]
        for name in COLUMNS:
            setattr(other, name, getattr(self, name)[..., order])
        return other

    def blocks(self, cuts):
        edges = sorted({0, self.rows, *(cut % (self.rows + 1) for cut in cuts)})
        return [self.block(begin, end) for begin, end in itertools.pairwise(edges)]

    def slices(self, features):
        return list(itertools.product(*(range(self.sizes[f]) for f in features)))

    def key(self, features, codes):
        digits = self.lattice.offsets[list(features)] + codes + 1
        return int(self.lattice.keys(digits[None])[0])

    def members(self, features, codes):
        return [
            row
            for row in range(self.rows)
            if all(code in self.codes[f][row] for f, code in zip(features, codes, strict=True))
        ]

    def matrix(self):
        """What each example adds to each column: raw columns, then total terms."""
        columns = np.zeros((self.space.raw_columns + len(self.space.total_terms), self.rows), int)
        rows, at = np.arange(self.rows), 0
        for power in (np.ones(self.rows, int), *self.weights):
            columns[at + self.cells, rows] = power
            at += self.space.cells
        values = len(self.space.terms)
        columns[at : at + values] = self.terms[:values]
        at += values
        for bucket in self.buckets:
            columns[at + bucket, rows] = self.weights[0] if self.space.weighted else 1
            at += 2 * BUCKETS
        columns[at:] = self.terms[values:]
        return columns.T

    def layers(self, resampling):
        """How often each layer holds each example."""
        layers = [np.ones(self.rows, int)]
        for b in range(resampling.replicates if resampling else 0):
            drawn = [poisson_weights(resampling.seed, b, self.ids[[i]]) for i in range(self.rows)]
            layers.append(np.concatenate(drawn).astype(int))
        return np.stack(layers)

    def is_nonempty(self, sums):
        return bool(sums[0, : self.space.cells].any())

    def all_counts(self, tuples, resampling=None):
        """Sums [layers, raw columns] of every slice of the tuples."""
        matrix, layers = self.matrix()[:, : self.space.raw_columns], self.layers(resampling)
        found = {}
        for features in tuples:
            for codes in self.slices(features):
                mine = self.members(features, codes)
                found[self.key(features, codes)] = layers[:, mine] @ matrix[mine]
        return found

    def tuples(self):
        features = range(len(self.sizes))
        return [t for level in (1, 2, 3) for t in itertools.combinations(features, level)]


def assert_same(found, wanted):
    """Slice by slice the same sums, to the last bit."""
    assert found.keys() == wanted.keys()
    for key, sums in found.items():
        np.testing.assert_array_equal(sums, wanted[key])


def counted(table, units, cuts, resampling, seed):
    """Count units over row blocks that are dealt to several states, merged in a random grouping."""
    rng, blocks = np.random.default_rng(seed), table.blocks(cuts)
    owners = rng.integers(0, 3, len(blocks))
    states = []
    for owner in range(3):
        tables = Tables(units, table.lattice, table.space, resampling)
        for block, mine in zip(blocks, owners, strict=True):
            if mine == owner:
                tables.add(block)
        states.append(tables.state())
    order = rng.permutation(3)
    state = states[order[2]] + (states[order[0]] + states[order[1]])
    layers = 1 + (resampling.replicates if resampling else 0)
    np.testing.assert_array_equal(state.totals, table.layers(resampling) @ table.matrix())
    reader = SumReader(table.lattice, table.space, layers, 1)
    found = []
    for unit, some in zip(units, reader.slices(units, state), strict=True):
        assert some.sums.dtype == np.int64
        assert some.sums.shape == (some.keys.size, layers, table.space.raw_columns)
        nonempty = sum(map(table.is_nonempty, some.sums))
        assert some.nonempty == nonempty
        if unit.candidates is None:
            assert nonempty == some.keys.size
        else:
            assert some.keys.tolist() == unit.candidates.tolist()
        assert some.keys.size == np.unique(some.keys).size
        found.append(dict(zip(some.keys.tolist(), some.sums, strict=True)))
    return found


SEEDS = st.integers(0, 2**32)
CUTS = st.lists(st.integers(0, 100), max_size=6)
COUNTED = {"seed": SEEDS, "cuts": CUTS, "replicates": st.integers(0, 2)}
COUNTED |= {"space": st.sampled_from(SPACES)}


@settings(max_examples=50, deadline=None)
@given(**COUNTED, parts=st.integers(1, 4))
def test_whole_tuples_however_counted(seed, cuts, replicates, parts, space):
    table = Table(seed, space=space)
    resampling = Resampling(replicates, seed) if replicates else None
    tuples = table.tuples()
    expected = table.all_counts(tuples, resampling)
    nonempty = {key: value for key, value in expected.items() if table.is_nonempty(value)}
    for units in (
        [Unit(features, "dense") for features in tuples],
        [Unit(some, "sparse", part=part, parts=parts) for some in tuples for part in range(parts)],
    ):
        found = {}
        for some in counted(table, units, cuts, resampling, seed):
            assert not found.keys() & some.keys()
            found.update(some)
        assert_same(found, nonempty)


@settings(max_examples=50, deadline=None)
@given(**COUNTED)
def test_listed_candidates_however_counted(seed, cuts, replicates, space):
    table, rng = Table(seed, space=space), np.random.default_rng(seed)
    resampling = Resampling(replicates, seed) if replicates else None
    expected = table.all_counts(table.tuples(), resampling)
    units = []
    for features in table.tuples():
        slices = table.slices(features)
        some = rng.permutation(len(slices))[: int(rng.integers(1, len(slices) + 1))]
        keys = np.array([table.key(features, slices[i]) for i in some], np.int64)
        units.append(Unit(features, "dense", candidates=keys))
        units.append(Unit(features, "listed", bases=keys, candidates=keys))
    for unit, found in zip(units, counted(table, units, cuts, resampling, seed), strict=True):
        assert unit.candidates is not None
        assert_same(found, {key: expected[key] for key in unit.candidates.tolist()})


@settings(max_examples=60, deadline=None)
@given(**COUNTED)
@pytest.mark.slow
def test_inside_base_slices(seed, cuts, replicates, space):
    table, rng = Table(seed, space=space), np.random.default_rng(seed)
    resampling = Resampling(replicates, seed) if replicates else None
    features_of = range(len(table.sizes))
    expected = table.all_counts(table.tuples(), resampling)
    units, wanted = [], []
    for level in (1, 2):
        for features in itertools.combinations(features_of, level):
            others = [f for f in features_of if f not in features]
            if not others:
                continue
            slices = table.slices(features)
            chosen = rng.permutation(len(slices))[: int(rng.integers(1, len(slices) + 1))]
            candidates, bases = {}, {}
            for i in chosen:
                for extension in others:
                    for code in range(table.sizes[extension]):
                        if rng.random() < 0.3:
                            continue
                        pairs = [*zip(features, slices[i], strict=True), (extension, code)]
                        names, codes = zip(*sorted(pairs), strict=True)
                        key = table.key(names, codes)
                        candidates[key] = expected[key]
                        bases[key] = table.key(features, slices[i])
            keys = rng.permutation(np.array(list(candidates), np.int64))
            within = np.array([bases[key] for key in keys.tolist()], np.int64)
            units.append(Unit(features, "listed", bases=within, candidates=keys))
            wanted.append(candidates)
    for found, sums in zip(counted(table, units, cuts, resampling, seed), wanted, strict=True):
        assert_same(found, sums)


@pytest.mark.parametrize("space", SPACES)
def test_the_order_of_examples_does_not_matter(space):
    """Tables are equal to the last bit, since all that is summed is whole numbers."""
    resampling = Resampling(2, 3)
    for seed in range(6):
        table = Table(seed, space=space)
        other = table.reordered(np.random.default_rng(seed).permutation(table.rows))
        units = [Unit(features, "dense") for features in table.tuples()]
        units += [Unit(features, "sparse") for features in table.tuples()]
        one, same = (
            counted(some, units, cuts, resampling, seed)
            for some, cuts in ((table, [11, 17]), (other, [5]))
        )
        for mine, others in zip(one, same, strict=True):
            assert_same(mine, others)


def test_sums_of_the_largest_numbers_are_exact():
    """Terms near 2^61 over the rows, which float64 would round."""
    table = Table(4, rows=60, space=VALUES)
    largest = 2**61 // table.rows
    table.terms = largest - np.random.default_rng(0).integers(0, 1000, table.terms.shape)
    units = [Unit(features, "dense") for features in table.tuples()]
    expected = table.all_counts(table.tuples())
    for some in counted(table, units, [20], None, 0):
        assert_same(some, {key: expected[key] for key in some})


@pytest.mark.parametrize("lookup", [0, 1 << 18])
@pytest.mark.parametrize("spread", [0, 10**9])
@pytest.mark.slow
def test_the_fast_paths_count_the_same(monkeypatch, lookup, spread):
    """Searched and looked-up bases, added and scattered tables, merged and waiting codes."""
    monkeypatch.setattr(counting, "_LOOKUP_CELLS", lookup)
    monkeypatch.setattr(counting, "_SPREAD_OUT", spread)
    monkeypatch.setattr(counting, "ROWS_AT_A_TIME", 5)
    for seed in range(8):
        space = SPACES[seed % 5]
        test_inside_base_slices.hypothesis.inner_test(seed, [7, 20, 33], 2, space)
        test_whole_tuples_however_counted.hypothesis.inner_test(seed, [3, 9, 21], 2, 2, space)
        test_listed_candidates_however_counted.hypothesis.inner_test(seed, [8, 30], 1, space)


def test_small_slices_are_counted_but_not_reported():
    table = Table(11, rows=60)
    units = [Unit(features, "dense") for features in table.tuples()]
    tables = Tables(units, table.lattice, table.space, None)
    tables.add(table.block(0, 60))
    found = list(SumReader(table.lattice, table.space, 1, 5).slices(units, tables.state()))
    for features, some in zip(table.tuples(), found, strict=True):
        sizes = {
            table.key(features, c): len(table.members(features, c)) for c in table.slices(features)
        }
        assert some.nonempty == sum(size > 0 for size in sizes.values())
        reported = table.space.sizes(some.sums[:, 0]).tolist()
        kept = dict(zip(some.keys.tolist(), reported, strict=True))
        assert kept == {key: size for key, size in sizes.items() if size >= 5}


def test_merging_nothing():
    table = Table(3)
    units = [Unit((0,), "dense"), Unit((0,), "sparse")]
    empty = Tables(units, table.lattice, table.space, None).state()
    merged = empty + empty
    assert [table.size == 0 for table in merged.tables] == [False, True]
    reader = SumReader(table.lattice, table.space, 1, 1)
    assert [some.keys.size for some in reader.slices(units, merged)] == [0, 0]
