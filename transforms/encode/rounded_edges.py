"""Edges of bins with few digits: the fewest that hardly change what the bins hold."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.transforms.encode.column import from_numbers, sortable
from slicebeam.transforms.encode.predicates import json_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, IntArray

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

    An edge will do if, of the examples whose value has no bin of its own, it moves at most
    1/(4·bins) into or out of each of its two bins, and each keeps a value. Edges are chosen from the
    smallest up: the edge below is already rounded, the one above is still a value of the data. Of two
    numbers with as many digits the nearer one is chosen, the lower one of two that are as near. Zero
    has no digit. Dates and times are cut to years, months, days, hours, minutes, seconds or fractions
    of a thousand, in the time zone of the column. A value with a bin of its own (`is_point`) stays as it
    is, and so does what its bin and the one after it hold.

    Values are ascending, with counts, and `starts` the positions at which bins begin. The edges are JSON;
    those of floats are the doubles that the digits mean, compared in the width of the column. Exact if
    the counts are: with a sketch, a point's successor is the edge after it.

    >>> scores = pa.array([0.1241, 0.2572, 0.2581, 0.3333, 0.4817, 0.498, 0.6])
    >>> starts, is_point = np.array([0, 2, 5]), np.zeros(3, bool)
    >>> rounded_edges(scores, np.full(7, 10), starts, is_point, bins=3)
    [0.1241, 0.258, 0.49]
    """
    numbers = sortable(values)
    below: list[int] = np.concatenate([[0], np.cumsum(counts)]).tolist()
    others = below[-1] - int(counts[starts[is_point]].sum())
    begins: list[int] = starts.tolist()
    ends = [*begins[1:], len(values)]
    exact = values.take(pa.array(starts))
    widths = _widths(values.type, numbers)
    chosen: list[Any] = _shortest(exact)
    at = moved = 0
    for i in range(1, len(begins)):
        begin, previous, moved_before = begins[i], at, moved
        at, moved = begin, 0
        if is_point[i]:
            continue
        for candidate, compared in _candidates(exact.slice(i, 1), numbers, widths):
            first, *again = (int(np.searchsorted(numbers, one)) for one in compared)
            if any(one != first for one in again):
                continue
            position = first
            change = below[position] - below[begin]
            if is_point[i - 1]:
                fits = position == begin
            else:
                largest = max(abs(change), abs(change - moved_before))
                fits = previous < position < ends[i] and _PARTS * bins * largest <= others
            if fits:
                chosen[i], at, moved = candidate, position, change
                break
    if pa.types.is_floating(values.type):
        return json_values(pa.array(chosen, pa.float64()))
    return json_values(from_numbers(np.array(chosen, numbers.dtype), values.type))


def _shortest(values: pa.Array) -> list[Any]:
    """Return numbers as `sortable` does, those of floats as doubles with the fewest digits."""
    if pa.types.is_floating(values.type):
        return [float(value) for value in json_values(values)]
    listed: list[Any] = sortable(values).tolist()
    return listed


def _widths(kind: pa.DataType, numbers: NDArray[Any]) -> list[Any]:
    """Return the numpy types in which values are compared: more than one for half floats."""
    # They are read as floats, but compared as halves by who has the column itself.
    if not pa.types.is_floating(kind):
        return [numbers.dtype.type]
    with np.errstate(over="ignore"):
        is_half = bool((numbers.astype(np.float16) == numbers).all())
    is_single = kind == pa.float32()
    own = np.dtype(f"f{kind.bit_width // 8}").type
    return [own, *([np.float16] if is_single and is_half else [])]


def _candidates(
    edge: pa.Array, numbers: NDArray[Any], widths: list[Any]
) -> Iterator[tuple[Any, list[Any]]]:
    """Yield candidates for an edge [1], the best first, with the (sortable) numbers to compare with."""
    kind = edge.type
    (exact,) = _shortest(edge)
    if pa.types.is_temporal(kind):
        found = _times(edge)
    elif np.isfinite(exact):
        found = list(map(type(exact), _decimals(Decimal(repr(exact)))))
    else:
        return
    smallest, largest = numbers[0].item(), numbers[-1].item()
    for one in found:
        # Beyond the values nothing can be an edge, and the type may not hold it.
        if smallest < one <= largest and np.isfinite(one):
            with np.errstate(over="ignore"):
                # A number is rounded to the width of the column that it is compared with.
                yield one, [numbers.dtype.type(width(one)) for width in widths]


def _decimals(number: Decimal) -> list[Decimal]:
    """Return the neighbours of a number among those with 0, 1, 2, … digits, the nearer one first.

    >>> print(*_decimals(Decimal("-0.257")))
    0 -0.3 -0.2 -0.26 -0.25 -0.257 -0.257
    """
    found = [Decimal(0)]
    for digits in range(1, len(number.as_tuple().digits) + 1):
        unit = Decimal((0, (1,), number.adjusted() - digits + 1))
        low, high = (
            number.quantize(unit, rounding, _CONTEXT) for rounding in (ROUND_FLOOR, ROUND_CEILING)
        )
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
    instants: list[int] = sortable(zoned).tolist()
    return instants
