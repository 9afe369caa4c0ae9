"""Feature domains: which singleton predicates a column has, and the code of every value.

A domain is an ordered list of disjoint singleton predicates (for list columns they may overlap).
The code of an example is the position of the predicate that it satisfies.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import ColumnError, InputError
from slicebeam.transforms.encode.predicates import Singleton, arrow_values, json_values, shortened

if TYPE_CHECKING:
    from numpy.typing import NDArray

Kind = Literal["categorical", "numeric", "list"]

# A text column of which more than this share of the values are distinct is an id or free text.
MOST_DISTINCT = 0.5
# Below this many values nothing can be said about a column being an id.
FEW_VALUES = 100
# An id of pairs: how often a value occurs at most, and what share of integers occurs just twice.
_MOST_OF_PAIR = 3
_TWICE = 0.8


@dataclass(frozen=True)
class ColumnSummary:
    """What the data of a run held of a column, which later data is compared with.

    Attributes
    ----------
    missing : examples without a value
    other : examples whose value has no predicate of its own; of a list column, elements
    largest_other : examples with the most frequent of these values
    low, high : smallest and largest value of a numeric column, as JSON; None for other columns
    below, above : examples with a value smaller or larger than any of the earlier run that the
        domain is from; None where its range is unknown
    """

    missing: int
    other: int = 0
    largest_other: int = 0
    low: Any = None
    high: Any = None
    below: int | None = None
    above: int | None = None


@dataclass(frozen=True)
class UnseenValue:
    """A value that an earlier run had no predicate for.

    Attributes
    ----------
    value : as JSON
    n : examples that hold it
    occurred : whether the earlier run may have held it among its other values
    """

    value: Any
    n: int
    occurred: bool = False


@dataclass(frozen=True)
class FeatureDomain:
    """The singleton predicates of one feature.

    Attributes
    ----------
    name : column
    kind : ``categorical`` (values, *other*, *missing*), ``numeric`` (bins, *missing*) or ``list``
        (a predicate per element, an example may satisfy many)
    data_type : Arrow type of the column, of the elements for a list; for a domain that other data
        brought, the type in which the column is held against the predicates
    singletons : the predicates; the position of a predicate is its code
    error : bound of the relative rank or count error of a sketch; 0.0 means exact
    closed : whether every value of the data has a code; false where other data brought the domain
        and it was not completed for this one
    seen : what the data held besides; None in a document of an older version
    new_values : those that the run which the domain is from had no predicate for
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

    def encode(self, values: pa.Array) -> NDArray[np.int64]:
        """Return the code of every value, ``size`` for a value that satisfies no predicate.

        Parameters
        ----------
        values : Arrow array [rows] of a type that casts to ``data_type``, not a list

        Returns
        -------
        int64 array [rows] in ``[0, radix)``

        Raises
        ------
        InputError
            A value that ``data_type`` does not hold, or that a closed domain has no bin for.
        """
        codes = self._numeric_codes(values) if self.kind == "numeric" else self._value_codes(values)
        if self.closed and codes.size and codes.max() >= self.size:
            row = int(np.argmax(codes))
            raise ColumnError(
                f"column {self.name!r} changed while it was read: {values[row]} has no bin"
            )
        return codes

    def names(self, values: pa.Array) -> NDArray[np.bool_]:
        """Return which values have a predicate of their own; not for numeric domains."""
        own = [one.op in ("==", "contains") for one in self.singletons]
        return np.array([*own, False])[self._value_codes(values)]

    def encode_lists(self, values: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (offsets [rows + 1], codes) of a list column: the predicates each example meets.

        An element that is repeated in an example counts once; one without a predicate is dropped.
        """
        rows = pc.list_parent_indices(values).to_numpy(zero_copy_only=False).astype(np.int64)
        codes = self._value_codes(pc.list_flatten(values))
        # _value_codes gives a null element the code of *missing*: only a null list is missing.
        keep = (codes < self.size) & (codes != self._null_code)
        packed = rows[keep] * (self.size + 1) + codes[keep]
        if self._missing is not None:
            nulls = np.flatnonzero(_mask(pc.is_null(values))).astype(np.int64)
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
    def _value_set(self) -> tuple[pa.Array, NDArray[np.int64]]:
        ops = {"==", "contains"}
        codes = [i for i, s in enumerate(self.singletons) if s.op in ops]
        values = self.constants([self.singletons[i].value for i in codes])
        if len(values.unique()) < len(values):
            raise self._too_narrow()
        return values, np.array(codes, np.int64)

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
        """Return values in the type in which they are compared with the predicates.

        Raises
        ------
        InputError
            A value that ``data_type`` does not hold.
        """
        kind = self._arrow_type
        if values.type == kind:
            return values
        try:
            # pandas rounds an integer, too, that it compares with a fraction.
            return values.cast(kind, safe=not pa.types.is_floating(kind))
        except pa.ArrowInvalid as error:
            reason = str(error).splitlines()[0]
            raise ColumnError(f"column {self.name!r} does not fit its domain: {reason}") from error

    def _value_codes(self, values: pa.Array) -> NDArray[np.int64]:
        if pa.types.is_dictionary(values.type):
            by_entry = np.append(self._value_codes(values.dictionary), self._null_code)
            # A null index stands for a missing value: the entry after the last.
            indices = pc.fill_null(values.indices.cast(pa.int64()), len(values.dictionary))
            return by_entry[indices.to_numpy(zero_copy_only=False)]
        value_set, codes = self._value_set
        missing = missing_mask(values)
        values = self.comparable(values)
        if pa.types.is_floating(values.type):
            # Adding zero makes -0.0 the 0.0 that it equals.
            values = pc.add(values, pa.scalar(0.0, values.type))
        found = pc.index_in(values, value_set=value_set)
        positions = pc.fill_null(found, len(codes)).to_numpy(zero_copy_only=False)
        unlisted = self.size if self._other is None else self._other
        coded = np.append(codes, unlisted)[positions]
        if missing is not None:
            coded[missing] = self._null_code
        return coded

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

    def _numeric_codes(self, values: pa.Array) -> NDArray[np.int64]:
        low, high, ops = self._bins
        first, last, point = (ops == op for op in ("<", ">=", "=="))
        missing = missing_mask(values)
        numbers = sortable(self.comparable(values))
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
        if missing is not None:
            codes[missing] = self._null_code
        return codes.astype(np.int64)


def arrow_type(text: str) -> pa.DataType:
    """Return the Arrow type of its text form, ``str(data_type)``.

    >>> arrow_type("timestamp[us, tz=UTC]")
    TimestampType(timestamp[us, tz=UTC])
    """
    head, _, rest = text.partition("[")
    if head == "timestamp":
        unit, _, zone = rest.rstrip("]").partition(", tz=")
        return pa.timestamp(unit, zone or None)
    if head.startswith("decimal"):
        name, _, digits = text.rstrip(")").partition("(")
        precision, scale = digits.split(",")
        return getattr(pa, name)(int(precision), int(scale))
    if head in ("date32", "date64"):
        return {"date32": pa.date32(), "date64": pa.date64()}[head]
    if head in ("time32", "time64"):
        return pa.type_for_alias(text)
    names = {"float": "float32", "double": "float64", "halffloat": "float16"}
    return pa.type_for_alias(names.get(text, text))


def _mask(values: pa.Array) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = values.to_numpy(zero_copy_only=False).astype(bool)
    return mask


def missing_mask(values: pa.Array) -> NDArray[np.bool_] | None:
    """Return where a column is null or NaN, None where nothing is."""
    missing = None
    if values.null_count:
        missing = _mask(pc.is_null(values))
    if pa.types.is_floating(values.type):
        nan = np.isnan(
            np.asarray(
                pc.fill_null(values, float("nan")) if values.null_count else values,
                dtype=np.float64,
            )
        )
        if nan.any():
            missing = nan
    return missing


def sortable(values: pa.Array) -> NDArray[Any]:
    """Return numbers that are ordered as the values are: int64, uint64 or float64 [rows].

    A null has any number: see `missing_mask`.

    Raises
    ------
    InputError
        A decimal of more than 18 digits, which no 64-bit number holds.
    """
    kind = values.type
    if pa.types.is_decimal(kind):
        try:
            narrow = values.cast(pa.decimal128(18, kind.scale))
        except pa.ArrowInvalid as error:
            raise InputError(f"{kind} values of more than 18 digits: cast the column") from error
        words = np.frombuffer(narrow.buffers()[1], dtype="<i8")[::2]
        return words[narrow.offset : narrow.offset + len(narrow)].copy()
    if pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        values = values.view(width).cast(pa.int64())
    elif pa.types.is_floating(kind):
        values = values.cast(pa.float64())
    elif kind != pa.uint64():
        values = values.cast(pa.int64())
    if values.null_count:
        values = pc.fill_null(values, 0)
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers


@dataclass(frozen=True)
class LeftOutColumn:
    """A column that is no feature, and why."""

    name: str
    reason: str


@dataclass
class ValueCounts:
    """How often each value of a column occurs: what a domain is learned from.

    Attributes
    ----------
    values : Arrow array [distinct] without missing values, sorted
    counts : int64 [distinct] examples with the value
    missing : examples without a value
    rows : all examples
    list_column : whether the values are elements of lists
    distinct : how many values there are, more than ``values`` where a sketch counted them
    """

    values: pa.Array
    counts: NDArray[np.int64]
    missing: int
    rows: int
    list_column: bool = False
    distinct: int = 0

    def __post_init__(self) -> None:
        self.distinct = max(self.distinct, len(self.values))


def is_categorical(kind: pa.DataType, distinct: int, bins: int) -> bool:
    """Return whether a column's values are categories: text, bool, integers with few values."""
    if pa.types.is_string(kind) or pa.types.is_boolean(kind):
        return True
    return bool(pa.types.is_integer(kind)) and distinct <= 2 * bins


def learn_domain(
    name: str,
    counted: ValueCounts,
    *,
    bins: int,
    top_values: int,
    named: bool,
    error: float = 0.0,
) -> FeatureDomain | LeftOutColumn:
    """Return the domain of a column, or why it has none.

    Parameters
    ----------
    name : column
    counted : all its values with their counts
    bins : quantile bins of a numeric column
    top_values : values of a categorical column that get a predicate of their own
    named : whether the user asked for this very column, which then is never taken for an id
    error : of the sketch that counted, 0.0 for exact counts
    """
    kind, distinct = counted.values.type, counted.distinct
    present = counted.rows - counted.missing
    if counted.list_column:
        present = int(counted.counts.sum())
    if distinct == 0:
        return LeftOutColumn(name, "every value is missing")
    if distinct == 1 and counted.missing == 0 and not counted.list_column:
        value = json_values(counted.values)[0]
        shown = shortened(value) if isinstance(value, str) else value
        return LeftOutColumn(name, f"one value only ({shown!r})")
    if pa.types.is_decimal(kind):
        try:
            sortable(counted.values)
        except InputError as too_wide:
            return LeftOutColumn(name, str(too_wide))
    ids = present > FEW_VALUES and not named
    # A sketch knows the number of distinct values to about one percent.
    most = present if error == 0 else 0.98 * present
    if ids and pa.types.is_integer(kind) and distinct >= most:
        return LeftOutColumn(name, f"all of its {present:,} integers are distinct: an id")
    if ids and pa.types.is_string(kind) and distinct > MOST_DISTINCT * present:
        return LeftOutColumn(
            name, f"{distinct:,} distinct values in {present:,}: an id or free text"
        )
    if ids and not error and not counted.list_column and _are_pairs(counted, distinct, present):
        return LeftOutColumn(
            name,
            f"{distinct:,} distinct values in {present:,}, about twice each: an id of pairs; name it "
            "in --features to keep it",
        )
    if counted.list_column:
        return _list_domain(name, counted, top_values, error)
    if is_categorical(kind, distinct, bins):
        domain = _categorical_domain(name, counted, top_values, error)
    else:
        domain = numeric_domain(name, counted, bins, error)
    return domain if domain.size > 1 else LeftOutColumn(name, "all of its values are in one bin")


def _are_pairs(counted: ValueCounts, distinct: int, present: int) -> bool:
    """Return whether the values of text or of integers occur about twice each, as ids of pairs do.

    Integers that measure something may repeat as seldom, but by chance: two in five of them at most
    occur twice. So nearly all have to.
    """
    kind, counts = counted.values.type, counted.counts
    if counts.max() > _MOST_OF_PAIR:
        return False
    if pa.types.is_string(kind):
        return distinct * _MOST_OF_PAIR >= present
    return bool(pa.types.is_integer(kind)) and np.mean(counts == 2) >= _TWICE


def most_frequent(counts: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return the positions of the most frequent values, ties by value, in the order of values."""
    order = np.lexsort((np.arange(counts.size), -counts))
    return np.sort(order[:most])


def _missing_singleton(name: str, missing: int) -> tuple[Singleton, ...]:
    return (Singleton(name, "is_null"),) if missing else ()


def _categorical_domain(
    name: str, counted: ValueCounts, top_values: int, error: float
) -> FeatureDomain:
    top = most_frequent(counted.counts, top_values)
    values = json_values(counted.values.take(pa.array(top)))
    singletons = [Singleton(name, "==", value) for value in values]
    if top.size < counted.distinct or error:
        singletons.append(Singleton(name, "not_in", values))
    singletons += _missing_singleton(name, counted.missing)
    return FeatureDomain(
        name,
        "categorical",
        str(counted.values.type),
        tuple(singletons),
        error,
        seen=_seen_besides(counted, top),
    )


def _seen_besides(counted: ValueCounts, named: NDArray[np.int64]) -> ColumnSummary:
    """Return what a column holds besides the values at some positions."""
    rest = np.delete(counted.counts, named)
    return ColumnSummary(int(counted.missing), int(rest.sum()), int(rest.max(initial=0)))


def _list_domain(name: str, counted: ValueCounts, top_values: int, error: float) -> FeatureDomain:
    top = most_frequent(counted.counts, top_values)
    values = json_values(counted.values.take(pa.array(top)))
    singletons = [Singleton(name, "contains", value) for value in values]
    singletons += _missing_singleton(name, counted.missing)
    return FeatureDomain(
        name,
        "list",
        str(counted.values.type),
        tuple(singletons),
        error,
        seen=_seen_besides(counted, top),
    )


def numeric_domain(name: str, counted: ValueCounts, bins: int, error: float = 0.0) -> FeatureDomain:
    """Return the bins of a numeric column.

    A value that alone holds more than 1/bins of the column gets a bin of its own (otherwise the
    deciles of a column that is mostly zero collapse to one); the others are cut at ``bins``
    quantiles. Edges are values of the data. Since a range must not contain a value that has a bin
    of its own, the ranges also break there.
    """
    values, counts = counted.values, counted.counts
    low, high = json_values(values.take(pa.array([0, len(values) - 1])))
    present = int(counts.sum())
    heavy = counts * bins > present
    if error:
        values, counts, heavy = _without_gaps(values, counts, heavy)
    lower = np.zeros(counts.size, bool)
    rest = np.where(heavy, 0, counts)
    before = np.cumsum(rest) - rest
    light = np.flatnonzero(~heavy)
    if light.size:
        # A bin begins at the value whose rank is nearest to the quantile, the lower one of two.
        targets = rest.sum() * np.arange(bins) / bins
        ranks = before[light]
        at = np.clip(np.searchsorted(ranks, targets), 1, max(light.size - 1, 1))
        nearer_below = targets - ranks[at - 1] <= ranks[np.minimum(at, light.size - 1)] - targets
        at = np.minimum(np.where(nearer_below, at - 1, at), light.size - 1)
        lower[light[at]] = True
        lower[light[0]] = True
    lower |= heavy
    after_heavy = np.flatnonzero(heavy) + 1
    lower[after_heavy[after_heavy < counts.size]] = True
    starts = np.flatnonzero(lower)
    values = json_values(values.take(pa.array(starts)))
    ends = np.append(starts[1:], counts.size)
    singletons = []
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if heavy[start]:
            singletons.append(Singleton(name, "==", values[i]))
        elif start == 0 and end == counts.size:
            # The only bin: all values, which the comparison with its smallest value says.
            singletons.append(Singleton(name, ">=", values[i]))
        elif start == 0:
            singletons.append(Singleton(name, "<", values[i + 1]))
        elif end == counts.size:
            singletons.append(Singleton(name, ">=", values[i]))
        else:
            singletons.append(Singleton(name, "between", [values[i], values[i + 1]]))
    singletons += _missing_singleton(name, counted.missing)
    return FeatureDomain(
        name,
        "numeric",
        str(counted.values.type),
        tuple(singletons),
        error,
        seen=ColumnSummary(int(counted.missing), low=low, high=high),
    )


def _without_gaps(
    values: pa.Array, counts: NDArray[np.int64], heavy: NDArray[np.bool_]
) -> tuple[pa.Array, NDArray[np.int64], NDArray[np.bool_]]:
    """Return sketched values with what comes next after each heavy one.

    A sketch does not know the smallest value above a heavy one, where a range has to begin for
    every value to be in a bin.
    """
    after = np.flatnonzero(heavy[:-1]) + 1
    following = successors(values.take(pa.array(after - 1)))
    is_gap = _mask(pc.not_equal(following, values.take(pa.array(after))))
    after, following = after[is_gap], following.filter(pa.array(is_gap))
    order = np.argsort(np.concatenate([np.arange(counts.size), after - 0.5]))
    return (
        pa.concat_arrays([values, following]).take(pa.array(order)),
        np.append(counts, np.zeros(after.size, np.int64))[order],
        np.append(heavy, np.zeros(after.size, bool))[order],
    )


def successors(values: pa.Array) -> pa.Array:
    """Return the next larger value of the type for each value."""
    kind = values.type
    if pa.types.is_floating(kind):
        numbers = values.to_numpy(zero_copy_only=False)
        return pa.array(np.nextafter(numbers, numbers.dtype.type(np.inf)))
    if pa.types.is_decimal(kind):
        unit = pa.scalar(decimal.Decimal(1).scaleb(-kind.scale), kind)
        return pc.add(values, unit).cast(kind)
    if pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pc.add(values.view(width), pa.scalar(1, width)).view(kind)
    return pc.add(values, pa.scalar(1, kind))
