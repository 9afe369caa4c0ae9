"""Time of counting all tuples of up to 3 of 14 features, against plain ``bincount``.

Run it alone: ``python benchmarks/counting.py``. The floor counts the examples and the errors
of every tuple with two ``bincount``, from codes that are packed in the same way.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from slicebeam.metrics.counting.counting import ROWS_AT_A_TIME, RowBlock, SumReader, Tables
from slicebeam.metrics.counting.counting_plan import Budget, blocks, plan_all
from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.metrics.measures.registry import statistic_space

DEMO = Path(__file__).parents[1] / "pipelines" / "demo_data" / "adult_scored.parquet"
ROLES = ("row_id", "income", "prediction", "score", "prediction_old", "score_old")


def data(rows: int) -> tuple[list[np.ndarray], tuple[int, ...], np.ndarray]:
    """Return the demo data's codes, at most 11 a feature, their number, and the errors."""
    frame = pq.read_table(DEMO).to_pandas()
    repeated = np.resize(np.arange(len(frame)), rows)
    columns, sizes = [], []
    for name in frame.columns:
        if name in ROLES:
            continue
        if frame[name].dtype.kind in "iuf":
            edges = np.unique(np.quantile(frame[name], np.linspace(0, 1, 11)[1:-1]))
            code = np.searchsorted(edges, frame[name], side="right")
        else:
            code = frame[name].astype("category").cat.codes.to_numpy()
        columns.append(code.astype(np.uint8)[repeated])
        sizes.append(int(code.max()) + 1)
    wrong = (frame["income"] != frame["prediction"]).to_numpy()[repeated]
    return columns, tuple(sizes), wrong


def counted(columns: list[np.ndarray], lattice: Lattice, wrong: np.ndarray) -> int:
    """Count with slicebeam, and return the number of slices."""
    space = statistic_space(["accuracy"], "overall")
    budget = Budget(wrong.size, space.raw_columns, space.passes, 1, 64_000_000)
    reader = SumReader(lattice, space, 1, 20)
    found = 0
    for block in blocks(plan_all(lattice, budget), budget):
        units = [planned.unit for planned in block]
        tables = Tables(units, lattice, space, None)
        for begin in range(0, wrong.size, ROWS_AT_A_TIME):
            rows = slice(begin, begin + ROWS_AT_A_TIME)
            widened: dict[int, np.ndarray] = {}

            def column(
                feature: int, rows: slice = rows, widened: dict[int, np.ndarray] = widened
            ) -> np.ndarray:
                if feature not in widened:
                    widened[feature] = columns[feature][rows].astype(np.int64)
                return widened[feature]

            cells = wrong[rows].astype(np.int64)
            ids = np.arange(cells.size, dtype=np.uint64)
            none = np.zeros((0, cells.size), np.int64)
            tables.add(RowBlock(cells.size, column, cells, ids, ids, none, none, none))
        found += sum(some.keys.size for some in reader.slices(units, tables.state()))
    return found


def floor(columns: list[np.ndarray], lattice: Lattice, wrong: np.ndarray) -> int:
    """Count with two ``bincount`` a tuple, over blocks that fit the cache."""
    rows_of: dict[tuple[int, ...], np.ndarray] = {}
    for begin in range(0, wrong.size, ROWS_AT_A_TIME):
        rows = slice(begin, begin + ROWS_AT_A_TIME)
        wide = [column[rows].astype(np.int64) for column in columns]
        weight = wrong[rows].astype(np.float64)
        for level in (1, 2, 3):
            prefix: dict[tuple[int, ...], np.ndarray] = {}
            for row in lattice.tuples(level).tolist():
                head, last = tuple(row[:-1]), row[-1]
                if head not in prefix:
                    code = np.zeros(weight.size, np.int64)
                    for feature in head:
                        code = code * lattice.sizes[feature] + wide[feature]
                    prefix = {head: code}
                code = prefix[head] * lattice.sizes[last] + wide[last]
                size = int(np.prod([lattice.sizes[f] for f in row]))
                counts = np.bincount(code, minlength=size)
                errors = np.bincount(code, weight, minlength=size)
                both = np.stack([counts, errors])
                if tuple(row) in rows_of:
                    rows_of[tuple(row)] += both
                else:
                    rows_of[tuple(row)] = both
    return sum(int(np.count_nonzero(counts[0] >= 20)) for counts in rows_of.values())


def main() -> None:
    """Print the times and their ratio."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    columns, sizes, wrong = data(rows)
    lattice = Lattice(sizes, 3)
    tuples = sum(len(lattice.tuples(level)) for level in (1, 2, 3))
    seconds = {}
    for name, count in (("floor", floor), ("slicebeam", counted)):
        begun = time.process_time()
        slices = count(columns, lattice, wrong)
        seconds[name] = time.process_time() - begun
        each = seconds[name] / rows / tuples * 1e9
        print(f"{name:10} {seconds[name]:6.2f} s  {each:5.2f} ns/example/tuple  {slices:,} slices")
    print(
        f"ratio {seconds['slicebeam'] / seconds['floor']:.2f} ({rows:,} x {len(sizes)}, {tuples})"
    )


if __name__ == "__main__":
    main()
