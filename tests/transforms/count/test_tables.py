"""Plans as files, and the memory of the tables that they say."""

import numpy as np
import pytest

from slicebeam.metrics.counting.counting import Unit
from slicebeam.metrics.counting.counting_plan import PlannedUnit
from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.transforms.count.tables import plan_digest, read_block, write_plan


def test_plans_travel_through_a_file(tmp_path):
    keys, none = np.array([5, 3, 2**62], np.int64), np.zeros(0, np.int64)
    units = [
        Unit((0,), "dense"),
        Unit((0, 2), "dense", candidates=keys),
        Unit((1, 2), "sparse", candidates=none, part=2, parts=7),
        Unit((0, 1), "listed", bases=keys[:1], candidates=keys[1:2]),
        Unit((0, 2), "listed", bases=keys, candidates=keys),
    ]
    planned = [PlannedUnit(unit, 0.5, 10) for unit in units]
    path = tmp_path / "plan"
    lattice = Lattice((3, 3, 4), 3)
    written = write_plan(path, [planned[:3], planned[3:]], lattice)
    assert written == [(1.5, 3 + 3 + 0), (1.0, 1 + 3)]
    digest = plan_digest(path)
    for unit, same in zip(units, read_block(path, 0) + read_block(path, 1), strict=True):
        for name in ("features", "method", "part", "parts"):
            assert getattr(unit, name) == getattr(same, name)
        for name in ("bases", "candidates"):
            one, other = getattr(unit, name), getattr(same, name)
            assert (one is None) == (other is None)
            assert one is None or one.tolist() == other.tolist()
    write_plan(path, [planned[:3], planned[3:]], lattice)
    assert plan_digest(path) == digest
    write_plan(path, [planned], lattice)
    assert plan_digest(path) != digest
    assert write_plan(path, [], lattice) == []


@pytest.mark.slow
@pytest.mark.parametrize("features", [3, 60])
def test_a_search_stays_within_its_memory(tmp_path, features):
    """Few rows, and either very many values or very many features."""
    from benchmarks.memory import Case, imports_peak, peak

    values = 800 if features == 3 else 0
    flags = ("--top-values", str(values)) if values else ()
    flags = (*flags, "--strategy", "priority", "--max-candidates", "20000")
    case = Case("short", 20_000, features, values, flags)
    case.write(tmp_path / "data.parquet")
    most, _ = peak(case, tmp_path / "data.parquet", tmp_path / "out", "128MB")
    assert most - imports_peak() < 128 + 100
