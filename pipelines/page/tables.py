"""What the page holds besides its first view: slices with all their numbers, and the document's sections."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.pipelines.page.index_build import singleton
from slicebeam.pipelines.page.overview import chip, since_slice
from slicebeam.pipelines.page.rows import NUMBERS, Kept, document_rows
from slicebeam.transforms.encode.definitions import (
    ClassifierDefinition,
    LlmFilterDefinition,
    MembershipDefinition,
    PredicateDefinition,
    TextQueryDefinition,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from slicebeam.pipelines.changelist.changes import Since
    from slicebeam.pipelines.changelist.document import ChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.transforms.encode.definitions import AnyDefinition
    from slicebeam.transforms.encode.predicates import Singleton

    Examples = Mapping[str, Sequence[dict[str, Any]]]

_ID = re.compile(r"[0-9a-f]{16}")
# The types that ``store.ts`` reads, by the kind and width of numpy's.
_TYPES = {"u1": "u8", "u2": "u16", "u4": "u32", "i4": "i32", "f4": "f32", "f8": "f64"}


class Payload:
    """What is put into the page besides its first view.

    The bytes are the length of a JSON text in four bytes, the text, and the columns one after the other;
    all of it is deflated, and written in base64. Of a column the first bytes of all numbers come first,
    then the second ones and so on, which deflates to about two thirds.
    """

    def __init__(self) -> None:
        self._bytes: list[bytes] = []
        self._size = 0

    def column(self, values: NDArray[Any]) -> dict[str, Any]:
        """Add a column of numbers, and return what says in the JSON text where it is."""
        kind = f"{values.dtype.kind}{values.dtype.itemsize}"
        little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        planes = little.view(np.uint8).reshape(values.size, values.dtype.itemsize)
        found = {"type": _TYPES[kind], "at": self._size, "length": values.size}
        self._bytes.append(np.ascontiguousarray(planes.T).tobytes())
        self._size += little.nbytes
        return found

    def packed(self, content: Any) -> str:
        """Return the base64 text of the JSON values ``content``, which refer to columns, and of these."""
        text = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
        deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        whole = b"".join([len(text).to_bytes(4, "little"), text, *self._bytes])
        return base64.b64encode(deflate.compress(whole) + deflate.flush()).decode()


def packed_tables(
    document: ChangeList,
    kept: Kept | None,
    examples: Examples,
    maps: Sequence[dict[str, Any]] = (),
    ambiguous: AbstractSet[str] = frozenset(),
) -> str:
    """Return what ``store.ts`` unpacks."""
    names = [one.key for one in document.metrics]
    has_table, kept = kept is not None, kept or Kept({})
    first = kept.tables.get(names[0]) if names else None
    held = set() if first is None else set(first.column("slice_id").to_pylist())
    listed = document_rows(document, held)
    tables = {
        name: pa.concat_tables([kept.tables[name], listed[name]])
        if name in kept.tables
        else listed[name]
        for name in names
    }
    payload = Payload()
    slices = tables[names[0]]
    ids = slices.column("slice_id").to_pylist()
    content = {
        "rows": slices.num_rows,
        "all": max([slices.num_rows, *(one.slices for one in kept.totals.values())]),
        "from_table": has_table,
        **_identities(payload, slices, ids, ambiguous),
        "metrics": {
            name: {
                **_metric(payload, table, ids),
                "significant_in_all": 0 if total is None else total.significant,
                "density": {} if total is None else total.density,
            }
            for name, table in tables.items()
            for total in [kept.totals.get(name)]
        },
        "since": [] if document.since is None else _since(document.since, set(ids)),
        "details": [_detail(one, examples.get(one.slice_id)) for one in document.slices],
        "shift": None if document.shift is None else document.shift.model_dump(mode="json"),
        "discovery": None
        if document.discovery is None
        else document.discovery.model_dump(mode="json", exclude_none=True),
        "maps": list(maps),
    }
    return payload.packed(content)


def _identities(
    payload: Payload, slices: pa.Table, ids: Sequence[str], ambiguous: AbstractSet[str]
) -> dict[str, Any]:
    """Return the ids, sizes and conditions of slices; of a slice without a predicate its name."""
    known: dict[str, int] = {}
    conditions: list[Singleton] = []
    codes: list[int] = []
    numbers: list[int] = []
    names: dict[int, str] = {}
    predicates = slices.column("predicate").to_pylist()
    texts = slices.column("slice").to_pylist()
    for row, (predicate, text) in enumerate(zip(predicates, texts, strict=True)):
        parts = [] if predicate is None else json.loads(predicate)["all"]
        if predicate is None:
            names[row] = text
        for part in parts:
            key = json.dumps(part)
            if key not in known:
                known[key] = len(conditions)
                conditions.append(singleton(part))
            codes.append(known[key])
        numbers.append(len(parts))
    times = Counter(map(str, conditions))
    several = {text for text, number in times.items() if number > 1} | ambiguous
    # A document that somebody wrote by hand may have other ids.
    odd = {row: one for row, one in enumerate(ids) if not _ID.fullmatch(one)}
    digits = "".join("0" * 16 if row in odd else one for row, one in enumerate(ids))
    return {
        "conditions": [_shown(one, several) for one in conditions],
        "names": names,
        "odd_ids": odd,
        "ids": payload.column(np.frombuffer(bytes.fromhex(digits), np.uint8)),
        "n": payload.column(slices.column("n").to_numpy().astype(np.float64)),
        "lengths": payload.column(np.array(numbers, np.uint8)),
        "codes": payload.column(np.array(codes, np.uint32)),
    }


def _since(since: Since, ids: AbstractSet[str]) -> list[dict[str, Any]]:
    """Return how the slices changed that the page has."""
    return [since_slice(one) for one in since.slices if one.slice_id in ids]


def _shown(condition: Singleton, ambiguous: AbstractSet[str]) -> dict[str, Any]:
    """Return a condition as the page has it; its JSON names it where its short text does not."""
    text, short = condition.whole_text(), str(condition)
    value = condition.value
    given = {
        **chip(condition),
        "field": condition.field,
        "op": condition.op,
        "value": list(value) if isinstance(value, tuple) else value,
    }
    if short != text:
        given["short"] = short
    if short in ambiguous:
        given["key"] = condition.json_text()
    return given


def _metric(payload: Payload, table: pa.Table, ids: Sequence[str]) -> dict[str, Any]:
    columns = {}
    for name in NUMBERS:
        values = table.column(name).fill_null(np.nan).to_numpy()
        if name in ("p_value", "q_value"):
            # A float of four bytes holds the logarithm of 1e-300, and not the number.
            with np.errstate(divide="ignore"):
                values = np.log10(values)
        columns[name] = payload.column(values.astype(np.float32))
    parents = pc.index_in(table.column("parent"), pa.array(ids, pa.string()))
    return {
        **columns,
        "significant": payload.column(
            np.asarray(table.column("significant").fill_null(False)).astype(np.uint8)
        ),
        "parent": payload.column(parents.fill_null(-1).to_numpy().astype(np.int32)),
        "finding": payload.column(table.column("finding").fill_null(0).to_numpy().astype(np.uint8)),
        **{name: _texts(payload, table.column(name)) for name in ("label", "test", "reason")},
    }


def _texts(payload: Payload, column: pa.ChunkedArray) -> dict[str, Any]:
    coded = column.combine_chunks().dictionary_encode()
    codes = pc.add(coded.indices, 1).fill_null(0).to_numpy().astype(np.uint16)
    return {"texts": [None, *coded.dictionary.to_pylist()], "codes": payload.column(codes)}


def _detail(one: Slice, examples: Sequence[dict[str, Any]] | None) -> dict[str, Any]:
    """Return what a document says of a slice, without what its definition lists."""
    kept: dict[str, Any] = one.model_dump(
        mode="json",
        exclude_none=True,
        include={
            *("slice_id", "name", "description", "notes", "origin", "impact", "refinement"),
            *("same_examples_as", "attribution", "changes", "confusion"),
        },
    )
    kept["definition"] = _definition(one.definition)
    kept["words"] = one.words()
    if one.found is not None:
        kept["found"] = one.found.model_dump(mode="json", exclude_none=True, exclude={"examples"})
    if examples:
        kept["examples"] = list(examples)
    return kept


def _definition(given: AnyDefinition) -> str:
    """Return how a slice is defined, in words; of a predicate nothing, as its conditions say it."""
    if isinstance(given, PredicateDefinition):
        return ""
    if isinstance(given, MembershipDefinition):
        return f"{len(given.ids):,} listed examples"
    if isinstance(given, TextQueryDefinition):
        return f"examples whose similarity to '{given.query}' is at least {given.threshold:.3g}"
    if isinstance(given, LlmFilterDefinition):
        return f"{len(given.ids):,} examples of which a language model said yes to '{given.prompt}'"
    if isinstance(given, ClassifierDefinition):
        return f"examples that a classifier gives a probability of at least {given.threshold:.3g}"
    return {"any_of": "any of several slices", "all_of": "all of several slices"}.get(
        given.kind, "the examples outside a slice"
    )
