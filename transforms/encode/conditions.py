"""Which examples satisfy conditions, and which are in a defined slice, for every kind of definition."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import expit

from slicebeam.metrics.arrays import Ragged
from slicebeam.metrics.chunks import blocks
from slicebeam.metrics.errors import ColumnError, InputError, shortened, unknown_name
from slicebeam.transforms.encode.column import boolean_mask, is_number, plain_type, sortable
from slicebeam.transforms.encode.definitions import (
    ClassifierDefinition,
    JoinedDefinition,
    LlmFilterDefinition,
    MembershipDefinition,
    NotDefinition,
    PredicateDefinition,
    TextQueryDefinition,
)
from slicebeam.transforms.encode.domains import FeatureDomain
from slicebeam.transforms.encode.predicates import Singleton, arrow_values
from slicebeam.transforms.encode.value_counts import unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray
    from slicebeam.metrics.chunks import Embeddings
    from slicebeam.transforms.encode.column import Chunk
    from slicebeam.transforms.encode.definitions import AnyDefinition, Id
    from slicebeam.transforms.encode.domains import Kind


_ORDERED = ("<", ">=", "between")
_INFINITE = ("Infinity", "-Infinity")
_LISTED = ("in", "not_in", "between")
# Rows whose slices are found together: a million truth values for a hundred slices.
_ROWS_AT_A_TIME = 1 << 13
# Rows that are turned to double precision together.
_DOUBLES_AT_A_TIME = 4096


@dataclass(frozen=True)
class SliceMembership:
    """The slices of a check, by their conditions: a feature that may have many values per example."""

    predicates: tuple[tuple[Singleton, ...], ...]

    @property
    def size(self) -> int:
        """Number of slices."""
        return len(self.predicates)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the conditions are about."""
        return tuple(dict.fromkeys(one.field for one in chain(*self.predicates)))

    @cached_property
    def _distinct(self) -> tuple[dict[str, Singleton], list[list[str]]]:
        """The conditions by their text, each once though slices share it, and those of each slice."""
        texts = [[one.json_text() for one in conditions] for conditions in self.predicates]
        return dict(zip(chain(*texts), chain(*self.predicates), strict=True)), texts

    def holds(self, chunk: Chunk) -> BoolArray:
        """Return which examples [rows] of a chunk are in at least one of the slices."""
        return np.diff(self.codes(chunk.table).offsets) > 0

    def codes(self, table: pa.Table) -> Ragged:
        """Return the slices of each example of a table with these columns, ascending."""
        rows = table.num_rows
        distinct, texts = self._distinct
        columns = {name: table.column(name).combine_chunks() for name in self.columns}
        held = {text: holds(columns[one.field], one) for text, one in distinct.items()}
        lengths, codes = [np.zeros(1, np.int64)], [np.zeros(0, np.int64)]
        for some in blocks(rows, _ROWS_AT_A_TIME):
            marked = np.empty((self.size, some.stop - some.start), bool)
            for own, of_slice in zip(marked, texts, strict=True):
                own[:] = reduce(np.logical_and, (held[text][some] for text in of_slice))
            code, row = np.divmod(np.flatnonzero(marked), marked.shape[1])
            # Of numbers of 16 bits a stable sort is a count of each, and keeps the slices in order.
            codes.append(code[np.argsort(row.astype(np.uint16), kind="stable")])
            lengths.append(np.bincount(row, minlength=marked.shape[1]))
        return Ragged(np.cumsum(np.concatenate(lengths)), np.concatenate(codes).astype(np.int64))


def holds(values: pa.Array, condition: Singleton) -> BoolArray:
    """Return which values of a column (also of lists) satisfy a condition, as pandas would say.

    They are compared in the column's own type, and only ``is_null`` holds of a missing value (null or NaN).
    """
    domain = _domain(condition, values.type)
    if domain.kind == "list":
        return np.diff(domain.encode_lists(values)[0]) > 0
    if pa.types.is_null(values.type) and condition.op != "is_null":
        return np.zeros(len(values), bool)
    return domain.encode(values) == 0


def _domain(condition: Singleton, kind: pa.DataType) -> FeatureDomain:
    """Return the domain with this predicate only, in the type in which pandas would compare."""
    kind = plain_type(kind)
    op = condition.op
    if reason := unsupported(kind):
        raise InputError(reason)
    if pa.types.is_list(kind):
        if op not in ("contains", "is_null"):
            raise InputError(
                f"op {op!r} is not for lists, and the column is {kind}; use 'contains'"
            )
        of_element = replace(condition, op="==" if op == "contains" else op)
        return replace(_domain(of_element, kind.value_type), kind="list")
    if op == "is_null":
        kind = pa.int64() if pa.types.is_null(kind) else kind
        return FeatureDomain("", "categorical", str(kind), (condition,), closed=False)
    if op == "contains":
        raise InputError(f"op 'contains' is for lists, but the column is {kind}; use '=='")
    listed = _listed_values(condition)
    if op in _ORDERED and not (is_number(kind) or pa.types.is_temporal(kind)):
        raise InputError(
            f"op {op!r} is for numbers, dates and times, but the column is {kind}; use '=='"
        )
    _check_types(listed, kind)
    infinite = any(value in _INFINITE for value in listed)
    if pa.types.is_integer(kind) and infinite:
        kind = pa.float64()
    elif pa.types.is_integer(kind):
        # As many integers are below a fraction as below the next integer, and none equals it.
        listed = [math.ceil(one) for one in listed if op in _ORDERED or one == int(one)]
        kind = pa.uint64() if kind == pa.uint64() else pa.int64()
    if op == "==":
        op = "in"
    only = replace(condition, op=op, value=listed if op in _LISTED else listed[0])
    of_bins: Kind = "numeric" if op in _ORDERED else "categorical"
    return FeatureDomain("", of_bins, str(kind), (only,), closed=False)


def _check_types(listed: list[Any], kind: pa.DataType) -> None:
    if pa.types.is_null(kind):
        return
    flags = [isinstance(value, bool) for value in listed]
    is_number = [isinstance(value, (int, float)) or value in _INFINITE for value in listed]
    if (
        any(flags) != pa.types.is_boolean(kind)
        or any(flags) != all(flags)
        or (pa.types.is_integer(kind) and not all(is_number))
    ):
        raise InputError(f"values {shortened(repr(listed))} do not fit a column of {kind}")


def _listed_values(condition: Singleton) -> list[Any]:
    """Return the values of a condition, none of them missing."""
    op = condition.op
    listed = condition.value if op in _LISTED else [condition.value]
    if not isinstance(listed, list) or not listed or (op == "between" and len(listed) != 2):
        wanted = "[low, high]" if op == "between" else "a list of values"
        raise InputError(f"op {op!r} needs {wanted}, not {shortened(repr(listed))}")
    for value in listed:
        if value is None or isinstance(value, (list, dict)) or value != value:  # noqa: PLR0124
            raise InputError(
                f"op {op!r} needs a value, not {shortened(repr(value))}; missing values are "
                "matched by 'is_null'"
            )
    return listed


def check_condition(condition: Singleton, kind: pa.DataType) -> None:
    """Hold a condition of a user against the type of its column."""
    holds(pa.nulls(0, kind), condition)
    kind = plain_type(kind)
    if condition.op != "between":
        return
    low, high = condition.value
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        # As they were written: rounded to the column's width, two bounds may be the same.
        first, second = (float(one) if isinstance(one, str) else one for one in (low, high))
    else:
        first, second = sortable(arrow_values([low, high], kind))
    if first < second:
        return
    why, instead = "the bounds are swapped", replace(condition, value=[high, low])
    if first == second:
        why = "the upper bound is not part of the interval"
        instead = replace(condition, op="==", value=low)
    raise InputError(f"'{condition}' contains no value, because {why}; write '{instead}'")


def members(
    definition: AnyDefinition,
    table: pa.Table,
    embeddings: Embeddings | None = None,
    queries: Mapping[str, NDArray[np.float32]] | None = None,
    id_field: str | None = None,
) -> BoolArray:
    """Return which examples of a chunk (with the columns that `columns_of` names) a definition takes in.

    It may need raw embeddings float [rows, d], those of the texts of `queries_of`, and the column of ids.
    """
    data = table, embeddings, queries, id_field
    if isinstance(definition, JoinedDefinition):
        is_all = definition.kind == "all_of"
        join, held = np.logical_and if is_all else np.logical_or, np.full(table.num_rows, is_all)
        for part in definition.of:
            join(held, members(part, *data), out=held)
        return held
    if isinstance(definition, NotDefinition):
        return ~members(definition.of, *data)
    if isinstance(definition, PredicateDefinition):
        return satisfying(definition.predicate.singletons, table)
    if isinstance(definition, (MembershipDefinition, LlmFilterDefinition)):
        return _listed(definition.ids, table, id_field)
    if embeddings is None:
        raise InputError(
            "a slice is defined by embeddings, but this data has none; name the column of embeddings, or of texts"
        )
    if isinstance(definition, TextQueryDefinition):
        if queries is None or definition.query not in queries:
            raise InputError(f"the text {shortened(definition.query)!r} has no embedding")
        return similarities(embeddings, queries[definition.query]) >= definition.threshold
    weights = np.array(definition.coefficients, np.float64)
    return expit(_products(embeddings, weights) + definition.intercept) >= definition.threshold


def satisfying(conditions: Iterable[Singleton], table: pa.Table) -> BoolArray:
    """Return which examples of a chunk satisfy conditions; all of them where there are none."""
    held = np.ones(table.num_rows, bool)
    for condition in conditions:
        values = _column(table, condition.field)
        try:
            held &= holds(values, condition)
        except InputError as error:
            raise ColumnError(f"column {condition.field!r}: {error}") from error
    return held


def _column(table: pa.Table, name: str) -> pa.Array:
    if name not in table.column_names:
        raise unknown_name("column", name, table.column_names)
    return table.column(name).combine_chunks()


def _listed(ids: tuple[Id, ...], table: pa.Table, id_field: str | None) -> BoolArray:
    if id_field is None:
        raise InputError("a slice is defined by ids, but this data has none; give --example-id")
    values = _column(table, id_field)
    wanted = _ids_like(ids, plain_type(values.type), id_field)
    return boolean_mask(pc.is_in(values.cast(wanted.type), value_set=wanted))


def _ids_like(ids: tuple[Id, ...], kind: pa.DataType, id_field: str) -> pa.Array:
    """Return the ids as the column has them; numbers that its type has no room for left out."""
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not is_text and not pa.types.is_integer(kind):
        raise ColumnError(f"column {id_field!r} is {kind}; ids are whole numbers or texts")
    for one in ids:
        if isinstance(one, str) != is_text or isinstance(one, bool):
            raise InputError(
                f"id {one!r} of a slice does not fit column {id_field!r}, which is {kind}"
            )
    if is_text:
        return pa.array(ids, pa.large_string())
    kind = pa.uint64() if kind == pa.uint64() else pa.int64()
    limits = np.iinfo(kind.to_pandas_dtype())
    return pa.array([int(one) for one in ids if limits.min <= int(one) <= limits.max], kind)


def similarities(embeddings: Embeddings, query: NDArray[np.floating]) -> FloatArray:
    """Return the cosine between embeddings [rows, d] and that of a text [d]; 0 where one is zero."""
    direction = np.asarray(query, np.float64)
    length = float(np.linalg.norm(direction))
    products = _products(embeddings, direction / length if length else direction)
    lengths = _of_rows(embeddings, lambda block: np.linalg.norm(block, axis=1))
    return np.divide(products, lengths, out=np.zeros(len(products)), where=lengths > 0)


def _products(embeddings: Embeddings, weights: FloatArray) -> FloatArray:
    """Return the inner products with each embedding, which do not depend on how rows are chunked."""
    if embeddings.shape[1] != weights.size:
        raise InputError(
            f"a slice is defined by embeddings of {weights.size:,} dimensions, but those of this "
            f"data have {embeddings.shape[1]:,}; use the encoder of that time"
        )
    # A matrix product rounds a row by where in the matrix it stands.
    return _of_rows(embeddings, lambda block: np.einsum("ij,j->i", block, weights))


def _of_rows(embeddings: Embeddings, number: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Return a number for each embedding, from blocks of them in double precision."""
    parts = (
        number(embeddings[rows].astype(np.float64))
        for rows in blocks(embeddings.shape[0], _DOUBLES_AT_A_TIME)
    )
    return np.concatenate([np.zeros(0), *parts])


def _leaves(definition: AnyDefinition) -> Iterator[AnyDefinition]:
    """Yield the definitions that others are made of."""
    if isinstance(definition, NotDefinition):
        yield from _leaves(definition.of)
    elif isinstance(definition, JoinedDefinition):
        for part in definition.of:
            yield from _leaves(part)
    else:
        yield definition


def columns_of(definition: AnyDefinition, id_field: str | None = None) -> set[str]:
    """Return the columns of the data that a definition reads, including ids if it needs them."""
    fields = {
        condition.field
        for leaf in _leaves(definition)
        if isinstance(leaf, PredicateDefinition)
        for condition in leaf.predicate.all
    }
    return fields | ({id_field} if id_field is not None and needs_ids(definition) else set())


def needs_ids(definition: AnyDefinition) -> bool:
    """Return whether a definition needs the examples' ids."""
    by_ids = MembershipDefinition, LlmFilterDefinition
    return any(isinstance(leaf, by_ids) for leaf in _leaves(definition))


def needs_embeddings(definition: AnyDefinition) -> bool:
    """Return whether a definition needs the examples' embeddings."""
    return bool(encoders_of(definition))


def encoders_of(definition: AnyDefinition) -> set[str]:
    """Return the fingerprints of the encoders whose embeddings a definition speaks of."""
    by_embeddings = TextQueryDefinition, ClassifierDefinition
    return {leaf.encoder for leaf in _leaves(definition) if isinstance(leaf, by_embeddings)}


def queries_of(definition: AnyDefinition) -> set[str]:
    """Return the texts whose embeddings a definition needs."""
    return {leaf.query for leaf in _leaves(definition) if isinstance(leaf, TextQueryDefinition)}
