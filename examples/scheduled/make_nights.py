"""Makes the data of two nights; the second holds what the first one had not.

    python examples/scheduled/make_nights.py nights

On the second night a tenth of the examples come from a new country, and another tenth have lost
their speed; on both the model is right in about three of ten. The same files come out every time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 4000
NIGHTS = ("first", "second")


def night(number: int, *, has_drifted: bool) -> pa.Table:
    """Return the examples of a night."""
    generator = np.random.default_rng(number)
    country = np.array(["DE", "FR", "IT"])[generator.integers(0, 3, ROWS)]
    device = np.array(["phone", "watch"])[generator.integers(0, 2, ROWS)]
    speed = np.round(120 * generator.random(ROWS), 1)
    label = generator.integers(0, 2, ROWS)
    right = generator.random(ROWS) < 0.85
    is_new, is_lost = (generator.random(ROWS) < 0.1 for _ in range(2))
    is_bad = (is_new | is_lost) & has_drifted
    right = np.where(is_bad, generator.random(ROWS) < 0.3, right)
    return pa.table(
        {
            "country": np.where(is_new & has_drifted, "PL", country),
            "device": device,
            "speed": pa.array(speed, mask=is_lost & has_drifted),
            "label": label,
            "prediction": np.where(right, label, 1 - label),
        }
    )


def main(folder: str) -> None:
    """Write a file for each night: ``FOLDER/first.parquet`` and ``FOLDER/second.parquet``."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(NIGHTS):
        path = Path(folder) / f"{name}.parquet"
        pq.write_table(night(number, has_drifted=name == "second"), path, compression="zstd")
        print(f"{path}: {ROWS:,} examples")


if __name__ == "__main__":
    main(sys.argv[1])
