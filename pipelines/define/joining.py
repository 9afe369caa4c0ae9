"""Slices made from others: merged, or split by a predicate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.changelist.edits import check_name, find_slice, merged, split
from slicebeam.pipelines.define.counting import DefinedSlice
from slicebeam.transforms.encode.definitions import JoinedDefinition, NotDefinition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.define.counting import Counting
    from slicebeam.pipelines.define.new_slices import EditSession

_PARTS = 2


def merged_slices(
    base: EditSession, slices: Sequence[str], name: str, counting: Counting
) -> SearchChangeList:
    """Put a slice of all their examples in the place of some slices."""
    parts = [find_slice(base.document, name) for name in slices]
    ids = [part.slice_id for part in parts]
    if len(set(ids)) < max(_PARTS, len(ids)):
        raise OptionError(
            f"--slice names {len(set(ids))} of {len(ids)} slices; name two or more different ones"
        )
    left = tuple(slice_ for slice_ in base.document.slices if slice_.slice_id not in ids)
    check_name(base.document.model_copy(update={"slices": left}), name)
    definition = JoinedDefinition(kind="any_of", of=tuple(part.definition for part in parts))
    (new,) = base.counted([DefinedSlice(name, definition)], counting)
    return merged(base.document, ids, new)


def split_slice(
    base: EditSession, whole: Slice, where: str, names: Sequence[str], counting: Counting
) -> SearchChangeList:
    """Put the examples of a slice that satisfy a predicate, and the others, in its place."""
    from slicebeam.pipelines.define.predicates import column_types, predicate_definition

    if len(names) not in (0, _PARTS):
        raise OptionError(f"--name occurs {len(names)} times; name both parts, or neither")
    columns = column_types(base.uri, base.document, base.data(counting))
    predicate = predicate_definition(where, columns)
    text = predicate.predicate
    called = names or (f"{whole.name} & {text}", f"{whole.name} & not ({text})")
    if called[0] == called[1]:
        raise OptionError(f"--name {called[0]!r} occurs twice; give the parts different names")
    left = tuple(other for other in base.document.slices if other is not whole)
    for name in called:
        check_name(base.document.model_copy(update={"slices": left}), name)
    others = NotDefinition(of=predicate)
    parts = [
        DefinedSlice(called[0], JoinedDefinition(kind="all_of", of=(whole.definition, predicate))),
        DefinedSlice(called[1], JoinedDefinition(kind="all_of", of=(whole.definition, others))),
    ]
    return split(base.document, whole.slice_id, base.counted(parts, counting))
