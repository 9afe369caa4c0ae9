"""What the page shows at once, and the slices that the document lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.page.group_map import group_maps
from slicebeam.pipelines.page.overview import overview_of
from slicebeam.pipelines.page.tables import packed_tables
from slicebeam.pipelines.serve.answers import reads

if TYPE_CHECKING:
    from starlette.routing import Route

    from slicebeam.pipelines.serve.served import ServedOutput


def routes(served: ServedOutput) -> list[Route]:
    """Return the route of the page's content: the last revision of the document, read anew."""

    def page() -> dict[str, Any]:
        now = served.latest()
        maps = group_maps(now.uri, now.document)
        tables, _ = packed_tables(now.document, None, {}, maps or ())
        overview = overview_of(now.document, ())
        overview["has_tests"] = served.config.tree is not None
        return {"overview": overview, "tables": tables}

    return [reads("/page", page)]
