"""The page of a document: what is put into it, and what is said to be left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.reading import local_table, opened_table
from slicebeam.pipelines.discovery.group_map import group_maps
from slicebeam.pipelines.page.overview import overview_of
from slicebeam.pipelines.page.rows import kept_rows
from slicebeam.pipelines.page.single_file import single_file
from slicebeam.pipelines.page.tables import packed_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    import pyarrow as pa

    from slicebeam.pipelines.changelist.document import ChangeList
    from slicebeam.pipelines.page.rows import Kept

    Examples = Mapping[str, Sequence[dict[str, Any]]]


def page_of_file(uri: str, document: ChangeList, examples: Examples) -> str:
    """Return the page of a document with the table that is beside it."""
    return _page(document, kept_beside(uri, document), examples, group_maps(uri, document))


def page_in_memory(document: ChangeList, slices: pa.Table) -> str:
    """Return the page of a document with its table in memory."""
    has_table = isinstance(document, SearchChangeList) and "metric" in slices.column_names
    return _page(document, _kept(document, slices) if has_table else None, {}, None)


def kept_beside(uri: str, document: ChangeList) -> Kept | None:
    """Return what is kept of the table beside a document of a search; None where there is none."""
    if not isinstance(document, SearchChangeList):
        return None
    with opened_table(uri, document) as stream, local_table(uri, document) as path:
        return None if stream is None or path is None else _kept(document, path)


def _kept(document: ChangeList, table: pa.Table | Path) -> Kept:
    return kept_rows(table, [one.key for one in document.metrics])


def _page(
    document: ChangeList,
    kept: Kept | None,
    examples: Examples,
    maps: Sequence[dict[str, Any]] | None,
) -> str:
    left_out = list(_left_out(document, kept, examples))
    if document.discovery is not None and maps is None:
        left_out.append("The map of the groups: mixture.npz is not next to the document.")
    tables = packed_tables(document, kept, examples, maps or ())
    return single_file(overview_of(document, left_out), tables)


def _left_out(document: ChangeList, kept: Kept | None, examples: Examples) -> Iterator[str]:
    if kept is not None:
        held = max((one.num_rows for one in kept.tables.values()), default=0)
        slices = max((one.slices for one in kept.totals.values()), default=0)
        if held < slices:
            yield (
                f"{slices - held:,} of {slices:,} slices are in slices.parquet only; here are the "
                f"findings, then the {held:,} slices that differ most surely."
            )
    elif isinstance(document, SearchChangeList):
        yield (
            "The table of all slices is not next to the document: this page has the slices of "
            "changelist.json only."
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
