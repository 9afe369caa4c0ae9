"""Reads what a pickle holds without running anything of it.

A pickle says which functions to call with what. Here none is called, and nothing is imported: lists,
dictionaries, texts and numbers are read as they are, and every other object becomes an `Inert` one,
which only remembers the name of its class, what it was made of and what it holds.
"""

from __future__ import annotations

import pickle
from typing import IO, Any

from slicebeam.metrics.errors import FileError

# Containers that do nothing but hold.
_CONTAINERS = {
    ("collections", "OrderedDict"): dict,
    ("builtins", "dict"): dict,
    ("builtins", "list"): list,
    ("builtins", "set"): set,
    ("builtins", "tuple"): tuple,
}


class Inert:
    """An object of a pickle that nothing was made of.

    Attributes
    ----------
    module, name : of its class, or of the function that would have made it
    arguments : what that would have been called with
    state : attributes by name; empty where it has none
    items : what it would hold by keys, of a dictionary
    listed : what it would hold, of a list
    """

    module = name = ""
    arguments: tuple[Any, ...]
    state: dict[str, Any]
    items: dict[Any, Any]
    listed: list[Any]

    def __new__(cls, *arguments: Any, **_: Any) -> Inert:  # noqa: PYI034
        """Return one that remembers what it would be made of."""
        made = super().__new__(cls)
        made.arguments, made.state, made.items, made.listed = arguments, {}, {}, []
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        """Do nothing: a pickle may make an object without it."""

    def __setstate__(self, state: Any) -> None:
        parts = state if isinstance(state, tuple) else (state,)
        for part in parts:
            if isinstance(part, dict):
                self.state.update(part)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items[key] = value

    def append(self, value: Any) -> None:
        """Hold a further value."""
        self.listed.append(value)

    def extend(self, values: Any) -> None:
        """Hold further values."""
        self.listed.extend(values)

    def __call__(self, *arguments: Any, **_: Any) -> Inert:
        """Stand for what a call would have returned; nothing is called."""
        return _inert_class(self.module, self.name)(*arguments)

    def __hash__(self) -> int:
        return id(self)


def _inert_class(module: str, name: str) -> type[Inert]:
    return type(name.rpartition(".")[2] or "Inert", (Inert,), {"module": module, "name": name})


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a class or a function: never the real one."""
        return _CONTAINERS.get((module, name)) or _inert_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        """Return what stands for an object outside of the pickle."""
        return _inert_class("persistent", str(pid))()


def read_inert(stream: IO[bytes], where: str) -> Any:
    """Return what a pickle holds; nothing of it runs.

    Raises
    ------
    FileError
        It is no pickle.
    """
    try:
        return _Reader(stream).load()
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise FileError(
            f"{where} is no pickle that can be read ({type(error).__name__}: {reason})"
        ) from error
