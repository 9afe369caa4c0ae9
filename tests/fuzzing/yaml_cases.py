"""YAML files with odd keys and values, bombs, tags, damaged bytes: engines, slices to check, whole runs."""

import datetime as dt
import json
from functools import cache
from pathlib import Path

import yaml
from hypothesis import strategies as st

from slicebeam import runner_configs
from slicebeam.pipelines.run.engine import runner_config, shipped_configs
from slicebeam.transforms.storage.strict_text import parse_yaml
from tests.fuzzing import changelist_cases, parquet_cases, strategies
from tests.fuzzing.case import Case, UnjudgedError, UnreadableError
from tests.fuzzing.strategies import chance, damaged, insert, pick, replace, words
from tests.oracles import predicates

# A tenth of this would be nothing: each level is nine of the level before.
LEVELS = 12


def bomb(*, mappings):
    lines = ["b0: &b0 [x]"]
    for level in range(1, LEVELS):
        below = [f"*b{level - 1}"] * 9
        listed = ", ".join(f"k{at}: {one}" for at, one in enumerate(below))
        held = f"{{{listed}}}" if mappings else f"[{', '.join(below)}]"
        lines.append(f"b{level}: &b{level} {held}")
    return "\n".join(lines) + "\n"


# Divided by bars, since many of them hold blanks.
ODD_VALUES = (
    *words("|~|null|true|yes|no|on|0|-1|1|2|1.0|1e0|0x1|01|1_0|.inf|.nan|1:30|'1'|direct|DIRECT", "|"),
    *words("\"1\"|'direct'|[]|[1]|{}|{workers: 1}|{1: 2}|{[1]: 2}|2024-01-01|2024-99-99|=|<<", "|"),
    *words("!!python/object/apply:os.system ['true']|!!python/name:os.system|!!int one|!!float x", "|"),
    *words("!!binary '%%%'|!!timestamp x|!!set {a, b}|!!omap [a: 1]|!local x|!!null x|*unknown", "|"),
    *words("&a 1|&a [*a]|&a {workers: *a}|*b11|[*b11]|{workers: *b11}|search|check|age|[age, job]", "|"),
    *words("age,job|accuracy|0.5|1e-3|'{date}'|'{here}'|'{here'|'{date:%Y}'|'{x}'|'${NOT_SET}'", "|"),
    *words("age = 5|job = |age in [1|{all: []}|{field: age, op: '<', value: x}|age = 1e999", "|"),
    *words("{field: age, op: in, value: 5}|{field: age, op: '=='}|'|\"|[|{|@|`|%|\t1|- 1|1 # note", "|"),
    "{all: [{field: age, op: '<', value: 2.5}]}",
    *words('{field: night, op: \'==\', value: 1}|>\n  text|"\\ud800"|"\\x00"|${HOME}|{date}', "|"),
    *("|\n  text", "9" * 30, "9" * 5000, "[" * 2000 + "]" * 2000, "{a: " * 500 + "}" * 500),
    "x" * 100_000,
)  # fmt: skip
ODD_KEYS = (
    *words("runner beam workers wrkers Runner 1 ~ [a] 'runner' << slices features metric"),
    *words("domains since strategy weight seed resume json fail_on runner_option command test Data"),
    *("chunk_rows", "? a", "- name", "- predicate", "- all"),
)  # fmt: skip
LINES = {
    "engine": ("runner: direct", "workers: 1"),
    "slices": (
        *("- age < 40", "- job = nurse", "- night = true"),
        *("- name: older", "  predicate: age >= 40 & job = x"),
        "- {field: age, op: between, value: [20, 50]}",
        "- all: [{field: job, op: in, value: [nurse, x]}, {field: hours, op: is_null}]",
        "- {field: tags, op: contains, value: red}",
        "- {field: day, op: '<', value: 2024-01-04}",
    ),
    "run": (
        *("command: search", "data: '{here}/data.parquet'", "label: label", "prediction: pred"),
        *("output: '{here}/out'", "max_cross_size: 1", "min_slice_size: 1"),
        *("features: [age, job, night]", "bins: 4", "alpha: 0.1", "quiet: true"),
    ),
}


@cache
def _shipped():
    folder = next(iter(runner_configs.__path__))
    paths = [Path(folder, f"{name}.yaml") for name in sorted(shipped_configs())]
    return [tuple(path.read_text("utf-8").splitlines()) for path in paths]


def _valued(line, value):
    key, colon, _ = line.partition(":")
    return f"{key}: {value}" if colon else value


def _keyed(line, new):
    key, colon, value = line.partition(":")
    return f"{key[: len(key) - len(key.lstrip())]}{new}{colon}{value}"


def _merge(draw, lines):
    last = draw(pick("", "  <<: 5", "  <<: [*base, *base]", "<<: *base"))
    lines[:] = ["base: &base {workers: 2}", *lines, "  <<: *base", last]


_LINE = st.builds("{}{}: {}".format, pick("", "  ", "\t"), pick(*ODD_KEYS), pick(*ODD_VALUES))
_MORE = insert(_LINE)
EDITS = (
    *(replace(pick(*ODD_VALUES), _valued),) * 3,
    *(_MORE, _MORE, replace(pick(*ODD_KEYS), _keyed), strategies.repeat, strategies.lose, _merge),
    replace(pick(" ", "\t", "- ", ""), lambda line, sign: sign + line if sign else line.lstrip()),
    insert(pick("---", "...", "%YAML 9.9", "%TAG ! x")),
)


@st.composite
def cases(draw):
    use = draw(pick("engine", "engine", "slices", "run"))
    lines = draw(pick(*_shipped())) if use == "engine" and draw(chance(30)) else LINES[use]
    text = "\n".join(draw(strategies.edited(list(lines), EDITS, (0, 1, 1, 1, 2, 3)))) + "\n"
    if "*b11" in text or draw(chance(3)):
        text = bomb(mappings=draw(st.booleans())) + text
    content = text.encode("utf-8", "surrogatepass")
    if draw(chance(30)):
        content = draw(damaged(content))
    if draw(chance(4)):
        content = text.encode(draw(pick("utf-16", "utf-16-le", "utf-8-sig", "latin-1")), "replace")
    table = draw(parquet_cases.tables(least=20))
    files = {"data.parquet": draw(parquet_cases.written(table)), "given.yaml": content}
    if use == "run":
        arguments = ["run", "{folder}/given.yaml"]
        return Case(arguments, files, _reading, _check_content, _check_run, storage_may_fail=True)
    if use == "slices":
        arguments = ["check", "--data", "{folder}/data.parquet", "--label", "label"]
        arguments += ["--prediction", "pred", "--slices", "{folder}/given.yaml", "--quiet"]
        return Case(arguments, files, _reading, _check_content, _check_slices)
    # Other engines, and more processes, are asked for, but not started: there is no data then.
    workers = _workers(content)
    is_small = workers == 1 or (workers == 2 and draw(chance(10)))
    data = "data.parquet" if is_small else "missing.parquet"
    arguments = ["search", "--data", f"{{folder}}/{data}"]
    arguments += ["--runner-config", "{folder}/given.yaml", *draw(strategies.flags())]
    return Case(arguments, files, _reading, _check_engine)


def _reading(folder):
    independent(folder)
    return parquet_cases.read(folder / "data.parquet")


def _check_content(folder):
    try:
        text = (folder / "given.yaml").read_text("utf-8")
    except UnicodeDecodeError as error:
        raise UnjudgedError from error
    content, _ = parse_yaml(text)
    # NaN equals itself as a text.
    assert repr(content) == repr(independent(folder))


def _check_engine(folder):
    config, told = runner_config(str(folder / "given.yaml"), ()), mapping(folder)
    assert told.get("runner") == config.runner
    for name, value in told.items():
        read = config.runner if name == "runner" else getattr(config.options, name)
        assert _equal(read or None, value or None), f"{name} is {read!r}, but {value!r} in the file"


def _check_slices(folder, _, table):
    told = independent(folder)
    listed = told["slices"] if isinstance(told, dict) else told
    assert len({row["slice_id"] for row in table}) == len(listed)
    frame = parquet_cases.read(folder / "data.parquet").frame
    held = {predicates.mask(frame, json.loads(row["predicate"])).tobytes() for row in table}
    for one in listed:
        written = one.get("predicate", one) if isinstance(one, dict) else one
        if isinstance(written, dict):
            conditions = [_as_json(part) for part in written.get("all") or [written]]
            wanted = predicates.mask(frame, {"all": conditions})
            assert wanted.tobytes() in held, f"no slice has the examples of {written!r}"


def _check_run(folder, published, _):
    changelist_cases.check_options(mapping(folder), published)


def _as_json(condition):
    if "value" not in condition:
        return condition
    value = condition["value"]
    infinite = {float("inf"): "Infinity", float("-inf"): "-Infinity"}
    listed = value if isinstance(value, list) else [value]
    listed = [infinite.get(one, one) if isinstance(one, float) else one for one in listed]
    plain = [one.isoformat() if isinstance(one, dt.date) else one for one in listed]
    return {**condition, "value": plain if isinstance(value, list) else plain[0]}


def _equal(read, told):
    """Whether an option is what the file says; a number may be given as its text."""
    if isinstance(told, str) and not isinstance(read, str):
        return str(read) == told.strip()
    if isinstance(told, list | tuple) and isinstance(read, list | tuple):
        return len(read) == len(told) and all(map(_equal, read, told))
    if isinstance(told, dict) and isinstance(read, dict):
        return set(read) == set(told) and all(_equal(read[key], told[key]) for key in told)
    return isinstance(told, bool) == isinstance(read, bool) and bool(read == told)


def independent(folder):
    """Return what a YAML file says, where no key is doubled and nothing is nested without end."""
    try:
        text = (folder / "given.yaml").read_text("utf-8")
        _refuse_doubles(yaml.compose(text, yaml.SafeLoader), 0, set())
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnreadableError(str(error)) from error


def mapping(folder):
    content = independent(folder)
    if not isinstance(content, dict):
        raise UnreadableError("no mapping")
    return content


def _refuse_doubles(node, depth, seen):
    if depth > 100:
        raise UnreadableError("too deep")
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    parts = node.value if isinstance(node, yaml.SequenceNode) else []
    if isinstance(node, yaml.MappingNode):
        keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) < len(keys):
            raise UnreadableError("a key occurs twice")
        parts = [part for pair in node.value for part in pair]
    for part in parts:
        _refuse_doubles(part, depth + 1, seen)


def _workers(content):
    try:
        told = yaml.safe_load(content.decode())
        if told["runner"] == "direct" and set(told) <= {"runner", "workers"}:
            return int(told.get("workers", 1))
    except Exception:  # noqa: BLE001  (whatever is wrong with it, it is not started)
        return None
    return None
