"""How long ``slicebeam serve`` takes over a table of many slices, and how much memory.

Run it alone: ``python benchmarks/serve.py`` prints a row for each view, with its bound of 2 s, and the
peak memory of the server, with its bound of 500 MB. ``--slices 43900000`` is the largest table that a
search has made; it takes 8 GB of disk and minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slicebeam.metrics.randomness import splitmix64
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.page.served import state_folder
from slicebeam.pipelines.search.slices_table import SCHEMA
from slicebeam.transforms.encode.predicates import Singleton

ROOT = Path(__file__).parents[1]
ADULT = ROOT / "pipelines" / "demo_data" / "adult_scored.parquet"
SECONDS, MEGABYTES = 2.0, 500
VALUES = 12
# As the program writes it.
PART = 1 << 15


def write_result(folder: Path, slices: int) -> None:
    """Write the result of a small search, with a table of so many slices in the place of its own."""
    command = ["search", "--data", str(ADULT), "--label", "income", "--prediction", "prediction"]
    command += ["--max-cross-size", "1", "--quiet", "--output", str(folder)]
    if code := run([*command, "--exclude-features", "row_id,fnlwgt,score,score_old"]):
        sys.exit(code)
    path = folder / "changelist.json"
    document = json.loads(path.read_text("utf-8"))
    for one in document.pop("files", {}).values():
        (folder / one["name"]).unlink(missing_ok=True)
    write_table(folder / "slices.parquet", slices)
    with (folder / "slices.parquet").open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    document["search"]["slices_fingerprint"] = f"sha256:{digest}"
    path.write_text(json.dumps(document), "utf-8")


def write_table(path: Path, slices: int) -> None:
    """Write a table: all conjunctions of up to three conditions of as many as that takes."""
    number = next(s for s in itertools.count(3) if s + s * (s - 1) // 2 * (s + 1) // 3 >= slices)
    singles = [Singleton(f"feature {i // VALUES}", "==", f"value {i}") for i in range(number)]
    texts = pa.array([None, *map(str, singles)], pa.string())
    parts = pa.array([None, *(one.json_text() for one in singles)], pa.string())
    hashes = np.array([0, *(one.identity() for one in singles)], np.uint64)
    rng = np.random.default_rng(0)
    written = 0
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for codes in blocks(number):
            own = codes[: slices - written]
            written += len(own)
            if len(own):
                writer.write_table(part(own, texts, parts, hashes, rng))


def blocks(number: int) -> Any:
    """Yield the codes of slices [slices, 3], level by level; 0 for none."""
    for level in levels(number):
        for begin in range(0, len(level), PART):
            yield level[begin : begin + PART]


def levels(number: int) -> Any:
    one = np.arange(1, number + 1)
    yield np.column_stack([one, 0 * one, 0 * one])
    first, second = np.triu_indices(number, 1)
    pairs = np.column_stack([first + 1, second + 1])
    yield np.column_stack([pairs, 0 * first])
    begins = np.searchsorted(pairs[:, 0], one, side="right")
    held, size = [], 0
    for at, begin in zip(one, begins, strict=True):
        above = pairs[begin:]
        held.append(np.column_stack([np.full(len(above), at), above]))
        size += len(above)
        if size >= 16 * PART or at == number:
            yield np.concatenate(held)
            held, size = [], 0


def part(
    codes: np.ndarray, texts: pa.Array, parts: pa.Array, hashes: np.ndarray, rng: Any
) -> pa.Table:
    n = len(codes)
    level = (codes > 0).sum(1)
    size = np.maximum(20, rng.lognormal(12 - 2.5 * level, 1.0, n)).astype(np.int64)
    error = 0.4 / np.sqrt(size)
    delta = rng.normal(0, 1, n) * (error + 0.02)
    p = 10.0 ** -np.minimum(300, (delta / error) ** 2 / 4.6)
    q = np.minimum(1, p * 50)
    significant = (q < 0.05) & (delta < 0)
    ids = splitmix64(hashes[codes].sum(1, dtype=np.uint64)).astype(">u8").tobytes().hex().encode()
    columns: dict[str, Any] = {
        "slice_id": pa.array(np.frombuffer(ids, "S16").astype(str), pa.string()),
        "slice": joined(codes, texts, " & "),
        "predicate": pc.binary_join_element_wise('{"all": [', joined(codes, parts, ", "), "]}", ""),
        "cross_size": pa.array(level.astype(np.int8)),
        "n": pa.array(size),
        "share": size / 1e6,
        "metric": pa.array(["accuracy"]).take(pa.array(np.zeros(n, int))),
        "value": 0.85 + delta,
        "value_low": 0.85 + delta - error,
        "value_high": 0.85 + delta + error,
        "value_error": error,
        "reference": np.full(n, 0.85),
        "complement": np.full(n, 0.851),
        "complement_error": error / 10,
        "delta": delta,
        "ci_low": delta - 1.96 * error,
        "ci_high": delta + 1.96 * error,
        "p_value": p,
        "q_value": q,
        "significant": pa.array(significant),
        "impact": size * delta,
        "label": pa.array(np.where(significant, np.where(level > 2, "inherited", "new"), None)),
        "parent": pa.nulls(n, pa.string()),
        "test": pa.array(["exact binomial"]).take(pa.array(np.zeros(n, int))),
        "reason": pa.nulls(n, pa.string()),
        "finding": pa.nulls(n, pa.int32()),
        **{
            f"singleton_{at + 1}": pa.array(codes[:, at].astype(np.int32), mask=codes[:, at] == 0)
            for at in range(3)
        },
    }
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def joined(codes: np.ndarray, texts: pa.Array, separator: str) -> pa.Array:
    columns = [texts.take(pa.array(codes[:, at])) for at in range(3)]
    return pc.binary_join_element_wise(*columns, separator, null_handling="skip")


class Client:
    """A browser's part: the code of the address is exchanged for the token."""

    def __init__(self, address: str) -> None:
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#code=(.+)", address)
        assert found
        self.port = int(found[1])
        self.headers = {
            "Content-Type": "application/json",
            "Origin": f"http://127.0.0.1:{self.port}",
        }
        _, content = self._asked("POST", "session", {"code": found[2]})
        self.headers["X-Slicebeam-Token"] = json.loads(content)["token"]

    def _asked(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request(
            method,
            f"/api/{path}",
            None if body is None else json.dumps(body).encode(),
            self.headers,
        )
        response = connection.getresponse()
        content = response.read()
        assert response.status == 200, (path, content[:500])
        return response, content

    def get(self, path: str) -> Any:
        return json.loads(self._asked("GET", path)[1])

    def post(self, path: str, body: Any) -> Any:
        return json.loads(self._asked("POST", path, body)[1])


def views(client: Client, conditions: list[dict[str, str]]) -> list[tuple[str, str, Any]]:
    """Return the views: name, path, and what is asked; None for GET."""

    def window(offset: int = 0, **options: Any) -> dict[str, Any]:
        return {"filter": {"metric": "accuracy", **options}, "tab": "b", "offset": offset}

    some = [conditions[7]["key"], conditions[100]["key"]]
    worst = client.post("slices", window())["rows"]
    wanted = {"metric": "accuracy", "significant": True, "inherited": False, "level": 3}
    beyond = {"filter": wanted, "tab": "c"}
    single = client.post("slices", window(level=1))["rows"][0]["slice_id"]
    return [
        ("overview", "page", None),
        ("density and totals", "totals", None),
        ("all slices", "slices", window()),
        ("all slices, row 99,900", "slices", window(99_900)),
        ("significant, not inherited", "slices", window(significant=True, inherited=False)),
        ("folded, and all", "slices/beyond", beyond),
        ("one condition", "slices", window(conditions=some[:1])),
        ("two conditions", "slices", window(conditions=some)),
        ("text, many conditions", "slices", window(text="value 1 & feature 2")),
        ("text, none", "slices", window(text="nowhere")),
        ("n and delta", "slices", window(least=1000, most=2000, low=-0.05, high=-0.04)),
        ("better, of two conditions", "slices", window(direction="better", level=2)),
        ("sorted by n", "slices", window(sort="n", descends=True)),
        ("sorted by delta, row 50,000", "slices", window(50_000, sort="delta")),
        ("sorted by q, of a condition", "slices", window(sort="q_value", conditions=some[:1])),
        ("least surely worse", "slices", window(descends=True)),
        ("a slice of three conditions", "slice", {"slice_id": worst[0]["slice_id"]}),
        ("a slice of one, its children", "slice", {"slice_id": single}),
    ]


def peak(pid: int) -> float:
    """Return the largest resident memory of a process in MB."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def cpu_seconds(pid: int) -> float:
    """Return what a process has used of all cores; where others use them too, a view takes longer."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def measure(folder: Path) -> bool:
    """Serve a result and print what that takes; return whether all bounds are kept."""
    began = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "slicebeam.pipelines.commands.cli",
        "serve",
        str(folder),
        "--quiet",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            return measured(server, folder, began)
        finally:
            server.terminate()


def measured(server: subprocess.Popen[str], folder: Path, began: float) -> bool:
    assert server.stdout is not None
    client = Client(server.stdout.readline().strip())
    print(f"started in {time.monotonic() - began:.1f} s")
    building = 0.0
    while (status := client.get("index"))["state"] == "building":
        for one in psutil.Process(server.pid).children():
            with suppress(psutil.Error, OSError):
                building = max(building, peak(one.pid))
        time.sleep(0.2)
    assert status["state"] == "ready", status
    index = next(state_folder(folder).glob("slices-*"))
    print(
        f"index: {status['seconds']:.0f} s, {index.stat().st_size >> 20:,} MB, of "
        f"{(folder / 'slices.parquet').stat().st_size >> 20:,} MB; "
        f"peak memory of the process that builds it {building:.0f} MB"
    )
    kept = True
    print(f"{'view':<32}{'first s':>9}{'its CPU':>9}{'again s':>9}{'of 2 s':>8}")
    for name, path, asked in views(client, client.get("conditions")):
        took, spent = [], []
        for _ in range(2):
            began, used = time.monotonic(), cpu_seconds(server.pid)
            client.get(path) if asked is None else client.post(path, asked)
            took.append(time.monotonic() - began)
            spent.append(cpu_seconds(server.pid) - used)
        kept &= took[0] <= SECONDS
        print(
            f"{name:<32}{took[0]:9.3f}{spent[0]:9.3f}{took[1]:9.3f}{took[0] / SECONDS:8.0%}",
            flush=True,
        )
    held = peak(server.pid)
    print(f"peak memory {held:.0f} MB, {held / MEGABYTES:.0%} of {MEGABYTES} MB")
    return kept and max(held, building) <= MEGABYTES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, help="keeps the result; one that is there is used")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)) / f"{options.slices}"
        if not (folder / "changelist.json").exists():
            write_result(folder, options.slices)
        sys.exit(0 if measure(folder) else 1)


if __name__ == "__main__":
    main()
