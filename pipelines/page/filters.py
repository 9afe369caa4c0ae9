"""Which slices a reader wants: typed filters, and the SQL that they are, whose values are parameters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from slicebeam.pipelines.changelist.slices import words_of
from slicebeam.pipelines.page.answers import Given, RefusedError
from slicebeam.pipelines.page.index_build import singleton

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.page.index import SliceIndex

# The SQL of a filter that all slices of a metric satisfy.
EVERY = "metric = ?"
_HEX = re.compile(r"[0-9a-f]{16}")


class Filter(Given):
    """Which slices are shown, and in which order.

    ``metric``: its key. ``text``: words that the conditions hold, or its name, description, notes,
    phrases or attributed words, apart by ``&``; or the begin of an id. ``conditions``: keys of
    conditions that a slice has, as `IndexedCondition` has them. ``inherited``: whether slices that
    one above explains are shown, where they are no findings. ``label``: what a slice says beside
    those above it; empty for any. ``level``: number of conditions; 0 for any. ``least``, ``most``:
    examples. ``low``, ``high``: of the delta. ``under``: id of the slice that explains it.
    ``sort``: what it is sorted by; ``harm`` is the order of the index: findings, then the surely
    worst.
    """

    metric: str
    text: Annotated[str, Field(max_length=500)] = ""
    conditions: Annotated[tuple[str, ...], Field(max_length=20)] = ()
    direction: Literal["any", "worse", "better"] = "any"
    significant: bool = False
    inherited: bool = True
    label: Literal["", "new", "refines", "inherited"] = ""
    level: Annotated[int, Field(ge=0, le=10)] = 0
    least: float = 0
    most: float | None = None
    low: float | None = None
    high: float | None = None
    under: Annotated[str, Field(pattern=r"^([0-9a-f]{16})?$")] = ""
    sort: Literal["harm", "n", "level", "value", "reference", "delta", "q_value"] = "harm"
    descends: bool = False


def metric_number(key: str, index: SliceIndex) -> int:
    """Return the number of a metric in the index."""
    if key not in index.metrics:
        raise RefusedError(f"There is no metric {key!r}.", 404)
    return index.metrics.index(key)


def where(given: Filter, index: SliceIndex, document: SearchChangeList) -> tuple[str, list[Any]]:
    """Return the condition of a filter as SQL with its values."""
    number = metric_number(given.metric, index)
    parts: list[str] = [EVERY]
    values: list[Any] = [number]
    bounds: list[tuple[str, Any, Any]] = [
        ("level = ?", given.level, 0),
        ("n >= ?", given.least, 0),
        ("n <= ?", given.most, None),
        ("delta >= ?", _float(given.low), None),
        ("delta <= ?", _float(given.high), None),
    ]
    for sql, value, none in bounds:
        if value != none:
            parts.append(sql)
            values.append(value)
    if given.significant:
        parts.append("significant")
    if given.under:
        parts.append("parent = ?")
        values.append(int(given.under, 16))
    if given.label:
        parts.append("label = ?")
        values.append(given.label)
    elif not given.inherited and not given.under:
        parts.append("(finding > 0 OR label IS DISTINCT FROM 'inherited')")
    if given.direction != "any":
        metric = document.metrics[number]
        is_below = (given.direction == "worse") == metric.higher_is_better
        parts.append("delta < 0" if is_below else "delta > 0")
    parts += [_has_condition(key, index, values) for key in given.conditions]
    said = _said(given.text, index, document, values)
    return " AND ".join([*parts, *said]), values


def _float(bound: float | None) -> float | None:
    """Return a bound as the table has numbers: of four bytes, beyond which is infinity."""
    with np.errstate(over="ignore"):
        return None if bound is None else float(np.float32(bound))


def _said(
    text: str, index: SliceIndex, document: SearchChangeList, values: list[Any]
) -> Iterator[str]:
    """Yield the condition that a text sets, and add its values."""
    words = words_of(text)
    if not words:
        return
    named: list[Any] = []
    own = _named(named, words, document)
    every = []
    for word in words:
        held = [c for c in index.conditions.values() if word in c.text.lower()]
        some = [_has(values, [c.code for c in held], index)]
        if index.has_texts:
            some.append("contains(lower(slice), ?)")
            values.append(word)
            # Their text has long values cut.
            cut = [c.json for c in held if word not in str(singleton(c.part)).lower()]
            some += ["contains(predicate, ?)"] * len(cut)
            values += cut
        every.append(f"({' OR '.join(some)})")
    values += named
    yield f"(({' AND '.join(every)}){own})"


def _has_condition(key: str, index: SliceIndex, values: list[Any]) -> str:
    """Return the SQL of slices that have a condition, and add its values."""
    found = [one for one in index.conditions.values() if one.key == key]
    parts = [_has(values, [one.code for one in found], index)]
    # Of slices of more conditions, those after the third stand in the predicate only.
    if index.has_texts:
        parts += ["contains(predicate, ?)" for _ in found]
        values += [one.json for one in found]
    return f"({' OR '.join(parts)})"


def _has(values: list[Any], codes: list[int], index: SliceIndex) -> str:
    """Return the SQL of slices that have one of some conditions, and add its values."""
    if not codes:
        return "false"
    if len(codes) == 1:
        values += codes * 3
        return "(s1 = ? OR s2 = ? OR s3 = ?)"
    # A bit for each code from 0 on is looked up in half of the time that a set takes.
    held = set(codes)
    bits = "".join("1" if one in held else "0" for one in range(max(index.conditions) + 1))
    values += [bits] * 3
    return f"({' OR '.join(f'get_bit(?::BIT, s{at}) = 1' for at in (1, 2, 3))})"


def _named(values: list[Any], words: list[str], document: SearchChangeList) -> str:
    """Return the SQL of slices whose id begins with the words, or that are called by all of them."""
    ids = [
        int(one.slice_id, 16)
        for one in document.slices
        if _HEX.fullmatch(one.slice_id) and one.has_words(words)
    ]
    text = " & ".join(words)
    parts = ""
    if ids:
        values.append(ids)
        parts += " OR id IN (SELECT unnest(?::UBIGINT[]))"
    if 4 <= len(text) <= 16 and set(text) <= set("0123456789abcdef"):
        values += [int(text.ljust(16, "0"), 16), int(text.ljust(16, "f"), 16)]
        parts += " OR id BETWEEN ?::UBIGINT AND ?::UBIGINT"
    return parts
