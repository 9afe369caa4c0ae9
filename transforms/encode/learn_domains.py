"""The domains of columns, learned in one pass from how often each value occurs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import InputError, shortened
from slicebeam.transforms.encode.column import (
    boolean_mask,
    from_numbers,
    plain_type,
    sortable,
    successors,
)
from slicebeam.transforms.encode.domains import (
    ColumnSummary,
    FeatureDomain,
    FrozenBins,
    FrozenDomain,
    Kind,
    LeftOutColumn,
    UnseenValue,
    with_new_values,
)
from slicebeam.transforms.encode.predicates import Singleton, json_values
from slicebeam.transforms.encode.sources import read_split
from slicebeam.transforms.encode.value_counts import (
    ColumnCounter,
    ValueCounts,
    most_frequent,
    unsupported,
)
from slicebeam.transforms.storage.parts import WriteParts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, IntArray
    from slicebeam.transforms.encode.sources import Source
    from slicebeam.transforms.storage.storage import StoragePath

# A distinct value takes about its own width and a count, and twice that while parts are merged.
_BYTES_PER_ROW = 48


@dataclass(frozen=True)
class DomainOptions:
    """How columns are divided into predicates.

    Domains in `frozen` are kept and completed, where a new value needs `smallest` examples to be named.
    """

    bins: int
    top_values: int
    named: frozenset[str]
    memory: int
    frozen: Mapping[str, FrozenDomain] = field(default_factory=dict)
    smallest: int = 1
    exact_edges: bool = False


def learn_columns(
    source: Source, features: Sequence[str], options: DomainOptions
) -> Iterator[FeatureDomain | LeftOutColumn]:
    """Yield the domain of each feature, or why it has none, reading only these columns."""
    kinds = {name: source.schema.field(name).type for name in features}
    for name, kind in [*kinds.items()]:
        if name not in options.frozen and (reason := unsupported(kind)):
            yield LeftOutColumn(name, reason)
            del kinds[name]
    counters: dict[str, ColumnCounter | FrozenBins] = {}
    for name, kind in kinds.items():
        frozen = options.frozen.get(name)
        counters[name] = (
            FrozenBins(frozen)
            if frozen and frozen.domain.kind == "numeric"
            else ColumnCounter(plain_type(kind), options.memory // 3 // len(kinds))
        )
    for split in source.splits if kinds else ():
        for chunk in read_split(source, split, list(kinds)):
            for name, counter in counters.items():
                counter.add(chunk.table.column(name))
    top = options.top_values
    for name, counter in counters.items():
        counted = counter.result()
        if isinstance(counted, FeatureDomain):
            yield counted
        elif frozen := options.frozen.get(name):
            yield with_new_values(frozen, counted, top_values=top, smallest=options.smallest)
        else:
            yield learn_domain(
                name,
                counted,
                bins=options.bins,
                top_values=top,
                named=name in options.named,
                exact_edges=options.exact_edges,
            )


def domain_from_json(shape: dict[str, Any]) -> FeatureDomain | LeftOutColumn:
    """Return the domain of its JSON form."""
    if "reason" in shape:
        return LeftOutColumn(**shape)
    parts = {
        "singletons": tuple(Singleton(**singleton) for singleton in shape["singletons"]),
        "seen": ColumnSummary(**shape["seen"]) if shape["seen"] else None,
        "new_values": tuple(UnseenValue(**value) for value in shape["new_values"]),
    }
    return FeatureDomain(**{**shape, **parts})


def _learned(source: Source, options: DomainOptions, features: tuple[str, ...]) -> pa.RecordBatch:
    shapes = map(asdict, learn_columns(source, features, options))
    return pa.record_batch([pa.array(map(json.dumps, shapes), pa.string())], names=["domain"])


def learn_domains(
    source: Source, features: Sequence[str], options: DomainOptions, folder: StoragePath
) -> WriteParts:
    """Return the transform that writes the domains of all features, a part for a group of columns."""
    # The distinct values of a group fit the memory together.
    width = max(1, options.memory // 2 // max(1, source.rows * _BYTES_PER_ROW))
    groups = [tuple(features[i : i + width]) for i in range(0, len(features), width)]
    return WriteParts(partial(_learned, source, options), groups, folder)


def written_domains(parts: Sequence[pa.Table]) -> list[FeatureDomain | LeftOutColumn]:
    """Return what `learn_domains` wrote, in the order of the features."""
    texts = [text for part in parts for text in part.column("domain").to_pylist()]
    return [domain_from_json(json.loads(text)) for text in texts]


# A text column of which more than this share of the values are distinct is an id or free text.
MOST_DISTINCT = 0.5
# Below this many values nothing can be said about a column being an id.
FEW_VALUES = 100
# An id of pairs: how often a value occurs at most, and what share of integers occurs just twice.
_MOST_OF_PAIR = 3
_TWICE = 0.8


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
    exact_edges: bool = False,
) -> FeatureDomain | LeftOutColumn:
    """Return the domain of a column, or why it has none; what the user `named` is never taken for an id."""
    if reason := _left_out_because(counted, named=named):
        return LeftOutColumn(name, reason)
    values = counted.values.type
    kind: Kind = "list" if counted.list_column else "categorical"
    if kind == "list" or is_categorical(values, counted.distinct, bins):
        singletons, seen = _most_frequent_values(name, kind, counted, top_values)
    else:
        kind = "numeric"
        singletons, seen = _quantile_bins(name, counted, bins, exact_edges=exact_edges)
    if counted.missing:
        singletons.append(Singleton(name, "is_null"))
    if kind != "list" and len(singletons) < 2:
        return LeftOutColumn(name, "all of its values are in one bin")
    return FeatureDomain(name, kind, str(values), tuple(singletons), counted.error, seen=seen)


def _left_out_because(counted: ValueCounts, *, named: bool) -> str | None:
    kind, distinct = counted.values.type, counted.distinct
    present = counted.rows - counted.missing
    if counted.list_column:
        present = int(counted.counts.sum())
    if distinct == 0:
        return "every value is missing"
    if distinct == 1 and counted.missing == 0 and not counted.list_column:
        value = json_values(counted.values)[0]
        shown = shortened(value) if isinstance(value, str) else value
        return f"one value only ({shown!r})"
    if pa.types.is_decimal(kind):
        try:
            sortable(counted.values)
        except InputError as too_wide:
            return str(too_wide)
    if named or present <= FEW_VALUES:
        return None
    # A sketch knows the number of distinct values to about one percent.
    most = 0.98 * present if counted.error else present
    if pa.types.is_integer(kind) and distinct >= most:
        return f"all of its {present:,} integers are distinct: an id"
    if pa.types.is_string(kind) and distinct > MOST_DISTINCT * present:
        return f"{distinct:,} distinct values in {present:,}: an id or free text"
    if _are_pairs(counted, distinct, present):
        return (
            f"{distinct:,} distinct values in {present:,}, about twice each: an id of pairs; name "
            "the column in --features to keep it"
        )
    return None


def _are_pairs(counted: ValueCounts, distinct: int, present: int) -> bool:
    """Return whether the values of text or of integers occur about twice each, as ids of pairs do."""
    # Integers that measure something may repeat as seldom, but by chance: two in five of them at most
    # occur twice. So nearly all have to.
    kind, counts = counted.values.type, counted.counts
    if counted.error or counted.list_column or counts.max() > _MOST_OF_PAIR:
        return False
    if pa.types.is_string(kind):
        return distinct * _MOST_OF_PAIR >= present
    return bool(pa.types.is_integer(kind)) and np.mean(counts == 2) >= _TWICE


def _most_frequent_values(
    name: str, kind: Kind, counted: ValueCounts, top_values: int
) -> tuple[list[Singleton], ColumnSummary]:
    top = most_frequent(counted.counts, top_values)
    values = json_values(counted.values.take(pa.array(top)))
    op = "contains" if kind == "list" else "=="
    singletons = [Singleton(name, op, value) for value in values]
    if kind != "list" and (top.size < counted.distinct or counted.error):
        singletons.append(Singleton(name, "not_in", values))
    rest = np.delete(counted.counts, top)
    distinct = None if kind == "list" else int(counted.distinct)
    seen = ColumnSummary(
        int(counted.missing), int(rest.sum()), int(rest.max(initial=0)), distinct=distinct
    )
    return singletons, seen


def _quantile_bins(
    name: str, counted: ValueCounts, bins: int, *, exact_edges: bool
) -> tuple[list[Singleton], ColumnSummary]:
    # A value that alone holds more than 1/bins of the column gets a bin of its own (else the deciles of a
    # column that is mostly zero collapse to one). A range must not contain it, so ranges break there.
    values, counts = counted.values, counted.counts
    low, high = json_values(values.take(pa.array([0, len(values) - 1])))
    present = int(counts.sum())
    heavy = counts * bins > present
    if counted.error:
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
    lower[1:] |= heavy[:-1]
    starts = np.flatnonzero(lower)
    if exact_edges:
        edges = json_values(values.take(pa.array(starts)))
    else:
        edges = rounded_edges(values, counts, starts, heavy[starts], bins)
    singletons = []
    for i, edge in enumerate(edges):
        if heavy[starts[i]]:
            singletons.append(Singleton(name, "==", edge))
        elif i + 1 == len(edges):
            # Where it is the only bin all values are in it.
            singletons.append(Singleton(name, ">=", edge))
        elif i == 0:
            singletons.append(Singleton(name, "<", edges[1]))
        else:
            singletons.append(Singleton(name, "between", [edge, edges[i + 1]]))
    seen = ColumnSummary(int(counted.missing), low=low, high=high, distinct=int(counted.distinct))
    return singletons, seen


def _without_gaps(
    values: pa.Array, counts: IntArray, heavy: BoolArray
) -> tuple[pa.Array, IntArray, BoolArray]:
    """Return sketched values, with the next value after each heavy one."""
    # A sketch does not know the smallest value above a heavy one, where a range has to begin for
    # every value to be in a bin.
    after = np.flatnonzero(heavy[:-1]) + 1
    following = successors(values.take(pa.array(after - 1)))
    is_gap = boolean_mask(pc.not_equal(following, values.take(pa.array(after))))
    after, following = after[is_gap], following.filter(pa.array(is_gap))
    order = np.argsort(np.concatenate([np.arange(counts.size), after - 0.5]))
    values = pa.concat_arrays([values, following]).take(pa.array(order))
    return values, np.insert(counts, after, 0), np.insert(heavy, after, False)


# A bin's share changes by at most this part of 1/bins.
_PARTS = 4
_UNITS = ("Y", "M", "D", "h", "m", "s", "ms", "us", "ns")
_UNITS_OF_A_DAY = _UNITS[3:]
# No number has more digits: 20 of an integer, 17 of a double.
_CONTEXT = Context(prec=40)


def rounded_edges(
    values: pa.Array, counts: IntArray, starts: IntArray, is_point: BoolArray, bins: int
) -> list[Any]:
    """Return where bins begin, each at the number with the fewest significant digits that will do.

    An edge will do if, of the examples whose value has no bin of its own (`is_point`), it moves at most
    1/(4·bins) into or out of each of its two bins, and each keeps a value; what a point and the bin after it
    hold stays. Of two numbers with as many digits the nearer one is chosen, else the lower one. Dates and
    times are cut to years, months, …, fractions of a second, in the time zone of the column. Values are
    ascending, `starts` the positions at which bins begin. The edges are JSON; those of floats are the
    doubles that the digits mean, compared in the width of the column.
    """
    numbers = sortable(values)
    below: list[int] = np.concatenate([[0], np.cumsum(counts)]).tolist()
    others = below[-1] - int(counts[starts[is_point]].sum())
    begins: list[int] = starts.tolist()
    ends = [*begins[1:], len(values)]
    exact = values.take(pa.array(starts))
    widths = _widths(values.type, numbers)
    is_floating = pa.types.is_floating(values.type)
    # Of floats the doubles with the fewest digits.
    chosen = list(map(float, json_values(exact))) if is_floating else sortable(exact).tolist()
    at = moved = 0
    for i in range(1, len(begins)):
        begin, previous, moved_before = begins[i], at, moved
        at, moved = begin, 0
        if is_point[i]:
            continue
        for candidate in _candidates(exact.slice(i, 1), chosen[i], numbers):
            with np.errstate(over="ignore"):
                # A number is rounded to the width of the column that it is compared with.
                compared = [numbers.dtype.type(width(candidate)) for width in widths]
            position, *again = np.unique(np.searchsorted(numbers, compared)).tolist()
            if again:
                continue
            change = below[position] - below[begin]
            if is_point[i - 1]:
                fits = position == begin
            else:
                largest = max(abs(change), abs(change - moved_before))
                fits = previous < position < ends[i] and _PARTS * bins * largest <= others
            if fits:
                chosen[i], at, moved = candidate, position, change
                break
    if is_floating:
        return json_values(pa.array(chosen, pa.float64()))
    return json_values(from_numbers(np.array(chosen, numbers.dtype), values.type))


def _widths(kind: pa.DataType, numbers: NDArray[Any]) -> list[Any]:
    """Return the numpy types in which values are compared: more than one for half floats."""
    if not pa.types.is_floating(kind):
        return [numbers.dtype.type]
    widths = [np.dtype(f"f{kind.bit_width // 8}").type]
    # Half floats are read as floats, but compared as halves by who has the column itself.
    with np.errstate(over="ignore"):
        if kind == pa.float32() and (numbers.astype(np.float16) == numbers).all():
            widths.append(np.float16)
    return widths


def _candidates(edge: pa.Array, exact: Any, numbers: NDArray[Any]) -> list[Any]:
    """Return candidates for an edge [1], the best first, as `sortable` returns numbers."""
    if pa.types.is_temporal(edge.type):
        near = _times(edge)
    elif np.isfinite(exact):
        near = list(map(type(exact), _decimals(Decimal(repr(exact)))))
    else:
        return []
    # Beyond the values nothing can be an edge, and the type may not hold it.
    smallest, largest = numbers[0].item(), numbers[-1].item()
    return [one for one in near if smallest < one <= largest and np.isfinite(one)]


def _decimals(number: Decimal) -> list[Decimal]:
    """Return the neighbours of a number among those with 0, 1, 2, … digits, the nearer one first."""
    found = [Decimal(0)]
    for digits in range(1, len(number.as_tuple().digits) + 1):
        unit = Decimal((0, (1,), number.adjusted() - digits + 1))
        low, high = (number.quantize(unit, way, _CONTEXT) for way in (ROUND_FLOOR, ROUND_CEILING))
        is_low = _CONTEXT.subtract(number, low) <= _CONTEXT.subtract(high, number)
        found += [low, high] if is_low else [high, low]
    return found


def _times(edge: pa.Array) -> list[int]:
    """Return the times next to a date, an instant or a time of day, from whole years to its unit."""
    # They are numbers as `sortable` returns them.
    kind = edge.type
    zone = kind.tz if pa.types.is_timestamp(kind) else None
    local = pc.local_timestamp(edge) if zone else edge
    (number,) = sortable(local).tolist()
    own = {pa.date32(): "D", pa.date64(): "ms"}.get(kind) or kind.unit
    units = _UNITS_OF_A_DAY if pa.types.is_time(kind) else _UNITS
    time, found = np.array([number], np.int64).view(f"datetime64[{own}]"), []
    for unit in units[: units.index(own) + 1]:
        whole = time.astype(f"datetime64[{unit}]")
        both = np.concatenate([whole, whole + 1]).astype(f"datetime64[{own}]")
        low, high = both.astype(np.int64).tolist()
        found += [low, high] if number - low <= high - number else [high, low]
    if not zone:
        return found
    # What stands twice or not at all on a clock that is set back or forward means the earlier one.
    on_clock = from_numbers(np.array(found, np.int64), local.type)
    zoned = pc.assume_timezone(on_clock, zone, ambiguous="earliest", nonexistent="earliest")
    return list(sortable(zoned).tolist())
