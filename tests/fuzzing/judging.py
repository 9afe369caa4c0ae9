"""Asserts what holds of every run: of what it says, and of what it published."""

import json
import math
import os
import re
import shutil
import signal
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from slicebeam.metrics.errors import SlicebeamError
from slicebeam.pipelines.commands import cli
from slicebeam.transforms.storage.strict_text import MalformedTextError
from tests.fuzzing.case import UnjudgedError, UnreadableError
from tests.oracles import predicates

HANG_SECONDS = 60.0
# A line or two for a user; a longer one holds a whole file.
LONGEST_MESSAGE = 1200
_MOST_SLICES = 500
_LOG = re.compile(r"please report it with (\S+\.log)")


class HangError(BaseException):
    """A command takes too long; no part of it catches this."""


@contextmanager
def no_hang(seconds):
    def end(*_):
        raise HangError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except HangError as error:
        raise AssertionError(f"the command hangs: it took {seconds:.0f} s") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def stored(case, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in case.files.items():
        (folder / name).write_bytes(content)
    return folder


def read_directly(case, folder):
    if case.direct is None:
        return False
    try:
        case.direct(folder)
    except (SlicebeamError, MalformedTextError, UnjudgedError):
        return False
    except UnreadableError as error:
        raise AssertionError(f"it was read, but the independent reader says: {error}") from error
    return True


def attempt(case, folder, capture, *, run=cli.run, hang_seconds=HANG_SECONDS):
    """Run the command on a case and return its exit code, and whether the examples were judged."""
    data = stored(case, folder)
    arguments = [argument.replace("{folder}", str(data)) for argument in case.arguments]
    output = data / "out"
    if case.arguments[:1] != ["run"] and not any(a.startswith("--output") for a in arguments):
        arguments += ["--output", str(output)]
    else:
        output = Path(_output(arguments))
    before = Path.cwd()
    os.chdir(data)
    capture.readouterr()
    try:
        with no_hang(hang_seconds):
            code = run(arguments)
        said = capture.readouterr()
        check_message(code, said.out, said.err, storage_may_fail=case.storage_may_fail)
        if _is_published(output):
            # What is to be explained is looked for when everything else is done.
            assert code in (0, 1) or "--explain" in said.err, f"refused, and published: {said.err}"
        is_judged = code in (0, 1) and _is_published(output) and _judge(case, data, output)
        read_directly(case, data)
    finally:
        os.chdir(before)
    return f"exit {code}{', judged' * is_judged}"


def _output(arguments):
    for place, argument in enumerate(arguments):
        if argument.startswith("--output="):
            return argument.removeprefix("--output=")
        if argument == "--output" and place + 1 < len(arguments):
            return arguments[place + 1]
    return "out"


def _is_published(output):
    try:
        return (output / "changelist.json").exists()
    except OSError:
        # A name that is too long for the system.
        return False


def check_message(code, out, error, *, storage_may_fail):
    if found := _LOG.search(error):
        with suppress(OSError):
            error += Path(found[1]).read_text("utf-8", "replace")[-3000:]
    assert not re.search("Traceback|unforeseen", error + out), error[-3000:]
    assert code in ({0, 1, 2, 3} if storage_may_fail else {0, 2}), f"exit code {code}: {error}"
    if code in (2, 3):
        lines = [line for line in error.splitlines() if not line.startswith("[")]
        assert 1 <= len(lines) <= 2, f"{len(lines)} lines: {error}"
        assert len("".join(lines)) <= LONGEST_MESSAGE, f"{len(error)} characters: {error}"
        assert lines[0].startswith("slicebeam: "), error
        bad = re.search(r"[\x00-\x08\x0b-\x1f\x7f]", "\n".join(lines))
        assert not bad, f"a control character reaches the terminal: {error!r}"


def _judge(case, data, output):
    """Hold what was published against the reading; return False where that cannot tell."""
    document, table = published(output)
    try:
        misread(document, table, case.reading(data))
        if case.check:
            case.check(data, document, table)
    except UnjudgedError:
        return False
    except (TypeError, ValueError) as error:
        raise AssertionError(f"a predicate that is none of this data: {error}") from error
    except UnreadableError as error:
        raise AssertionError(f"a success, but the independent reader says: {error}") from error
    return True


def published(folder):
    text = (folder / "changelist.json").read_text("utf-8")
    table = pq.read_table(folder / "slices.parquet").to_pylist()
    return json.loads(text, parse_constant=_refuse), table


def _refuse(name):
    raise AssertionError(f"the document holds {name}, which is no JSON")


def right(frame, label, prediction):
    """Return which predictions are right; assert that the run should not have been refused."""
    sides = []
    for name in (label, prediction):
        assert name in frame.columns, f"there is no column {name!r}"
        values = [predicates.plain(value) for value in frame[name].tolist()]
        assert not any(map(predicates.is_missing, values)), f"{name!r} has missing values"
        assert not any(isinstance(value, list) for value in values), f"{name!r} holds lists"
        sides.append(values)
    kinds = {isinstance(value, str) for values in sides for value in values}
    assert len(kinds) <= 1, "label and prediction are text and numbers"
    return np.array([one == other for one, other in zip(*sides, strict=True)], bool)


def misread(document, table, reading):
    """Assert that a run says what the reading of its input does."""
    frame, n = reading.frame, document["dataset"]["n"]
    assert n == len(frame), f"{n} examples, but {len(frame)} in the file"
    domains = {domain["name"]: domain for domain in document["dataset"]["domains"]}
    config = document["provenance"]["config"]
    is_search, roles = document["provenance"]["command"] == "search", _roles(config)
    if is_search and not {"domains", "features", "exclude_features"} & set(config):
        told = {*domains, *(column["name"] for column in document["dataset"]["left_out"])}
        expected = ({*map(str, frame.columns)} | reading.unreadable) - roles
        message = f"are not in the file, {sorted(expected - told)} are lost"
        assert told == expected, f"columns {sorted(told - expected)} {message}"
    used = reading.unreadable & {*domains, *roles}
    assert not used, f"columns {used} were used, which the independent reader cannot read"
    for name, domain in domains.items():
        written, read = reading.types.get(name), domain["data_type"]
        read = f"list {read}" if domain["kind"] == "list" else read
        message = f"{name!r} is {written} in the file and was read as {read}"
        assert written in (None, read) or not domain["closed"], message
        held = np.zeros(len(frame), int)
        for single in domain["singletons"]:
            held += predicates.mask(frame, {"all": [single]})
        if domain["closed"] and domain["kind"] != "list":
            wrong = np.count_nonzero(held != 1)
            assert not wrong, f"{name!r}: {wrong} examples are in no slice or in many"
    is_right = None
    if config.get("prediction") and "weight" not in config and "accuracy" in config["metric"]:
        is_right = right(frame, config["label"], config["prediction"])
    _check_slices(table, frame, is_right)


def _roles(config):
    """Return the columns that are no features because of what else they are."""
    names = ("label", "prediction", "score", "baseline_prediction", "baseline_score")
    named = {config.get(name) for name in (*names, "example_id", "weight", "group")}
    averaged = {name.removeprefix("mean:") for name in config["metric"] if name.startswith("mean:")}
    return {name for name in named if name is not None} | averaged


def _check_slices(table, frame, is_right):
    known = {}
    for row in table[:_MOST_SLICES]:
        held = np.ones(len(frame), bool)
        for condition in json.loads(row["predicate"])["all"]:
            text = json.dumps(condition)
            if text not in known:
                known[text] = predicates.mask(frame, {"all": [condition]})
            held &= known[text]
        name = row["slice"]
        assert row["n"] == held.sum(), f"{name}: {row['n']} examples, but {held.sum()} in the file"
        if is_right is not None and row["metric"] == "accuracy" and row["n"]:
            accuracy, told = float(is_right[held].mean()), row["value"]
            is_near = told is not None and math.isclose(told, accuracy, abs_tol=1e-9)
            assert is_near, f"{name}: accuracy {told}, but {accuracy} in the file"


def comparable(columns):
    return {name: ["NaN" if x != x else x for x in values] for name, values in columns.items()}
