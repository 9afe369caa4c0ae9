"""What is said while a job runs: Beam's log goes to a file, and an error becomes a line or two for the user."""

from __future__ import annotations

import logging
import re
import threading
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from slicebeam.metrics import errors
from slicebeam.metrics.errors import EngineError, SlicebeamError
from slicebeam.transforms.storage.secrets import redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class _LogFile(logging.FileHandler):
    """A log that ignores write errors, such as a full disk."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Drop the record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line with the names of variables in place of their values."""
        return redacted(super().format(record))

    def close(self) -> None:
        """Close the file, and drop pending writes that fail.

        Else a job that is done would fail, or one that failed would not say why.
        """
        with suppress(OSError):
            super().close()


def ignore_warnings_of_clients() -> None:
    """Show no warning of Google's clients about Python versions that they will not support for long."""
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"google\.")


@contextmanager
def importing_beam() -> Iterator[None]:
    """Drop warnings of Beam and Google's clients at their import, and leave the root logger as it was."""
    root = logging.getLogger()
    handlers = root.handlers[:]

    def is_shown(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("apitools not found")

    root.addFilter(is_shown)
    try:
        with warnings.catch_warnings():
            ignore_warnings_of_clients()
            yield
    finally:
        root.removeFilter(is_shown)
        root.handlers[:] = handlers


@contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Send all logs, of all threads, to a file.

    A worker's traceback is logged before its exception arrives, which tells the same in a line.
    """
    root, ours, hook = logging.getLogger(), logging.getLogger("slicebeam"), threading.excepthook
    handlers, level = root.handlers[:], ours.level
    threads = set(threading.enumerate())
    handler = _LogFile(path, delay=True, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.handlers[:] = [handler]
    # Warnings of libraries are left out where the command says so; what this package says is not.
    ours.setLevel(logging.INFO)
    threading.excepthook = _log_exception
    try:
        yield
    except KeyboardInterrupt:
        # Threads that wait for what was ended will still complain, and stay quiet.
        raise
    except BaseException:
        _restore(root, handlers, handler)
        threading.excepthook = _hide(set(threading.enumerate()) - threads, handlers, hook)
        raise
    finally:
        ours.setLevel(level)
    _restore(root, handlers, handler)
    threading.excepthook = hook


def _restore(
    root: logging.Logger, handlers: list[logging.Handler], handler: logging.Handler
) -> None:
    root.handlers[:] = handlers
    handler.close()


def _hide(
    threads: set[threading.Thread],
    handlers: list[logging.Handler],
    hook: Callable[[threading.ExceptHookArgs], object],
) -> Callable[[threading.ExceptHookArgs], object]:
    """Return the hook of threads that fail, but for those of a failed job, whose logs end too.

    Beam's threads go on reading from workers that have gone, and complain at any later moment.
    """
    left = WeakSet(threads)

    def is_shown(_: logging.LogRecord) -> bool:
        return threading.current_thread() not in left

    def failed(details: threading.ExceptHookArgs) -> None:
        if details.thread not in left:
            hook(details)

    # Where there are no handlers, those of last resort write to the terminal.
    for handler in filter(None, (*handlers, logging.lastResort)):
        handler.addFilter(is_shown)
    return failed


def _log_exception(details: threading.ExceptHookArgs) -> None:
    if details.exc_value is not None:
        logging.getLogger("apache_beam").error(
            "a thread failed", exc_info=(details.exc_type, details.exc_value, details.exc_traceback)
        )


@contextmanager
def own_labels() -> Iterator[None]:
    """Let Beam put no number of a cell before labels.

    For that it loads its interactive runner, which needs packages of its own and fails beside pandas 3
    (Beam 2.77).
    """
    # Here, since worker processes are started before this one loads Beam.
    from apache_beam import pipeline

    before = pipeline.alter_label_if_ipython
    pipeline.alter_label_if_ipython = lambda *_: None
    try:
        yield
    finally:
        pipeline.alter_label_if_ipython = before


# An engine hands an exception of a worker on as text, with the step's name and a traceback. Some
# put it through another language's quoting.
_OURS = re.compile(r"slicebeam\.metrics\.errors\.(\w+): (.+?)(?= \[while running|\\n|\n|$)")
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
    match = _OURS.search(text)
    if match is None:
        return None
    kind: type[SlicebeamError] = getattr(errors, match[1], EngineError)
    return kind(redacted(match[2].strip()))


def _reason(error: BaseException, text: str) -> str:
    """Return the one line that says most."""
    bare = _STEP.sub("", text).replace("\\n", "\n")
    for pattern in (_PYTHON, _JAVA, _CALL):
        if matches := pattern.findall(bare):
            kind, message = matches[-1]
            return _cut(f"{kind}: {message}")
    lines = [line for line in bare.splitlines() if line.strip()]
    return _cut(f"{type(error).__name__}: {lines[-1].strip() if lines else 'no message'}")


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
