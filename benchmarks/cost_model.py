"""How far the estimates of a dry run are from what searches cost: measured against estimated.

    python benchmarks/cost_model.py --copies 1,16,64

Each search runs in this process, on so many copies of the census data of the package. Printed are
the CPU seconds that were estimated from a sample, those that were measured, and their ratio.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.run.engine import Engine, runner_config
from slicebeam.pipelines.search.dry_run import IMPORT_SECONDS, plan_of
from slicebeam.pipelines.search.search import run_search
from slicebeam.pipelines.show.terminal import Terminal
from tests.planted import planted_triple

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.pipelines.config.search import SearchConfig
    from slicebeam.pipelines.run.engine import Cost
    from slicebeam.pipelines.search.dry_run import RunPlan

ADULT = Path(__file__).parents[1] / "pipelines" / "demo_data" / "adult_scored.parquet"
ROLES = ("row_id", "score", "prediction_old", "score_old")
_SHAPES = (
    *((10_000, 50), (50_000, 40), (150_000, 50), (47_655, 65)),
    *((30_000, 80), (300_000, 30), (1_000_000, 30)),
)
# What the script's own imports, done before the clock starts, take of what a run is estimated to.
_CASES: dict[str, dict[str, Any]] = {
    "accuracy": {"prediction": "prediction"},
    "two models": {"prediction": "prediction", "baseline_prediction": "prediction_old"},
    "auc": {"score": "score", "metric": ("auc",), "positive_class": "1"},
    "priority": {"prediction": "prediction", "strategy": "priority"},
}


class _Measured(Engine):
    """Notes what each job cost."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.costs: dict[str, float] = {}

    def run(self, build: Callable[[Any], Any], stage: str, *args: Any, **more: Any) -> Cost:
        cost = super().run(build, stage, *args, **more)
        self.costs[stage] = self.costs.get(stage, 0.0) + cost.cpu_seconds
        return cost


def copied(copies: int, folder: Path) -> Path:
    """Return the data so many times over, in row groups of a quarter million."""
    path = folder / f"adult{copies}.parquet"
    table = pa.concat_tables([pq.read_table(ADULT)] * copies).combine_chunks()
    pq.write_table(table, path, row_group_size=1 << 18)
    return path


def measured(config: SearchConfig) -> tuple[float, dict[str, float]]:
    """Return CPU seconds, and those of each job."""
    begun = time.process_time()
    with _Measured(runner_config("direct", ())) as engine:
        run_search(config, engine, Terminal(quiet=True))
        return time.process_time() - begun, engine.costs


def main() -> None:
    """Print estimates and measurements."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--copies", default="1,16,64")
    parser.add_argument(
        "--shapes", action="store_true", help="synthetic tables by --strategy batch"
    )
    arguments = parser.parse_args()
    if arguments.shapes:
        _shapes()
        return
    copies = [int(one) for one in arguments.copies.split(",")]
    print("| search | examples | CPU s est. | CPU s | ratio |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="slicebeam-") as name:
        folder = Path(name)
        # The first run of a process imports what the others find imported.
        _case("accuracy", copied(1, folder), folder)
        for number in copies:
            data = copied(number, folder)
            for case in _CASES:
                print(_row(case, *_case(case, data, folder)))
            data.unlink()


def _shapes() -> None:
    """Print what counting and testing every conjunction is estimated to take, and what it took."""
    print(
        "| rows | features | conjunctions | CPU s est. | CPU s | ratio |\n|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory(prefix="slicebeam-") as name:
        data = Path(name) / "data.parquet"
        for rows, features in _SHAPES:
            pq.write_table(
                pa.table(planted_triple(3, rows, features, least=2, most=rows).columns), data
            )
            options = {"data": (str(data),), "label": "label", "prediction": "prediction"}
            config = search_config(options | {"strategy": "batch", "output": f"{name}/out"})
            with Engine(runner_config("direct", ())) as engine:
                facts = plan_of(config, engine).facts
            _, costs = measured(config)
            estimated, taken = facts["batch_seconds"], costs["iteration-1"]
            print(
                f"| {rows:,} | {features} | {facts['conjunctions']:,} | {estimated:.1f} | "
                f"{taken:.1f} | {estimated / taken:.2f} |",
                flush=True,
            )


def _case(case: str, data: Path, folder: Path) -> tuple[RunPlan, float]:
    options = dict(_CASES[case])
    used = {value for value in options.values() if isinstance(value, str)}
    if case == "auc":
        table = pq.read_table(data)
        income = table.column("income")
        options["positive_class"] = str(max(income.unique().to_pylist()))
        left_out = {*ROLES, "prediction"} - used
    else:
        left_out = set(ROLES) - used
    config = search_config(
        {
            "data": (str(data),),
            "label": "income",
            "output": str(folder / "out"),
            "exclude_features": tuple(sorted(left_out)),
            **options,
        }
    )
    with Engine(runner_config("direct", ())) as engine:
        planned = plan_of(config, engine)
    return planned, measured(config)[0]


def _row(case: str, planned: RunPlan, seconds: float) -> str:
    estimated = planned.seconds - IMPORT_SECONDS
    bound = "≤ " if any(job.is_bound for job in planned.jobs) else ""
    return (
        f"| {case} | {planned.facts['rows']:,} | {bound}{estimated:.2f} | {seconds:.2f} | "
        f"{estimated / seconds:.2f} |"
    )


if __name__ == "__main__":
    main()
