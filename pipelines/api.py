"""The commands as functions of Python.

Their keywords are the options of the commands, with ``_`` for ``-``; ``api.pyi`` holds the signatures,
which `signatures` makes of the options' fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.python.python_runs import Report, run, run_document
from slicebeam.pipelines.python.signatures import docstring, first_argument, signature

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Report",
    "attribute",
    "check",
    "define",
    "discover",
    "edit",
    "export",
    "search",
    "shift",
]


def _function(name: str) -> Callable[..., Any]:
    """Return the function of a command, with its signature for `help` and notebooks."""
    runs = run if first_argument(name) == "data" else run_document

    def function(first: Any, /, **options: Any) -> Any:
        return runs(name, first, options)

    function.__name__ = function.__qualname__ = name.rsplit(maxsplit=1)[-1]
    function.__doc__ = docstring(name)
    function.__signature__ = signature(name)  # type: ignore[attr-defined]
    return function


search = _function("search")
discover = _function("discover")
check = _function("check")
shift = _function("shift")
define = _function("define")


class edit:  # noqa: N801  (it is called like a function: edit.rename)
    """Change the slices of a ChangeList. Every edit can be undone."""

    rename = staticmethod(_function("edit rename"))
    describe = staticmethod(_function("edit describe"))
    annotate = staticmethod(_function("edit annotate"))
    remove = staticmethod(_function("edit remove"))
    merge = staticmethod(_function("edit merge"))
    split = staticmethod(_function("edit split"))
    undo = staticmethod(_function("edit undo"))
    log = staticmethod(_function("edit log"))


class export:  # noqa: N801
    """Write a ChangeList in the form of another tool."""

    tfma = staticmethod(_function("export tfma"))


class attribute:  # noqa: N801
    """Test with a few labels whether words describe a slice."""

    sample = staticmethod(_function("attribute sample"))
    estimate = staticmethod(_function("attribute estimate"))
    run = staticmethod(_function("attribute run"))
