"""The work and the results of the iterations of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.transforms.storage.storage import StoragePath


@dataclass(frozen=True)
class IterationRecord:
    """The work of one iteration, as in the ChangeList.

    Attributes
    ----------
    iteration : from 1
    nonempty : those with a nonempty slice: the paper's candidates
    nonempty_estimated : how many of them were expected; None for batch
    tested : slices that are large enough and were tested
    significant : significant slices after this iteration, of all visited so far
    """

    iteration: int
    candidates: int
    nonempty: int
    nonempty_estimated: float | None
    tested: int
    significant: int
    cpu_seconds: float
    wall_seconds: float
    shuffled_bytes: int


@dataclass(frozen=True)
class Progress:
    """What the user may be shown while the search runs.

    Attributes
    ----------
    iteration : from 1
    """

    iteration: int
    candidates: int
    counted: Callable[[], int]
    significant: int


@dataclass(frozen=True)
class SearchResult:
    """What the iterations found.

    Attributes
    ----------
    stopped : ``exhausted`` or ``iterations``
    tests_per_level : slices of each level that the correction counts
    few_groups : int64 [slices] resampled slices with few groups, though enough for a test
    most_groups : largest number of groups of any slice, at most `ENOUGH_GROUPS`; None without
        groups
    """

    strategy: str
    stopped: str
    records: tuple[IterationRecord, ...]
    parts: tuple[StoragePath, ...]
    tests_per_level: tuple[int, ...]
    tested_per_level: tuple[int, ...]
    few_groups: Keys
    most_groups: int | None = None
