"""Domains of an earlier run, kept for new data: values without a predicate get one.

Bins and values do not change, so their slices keep their ids and can be compared. Added are new
frequent values, *other* values, *missing* ones, and numbers outside all bins. Predicates that no
example of this data satisfies are not added.

The predicates of a domain divide the values, so that each example is in one of them. Therefore an
*other* of the earlier run gives way to one that leaves out the new values as well: it is another set
of examples, with another id. Keeping the old one next to the new values would count examples twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.significance.count_tests import p_more_frequent
from slicebeam.transforms.encode.column import missing_mask, sortable, successors
from slicebeam.transforms.encode.domains import ColumnSummary, FeatureDomain, UnseenValue
from slicebeam.transforms.encode.predicates import Singleton, arrow_values, json_values
from slicebeam.transforms.encode.value_counts import most_frequent, present_values

if TYPE_CHECKING:
    from slicebeam.transforms.encode.value_counts import ValueCounts

# A value that was among the others then is named where it is more frequent than any of them was, and
# chance explains that less often than this. Without it the values around the last of --top-values
# would be named in turn, night after night, and *other* would never be the same.
SURELY = 1e-3
# Doubles hold all integers up to here.
_LARGEST_INTEGER = 2.0**53


@dataclass(frozen=True)
class FrozenDomain:
    """A domain of an earlier run, checked against this data."""

    domain: FeatureDomain
    examples: int

    @property
    def largest_other(self) -> int | None:
        """How many examples had the most frequent value without a predicate; None if unknown."""
        return self.domain.seen.largest_other if self.domain.seen is not None else None

    @property
    def missing(self) -> int | None:
        """How many examples had no value; None if unknown."""
        return self.domain.seen.missing if self.domain.seen is not None else None


def with_new_values(
    frozen: FrozenDomain, counted: ValueCounts, *, top_values: int, smallest: int
) -> FeatureDomain:
    """Return a categorical domain or that of a list column, completed for new data."""
    # Predicates keep their places; new ones follow: values, *other*, *missing*. A new value is named if it
    # is among the most frequent `top_values`, and at least `smallest` examples have it.
    domain, counts = frozen.domain, counted.counts
    values = domain.comparable(counted.values)
    undefined = missing_mask(values)
    if undefined is not None:
        # NaN in lists of integers that became doubles: an element without a value.
        values, counts = values.filter(pa.array(~undefined)), counts[~undefined]
    named = domain.names(values)
    most = frozen.largest_other
    chosen = ~named & (counts >= smallest)
    chosen &= np.isin(np.arange(counts.size), most_frequent(counts, top_values))
    if pa.types.is_floating(values.type):
        # Integers that became doubles, as pandas makes them where some are missing.
        numbers = values.to_numpy(zero_copy_only=False)
        chosen &= (np.floor(numbers) == numbers) & (np.abs(numbers) <= _LARGEST_INTEGER)
    if most:
        chosen[chosen] = (
            p_more_frequent(counts[chosen], counted.rows, most, frozen.examples) <= SURELY
        )
    listed = _json(values.take(pa.array(np.flatnonzero(chosen))))
    new = tuple(
        UnseenValue(value, n, occurred=most != 0)
        for value, n in zip(listed, counts[chosen].tolist(), strict=True)
    )
    rest = counts[~named & ~chosen]
    other = int(rest.sum())
    if counted.error and domain.kind == "categorical":
        # A sketch keeps no rare values.
        other = max(other, counted.rows - counted.missing - int(counts[named | chosen].sum()))
    return replace(
        domain,
        singletons=_completed(domain, listed, bool(other or counted.error), bool(counted.missing)),
        error=max(domain.error, counted.error),
        closed=True,
        seen=ColumnSummary(int(counted.missing), other, int(rest.max(initial=0))),
        new_values=new,
    )


def _json(values: pa.Array) -> list[Any]:
    listed = json_values(values)
    return [int(value) for value in listed] if pa.types.is_floating(values.type) else listed


def _completed(
    domain: FeatureDomain, new: list[Any], has_other: bool, has_missing: bool
) -> tuple[Singleton, ...]:
    name, is_list = domain.name, domain.kind == "list"
    op = "contains" if is_list else "=="
    ops = {one.op for one in domain.singletons}
    every = [one.value for one in domain.singletons if one.op == op] + new
    other = Singleton(name, "not_in", every)
    singletons = [other if one.op == "not_in" else one for one in domain.singletons]
    singletons += [Singleton(name, op, value) for value in new]
    if has_other and not is_list and "not_in" not in ops:
        singletons.append(other)
    if has_missing and "is_null" not in ops:
        singletons.append(Singleton(name, "is_null"))
    return tuple(singletons)


class FrozenBins:
    """Finds, chunk by chunk, the numbers outside the bins of an earlier run."""

    def __init__(self, frozen: FrozenDomain) -> None:
        self._domain = frozen.domain
        bins = _with_gaps(frozen.domain)
        self._is_gap = np.array([is_gap for _, is_gap in bins])
        self._every = replace(frozen.domain, singletons=tuple(one for one, _ in bins), closed=False)
        self._held = np.zeros(len(bins), np.int64)
        self._missing = self._below = self._above = 0
        seen = frozen.domain.seen
        self._range = None
        if seen is not None and seen.low is not None:
            self._range = sortable(frozen.domain.constants([seen.low, seen.high]))
        self._ends: list[pa.Array] = []

    def add(self, column: pa.ChunkedArray) -> None:
        """Look at a chunk's column."""
        for array in column.chunks:
            values = self._domain.comparable(array)
            present, missing = present_values(values)
            self._missing += missing
            if not len(present):
                continue
            numbers = sortable(present)
            self._ends.append(present.take(pa.array([numbers.argmin(), numbers.argmax()])))
            if self._range is not None:
                low, high = self._range
                self._below += int(np.count_nonzero(numbers < low))
                self._above += int(np.count_nonzero(numbers > high))
            codes = self._every.encode(present)
            self._held += np.bincount(codes, minlength=self._held.size + 1)[: self._held.size]

    def result(self) -> FeatureDomain:
        """Return the domain with a bin for each gap that holds an example, and with *missing*."""
        kept = np.flatnonzero(~self._is_gap | (self._held > 0))
        singletons = [self._every.singletons[at] for at in kept]
        nulls = [one for one in self._domain.singletons if one.op == "is_null"]
        if self._missing and not nulls:
            nulls = [Singleton(self._domain.name, "is_null")]
        low, high = self._low_and_high()
        is_known = self._range is not None
        return replace(
            self._domain,
            singletons=(*singletons, *nulls),
            closed=True,
            seen=ColumnSummary(
                self._missing,
                other=int(self._held[self._is_gap].sum()),
                low=low,
                high=high,
                below=self._below if is_known else None,
                above=self._above if is_known else None,
            ),
        )

    def _low_and_high(self) -> tuple[Any, Any]:
        if not self._ends:
            return None, None
        ends = pa.concat_arrays(self._ends)
        numbers = sortable(ends)
        low, high = json_values(ends.take(pa.array([numbers.argmin(), numbers.argmax()])))
        return low, high


def _with_gaps(domain: FeatureDomain) -> list[tuple[Singleton, bool]]:
    """Return the bins of a domain and those before, between and after them, and which are these."""
    # The bins of a run cover the range of its data except for what is next to a value with a bin of its
    # own.
    name = domain.name
    bins = [one for one in domain.singletons if one.op != "is_null"]
    edges = [one.value[0] if one.op == "between" else one.value for one in bins]
    begins = domain.constants(edges)
    ends = domain.constants([one.value[1] if one.op == "between" else one.value for one in bins])
    is_point = np.array([one.op == "==" for one in bins])
    after = pc.if_else(pa.array(is_point), successors(ends), ends)
    first, last = sortable(begins), sortable(ends)
    # The largest number of a type has none after it.
    is_end = is_point & (sortable(after) <= last)
    low, high = json_values(begins), json_values(after)
    if pa.types.is_floating(begins.type):
        # As they are printed: a column of floats rounds them.
        low = json_values(arrow_values(edges, pa.float64()))
    made: list[tuple[Singleton, bool]] = []
    if bins[0].op != "<":
        made.append((Singleton(name, "<", low[0]), True))
    for at, one in enumerate(bins):
        made.append((one, False))
        if one.op == ">=" or is_end[at]:
            continue
        if at + 1 == len(bins):
            made.append((Singleton(name, ">=", high[at]), True))
        elif sortable(after)[at] < first[at + 1]:
            made.append((Singleton(name, "between", [high[at], low[at + 1]]), True))
    return made
