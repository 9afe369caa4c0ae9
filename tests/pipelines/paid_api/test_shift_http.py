"""Calls are paid once, never beyond the budget, and what fails is said without a secret."""

import json
import os
import sys
import time
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise

import pytest

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.paid_api.api_file import ApiFile
from slicebeam.pipelines.paid_api.calls import Answer, Item
from slicebeam.pipelines.paid_api.http_api import HttpApi
from slicebeam.pipelines.paid_api.ledger import Ledger
from slicebeam.transforms.http import calls as http_calls
from slicebeam.transforms.storage.storage import storage_path
from tests.conftest import google_first, slow
from tests.object_stores import free_port
from tests.paid_api import PaidApi
from tests.refusals import refusal, refuses

pytestmark = pytest.mark.usefixtures("quick_calls")
SECRET = "swordfish/+ 17"
ENVIRONMENT, BEARER = {"API_KEY": SECRET}, f"Bearer {SECRET}"
# Of a call that was sent, and of requests that a client may think harmless to repeat.
unknown_outcomes = pytest.mark.parametrize(("method", "fault"), [
    *(("POST", fault) for fault in ("drop-before", "drop-after", "half", "hang")),
    *(("GET", fault) for fault in ("drop-before", "drop-after", "half")),
    slow("GET", "hang"),
])  # fmt: skip


@pytest.fixture
def served(paid_server, tmp_path):
    @contextmanager
    def serving(**plan):
        yield paid_server.anew(tmp_path / "api", authorization=BEARER, **plan)

    return serving


def by_method(server, method):
    if method == "POST":
        return {"method": "POST"}
    url = f"{server.url}/answer/{{id}}"
    return {"method": "GET", "url": url, "json": ..., "params": {"text": "{text}"}}


def items(number, first=0):
    every = range(first, first + number)
    return [Item(str(one), {"id": one, "text": f"text {one}"}) for one in every]


@contextmanager
def opened(server, environment=ENVIRONMENT, **file):
    api = ApiFile.read(server.file(**file), environment)
    how = {"count_lost": api.lost_calls == "count", "redact": api.redact}
    with Ledger.open(server.folder / "ledger", {"api": api.identity}, **how) as ledger:
        yield api, ledger


def buy(api, wanted, ledger, most=None, is_class=lambda _: True, **given):
    with HttpApi(api, is_class) as http:
        http.buy(wanted, ledger, most, **given)


def bought(server, number=10, most=None, **file):
    """Buy items and return the answers; the ledger is looked through for secrets."""
    try:
        with opened(server, **file) as (api, ledger):
            ledger.reread(api.answer_in)
            buy(api, items(number), ledger, most)
            return dict(ledger.answers)
    finally:
        secrets_are_hidden(records(server))


def records(server):
    paths = sorted((server.folder / "ledger").glob("segment-*"))
    return "".join(path.read_text() for path in paths)


def kinds(server):
    return Counter(json.loads(line)["kind"] for line in records(server).splitlines())


def secrets_are_hidden(text):
    assert "swordfish" not in text


def refused(error, parts, call, /, *given, **file):
    message = refusal(error, call, *given, **file)
    secrets_are_hidden(message)
    assert len(message.splitlines()) <= 2
    assert [part for part in parts if part not in message] == []
    return message


def test_each_item_is_answered_and_paid_once(served):
    answers = {f"text {one}": ["yes", 1, False, 2.5][one % 4] for one in range(100)}
    with served(answers=answers, latency=(0.01, 0.03)) as server:
        found = bought(server, 100, concurrency=16)
        assert found == {str(one): Answer(str(one), answers[f"text {one}"]) for one in range(100)}
        assert sorted(server.charged) == sorted(found)
        # Where the machine is busy, all 16 may never wait at once.
        assert 8 < server.stats["most_in_flight"] <= 16
        assert bought(server, 100, concurrency=16) == found
        assert len(server.requests) == 100
        assert bought(server, 101).keys() - found.keys() == {"100"}
        assert kinds(server) == {"ledger": 2, "sent": 101, "answered": 101}


def test_more_than_a_hundred_calls_are_in_flight(served):
    with served(latency=(0.3, 0.3)) as server:
        bought(server, 150, concurrency=140, stop_after=0)
        assert server.stats["most_in_flight"] == 140


def test_batches_share_connections_and_a_rate_limit(served):
    with served(latency=(0.02, 0.02)) as server:
        begun = time.monotonic()
        with opened(server, concurrency=4, rate_limit=40) as (api, ledger), HttpApi(api) as http:
            for end in range(4, 44, 4):
                http.buy(items(end), ledger)
        assert len(server.charged) == 40
        assert server.stats["connections"] <= 4
        # The last one leaves after 39 fortieths of a second, however fast the API is.
        assert time.monotonic() - begun >= 39 / 40


def test_connections_that_the_server_closes_between_batches_lose_no_call(served):
    with served() as server:
        with opened(server, concurrency=8) as (api, ledger), HttpApi(api) as http:
            for end in range(8, 88, 8):
                http.buy(items(end), ledger)
                server.hang_up()
            assert (len(ledger.answers), ledger.unaccounted) == (80, 0)
        assert len(server.charged) == len(server.requests) == 80


def test_items_of_one_key_are_one_item(served):
    with served(answers={"text 0": "first"}) as server:
        told = []
        with opened(server) as (api, ledger):
            double = [Item("0", {"id": "0", "text": "other"})]
            buy(api, [*items(2), *double], ledger, on_answer=told.append)
            assert ledger.answers["0"].value == "first"
        assert sorted(one.key for one in told) == ["0", "1"]
        assert len(server.charged) == 2


def test_a_get_is_asked_too(served):
    with served(answers={"text 1": "one ö"}) as server:
        assert bought(server, 3, **by_method(server, "GET"))["1"].value == "one ö"
        assert sorted(server.charged) == ["0", "1", "2"]


@pytest.mark.parametrize("fault", ["429", "429-at-once", "408", "500", "503"])
def test_what_cost_nothing_is_asked_again(served, fault):
    with served(forced={"3": [fault, fault, None]}, honours=False) as server:
        assert bought(server)["3"].problem is None
        assert sorted(server.charged) == sorted(str(one) for one in range(10))
        assert kinds(server) == {"ledger": 1, "sent": 12, "failed": 2, "answered": 10}
        with opened(server, lost_calls="count") as (_, ledger):
            assert (ledger.calls, dict(ledger.lost)) == (10, {})


@unknown_outcomes
def test_a_lost_call_is_repeated_under_the_same_key(served, fault, method):
    with served(forced={"3": [fault, None]}) as server:
        assert bought(server, timeout=1, **by_method(server, method))["3"].value == "POSITIVE"
        asked = [one for one in server.requests if one["item"] == "3"]
        assert len({one["key"] for one in asked}) == 1
        outcomes = ["free", "charged"] if fault == "drop-before" else ["charged", "replayed"]
        assert [one["outcome"] for one in asked] == outcomes
        assert len({one["key"] for one in server.requests}) == 10
        assert kinds(server) == {"ledger": 1, "sent": 11, "answered": 10}


@unknown_outcomes
@pytest.mark.parametrize("file", [{"lost_calls": "count"}, {"idempotency_header": ...}])
def test_a_lost_call_is_counted_and_another_takes_its_place(served, fault, method, file):
    with served(forced={"3": [fault, None]}, honours=False) as server:
        how = {**by_method(server, method), "timeout": 1, **file}
        found = bought(server, 20, 10, **how)
        # One of ten calls is lost, and counts.
        assert sorted(map(int, found)) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        # The key goes along all the same: some APIs know it whatever the file says.
        assert len({one["key"] for one in server.requests}) == len(server.requests) == 10
        assert bought(server, 20, 10, **how) == found
        again = bought(server, 20, 12, **how)
        assert sorted(map(int, again)) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11]
        assert Counter(one["item"] for one in server.requests).most_common(1)[0][1] == 1
        assert len(server.requests) == 12
        # Without a budget it is not asked again either.
        assert len(bought(server, 20, **how)) == 19


def test_the_lost_and_the_ledger_have_to_agree(served):
    with served() as server:
        api = ApiFile.read(server.file(lost_calls="count"), ENVIRONMENT)
        with Ledger.open(server.folder / "ledger", {"api": api.identity}) as ledger:
            refuses(ValueError, "lost_calls", buy, api, items(1), ledger)


@pytest.mark.parametrize("most", [0, 1, 7, 33])
@pytest.mark.parametrize("lost_calls", ["repeat", "count"])
def test_the_budget_is_never_exceeded(served, most, lost_calls):
    faults = {"429-at-once": 0.1, "503": 0.1, "drop-after": 0.1, "garbage": 0.1, "422": 0.1}
    with served(faults=faults, latency=(0.0, 0.01), honours=lost_calls == "repeat") as server:
        how = {"lost_calls": lost_calls, "retries": 50, "stop_after": 0}
        found = bought(server, 100, most, concurrency=64, **how)
        assert len(server.charged) == most
        lost = sum(one["fault"] == "drop-after" for one in server.requests)
        assert len(found) == most - (lost if lost_calls == "count" else 0)
        # And is one of the ledger, however many runs there are.
        bought(server, 100, most, **how)
        assert len(server.charged) == most


NOTHING = "nothing at 'result.label'"
PROBLEMS = {"garbage": "no JSON", "elsewhere": NOTHING, "null": NOTHING}
PROBLEMS |= {"400": "HTTP 400", "422": "HTTP 422"}


@pytest.mark.parametrize(("fault", "problem"), PROBLEMS.items())
def test_an_answer_without_a_class_is_paid_and_never_asked_again(served, fault, problem):
    with served(always={"3": fault}) as server:
        for _ in range(2):
            assert bought(server)["3"] == Answer("3", None, problem)
        assert len(server.requests) == 10
        (line,) = [one for one in records(server).splitlines() if problem in one]
        body = json.loads(line)["refusal" if fault in ("400", "422") else "body"]
        assert fault == "elsewhere" or "Bearer ***" in body


def test_an_answer_that_holds_the_secret_is_redacted(served):
    with served(always={"3": "echo"}) as server:
        assert bought(server)["3"].value == "Bearer ***"


def test_a_mended_answer_path_reads_what_was_paid(served):
    with served() as server:
        said = [
            *("api.yaml: none of the first 5 answers is a class", "stored in", "correct 'answer'"),
            *("nothing at 'result.lable'", '{"result": {"label": "POSITIVE"}, "id": "'),
        ]
        for _ in range(2):
            refused(InputError, said, bought, server, 50, answer="result.lable", stop_after=5)
            assert len(server.charged) == 5
        found = bought(server, 5, stop_after=5)
        assert [one.value for one in found.values()] == ["POSITIVE"] * 5
        assert len(server.charged) == 5


def test_labels_that_fit_no_answer_end_the_run(served):
    with served(answers={"text 6": "NEGATIVE"}) as server:
        said = ("none of them is a key of 'labels'", '"POSITIVE"', "'answer' or 'labels'")
        refused(InputError, said, bought, server, 50, labels={"positive": 1}, stop_after=3)
        assert len(server.charged) == 3
        # One that has a class among the first is enough.
        assert len(bought(server, 50, labels={"NEGATIVE": 1}, stop_after=8)) == 50


def test_answers_that_are_no_class_of_the_pool_end_the_run(served):
    with served() as server:
        said = ("none of them is a class of the pool", '"POSITIVE"', "'answer' or 'labels'")
        with opened(server, stop_after=3) as (api, ledger):
            how = {"is_class": lambda value: value in ("positive", "negative")}
            refused(InputError, said, buy, api, items(50), ledger, **how)
        assert len(server.charged) == 3


def test_refused_requests_end_the_run_too(served):
    with served(faults={"422": 1.0}) as server:
        said = ("none of the first 20 answers", "HTTP 422", "bad Bearer ***", "correct 'json'")
        refused(InputError, said, bought, server, 50)
        assert len(bought(server, 50, stop_after=0)) == 50


def test_lost_calls_do_not_hold_up_the_first_answers(served):
    with served(forced={str(one): ["drop-after"] for one in range(10)}) as server:
        found = bought(server, 30, lost_calls="count", stop_after=3)
        assert sorted(map(int, found)) == list(range(10, 30))


@pytest.mark.parametrize("status", ["401", "403", "404", "405"])
def test_a_request_that_is_wrong_ends_the_run_at_once(served, status):
    with served(always={"0": status}, latency=(0.0, 0.05)) as server:
        said = (f"api.yaml: HTTP {status}: ", "refused Bearer ***")
        refused(InputError, said, bought, server, 50, concurrency=2)
        # What was in flight is paid, and kept.
        assert len(server.requests) <= 30
        assert kinds(server)["answered"] == len(server.charged)


def test_a_wrong_secret(served):
    said, wrong = ("HTTP 401", "check the secrets in the environment"), {"API_KEY": "guessed-wrong"}
    with served() as server, opened(server, wrong) as (api, ledger):
        assert "guessed" not in refused(InputError, said, buy, api, items(5), ledger)


@pytest.mark.parametrize(("fault", "reason"), [
    ("503", "HTTP 503"),
    ("429-at-once", "HTTP 429"),
    ("drop-before", "a dropped connection"),
    slow("hang", "no answer within 0.3 s"),
])  # fmt: skip
def test_retries_that_are_used_up(served, fault, reason):
    with served(always={"3": fault}, honours=False) as server:
        said = (reason, "3 times for item '3'", "the answers so far are in")
        timeout = 0.3 if fault == "hang" else 20
        refused(EngineError, said, bought, server, 5, retries=2, timeout=timeout)
        asked = sum(one["item"] == "3" for one in server.requests)
        # While others are answered, that the API is busy does not count.
        assert asked == 3 or (fault == "429-at-once" and 3 < asked <= 3 + 4 * 3)
        assert kinds(server)["answered"] == 4
    with served() as server:
        assert len(bought(server, 5)) == 5


def test_a_server_that_is_not_there(served):
    with served() as server:
        gone, said = f"http://127.0.0.1:{free_port()}/answer", "no connection .* once for item '0'"
        refuses(EngineError, said, bought, server, 1, url=gone, retries=0)
        assert kinds(server) == {"ledger": 1, "sent": 1, "failed": 1}


def test_a_busy_api_is_not_held_against_an_item(served):
    # Other calls are answered meanwhile, so it is a matter of waiting.
    with served(forced={"0": ["429-at-once"] * 20}, latency=(0.005, 0.005)) as server:
        assert len(bought(server, 200, retries=2, concurrency=2)) == 200


def test_all_calls_wait_when_the_api_asks_for_it(served):
    noted, plan = [], {"forced": {"2": ["429"]}, "retry_after": "1"}
    with served(**plan) as server, opened(server, concurrency=2) as (api, ledger):
        buy(api, items(20), ledger, on_answer=lambda _: noted.append(time.monotonic()))
    # Had only the call waited that was told to, others would have been answered meanwhile.
    assert max(after - before for before, after in pairwise(noted)) > 0.9


def test_an_api_that_asks_to_come_back_tomorrow(served):
    with served(forced={"0": ["429"]}, retry_after="86400") as server:
        said = ("HTTP 429: the API asks for a wait of 24.0 hours", "the answers so far are in")
        refused(EngineError, said, bought, server, 1)


@pytest.mark.parametrize("library", ["aiohttp", "jmespath"])
def test_a_library_that_is_missing(tmp_path, library, monkeypatch):
    path = PaidApi("http://127.0.0.1:1", tmp_path).file()
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=rf"--api needs {library}; .*'\.\[api\]'"):
        HttpApi(ApiFile.read(path, ENVIRONMENT))


def test_an_item_that_lacks_a_column_ends_the_run(served):
    with served() as server:
        without = [*items(1), Item("1", {"id": "1", "text": None})]
        with opened(server) as (api, ledger):
            refuses(InputError, "item '1': column 'text' is missing", buy, api, without, ledger)
        assert server.charged in ([], ["0"])


def test_no_call_is_sent_after_the_ledger_failed(served, monkeypatch):
    write, written = os.write, 0

    def refuse(file, data):
        nonlocal written
        written += 1
        if written > 20:
            raise OSError(28, "No space left on device")
        return write(file, data)

    with served() as server:
        with opened(server, concurrency=4) as (api, ledger):
            monkeypatch.setattr(os, "write", refuse)
            refuses(EngineError, "No space left", buy, api, items(200), ledger)
            monkeypatch.undo()
        kept = map(json.loads, records(server).splitlines())
        sent = {record["key"] for record in kept if record["kind"] == "sent"}
        assert set(server.charged) <= sent
        assert len(sent) < 100
        monkeypatch.setattr(http_calls, "_FIRST_WAIT", 0.01)
        assert (len(bought(server, 200)), len(server.charged)) == (200, 200)


@google_first
def test_a_ledger_in_object_storage(served, bucket):
    with served(faults={"503": 0.1, "garbage": 0.1}) as server:
        api = ApiFile.read(server.file(concurrency=32), ENVIRONMENT)
        folder, found = storage_path(f"{bucket.uri}/ledger"), []
        for _ in range(2):
            with Ledger.open(folder, {"api": api.identity}, redact=api.redact) as ledger:
                buy(api, items(60), ledger)
                found.append(dict(ledger.answers))
        assert (found[0], len(server.charged)) == (found[1], 60)
