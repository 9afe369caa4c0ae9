"""The commands as functions of Python, and the search as a transform of Beam.

Their keywords are the options of the commands, with ``_`` for ``-``; a command that
is a word of Python has ``_`` behind its name. ``api.pyi`` has the signatures, which `signatures`
generates from the fields of the options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.commands.table import COMMANDS, SUBCOMMANDS
from slicebeam.pipelines.python.python_runs import Report, run, run_document
from slicebeam.pipelines.python.signatures import (
    docstring,
    first_argument,
    function_name,
    signature,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def _function(name: str) -> Callable[..., Any]:
    """Return the function of a command, with its signature for `help` and notebooks."""
    argument = first_argument(name)

    def function(first: Any, /, **options: Any) -> Any:
        if argument == "data":
            return run(name, first, options)
        return run_document(name, first, options, argument)

    function.__name__ = function.__qualname__ = function_name(name)
    function.__doc__ = docstring(name)
    function.__signature__ = signature(name)  # type: ignore[attr-defined]
    return function


def _group(name: str) -> type:
    """Return the class whose functions are the commands within a command: `edit.rename`."""
    functions = {
        function_name(one): staticmethod(_function(f"{name} {one}")) for one in SUBCOMMANDS[name]
    }
    return type(name, (), {"__doc__": COMMANDS[name].help, "__module__": __name__, **functions})


def __getattr__(name: str) -> Any:
    """Import Beam only for a pipeline."""
    if name == "FindSlices":
        from slicebeam.pipelines.python.find_slices import FindSlices

        return FindSlices
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_commands: dict[str, Any] = {name: _function(name) for name, one in COMMANDS.items() if one.runs}
_commands |= {name: _group(name) for name in SUBCOMMANDS}
globals().update(_commands)
__all__ = ["FindSlices", "Report", *_commands]  # noqa: PLE0604, F822  (names that the table of commands gives)
