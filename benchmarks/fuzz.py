"""Mutated inputs of every kind, and what became of each.

``python benchmarks/fuzz.py --count 10000`` prints a table; a failure is printed with what
makes it again (``--kind csv --only 123 --seed 0``) and its smallest file is kept.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fuzzing.case import PROBLEMS, Verdict
from tests.fuzzing.kinds import KINDS, case
from tests.fuzzing.pool import Ask, run_cases
from tests.fuzzing.shrinking import smallest

# Shares of a run: data is what most runs get wrong.
SHARES = {
    "parquet": 4,
    "csv": 5,
    "jsonl": 4,
    "tfrecord": 3,
    "yaml": 2,
    "changelist": 3,
    "command": 4,
}


# Failures whose files are made small: most of many are one.
_MOST_KEPT = 10


def asked(count: int, seed: int, kinds: list[str]) -> list[Ask]:
    """Return the cases of a run, kind by kind in turn."""
    shares = {kind: SHARES[kind] for kind in kinds}
    total = sum(shares.values())
    found = [
        ((number + 0.5) / share, kind, number)
        for kind, share in shares.items()
        for number in range(count * share // total)
    ]
    found += [
        (float("inf"), kinds[0], count * shares[kinds[0]] // total + more)
        for more in range(count - len(found))
    ]
    return [Ask(kind, seed, number) for _, kind, number in sorted(found)]


def report(verdicts: list[Verdict]) -> str:
    """Return the table of a run."""
    heads = (
        "kind",
        "cases",
        "exit 0",
        "1",
        "2",
        "3",
        *PROBLEMS,
        "judged",
        "unnoticed",
        "slowest s",
    )
    rows = []
    for kind in (*KINDS, "all"):
        own = [verdict for verdict in verdicts if kind in (verdict.kind, "all")]
        if not own:
            continue
        codes = collections.Counter(verdict.code for verdict in own)
        problems = collections.Counter(verdict.problem for verdict in own)
        slowest = max(own, key=lambda verdict: verdict.seconds)
        rows.append(
            [
                kind,
                len(own),
                *(codes[code] for code in (0, 1, 2, 3)),
                *(problems[problem] for problem in PROBLEMS),
                sum(verdict.judged for verdict in own),
                sum(verdict.unnoticed for verdict in own),
                f"{slowest.seconds:.1f} ({slowest.kind} {slowest.number})",
            ]
        )
    lines = [
        "| " + " | ".join(map(str, row)) + " |" for row in (heads, ["---"] * len(heads), *rows)
    ]
    return "\n".join(lines)


def main() -> int:
    """Run the cases, print the table, and return 1 where one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000, help="cases of all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--kind", action="append", choices=list(KINDS), help="only these; repeatable"
    )
    parser.add_argument("--only", type=int, action="append", help="numbers of cases; repeatable")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument(
        "--keep", type=Path, default=Path("fuzz-failures"), help="folder of failures"
    )
    given = parser.parse_args()
    kinds = given.kind or list(KINDS)
    cases = asked(given.count, given.seed, kinds)
    if given.only:
        cases = [Ask(kind, given.seed, number) for kind in kinds for number in given.only]
    verdicts: list[Verdict] = []
    begun = time.perf_counter()
    for verdict in run_cases(cases, workers=given.workers):
        verdicts.append(verdict)
        if verdict.problem:
            print(told(verdict), flush=True)
        elif given.only:
            print(
                f"{verdict.kind} {verdict.number}: exit {verdict.code} {verdict.mutations} {verdict.said}"
            )
        if len(verdicts) % 500 == 0:
            print(f"{len(verdicts)} cases, {time.perf_counter() - begun:.0f} s", flush=True)
    print(f"\nseed {given.seed}, {len(verdicts)} cases in {time.perf_counter() - begun:.0f} s\n")
    print(report(verdicts))
    failures = [verdict for verdict in verdicts if verdict.problem]
    for verdict in failures[:_MOST_KEPT]:
        print(f"kept: {kept(verdict, given.keep, given.workers)}", flush=True)
    return int(bool(failures))


def kept(verdict: Verdict, folder: Path, workers: int) -> Path:
    """Write the smallest file that fails as a verdict says, and the command, and return where."""
    failed = case(verdict.kind, verdict.seed, verdict.number)
    own = folder / f"{verdict.kind}-{verdict.seed}-{verdict.number}"
    own.mkdir(parents=True, exist_ok=True)
    files = dict(failed.files)
    if failed.mutated:
        files[failed.mutated] = smallest(verdict, workers=workers)
    for name, content in files.items():
        (own / name).write_bytes(content)
    command = " ".join(map(repr, failed.arguments))
    (own / "failure.txt").write_text(f"{command}\n{told(verdict)}\n", "utf-8", "replace")
    return own


def told(verdict: Verdict) -> str:
    """Return a failure and how it is made again."""
    again = f"--kind {verdict.kind} --seed {verdict.seed} --only {verdict.number}"
    detail = verdict.detail.strip()[-900:]
    return f"{verdict.problem.upper()} {again} {verdict.mutations}\n  {verdict.said.strip()[-400:]}\n  {detail}"


if __name__ == "__main__":
    sys.exit(main())
