"""Data with planted slices, and runs of discovery on it."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.transforms.discovery.lsa import LsaEncoder
from tests.discover_runs import discover

# Columns of `planted_table`, as the command takes them.
COLUMNS = {"embedding": "embedding", "loss": "loss_new", "baseline_loss": "loss_old"}
COLUMNS |= {"example_id": "id"}
TOPICS = {
    "film": "actor scene plot camera director ending",
    "food": "soup bread waiter menu kitchen taste",
    "phone": "battery screen charger camera signal case",
}
# Runs a discovery in this process.
discovery = discover


def planted_table(
    rows=600, *, dimensions=8, planted=3, size=60, background=6, decoys=0, seed=0, apart=4.0
):
    """Points of a few wide clusters, and of narrow ones on which the new model is worse or better."""
    rng, narrow = np.random.default_rng(seed), planted + decoys
    centres = rng.normal(0, apart, (narrow + background, dimensions))
    others = rng.integers(narrow, narrow + background, rows - narrow * size)
    of = np.concatenate([np.repeat(np.arange(narrow), size), others])
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


def planted_file(path, *, row_groups=1, **options):
    """Write `planted_table`, without the column that tells the slices."""
    table = planted_table(**options).drop_columns(["planted"])
    pq.write_table(table, path, row_group_size=-(-table.num_rows // row_groups))
    return str(path)


def topics(folder, **options):
    """Discover three topics of 360 short texts, ``data.parquet``, of which the new model fails at food."""
    rng = np.random.default_rng(3)
    of = [list(TOPICS)[at % 3] for at in range(360)]
    texts = [" ".join(rng.choice(TOPICS[one].split(), 5)) for one in of]
    wrong = rng.random(360) < np.where(np.array(of) == "food", 0.7, 0.1)
    table = {"id": np.arange(360) * 10, "text": texts, "topic": of, "label": [0] * 360}
    pq.write_table(pa.table({**table, "new": wrong.astype(int)}), folder / "data.parquet")
    roles = {"label": "label", "prediction": "new", "example_id": "id", "text": "text"}
    given = {"data": (str(folder / "data.parquet"),), "components": (3,), "min_slice_size": 10}
    return discover(folder / "out", **given, **roles, **options)


def embedded(found, text):
    """Embed the texts of `topics` and another one with the stored arrays: float64 [n, D] and [D]."""
    stored = [name for name in found.mixture if name.startswith("encoder/")]
    encoder = LsaEncoder.from_arrays({one.partition("/")[2]: found.mixture[one] for one in stored})
    texts = pq.read_table(found.folder.parent / "data.parquet").column("text").to_pylist()
    return encoder.encode(texts).astype(float), encoder.encode([text])[0].astype(float)
