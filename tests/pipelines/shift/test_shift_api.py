"""A shift that asks a paid API: what it finds, what it pays, and what it never tells."""

import json
import signal
from collections import Counter
from copy import deepcopy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from slicebeam.pipelines.commands.cli import run
from tests.conftest import google_first, slow
from tests.paid_bench import KEY, NO_PLAN, PaidBench, bench_fixture
from tests.running import refused

KEYS = {**KEY, "URL_KEY": "marlin&42", "PARAM_KEY": "barracuda=9", "JSON_KEY": 'tuna"8\\é'}
ROWS = 400


def frame_of(rows=ROWS):
    """A pool of three classes, whose old predictions are right and kept more often than not."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"label": rng.choice(["a", "b", "c"], rows, p=[0.5, 0.3, 0.2])})
    frame["old"] = np.where(rng.random(rows) < 0.8, frame["label"], rng.choice(list("abc"), rows))
    changed = rng.choice(np.array(["a", "c", None], object), rows)
    frame["new"] = np.where(rng.random(rows) < 0.85, frame["old"], changed)
    frame["confidence"] = rng.random(rows)
    frame["id"] = [f"item {row}" for row in range(rows)]
    frame["text"] = [f"text {row}" for row in range(rows)]
    return frame


class Bench(PaidBench):
    environment = KEYS
    secrets = (*PaidBench.secrets, "marlin", "barracuda", "tuna")

    def save(self):
        self.frame.to_parquet(self.folder / "pool.parquet")

    def arguments(self, *flags, output="out", ids=True):
        roles = ["--label=label", "--old-prediction=old", "--difficulty=confidence"]
        where = [f"--data={self.folder / 'pool.parquet'}", f"--output={self.folder / output}"]
        return ["shift", *where, *roles, *(["--example-id=id"] if ids else []), *flags]

    def shifted(self, *flags, output="out", ids=True):
        assert run(self.arguments("--quiet", *flags, output=output, ids=ids)) == 0
        return self.document(output)

    def bought(self, *flags, output="out", ids=True, **changes):
        return self.shifted(f"--api={self.file(**changes)}", *flags, output=output, ids=ids)

    def replayed(self, *flags):
        return self.shifted("--replay-prediction=new", *flags, output="replay")

    def refused(self, *flags, capsys, code=2, file=None, ids=True, **changes):
        api = f"--api={file or self.file(**changes)}"
        arguments = self.arguments(api, "--quiet", *flags, ids=ids)
        return refused(arguments, capsys, folder=self.folder, code=code)

    def paid_once(self, number):
        assert len(self.api.charged) == len(set(self.api.charged)) == number


def planned(frame):
    frame = frame_of() if frame is None else frame
    return frame, {"answers": dict(zip(frame["text"], frame["new"], strict=True))}


bench = bench_fixture(Bench, planned)


def unpaid(document):
    """Return what a shift found, without where the answers came from and what they cost."""
    shift = dict(document["shift"])
    cost = shift.pop("cost")
    shift.pop("warnings")
    return {**shift, "calls": cost["calls"], "no_result": cost["no_result"]}


def undated(document):
    copy = deepcopy(document)
    shift = copy["shift"]
    del copy["created_at"], copy["provenance"]["config"]["output"], copy["provenance"]["run"]
    del shift["cost"]["replayed"], shift["cost"]["unaccounted"]
    shift["warnings"] = [text for text in shift["warnings"] if "got no answer" not in text]
    return copy


FAULTS = {"429": 0.05, "500": 0.05, "503": 0.03, "drop-before": 0.04, "drop-after": 0.04}
METHODS = [
    *("--method=plus --budget=150", "--method=masa --budget=150", "--method=plus --budget=400"),
    *("--method=proportional --budget=150 --seed=7", "--method=plus --target-error=0.09"),
]


@pytest.mark.parametrize("flags", METHODS)
@pytest.mark.slow
def test_the_result_is_that_of_the_recorded_answers(bench, flags):
    found = bench(faults=FAULTS, latency=(0.0, 0.02))
    document = found.bought(*flags.split(), concurrency=32, retries=20)
    assert unpaid(document) == unpaid(found.replayed(*flags.split()))
    calls = document["shift"]["cost"]["calls"]
    found.paid_once(calls)
    assert document["shift"]["cost"]["no_result"] > 0
    if "--target-error=0.09" in flags:
        assert document["shift"]["stopped"] == "target_error"
        assert calls < ROWS
    else:
        assert f"--budget={calls}" in flags.split()


def test_hanging_sockets_and_garbage_change_nothing(bench):
    frame = frame_of()
    # What is no JSON is "no result", as a missing answer is.
    frame.loc[::9, "new"] = None
    garbage = dict.fromkeys(frame["id"][::9], "garbage")
    found = bench(frame, always=garbage, faults={"hang": 0.03, "half": 0.05, "429": 0.02})
    document = found.bought("--budget=120", timeout=0.3, concurrency=32)
    assert unpaid(document) == unpaid(found.replayed("--budget=120"))
    found.paid_once(120)
    assert document["shift"]["cost"]["unaccounted"] > 0
    (warning,) = (one for one in document["shift"]["warnings"] if "got no answer" in one)
    assert "were sent again with the same idempotency key" in warning
    assert "An API that does not recognise the key charged twice" in warning


@pytest.mark.parametrize("times", [2, 8])
@pytest.mark.parametrize("method", ["plus", "masa"])
@pytest.mark.slow
def test_killed_runs_pay_each_item_once(bench, commands, times, method):
    plan = {"faults": FAULTS, "latency": (0.0, 0.05)}
    found = bench(**plan)
    flags = (f"--api={found.file(retries=20, concurrency=4)}", "--budget=300", f"--method={method}")
    undisturbed = found.shifted(*flags, output="undisturbed")
    found = bench(**plan, seed=times)
    arguments = found.arguments(*flags, "--log-format=json")
    found.killed(commands, arguments, times, seed=times, resume=["--resume"])
    assert undated(found.document()) == undated(undisturbed)
    found.paid_once(300)
    assert {path.name for path in (found.folder / "out").iterdir()} == {"changelist.json", "ledger"}


@pytest.mark.parametrize("times", [3, slow(10)])
def test_killed_runs_stay_within_the_budget_where_lost_calls_count(bench, commands, times):
    found = bench(faults=FAULTS, latency=(0.0, 0.05), honours=False, seed=times)
    file = found.file(retries=20, concurrency=4, lost_calls="count", price=0.5)
    arguments = found.arguments(f"--api={file}", "--budget=150 USD")
    found.killed(commands, arguments, times, seed=times, resume=["--resume"])
    document, charged = found.document(), found.api.charged
    cost, lost = document["shift"]["cost"], 300 - document["shift"]["cost"]["calls"]
    assert max(Counter(charged).values()) == 1
    assert cost["calls"] <= len(charged) <= 300
    assert lost > 0
    assert (cost["spent"], cost["unaccounted"]) == (150, 0)
    (warning,) = (one for one in document["shift"]["warnings"] if "got no answer" in one)
    assert warning.startswith(f"{lost} call")
    assert "count as paid (lost_calls: count)" in warning
    # The estimate is that of the answers that came.
    assert sum(stratum["calls"] for stratum in document["shift"]["strata"]) == cost["calls"]
    assert all(stratum["calls"] > 0 for stratum in document["shift"]["strata"])
    truth = (found.frame["new"] == found.frame["label"]).mean()
    after = document["global"][0]["after"]
    assert after["lo"] <= truth <= after["hi"]
    assert len(set(found.answered())) == cost["calls"]


def test_so_many_lost_calls_that_a_stratum_has_no_answer(bench, capsys):
    frame = frame_of()
    rare = frame["label"] == "c"
    frame.loc[rare, "confidence"] = 0.5
    found = bench(frame, always=dict.fromkeys(frame["id"][rare], "drop-after"), honours=False)
    said = found.refused("--budget=100", capsys=capsys, code=3, lost_calls="count")
    assert "of " in said
    assert "strata have no answer, because" in said
    assert "set lost_calls: repeat" in said
    assert len(found.api.charged) <= 100


def test_lost_calls_are_made_up_for_where_an_estimate_needs_them(bench):
    frame = frame_of()
    lost = dict.fromkeys(frame["id"][frame.index % 2 == 0], "drop-after")
    found = bench(frame, always=lost, honours=False)
    document = found.bought("--budget=60", lost_calls="count", concurrency=8)
    assert min(stratum["calls"] for stratum in document["shift"]["strata"]) >= 2
    assert len(found.api.charged) == 60
    assert document["shift"]["cost"]["calls"] < 60


@pytest.mark.parametrize("method", [slow("plus"), "masa", slow("proportional")])
def test_a_budget_is_spent_where_lost_calls_use_a_stratum_up(bench, method):
    frame = frame_of()
    # Of the class c, three in four are lost: with them, more are asked for than there are.
    lost = frame.index[(frame["label"] == "c") & (frame.index % 4 > 0)]
    found = bench(frame, always=dict.fromkeys(frame["id"][lost], "drop-after"), honours=False)
    flags = (f"--method={method}", "--budget=330")
    shift = found.bought(*flags, lost_calls="count", concurrency=8, price=1.0)["shift"]
    assert shift["cost"]["spent"] == len(found.api.charged) == 330
    assert shift["cost"]["calls"] < 330
    assert shift["stopped"] == "budget"


@pytest.mark.slow
def test_a_log_tells_how_many_answers_there_are(bench, monkeypatch, capsys):
    monkeypatch.setattr("slicebeam.pipelines.show.terminal._LINE_SECONDS", 0.05)
    found, flags = bench(latency=(0.05, 0.05)), ["--budget=100", "--log-format=json"]
    assert run(found.arguments(f"--api={found.file(concurrency=4)}", *flags)) == 0
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    counted = [one for one in events if one["event"] == "progress"]
    assert len(counted) > 3
    done = [one["done"] for one in counted]
    assert done == sorted(done)
    assert 0 < done[-1] <= 100
    assert {(one["total"], one["unit"]) for one in counted} == {(100, "answers")}
    assert {one["text"] for one in counted} == {"asking up to 100 of 400 items"}


def test_a_second_run_on_the_same_ledger_pays_nothing(bench):
    found = bench()
    ledger = f"--ledger={found.folder / 'paid'}"
    first = found.bought("--budget=80", ledger)
    second = found.bought("--budget=80", ledger, output="second")
    assert undated(second) == undated(first)
    assert [one["shift"]["cost"]["replayed"] for one in (first, second)] == [0, 80]
    assert len(found.api.charged) == 80
    # A larger budget pays for what is new in it only.
    assert found.bought("--budget=100", ledger, output="third")["shift"]["cost"]["replayed"] == 80
    assert len(found.api.charged) == 100
    assert not (found.folder / "out" / "ledger").exists()


def test_the_ledger_of_another_api_or_other_data_is_refused(bench, capsys):
    found = bench()
    found.bought("--budget=60", ids=False)

    def other(**changes):
        said = found.refused("--budget=60", capsys=capsys, **changes)
        assert said.startswith("the answers in DIR/out/ledger belong to other requests: ")
        assert "choose another --ledger folder" in said
        return said

    said = other(ids=False, url=f"{found.api.url}/answer?version=2")
    assert "requests: url, method, params, json or headers were different" in said
    found.frame.loc[0, "label"] = "b"
    found.save()
    assert "requests: data is 400 examples" in other(ids=False)
    assert "requests: they were requested without --example-id" in other()
    assert len(found.api.charged) == 60


def test_what_has_no_class_is_told_why(bench):
    frame = frame_of()
    refused_items = dict.fromkeys(frame["id"][::11], "422")
    found = bench(frame, always=refused_items)
    document = found.bought("--budget=100", labels={"a": "a", "b": "b", "d": "c", "UNKNOWN": None})
    asked = set(found.answered())
    mine = frame[frame["id"].isin(asked)].assign(why=lambda rows: rows["new"].fillna("nothing"))
    told = " ".join(document["shift"]["warnings"])
    refused_number = sum(one in refused_items for one in asked)
    unmapped = ((mine["why"] == "c") & ~mine["id"].isin(refused_items)).sum()
    assert f"{document['shift']['cost']['no_result']} of 100 answers are not a class" in told
    assert f"{unmapped} 'c'" in told
    assert f"{refused_number} HTTP 422" in told


def test_rows_may_be_appended_where_items_have_an_id(bench):
    frame = frame_of(ROWS + 100)
    found = bench(frame)
    for rows in (ROWS, ROWS + 100):
        found.frame = frame[:rows]
        found.save()
        document = found.bought("--budget=80")
    cost = document["shift"]["cost"]
    assert document["dataset"]["n"] == ROWS + 100
    assert 0 < cost["replayed"] < cost["calls"] == 80
    found.paid_once(80 + 80 - cost["replayed"])
    assert unpaid(document) == unpaid(found.replayed("--budget=80"))


@google_first
@pytest.mark.slow
def test_output_and_ledger_in_object_storage(bench, bucket):
    found = bench(faults={"503": 0.05})
    bucket.write("api.yaml", Path(found.file(concurrency=32)).read_bytes())
    flags = (f"--api={bucket.uri}/api.yaml", "--quiet", "--budget=60")
    for output in ("first", "second"):
        arguments = found.arguments(*flags, f"--ledger={bucket.uri}/paid")
        arguments = [one for one in arguments if not one.startswith("--output")]
        assert run([*arguments, f"--output={bucket.uri}/{output}"]) == 0
    assert len(found.api.charged) == 60
    files = (bucket.read(f"{name}/changelist.json") for name in ("first", "second"))
    first, second = map(json.loads, files)
    assert undated(first) == undated(second)
    assert second["shift"]["cost"]["replayed"] == 60
    assert unpaid(first) == unpaid(found.replayed("--budget=60"))


SECRETIVE = {"json": {"id": "{id}", "text": "{text}", "token": "${JSON_KEY}"}}
SECRETIVE["params"] = {"key": "${PARAM_KEY}"}
NONE_OF_20 = "none of the first 20 answers"
# What each fault ends in; the log as JSON says of the others what it says of these.
ENDS = [
    ("401-mirror", 2, "HTTP 401: "),
    ("404-mirror", 2, "HTTP 404: "),
    ("500-mirror", 3, "HTTP 500 3 times"),
    *((f"{one}-mirror", 2, NONE_OF_20) for one in ("422", "garbage", "echo", "null")),
    ("drop-before", 3, "a dropped connection"),
    ("unreachable", 3, "no connection"),
    ("broken", 3, "the HTTP client failed: RuntimeError"),
    (None, 0, ""),
]
OF_EITHER_LOG = ("401-mirror", "500-mirror", None)
LOGGED = [(*end, "text") for end in ENDS]
LOGGED += [(*end, "json") for end in ENDS if end[0] in OF_EITHER_LOG]


@pytest.mark.parametrize(("fault", "code", "told", "log"), LOGGED)
@pytest.mark.slow
def test_secrets_are_told_nowhere(bench, capfd, monkeypatch, fault, code, told, log):
    found = bench(faults={} if fault in NO_PLAN else {fault: 1.0})
    url = f"{found.struck(fault, monkeypatch)}/answer?key=${{URL_KEY}}"
    file = found.file(url=url, **SECRETIVE, retries=2)
    arguments = found.arguments(f"--api={file}", "--budget=60", f"--log-format={log}", "--json")
    assert run(arguments) == code
    printed = capfd.readouterr()
    assert told in printed.err
    found.hides(printed.out, printed.err, found.everything())
    if log == "json":
        assert all(json.loads(line) for line in printed.err.splitlines())
    if fault is not None and "mirror" in fault and fault not in ("500-mirror", "echo-mirror"):
        # What the API said is told, and the secrets in it are not.
        assert "***" in printed.err
    assert not list((found.folder / "tmp").glob("slicebeam-*.log"))


def test_answers_that_hold_secrets_are_told_without_them(bench):
    frame = frame_of()
    frame.loc[::7, "new"] = None
    found = bench(frame, always=dict.fromkeys(frame["id"][::7], "echo-mirror"))
    url = f"{found.api.url}/answer?key=${{URL_KEY}}"
    document = found.bought("--budget=100", url=url, **SECRETIVE)
    found.hides(found.everything())
    assert any("***" in str(one.get("value")) for one in found.ledger())
    assert unpaid(document) == unpaid(found.replayed("--budget=100"))


SIGNALS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]


@pytest.mark.parametrize(("number", "code", "word"), SIGNALS)
@pytest.mark.slow
def test_a_signal_loses_nothing(bench, commands, number, code, word):
    found = bench(latency=(0.1, 0.2))
    arguments = found.arguments(f"--api={found.file()}", "--budget=150", "--quiet")
    command = found.start(commands, arguments)
    found.wait_for(40, command)
    command.send(number)
    ended = command.ended()
    said = f"slicebeam: {word}; a shift continues with the same options and --resume\n"
    assert (ended.code, ended.said) == (code, said)
    answered = found.answered()
    assert sorted(answered) == sorted(found.api.charged)
    assert 40 <= len(answered) < 150
    assert run([*arguments, "--resume"]) == 0
    document = found.document()
    assert document["shift"]["cost"]["replayed"] == len(answered)
    assert document["shift"]["cost"]["unaccounted"] == 0
    found.paid_once(150)
    assert unpaid(document) == unpaid(found.replayed("--budget=150"))


def test_a_file_that_describes_the_run(bench, capsys):
    found = bench()
    found.file(price=0.001)
    roles = {"label": "label", "old_prediction": "old", "difficulty": "confidence"}
    names = {"data": "pool.parquet", "api": "api.yaml", "ledger": "paid", "output": "out-{date}"}
    told = {"command": "shift", **roles, "example_id": "id", "budget": "0.06USD"}
    told |= {option: f"{{here}}/{name}" for option, name in names.items()}
    path = found.folder / "shift.yaml"
    path.write_text(yaml.safe_dump(told))
    assert run(["run", str(path), "--date=2026-11-20", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    cost = printed["shift"]["cost"]
    assert (cost["calls"], cost["spent"]) == (60, 0.06)
    document = found.document("out-2026-11-20")
    # The document of a run repeats it, at no cost.
    again = found.folder / "again"
    before = found.folder / "out-2026-11-20" / "changelist.json"
    command = ["run", str(before), f"--output={again}", "--quiet"]
    # Where answers are bought is for the user to say, not for a document.
    assert run(command) == 2
    assert f"confirm it with --api {found.folder}/api.yaml" in capsys.readouterr().err
    assert run([*command, f"--api={found.folder}/api.yaml"]) == 0
    assert undated(found.document("again")) == undated(document)
    assert len(found.api.charged) == 60


@pytest.mark.parametrize(("changes", "told"), [
    ({"anwser": "x"}, "unknown key 'anwser'; did you mean 'answer'"),
    ({"json": {"id": "{idd}"}}, "unknown column 'idd'; did you mean 'id'"),
    ({"json": {"id": 7}}, "no {column} is in url, params, json or headers, so every call"),
    ({"labels": ["a"]}, "labels: ['a']: write pairs, as {name: value}"),
    ({"labels": {"x": 7}}, "labels.x: 7 is not a class of the data; classes: 'a', 'b', 'c'"),
    ({"labels": {"x": None, "y": "c "}}, "labels.y: 'c ' is not a class of the data; did you mean 'c'?"),
    ({"price": 0.1, "currency": "EUR"}, "--budget is in USD and the price in EUR"),
    ({}, "is money, but calls have no price"),
    ({"price": 1}, "--budget buys 6 calls, but --method plus needs at least 18"),
])  # fmt: skip
def test_a_wrong_api_file_costs_nothing(bench, capsys, changes, told):
    found, money = bench(), "price" in changes or not changes
    assert told in found.refused(f"--budget={'6USD' if money else '60'}", capsys=capsys, **changes)
    assert (found.api.requests, found.ledger()) == ([], [])
    assert not (found.folder / "out" / "changelist.json").exists()
