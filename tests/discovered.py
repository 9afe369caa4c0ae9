"""Data with planted slices, and runs of discovery on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.pipelines.config.discover import discover_config
from slicebeam.pipelines.discovery.discover import run_discovery
from slicebeam.pipelines.run.engine import Engine, runner_config
from slicebeam.pipelines.show.terminal import Terminal
from tests.running import read

if TYPE_CHECKING:
    from pathlib import Path

    from tests.running import Found

# Columns of `planted_table`, as the command takes them.
COLUMNS: dict[str, Any] = {
    "embedding": "embedding",
    "loss": "loss_new",
    "baseline_loss": "loss_old",
    "example_id": "id",
}


def planted_table(
    rows: int = 600,
    *,
    dimensions: int = 8,
    planted: int = 3,
    size: int = 60,
    background: int = 6,
    decoys: int = 0,
    seed: int = 0,
    apart: float = 4.0,
) -> pa.Table:
    """Points of a few wide clusters, and of narrow ones on which the new model is worse or better.

    Columns: id, embedding (float32 lists), loss_old, loss_new (0 or 1), planted (the number of the
    slice, −1 for none; a decoy, a narrow cluster without a change, is −1 too).
    """
    rng = np.random.default_rng(seed)
    narrow = planted + decoys
    centres = rng.normal(0, apart, (narrow + background, dimensions))
    of = np.concatenate(
        [
            np.repeat(np.arange(narrow), size),
            rng.integers(narrow, narrow + background, rows - narrow * size),
        ]
    )
    width = np.where(of < narrow, 0.5, 1.5)[:, None]
    z = (centres[of] + rng.normal(0, 1, (rows, dimensions)) * width).astype(np.float32)
    slices = np.where(of < planted, of, -1)
    old = rng.random(rows) < np.where(slices >= 0, np.where(slices % 2 == 0, 0.1, 0.7), 0.2)
    new = rng.random(rows) < np.where(slices >= 0, np.where(slices % 2 == 0, 0.7, 0.1), 0.2)
    order = rng.permutation(rows)
    return pa.table(
        {
            "id": pa.array(np.arange(rows)),
            "embedding": pa.array(list(z[order]), pa.list_(pa.float32())),
            "loss_old": old[order].astype(np.float64),
            "loss_new": new[order].astype(np.float64),
            "planted": slices[order].astype(np.int8),
        }
    )


def planted_file(path: Path, *, row_groups: int = 1, **options: Any) -> str:
    """Write `planted_table`, without the column that tells the slices."""
    table = planted_table(**options).drop_columns(["planted"])
    pq.write_table(table, path, row_group_size=-(-table.num_rows // row_groups))
    return str(path)


def discovery(output: Path, *, resume: bool = False, **options: Any) -> Found:
    """Run a discovery in this process."""
    config = discover_config({"output": str(output), **options})
    with Engine(runner_config(config.runner_config, config.runner_option)) as engine:
        run_discovery(config, engine, Terminal(quiet=True), resume=resume)
    return read(output)
