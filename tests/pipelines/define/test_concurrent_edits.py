"""Edits by several processes and the server at once, some killed: none that was acknowledged is lost."""

import json
import multiprocessing
import random
import time

import pytest

from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.changelist.revisions import base_of
from slicebeam.pipelines.commands.edit import annotate
from slicebeam.pipelines.config.edit import AnnotateConfig
from tests.edited_documents import searched
from tests.pipelines.serve.served_outputs import serving

pytestmark = pytest.mark.slow

WRITERS, EDITS = 4, 20


def _write(folder, slice_id, words, acknowledged):
    """Edit from the command line's function until killed or done; say which were acknowledged."""
    with acknowledged.open("a", buffering=1) as stream:
        for number in range(EDITS):
            note = f"{words}-{number}"
            config = AnnotateConfig(changelist=str(folder), slice=slice_id, note=note)
            annotate(config, lambda _: None)
            stream.write(f"{note}\n")


def _edit_in_page(client, slice_id, note):
    """Edit as the page does: it looks again where another edit came between."""
    while True:
        revision = client.get("/api/edits").json()["revision"]
        sent = {"slice_id": slice_id, "note": note, "revision": revision}
        answer = client.post("/api/edits/note", json=sent)
        if answer.status_code == 200:
            return
        assert answer.status_code == 409, answer.text


def test_no_acknowledged_edit_is_lost(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "changelist.json").write_bytes(searched(tmp_path).read_bytes())
    slice_id = json.loads((folder / "changelist.json").read_text())["slices"][0]["slice_id"]
    draw, context = random.Random(50), multiprocessing.get_context("fork")
    files = [tmp_path / f"acknowledged-{number}" for number in range(2 * WRITERS)]

    def started(number):
        args = (folder, slice_id, f"w{number}", files[number])
        process = context.Process(target=_write, args=args)
        process.start()
        return process

    in_page = []
    with serving(folder) as served, served.client() as client:
        writers = [started(number) for number in range(WRITERS)]
        for number in range(EDITS):
            _edit_in_page(client, slice_id, f"page-{number}")
            in_page.append(f"page-{number}")
            if number % 10 == 5:
                time.sleep(draw.uniform(0, 0.1))
                killed = draw.randrange(WRITERS)
                if writers[killed].is_alive():
                    writers[killed].kill()
                    writers.append(started(len(writers)))
        for writer in writers:
            writer.join(60)
    told = [line for path in files if path.exists() for line in path.read_text().split()]
    assert len(told) >= (WRITERS - 1) * EDITS
    notes = read_search(base_of(str(folder)), "--changelist").slices[0].notes
    assert set(notes) >= {*told, *in_page}
    # The killed may have written their last edit before they could say so; no edit is there twice.
    assert len(notes) == len(set(notes)) <= len(told) + len(in_page) + WRITERS
