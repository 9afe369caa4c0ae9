"""The slices of a ChangeList as slice keys of a user's own pipeline of TFMA."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

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
    """Return the slices of a ChangeList that predicates describe; others are named in a warning.

    Raises
    ------
    InputError
        There is no such document.
    """
    path = storage_path(changelist, "changelist")
    with storage_errors(path, "read"):
        if path.is_dir():
            path = path / "changelist.json"
        if not path.is_file():
            raise FileError(f"changelist {path}: no such file")
        text = path.read_text("utf-8")
    try:
        listed = parse_json(text)["slices"]
        found = [
            NamedSlice(one["slice_id"], one["name"], _conditions(one["definition"]))
            for one in listed
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"changelist {path}: no ChangeList with slices ({error!r})") from error
    keys = slice_keys(found)
    kept = [(key, one.conditions) for key, one in zip(keys, found, strict=True) if one.conditions]
    if len(kept) < len(found):
        others = ", ".join(one.name for one in found if not one.conditions)
        _LOG.warning("no slice keys for %s: only predicates can be evaluated in TFMA", others)
    return FoundSlices(
        tuple(key for key, _ in kept), SliceMembership(tuple(held for _, held in kept))
    )


def _conditions(definition: dict[str, Any]) -> tuple[Singleton, ...] | None:
    if definition["kind"] != "predicate":
        return None
    return tuple(
        Singleton(one["field"], one["op"], one.get("value"))
        for one in definition["predicate"]["all"]
    )


@dataclass(frozen=True)
class FoundSlices:
    """The slices of a document.

    Attributes
    ----------
    keys : of TFMA, of each slice
    membership : their predicates
    """

    keys: tuple[SliceKey, ...]
    membership: SliceMembership

    @cached_property
    def _of_field(self) -> dict[str, list[Singleton]]:
        fields: dict[str, list[Singleton]] = {name: [] for name in self.membership.columns}
        for conditions in self.membership.predicates:
            for one in conditions:
                fields[one.field].append(one)
        return fields

    def keys_of(self, features: Sequence[dict[str, Any]]) -> list[list[SliceKey]]:
        """Return the keys of each example.

        Parameters
        ----------
        features : of each example, arrays of any shape by name

        Raises
        ------
        InputError
            A feature is of another type than a predicate, or has several values.
        """
        if not self.keys:
            return [[] for _ in features]
        columns = {
            name: _column(name, [one.get(name) for one in features], conditions)
            for name, conditions in self._of_field.items()
        }
        found = self.membership.codes(pa.table(columns))
        return [
            [self.keys[code] for code in found.codes[begin:end]]
            for begin, end in zip(found.offsets[:-1], found.offsets[1:], strict=True)
        ]


def _column(name: str, features: list[Any], conditions: Sequence[Singleton]) -> pa.Array:
    """Return a feature of some examples as the conditions on it want it."""
    values = [_values(one) for one in features]
    is_list = any(one.op == "contains" for one in conditions)
    if not is_list and (several := next((one for one in values if len(one) > 1), None)):
        raise InputError(
            f"feature {name!r} has {len(several)} values in an example, and the ChangeList has one of each"
        )
    kinds = [one.dtype for one in map(_array, features) if one is not None and one.size]
    kind = _arrow_kind(kinds[0]) if kinds else pa.null()
    if is_list:
        return pa.array([one or None for one in values], pa.list_(kind))
    array = pa.array([one[0] if one else None for one in values], kind)
    truths = [isinstance(value, bool) for one in conditions for value in _constants(one)]
    if any(truths) and pa.types.is_integer(kind):
        # A tf.Example has numbers for truth values.
        return array.cast(pa.bool_())
    return array


def _constants(condition: Singleton) -> list[Any]:
    return condition.value if isinstance(condition.value, list) else [condition.value]


def _arrow_kind(kind: np.dtype[Any]) -> pa.DataType:
    return pa.string() if kind.kind in "OSU" else pa.from_numpy_dtype(kind)


def _array(feature: Any) -> np.ndarray[Any, Any] | None:
    if feature is None:
        return None
    # Sparse and ragged values of TFMA.
    return np.asarray(getattr(feature, "values", feature))


def _values(feature: Any) -> list[Any]:
    array = _array(feature)
    if array is None:
        return []
    return [
        one.decode("utf-8") if isinstance(one, bytes) else one for one in array.ravel().tolist()
    ]


class _ExtractFn(beam.DoFn):
    def __init__(self, slices: FoundSlices) -> None:
        self.slices = slices
        self._seen: set[str] = set()

    def setup(self) -> None:
        self._constants = tfma_module("constants")
        self._slicer = tfma_module("slicer.slicer_lib")

    def start_bundle(self) -> None:
        self._waiting: list[Any] = []

    def process(self, extracts: Any) -> Iterator[Any]:
        self._waiting.append(extracts)
        if len(self._waiting) >= _AT_A_TIME:
            yield from self._extracted()

    def finish_bundle(self) -> Iterator[Any]:
        window = GlobalWindow()
        for one in self._extracted():
            yield WindowedValue(one, window.max_timestamp(), [window])

    def _extracted(self) -> Iterator[Any]:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        features = [one.get(self._constants.FEATURES_KEY) or {} for one in waiting]
        for name in self.slices.membership.columns:
            if name not in self._seen and not any(name in one for one in features):
                self._seen.add(name)
                _LOG.warning("no example has feature %r; its slices take it as missing", name)
        type_key = self._constants.SLICE_KEY_TYPES_KEY
        for extracts, keys in zip(waiting, self.slices.keys_of(features), strict=True):
            earlier = extracts.get(type_key)
            every = [*(() if earlier is None else earlier), *keys]
            changed = copy.copy(extracts)
            changed[type_key] = self._slicer.slice_keys_to_numpy_array(list(dict.fromkeys(every)))
            yield changed


@dataclass
class _AddSliceKeys(beam.PTransform):
    """Add the slice keys: PCollection of tfma.Extracts -> the same."""

    slices: FoundSlices

    def expand(self, extracts: beam.PCollection[Any]) -> beam.PCollection[Any]:
        """Wire the transform."""
        return extracts | "Add slice keys" >> beam.ParDo(_ExtractFn(self.slices))
