"""``--plan`` and ``--repeat``: simulations of a method, without calls."""

from __future__ import annotations

import math
import tempfile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.kinds import Method
from slicebeam.metrics.shift.allocation import batch_size, smallest_budget
from slicebeam.metrics.shift.estimates import Strata
from slicebeam.metrics.shift.simulation import Items, calls_for_target, churned, qualities
from slicebeam.pipelines.changelist.document import ShiftChangeList
from slicebeam.pipelines.config.shift import parse_budget
from slicebeam.pipelines.run.open_run import open_run
from slicebeam.pipelines.run.stage import Stage
from slicebeam.pipelines.shift.assessment import check_budget
from slicebeam.pipelines.shift.focus import focus_weights
from slicebeam.pipelines.shift.run import priced, read_sliced_pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slicebeam.pipelines.config.shift import ShiftConfig
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.stage import Observer
    from slicebeam.pipelines.shift.pool import LabelledPool

# What an update may change: shares of the predictions, and a whole new API.
CHURNS: tuple[float | None, ...] = (0.02, 0.05, 0.10, None)
_BUDGETS = (250, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
# Methods that a plan holds against each other.
_PLANNED: tuple[Method, ...] = ("plus", "masa", "proportional")
_RUNS = 100
# What counts as a smaller error: less may be chance of so many runs.
_CLEARLY_LESS = 0.95
# Items that are simulated at most: a larger pool is no harder, and its sample no smaller.
_MOST_ITEMS = 1_000_000
_DEFAULT_TARGET = 0.01
# Numbers of calls at which the error is measured on the way to the target.
_CHECKS = 60


class MethodQuality(NamedTuple):
    """The quality of a method on recorded answers, over R runs, as ``--repeat --json`` prints it.

    ``mse_frobenius``: mean squared Frobenius error of the new matrix after the budget.
    ``q95_frobenius``: error below which 95 % of the runs are. ``accuracy_coverage``: share of runs
    whose interval of the accuracy contains the true one. ``cell_coverage``: mean share of runs
    whose interval of a cell does, of cells that were predicted. ``target_error``: the error that is
    aimed at, ``--target-error`` or 0.01. ``calls_for_target``: calls from which 95 % of the runs
    have at most that error; None if the budget does not suffice.
    """

    method: Method
    budget: int
    repeat: int
    mse_frobenius: float
    q95_frobenius: float
    accuracy_bias: float
    accuracy_coverage: float
    cell_coverage: float
    target_error: float
    calls_for_target: int | None


class BudgetPlan(NamedTuple):
    """The expected results of a budget.

    ``method``, ``churn``, ``budget``: the plan; a churn of None is a whole new API. ``cost``: of
    the calls; None without a price. ``q95_frobenius``: error below which 95 % of the runs are.
    ``accuracy_width``, ``cell_width``: mean widths of the intervals.
    """

    method: Method
    churn: float | None
    budget: int
    cost: float | None
    q95_frobenius: float
    accuracy_width: float
    cell_width: float


def measure(
    config: ShiftConfig, engine: Engine, observer: Observer, *, resume: bool
) -> MethodQuality:
    """Return how good the method is on recorded answers."""
    runs = config.repeat or 1
    (pool,) = _read(config, engine, observer, resume=resume, methods=[config.used_method])
    strata, items = _simulated(pool, config.focus)
    budget = _budget(config, strata)
    check_budget(strata, config.used_method, budget)
    observer.stage(Stage(f"running --method {config.used_method} {runs:,} times"))
    found = qualities(
        strata,
        items,
        config.used_method,
        _checks(config.used_method, strata, budget),
        runs,
        config.seed,
        confidence=config.confidence,
    )
    last = found[-1]
    target = config.target_error or _DEFAULT_TARGET
    calls = calls_for_target(found, target)
    return MethodQuality(
        config.used_method,
        budget,
        runs,
        last.mean_squared,
        last.quantile(),
        last.accuracy_bias,
        last.accuracy_coverage,
        last.cell_coverage,
        target,
        None if calls is None else math.ceil(calls),
    )


def plan(
    config: ShiftConfig, engine: Engine, observer: Observer, *, resume: bool
) -> list[BudgetPlan]:
    """Return what each budget would give, by method and by how much an update changes."""
    price, _ = priced(config)
    runs = config.repeat or _RUNS
    methods = _PLANNED if config.method is None else (config.method,)
    # Of the methods, only plus has a signed difficulty.
    read: dict[bool, Method] = {method == "plus": method for method in methods}
    pools = _read(config, engine, observer, resume=resume, methods=list(read.values()))
    by_sign = dict(zip(read, pools, strict=True))
    planned = []
    for method in methods:
        strata, items = _simulated(by_sign[method == "plus"], config.focus)
        budgets = _budgets(config, strata, method)
        if items.old is None:
            raise TypeError("a plan without old predictions")
        label = np.repeat(strata.row, strata.sizes)
        for churn in CHURNS:
            what = (
                "a completely new API"
                if churn is None
                else f"{churn:.0%} of the predictions changed"
            )
            observer.stage(Stage(f"simulating --method {method}, {what}"))
            new = churned(items.old, label, strata.old_matrix, churn, runs, config.seed)
            found = qualities(
                strata,
                Items(items.identity, new, items.old),
                method,
                budgets,
                runs,
                config.seed,
                confidence=config.confidence,
            )
            planned += [
                BudgetPlan(
                    method,
                    churn,
                    each.calls,
                    None if price is None else each.calls * price,
                    each.quantile(),
                    each.accuracy_width,
                    each.cell_width,
                )
                for each in found
            ]
    return planned


class BetterMethod(NamedTuple):
    """A method with a smaller error than ``plus``: their ratio, the geometric mean over the budgets."""

    churn: float | None
    method: Method
    ratio: float


def better_methods(planned: Sequence[BudgetPlan]) -> list[BetterMethod]:
    """Return for each churn the method that errs at least 5 % less than ``plus``, if there is one."""
    errors: dict[tuple[float | None, Method], dict[int, float]] = {}
    for one in planned:
        errors.setdefault((one.churn, one.method), {})[one.budget] = one.q95_frobenius
    better = []
    for churn in dict.fromkeys(one.churn for one in planned):
        ratios: dict[Method, float] = {}
        plus = errors.get((churn, "plus"), {})
        for method in _PLANNED[1:]:
            other = errors.get((churn, method), {})
            both = [(other[n], plus[n]) for n in plus if n in other and other[n] > 0 < plus[n]]
            if both:
                ratios[method] = math.exp(sum(math.log(a / b) for a, b in both) / len(both))
        best = min(ratios, key=lambda method: ratios[method], default=None)
        if best is not None and ratios[best] <= _CLEARLY_LESS:
            better.append(BetterMethod(churn, best, ratios[best]))
    return better


def _read(
    config: ShiftConfig,
    engine: Engine,
    observer: Observer,
    *,
    resume: bool,
    methods: Sequence[Method],
) -> list[LabelledPool]:
    """Return all items of the pool, or as many as are simulated, stratified as each method wants."""
    if not config.output:
        with tempfile.TemporaryDirectory(prefix="slicebeam-") as folder:
            own = config.model_copy(update={"output": folder})
            return _read(own, engine, observer, resume=resume, methods=methods)
    with open_run(config, engine, observer, ShiftChangeList, resume=resume, publishes=False) as run:
        pools = []
        for method in methods:
            own = config.model_copy(update={"method": method, "api": None})
            sliced = read_sliced_pool(own, run, None, _MOST_ITEMS)
            pools.append(sliced.pool)
    return pools


def _checks(method: Method, strata: Strata, budget: int) -> list[int]:
    """Return the numbers of calls at which the error is measured; the budget is the last."""
    least = min(smallest_budget(strata), budget)
    checks = np.unique(np.geomspace(max(least, budget // 200), budget, _CHECKS).astype(np.int64))
    checks = checks[checks >= least]
    if method == "masa":
        # It looks at the answers where a batch ends: measured elsewhere, it would ask other items
        # than an assessment does.
        ends = [0]
        while ends[-1] < budget:
            ends.append(min(ends[-1] + batch_size(ends[-1]), budget))
        checks = np.unique(np.array(ends)[np.searchsorted(ends, checks)])
    return [int(check) for check in checks]


def _simulated(pool: LabelledPool, focus: str | None) -> tuple[Strata, Items]:
    """Return the pool that is simulated: all of it, or of each stratum as large a share.

    The last column of its matrices is "no result".
    """
    items = pool.items
    share = min(1.0, _MOST_ITEMS / pool.rows)
    sizes = np.minimum(
        np.maximum(np.rint(pool.sizes * share).astype(np.int64), np.minimum(pool.sizes, 2)),
        np.diff(pool.starts),
    )
    begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    kept = np.repeat(pool.starts[:-1] - begins, sizes) + np.arange(int(sizes.sum()))
    classes = len(pool.classes) + 1
    old: NDArray[np.int32] | None = None
    counts = None
    if items.old is not None:
        old = items.old[kept]
        stratum = np.repeat(np.arange(sizes.size), sizes)
        counts = np.bincount(stratum * classes + old, minlength=sizes.size * classes)
        counts = counts.reshape(sizes.size, classes)
    if items.recorded is not None:
        recorded = items.recorded[kept]
        new = np.where(recorded < 0, classes - 1, recorded)
    elif old is not None:
        new = old
    else:
        raise TypeError("a pool without answers and without old predictions")
    shape, weights = (pool.labels.size, classes), focus_weights(focus, pool)
    strata = Strata(pool.stratum_row, sizes, shape, pool.labels, counts, weights)
    return strata, Items(items.identity[kept], new, old)


def _budget(config: ShiftConfig, strata: Strata) -> int:
    total = int(strata.sizes.sum())
    if config.budget is None:
        return total
    return min(parse_budget(config.budget).calls(*priced(config)), total)


def _budgets(config: ShiftConfig, strata: Strata, method: Method) -> Sequence[int]:
    """Return the numbers of calls that a plan shows."""
    most = _budget(config, strata)
    budgets = [budget for budget in _BUDGETS if smallest_budget(strata) <= budget < most]
    if config.budget is not None or not budgets:
        budgets.append(most)
    check_budget(strata, method, budgets[-1])
    return budgets
