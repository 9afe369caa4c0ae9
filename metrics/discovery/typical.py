"""Typical examples: the best few of each slice, over chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray


Role: TypeAlias = Literal["representative", "improved", "degraded", "boundary"]
ROLES: tuple[Role, ...] = ("representative", "improved", "degraded", "boundary")


class TypicalExample(NamedTuple):
    """A shown example of a slice."""

    role: Role  # what it shows
    row: int  # int Number of the example.
    log_odds: float  # float Of its membership, in nats.
    change: float  # float D, shifted as was asked for; NaN if it was not given.


@dataclass(frozen=True)
class TopExamples:
    """The best `most` members of each slice in one role; those of chunks merge by `+`."""

    role: Role  # what "best" means, see `TypicalExamples`
    most: int  # int, at least 1
    # slices, rows: [m] By slice, the best first. Rows decide between equals: the lower is better.
    # As no row comes twice, the order is total and the result the same however rows are divided
    # into chunks.
    slices: IntArray
    rows: IntArray
    # log_odds, change: [m]
    log_odds: FloatArray
    change: FloatArray

    def best(self) -> TopExamples:
        """Return the best `most` of each slice, in order."""
        order = np.lexsort((self.rows, *self._keys(), self.slices))
        slices = self.slices[order]
        place = np.arange(slices.size) - np.searchsorted(slices, slices)
        kept = order[place < self.most]
        return TopExamples(
            self.role,
            self.most,
            self.slices[kept],
            self.rows[kept],
            self.log_odds[kept],
            self.change[kept],
        )

    def _keys(self) -> tuple[FloatArray, ...]:
        """Return the sort keys, ascending, the last first."""
        if self.role == "representative":
            return (-self.log_odds,)
        if self.role == "boundary":
            return (self.log_odds,)
        return (-self.log_odds, -self.change if self.role == "improved" else self.change)

    def __add__(self, other: TopExamples) -> TopExamples:
        """Return the best of both."""
        if (self.role, self.most) != (other.role, other.most):
            raise ValueError(
                f"the best {self.most} of role {self.role} and the best {other.most} of role "
                f"{other.role} cannot be merged"
            )
        return TopExamples(
            self.role,
            self.most,
            np.concatenate([self.slices, other.slices]),
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.log_odds, other.log_odds]),
            np.concatenate([self.change, other.change]),
        ).best()


@dataclass(frozen=True)
class TypicalExamples:
    """Of each slice the best few members in each role; those of chunks merge by `+`.

    - representative: the highest log-odds of membership.
    - improved, degraded: the largest and the smallest change; of equal ones, as there are many with
      zero-one loss, the highest log-odds.
    - boundary: the smallest log-odds, nearest to leaving the slice.
    """

    top: tuple[TopExamples, ...]  # TopExamples of each of `ROLES`

    @classmethod
    def zero(cls, most: int) -> TypicalExamples:
        """Return those of no examples."""
        none, nothing = np.zeros(0, np.int64), np.zeros(0)
        return cls(tuple(TopExamples(role, most, none, none, nothing, nothing) for role in ROLES))

    @classmethod
    def of(
        cls,
        members: BoolArray,
        log_odds: FloatArray,
        rows: IntArray,
        most: int,
        change: FloatArray | None = None,
    ) -> TypicalExamples:
        """Return those of one chunk."""
        if members.shape != log_odds.shape or members.shape[1:] != rows.shape:
            raise ValueError(
                f"members of shape {members.shape}, log-odds of {log_odds.shape}, rows of "
                f"{rows.shape}"
            )
        if change is not None and change.shape != rows.shape:
            raise ValueError(f"changes of shape {change.shape}, rows of {rows.shape}")
        if most < 1:
            raise ValueError(f"most = {most} is below 1")
        slices, places = np.nonzero(members)
        D = np.full(rows.size, np.nan) if change is None else change
        inside = (slices, rows[places], log_odds[slices, places], D[places])
        return cls(tuple(TopExamples(role, most, *inside).best() for role in ROLES))

    def __add__(self, other: TypicalExamples) -> TypicalExamples:
        return TypicalExamples(
            tuple(mine + its for mine, its in zip(self.top, other.top, strict=True))
        )

    def shown(self, number: int, *, shift: float = 0.0) -> list[TypicalExample]:
        """Return the examples of a slice, by role, the best first; one may have several roles."""
        found = []
        for top in self.top:
            own = top.slices == number
            changes = top.change[own] + shift
            for row, odds, D in zip(top.rows[own], top.log_odds[own], changes, strict=True):
                if (top.role == "improved" and not D > 0) or (top.role == "degraded" and not D < 0):
                    continue
                found.append(TypicalExample(top.role, int(row), float(odds), float(D)))
        return found
