"""How surprising a candidate's sum is where whole groups of examples depend on each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import stdtr

from slicebeam.metrics.findings.covariance import Covariance
from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.findings.model import ExpectationModel
    from slicebeam.metrics.kinds import Tail

# Fewer groups say nothing of their variance.
LEAST_GROUPS = 30


class CellSums(NamedTuple):
    """Sums of a candidate's examples by cell, a pair of group and pattern."""

    cell: IntArray  # [held] distinct positions of the cells that hold some
    # size, total: [held] Σ weight and Σ weight·target
    size: FloatArray
    total: FloatArray


@dataclass(frozen=True)
class GroupSums:
    """Sums by group and pattern, of all examples and of a few candidates."""

    group: IntArray  # [cells] number of the group, from 0
    pattern: IntArray  # [cells] position of the pattern in the model
    # size, total: [cells] of all examples, 0 where the model does not have the pattern
    size: FloatArray
    total: FloatArray
    of: Sequence[CellSums]  # of each candidate

    @cached_property
    def groups(self) -> int:
        """Number of groups."""
        return int(self.group.max(initial=-1)) + 1

    def _by_group(self, values: FloatArray, cell: IntArray | None = None) -> FloatArray:
        group = self.group if cell is None else self.group[cell]
        return np.bincount(group, values, self.groups).astype(np.float64)

    def of_model(self, model: ExpectationModel) -> FloatArray:
        """Return the deviations of all examples by group and column of the model [groups, rank]."""
        deviation = self.total - self.size * model.expected[self.pattern]
        X = model.design[:, model.columns][self.pattern]
        return np.stack([self._by_group(deviation * x) for x in X.T], axis=1)

    def p_value(
        self,
        candidate: int,
        model: ExpectationModel,
        of_model: FloatArray,
        slopes: FloatArray,
        tail: Tail,
    ) -> float:
        """Return the p-value of a candidate's excess over the model; see `group_p_value`."""
        own = self.of[candidate]
        excess = own.total - own.size * model.expected[self.pattern[own.cell]]
        return group_p_value(
            self._by_group(excess, own.cell),
            of_model,
            slopes,
            self._by_group(own.size, own.cell),
            tail,
        )

    def change_p_value(self, candidate: int, none: float, tail: Tail) -> float:
        """Return the p-value of a candidate's mean against a fixed one, that of no change."""
        own = self.of[candidate]
        change = self._by_group(own.total - own.size * none, own.cell)
        sizes = self._by_group(own.size, own.cell)
        return group_p_value(change, np.zeros((self.groups, 1)), np.zeros(1), sizes, tail)

    def covariance(
        self, candidate: int, taken: FloatArray, inside: FloatArray, outside: FloatArray
    ) -> Covariance:
        """Return the covariance of a candidate's value and expectation."""
        own = self.of[candidate]
        within = own.total - own.size * inside[self.pattern[own.cell]]
        rest, left = self.total.copy(), self.size.copy()
        rest[own.cell] -= own.total
        left[own.cell] -= own.size
        apart = rest - left * outside[self.pattern]
        apart[own.cell] += within
        value = self._by_group(within, own.cell)
        expected = self._by_group(apart * taken[self.pattern])
        size, groups = float(own.size.sum()), self.groups
        scale = groups / max(groups - 1.0, 1.0) / size**2
        return Covariance(
            float(value @ value) * scale,
            float(value @ expected) * scale,
            float(expected @ expected) * scale,
        )


def group_p_value(
    excess: ArrayLike, of_model: ArrayLike, slopes: ArrayLike, sizes: ArrayLike, tail: Tail
) -> float:
    """Return the p-value of a candidate's excess where whole groups of examples are independent.

    The group's scores e = excess − of_model·slopes add up to the whole excess; their squares
    estimate its variance whatever the dependence within groups (Liang and Zeger 1986, Biometrika
    73:13). About the mean score of the candidate's groups and with G − 1 degrees of freedom, as
    Student's t of G means: G is Kish's number Σ(n)²/Σn² where groups are of unequal size. No more
    than the chance that all groups' signs agree can be known of few groups.
    """
    own, whole = np.asarray(excess, np.float64), np.asarray(of_model, np.float64)
    n = np.asarray(sizes, np.float64)
    held = n > 0
    groups = int(np.count_nonzero(held))
    if groups < LEAST_GROUPS:
        return 1.0
    scores = own - whole @ np.asarray(slopes, np.float64)
    total = float(scores.sum())
    effective = float(n.sum() ** 2 / (n**2).sum())
    centred = float((scores**2).sum() - scores[held].sum() ** 2 / groups)
    variance = max(centred, 0.0) * groups / (groups - 1.0)
    if not variance > 0:
        if not total:
            return 1.0
        towards = 0.0
    else:
        towards = float(stdtr(max(effective - 1.0, 1.0), -abs(total) / np.sqrt(variance)))
    towards = min(1.0, max(towards, 2.0 ** -min(groups, 900)))
    upper, lower = (towards, 1.0 - towards) if total >= 0 else (1.0 - towards, towards)
    return float(select_tail(np.array([upper]), np.array([lower]), tail)[0])
