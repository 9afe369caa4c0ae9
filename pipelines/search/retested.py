"""The second stage of a bootstrap: replicates for the slices that could become significant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from slicebeam.metrics.registry import metric
from slicebeam.metrics.significance.outcome_codes import Method, Reason
from slicebeam.transforms.count.tables import read_part, write_part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.metrics.testing.slice_test import SliceTest
    from slicebeam.transforms.storage.storage import StoragePath

# A cluster bootstrap of fewer groups has too few different replicates.
LEAST_GROUPS = 30
_COLUMNS = ("p", "reason", "method", "se")


@dataclass(frozen=True)
class BootstrapStage:
    """The replicates' results for some slices."""

    keys: Keys  # int64 [slices], sorted
    columns: dict[str, NDArray[Any]]  # by name, [slices]
    metrics: tuple[int, ...]  # numbers of the metrics whose tests resample examples

    @classmethod
    def read(
        cls,
        parts: list[StoragePath],
        groups: NDArray[np.int64] | None,
        tests: Mapping[int, SliceTest],
    ) -> BootstrapStage:
        """Read the parts of the second count."""
        metrics = tuple(tests)
        names = [f"{name}{number}" for number in metrics for name in _COLUMNS]
        read = [read_part(part) for part in parts]
        if not read:
            return cls(np.zeros(0, np.int64), {}, metrics)
        keys = np.concatenate([batch.column("key").to_numpy() for batch in read])
        order = np.argsort(keys)
        columns = {
            name: np.concatenate([batch.column(name).to_numpy() for batch in read])[order]
            for name in names
        }
        if groups is not None:
            few = groups < LEAST_GROUPS
            for number, test in tests.items():
                method = columns[f"method{number}"]
                by_groups = np.where(
                    method == Method.BOOTSTRAP_ROWS, Method.BOOTSTRAP_GROUPS, method
                )
                columns[f"method{number}"] = by_groups.astype(np.int8)
                _flip_whole_groups(columns, number, groups, test)
                columns[f"p{number}"] = np.where(few, 1.0, columns[f"p{number}"])
                for name, code in (("reason", Reason.FEW_GROUPS), ("method", 0)):
                    column = columns[f"{name}{number}"]
                    columns[f"{name}{number}"] = np.where(few, code, column).astype(np.int8)
        return cls(keys[order], columns, metrics)

    def rewrite(self, part: StoragePath, target: StoragePath) -> StoragePath:
        """Write a part of the first count with the replicates' results, and return its file."""
        batch = read_part(part)
        keys = batch.column("key").to_numpy()
        own = np.flatnonzero(np.isin(keys, self.keys))
        at = np.searchsorted(self.keys, keys[own])
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for number in self.metrics:
            p = np.array(columns[f"p{number}"])
            tested = ~np.isnan(p)
            reason, method = (np.array(columns[f"{name}{number}"]) for name in ("reason", "method"))
            reason[tested & (reason == 0)] = Reason.NOT_RESAMPLED
            p[tested], method[tested] = 1.0, 0
            changed = {
                "p": p,
                "reason": reason,
                "method": method,
                "se": np.array(columns[f"se{number}"]),
            }
            for name, column in changed.items():
                if own.size:
                    column[own] = self.columns[f"{name}{number}"][at]
                columns[f"{name}{number}"] = pa.array(column)
            if f"best{number}" in columns:
                columns[f"best{number}"] = columns[f"p{number}"]
        rewritten = pa.record_batch(list(columns.values()), names=list(columns))
        write_part(target, rewritten.replace_schema_metadata(batch.schema.metadata))
        return target


def _flip_whole_groups(
    columns: dict[str, NDArray[Any]], number: int, groups: NDArray[np.int64], test: SliceTest
) -> None:
    """Let a change that does not vary count once for each group, not for each example.

    If every example of a slice counts in its metric, all its groups change the same way: of the 2^G
    ways to exchange the two models in whole groups one is as extreme. Where only some count (recall,
    precision), or weights may be 0, nobody knows how many groups change.
    """
    names = [f"{name}{number}" for name in ("p", "reason", "method")]
    p, reason, method = (columns[name] for name in names)
    constant = (method != 0) & (method != Method.BOOTSTRAP_GROUPS)
    is_known = metric(test.metric).kind == "pointwise" and not test.space.weighted
    if is_known:
        fewest = np.exp2((test.alternative == "both") - groups.astype(np.float64))
        p = np.where(constant, np.maximum(p, fewest), p)
        method = np.where(constant, Method.SIGN_FLIP_GROUPS, method)
    else:
        p = np.where(constant, 1.0, p)
        reason, method = (
            np.where(constant, Reason.UNVARYING, reason),
            np.where(constant, 0, method),
        )
    columns.update(zip(names, (p, reason.astype(np.int8), method.astype(np.int8)), strict=True))
