"""What ``slicebeam define`` does: a slice from a text, a predicate, ids, labels or a language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.data_config import flag
from slicebeam.pipelines.define.new_slices import Base, New
from slicebeam.pipelines.edits import added, check_name
from slicebeam.transforms.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.pipelines.attribution.population import Population
    from slicebeam.pipelines.changelist_discovery import AnyDefinition
    from slicebeam.pipelines.define.new_slices import Counting, Published

_Found = tuple["AnyDefinition", tuple[str, ...]]
# The method of the origin, for each way to define a slice.
_METHODS: dict[str, str] = {
    "text_filter": "text_filter",
    "where": "manual",
    "ids": "manual",
    "classifier": "classifier",
    "llm_filter": "lm_filter",
}
# What means something beside one of them only.
_BESIDE = {
    "threshold": "text_filter",
    "llm": "llm_filter",
    "budget": "llm_filter",
    "text": "llm_filter",
}


@dataclass(frozen=True)
class Described:
    """What a user said of a slice; the names are those of the options.

    Attributes
    ----------
    name : of the slice
    text_filter, where, ids, classifier, llm_filter : what defines it, one of them
    threshold : least cosine similarity to ``text_filter``
    llm, budget, text : endpoint, most calls and column of the texts for ``llm_filter``
    """

    name: str
    text_filter: str | None = None
    where: str | None = None
    ids: str | None = None
    classifier: str | None = None
    llm_filter: str | None = None
    threshold: float | None = None
    llm: str | None = None
    budget: int | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in _METHODS if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"not {' and '.join(map(flag, given))}" if given else "none is given"
            raise InputError(
                f"a slice is defined by one of {', '.join(map(flag, _METHODS))}; {found}"
            )
        for name, beside in _BESIDE.items():
            if getattr(self, name) is not None and given[0] != beside:
                raise InputError(
                    f"{flag(name)} goes with {flag(beside)}, not with {flag(given[0])}"
                )
        for name in ("llm", "budget"):
            if self.llm_filter is not None and getattr(self, name) is None:
                raise InputError(f"--llm-filter needs {flag(name)}")

    @property
    def way(self) -> str:
        """The option that defines the slice."""
        return next(name for name in _METHODS if getattr(self, name) is not None)


def define_slice(
    changelist: str,
    described: Described,
    counting: Counting,
    on_start: Callable[[str], None],
) -> Published:
    """Define a slice, count it on the data, and publish the document with it.

    Parameters
    ----------
    changelist : path of a document, or a folder with its revisions
    on_start : is told what is about to be paid

    Raises
    ------
    InputError
        The document, the description or the data is wrong, or the slice has no examples.
    EngineError
        The engine, the API or the storage failed.
    """
    base = Base.read(changelist)
    check_name(base.document, described.name)
    definition, notes = _defined(base, described, counting, on_start)
    base.notes += notes
    new = New(described.name, definition, _METHODS[described.way])
    (one,) = base.counted([new], counting)
    return base.publish(added(base.document, one))


def _defined(
    base: Base, described: Described, counting: Counting, on_start: Callable[[str], None]
) -> _Found:
    if described.where is not None:
        from slicebeam.pipelines.define.predicates import column_types, predicate_definition

        columns = column_types(base.uri, base.document, base.data(counting))
        return predicate_definition(described.where, columns), ()
    from slicebeam.pipelines.discovery.population import open_examples

    # What is wrong without the examples is said before they are read.
    way = described.way
    encoder = _encoder(base, way) if way in ("text_filter", "classifier") else ""
    id_field = _id_field(base, way) if way in ("ids", "llm_filter") else ""
    column = _text_column(base, described) if way == "llm_filter" else ""
    population: Population = open_examples(
        base.uri, base.document, counting.data or None, counting.confirmed
    )
    if described.text_filter is not None:
        from slicebeam.pipelines.define.text_filter import text_filter

        return text_filter(population, encoder, described.text_filter, described.threshold)
    if described.ids is not None:
        from slicebeam.pipelines.define.id_lists import id_list

        return id_list(described.ids, population.ids, id_field)
    if described.classifier is not None:
        from slicebeam.pipelines.define.classifier import classifier

        return classifier(described.classifier, population, encoder)
    return _by_llm(base, described, population, column, on_start)


def _by_llm(
    base: Base,
    described: Described,
    population: Population,
    column: str,
    on_start: Callable[[str], None],
) -> _Found:
    from slicebeam.pipelines.define.llm_filter import llm_filter

    # The others are given, as was checked.
    asked: Any = described
    texts = population.column(column)
    if pa.types.is_dictionary(texts.type):
        texts = texts.dictionary_decode()
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        raise InputError(f"--text {column}: the column is {texts.type}, not text; name another one")
    folder = storage_path(base.uri).parent
    return llm_filter(
        asked.llm_filter, asked.llm, population.ids, texts, folder, asked.budget, on_start
    )


def _encoder(base: Base, way: str) -> str:
    discovery = base.document.discovery
    if discovery is None:
        raise InputError(
            f"{flag(way)} needs embeddings, and this document has none; name that of a slicebeam "
            "discover"
        )
    return discovery.encoder_fingerprint


def _id_field(base: Base, way: str) -> str:
    found = base.document.dataset.id_field
    if found is None:
        raise InputError(
            f"{flag(way)} keeps ids, and the document knows no column of them; run it again with "
            "--example-id"
        )
    return found


def _text_column(base: Base, described: Described) -> str:
    discovery = base.document.discovery
    found = described.text or (discovery.text_field if discovery is not None else None)
    if found is None:
        raise InputError("--llm-filter asks about texts; name their column by --text")
    return found
