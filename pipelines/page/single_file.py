"""The page as one file, which opens from a disk or a mail and asks the network for nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from typing import Any

from slicebeam.pipelines.run.open_run import PAGE_MARK

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
    """Return the HTML of a frame that holds a page, for notebooks.

    What is in the frame reaches neither the notebook nor its server.
    """
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
