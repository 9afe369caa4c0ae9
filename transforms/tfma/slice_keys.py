"""Slices as TFMA names them, tuples of a column and a value each, also in a user's own pipeline of TFMA."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
import pyarrow as pa

from slicebeam.metrics.errors import FileError, InputError
from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.encode.predicates import Singleton, shown
from slicebeam.transforms.storage.storage import storage_errors, storage_path
from slicebeam.transforms.storage.strict_text import parse_json
from slicebeam.transforms.tfma.install import tfma_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

SliceKey = tuple[tuple[str, str | int | float], ...]

# The column of slices that are no predicates, such as those of a text filter.
NAMED = "slice"
_LARGEST_INTEGER = 2**63
_MOST_VALUES = 10
# What a derived column is called after the column that it comes from.
_SUFFIX = {
    "==": "value",
    "between": "range",
    "<": "range",
    ">=": "range",
    "in": "values",
    "not_in": "values",
    "is_null": "missing",
}
# Examples whose slices are found together.
_AT_A_TIME = 512
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class NamedSlice:
    """A slice to be named; without conditions where no predicate describes it."""

    slice_id: str
    name: str
    conditions: tuple[Singleton, ...] | None


def key_part(condition: Singleton) -> tuple[str, str | int | float]:
    """Return the column and the value that stand for a condition.

    A value of the data stands for itself. Of anything else the column is a derived one, named after
    the one that it comes from.

    >>> from slicebeam.transforms.encode.predicates import Singleton
    >>> key_part(Singleton("sex", "==", "Female"))
    ('sex', 'Female')
    >>> key_part(Singleton("age", "between", [37, 41]))
    ('age (range)', '[37, 41)')
    >>> key_part(Singleton("age", "is_null"))
    ('age (missing)', 'yes')
    >>> key_part(Singleton("job", "in", ["clerk", "guard"]))
    ('job (values)', 'in {clerk, guard}')
    """
    field, op, value = condition.field, condition.op, condition.value
    if op in ("==", "contains"):
        native = _native(value)
        if native is not None:
            return field, native
        return f"{field} ({_SUFFIX['==']})", shown(value)
    column = f"{field} ({_SUFFIX[op]})"
    if op == "is_null":
        return column, "yes"
    if op == "between":
        return column, f"[{shown(value[0])}, {shown(value[1])})"
    if op in ("<", ">="):
        return column, f"{op} {shown(value)}"
    listed = shown_list(value)
    return column, f"not in {{{listed}}}" if op == "not_in" else f"in {{{listed}}}"


def shown_list(values: list[Any]) -> str:
    """Return a list of values for a reader, at most ten of them.

    >>> shown_list([1, 2])
    '1, 2'
    """
    more = f", … {len(values) - _MOST_VALUES} more" if len(values) > _MOST_VALUES else ""
    return ", ".join(map(shown, values[:_MOST_VALUES])) + more


def _native(value: Any) -> str | int | float | None:
    """Return a value as TFMA's slice keys hold it; None where they would round it."""
    if isinstance(value, bool):
        # A tf.Example has numbers for truth values.
        return int(value)
    if isinstance(value, int):
        return value if -_LARGEST_INTEGER <= value < _LARGEST_INTEGER else None
    if isinstance(value, float):
        return value if float(np.float32(value)) == value else None
    return str(value)


def slice_keys(slices: Sequence[NamedSlice]) -> list[SliceKey]:
    """Return the key of each slice, which no other of them has, sorted by column as TFMA's are."""
    keys: list[SliceKey] = []
    used: set[SliceKey] = set()
    for each in slices:
        parts: Iterable[tuple[str, str | int | float]] = (
            [(NAMED, each.name)] if each.conditions is None else map(key_part, each.conditions)
        )
        key: SliceKey = tuple(sorted(parts, key=lambda part: part[0]))
        if key in used:
            # Long lists of values are shortened, and may look the same.
            key = tuple(sorted([*key, (NAMED, each.slice_id)], key=lambda part: part[0]))
        used.add(key)
        keys.append(key)
    return keys


def derived_columns(slices: Sequence[NamedSlice]) -> tuple[str, ...]:
    """Return the columns of the keys of slices that the data does not have as they are."""
    conditions = [c for each in slices for c in each.conditions or ()]
    plain = {c.field for c in conditions if key_part(c)[0] == c.field}
    return tuple(sorted({column for key in slice_keys(slices) for column, _ in key} - plain))


def AutoSliceKeyExtractor(changelist: str) -> Any:  # noqa: N802  (named as TFMA names extractors)
    """Return an extractor that adds the slices of a ChangeList to the slice keys of each example.

    Put it before TFMA's own SliceKeyExtractor, which adds the slices of the EvalConfig and after which
    the evaluator runs::

        extractors = tfma.default_extractors(eval_config=config, eval_shared_model=model)
        extractors.insert(-1, AutoSliceKeyExtractor(changelist="out/changelist.json"))

    Conditions are on the raw features (``tfma.FEATURES_KEY``), with a missing feature as a missing
    value. The keys are those of ``slicebeam export tfma``.

    Parameters
    ----------
    changelist : path of a document, or of its folder

    Returns
    -------
    tfma.extractors.Extractor

    Raises
    ------
    InputError
        TFMA is not installed, or there is no such document.
    """
    extractor = tfma_module("extractors.extractor", "AutoSliceKeyExtractor")
    slices = read_slices(changelist)
    size = {"min_batch_size": _AT_A_TIME, "max_batch_size": _AT_A_TIME}
    batches = "Batch" >> beam.BatchElements(**size)
    add_keys = batches | "Add slice keys" >> beam.FlatMap(_with_keys, slices)
    return extractor.Extractor(stage_name="ExtractFoundSliceKeys", ptransform=add_keys)


def read_slices(changelist: str) -> FoundSlices:
    """Return the slices of a ChangeList that predicates describe; others are named in a warning."""
    path = storage_path(changelist, "changelist")
    with storage_errors(path, "read"):
        if path.is_dir():
            path = path / "changelist.json"
        if not path.is_file():
            raise FileError(f"changelist {path}: no such file")
        text = path.read_text("utf-8")
    try:
        slices = [
            NamedSlice(part["slice_id"], part["name"], _conditions(part["definition"]))
            for part in parse_json(text)["slices"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"changelist {path}: no ChangeList with slices ({error!r})") from error
    if others := ", ".join(part.name for part in slices if not part.conditions):
        _LOG.warning("no slice keys for %s: only predicates can be evaluated in TFMA", others)
    pairs = zip(slice_keys(slices), slices, strict=True)
    held = {key: part.conditions for key, part in pairs if part.conditions}
    return FoundSlices(tuple(held), SliceMembership(tuple(held.values())))


def _conditions(definition: dict[str, Any]) -> tuple[Singleton, ...] | None:
    if definition["kind"] != "predicate":
        return None
    return tuple(
        Singleton(part["field"], part["op"], part.get("value"))
        for part in definition["predicate"]["all"]
    )


@dataclass(frozen=True)
class FoundSlices:
    """The slices of a document: TFMA's key of each, and their predicates."""

    keys: tuple[SliceKey, ...]
    membership: SliceMembership

    def keys_of(self, features: Sequence[dict[str, Any]]) -> list[list[SliceKey]]:
        """Return the keys of each example, whose features are arrays of any shape by name."""
        if not self.keys:
            return [[] for _ in features]
        conditions: dict[str, list[Singleton]] = {name: [] for name in self.membership.columns}
        for predicate in self.membership.predicates:
            for condition in predicate:
                conditions[condition.field].append(condition)
        columns = {}
        for name, listed in conditions.items():
            if not any(name in example for example in features):
                _warn_missing(name)
            columns[name] = _column(name, [example.get(name) for example in features], listed)
        codes = self.membership.codes(pa.table(columns))
        return [
            [self.keys[code] for code in codes.codes[begin:end]]
            for begin, end in zip(codes.offsets[:-1], codes.offsets[1:], strict=True)
        ]


@cache
def _warn_missing(name: str) -> None:
    _LOG.warning("examples without feature %r: its slices take it as missing", name)


def _column(name: str, features: list[Any], conditions: Sequence[Singleton]) -> pa.Array:
    """Return a feature of some examples as the conditions on it want it."""
    # Sparse and ragged values of TFMA have their array within.
    arrays = [
        np.zeros(0, object) if value is None else np.ravel(getattr(value, "values", value))
        for value in features
    ]
    lengths = np.array([array.size for array in arrays])
    filled = [array for array in arrays if array.size]
    items = _items(np.concatenate(filled)) if filled else pa.nulls(0)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    if any(condition.op == "contains" for condition in conditions):
        offsets = pa.array(ends.astype(np.int32))
        return pa.ListArray.from_arrays(offsets, items, mask=pa.array(lengths == 0))
    if lengths.max() > 1:
        raise InputError(
            f"feature {name!r} has {lengths.max()} values in an example, and the ChangeList has one of each"
        )
    array = items.take(pa.array(ends[:-1], mask=lengths == 0))
    constants = np.hstack([np.ravel(np.array(c.value, object)) for c in conditions])
    if pa.types.is_integer(array.type) and any(isinstance(c, bool) for c in constants):
        # A tf.Example has numbers for truth values.
        return array.cast(pa.bool_())
    return array


def _items(values: NDArray[Any]) -> pa.Array:
    if values.dtype.kind not in "OSU":
        return pa.array(values)
    texts = [item.decode() if isinstance(item, bytes) else item for item in values.tolist()]
    return pa.array(texts, pa.string())


def _with_keys(batch: list[Any], slices: FoundSlices) -> Iterator[Any]:
    constants, slicer = tfma_module("constants"), tfma_module("slicer.slicer_lib")
    type_key = constants.SLICE_KEY_TYPES_KEY
    features = [extracts.get(constants.FEATURES_KEY) or {} for extracts in batch]
    for extracts, keys in zip(batch, slices.keys_of(features), strict=True):
        earlier = extracts.get(type_key)
        every = dict.fromkeys([*(() if earlier is None else earlier), *keys])
        yield {**extracts, type_key: slicer.slice_keys_to_numpy_array(list(every))}
