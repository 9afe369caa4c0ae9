"""Metrics are found by name, and share their outcome cells."""

from __future__ import annotations

import pytest

from slicebeam.metrics.base import CellSpace
from slicebeam.metrics.errors import InputError
from slicebeam.metrics.registry import cell_space, metric, metrics


def test_every_metric_is_found_by_its_name() -> None:
    assert list(metrics()) == sorted(metrics())
    assert {"accuracy", "error_rate"} <= set(metrics())
    for name, found in metrics().items():
        assert found.name == name
        assert metric(name) is found
        assert found.title
        assert found.range[0] < found.range[1]
        assert found.indicators


def test_an_unknown_metric_names_its_neighbour() -> None:
    with pytest.raises(InputError, match=r"'acuracy'.*accuracy"):
        metric("acuracy")


def test_metrics_that_need_the_same_bits_share_cells() -> None:
    assert cell_space(["accuracy", "error_rate"], "overall") == CellSpace(("wrong",), "overall")
    paired = cell_space(["accuracy"], "baseline")
    assert paired.size == 4
    assert paired.holds("wrong").tolist() == [False, True, False, True]
    assert paired.holds("wrong", old=True).tolist() == [False, False, True, True]
    two = CellSpace(("label", "wrong"), "overall")
    assert two.size == 4
    assert two.holds("wrong").tolist() == [False, False, True, True]
