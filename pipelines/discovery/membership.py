"""``membership.parquet``: the component of every example, as the id of its slice."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.transforms.discovery.derive_columns import ROW, TESTED, odds_column, share_column
from slicebeam.transforms.encode.predicates import slice_hashes
from slicebeam.transforms.storage.storage import matching
from slicebeam.transforms.storage.work_files import open_arrow

if TYPE_CHECKING:
    from slicebeam.transforms.discovery.derive_columns import Clusters
    from slicebeam.transforms.storage.storage import StoragePath

MEMBERSHIP_FILE = "membership.parquet"


def write_membership(
    stream: IO[bytes], beside: StoragePath, clusters: Clusters, *, is_split: bool
) -> None:
    """Write one row for each example and mixture.

    Columns: ``id`` (of the example; its position, from 0, where no column identifies examples),
    ``split`` (``all``, or ``discovery`` and ``evaluation``), ``slice_id`` (of the component, as in
    ``slices.parquet``), ``responsibility`` (float, from the embedding alone), ``log_odds`` (double,
    finite: ln(r/(1 − r)) of this component, in nats, by which members of a slice are ranked).

    ``beside``: folder of the further values reported for each example. ``is_split``: whether some
    examples shaped the mixtures and were not tested.
    """
    ids = {
        domain.name: pa.array(
            [f"{int(hash_):016x}" for hash_ in slice_hashes([[s] for s in domain.singletons])]
        )
        for domain in clusters.domains
    }
    writer = None
    try:
        for path in matching(beside, "*.arrow"):
            batch = open_arrow(path).get_batch(0)
            names = batch.schema.names
            who = batch.column("id" if "id" in names else ROW)
            tested = batch.column(TESTED).to_numpy(zero_copy_only=False)
            split = np.where(tested, 2, 1) if is_split else np.zeros(len(tested), np.int64)
            for field, of_component in ids.items():
                table = pa.table(
                    {
                        "id": who,
                        "split": pa.DictionaryArray.from_arrays(
                            pa.array(split.astype(np.int8)),
                            pa.array(["all", "discovery", "evaluation"]),
                        ),
                        "slice_id": pa.DictionaryArray.from_arrays(
                            batch.column(field), of_component
                        ),
                        "responsibility": batch.column(share_column(field)),
                        "log_odds": batch.column(odds_column(field)),
                    }
                )
                if writer is None:
                    writer = pq.ParquetWriter(stream, table.schema, compression="zstd")
                writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()
