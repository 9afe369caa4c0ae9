"""The error of an engine as one line for the user."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import (
    ColumnError,
    ConflictError,
    EngineError,
    FileError,
    InputError,
    OptionError,
    SlicebeamError,
    StorageError,
)
from slicebeam.transforms.secrets.variables import redacted

if TYPE_CHECKING:
    from pathlib import Path

# An engine hands an exception of a worker on as text, with the step's name and a traceback. Some
# put it through another language's quoting.
_KINDS: dict[str, type[SlicebeamError]] = {
    one.__name__: one
    for one in (
        *(InputError, OptionError, ColumnError, FileError),
        *(EngineError, StorageError, ConflictError),
    )
}
_OURS = re.compile(
    rf"slicebeam\.metrics\.errors\.({'|'.join(_KINDS)}): (.+?)(?= \[while running|\\n|\n|$)"
)
_STEP = re.compile(r" \[while running '.*?'\]", re.DOTALL)
# The last line of a Python traceback, and of a chain of Java's causes.
_PYTHON = re.compile(
    r"^((?!java|org\.)(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)): (.+)$", re.MULTILINE
)
_JAVA = re.compile(r"Caused by: (?:[\w.$]+\.)?([\w$]+): (.+)")
# What an error of gRPC says of itself.
_CALL = re.compile(r'status = StatusCode\.(\w+)\s+details = "(.*)"')
_LONGEST = 300
# What a worker's traceback ends in that had too little memory; Arrow's error is one of these.
_MEMORY = re.compile(r"^(?:[\w.]+\.)?(?:Arrow)?MemoryError\b", re.MULTILINE)
_OUT_OF_MEMORY = "a worker is out of memory; lower --memory-budget, or allow more (ulimit -v)"


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error comes from Ctrl-C, by the type of its cause.

    An interrupt in the runner's own thread arrives as an error of the worker.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, KeyboardInterrupt):
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False


def for_user(error: BaseException, log: Path | None = None) -> SlicebeamError:
    """Return the error that a worker raised for the user, found in the engine's error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, SlicebeamError):
            return type(cause)(redacted(_STEP.sub("", str(cause))))
        if isinstance(cause, MemoryError):
            return EngineError(_OUT_OF_MEMORY)
        cause = cause.__cause__
    text = str(error)
    ours = reported(text)
    if ours is not None:
        return ours
    if _MEMORY.search(text):
        return EngineError(_OUT_OF_MEMORY)
    more = f"; more in {log}" if log is not None else ""
    return EngineError(f"the engine failed: {_reason(error, redacted(text))}{more}")


def reported(text: str) -> SlicebeamError | None:
    """Return the slicebeam error in a text, None if there is none."""
    found = _OURS.search(text)
    if found is None:
        return None
    return _KINDS[found.group(1)](redacted(found.group(2).strip()))


def _reason(error: BaseException, text: str) -> str:
    """Return the one line that says most."""
    bare = _STEP.sub("", text).replace("\\n", "\n")
    for pattern in (_PYTHON, _JAVA, _CALL):
        found = pattern.findall(bare)
        if found:
            kind, message = found[-1]
            return _cut(f"{kind}: {message}")
    lines = [line for line in bare.splitlines() if line.strip()]
    return _cut(f"{type(error).__name__}: {lines[-1].strip() if lines else 'no message'}")


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
