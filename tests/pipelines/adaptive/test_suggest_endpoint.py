"""Proposals of a language model: what is sent, what is paid once, and what faults cost."""

import json
import os
import random
import signal
import time

import pytest
import yaml

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.adaptive.suggestions.suggest import suggest
from slicebeam.pipelines.adaptive.tree import Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import write_tree
from slicebeam.pipelines.config.adapt_suggest import AdaptSuggestConfig
from slicebeam.pipelines.paid_api.event_stream import whole_completion
from slicebeam.transforms.http import calls
from tests.pipelines.adaptive.completions_server import completions_server
from tests.refusals import refuses

KEY = "sk-secret-4711"
FIRST = '"Noisy street."\n"The bed was hard."\n"'


def always_pos(texts):
    return ["pos"] * len(texts)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(calls, "_FIRST_WAIT", 0.01)
    with completions_server() as told:
        yield told


@pytest.fixture
def tree(tmp_path):
    tests = [
        Test("/Rooms", text, output="pos", label="fail", id=str(number))
        for number, text in enumerate(("Noisy street.", "The bed was hard."))
    ]
    write_tree(TestTree.of_tests(tests), str(tmp_path / "tree.csv"))
    return tmp_path / "tree.csv"


def config(tree, endpoint, **more):
    options = {"topic": "/Rooms", "proposer": ("endpoint",), "proposals": 6, **more}
    model = f"{__name__}:always_pos"
    return AdaptSuggestConfig(tree=str(tree), model=model, endpoint=endpoint, **options)


def run(tree, endpoint, **more):
    notes = []
    return suggest(config(tree, endpoint, **more), notes.append), notes


def file_of(folder, url, **more):
    content = {"url": f"{url}/completions", "json": {"prompt": "{prompt}"}, "concurrency": 1}
    content |= {"answer": "choices[0].text", "retries": 3, **more}
    path = folder / "llm.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_requests_are_minimal_and_both_kinds_give_the_same_tests(server, tree):
    found, notes = run(tree, f"{server.url}/completions?model=davinci", output=str(tree) + ".1")
    # Half more cost than one prompt: 6 proposals are one prompt, completed six times.
    assert len(server.charged) == 6
    path, headers, body = server.requests[0]
    assert (path, headers["Authorization"]) == ("/v1/completions", f"Bearer {KEY}")
    how = {"model": "davinci", "max_tokens": 100, "stop": ['"\n'], "stream": True}
    assert body == {**how, "prompt": FIRST}
    assert {one[2]["prompt"] for one in server.requests} == {FIRST}
    assert notes == ["asking about 6 of 6 completions"]
    inputs = {one.test.input for one in found.tests}
    assert inputs == {server.text(key).partition('"')[0] for key in server.charged}
    for one in found.tests:
        assert (one.test.expectation, one.test.value) == ("should not output", "pos")
        # It fails by a guess, which is no failure before a person says so.
        assert (one.test.output, one.test.labeler) == ("pos", "imputed")
        assert (one.score, one.fails) == (1.0, False)
    (row,) = found.yields
    assert (row.proposals, row.failing, row.guesses) == (6, 0, 6)
    server.requests.clear()
    chat, _ = run(tree, f"{server.url}?model=gpt", output=str(tree) + ".2")
    path, _, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert body["messages"][1] == {"role": "user", "content": FIRST}
    assert len(chat.tests) == 6
    texts = {server.text(key).partition('"')[0] for key in server.charged}
    assert {one.test.input for one in chat.tests} <= texts


def test_an_empty_topic_goes_on_from_its_neighbours(server, tree):
    found, _ = run(tree, f"{server.url}/completions", topic="/Price", proposals=2)
    prompt = '/Rooms\n"Noisy street."\n/Rooms\n"The bed was hard."\n/Price\n"'
    assert {one[2]["prompt"] for one in server.requests} == {prompt}
    assert {one.test.topic for one in found.tests} == {"/Price"}


def test_nothing_is_paid_twice_and_duplicates_are_dropped(server, tree):
    first, _ = run(tree, server.url)
    again, notes = run(tree, server.url)
    assert [one.test for one in again.tests] == [one.test for one in first.tests]
    assert (len(server.requests), notes) == (6, [])
    server.answer = '"  the BED was hard. "'
    with pytest.raises(InputError, match="nothing new can be proposed in /Rooms: all is in the"):
        run(tree, server.url, ledger=f"{tree}.other")


def test_the_budget_is_of_all_runs(server, tree):
    found, notes = run(tree, server.url, budget="4")
    assert (len(found.tests), len(server.requests)) == (4, 4)
    assert notes[0] == "--budget buys 4 calls, and 0 are paid: 4 of 6 completions are bought"
    found, _ = run(tree, server.url, budget="5")
    assert (len(found.tests), len(server.requests)) == (5, 5)


def test_faults_cost_what_they_must(server, tree, tmp_path):
    server.faults = ["429", "500", "drop", "garbage", "broken", "error"]
    api = file_of(tmp_path, server.url, json={"prompt": "{prompt}", "stream": True}, stop_after=0)
    found, notes = run(tree, api)
    # One call is lost, since nobody knows whether it was served; three answers hold nothing.
    assert len(found.tests) == 2
    assert "3 of 5 answers hold no completion" in notes
    assert "1 calls were paid perhaps and never answered" in notes
    assert (max(server.charged.values()), len(server.charged)) == (1, 5)
    before = len(server.requests)
    again, _ = run(tree, api)
    assert [one.test.id for one in again.tests] == [one.test.id for one in found.tests]
    assert len(server.requests) == before


def test_a_call_that_hangs_is_given_up(server, tree, tmp_path):
    server.faults = ["hang"]
    found, notes = run(tree, file_of(tmp_path, server.url, timeout=0.3))
    assert len(found.tests) == 5
    assert notes[-2] == "1 calls were paid perhaps and never answered"


def test_an_endpoint_that_refuses(server, tree, tmp_path):
    server.faults = ["401"] * 20
    with pytest.raises(InputError, match="HTTP 401") as refused:
        run(tree, server.url)
    assert KEY not in str(refused.value)
    server.faults = ["500"] * 20
    refuses(EngineError, "HTTP 500", run, tree, file_of(tmp_path, server.url, retries=1))
    assert server.charged == {}


def test_topics_are_named_in_the_same_way(server, tree):
    server.answer = '"Noise & smell"'
    found, _ = run(tree, f"{server.url}/completions", topics=True, topic="")
    assert found.topics == (("/Noise%20%26%20smell", "endpoint"),)
    assert server.requests[0][2]["prompt"] == '"Rooms"\n"'


@pytest.mark.parametrize(("endpoint", "message"), [
    ("host/v1", "neither a URL nor a YAML file"),
    ("https://u:p@host/v1", "holds a user's name or password"),
    ("https://host/v1?api_key=x", "unknown parameter 'api_key'"),
    ("http://host.example/v1", "would be sent to host.example over http"),
])  # fmt: skip
def test_wrong_endpoints(endpoint, message, tree, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(InputError, match=message) as wrong:
        run(tree, endpoint)
    assert KEY not in str(wrong.value)


def test_streams_are_read_whole_or_not_at_all():
    events = ['{"text": "a"}', '{"delta": {"content": "b"}}']
    events += ['{"delta": {}, "finish_reason": "stop"}']
    lines = [f'data: {{"choices": [{one}]}}\n\n' for one in events]
    whole = whole_completion("".join(lines))
    assert whole is not None
    assert json.loads(whole)["choices"][0]["message"]["content"] == "ab"
    assert whole_completion("".join(lines[:2])) is None
    assert whole_completion("data: {\n\n") is None


@pytest.mark.slow
def test_killed_ten_times_it_loses_nothing_and_pays_nothing_twice(server, tree):
    server.latency = 0.05
    rng, given = random.Random(7), config(tree, server.url, proposals=90)
    # What the client takes before its first call is not what is to be killed.
    for _ in range(10):
        before, child = len(server.requests), os.fork()
        if not child:
            try:
                suggest(given, lambda _: None)
            finally:
                os._exit(0)
        until = time.monotonic() + 20
        while len(server.requests) == before and time.monotonic() < until:
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, 0.15))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert 10 < len(server.charged) < 90
    found, notes = run(tree, server.url, proposals=90)
    assert max(server.charged.values()) == 1
    (lost,) = [int(note.split()[0]) for note in notes if "never answered" in note]
    # Each kill loses at most the calls in flight; all others are there.
    assert 0 < lost <= 10 * 8
    # Twelve completions of each of seven prompts.
    assert 84 - lost <= len(server.charged) <= 84
    assert len(found.tests) + lost == 84
