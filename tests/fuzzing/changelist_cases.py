"""ChangeLists changed by meaning or by bytes: for their domains, slices and options, and to compare with."""

import copy
import io
import json
import os
import random
import tempfile
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from slicebeam.pipelines.changelist.reading import read_changelist
from slicebeam.pipelines.commands.cli import run
from tests.fuzzing import json_reading, parquet_cases, strategies
from tests.fuzzing.case import Case, UnreadableError
from tests.fuzzing.strategies import chance, damaged, pick, words


class Verbatim(str):
    __slots__ = ()


ODD_VALUES = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, 10**400, -(2**64), 0.5, 1e308, -0.0),
    *words("x 0 1 NaN Infinity -Infinity 2024-01-01 2024-01-01T00:00:00 é \ud800 int64 double"),
    *words("decimal128(9,2) decimal(x) time64[s] dictionary float uint8 bool string binary null"),
    *("", " ", "\0", "x" * 5000, "list<item: int64>", "timestamp[us]", "decimal128(99, 2)"),
    *("timestamp[us, tz=Nowhere/No]", "date32[day]"),
    *([], [None], [1], [1, 2], [2, 1], ["a", "b"], ["a", "a"], [[1]], {}, {"a": 1}, [{}]),
    *map(Verbatim, words("NaN NaN NaN Infinity 1e400")),
    *map(Verbatim, ("9" * 5000, "", *("[" * n + "1" + "]" * n for n in (100, 100_000)))),
    Verbatim('{"a":' * 50_000 + "1" + "}" * 50_000),
)


def text(tree):
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {text(tree[key])}" for key in tree) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(map(text, tree)) + "]"
    return str(tree) if isinstance(tree, Verbatim) else json.dumps(tree)


def places(tree):
    """Return every (container, key) of a tree."""
    listed = enumerate(tree if isinstance(tree, list) else ())
    pairs = tree.items() if isinstance(tree, dict) else listed
    return [found for key, value in pairs for found in ((tree, key), *places(value))]


def _nudged(draw, value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return draw(pick(value + 1, value - 1, -value, value * 2, value + 0.5, float(value)))
    if isinstance(value, str):
        return draw(pick(value + "x", value[1:], value.upper(), value[::-1], f" {value}"))
    return value[::-1] if isinstance(value, list) else {**(value or {}), "surplus": 1}


def change(draw, tree):
    found = places(tree)
    if not found:
        return
    container, key = draw(st.sampled_from(found))
    kind = draw(pick(*words("odd odd odd nudge nudge nudge lose double rename swap swap")))
    if kind == "odd":
        container[key] = copy.deepcopy(draw(pick(*ODD_VALUES)))
    elif kind == "nudge":
        container[key] = _nudged(draw, container[key])
    elif kind == "lose":
        del container[key]
    elif kind == "swap":
        other = draw(st.sampled_from([one for holder, one in found if holder is container]))
        container[key], container[other] = container[other], container[key]
    elif isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))
    elif kind == "double":
        other = text(draw(pick(*ODD_VALUES[:14])))
        container[key] = Verbatim(f"{text(container[key])}, {json.dumps(key)}: {other}")
    else:
        container[draw(pick("surplus", "", key + " ", key.upper(), "x_note"))] = container.pop(key)


@cache
def base(*, odd_types):
    """Return a data file and the ChangeList of a search of it, in which a slice is worse."""
    rng = random.Random(1)
    classes = (0, 1) if odd_types else ("no", "yes")
    rows = [{"age": rng.randint(18, 80), "night": rng.random() < 0.3} for _ in range(120)]
    for at, row in enumerate(rows):
        row |= {"hours": None if at % 9 == 0 else round(rng.gauss(40, 10), 2)}
        row |= {"job": rng.choice(strategies.JOBS), "tags": rng.sample(("red", "blue"), at % 3)}
        row |= {"label": classes[at % 2], "pred": classes[(at + row["night"]) % 2]}
    table = pa.Table.from_pylist(rows)
    for name in words("decimal time moment nan dictionary" * odd_types):
        table = table.append_column(name, parquet_cases.odd_column(name, len(rows)))
    stream = io.BytesIO()
    pq.write_table(table, stream)
    with tempfile.TemporaryDirectory() as folder:
        # By relative paths, so that the document repeats the run wherever it is.
        before = Path.cwd()
        os.chdir(folder)
        try:
            Path("data.parquet").write_bytes(stream.getvalue())
            arguments = ["search", "--data", "data.parquet", "--output", "out", "--quiet"]
            assert run([*arguments, *strategies.FLAGS, "--bins", "4", "--min-slice-size", "1"]) == 0
            return stream.getvalue(), Path("out/changelist.json").read_text("utf-8")
        finally:
            os.chdir(before)


DATA = ("--data", "{folder}/data.parquet", "--label", "label", "--prediction", "pred")
# What takes a document, with the part that it reads of it.
_USES = {"domains": ("dataset", "domains"), "since": ("slices",), "check": ("slices",)}
_USES |= {"run": ("provenance", "config")}


def _part(tree, use):
    """Return the part of a document that is read, or all of it where a change took that away."""
    part = tree
    for key in _USES[use]:
        part = part.get(key) if isinstance(part, dict) else None
    return part if isinstance(part, dict | list) and part else tree


def cases():
    return _cases([base(odd_types=False), base(odd_types=True)])


@st.composite
def _cases(draw, bases):
    data, document = draw(st.sampled_from(bases))
    use = draw(pick(*words("domains domains domains domains since check check check run run")))
    tree, times = json.loads(document), draw(pick(0, 1, 1, 1, 1, 2, 3))
    for _ in range(times):
        change(draw, tree if draw(chance(15)) else _part(tree, use))
    content = text(tree).encode("utf-8", "surrogatepass")
    if not times or draw(chance(10)):
        content = draw(damaged(content, (0, 1, 1, 2)))
    search = ["search", "--data", "{folder}/data.parquet", *draw(strategies.flags())]
    arguments = {
        "domains": [*search, "--domains", "{folder}/given.json"],
        "since": [*search, "--since", "{folder}/given.json"],
        "check": ["check", *DATA, "--changelist", "{folder}/given.json"],
        "run": ["run", "{folder}/given.json"],
    }[use]

    def reading(folder):
        read(folder / "given.json", with_slices=use != "domains")
        return parquet_cases.read(folder / "data.parquet")

    def check(folder, published, table):
        found = read(folder / "given.json", with_slices=use != "domains")
        if use == "check":
            told = {_conjunction(json.loads(row["predicate"])["all"]) for row in table}
            slices = [one["definition"]["predicate"]["all"] for one in found["slices"]]
            assert told == set(map(_conjunction, slices))
        elif use == "run":
            check_options(found["provenance"]["config"], published)
        else:
            _check_domains(found, published)

    files = {"data.parquet": data, "given.json": content}
    return Case(arguments, files, reading, _check_document, check, storage_may_fail=use == "run")


def read(path, *, with_slices=True):
    """Return a document, read strictly; its slices are passed over where only domains are taken."""
    try:
        content = path.read_text("utf-8")
        hooks = {"object_pairs_hook": json_reading.without_doubles}
        found = json.loads(content, **hooks, parse_constant=_refuse_constant)
        names = [domain["name"] for domain in found["dataset"]["domains"]]
        if len(set(names)) < len(names) or not found["provenance"]["config"]:
            raise UnreadableError("two domains of one name, or no configuration")
        for one in found["slices"] if with_slices else ():
            one["definition"]["predicate"]["all"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error
    return dict(found)


def _refuse_constant(name):
    raise UnreadableError(f"{name} is not a number in JSON")


def _check_document(folder):
    document = read_changelist(str(folder / "given.json"), "--changelist")
    found = read(folder / "given.json")
    _check_same(found, document.model_dump(mode="json", by_alias=True), "document")
    ids = [one.slice_id for one in document.slices]
    assert len(set(ids)) == len(ids)


def _check_same(written, read, place):
    """Assert that what was read is what is written, but for how a time is written."""
    if isinstance(written, dict) and isinstance(read, dict):
        for key in {*written} & {*read}:
            _check_same(written[key], read[key], f"{place}.{key}")
    elif isinstance(written, list) and isinstance(read, list):
        assert len(written) == len(read), place
        for at, pair in enumerate(zip(written, read, strict=True)):
            _check_same(*pair, f"{place}.{at}")
    else:
        assert isinstance(written, bool) == isinstance(read, bool), place
        is_text = isinstance(written, str) and isinstance(read, str)
        assert is_text or written == read, f"{place} is {read!r}, but {written!r} in the file"


def _check_domains(found, published):
    wanted = {domain["name"]: domain for domain in found["dataset"]["domains"]}
    for domain in published["dataset"]["domains"]:
        name = domain["name"]
        assert name in wanted, f"a domain of {name!r}, which the file has not"
        both = (domain["singletons"], wanted[name]["singletons"])
        told, kept = ([_plain(one) for one in some] for some in both)
        # A gap between bins that holds an example becomes one; frequent values that the file does not
        # know come after its own.
        gaps = {term for term in told if term not in kept} if domain["kind"] == "numeric" else set()
        told = [term for term in told if term not in gaps]
        assert told[: len(kept)] == kept, f"{name!r}: the predicates are not those of the file"
        assert {json.loads(term)["op"] for term in gaps} <= {"<", "between", ">=", "is_null"}, name
        assert {json.loads(term)["op"] for term in told[len(kept) :]} <= {"=="}, name
        assert domain["kind"] == wanted[name]["kind"], f"{name!r} is of another kind in the file"
    used = {domain["name"] for domain in published["dataset"]["domains"]}
    left_out = {column["name"] for column in published["dataset"]["left_out"]}
    assert set(wanted) <= used | left_out, f"domains of {set(wanted) - used - left_out} are lost"


def _plain(condition):
    told = {key: condition.get(key) for key in ("field", "op", "value")}
    return json.dumps({key: value for key, value in told.items() if value is not None})


def _conjunction(conditions):
    return " & ".join(dict.fromkeys(map(_plain, conditions)))


def check_options(wanted, published):
    """Assert that a run took each option for what its file says.

    Not wrong are: a number that is given as its text, as on a command line; names in one text with
    commas; a single value for a list; a metric that is named twice; an option that is not told
    because it had no effect; and paths, whose placeholders are filled in.
    """
    config = published["provenance"]["config"]
    for name, value in wanted.items():
        told = config.get(name)
        if told is None or name in ("data", "output"):
            continue
        message = f"{name} is {told!r}, but {value!r} in the file"
        if isinstance(told, list):
            listed = value.split(",") if isinstance(value, str) else value
            listed = list(dict.fromkeys(listed)) if isinstance(listed, list) else [listed]
            assert told == listed, message
        else:
            assert isinstance(told, bool) == isinstance(value, bool), message
            assert told == value or str(told) == str(value), message
