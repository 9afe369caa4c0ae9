"""Where Beam's log goes while a job runs: to a file, never to the user's terminal."""

from __future__ import annotations

import logging
import threading
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from slicebeam.transforms.secrets.variables import redacted

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
    root, own, hook = logging.getLogger(), logging.getLogger("slicebeam"), threading.excepthook
    handlers, level = root.handlers[:], own.level
    threads = set(threading.enumerate())
    handler = _LogFile(path, delay=True, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.handlers[:] = [handler]
    # Warnings of libraries are left out where the command says so; what this package says is not.
    own.setLevel(logging.INFO)
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
        own.setLevel(level)
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
