"""A search of a large space finds the slice that is worse, below parents that it makes significant."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.planted import planted_triple
from tests.running import search

ROLES = {"label": "label", "prediction": "prediction"}


def place(planted, folder, **options):
    """Return the rank of the planted slice among the findings, and the strategy."""
    pq.write_table(pa.table(planted.columns), folder / "data.parquet")
    found = search(folder / "out", data=folder / "data.parquet", **ROLES, **options)
    return planted.place(found.document), found.document["search"]["strategy"]


@pytest.fixture(scope="module")
def planted():
    return planted_triple(3, 40_000, 24)


@pytest.mark.parametrize(("options", "expected"), [
    ({"strategy": "priority", "max_candidates": 1000}, 1),
    ({"strategy": "priority", "max_candidates": 1000, "prune_significant": True}, None),
    ({"strategy": "iterative", "features": "planted"}, 1),
    ({"strategy": "iterative", "features": "planted", "prune_significant": True}, None),
])  # fmt: skip
def test_the_slice_takes_the_place_of_its_parents(planted, tmp_path, options, expected):
    if options.get("features"):
        options = options | {"features": tuple(field for field, _, _ in planted.conditions)}
    assert place(planted, tmp_path, **options)[0] == expected


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "worse_values", "most"), [(11, 0, 3), (12, 0, 3), (0, 6, 9)])
def test_the_default_search_of_a_wide_table(tmp_path, seed, worse_values, most):
    """Nor do the children of values that are worse fill the queue."""
    planted = planted_triple(seed, 150_000, 100, worse_values=worse_values)
    rank, strategy = place(planted, tmp_path)
    assert strategy == "priority"
    assert rank is not None
    assert rank <= most
