"""``slicebeam report``: writes the page of a document beside it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from slicebeam.pipelines.changelist.reading import read_changelist
from slicebeam.pipelines.changelist.revisions import base_of
from slicebeam.pipelines.page.content import page_of_file
from slicebeam.pipelines.page.examples import examples_of
from slicebeam.pipelines.run.open_run import PAGE
from slicebeam.pipelines.show.terminal_text import harmless
from slicebeam.transforms.storage.storage import storage_path, written_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.pipelines.config.document import ReportConfig

_NAMED = "slicebeam report"
# Bytes.
_LARGE = 5_000_000


def write_report(config: ReportConfig, note: Callable[[str], None]) -> str:
    """Write the page of a document, when it is whole in place of an old one, and return its path."""
    path = storage_path(config.changelist, _NAMED)
    folder = path if path.is_dir() else path.parent
    uri = base_of(config.changelist, _NAMED)
    document = read_changelist(uri, _NAMED)
    examples = {}
    if config.examples:
        examples = examples_of(uri, document, config.data, config.examples)
        if not any(examples.values()):
            note(f"{uri} has no findings; the page holds no examples")
    page = page_of_file(uri, document, examples).encode()
    if len(page) > _LARGE:
        note(
            f"the page has {len(page) / 1e6:.1f} MB, too much for some mail; give fewer --examples"
        )
    target = folder / PAGE
    with written_whole(target) as stream:
        stream.write(page)
    return str(target)


def show_report(written: str, _: ReportConfig) -> None:
    """Print where the page is."""
    sys.stdout.write(f"{harmless(written)}\n")


def report_json(written: str) -> dict[str, str]:
    """Return what ``--json`` prints of a page."""
    return {"report": written}
