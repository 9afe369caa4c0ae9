"""Tests slices by any of the tests, whatever the metric: the metric's own, or the paper's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from slicebeam.metrics import base
from slicebeam.metrics.registry import metric
from slicebeam.metrics.significance import paper

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.base import Alternative, CellSpace

Test = Literal["auto", "paper", "paper-cells"]

TESTS: tuple[Test, ...] = get_args(Test)

# A p-value that no float64 holds is told as the smallest one: nothing has probability zero.
SMALLEST_P = float(np.nextafter(0.0, 1.0))

# Slices that are tested at a time: the tests' temporary arrays take about 200 bytes a slice, and
# 20 replicates of 8 atoms take 1.3 kB.
_SLICES_AT_A_TIME = 1 << 16
_DRAWN_AT_A_TIME = 1 << 13


@dataclass(frozen=True)
class SliceTest:
    """What is tested and how.

    Attributes
    ----------
    metric : name of the metric
    space : the outcome cells
    totals : examples in each cell [cells], of all examples
    test : ``auto``, the calibrated test of the metric; ``paper``, t over Poisson-bootstrap
        replicates of the examples; ``paper-cells``, the same law drawn from the cell counts
    alternative : ``worse``, ``better`` or ``both``
    replicates, seed : of the bootstrap
    """

    metric: str
    space: CellSpace
    totals: tuple[int, ...]
    test: Test
    alternative: Alternative
    replicates: int
    seed: int

    def run(
        self, counts: NDArray[np.int64], totals: NDArray[np.int64]
    ) -> tuple[base.Tested, NDArray[np.float64]]:
        """Test slices.

        Parameters
        ----------
        counts : int64 [slices, 1 + replicates, cells]; replicates only for ``paper``
        totals : int64 [1 + replicates, cells] of all examples

        Returns
        -------
        tested : p-values, never 0, and reasons
        errors : float64 [slices] standard errors of the delta by the bootstrap; NaN for ``auto``
        """
        is_own = self.test == "auto"
        step = _SLICES_AT_A_TIME if is_own else _DRAWN_AT_A_TIME
        run = self._run_own if is_own else self._run_paper
        parts = [run(counts[i : i + step], totals) for i in range(0, len(counts), step)]
        if not parts:
            return base.Tested(np.zeros(0), np.zeros(0, np.int8)), np.zeros(0)
        p, reasons, errors = (np.concatenate(column) for column in zip(*parts, strict=True))
        return base.Tested(np.maximum(p, SMALLEST_P), reasons), errors

    def _run_own(
        self, counts: NDArray[np.int64], totals: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int8], NDArray[np.float64]]:
        tested = metric(self.metric).test(counts[:, 0], totals[0], self.space, self.alternative)
        return tested.p, tested.reasons, np.full(len(counts), np.nan)

    def _run_paper(
        self, counts: NDArray[np.int64], totals: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int8], NDArray[np.float64]]:
        own = metric(self.metric)
        observed = counts[:, 0]
        delta = own.delta(observed, totals[0], self.space)
        if self.test == "paper":
            drawn, drawn_totals = counts[:, 1:], np.broadcast_to(totals[1:], counts[:, 1:].shape)
        else:
            drawn, drawn_totals = self._drawn_cells(observed, totals[0])
        flat = drawn.reshape(-1, self.space.size)
        values = own.value(flat, self.space)
        if self.space.comparison == "baseline":
            references = own.value(flat, self.space, old=True)
        else:
            references = own.value(drawn_totals.reshape(flat.shape), self.space)
        deltas = (values - references).reshape(drawn.shape[:2])
        p, reasons, errors = paper.t_p_value(delta, deltas, own.tail(self.alternative))
        whole = observed.sum(axis=1) == totals[0].sum()
        if self.space.comparison == "overall":
            p, reasons = np.where(whole, 1.0, p), np.where(whole, base.WHOLE, reasons)
        return p, reasons.astype(np.int8), errors

    def _drawn_cells(
        self, observed: NDArray[np.int64], totals: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return replicate counts of the slices and of all examples, by independent atoms."""
        if self.space.comparison == "baseline":
            drawn = paper.poisson_cell_counts(observed, self.replicates, self.seed)
            return drawn, drawn
        atoms = np.concatenate([observed, totals[None, :] - observed], axis=1)
        drawn = paper.poisson_cell_counts(atoms, self.replicates, self.seed)
        inside, outside = drawn[..., : self.space.size], drawn[..., self.space.size :]
        return inside, inside + outside
