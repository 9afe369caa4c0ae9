"""Slices with the same examples are found, by nesting or by their row hashes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.lattice import Lattice
from slicebeam.pipelines.duplicates import nested_classes
from tests.oracle.predicates import mask
from tests.running import search

if TYPE_CHECKING:
    from pathlib import Path


def test_nested_slices_of_one_size_are_one_class() -> None:
    lattice = Lattice((2, 2, 2), 3)
    digits = np.array([[1, 0, 0], [3, 0, 0], [1, 3, 0], [1, 5, 0], [1, 3, 5], [2, 4, 0]])
    keys = lattice.keys(digits)
    # a (40) = a&b (40); a&c (30) = a&b&c (30); b has 50; the last has 40 by chance.
    sizes = np.array([40, 50, 40, 30, 30, 40])
    classes = nested_classes(keys, sizes, np.arange(6), lattice)
    assert classes[0] == classes[2]
    assert classes[3] == classes[4]
    assert len(set(classes.tolist())) == 4


@pytest.mark.parametrize("chunk_rows", [100, 100_000])
def test_against_the_sets_of_examples(tmp_path: Path, chunk_rows: int) -> None:
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 4, 1500)
    frame = pd.DataFrame(
        {
            "kind": kind.astype(str),
            # Another name of the same, a coarser one, and one that only one kind has.
            "code": np.array(list("wxyz"))[kind],
            "half": kind // 2,
            "only": np.where(kind == 3, rng.integers(0, 2, 1500), 9),
            "other": rng.integers(0, 3, 1500).astype(str),
            "label": 1,
            "prediction": (rng.random(1500) > np.array([0.1, 0.1, 0.2, 0.6])[kind]).astype(int),
        }
    )
    frame.to_parquet(tmp_path / "data.parquet")
    found = search(
        tmp_path / "out",
        data=(str(tmp_path / "data.parquet"),),
        label="label",
        prediction="prediction",
        chunk_rows=chunk_rows,
    )
    significant = found.table[found.table["significant"]]
    sets: dict[bytes, list[tuple[int, str]]] = {}
    for row in significant.itertuples():
        members = mask(frame, json.loads(row.predicate)).tobytes()
        size = row.cross_size if row.label != "inherited" else 99
        sets.setdefault(members, []).append((size, row.slice_id))
    shown = [sum(size != 99 for size, _ in alike) for alike in sets.values()]
    copies = sum(max(one - 1, 0) for one in shown)
    assert copies > 0
    assert found.document["search"]["reported"] == sum(one > 0 for one in shown)
    assert found.document["search"]["duplicates"] == copies
    for one in found.document["slices"]:
        alike = next(a for a in sets.values() if one["slice_id"] in [slice_id for _, slice_id in a])
        assert one["cross_size"] == min(size for size, _ in alike)
        others = {slice_id for _, slice_id in alike} - {one["slice_id"]}
        assert set(one.get("same_examples_as", [])) == others
