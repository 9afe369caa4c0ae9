"""What the page shows at once, and the slices that the document lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import SlicebeamError
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.reading import CHANGELIST, read_changelist
from slicebeam.pipelines.discovery.group_map import group_maps
from slicebeam.pipelines.page.answers import reads
from slicebeam.pipelines.page.content import kept_beside
from slicebeam.pipelines.page.overview import overview_of
from slicebeam.pipelines.page.served import NAMED
from slicebeam.pipelines.page.tables import packed_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.routing import Route

    from slicebeam.pipelines.page.served import ServedOutput


def routes(served: ServedOutput) -> list[Route]:
    """Return the route of the page's content: the last revision of the document, read anew."""

    def page() -> dict[str, Any]:
        now = served.latest()
        maps = group_maps(now.uri, now.document)
        # A map shows all groups, and not only those that the document lists.
        kept = kept_beside(now.uri, now.document) if maps else None
        tables = packed_tables(now.document, kept, {}, maps or ())
        overview = overview_of(now.document, list(_left_out(now, has_maps=maps is not None)))
        overview["notes"] = [*_replaced(served), *overview["notes"]]
        discovery = now.document.discovery
        # Items to label are drawn by how near their embeddings are to the words.
        overview["can_label"] = discovery is not None and discovery.encoder != "none"
        overview["has_tests"] = served.config.tree is not None
        return {"overview": overview, "tables": tables}

    return [reads("/page", page)]


def _left_out(served: ServedOutput, *, has_maps: bool) -> Iterator[str]:
    document = served.document
    if isinstance(document, SearchChangeList) and document.search.saved_slices == "significant":
        yield "Slices that are not significant: this run did not save them."
    if not has_maps:
        yield "The map of the groups: mixture.npz is not beside the document."


def _replaced(served: ServedOutput) -> Iterator[str]:
    """Yield what became of the output since the server has it."""
    first = str(served.folder / CHANGELIST)
    if served.uri != first and served.document.revision == 0:
        # A document under a name of its own.
        return
    try:
        there = read_changelist(first, NAMED, with_slices=False)
    except SlicebeamError as error:
        yield f"The output has changed since the server was started: {error}."
        return
    if there.changelist_id != served.document.changelist_id:
        yield (
            "A later run has replaced this output. End the server and start slicebeam serve again to "
            "see that run."
        )
