"""Mutated YAML files: engines, slices to check, and whole runs."""

from __future__ import annotations

import datetime as dt
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from slicebeam.pipelines.run.engine import runner_config, shipped_configs
from tests.fuzzing import changelist_cases, examples, parquet_cases
from tests.fuzzing.byte_mutations import damage
from tests.fuzzing.case import Case, Reading, UnreadableError
from tests.oracles import predicates

# A tenth of this would be nothing: each level is nine of the level before.
LEVELS = 12


def bomb(*, mappings: bool) -> str:
    """Return few lines that stand for nine to the twelfth values."""
    lines = ["b0: &b0 [x]"]
    for level in range(1, LEVELS):
        below = f"*b{level - 1}"
        if mappings:
            inner = ", ".join(f"k{at}: {below}" for at in range(9))
            lines.append(f"b{level}: &b{level} {{{inner}}}")
        else:
            lines.append(f"b{level}: &b{level} [{', '.join([below] * 9)}]")
    return "\n".join(lines) + "\n"


ODD_VALUES = (
    *(
        "",
        "~",
        "null",
        "true",
        "yes",
        "no",
        "on",
        "0",
        "-1",
        "1",
        "2",
        "1.0",
        "1e0",
        "0x1",
        "01",
        "1_0",
    ),
    *(".inf", ".nan", "1:30", "9" * 30, "9" * 5000, "'1'", '"1"', "direct", "'direct'", "DIRECT"),
    *(
        "[]",
        "[1]",
        "{}",
        "{workers: 1}",
        "{1: 2}",
        "{[1]: 2}",
        "2024-01-01",
        "2024-99-99",
        "=",
        "<<",
    ),
    *(
        "!!python/object/apply:os.system ['true']",
        "!!python/name:os.system",
        "!!int one",
        "!!float x",
    ),
    *("!!binary '%%%'", "!!timestamp x", "!!set {a, b}", "!!omap [a: 1]", "!local x", "!!null x"),
    *("*unknown", "&a 1", "&a [*a]", "&a {workers: *a}", "*b11", "[*b11]", "{workers: *b11}"),
    *(
        "search",
        "check",
        "age",
        "[age, job]",
        "age,job",
        "accuracy",
        "0.5",
        "1e-3",
        "'{date}'",
        "'{here}'",
    ),
    *(
        "'{here'",
        "'{date:%Y}'",
        "'{x}'",
        "'${NOT_SET}'",
        "age = 5",
        "job = ",
        "age in [1",
        "{all: []}",
    ),
    *(
        "{field: age, op: '<', value: x}",
        "{field: age, op: in, value: 5}",
        "{field: age, op: '=='}",
    ),
    *(
        "{all: [{field: age, op: '<', value: 2.5}]}",
        "{field: night, op: '==', value: 1}",
        "age = 1e999",
    ),
    *(
        "|\n  text",
        ">\n  text",
        '"\\ud800"',
        '"\\x00"',
        "'",
        '"',
        "[",
        "{",
        "@",
        "`",
        "%",
        "\t1",
        "- 1",
    ),
    *(
        "[" * 2000 + "]" * 2000,
        "{a: " * 500 + "}" * 500,
        "x" * 100_000,
        "1 # note",
        "${HOME}",
        "{date}",
    ),
)
_KEYS = (
    *("runner", "options", "workers", "optins", "Runner", "1", "~", "[a]", "'runner'", "<<", "? a"),
    *(
        "- name",
        "- predicate",
        "- all",
        "slices",
        "features",
        "metric",
        "domains",
        "since",
        "strategy",
    ),
    *(
        "weight",
        "seed",
        "resume",
        "json",
        "fail_on",
        "runner_option",
        "command",
        "test",
        "Data",
        "chunk_rows",
    ),
)


@cache
def _data() -> bytes:
    rng = random.Random("yaml")
    table = parquet_cases.table(rng)
    while table.num_rows < 20:
        table = parquet_cases.table(rng)
    return parquet_cases.written(rng, table, checksums=False)


@cache
def _shipped() -> dict[str, str]:
    from slicebeam import runner_configs

    folder = next(iter(runner_configs.__path__))
    found = {}
    for name in shipped_configs():
        found[name] = Path(folder, f"{name}.yaml").read_text("utf-8")
    return found


SLICES = (
    "- age < 40",
    "- job = nurse",
    "- night = true",
    "- name: older",
    "  predicate: age >= 40 & job = x",
    "- {field: age, op: between, value: [20, 50]}",
    "- all: [{field: job, op: in, value: [nurse, x]}, {field: hours, op: is_null}]",
    "- {field: tags, op: contains, value: red}",
    "- {field: day, op: '<', value: 2024-01-04}",
)
RUN = (
    "command: search",
    "data: '{here}/data.parquet'",
    "label: label",
    "prediction: pred",
    "output: '{here}/out'",
    "max_cross_size: 1",
    "min_slice_size: 1",
    "features: [age, job, night]",
    "bins: 4",
    "alpha: 0.1",
    "quiet: true",
)


def make(rng: random.Random) -> Case:
    """Return a case: a YAML file with odd keys and values, bombs, tags, damaged bytes."""
    use = rng.choice(("engine", "engine", "slices", "run"))
    lines = list(
        {"engine": ("runner: direct", "options:", "  workers: 1"), "slices": SLICES, "run": RUN}[
            use
        ]
    )
    if use == "engine" and rng.random() < 0.3:
        lines = _shipped()[rng.choice(sorted(_shipped()))].splitlines()
    mutations = [use]
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        mutation = rng.choice(_OF_LINES)
        mutation(rng, lines)
        mutations.append(mutation.__name__.strip("_"))
    text = "\n".join(lines) + "\n"
    if "*b11" in text or rng.random() < 0.03:
        text = bomb(mappings=rng.random() < 0.5) + text
        mutations.append("bomb")
    content = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.3:
        content, names = damage(rng, content)
        mutations += names
    if rng.random() < 0.04:
        content = text.encode(
            rng.choice(("utf-16", "utf-16-le", "utf-8-sig", "latin-1")), "replace"
        )
        mutations.append("encoding")
    made = {"engine": _engine_case, "slices": _slices_case, "run": _run_case}[use]
    return made(rng, content, mutations)


def _reading(folder: Path) -> Reading:
    independent(folder)
    return parquet_cases.read(folder / "data.parquet")


def _engine_case(rng: random.Random, content: bytes, mutations: list[str]) -> Case:
    # Other engines, and more processes, are asked for, but not started: there is no data then.
    is_small = _workers(content) == 1 or (_workers(content) == 2 and rng.random() < 0.1)
    data = "data.parquet" if is_small else "missing.parquet"

    def direct(folder: Path) -> str:
        config = runner_config(str(folder / "given.yaml"), ())
        try:
            told = mapping(folder)
        except UnreadableError as error:
            return f"read as {config}, but: {error}"
        if told.get("runner") != config.runner:
            return f"runner {config.runner!r}, but {told.get('runner')!r} in the file"
        for name, value in ({} if told.get("options") is None else told["options"]).items():
            if not _equal(getattr(config.options, name), value):
                return f"{name} is {getattr(config.options, name)!r}, but {value!r} in the file"
        return ""

    return Case(
        [
            *("search", "--data", "{folder}/" + data, "--runner-config", "{folder}/given.yaml"),
            *examples.flags(rng),
        ],
        {"data.parquet": _data(), "given.yaml": content},
        "given.yaml",
        mutations,
        _reading,
        direct,
    )


def _slices_case(_: random.Random, content: bytes, mutations: list[str]) -> Case:
    def check(folder: Path, __: dict[str, Any], table: list[dict[str, Any]]) -> str:
        told = independent(folder)
        listed = told["slices"] if isinstance(told, dict) else told
        if len({row["slice_id"] for row in table}) != len(listed):
            return f"{len(table)} slices, but {len(listed)} in the file"
        frame = parquet_cases.read(folder / "data.parquet").frame
        held = {predicates.mask(frame, json.loads(row["predicate"])).tobytes() for row in table}
        for one in listed:
            written = one.get("predicate", one) if isinstance(one, dict) else one
            if isinstance(written, dict):
                conditions = written.get("all") or [written]
                wanted = predicates.mask(frame, {"all": [_as_json(part) for part in conditions]})
                if wanted.tobytes() not in held:
                    return f"no slice has the examples of {written!r}"
        return ""

    return Case(
        [
            *("check", "--data", "{folder}/data.parquet", "--label", "label"),
            *("--prediction", "pred", "--slices", "{folder}/given.yaml", "--quiet"),
        ],
        {"data.parquet": _data(), "given.yaml": content},
        "given.yaml",
        mutations,
        _reading,
        check=check,
    )


def _as_json(condition: dict[str, Any]) -> dict[str, Any]:
    """Return a condition as JSON would have it, where dates are texts."""
    value = condition.get("value")
    listed = [value] if not isinstance(value, list) else value
    plain = [one.isoformat() if isinstance(one, dt.date) else one for one in listed]
    plain = [
        {float("inf"): "Infinity", float("-inf"): "-Infinity"}.get(one, one)
        if isinstance(one, float)
        else one
        for one in plain
    ]
    return {**condition, "value": plain if isinstance(value, list) else plain[0]}


def _run_case(_: random.Random, content: bytes, mutations: list[str]) -> Case:
    def check(folder: Path, published: dict[str, Any], __: list[dict[str, Any]]) -> str:
        return changelist_cases.options_differ(mapping(folder), published)

    return Case(
        ["run", "{folder}/given.yaml"],
        {"data.parquet": _data(), "given.yaml": content},
        "given.yaml",
        mutations,
        _reading,
        check=check,
        storage_may_fail=True,
    )


def _equal(read: Any, told: Any) -> bool:
    """Whether an option is what the file says; a number may be given as its text."""
    if isinstance(told, str) and not isinstance(read, str):
        return str(read) == told.strip()
    if isinstance(told, list | tuple) and isinstance(read, list | tuple):
        return len(read) == len(told) and all(map(_equal, read, told))
    if isinstance(told, dict) and isinstance(read, dict):
        return set(read) == set(told) and all(_equal(read[key], told[key]) for key in told)
    if isinstance(told, bool) != isinstance(read, bool):
        return False
    return bool(read == told)


def independent(folder: Path) -> Any:
    """Return what a YAML file says, where no key is doubled and nothing is nested without end."""
    try:
        text = (folder / "given.yaml").read_text("utf-8")
        node = yaml.compose(text, yaml.SafeLoader)
        _refuse_doubles(node, 0, set())
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnreadableError(str(error)) from error


def mapping(folder: Path) -> dict[str, Any]:
    """Return what a YAML file says that holds a mapping."""
    content = independent(folder)
    if not isinstance(content, dict):
        raise UnreadableError("no mapping")
    return content


def _refuse_doubles(node: Any, depth: int, seen: set[int]) -> None:
    if depth > 100:
        raise UnreadableError("too deep")
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) < len(keys):
            raise UnreadableError("a key occurs twice")
        for key, value in node.value:
            _refuse_doubles(key, depth + 1, seen)
            _refuse_doubles(value, depth + 1, seen)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_doubles(value, depth + 1, seen)


def _workers(content: bytes) -> int | None:
    """Return how many processes a file asks for, None unless it is the engine in this process."""
    try:
        told = yaml.safe_load(content.decode())
        if told["runner"] == "direct" and set(told) <= {"runner", "options"}:
            return int(({} if told.get("options") is None else told["options"]).get("workers", 1))
    except Exception:  # noqa: BLE001  (whatever is wrong with it, it is not started)
        return None
    return None


# ------------------------------------------------------------------------------------ mutations


def _odd_value(rng: random.Random, lines: list[str]) -> None:
    at = rng.randrange(len(lines))
    key, colon, _ = lines[at].partition(":")
    lines[at] = f"{key}: {rng.choice(ODD_VALUES)}" if colon else rng.choice(ODD_VALUES)


def _odd_key(rng: random.Random, lines: list[str]) -> None:
    at = rng.randrange(len(lines))
    key, colon, value = lines[at].partition(":")
    indent = key[: len(key) - len(key.lstrip())]
    lines[at] = f"{indent}{rng.choice(_KEYS)}{colon}{value}"


def _more(rng: random.Random, lines: list[str]) -> None:
    indent = rng.choice(("", "  ", "\t"))
    line = f"{indent}{rng.choice(_KEYS)}: {rng.choice(ODD_VALUES)}"
    lines.insert(rng.randrange(len(lines) + 1), line)


def _again(rng: random.Random, lines: list[str]) -> None:
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))


def _lost(rng: random.Random, lines: list[str]) -> None:
    del lines[rng.randrange(len(lines))]
    if not lines:
        lines.append("")


def _indent(rng: random.Random, lines: list[str]) -> None:
    at = rng.randrange(len(lines))
    lines[at] = rng.choice(
        (" " + lines[at], "\t" + lines[at], lines[at].lstrip(), "- " + lines[at])
    )


def _documents(rng: random.Random, lines: list[str]) -> None:
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(("---", "...", "%YAML 9.9", "%TAG ! x")))


def _merge(rng: random.Random, lines: list[str]) -> None:
    lines[:] = [
        "base: &base {workers: 2}",
        *lines,
        "  <<: *base",
        rng.choice(("", "  <<: 5", "  <<: [*base, *base]", "<<: *base")),
    ]


_OF_LINES = (
    *(_odd_value, _odd_value, _odd_value, _odd_key, _more, _more),
    *(_again, _lost, _indent, _documents, _merge),
)
