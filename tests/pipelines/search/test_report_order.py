"""The order in which the slices of a check are reported."""

from types import SimpleNamespace

import numpy as np
import pytest

from slicebeam.pipelines.search.report_order import given_order


@pytest.mark.parametrize("metric", ["accuracy", "error_rate", "loss"])
def test_slices_without_a_delta_are_last_whatever_the_metric(metric):
    delta = np.array([np.nan, 0.1, -0.1, np.nan, 0.0])
    measured = SimpleNamespace(
        name=metric, delta=delta, low=delta - 0.05, high=delta + 0.05, significant=np.zeros(5, bool)
    )
    results = SimpleNamespace(metrics=[measured], keys=np.arange(1, 6))
    order = given_order(results)
    assert order.positions[0] == (2 if metric == "accuracy" else 1)
    assert order.positions[-2:].tolist() == [0, 3]
    assert order.by_metric[0].tolist() == order.positions.tolist()
