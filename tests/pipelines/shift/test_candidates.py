"""The parts of the pool's passes, and what an assessment makes of answers."""

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.shift import difficulties as df
from slicebeam.pipelines.shift.answers import LOST
from slicebeam.pipelines.shift.assessment import Stopping, assess, check_budget, strata_of
from slicebeam.pipelines.shift.candidates import PoolCandidates, smallest
from slicebeam.pipelines.shift.pool import LabelledPool, PoolItems
from slicebeam.transforms.encode.column import Chunk
from tests.refusals import refuses


def chunk_of(**columns):
    return Chunk(0, 0, "pool.csv", 100, 40, pa.table(columns))


def counted(values):
    distinct, counts = np.unique(values, return_counts=True)
    return distinct, counts.astype(np.int64)


@pytest.mark.parametrize("bins", [1, 2, 3, 4, 7, 10])
@pytest.mark.parametrize("size", [1, 2, 3, 10, 101, 1000])
def test_edges_are_those_of_numpy(bins, size):
    rng, quantiles = np.random.default_rng(size * 100 + bins), np.arange(1, bins) / bins
    for values in (
        rng.normal(size=size),
        rng.random(size) * 1e-3 - 5e-4,
        rng.choice([0.2, 0.9, 1.0], size, p=[0.1, 0.2, 0.7]),
        rng.integers(-3, 4, size).astype(float),
    ):
        wanted = np.unique(np.quantile(values, quantiles))
        assert df.quantile_edges(*counted(values), bins).tolist() == wanted.tolist()


def test_a_value_at_an_edge_is_in_the_bin_above_and_a_missing_one_in_none():
    values = np.array([0.1, 0.5, 0.7, 0.9, np.nan, -1.0])
    assert df.difficulty_bins(values, np.array([0.5, 0.9])).tolist() == [0, 1, 1, 2, -1, 0]
    assert df.difficulty_bins(values, np.zeros(0)).tolist() == [0, 0, 0, 0, -1, 0]
    # Without values there are no edges.
    assert df.quantile_edges(np.zeros(0), np.zeros(0, np.int64), 3).size == 0


def test_rounding_keeps_the_order_and_may_be_done_in_steps():
    rng = np.random.default_rng(7)
    values = rng.normal(size=500) * 10.0 ** rng.integers(-300, 300, 500)
    values = np.sort(np.concatenate([values, [0.0, -0.0]]))
    for bits in (52, 20, 8, 1):
        found = df.rounded_down(values, bits)
        assert (found <= values).all()
        assert (np.diff(found) >= 0).all()
        # The oracle: a floor of the number's own multiple of its last bit that is kept.
        mantissa, exponent = np.frexp(values)
        wanted = np.ldexp(np.floor(np.ldexp(mantissa, bits + 1)), exponent - bits - 1)
        assert found.tolist() == wanted.tolist()
        steps = df.rounded_down(df.rounded_down(values, min(bits + 3, 52)), bits)
        assert steps.tolist() == found.tolist()


@pytest.mark.parametrize(("size", "most"), [(40, 50), (3000, 50), (3000, 2000), (3000, 5000)])
def test_counts_of_difficulties_do_not_depend_on_how_they_come(size, most):
    rng = np.random.default_rng(size + most)
    # Those of the second half are close together: only some parts are many.
    values = [rng.integers(0, 40, size) / 40, 0.75 + rng.random(size) * 1e-5, -rng.random(20)]
    values = np.concatenate(values)
    sizes = {b: np.unique(df.rounded_down(values, b)).size for b in (52, 20, 18, 16, 14, 12, 10)}
    resolution = next((bits for bits, size in sizes.items() if size <= most), 8)
    wanted = counted(df.rounded_down(values, resolution))
    for parts in (1, 3, 17, 40):
        counts = df.DifficultyCounts(most)
        for part in np.array_split(rng.permutation(values), parts):
            counts.add(part)
        for column, expected in zip(counts.counted(), wanted, strict=True):
            np.testing.assert_array_equal(column, expected)


@pytest.mark.parametrize(("values", "wanted"), [
    (pa.array([0.5, None, float("nan"), -1.0]), [0.5, -9, -9, -1]),
    (pa.array([3, None, 0, 2], pa.int32()), [3, -9, 0, 2]),
    (pa.array([True, False, None, True]), [1, 0, -9, 1]),
    (pa.nulls(4), [-9] * 4),
    (pa.array(["a", "b", None, "c"]).dictionary_encode(), "'x' is string, but a difficulty is a number"),
    (pa.array([0.1, None, float("inf"), 0.2]), r"'x' holds inf in row 103 of pool\.csv"),
])  # fmt: skip
def test_difficulties_are_finite_numbers_or_missing(values, wanted):
    chunk = chunk_of(x=values)
    given = (chunk.table.column("x"), "x", chunk)
    if isinstance(wanted, list):
        assert np.nan_to_num(df.difficulties(*given), nan=-9).tolist() == wanted
    else:
        refuses(InputError, wanted, df.difficulties, *given)


@pytest.mark.parametrize("most", [1, 3, 1000, None])
@pytest.mark.parametrize("cells", [5, 100_000])
def test_the_smallest_hashes_of_each_cell(most, cells):
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "cell": rng.choice(rng.integers(0, cells, 5), 400).astype(np.int32),
            # Some are equal, and then the row decides.
            "hash": rng.choice(rng.integers(0, 2**64, 150, np.uint64), 400),
            "row": rng.permutation(400),
        }
    )
    wanted = frame.sort_values(["cell", "hash", "row"])
    if most is not None:
        wanted = wanted.groupby("cell").head(most)
    found = smallest(*(frame[name].to_numpy() for name in frame), most)
    assert found.tolist() == wanted.index.tolist()
    assert smallest(*(frame[name].to_numpy()[:0] for name in frame), most).size == 0


@pytest.mark.parametrize("parts", [1, 2, 9, 100])
def test_candidates_of_parts_are_those_of_the_whole(parts):
    rng, rows = np.random.default_rng(parts), 60_000
    frame = pd.DataFrame(
        {
            "cell": rng.choice(4, rows, p=[0.7, 0.2999, 0.0001, 0]).astype(np.int32),
            "hash": rng.integers(0, 2**64, rows, np.uint64),
            "row": np.arange(rows),
            "text": rng.choice(["a", "b"], rows),
        }
    )
    wanted = frame.sort_values(["cell", "hash", "row"]).groupby("cell").head(10_000)
    candidates = PoolCandidates(10_000, 4)
    for part in np.array_split(rng.permutation(rows), parts):
        candidates.add(pa.Table.from_pandas(frame.iloc[part], preserve_index=False))
    assert candidates.smallest().to_pydict() == {name: wanted[name].tolist() for name in wanted}


BEYOND = [*((pa.int64(), one) for one in (2**53 + 1, -(2**53) - 1, -(2**63)))]
BEYOND += [(pa.uint64(), 2**64 - 1)]


@pytest.mark.parametrize(("kind", "value"), BEYOND)
@pytest.mark.parametrize("missing", [None, 5])
def test_integers_that_float64_rounds_are_no_difficulty(kind, value, missing):
    def known(last):
        chunk = chunk_of(x=pa.chunked_array([pa.array([missing, 2**53, last], kind)]))
        return df.difficulties(chunk.table.column("x"), "x", chunk).tolist()

    first = float("nan") if missing is None else missing
    assert known(2**53) == pytest.approx([first, 2.0**53, 2.0**53], rel=0, nan_ok=True)
    said = f"column 'x' holds {value} in row 103 of pool.csv, but integers beyond 2^53 lose digits"
    refuses(InputError, re.escape(said), known, value)


def drawn_pool(random):
    classes, strata = int(random.integers(2, 4)), int(random.integers(1, 7))
    sizes = random.integers(1, 60, strata)
    labels, row = np.unique(np.sort(random.integers(0, classes, strata)), return_inverse=True)
    stratum = np.repeat(np.arange(strata), sizes).astype(np.int32)
    old = random.integers(0, classes, stratum.size).astype(np.int32)
    counts = np.zeros((strata, classes), np.int64)
    np.add.at(counts, (stratum, old), 1)
    keys = pa.array([str(place) for place in range(stratum.size)])
    identity = random.integers(0, 2**63, stratum.size).astype(np.uint64)
    return LabelledPool(
        rows=stratum.size,
        classes=tuple(range(classes)),
        labels=labels,
        stratum_row=row,
        stratum_bin=np.zeros(strata, np.int64),
        edges=np.zeros(0),
        sizes=sizes,
        old=counts,
        items=PoolItems(stratum, identity, keys, old, None, pa.table({}), np.zeros(0, int), None),
        starts=np.concatenate([[0], np.cumsum(sizes)]),
        fingerprint=0,
        slices=None,
    )


class _LossyAnswers:
    """Answers of which some never come; it notes what it is asked."""

    def __init__(self, codes):
        self.all = codes
        self.asked = []

    def codes(self, items, most_calls):
        assert most_calls is None or items.size <= most_calls
        self.asked += items.tolist()
        return self.all[items]


@pytest.mark.parametrize("method", ["plus", "masa", "proportional"])
def test_each_item_is_asked_about_once_until_the_budget_or_the_pool_ends(method):
    random, estimated = np.random.default_rng(5), 0
    for _ in range(60):
        pool = drawn_pool(random)
        stratum, lossy = pool.items.stratum, random.random(pool.sizes.size) < 0.5
        lost = (random.random(pool.rows) < random.choice([0, 0.1, 0.4, 0.8])) & lossy[stratum]
        codes = np.where(lost, LOST, random.integers(-1, len(pool.classes), pool.rows))
        least = 2 * pool.sizes.size
        calls = None if random.random() < 0.2 else int(random.integers(least, pool.rows + least))
        check_budget(strata_of(pool), method, calls)
        answers = _LossyAnswers(codes)
        try:
            found = assess(pool, method, answers, Stopping(calls, None, 0.95))
        except EngineError as error:
            assert "have no answer, because" in str(error)  # noqa: PT017
            continue
        expected = pool.rows if calls is None else min(calls, pool.rows)
        assert len(answers.asked) == len(set(answers.asked)) == expected
        assert found.lost == int(lost[answers.asked].sum())
        assert found.items.size == expected - found.lost
        assert found.stopped == ("pool" if expected == pool.rows else "budget")
        estimated += 1
    assert estimated > 45
