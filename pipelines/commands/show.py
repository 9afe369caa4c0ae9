"""``slicebeam show``: the slices of a ChangeList, or the examples of one, in an order that helps to find them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.arrays import FloatArray
from slicebeam.metrics.errors import InputError, printable, shortened
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.edits import find_slice
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.changelist.revisions import base_of
from slicebeam.pipelines.changelist.slices import Slice, words_of
from slicebeam.pipelines.config.document import ShowConfig
from slicebeam.pipelines.define.document_data import FAILING, DocumentData, check_size, open_data
from slicebeam.pipelines.page.examples import entries
from slicebeam.pipelines.show.define import slice_line, slice_summary
from slicebeam.transforms.encode.conditions import similarities

if TYPE_CHECKING:
    from numpy.typing import NDArray

Rows = list[dict[str, Any]]

_NAMED = "slicebeam show"


def show(config: ShowConfig, note: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the slices of a document, or the examples of one, each as its values by name."""
    uri = base_of(config.changelist, _NAMED)
    document = read_search(uri, _NAMED)
    if config.slice is None:
        rows, total = _slices(uri, document, config)
    else:
        rows, total = _examples(uri, document, config, config.slice)
    if total > len(rows):
        note(f"{len(rows):,} of {total:,} are shown; --limit shows more")
    return rows


def _slices(uri: str, document: SearchChangeList, config: ShowConfig) -> tuple[Rows, int]:
    words = words_of(config.words or "")
    slices = [slice_ for slice_ in document.slices if slice_.has_words(words)]
    similarity: FloatArray | None = None
    if config.text is not None and slices:
        similarity = _of_centroids(_opened(uri, document, config), slices, config.text)
        order = np.argsort(-similarity, kind="stable")
        similarity, slices = similarity[order], [slices[at] for at in order]
    shown = slices[: config.limit]
    rows = [slice_summary(listed) | {"phrases": _phrases(listed)} for listed in shown]
    return _with_similarity(rows, similarity), len(slices)


def _phrases(listed: Slice) -> list[str]:
    return [] if listed.found is None else [phrase.text for phrase in listed.found.phrases]


def _of_centroids(examples: DocumentData, slices: Sequence[Slice], text: str) -> FloatArray:
    """Return the cosine of the mean embedding of each slice's examples with that of a text: [slices]."""
    query = _query(examples, text)
    definitions = {f"slice {slice_.slice_id}": slice_.definition for slice_ in slices}
    centroids, sizes = examples.centroids(definitions)
    for listed, held in zip(slices, sizes, strict=True):
        check_size(listed, int(held), "--text")
    return similarities(centroids, query)


def _examples(
    uri: str, document: SearchChangeList, config: ShowConfig, name: str
) -> tuple[Rows, int]:
    chosen = find_slice(document, name)
    examples = _opened(uri, document, config)
    query = None if config.text is None else _query(examples, config.text)
    places = np.concatenate(examples.tiers(chosen, FAILING, "--slice"))
    similarity: FloatArray | None = None
    if query is not None:
        similarity = examples.cosines(query)[places]
        order = np.argsort(-similarity, kind="stable")
        similarity, places = similarity[order], places[order]
    rows = entries(examples, places[: config.limit])
    return _with_similarity(rows, similarity), len(places)


def _opened(uri: str, document: SearchChangeList, config: ShowConfig) -> DocumentData:
    return open_data(uri, document, config.data or None, config.confirmed)


def _query(examples: DocumentData, text: str) -> NDArray[np.float32]:
    (query,) = examples.queries([text])
    if not query.any():
        raise InputError(
            f"--text {shortened(repr(text))}: the encoder knows none of its words; use other words"
        )
    return query


def _with_similarity(rows: Rows, similarity: FloatArray | None) -> Rows:
    if similarity is None:
        return rows
    return [{"similarity": float(similarity[at]), **row} for at, row in enumerate(rows)]


def show_rows(rows: Rows, _: ShowConfig) -> None:
    """Print slices or examples, a line each."""
    sys.stdout.writelines(f"{_line(row)}\n" for row in rows)


def _line(row: dict[str, Any]) -> str:
    similarity = f"{row['similarity']:+.3f}  " if "similarity" in row else ""
    if "fields" in row:
        fields = "  ".join(f"{name}: {value}" for name, value in row["fields"])
        text = "  ".join([*filter(None, [str(row.get("id", "")), row["role"]]), fields])
    else:
        text = "; ".join([slice_line(row), *filter(None, ["; ".join(row["phrases"])])])
    return printable(similarity + text)
