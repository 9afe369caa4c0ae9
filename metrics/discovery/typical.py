"""Typical examples: the best few of each slice, over chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from slicebeam.metrics.discovery.chunks import Summed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray


Role: TypeAlias = Literal["representative", "improved", "degraded", "boundary"]
ROLES: tuple[Role, ...] = ("representative", "improved", "degraded", "boundary")


class TypicalExample(NamedTuple):
    """A shown example of a slice."""

    role: Role
    row: int
    log_odds: float  # of its membership, in nats
    change: float  # D, with the shift; NaN without changes


@dataclass(frozen=True)
class TopExamples:
    """The best ``most`` members of each slice in one role, by slice, the best first.

    Of equals the lower row is better. As no row comes twice, chunks may be cut anyhow.
    """

    role: Role
    most: int
    slices: IntArray
    rows: IntArray
    log_odds: FloatArray
    change: FloatArray

    def best(self) -> TopExamples:
        """Return the best of each slice, in order.

        - representative: the highest log-odds of membership.
        - improved, degraded: the largest and the smallest change; of equal ones, as there are many
          with zero-one loss, the highest log-odds.
        - boundary: the smallest log-odds, nearest to leaving the slice.
        """
        keys: dict[Role, tuple[FloatArray, ...]] = {
            "representative": (-self.log_odds,),
            "improved": (-self.log_odds, -self.change),
            "degraded": (-self.log_odds, self.change),
            "boundary": (self.log_odds,),
        }
        order = np.lexsort((self.rows, *keys[self.role], self.slices))
        slices = self.slices[order]
        place = np.arange(slices.size) - np.searchsorted(slices, slices)
        kept = order[place < self.most]
        return TopExamples(self.role, self.most, *(column[kept] for column in self._columns))

    @property
    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.slices, self.rows, self.log_odds, self.change

    def __add__(self, other: TopExamples) -> TopExamples:
        both = map(np.concatenate, zip(self._columns, other._columns, strict=True))
        return TopExamples(self.role, self.most, *both).best()


@dataclass(frozen=True)
class TypicalExamples(Summed):
    """Of each slice the best few members in each of `ROLES`."""

    top: tuple[TopExamples, ...]

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
        """Return those of one chunk, of members and log-odds [S, n] and rows [n], none twice."""
        slices, places = np.nonzero(members)
        D = np.full(rows.size, np.nan) if change is None else change
        inside = (slices, rows[places], log_odds[slices, places], D[places])
        return cls(tuple(TopExamples(role, most, *inside).best() for role in ROLES))

    def shown(self, number: int, *, shift: float = 0.0) -> list[TypicalExample]:
        """Return the examples of a slice, by role, the best first; one may have several roles.

        ``shift`` is added to every change D: with one model the mean loss, known after all chunks.
        """
        examples = []
        for top in self.top:
            inside = top.slices == number
            changes = top.change[inside] + shift
            for row, odds, D in zip(top.rows[inside], top.log_odds[inside], changes, strict=True):
                if (top.role == "improved" and not D > 0) or (top.role == "degraded" and not D < 0):
                    continue
                examples.append(TypicalExample(top.role, int(row), float(odds), float(D)))
        return examples
