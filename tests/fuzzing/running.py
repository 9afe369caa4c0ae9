"""Runs a case in this process and says what became of it."""

from __future__ import annotations

import os
import re
import sys
import time
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import SlicebeamError
from slicebeam.pipelines.cli import run
from tests.fuzzing import judging
from tests.fuzzing.case import Case, UnjudgedError, UnreadableError, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

# A line or two for a user; a longer one holds a whole file.
LONGEST_MESSAGE = 1200
_LOG = re.compile(r"please report it with (\S+\.log)")


@contextmanager
def _captured(folder: Path) -> Iterator[list[str]]:
    """Keep what is written on the file descriptors, by native code too: stdout, stderr."""
    files = [folder / "stdout", folder / "stderr"]
    said: list[str] = []
    kept = []
    for number, (stream, path) in enumerate(zip((sys.stdout, sys.stderr), files, strict=True), 1):
        stream.flush()
        kept.append(os.dup(number))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
        os.close(descriptor)
    try:
        yield said
    finally:
        for number, (stream, descriptor) in enumerate(
            zip((sys.stdout, sys.stderr), kept, strict=True), 1
        ):
            with suppress(ValueError, OSError):
                stream.flush()
            os.dup2(descriptor, number)
            os.close(descriptor)
        said += [path.read_bytes().decode("utf-8", "replace") for path in files]


def attempt(case: Case, folder: Path) -> Verdict:
    """Run a case in an empty folder and judge it; the caller fills in which case it is."""
    data = folder / "data"
    data.mkdir()
    for name, content in case.files.items():
        (data / name).write_bytes(content)
    arguments = [argument.replace("{folder}", str(data)) for argument in case.arguments]
    output = data / "out"
    if case.arguments[:1] != ["run"] and not any(a.startswith("--output") for a in arguments):
        arguments += ["--output", str(output)]
    else:
        output = Path(_output(arguments))
    verdict = Verdict("", 0, 0, None, mutations=case.mutations)
    begun = time.perf_counter()
    before = Path.cwd()
    os.chdir(data)
    try:
        with _captured(folder) as said:
            verdict.code = run(arguments)
    finally:
        os.chdir(before)
    verdict.seconds = time.perf_counter() - begun
    verdict.said = said[1]
    verdict.problem, verdict.detail = _of_message(case, verdict, said)
    if not verdict.problem:
        os.chdir(data)
        try:
            verdict.problem, verdict.detail = _of_results(case, data, output, verdict)
        finally:
            os.chdir(before)
    return verdict


def _output(arguments: list[str]) -> str:
    """Return the folder that a command line names, or that the files of this package name."""
    for place, argument in enumerate(arguments):
        if argument.startswith("--output="):
            return argument.removeprefix("--output=")
        if argument == "--output" and place + 1 < len(arguments):
            return arguments[place + 1]
    return "out"


def _of_message(case: Case, verdict: Verdict, said: list[str]) -> tuple[str, str]:
    """Return what is wrong with the exit code and with what was said."""
    code, error = verdict.code, said[1]
    if found := _LOG.search(error):
        with suppress(OSError):
            return "traceback", Path(found[1]).read_text("utf-8", "replace")[-3000:]
    if "Traceback" in error or "unforeseen" in error or "Traceback" in said[0]:
        return "traceback", error[-3000:]
    allowed = {0, 1, 2, 3} if case.storage_may_fail else {0, 2}
    if code not in allowed:
        return "wrong exit", f"exit code {code}"
    if code in (2, 3):
        lines = [line for line in error.splitlines() if not line.startswith("[")]
        if not 1 <= len(lines) <= 2 or len("".join(lines)) > LONGEST_MESSAGE:
            return "message", f"{len(lines)} lines, {len(error)} characters"
        if not lines[0].startswith("slicebeam: "):
            return "message", "it does not begin with the name of the command"
        if bad := re.search(r"[\x00-\x08\x0b-\x1f\x7f]", "\n".join(lines)):
            return "message", f"the control character {bad[0]!r} reaches the terminal"
    return "", ""


def _of_results(case: Case, data: Path, output: Path, verdict: Verdict) -> tuple[str, str]:
    """Return what is wrong with what was published, and with the reading layer alone."""
    if verdict.code in (0, 1) and _is_published(output):
        document, table = judging.published(output)
        try:
            reading = case.reading(data)
            problem = judging.misread(document, table, reading)
            if not problem and case.check:
                problem = case.check(data, document, table)
            verdict.judged = True
            if case.whole is not None:
                verdict.unnoticed = not judging.same(case.whole, reading.frame)
        except UnjudgedError:
            problem = ""
        except (TypeError, ValueError) as error:
            problem = f"a predicate that is none of this data: {error}"
        except UnreadableError as error:
            problem = f"a success, but the independent reader says: {error}"
        if problem:
            return "misread", problem
    elif verdict.code == 2 and _is_published(output) and "--explain" not in verdict.said:
        # What is to be explained is looked for when everything else is done.
        return "wrong exit", "refused, and published"
    if case.direct is None:
        return "", ""
    try:
        problem = case.direct(data)
    except (SlicebeamError, UnjudgedError):
        problem = ""
    except Exception:  # noqa: BLE001  (the reading layer has no other errors)
        return "traceback", traceback.format_exc()[-3000:]
    return ("misread", problem) if problem else ("", "")


def _is_published(output: Path) -> bool:
    try:
        return (output / "changelist.json").exists()
    except OSError:
        # A name that is too long for the system.
        return False
