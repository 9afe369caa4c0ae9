"""The same searches on every engine: results to the byte, wall and CPU seconds, bytes shuffled.

    python benchmarks/engines.py [--only flink-cluster-process,prism] [--ways batch] [--write]

Starts the clusters itself, from packages that it loads once (see tests/engines/programs.py).
Prints tables, and with --write puts them into docs/how-to/engines.md. CPU seconds are of all processes that
a run starts, and beside them of the cluster's; both are sampled, so that what a process did in its
last tenth of a second is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from slicebeam.runner_configs.flink import ask
from tests.engines import programs
from tests.engines.started import Engines

if TYPE_CHECKING:
    from typing_extensions import Self

    from tests.engines.clusters import Cluster

ROOT = Path(__file__).parents[1]
ADULT = ROOT / "pipelines" / "demo_data" / "adult_scored.parquet"
PAGE = ROOT / "docs" / "how-to" / "engines.md"
FEATURES = "age,workclass,education,marital-status,occupation,hours-per-week,native-country"
COMMON = ("--label=income", "--prediction=prediction", f"--features={FEATURES}", "--quiet")
WAYS = {
    "batch": (),
    "iterative": ("--strategy=iterative",),
    "priority": ("--strategy=priority", "--max-candidates=400"),
    "baseline": ("--baseline-prediction=prediction_old", "--alternative=both"),
}
ENGINES = {
    "direct": "in process",
    "direct_multi": "in process, 2 worker processes",
    "prism": "Prism 2.77.0",
    "flink-embedded": "Flink 1.19 in the job server",
    "flink-cluster-loopback": "Flink 1.19.3, 2 task managers, threads of the run",
    "flink-cluster-process": "Flink 1.19.3, 2 task managers, worker processes of their own",
    "spark-embedded": "Spark 3.5.0 in the job server",
    "spark-cluster-process": "Spark 3.5.0, 2 workers, worker processes of their own",
}
# How often Adult is repeated, and the level up to which slices are counted.
SHUFFLED = [(1, 2), (10, 2), (100, 2), (300, 2), (1, 3), (10, 3), (100, 3)]


class CpuSampler(threading.Thread):
    """Adds up the CPU seconds of processes and of those that they start; a context.

    Parameters
    ----------
    pids : of the processes
    """

    def __init__(self, *pids: int) -> None:
        super().__init__(daemon=True)
        self.pids = pids
        self._over = threading.Event()
        self._seen: dict[tuple[int, float], float] = {}
        self._before = self._sample()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    @property
    def seconds(self) -> float:
        return sum(self._seen.values()) - self._before

    def run(self) -> None:
        while not self._over.wait(0.1):
            self._sample()
        self._sample()

    def _sample(self) -> float:
        for pid in self.pids:
            for process in _tree(pid):
                _note(process, self._seen)
        return sum(self._seen.values())


def _tree(pid: int) -> list[psutil.Process]:
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _note(process: psutil.Process, seen: dict[tuple[int, float], float]) -> None:
    try:
        times = process.cpu_times()
        seen[process.pid, process.create_time()] = times.user + times.system
    except psutil.NoSuchProcess:
        return


def cluster_of(engines: Engines, name: str) -> Cluster | None:
    if "-cluster-" not in name:
        return None
    return engines.flink if name.startswith("flink") else engines.spark


def measured(engines: Engines, name: str, way: str, folder: Path) -> dict[str, Any]:
    """Run a search on an engine, and return what it took and what it wrote."""
    output = folder / f"{name}-{way}"
    command = [
        sys.executable,
        "-m",
        "slicebeam.pipelines.commands.cli",
        "search",
        f"--data={ADULT}",
    ]
    command += [f"--output={output}", *COMMON, *WAYS[way], *engines.arguments(name)]
    cluster = cluster_of(engines, name)
    pids = cluster.pids() if cluster else []
    begun = time.perf_counter()
    with CpuSampler(*pids) as of_cluster:
        process = subprocess.Popen(command)
        try:
            with CpuSampler(process.pid) as of_run:
                code = process.wait()
        finally:
            process.terminate()
    if code:
        raise SystemExit(f"{name}, {way}: exit code {code}")
    table = (output / "slices.parquet").read_bytes()
    return {
        "engine": name,
        "way": way,
        "wall": time.perf_counter() - begun,
        "cpu": of_run.seconds,
        "cluster_cpu": of_cluster.seconds if cluster else None,
        "hash": hashlib.sha256(table).hexdigest()[:12],
    }


def shuffled(engines: Engines, name: str, folder: Path) -> list[list[str]]:
    """Return what is sent between workers where every block is dealt out to both of them.

    Counting does that only where blocks are fewer than workers, which a search of this size never
    comes to: here it is made to.
    """
    rows = []
    for repeats, level in SHUFFLED:
        data = folder / f"adult-{repeats}.parquet"
        if not data.exists():
            table = pq.read_table(ADULT)
            pq.write_table(pa.concat_tables([table] * repeats), data)
        output = folder / f"shuffled-{repeats}-{level}"
        # Chunks as many whatever the rows, and the same slices.
        given = [f"--data={data}", f"--output={output}", *COMMON, f"--max-cross-size={level}"]
        given += [f"--chunk-rows={4100 * repeats}", f"--min-slice-size={20 * repeats}"]
        given += [*engines.arguments(name), "--runner-option=smallest_job_seconds=60"]
        command = [sys.executable, __file__, "--dealt", "search", *given]
        subprocess.run(command, check=True)
        document = json.loads((output / "changelist.json").read_text("utf-8"))
        record = document["search"]["iterations"][0]
        rows.append(
            [
                f"{16281 * repeats:,}",
                f"{record['nonempty']:,}",
                f"{record['shuffled_bytes']:,}",
                grouped(engines.flink) if name.startswith("flink-cluster") else "",
                f"{record['wall_seconds']:.1f}",
            ]
        )
    return rows


def grouped(cluster: Cluster) -> str:
    """Return the bytes that the last job of a Flink cluster read to group them, by its REST API."""
    jobs = ask(f"http://{cluster.pages}/jobs/overview")["jobs"]
    last = max(jobs, key=lambda job: job["start-time"])["jid"]
    while True:
        vertices = ask(f"http://{cluster.pages}/jobs/{last}")["vertices"]
        groups = [one["metrics"] for one in vertices if one["name"].startswith("GroupReduce")]
        # Task managers report what they counted some time after the end.
        if all(counted["read-bytes-complete"] for counted in groups):
            return f"{sum(counted['read-bytes'] for counted in groups):,}"
        time.sleep(0.2)


def dealt(arguments: list[str]) -> int:
    """Run the command with the shards of each block dealt out to two workers."""
    from slicebeam.pipelines.commands.cli import run
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.search import counter
    from slicebeam.transforms.count.tables import WorkItem

    run_job = Engine.run

    def both(blocks: Any, shards: Any, *_: Any) -> list[WorkItem]:
        halves = [tuple(shards[half::2]) for half in range(2)]
        return [WorkItem(block, half) for block in blocks for half in halves if half]

    def counting_alone(
        self: Engine, build: Any, stage: str, seconds: float | None = None, **more: Any
    ) -> Any:
        # The other jobs shuffle nothing: they stay in this process.
        is_counting = stage.startswith("iteration")
        return run_job(self, build, stage, None if is_counting else seconds, **more)

    counter.work_items = both
    Engine.run = counting_alone
    return run(arguments)


def table_of(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(found: list[dict[str, Any]], shuffles: list[list[str]]) -> str:
    """Return the tables."""
    expected = {one["way"]: one["hash"] for one in found if one["engine"] == "direct"}
    rows = []
    for one in found:
        if one["way"] in expected and one["hash"] != expected[one["way"]]:
            raise SystemExit(f"{one['engine']}, {one['way']}: another result than in process")
        cluster = one["cluster_cpu"]
        rows.append(
            [
                ENGINES[one["engine"]],
                one["way"],
                f"{one['wall']:.1f}",
                f"{one['cpu']:.1f}",
                "" if cluster is None else f"{cluster:.1f}",
                f"`{one['hash']}`",
            ]
        )
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    jvm = re.search(r'"([\d._]+)"', java.stderr)
    text = (
        f"{platform.machine()}, {os.cpu_count()} cores; Python {platform.python_version()}; "
        f"apache-beam {version('apache-beam')}; Java {jvm.group(1) if jvm else 'none'}; Flink "
        f"{programs.FLINK}; Spark {programs.SPARK}; load of the machine before the "
        f"first run {LOAD:.1f}\n\n"
    )
    header = [
        "engine",
        "search",
        "wall s",
        "CPU s",
        "CPU s of the cluster",
        "hash of slices.parquet",
    ]
    text += table_of(header, rows)
    if shuffles:
        text += "\n\n" + table_of(
            ["examples", "slices", "bytes shuffled", "by Flink's REST API", "wall s"], shuffles
        )
    return text


def write(text: str) -> None:
    """Put the tables between the marks of the page."""
    whole = PAGE.read_text("utf-8")
    begin, end = "<!-- measured -->", "<!-- end of measured -->"
    before, rest = whole.split(begin)
    PAGE.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}", "utf-8")


LOAD = os.getloadavg()[0]


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--dealt"]:
        raise SystemExit(dealt(sys.argv[2:]))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(ENGINES))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--shuffled", default="flink-cluster-process", help="engine, or nothing")
    parser.add_argument("--json", type=Path, help="file to add each run to")
    parser.add_argument("--write", action="store_true", help="into docs/how-to/engines.md")
    asked = parser.parse_args()
    # Whoever ends this ends the clusters with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found: list[dict[str, Any]] = []
    shuffles: list[list[str]] = []
    with tempfile.TemporaryDirectory() as name, Engines(Path(name) / "clusters") as engines:
        folder = Path(name)
        for engine in filter(None, asked.only.split(",")):
            for way in asked.ways.split(","):
                found.append(measured(engines, engine, way, folder))
                sys.stderr.write(f"{json.dumps(found[-1])}\n")
        if asked.shuffled:
            shuffles = shuffled(engines, asked.shuffled, folder)
    if asked.json:
        asked.json.write_text(json.dumps({"runs": found, "shuffled": shuffles}, indent=1))
    text = page(found, shuffles)
    sys.stdout.write(f"{text}\n")
    if asked.write:
        write(text)


if __name__ == "__main__":
    main()
