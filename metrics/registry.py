"""Finds the metrics by their names: every module in ``slicebeam.metrics.measures`` is one."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from slicebeam.metrics import measures
from slicebeam.metrics.base import CellSpace, Comparison, Metric
from slicebeam.metrics.errors import unknown_name

if TYPE_CHECKING:
    from collections.abc import Sequence


@cache
def metrics() -> dict[str, Metric]:
    """Return all metrics by name, sorted."""
    modules = sorted(module.name for module in pkgutil.iter_modules(measures.__path__))
    found = [import_module(f"{measures.__name__}.{name}").METRIC for name in modules]
    return {metric.name: metric for metric in found}


def metric(name: str) -> Metric:
    """Return a metric.

    Raises
    ------
    InputError
        There is no metric of this name.
    """
    if name not in metrics():
        raise unknown_name("metric", name, metrics())
    return metrics()[name]


def cell_space(names: Sequence[str], comparison: Comparison) -> CellSpace:
    """Return the cells that serve all of these metrics."""
    indicators = sorted({bit for name in names for bit in metric(name).indicators})
    return CellSpace(tuple(indicators), comparison)
