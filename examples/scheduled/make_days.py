"""Makes three days of evaluation data from the census data that ships with slicebeam.

    python examples/scheduled/make_days.py days

Each example goes to one day. On the second day the new model has gone wrong on a planted slice:
it says the opposite for most married men who work in sales. The third day is as the first. The
same files come out every time.
"""

from __future__ import annotations

import sys
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

SOURCE = Path(__file__).parents[2] / "pipelines" / "demo_data" / "adult_scored.parquet"
FIRST = date(2026, 11, 18)
DAYS = 3
WRONG_DAY = 1
COLUMNS = ["age", "education", "occupation", "relationship", "sex", "hours-per-week"]
COLUMNS += ["capital-gain", "income", "prediction", "prediction_old"]


def day(table: pa.Table, number: int) -> pa.Table:
    """Return the examples of a day: every third one, mixed by a multiplicative hash of its id."""
    hashed = (
        table.column("row_id").to_numpy().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    ) >> 40
    mine = table.filter(pa.array(hashed % DAYS == number))
    if number == WRONG_DAY:
        planted = pc.and_(
            pc.equal(mine.column("relationship"), "Husband"),
            pc.equal(mine.column("occupation"), "Sales"),
        )
        # Three of four: what is left right keeps the slice from being a constant.
        flipped = planted.to_numpy() & (mine.column("row_id").to_numpy() % 4 != 0)
        prediction = mine.column("prediction").to_numpy()
        wrong = np.where(flipped, 1 - mine.column("income").to_numpy(), prediction)
        at = mine.column_names.index("prediction")
        mine = mine.set_column(at, "prediction", pa.array(wrong.astype(np.int8)))
    return mine.select(COLUMNS)


def main(folder: str) -> None:
    """Write a file for each day: ``FOLDER/date=2026-11-18/eval.parquet`` and so on."""
    table = pq.read_table(SOURCE)
    for number in range(DAYS):
        target = Path(folder) / f"date={FIRST + timedelta(days=number)}"
        target.mkdir(parents=True, exist_ok=True)
        mine = day(table, number)
        pq.write_table(mine, target / "eval.parquet", compression="zstd")
        print(f"{target / 'eval.parquet'}: {mine.num_rows:,} examples")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "days")
