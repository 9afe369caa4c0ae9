"""What a case is, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


class UnreadableError(Exception):
    """The independent reader refuses the file: a run that succeeds has misread it."""


class UnjudgedError(Exception):
    """The independent reader cannot tell, such as a date before the year 1."""


@dataclass
class Reading:
    """What an independent reader says that a file holds.

    Attributes
    ----------
    frame : the examples
    types : Arrow type text that each column must have been given, where that is known
    unreadable : columns that are damaged, which a run may leave alone but not use
    """

    frame: pd.DataFrame
    types: dict[str, str] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()


@dataclass
class Case:
    """An input, and what it may lead to.

    Attributes
    ----------
    arguments : of the command; ``{folder}`` stands for the folder with the files
    files : what is in the folder
    mutated : the file that was changed, which is made smaller when the case fails
    mutations : what was done to it
    reading : tells what the examples are; raises `UnreadableError` where nobody should read them
    direct : reads the file with the reading layer alone and returns what is wrong
    check : judges what was published beyond its examples; returns what is wrong
    whole : the examples before the mutation
    storage_may_fail : whether the options name a place that cannot be written
    """

    arguments: list[str]
    files: dict[str, bytes]
    mutated: str
    mutations: list[str]
    reading: Callable[[Path], Reading]
    direct: Callable[[Path], str] | None = None
    check: Callable[[Path, dict[str, Any], list[dict[str, Any]]], str] | None = None
    whole: pd.DataFrame | None = None
    storage_may_fail: bool = False


# What a failure is called, the worst first.
PROBLEMS = ("crash", "hang", "traceback", "misread", "wrong exit", "message")


@dataclass
class Verdict:
    """What became of a case.

    Attributes
    ----------
    kind, seed, number : which case
    code : exit code of the command, None where it did not return
    problem : one of ``PROBLEMS``, or nothing
    detail : what is wrong
    said : what the command wrote on stderr
    seconds : elapsed
    unnoticed : the run is right about what the file says, which is not what it once said
    judged : whether the examples of a run that succeeded were held against a reading
    mutations : what was done to the file
    content : of the file, where it was not the case's own
    """

    kind: str
    seed: int
    number: int
    code: int | None
    problem: str = ""
    detail: str = ""
    said: str = ""
    seconds: float = 0.0
    unnoticed: bool = False
    judged: bool = False
    mutations: list[str] = field(default_factory=list)
    content: bytes | None = None
