"""The slices of a ChangeList as slice keys of a user's own pipeline of TFMA."""

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
from slicebeam.transforms.encode.predicates import Singleton
from slicebeam.transforms.storage.storage import storage_errors, storage_path
from slicebeam.transforms.storage.strict_text import parse_json
from slicebeam.transforms.tfma.install import tfma_module
from slicebeam.transforms.tfma.slice_keys import NamedSlice, SliceKey, slice_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STAGE = "ExtractFoundSliceKeys"
# Examples whose slices are found together.
_AT_A_TIME = 512
_LOG = logging.getLogger(__name__)


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
    return extractor.Extractor(stage_name=STAGE, ptransform=_AddSliceKeys(slices))


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
        np.zeros(0, object) if value is None else np.asarray(getattr(value, "values", value))
        for value in features
    ]
    values = [
        [
            item.decode("utf-8") if isinstance(item, bytes) else item
            for item in array.ravel().tolist()
        ]
        for array in arrays
    ]
    kind = next((_arrow_kind(array.dtype) for array in arrays if array.size), pa.null())
    if any(condition.op == "contains" for condition in conditions):
        return pa.array([items or None for items in values], pa.list_(kind))
    if several := next((items for items in values if len(items) > 1), None):
        raise InputError(
            f"feature {name!r} has {len(several)} values in an example, and the ChangeList has one of each"
        )
    array = pa.array([items[0] if items else None for items in values], kind)
    constants = np.hstack([np.ravel(np.array(c.value, object)) for c in conditions])
    if pa.types.is_integer(kind) and any(isinstance(constant, bool) for constant in constants):
        # A tf.Example has numbers for truth values.
        return array.cast(pa.bool_())
    return array


def _arrow_kind(kind: np.dtype[Any]) -> pa.DataType:
    return pa.string() if kind.kind in "OSU" else pa.from_numpy_dtype(kind)


@dataclass
class _AddSliceKeys(beam.PTransform):
    """Add the slice keys: PCollection of tfma.Extracts -> the same."""

    slices: FoundSlices

    def expand(self, extracts: beam.PCollection[Any]) -> beam.PCollection[Any]:
        """Wire the transform."""
        return (
            extracts
            | "Batch" >> beam.BatchElements(min_batch_size=_AT_A_TIME, max_batch_size=_AT_A_TIME)
            | "Add slice keys" >> beam.FlatMap(_with_keys, self.slices)
        )


def _with_keys(batch: list[Any], slices: FoundSlices) -> Iterator[Any]:
    constants, slicer = tfma_module("constants"), tfma_module("slicer.slicer_lib")
    type_key = constants.SLICE_KEY_TYPES_KEY
    features = [extracts.get(constants.FEATURES_KEY) or {} for extracts in batch]
    for extracts, keys in zip(batch, slices.keys_of(features), strict=True):
        earlier = extracts.get(type_key)
        every = dict.fromkeys([*(() if earlier is None else earlier), *keys])
        yield {**extracts, type_key: slicer.slice_keys_to_numpy_array(list(every))}
