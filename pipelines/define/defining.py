"""What ``slicebeam define`` does: a slice from a text, a predicate, ids, labels or a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from slicebeam.metrics.errors import OptionError, flag
from slicebeam.pipelines.changelist.edits import added, check_name
from slicebeam.pipelines.changelist.revisions import from_last
from slicebeam.pipelines.config.document import METHODS
from slicebeam.pipelines.define.counting import Counting, DefinedSlice
from slicebeam.pipelines.define.new_slices import EditSession
from slicebeam.transforms.encode.definitions import MembershipDefinition
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicebeam.pipelines.config.document import DefineConfig
    from slicebeam.pipelines.define.document_data import DocumentData
    from slicebeam.pipelines.define.new_slices import Revision
    from slicebeam.transforms.encode.definitions import AnyDefinition

_Found = tuple["AnyDefinition", tuple[str, ...]]


@from_last
def define_slice(config: DefineConfig, on_start: Callable[[str], None]) -> Revision:
    """Define a slice, count it on the data, and publish the document with it."""
    counting = Counting.of(config)
    base = EditSession.read(config.changelist)
    check_name(base.document, config.name)
    new = defined(base, config, counting, on_start)
    (one,) = base.counted([new], counting)
    return base.publish(added(base.document, one), f"defined slice {config.name!r}", counting)


def defined(
    base: EditSession, config: DefineConfig, counting: Counting, on_start: Callable[[str], None]
) -> DefinedSlice:
    """Return the slice of a command's options, and add what the user should know to the notes."""
    definition, notes = _definition(base, config, counting, on_start)
    base.notes += notes
    return DefinedSlice(config.name, definition, METHODS[config.way])


def defined_by_marks(
    base: EditSession, name: str, counting: Counting, yes: Sequence[int], no: Sequence[int]
) -> DefinedSlice:
    """Return the slice of examples that a person marked, by their rows in the data.

    Without any that are marked *no*, it is those marked *yes*; else what a classifier takes for them.
    """
    if not yes:
        raise OptionError("no example is marked yes; mark at least one")
    if both := set(yes) & set(no):
        raise OptionError(f"row {min(both):,} is marked both yes and no; keep one of the marks")
    way = "classifier" if no else "ids"
    encoder = _encoder(base, way) if no else ""
    if not no:
        _id_field(base, way)
    from slicebeam.pipelines.attribution.population import ids_at
    from slicebeam.pipelines.define.classifier import classifier_of
    from slicebeam.pipelines.define.document_data import open_data

    data = open_data(base.uri, base.document, counting.data or None, counting.confirmed)
    last = max(*yes, *no, 0)
    if last >= len(data.ids):
        raise OptionError(f"row {last:,} is not in the data, which has {len(data.ids):,}")
    taken, left = (ids_at(data.ids, np.array(rows, np.int64)) for rows in (yes, no))
    definition: AnyDefinition = MembershipDefinition(ids=tuple(dict.fromkeys(taken)))
    if no:
        labels = dict.fromkeys(taken, True) | dict.fromkeys(left, False)
        definition, notes = classifier_of(labels, data, encoder)
        base.notes += notes
    return DefinedSlice(name, definition, METHODS[way])


def _definition(
    base: EditSession, config: DefineConfig, counting: Counting, on_start: Callable[[str], None]
) -> _Found:
    if config.where is not None:
        from slicebeam.pipelines.define.predicates import column_types, predicate_definition

        columns = column_types(base.uri, base.document, base.data(counting))
        return predicate_definition(config.where, columns), ()
    from slicebeam.pipelines.define.document_data import open_data

    # What is wrong without the examples is said before they are read.
    way = config.way
    encoder = _encoder(base, way) if way in ("text_filter", "classifier") else ""
    id_field = _id_field(base, way) if way in ("ids", "llm_filter") else ""
    column = _text_column(base, config) if way == "llm_filter" else ""
    data: DocumentData = open_data(
        base.uri, base.document, counting.data or None, counting.confirmed
    )
    if config.text_filter is not None:
        from slicebeam.pipelines.define.text_filter import text_filter

        return text_filter(data, encoder, config.text_filter, config.threshold)
    if config.ids is not None:
        from slicebeam.pipelines.prepare.id_lists import id_list

        return id_list(config.ids, data.ids, id_field)
    if config.classifier is not None:
        from slicebeam.pipelines.define.classifier import classifier

        return classifier(config.classifier, data, encoder)
    return _by_llm(base, config, data, column, on_start)


def _by_llm(
    base: EditSession,
    config: DefineConfig,
    data: DocumentData,
    column: str,
    on_start: Callable[[str], None],
) -> _Found:
    from slicebeam.pipelines.define.llm_filter import llm_filter

    # The others are given, as was checked.
    options: Any = config
    texts = data.column(column)
    if pa.types.is_dictionary(texts.type):
        texts = texts.dictionary_decode()
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        raise OptionError(
            f"--text {column}: the column is {texts.type}, not text; name another one"
        )
    folder = storage_path(base.uri).parent
    return llm_filter(
        options.llm_filter, options.llm, data.ids, texts, folder, options.budget, on_start
    )


def _encoder(base: EditSession, way: str) -> str:
    discovery = base.document.discovery
    if discovery is None:
        raise OptionError(
            f"{flag(way)} needs embeddings, and this document has none; name the document of a "
            "slicebeam discover"
        )
    return discovery.encoder_fingerprint


def _id_field(base: EditSession, way: str) -> str:
    found = base.document.dataset.id_field
    if found is None:
        raise OptionError(
            f"{flag(way)} needs ids, but the document has no column of ids; run the search again "
            "with --example-id"
        )
    return found


def _text_column(base: EditSession, config: DefineConfig) -> str:
    discovery = base.document.discovery
    found = config.text or (discovery.text_field if discovery is not None else None)
    if found is None:
        raise OptionError("--llm-filter reads texts; name their column with --text")
    return found
