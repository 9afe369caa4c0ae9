"""The work and the results of the iterations of a search, and who follows them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from slicebeam.pipelines.run.stage import Observer

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.engine import Cost
    from slicebeam.pipelines.search.slice_counter import CountedPart


@dataclass(frozen=True)
class IterationRecord:
    """The work of one iteration, as in the ChangeList."""

    iteration: int  # from 1
    candidates: int
    nonempty: int  # those with a nonempty slice: the paper's candidates
    nonempty_estimated: float | None  # how many of them were expected; None for batch
    tested: int  # slices that are large enough and were tested
    significant: int  # significant slices after this iteration, of all visited so far
    cpu_seconds: float
    wall_seconds: float
    shuffled_bytes: int

    def plus(self, cost: Cost) -> IterationRecord:
        """Return the record with what more work of the iteration cost."""
        return replace(
            self,
            cpu_seconds=self.cpu_seconds + cost.cpu_seconds,
            wall_seconds=self.wall_seconds + cost.wall_seconds,
            shuffled_bytes=self.shuffled_bytes + cost.shuffled_bytes,
        )


@dataclass(frozen=True)
class Progress:
    """What the user may be shown while the search runs."""

    iteration: int  # from 1
    candidates: int
    counted: Callable[[], int]
    significant: int


@dataclass(frozen=True)
class SearchResult:
    """What the iterations found."""

    strategy: str
    stopped: str  # ``exhausted`` or ``iterations``
    records: tuple[IterationRecord, ...]
    parts: list[CountedPart]
    tests_per_level: tuple[int, ...]  # slices of each level that the correction counts
    tested_per_level: tuple[int, ...]
    few_groups: Keys  # int64 [slices] resampled slices with few groups, though enough for a test
    most_groups: int | None = None  # of any slice, at most `ENOUGH_GROUPS`


class SearchObserver(Observer, Protocol):
    """Follows a search, a check or a discovery."""

    def prepared(self, prepared: EncodedDataset) -> None:
        """Show the prepared data."""

    def progress(self, progress: Progress) -> None:
        """Show that an iteration begins, and how far it is until the next."""

    def recorded(self, record: IterationRecord) -> None:
        """Receive the work and cost of an iteration."""


class SilentObserver:
    """Shows nothing, for a run within another one."""

    def _ignore(self, *_: object, **__: object) -> None: ...

    begin = note = stage = prepared = progress = recorded = _ignore
