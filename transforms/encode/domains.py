"""Feature domains: which singleton predicates a column has, and the code of every value.

A domain is an ordered list of disjoint singleton predicates (for list columns they may overlap).
The code of an example is the position of the predicate that it satisfies.

A domain of an earlier run keeps its bins and values, so that slices keep their ids, and gets
predicates for new frequent values, *other* and *missing* ones and numbers outside all bins, where
this data has any. The *other* of the earlier run gives way to one without the new values, with
another id: keeping both would count examples twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.arrays import Ragged
from slicebeam.metrics.errors import ColumnError, InputError
from slicebeam.metrics.significance.count_tests import p_more_frequent
from slicebeam.transforms.encode.column import (
    LARGEST_INTEGER,
    arrow_type,
    boolean_mask,
    missing_mask,
    sortable,
    successors,
)
from slicebeam.transforms.encode.predicates import Singleton, arrow_values, json_values
from slicebeam.transforms.encode.value_counts import most_frequent, present_values

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.transforms.encode.value_counts import ValueCounts

# An earlier *other* loses a value that is significantly more frequent than any in it was: else the values
# around the last of --top-values would be named in turn, and *other* would never be the same.
_NEW_VALUE_ALPHA = 1e-3

Kind = Literal["categorical", "numeric", "list"]


@dataclass(frozen=True)
class ColumnSummary:
    """A summary of a column in the data of a run; later data is compared with it.

    `other` examples (or list elements) have values without a predicate, `largest_other` the most frequent
    of these. `low`, `high` are the ends of a numeric column as JSON, and `below`, `above` how many examples
    are outside those of the run that the domain is from. None: unknown, or not for this kind.
    """

    missing: int
    other: int = 0
    largest_other: int = 0
    low: Any = None
    high: Any = None
    below: int | None = None
    above: int | None = None
    distinct: int | None = None


@dataclass(frozen=True)
class UnseenValue:
    """A value (JSON) without a predicate in an earlier run, which may have held it among the others."""

    value: Any
    n: int
    occurred: bool = False


@dataclass(frozen=True)
class FeatureDomain:
    """The singleton predicates of one feature: the position of a predicate is its code.

    A domain is ``categorical`` (values, *other*, *missing*), ``numeric`` (bins, *missing*) or a ``list``
    (a predicate per element, an example may satisfy many). `data_type` is the Arrow type in which values
    (or elements) are compared. `closed`: whether every value has a code; false for a domain of another run
    that was not extended to this data. `error` bounds the relative rank or count error of a sketch.
    """

    name: str
    kind: Kind
    data_type: str
    singletons: tuple[Singleton, ...]
    error: float = 0.0
    closed: bool = True
    seen: ColumnSummary | None = None
    new_values: tuple[UnseenValue, ...] = ()

    @property
    def size(self) -> int:
        """Number of predicates."""
        return len(self.singletons)

    @property
    def radix(self) -> int:
        """Number of codes: one more than predicates where a value may satisfy none."""
        return self.size + (0 if self.closed or self.kind == "list" else 1)

    def codes(self, values: pa.Array) -> IntArray | Ragged:
        """Return the codes of a column, of lists too."""
        return Ragged(*self.encode_lists(values)) if self.kind == "list" else self.encode(values)

    def encode(self, values: pa.Array) -> IntArray:
        """Return the code of every value, ``size`` for a value that satisfies no predicate: int64 [rows]."""
        codes = self._codes(values)
        if self.closed and codes.size and codes.max() >= self.size:
            row = int(np.argmax(codes))
            raise ColumnError(
                f"column {self.name!r} changed while it was read: {values[row]} has no bin"
            )
        return codes

    def encode_lists(self, values: pa.Array) -> tuple[IntArray, IntArray]:
        """Return (offsets [rows + 1], codes) of a list column: the predicates each example meets.

        An element that is repeated in an example counts once; one without a predicate is dropped.
        """
        rows = pc.list_parent_indices(values).to_numpy(zero_copy_only=False).astype(np.int64)
        codes = self._codes(pc.list_flatten(values))
        # A null element has the code of *missing*, but only a null list is missing.
        keep = (codes < self.size) & (codes != self._null_code)
        packed = rows[keep] * (self.size + 1) + codes[keep]
        if self._null_code < self.size:
            nulls = np.flatnonzero(boolean_mask(pc.is_null(values))).astype(np.int64)
            packed = np.concatenate([packed, nulls * (self.size + 1) + self._null_code])
        packed = np.unique(packed)
        lengths = np.bincount(packed // (self.size + 1), minlength=len(values))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return offsets, packed % (self.size + 1)

    @cached_property
    def _null_code(self) -> int:
        return next((i for i, s in enumerate(self.singletons) if s.op == "is_null"), self.size)

    @cached_property
    def _other_code(self) -> int:
        return next((i for i, s in enumerate(self.singletons) if s.op == "not_in"), self.size)

    @cached_property
    def _arrow_type(self) -> pa.DataType:
        return arrow_type(self.data_type)

    @cached_property
    def _value_set(self) -> tuple[pa.Array, IntArray]:
        coded: dict[Any, int] = {}
        for code, one in enumerate(self.singletons):
            if one.op in ("==", "contains", "in"):
                coded |= dict.fromkeys(one.value if one.op == "in" else [one.value], code)
        if self._other_code < self.size:
            # What *other* excludes without having a predicate satisfies none.
            coded = dict.fromkeys(self.singletons[self._other_code].value, self.size) | coded
        values = self.constants(list(coded))
        if len(values.unique()) < len(values) and self.size > 1:
            raise self._too_narrow()
        return values, np.array(list(coded.values()), np.int64)

    def constants(self, values: list[Any]) -> pa.Array:
        """Return JSON values in the type in which the column is compared with them."""
        kind = self._arrow_type
        if pa.types.is_floating(kind):
            # pandas rounds a constant to the width of the column that it is compared with.
            return arrow_values(values, pa.float64()).cast(kind)
        return arrow_values(values, kind)

    def _too_narrow(self) -> InputError:
        return InputError(
            f"{self._arrow_type} is too narrow to tell its predicates apart; cast the column to double"
        )

    def comparable(self, values: pa.Array) -> pa.Array:
        """Return values in the type in which they are compared with the predicates."""
        kind = self._arrow_type
        if values.type == kind:
            return values
        try:
            # pandas rounds an integer, too, that it compares with a fraction.
            return values.cast(kind, safe=not pa.types.is_floating(kind))
        except pa.ArrowInvalid as error:
            reason = str(error).splitlines()[0]
            raise ColumnError(f"column {self.name!r} does not fit its domain: {reason}") from error

    def _codes(self, values: pa.Array) -> IntArray:
        if pa.types.is_dictionary(values.type):
            # A null index stands for a missing value: the entry after the last.
            by_entry = np.append(self._codes(values.dictionary), self._null_code)
            indices = pc.fill_null(values.indices.cast(pa.int64()), len(values.dictionary))
            return by_entry[indices.to_numpy(zero_copy_only=False)]
        missing = missing_mask(values)
        values = self.comparable(values)
        codes = self._bin_codes(values) if self.kind == "numeric" else self._value_codes(values)
        if missing is not None:
            codes[missing] = self._null_code
        return codes

    def _value_codes(self, values: pa.Array) -> IntArray:
        value_set, codes = self._value_set
        if pa.types.is_floating(values.type):
            # Adding zero makes -0.0 the 0.0 that it equals.
            values = pc.add(values, pa.scalar(0.0, values.type))
        found = pc.index_in(values, value_set=value_set)
        positions = pc.fill_null(found, len(codes)).to_numpy(zero_copy_only=False)
        return np.append(codes, self._other_code)[positions]

    @cached_property
    def _bins(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.str_]]:
        """Lower edges, upper edges and ops of the numeric bins in order."""
        bins = [s for s in self.singletons if s.op != "is_null"]
        pairs = [s.value if s.op == "between" else [s.value, s.value] for s in bins]
        low, high = (sortable(self.constants([pair[i] for pair in pairs])) for i in (0, 1))
        ops = np.array([s.op for s in bins], str)
        if ((ops[:-1] == "==") & (low[:-1] == low[1:])).any():
            raise self._too_narrow()
        return low, high, ops

    def _bin_codes(self, values: pa.Array) -> IntArray:
        low, high, ops = self._bins
        numbers = sortable(values)
        # The first bin may have no lower edge: its place in the order is before all others.
        begin = int(np.count_nonzero(ops[:1] == "<"))
        codes = np.searchsorted(low[begin:], numbers, side="right") + begin - 1
        codes[codes < 0] = self.size
        if not self.closed:
            # The bins of other data may have gaps, after the first one too.
            held = codes < self.size
            at = np.where(held, codes, 0)
            last, point = ops == ">=", ops == "=="
            held &= np.where(point[at], numbers == low[at], last[at] | (numbers < high[at]))
            codes = np.where(held, codes, self.size)
        return codes.astype(np.int64)


@dataclass(frozen=True)
class LeftOutColumn:
    """A column that is not a feature, and why."""

    name: str
    reason: str


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
    """Return a categorical domain or that of a list column, completed for new data.

    Predicates keep their places; new ones follow: values, *other*, *missing*. A new value is named if it is
    among the most frequent `top_values`, and at least `smallest` examples have it.
    """
    domain, counts = frozen.domain, counted.counts
    values = domain.comparable(counted.values)
    undefined = missing_mask(values)
    if undefined is not None:
        # NaN in lists of integers that became doubles: an element without a value.
        values, counts = values.filter(pa.array(~undefined)), counts[~undefined]
    is_value = [one.op in ("==", "contains") for one in domain.singletons]
    named = np.array([*is_value, False])[replace(domain, closed=False).encode(values)]
    most = frozen.largest_other
    chosen = ~named & (counts >= smallest)
    chosen &= np.isin(np.arange(counts.size), most_frequent(counts, top_values))
    if pa.types.is_floating(values.type):
        # Integers that became doubles, as pandas makes them where some are missing.
        numbers = values.to_numpy(zero_copy_only=False)
        chosen &= (np.floor(numbers) == numbers) & (np.abs(numbers) <= LARGEST_INTEGER)
    if most:
        chosen[chosen] = (
            p_more_frequent(counts[chosen], counted.rows, most, frozen.examples) <= _NEW_VALUE_ALPHA
        )
    listed = json_values(values.take(pa.array(np.flatnonzero(chosen))))
    if pa.types.is_floating(values.type):
        listed = list(map(int, listed))
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
        self._missing = 0
        seen = frozen.domain.seen
        self._range = None
        if seen is not None and seen.low is not None:
            self._range = sortable(frozen.domain.constants([seen.low, seen.high]))
        self._beyond = np.zeros(2, np.int64)
        self._ends: list[pa.Array] = []

    def add(self, column: pa.ChunkedArray) -> None:
        """Look at a chunk's column."""
        for array in column.chunks:
            present, missing = present_values(self._domain.comparable(array))
            self._missing += missing
            if not len(present):
                continue
            numbers = sortable(present)
            self._ends.append(present.take(pa.array([numbers.argmin(), numbers.argmax()])))
            if self._range is not None:
                low, high = self._range
                self._beyond += np.count_nonzero([numbers < low, numbers > high], axis=1)
            codes = self._every.encode(present)
            self._held += np.bincount(codes, minlength=self._held.size + 1)[: self._held.size]

    def result(self) -> FeatureDomain:
        """Return the domain with a bin for each gap that holds an example, and with *missing*."""
        kept = np.flatnonzero(~self._is_gap | (self._held > 0))
        singletons = [self._every.singletons[at] for at in kept]
        nulls = [one for one in self._domain.singletons if one.op == "is_null"]
        if self._missing and not nulls:
            nulls = [Singleton(self._domain.name, "is_null")]
        other = int(self._held[self._is_gap].sum())
        seen = ColumnSummary(self._missing, other)
        if self._ends:
            ends = pa.concat_arrays(self._ends)
            numbers = sortable(ends)
            low, high = json_values(ends.take(pa.array([numbers.argmin(), numbers.argmax()])))
            seen = replace(seen, low=low, high=high)
        if self._range is not None:
            below, above = self._beyond.tolist()
            seen = replace(seen, below=below, above=above)
        return replace(self._domain, singletons=(*singletons, *nulls), closed=True, seen=seen)


def _with_gaps(domain: FeatureDomain) -> list[tuple[Singleton, bool]]:
    """Return the bins of a domain and those before, between and after them, and which are these."""
    # The bins of a run cover the range of its data except for what is next to a value with a bin of its
    # own.
    name = domain.name
    bins = [one for one in domain.singletons if one.op != "is_null"]
    pairs = [one.value if one.op == "between" else [one.value, one.value] for one in bins]
    edges, upper = map(list, zip(*pairs, strict=True))
    begins, ends = domain.constants(edges), domain.constants(upper)
    is_point = np.array([one.op == "==" for one in bins])
    following = pc.if_else(pa.array(is_point), successors(ends), ends)
    first, after = sortable(begins), sortable(following)
    # The largest number of a type has none after it.
    is_end = is_point & (after <= sortable(ends))
    low, high = json_values(begins), json_values(following)
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
        elif after[at] < first[at + 1]:
            made.append((Singleton(name, "between", [high[at], low[at + 1]]), True))
    return made
