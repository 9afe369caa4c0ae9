"""A server that is killed while labels are saved loses none that it acknowledged."""

import json
import signal
import threading

import httpx2 as httpx
import pytest

from slicebeam.pipelines.cli import run
from tests.pipelines.page.results import discovery_result, search_result
from tests.pipelines.serve.served_outputs import serving

TEXT = "about food"


@pytest.mark.slow
def test_kill_9_while_two_labelers_save_loses_no_label(tmp_path):
    result = discovery_result(tmp_path)
    slice_id = json.loads((result / "changelist.json").read_text())["slices"][0]["slice_id"]
    begin = {"slice_id": slice_id, "text": TEXT, "budget": 300}
    saved = [{}, {}]

    def label(served, number):
        with served.client() as client:
            who = {"labeler": f"browser-{number}"}
            shown = client.post("/api/labels/begin", json={**begin, **who}).json()
            while shown["item"] is not None:
                item, label = shown["item"]["id"], ("yes", "no")[len(saved[number]) % 2]
                body = {"desk": shown["desk"], **who, "item": item, "label": label}
                answer = client.post("/api/labels/label", json=body)
                assert answer.status_code == 200, answer.text
                # Only what the server has acknowledged is owed.
                saved[number][item] = label
                shown = answer.json()
                if number == 0 and len(saved[0]) == 40:
                    served.process.send_signal(signal.SIGKILL)

    def until_killed(served, number):
        with pytest.raises(httpx.HTTPError):
            label(served, number)

    with serving(result) as served:
        threads = [threading.Thread(target=until_killed, args=(served, who)) for who in (0, 1)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    owed = saved[0] | saved[1]
    assert len(saved[0]) + len(saved[1]) == len(owed) >= 60
    (folder,) = (result / "attribution").iterdir()
    lines = (folder / "labels.jsonl").read_text().splitlines()
    kept = {str(one["item"]): one["label"] for one in map(json.loads, lines)}
    assert {item: kept[item] for item in owed} == owed
    # A key that each labeler pressed may have been on its way.
    assert len(kept) <= len(owed) + 2
    # Whoever comes next goes on, here and in the command.
    with serving(result) as served, served.client() as client:
        shown = client.post("/api/labels/begin", json={**begin, "labeler": "browser-3"}).json()
        assert shown["standing"]["labelled"] == len(kept)
        assert shown["item"]["id"] not in kept
        assert client.post("/api/labels/end", json={"desk": shown["desk"]}).json() == {}
        command = ["attribute", "estimate", "--changelist", str(result), "--slice", slice_id]
        assert run([*command, "--text", TEXT, "--quiet"]) == 0
    attribution = json.loads((result / "changelist.r1.json").read_text())["slices"][0]
    labelled = sum(one["labelled"] for one in attribution["attribution"]["rounds"])
    assert 0 < labelled <= len(kept)


@pytest.mark.slow
def test_what_was_made_of_the_data_goes_with_the_server(tmp_path, monkeypatch):
    result, made = search_result(tmp_path), tmp_path / "made"
    made.mkdir()
    monkeypatch.setenv("TMPDIR", str(made))
    slice_id = json.loads((result / "changelist.json").read_text())["findings"][0]["slice_id"]
    with serving(result) as served, served.client() as client:
        for path, given in (("examples", {"slice_id": slice_id}), ("playground/example", {})):
            assert client.post(f"/api/{path}", json=given).status_code == 200
        assert list(made.iterdir()) != []
    assert list(made.iterdir()) == []
