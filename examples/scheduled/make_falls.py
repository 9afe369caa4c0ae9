"""Makes two pairs of nights on which one model fell, each in a way of its own.

    python examples/scheduled/make_falls.py falls

``falls/everywhere``: on the second night the model is right on 65 % of all examples instead of 95 %,
on every slice alike, so that no slice stands out. ``falls/recall``: on the second night it misses
two of five positive examples of shop C, and takes fewer negative ones for positive, so that its
accuracy is that of the night before. The same files come out every time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NIGHTS = ("2026-11-18", "2026-11-19")
EXAMPLES = 8000


def examples(seed: int) -> dict[str, np.ndarray]:
    """Return the features and labels of a night."""
    rng = np.random.default_rng(seed)
    return {
        "shop": rng.choice(["A", "B", "C", "D"], EXAMPLES),
        "device": rng.choice(["phone", "tablet", "desktop"], EXAMPLES),
        "label": rng.integers(0, 2, EXAMPLES),
    }


def everywhere(number: int) -> pa.Table:
    """Return a night of the model that fell on all examples."""
    columns = examples(50 + number)
    right = np.random.default_rng(55 + number).random(EXAMPLES) < (0.95, 0.65)[number]
    return pa.table(
        columns | {"prediction": np.where(right, columns["label"], 1 - columns["label"])}
    )


def recall(number: int) -> pa.Table:
    """Return a night of the model that fell by its recall on one shop."""
    columns = examples(20 + number)
    wrong = np.full(EXAMPLES, 0.2)
    if number == 1:
        wrong = np.where(columns["shop"] == "C", np.where(columns["label"] == 1, 0.4, 0.0), wrong)
    right = np.random.default_rng(30 + number).random(EXAMPLES) >= wrong
    return pa.table(
        columns | {"prediction": np.where(right, columns["label"], 1 - columns["label"])}
    )


def main(folder: str) -> None:
    """Write ``FOLDER/everywhere/2026-11-18.parquet`` and so on."""
    for name, night in (("everywhere", everywhere), ("recall", recall)):
        target = Path(folder) / name
        target.mkdir(parents=True, exist_ok=True)
        for number, date in enumerate(NIGHTS):
            pq.write_table(night(number), target / f"{date}.parquet", compression="zstd")
            print(f"{target / f'{date}.parquet'}: {EXAMPLES:,} examples")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "falls")
