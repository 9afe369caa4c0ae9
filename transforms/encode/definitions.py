"""Which examples of a chunk are in a defined slice, for every kind of definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import expit

from slicebeam.metrics.discovery.chunks import blocks
from slicebeam.metrics.errors import ColumnError, InputError, unknown_name
from slicebeam.transforms.encode.conditions import holds
from slicebeam.transforms.encode.predicates import Singleton, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray
    from slicebeam.metrics.discovery.chunks import Embeddings

# Rows that are turned to double precision together.
_ROWS_AT_A_TIME = 4096


@dataclass(frozen=True)
class ByPredicate:
    """The examples that satisfy conditions; all of them where there are none."""

    conditions: tuple[Singleton, ...]


@dataclass(frozen=True)
class ByIds:
    """The examples with listed ids, which are all numbers or all texts."""

    ids: tuple[int | str, ...]


@dataclass(frozen=True)
class ByQuery:
    """The examples whose embedding has at least a cosine similarity to that of a text."""

    query: str
    threshold: float


@dataclass(frozen=True)
class ByClassifier:
    """The examples to whose embeddings a logistic regression gives at least a probability."""

    intercept: float
    coefficients: tuple[float, ...]
    threshold: float


@dataclass(frozen=True)
class AnyOf:
    """The examples of any of several rules."""

    of: tuple[Rule, ...]


@dataclass(frozen=True)
class AllOf:
    """The examples of all of several rules."""

    of: tuple[Rule, ...]


@dataclass(frozen=True)
class Not:
    """All other examples, also those where a predicate's column is missing."""

    of: Rule


Rule = ByPredicate | ByIds | ByQuery | ByClassifier | AnyOf | AllOf | Not


def members(
    rule: Rule,
    table: pa.Table,
    embeddings: Embeddings | None = None,
    queries: Mapping[str, NDArray[np.float32]] | None = None,
    id_field: str | None = None,
) -> BoolArray:
    """Return which examples of a chunk (with the columns that `columns_of` names) a rule takes in.

    Where the rule needs them: raw embeddings float [rows, d], the embeddings of the texts of `queries_of`,
    and the column of ids.
    """
    if isinstance(rule, (AnyOf, AllOf)):
        join = np.logical_or if isinstance(rule, AnyOf) else np.logical_and
        held = np.full(table.num_rows, isinstance(rule, AllOf))
        for part in rule.of:
            join(held, members(part, table, embeddings, queries, id_field), out=held)
        return held
    if isinstance(rule, Not):
        return ~members(rule.of, table, embeddings, queries, id_field)
    if isinstance(rule, ByPredicate):
        return _satisfying(rule, table)
    if isinstance(rule, ByIds):
        return _listed(rule, table, id_field)
    if embeddings is None:
        raise InputError(
            "a slice is defined by embeddings, but this data has none; name the column of embeddings, or of texts"
        )
    if isinstance(rule, ByQuery):
        if queries is None or rule.query not in queries:
            raise InputError(f"the text {shortened(rule.query)!r} has no embedding")
        return similarities(embeddings, queries[rule.query]) >= rule.threshold
    weights = np.array(rule.coefficients, np.float64)
    return expit(_products(embeddings, weights) + rule.intercept) >= rule.threshold


def _satisfying(rule: ByPredicate, table: pa.Table) -> BoolArray:
    held = np.ones(table.num_rows, bool)
    for condition in rule.conditions:
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


def _listed(rule: ByIds, table: pa.Table, id_field: str | None) -> BoolArray:
    if id_field is None:
        raise InputError("a slice is defined by ids, but this data has none; give --example-id")
    values = _column(table, id_field)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    wanted = _ids_like(rule.ids, values.type, id_field)
    values = values.cast(wanted.type)
    return pc.is_in(values, value_set=wanted).to_numpy(zero_copy_only=False).astype(bool)


def _ids_like(ids: tuple[int | str, ...], kind: pa.DataType, id_field: str) -> pa.Array:
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
    is_unsigned = kind == pa.uint64()
    kind, limits = (
        (pa.uint64(), np.iinfo(np.uint64)) if is_unsigned else (pa.int64(), np.iinfo(np.int64))
    )
    return pa.array([int(one) for one in ids if limits.min <= int(one) <= limits.max], kind)


def similarities(embeddings: Embeddings, query: NDArray[np.floating]) -> FloatArray:
    """Return the cosine between embeddings [rows, d] and that of a text [d]; 0 where one is zero."""
    direction = np.asarray(query, np.float64)
    length = float(np.linalg.norm(direction))
    products = _products(embeddings, direction / length if length else direction)
    lengths = np.concatenate(
        [np.zeros(0), *(np.linalg.norm(block, axis=1) for block in _doubles(embeddings))]
    )
    return np.divide(products, lengths, out=np.zeros(len(products)), where=lengths > 0)


def _products(embeddings: Embeddings, weights: FloatArray) -> FloatArray:
    """Return the inner products with each embedding, which do not depend on how rows are chunked."""
    if embeddings.shape[1] != weights.size:
        raise InputError(
            f"a slice is defined by embeddings of {weights.size:,} dimensions, but those of this "
            f"data have {embeddings.shape[1]:,}; use the encoder of that time"
        )
    # A matrix product rounds a row by where in the matrix it stands.
    parts = (np.einsum("ij,j->i", block, weights) for block in _doubles(embeddings))
    return np.concatenate([np.zeros(0), *parts])


def _doubles(embeddings: Embeddings) -> Iterator[FloatArray]:
    for rows in blocks(embeddings.shape[0], _ROWS_AT_A_TIME):
        yield embeddings[rows].astype(np.float64)


def _leaves(rule: Rule) -> Iterator[ByPredicate | ByIds | ByQuery | ByClassifier]:
    """Yield the rules that others are made of."""
    if isinstance(rule, Not):
        yield from _leaves(rule.of)
    elif isinstance(rule, (AnyOf, AllOf)):
        for part in rule.of:
            yield from _leaves(part)
    else:
        yield rule


def columns_of(rule: Rule, id_field: str | None = None) -> set[str]:
    """Return the columns of the data that a rule reads, including ids if it needs them."""
    fields = {
        condition.field
        for leaf in _leaves(rule)
        if isinstance(leaf, ByPredicate)
        for condition in leaf.conditions
    }
    return fields | ({id_field} if id_field is not None and needs_ids(rule) else set())


def needs_ids(rule: Rule) -> bool:
    """Return whether a rule needs the examples' ids."""
    return any(isinstance(leaf, ByIds) for leaf in _leaves(rule))


def needs_embeddings(rule: Rule) -> bool:
    """Return whether a rule needs the examples' embeddings."""
    return any(isinstance(leaf, (ByQuery, ByClassifier)) for leaf in _leaves(rule))


def queries_of(rule: Rule) -> set[str]:
    """Return the texts whose embeddings a rule needs."""
    return {leaf.query for leaf in _leaves(rule) if isinstance(leaf, ByQuery)}
