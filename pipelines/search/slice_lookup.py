"""Finds the slice that ``--explain`` names, before anything is counted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.errors import InputError, OptionError, unknown_name
from slicebeam.transforms.encode.predicates import condition_fields, refuse_empty_intervals

if TYPE_CHECKING:
    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.search.slices_table import SliceNames

_ID = re.compile(r"[0-9a-f]{16}")
# An id is looked for among so many conjunctions before they are counted.
_MOST_LOOKED_AT = 20_000_000


def check_slice_text(text: str, config: RunConfig) -> None:
    """Refuse text that is neither an id nor a predicate, before any work is done."""
    if config.command == "check" or _ID.fullmatch(text):
        return
    try:
        condition_fields(text)
        refuse_empty_intervals(text)
    except InputError as error:
        raise OptionError(f"--explain {text!r}: {error}, or give the id of a slice") from error


def find_slice_key(text: str, prepared: EncodedDataset, names: SliceNames) -> int | None:
    """Return the key of the slice that is named by its id or its text.

    None for an id that is not looked for, the conjunctions being too many.
    """
    try:
        if prepared.given is not None:
            return _given(text, prepared, names)
        if _ID.fullmatch(text):
            return _by_id(text, prepared, names)
        return _by_text(text, prepared, names)
    except InputError as error:
        raise OptionError(f"--explain {text!r}: {error}") from error


def _given(text: str, prepared: EncodedDataset, names: SliceNames) -> int:
    if prepared.given is None:
        raise TypeError("a check without slices")
    keys = prepared.lattice.singleton_keys()
    texts = names.texts(keys).to_pylist()
    for known in (names.ids(keys).to_pylist(), texts, list(prepared.given.names)):
        if text in known:
            return int(keys[known.index(text)])
    shown = [name or own for name, own in zip(prepared.given.names, texts, strict=True)]
    raise unknown_name("slice", text, shown)


def _by_id(text: str, prepared: EncodedDataset, names: SliceNames) -> int | None:
    lattice = prepared.lattice
    if lattice.space() > _MOST_LOOKED_AT:
        return None
    for level in range(1, lattice.max_cross_size + 1):
        for features in lattice.tuples(level).tolist():
            keys = _conjunctions(prepared, features)
            found = keys[names.has_id(keys, text)]
            if found.size:
                return int(found[0])
    raise InputError(
        "no slice of this run has this id; an id depends on the predicates, so take it from a "
        "run with the same bins and values, or give the slice as text"
    )


def _conjunctions(prepared: EncodedDataset, features: list[int]) -> Keys:
    """Return the keys of all conjunctions on a tuple of features."""
    lattice = prepared.lattice
    codes = [
        np.arange(lattice.offsets[feature], lattice.offsets[feature + 1]) + 1
        for feature in features
    ]
    digits = np.stack([one.reshape(-1) for one in np.meshgrid(*codes, indexing="ij")], axis=1)
    return lattice.keys(digits)


def _by_text(text: str, prepared: EncodedDataset, names: SliceNames) -> int:
    domains = {domain.name: domain for domain in prepared.domains}
    left_out = {column.name: column.reason for column in prepared.left_out}
    texts = {str(single): 1 + at for at, single in enumerate(names.singletons)}
    digits: dict[str, int] = {}
    for part, fields in condition_fields(text):
        if part not in texts:
            known = [field for field in fields if field in domains]
            if not known:
                for field in fields:
                    if field in left_out:
                        raise InputError(f"{field!r} is not a feature here: {left_out[field]}")
                raise unknown_name("feature", fields[0], domains)
            own = [str(single) for single in domains[known[0]].singletons]
            raise unknown_name("predicate", part, own)
        field = names.singletons[texts[part] - 1].field
        if field in digits:
            raise InputError(
                f"it has two predicates of {field!r}; a slice has at most one per feature"
            )
        digits[field] = texts[part]
    if len(digits) > prepared.lattice.max_cross_size:
        raise InputError(
            f"it has {len(digits)} predicates, and slices here have up to "
            f"{prepared.lattice.max_cross_size}; raise --max-cross-size"
        )
    row = np.array([list(digits.values())], np.int64)
    return int(prepared.lattice.keys_of_sets(row)[0])
