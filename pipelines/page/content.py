"""The page of a document as one file, which asks the network for nothing: what is put into it, and left out."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.reading import local_table, opened_table
from slicebeam.pipelines.discovery.group_map import group_maps
from slicebeam.pipelines.page.overview import overview_of
from slicebeam.pipelines.page.rows import kept_rows
from slicebeam.pipelines.page.tables import packed_tables
from slicebeam.pipelines.run.open_run import PAGE_MARK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from slicebeam.pipelines.changelist.document import ChangeList
    from slicebeam.pipelines.page.rows import Kept

    Examples = Mapping[str, Sequence[dict[str, Any]]]

_FORBIDS = "default-src 'none'; base-uri 'none'; form-action 'none'"


def single_file(overview: dict[str, Any], tables: str) -> str:
    """Return the HTML of a page.

    Its policy lets the browser run the page's own script and use its own style, known by their hashes,
    and nothing else: what a data set or a document holds is text there.
    """
    script, style = _asset("page.js"), _asset("page.css")
    policy = f"{_FORBIDS}; script-src {_hash(script)}; style-src {_hash(style)}"
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{PAGE_MARK}
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(overview["title"])}</title>
<style>{style}</style>
</head>
<body>
<div id="page"><main><h1>{html.escape(overview["title"])}</h1>
<p>{html.escape(overview["summary"])}</p>
<noscript><p>Save the file and open it in a browser: the rest of the page is made by its own script.</p></noscript>
</main></div>
<script type="application/json" id="overview">{embedded_json(overview)}</script>
<script type="text/plain" id="tables">{tables}</script>
<script>{script}</script>
</body>
</html>
"""


def framed(page: str) -> str:
    """Return the HTML of a frame that holds a page and reaches neither the notebook nor its server."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts allow-downloads" width="100%" height="700" '
        'style="border: 0" title="slicebeam report"></iframe>'
    )


def embedded_json(content: Any) -> str:
    r"""Return JSON that ends no script element and begins no comment, whatever its texts are.

    >>> embedded_json(["</script>"])
    '["\\u003c/script>"]'
    """
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _asset(name: str) -> str:
    text = (files("slicebeam.pipelines.page") / "bundle" / name).read_text("utf-8")
    if "</script" in text or "</style" in text or "<!--" in text:
        raise ValueError(f"the bundle {name} can't stand within its element")
    return text


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


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
