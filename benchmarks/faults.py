"""Strikes runs with faults and prints what came of it; exits with 1 if that was anything wrong.

::

    python benchmarks/faults.py                  # as often as each fault says
    python benchmarks/faults.py --times 3        # each so often
    python benchmarks/faults.py --only killed    # those whose names hold this
    python benchmarks/faults.py --engines        # also on clusters of Flink and Spark

A right result is equal to that of an undisturbed run to the byte of ``slices.parquet``; a clear
error is one line or two with exit code 2 or 3 (above 128 where a signal ended the run), after which
the run was resumed, or started again, to the equal result.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults import (
    faults_of_object_storage,
    faults_of_processes,
    faults_of_storage,
    faults_of_surroundings,
)
from tests.faults.faults import ABORTED, CLEAR, EQUAL, Commands, Fault, bench

_HEADER = f"{'fault':<52} {'tried':>6} {'equal':>6} {'error':>6} {'aborted':>7} {'other':>6} {'seconds':>8}"


def main() -> int:
    """Try the faults and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, help="how often each fault is tried")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="faults whose names hold one of these"
    )
    parser.add_argument("--engines", action="store_true", help="also faults of clusters")
    asked = parser.parse_args()
    wrong: list[str] = []
    with ExitStack() as stack:
        place = stack.enter_context(bench(stack.enter_context(Commands())))
        faults: list[Fault] = [
            *faults_of_processes.FAULTS,
            *faults_of_storage.FAULTS,
            *faults_of_surroundings.FAULTS,
            *stack.enter_context(faults_of_object_storage.faults()),
        ]
        if asked.engines:
            from tests.engines.started import Engines
            from tests.faults import faults_of_engines

            engines = stack.enter_context(Engines(place.folder / "engines"))
            faults += faults_of_engines.faults(engines)
        print(_HEADER)
        for fault in faults:
            if any(part in fault.name for part in asked.only):
                begun = time.monotonic()
                tally = fault.tried(place, range(asked.times or fault.times))
                other = tally.other(fault.may)
                print(
                    f"{fault.name:<52} {tally.tried:>6} {tally.found[EQUAL]:>6} "
                    f"{tally.found[CLEAR]:>6} {tally.found[ABORTED]:>7} {sum(other.values()):>6} "
                    f"{time.monotonic() - begun:>8.1f}",
                    flush=True,
                )
                for what, count in other.items():
                    wrong.append(f"{fault.name}, {count} times: {what}")
                    print(wrong[-1], file=sys.stderr, flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
