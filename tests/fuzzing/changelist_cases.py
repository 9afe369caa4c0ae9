"""Mutated ChangeLists: for their domains, slices and options, and to compare with."""

from __future__ import annotations

import io
import json
import os
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.pipelines.cli import run
from tests.fuzzing import examples, json_tree, parquet_cases
from tests.fuzzing.byte_mutations import damage
from tests.fuzzing.case import Case, Reading, UnreadableError

_BASES = 4


@cache
def base(number: int) -> tuple[bytes, str]:
    """Return a data file and the ChangeList of a search of it."""
    rng = random.Random(f"changelist/{number}")
    stream = io.BytesIO()
    table = parquet_cases.table(rng)
    while table.num_rows < 50:
        table = parquet_cases.table(rng)
    for name in ("decimal", "time", "moment", "nan", "dictionary")[: 2 * number]:
        table = table.append_column(name, _column(rng, name, table.num_rows))
    table = _with_a_worse_slice(table)
    pq.write_table(table, stream)
    with tempfile.TemporaryDirectory() as folder:
        # By relative paths, so that the document repeats the run wherever it is.
        before = Path.cwd()
        os.chdir(folder)
        try:
            Path("data.parquet").write_bytes(stream.getvalue())
            arguments = ["search", "--data", "data.parquet", "--output", "out", "--quiet"]
            if code := run([*arguments, *examples.FLAGS, "--bins", "4", "--min-slice-size", "1"]):
                raise RuntimeError(f"the search of the base ended with {code}")
            return stream.getvalue(), Path("out/changelist.json").read_text("utf-8")
        finally:
            os.chdir(before)


def _with_a_worse_slice(table: pa.Table) -> pa.Table:
    """Return the table with predictions that are wrong at night, so that a slice is reported."""
    labels, nights = table["label"].to_pylist(), table["night"].to_pylist()
    others = dict(zip(sorted(set(labels)), sorted(set(labels))[::-1], strict=True))
    wrong = [others[one] if night else one for one, night in zip(labels, nights, strict=True)]
    place = table.column_names.index("pred")
    return table.set_column(place, "pred", pa.array(wrong, table["pred"].type))


def _column(rng: random.Random, name: str, rows: int) -> Any:
    made = parquet_cases.odd_column(rng, rows)
    while made[0] != name:
        made = parquet_cases.odd_column(rng, rows)
    return made[1]


def make(rng: random.Random) -> Case:
    """Return a case: a ChangeList that is changed by meaning or by bytes, and what takes it."""
    data, document = base(rng.randrange(_BASES))
    use = rng.choice(("domains",) * 5 + ("since", "since", "check", "check", "check", "run", "run"))
    mutations = [use]
    tree = json.loads(document)
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3))):
        # What is read of it is a small part of it.
        part = tree if rng.random() < 0.15 else _part(tree, use)
        mutations.append(json_tree.mutate(rng, part))
    content = json_tree.text(tree).encode("utf-8", "surrogatepass")
    if len(mutations) == 1 or rng.random() < 0.1:
        content, names = damage(rng, content, times=rng.choice((0, 1, 1, 2)))
        mutations += names
    search = ["search", "--data", "{folder}/data.parquet", *examples.flags(rng)]
    arguments = {
        "domains": [*search, "--domains", "{folder}/given.json"],
        "since": [*search, "--since", "{folder}/given.json"],
        "check": [
            *("check", "--data", "{folder}/data.parquet", "--label", "label"),
            *("--prediction", "pred", "--changelist", "{folder}/given.json"),
        ],
        "run": ["run", "{folder}/given.json"],
    }[use]

    def reading(folder: Path) -> Reading:
        read(folder / "given.json")
        return parquet_cases.read(folder / "data.parquet")

    def check(folder: Path, published: dict[str, Any], table: list[dict[str, Any]]) -> str:
        found = read(folder / "given.json")
        if use == "check":
            return _slices_differ(found, table)
        if use == "run":
            return options_differ(found["provenance"]["config"], published)
        return _domains_differ(found, published)

    return Case(
        arguments,
        {"data.parquet": data, "given.json": content},
        "given.json",
        mutations,
        reading,
        check=check,
        storage_may_fail=use == "run",
    )


def _part(tree: Any, use: str) -> Any:
    """Return the part of a document that is read, or all of it where a mutation took that away."""
    ways = {
        "domains": ("dataset", "domains"),
        "since": ("slices",),
        "check": ("slices",),
        "run": ("provenance", "config"),
    }
    part = tree
    for key in ways[use]:
        part = part.get(key) if isinstance(part, dict) else None
    return part if isinstance(part, dict | list) and part else tree


def read(path: Path) -> dict[str, Any]:
    """Return a document, read strictly.

    Raises
    ------
    UnreadableError
        It is no JSON, a key occurs twice, or the parts that are used are missing.
    """
    try:
        found = json.loads(path.read_text("utf-8"), object_pairs_hook=_without_doubles)
        names = [domain["name"] for domain in found["dataset"]["domains"]]
        if len(set(names)) < len(names) or not found["provenance"]["config"]:
            raise UnreadableError("two domains of one name, or no configuration")
        for one in found["slices"]:
            one["definition"]["predicate"]["all"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error
    return dict(found)


def _domains_differ(found: dict[str, Any], published: dict[str, Any]) -> str:
    wanted = {domain["name"]: domain for domain in found["dataset"]["domains"]}
    for domain in published["dataset"]["domains"]:
        own = wanted.get(domain["name"])
        if own is None:
            return f"a domain of {domain['name']!r}, which the file has not"
        told, kept = ([_plain(one) for one in some["singletons"]] for some in (domain, own))
        # Frequent values that the file does not know come after its own.
        new = domain["singletons"][len(kept) :]
        if told[: len(kept)] != kept or any(one["op"] != "==" for one in new):
            return f"{domain['name']!r}: the predicates are not those of the file"
        if domain["kind"] != own["kind"]:
            return f"{domain['name']!r}: {domain['kind']} domain, but {own['kind']} in the file"
    used = {domain["name"] for domain in published["dataset"]["domains"]}
    left_out = {column["name"] for column in published["dataset"]["left_out"]}
    lost = set(wanted) - used - left_out
    return f"domains of {sorted(lost)} are lost" if lost else ""


def _plain(condition: dict[str, Any]) -> str:
    """Return a condition without notes, and without the value null, which says as much as none."""
    kept = {
        key: condition[key] for key in ("field", "op", "value") if condition.get(key) is not None
    }
    return json.dumps(kept)


def _slices_differ(found: dict[str, Any], table: list[dict[str, Any]]) -> str:
    wanted = {_conjunction(one["definition"]["predicate"]["all"]) for one in found["slices"]}
    told = {_conjunction(json.loads(row["predicate"])["all"]) for row in table}
    return "" if wanted == told else f"slices {sorted(told ^ wanted)} are only here or only there"


def _conjunction(conditions: list[dict[str, Any]]) -> str:
    return " & ".join(dict.fromkeys(map(_plain, conditions)))


def options_differ(wanted: dict[str, Any], published: dict[str, Any]) -> str:
    """Return which option a run took for another than what its file says.

    Not wrong are: a number that is given as its text, as on a command line; names in one text with
    commas; a single value for a list; a metric that is named twice; an option that is not told
    because it had no effect; and paths, whose placeholders are filled in.
    """
    config = published["provenance"]["config"]
    for name, value in wanted.items():
        told = config.get(name)
        if told is None or name in ("data", "output"):
            continue
        if isinstance(told, list):
            listed = value.split(",") if isinstance(value, str) else value
            listed = list(dict.fromkeys(listed)) if isinstance(listed, list) else [listed]
            if told != listed:
                return f"{name} is {told!r}, but {value!r} in the file"
        elif isinstance(told, bool) != isinstance(value, bool) or (
            told != value and str(told) != str(value)
        ):
            return f"{name} is {told!r}, but {value!r} in the file"
    return ""


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise UnreadableError("a key occurs twice")
    return found
