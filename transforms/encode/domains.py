"""Feature domains: which singleton predicates a column has, and the code of every value.

A domain is an ordered list of disjoint singleton predicates (for list columns they may overlap).
The code of an example is the position of the predicate that it satisfies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.counting.counting import Ragged
from slicebeam.metrics.errors import ColumnError, InputError
from slicebeam.transforms.encode.column import arrow_type, boolean_mask, missing_mask, sortable
from slicebeam.transforms.encode.predicates import Singleton, arrow_values

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, IntArray


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

    def names(self, values: pa.Array) -> BoolArray:
        """Return which values have a predicate of their own; not for numeric domains."""
        own = [one.op in ("==", "contains") for one in self.singletons]
        return np.array([*own, False])[self._codes(values)]

    def encode_lists(self, values: pa.Array) -> tuple[IntArray, IntArray]:
        """Return (offsets [rows + 1], codes) of a list column: the predicates each example meets.

        An element that is repeated in an example counts once; one without a predicate is dropped.
        """
        rows = pc.list_parent_indices(values).to_numpy(zero_copy_only=False).astype(np.int64)
        codes = self._codes(pc.list_flatten(values))
        # A null element has the code of *missing*, but only a null list is missing.
        keep = (codes < self.size) & (codes != self._null_code)
        packed = rows[keep] * (self.size + 1) + codes[keep]
        if self._missing is not None:
            nulls = np.flatnonzero(boolean_mask(pc.is_null(values))).astype(np.int64)
            packed = np.concatenate([packed, nulls * (self.size + 1) + self._missing])
        packed = np.unique(packed)
        lengths = np.bincount(packed // (self.size + 1), minlength=len(values))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return offsets, packed % (self.size + 1)

    @cached_property
    def _missing(self) -> int | None:
        return next((i for i, s in enumerate(self.singletons) if s.op == "is_null"), None)

    @cached_property
    def _other(self) -> int | None:
        return next((i for i, s in enumerate(self.singletons) if s.op == "not_in"), None)

    @cached_property
    def _arrow_type(self) -> pa.DataType:
        return arrow_type(self.data_type)

    @cached_property
    def _value_set(self) -> tuple[pa.Array, IntArray]:
        coded: dict[Any, int] = {}
        for code, one in enumerate(self.singletons):
            if one.op in ("==", "contains", "in"):
                coded |= dict.fromkeys(one.value if one.op == "in" else [one.value], code)
        if self._other is not None:
            # What *other* excludes without having a predicate satisfies none.
            coded = dict.fromkeys(self.singletons[self._other].value, self.size) | coded
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
        return np.append(codes, self.size if self._other is None else self._other)[positions]

    @property
    def _null_code(self) -> int:
        return self.size if self._missing is None else self._missing

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
        first, last, point = (ops == op for op in ("<", ">=", "=="))
        numbers = sortable(values)
        # The first bin has no lower edge: its place in the order is before all others.
        inner = low[1:] if first.size and first[0] else low
        shift = 0 if first.size and first[0] else -1
        codes = np.searchsorted(inner, numbers, side="right") + shift
        codes[codes < 0] = self.size
        if not self.closed:
            held = codes < self.size
            at = np.where(held, codes, 0)
            # The bins of other data may have gaps, after the first one too.
            held &= np.where(point[at], numbers == low[at], last[at] | (numbers < high[at]))
            codes = np.where(held, codes, self.size)
        return codes.astype(np.int64)


@dataclass(frozen=True)
class LeftOutColumn:
    """A column that is not a feature, and why."""

    name: str
    reason: str
