"""The page of a document: what is put into it, and what is said to be left out."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.reading import opened_table
from slicebeam.pipelines.discovery.group_map import group_maps
from slicebeam.pipelines.page.overview import overview_of
from slicebeam.pipelines.page.rows import parts_of_file, parts_of_table
from slicebeam.pipelines.page.single_file import single_file
from slicebeam.pipelines.page.tables import packed_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    import pyarrow as pa

    from slicebeam.pipelines.changelist.document import ChangeList
    from slicebeam.pipelines.page.rows import Kept, Parts

    Examples = Mapping[str, Sequence[dict[str, Any]]]


def page_of_file(uri: str, document: ChangeList, examples: Examples) -> str:
    """Return the page of a document with the table that is beside it."""
    maps = group_maps(uri, document)
    with parts_beside(uri, document) as parts:
        return _page(document, parts, examples, maps)


def page_in_memory(document: ChangeList, slices: pa.Table) -> str:
    """Return the page of a document with its table in memory."""
    has_table = isinstance(document, SearchChangeList) and "metric" in slices.column_names
    return _page(document, parts_of_table(slices) if has_table else None, {}, None)


@contextmanager
def parts_beside(uri: str, document: ChangeList | None) -> Iterator[Parts | None]:
    """Yield the table of all slices beside a document of a search; None where there is none."""
    if not isinstance(document, SearchChangeList):
        yield None
        return
    with opened_table(uri, document) as stream:
        yield None if stream is None else parts_of_file(stream)


def _page(
    document: ChangeList,
    parts: Parts | None,
    examples: Examples,
    maps: Sequence[dict[str, Any]] | None,
) -> str:
    tables, kept = packed_tables(document, parts, examples, maps or ())
    is_search = isinstance(document, SearchChangeList)
    missing = parts is None and is_search
    left_out = list(_left_out(document, kept, examples, missing=missing))
    if document.discovery is not None and maps is None:
        left_out.append("The map of the groups: mixture.npz is not next to the document.")
    return single_file(overview_of(document, left_out), tables)


def _left_out(
    document: ChangeList, kept: Kept, examples: Examples, *, missing: bool
) -> Iterator[str]:
    held = next((one.num_rows for one in kept.tables.values()), 0)
    if missing:
        yield (
            "The table of all slices is not next to the document: this page has the slices of "
            "changelist.json only."
        )
    elif held < kept.slices:
        yield (
            f"{kept.slices - held:,} of {kept.slices:,} slices are in slices.parquet only; here are the "
            f"findings, then the {held:,} slices that differ most surely."
        )
    if isinstance(document, SearchChangeList) and document.search.saved_slices == "significant":
        yield "Slices that are not significant: this run did not save them."
    if not examples:
        yield "Examples: they stay where the data is." + (
            " slicebeam report <output folder> --examples 5 puts five of each finding in."
            if document.findings
            else ""
        )
    else:
        number = sum(map(len, examples.values()))
        yield f"All examples but {number:,}."
