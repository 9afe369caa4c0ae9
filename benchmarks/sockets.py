"""Two worker processes at Unix sockets against the same at Beam's ports: pairs of runs, in turn.

    python benchmarks/sockets.py [--millions 4] [--pairs 5]

Searches Adult, repeated to some million rows, by ``--runner-config direct_multi``. Prints the wall and
CPU seconds of each run, and the ratio of the pairs: below 1, Unix sockets are faster.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Sequence

ADULT = Path(__file__).parents[1] / "pipelines" / "demo_data" / "adult_scored.parquet"
OPTIONS = (
    *("--label=income", "--prediction=prediction", "--quiet", "--runner-config=direct_multi"),
    "--exclude-features=row_id,score,score_old,prediction_old",
)
BEAMS, PRIVATE = "--at-ports", "--at-sockets"
MILLION = 1_000_000


def at_ports(pool: str, sockets: Path) -> Any:
    """Return Beam's runner as it is, which listens on every address."""
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
    from apache_beam.transforms.environments import ExternalEnvironment

    return FnApiRunner(default_environment=ExternalEnvironment(pool))


def search(how: str, arguments: Sequence[str]) -> None:
    """Run the command in this process, which it ends."""
    from slicebeam.pipelines import cli
    from slicebeam.runner_configs import in_process

    if how == BEAMS:
        in_process.in_process_runner = at_ports
    sys.argv[1:] = arguments
    cli.main()


def measured(how: str, data: Path, output: Path) -> tuple[float, float]:
    """Return wall and CPU seconds of a run and of its workers."""
    command = [sys.executable, __file__, how, "search", *OPTIONS]
    begun, before = time.perf_counter(), os.times()
    subprocess.run([*command, f"--data={data}", f"--output={output}"], check=True)
    wall, after = time.perf_counter() - begun, os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])
    return wall, cpu


def main() -> None:
    """Run the pairs and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "adult.parquet"
        table = pq.read_table(ADULT)
        repeats = -(-given.millions * MILLION // len(table))
        pq.write_table(pa.concat_tables([table] * repeats).combine_chunks(), data)
        ratios = []
        print("pair  ports: wall s  CPU s  sockets: wall s  CPU s  ratio of wall")
        for pair in range(given.pairs):
            found = {}
            # Each is first in every other pair.
            for how in (BEAMS, PRIVATE)[:: 1 if pair % 2 else -1]:
                found[how] = measured(how, data, folder / f"{pair}{how}")
            ports, sockets = found[BEAMS], found[PRIVATE]
            outputs = [folder / f"{pair}{how}" / "slices.parquet" for how in found]
            if len({path.read_bytes() for path in outputs}) != 1:
                raise SystemExit("the two have found different slices")
            ratios.append(sockets[0] / ports[0])
            print(
                f"{pair + 1:4}  {ports[0]:13.1f}  {ports[1]:5.1f}  {sockets[0]:15.1f}  "
                f"{sockets[1]:5.1f}  {ratios[-1]:13.2f}"
            )
        print(f"median of the ratios: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] in ([BEAMS], [PRIVATE]):
        search(sys.argv[1], sys.argv[2:])
    main()
