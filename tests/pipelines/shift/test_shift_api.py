"""A shift that asks a paid API: what it finds, what it pays, and what it never tells."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import yaml

from slicebeam.pipelines.cli import run
from slicebeam.transforms.http import calls as http_calls
from tests.conftest import google_first
from tests.faults.faults import Commands
from tests.object_stores import free_port
from tests.paid_api import PaidApi, paid_api
from tests.running import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.faults import Command
    from tests.object_stores import Bucket

KEYS = {
    "API_KEY": "swordfish/+ 17",
    "URL_KEY": "marlin&42",
    "PARAM_KEY": "barracuda=9",
    "JSON_KEY": 'tuna"8\\é',
}
BEARER = f"Bearer {KEYS['API_KEY']}"
WORDS = ("swordfish", "marlin", "barracuda", "tuna")
ROWS = 400


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(http_calls, "_FIRST_WAIT", 0.01)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    # Where tracebacks are kept.
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaidApi]:
    with paid_api(tmp_path_factory.mktemp("server")) as one:
        yield one


def frame_of(rows: int = ROWS) -> pd.DataFrame:
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


@dataclass
class Bench:
    """A pool, a server that follows a plan, and a folder."""

    folder: Path
    api: PaidApi
    frame: pd.DataFrame

    def pool(self) -> Path:
        path = self.folder / "pool.parquet"
        self.frame.to_parquet(path)
        return path

    def file(self, name: str = "api.yaml", **changes: Any) -> str:
        return PaidApi(self.api.url, self.folder).file(name, **changes)

    def arguments(self, *flags: str, output: str = "out", ids: bool = True) -> list[str]:
        return [
            "shift",
            f"--data={self.folder / 'pool.parquet'}",
            "--label=label",
            "--old-prediction=old",
            "--difficulty=confidence",
            f"--output={self.folder / output}",
            *(["--example-id=id"] if ids else []),
            *flags,
        ]

    def bought(
        self, *flags: str, output: str = "out", ids: bool = True, **changes: Any
    ) -> dict[str, Any]:
        """Run the command with the API to its end, and return the document."""
        file = self.file(**changes)
        arguments = self.arguments(f"--api={file}", "--quiet", *flags, output=output, ids=ids)
        assert run(arguments) == 0
        return self.document(output)

    def replayed(self, *flags: str) -> dict[str, Any]:
        """Return what is found in the recorded answers."""
        arguments = self.arguments("--replay-prediction=new", "--quiet", *flags, output="replay")
        assert run(arguments) == 0
        return self.document("replay")

    def document(self, output: str = "out") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / output / "changelist.json").read_text())
        return found

    def ledger(self, folder: str = "out/ledger") -> list[dict[str, Any]]:
        paths = sorted((self.folder / folder).glob("segment-*"))
        # What a kill cut off ends in no line.
        text = (path.read_text().rpartition("\n")[0] for path in paths)
        return [json.loads(line) for part in text for line in part.splitlines()]

    def everything(self) -> str:
        """Return all that is written anywhere, but for the API's own log and the key."""
        return "".join(
            path.read_bytes().decode("utf-8", "replace")
            for path in self.folder.rglob("*")
            if path.is_file() and path.suffix != ".parquet"
        )


@pytest.fixture
def bench(server: PaidApi, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Let the server follow a plan, whose answers are those that the pool has recorded."""

    def begin(frame: pd.DataFrame | None = None, **plan: Any) -> Bench:
        frame = frame_of() if frame is None else frame
        plan = {
            "answers": dict(zip(frame["text"], frame["new"], strict=True)),
            "authorization": BEARER,
            **plan,
        }
        found = Bench(tmp_path, server.anew(tmp_path_factory.mktemp("api"), **plan), frame)
        found.pool()
        return found

    return begin


def unpaid(document: dict[str, Any]) -> dict[str, Any]:
    """Return what a shift found, without where the answers came from and what they cost."""
    shift = dict(document["shift"])
    cost = shift.pop("cost")
    shift.pop("warnings")
    return {**shift, "calls": cost["calls"], "no_result": cost["no_result"]}


def undated(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without what a run that was disturbed has of its own."""
    found: dict[str, Any] = json.loads(json.dumps(document))
    del found["created_at"], found["provenance"]["config"]["output"], found["provenance"]["run"]
    del found["shift"]["cost"]["replayed"], found["shift"]["cost"]["unaccounted"]
    found["shift"]["warnings"] = [
        one for one in found["shift"]["warnings"] if "got no answer" not in one
    ]
    return found


FAULTS = {"429": 0.05, "500": 0.05, "503": 0.03, "drop-before": 0.04, "drop-after": 0.04}


@pytest.mark.parametrize(
    "flags",
    [
        ("--method=plus", "--budget=150"),
        ("--method=masa", "--budget=150"),
        ("--method=proportional", "--budget=150", "--seed=7"),
        ("--method=uniform", "--budget=150"),
        ("--method=plus", "--target-error=0.09"),
        ("--method=plus", "--budget=400"),
    ],
    ids=" ".join,
)
@pytest.mark.slow
def test_the_result_is_that_of_the_recorded_answers(bench: Any, flags: tuple[str, ...]) -> None:
    found = bench(faults=FAULTS, latency=(0.0, 0.02))
    document = found.bought(*flags, concurrency=32, retries=20)
    assert unpaid(document) == unpaid(found.replayed(*flags))
    calls = document["shift"]["cost"]["calls"]
    assert len(found.api.charged) == len(set(found.api.charged)) == calls
    assert document["shift"]["cost"]["no_result"] > 0
    if "--target-error=0.09" in flags:
        assert document["shift"]["stopped"] == "target_error"
        assert calls < ROWS
    else:
        assert calls == int(flags[1].partition("=")[2])


def test_hanging_sockets_and_garbage_change_nothing(bench: Any) -> None:
    frame = frame_of()
    # What is no JSON is "no result", as a missing answer is.
    frame.loc[::9, "new"] = None
    garbage = dict.fromkeys(frame["id"][::9], "garbage")
    found = bench(
        frame, always=garbage, faults={"hang": 0.03, "half": 0.05, "429": 0.02}, retry_after="0"
    )
    document = found.bought("--budget=120", timeout=0.3, concurrency=32)
    assert unpaid(document) == unpaid(found.replayed("--budget=120"))
    assert len(found.api.charged) == len(set(found.api.charged)) == 120
    assert document["shift"]["cost"]["unaccounted"] > 0
    (warning,) = (one for one in document["shift"]["warnings"] if "got no answer" in one)
    assert "were sent again with the same idempotency key" in warning
    assert "An API that does not recognise the key charged twice" in warning


def killed(bench: Bench, commands: Commands, arguments: list[str], times: int, seed: int) -> None:
    """Kill a command at random moments, begin it again with and without --resume, and let it end."""
    drawn = random.Random(seed)
    again: list[str] = []
    kills = 0
    for _ in range(times):
        command = commands.start(
            [*arguments, *again], environment=KEYS, hook="tests.paid_api:hurry"
        )
        if drawn.random() < 0.4:
            # Some while the pool or the ledger is read, some while calls are made.
            time.sleep(drawn.uniform(0.0, 1.0))
        else:
            wait_for(bench, len(bench.api.requests) + drawn.randrange(1, 30), command)
        if command.runs():
            command.send(signal.SIGKILL)
            kills += 1
        ended = command.ended()
        assert ended.code in (-signal.SIGKILL, 0) or "no run to resume" in ended.said, ended
        hidden(ended.said)
        again = ["--resume"] if drawn.random() < 0.5 and ended.code else []
    assert kills > times / 2
    ended = commands.run(arguments, environment=KEYS, hook="tests.paid_api:hurry")
    assert ended.code == 0, ended


def wait_for(bench: Bench, requests: int, command: Command) -> None:
    while command.runs() and len(bench.api.requests) < requests:
        time.sleep(0.005)


KILLS = [2, pytest.param(20, marks=pytest.mark.slow)]


@pytest.mark.parametrize("times", KILLS)
@pytest.mark.parametrize("method", ["plus", pytest.param("masa", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_killed_runs_pay_each_item_once(
    bench: Any, commands: Commands, times: int, method: str
) -> None:
    plan = {"faults": FAULTS, "latency": (0.0, 0.05)}
    found = bench(**plan)
    flags = (f"--api={found.file(retries=20, concurrency=4)}", "--budget=300", f"--method={method}")
    assert run(found.arguments(*flags, "--quiet", output="undisturbed")) == 0
    undisturbed = found.document("undisturbed")
    found = bench(**plan, seed=times)
    arguments = found.arguments(*flags, "--log-format=json")
    killed(found, commands, arguments, times, seed=times)
    assert undated(found.document()) == undated(undisturbed)
    assert max(Counter(found.api.charged).values()) == 1
    assert len(found.api.charged) == 300
    assert {path.name for path in (found.folder / "out").iterdir()} == {"changelist.json", "ledger"}


@pytest.mark.slow
@pytest.mark.parametrize("times", [3, 20])
def test_killed_runs_stay_within_the_budget_where_lost_calls_count(
    bench: Any, commands: Commands, times: int
) -> None:
    found = bench(faults=FAULTS, latency=(0.0, 0.05), honours=False, seed=times)
    file = found.file(retries=20, concurrency=4, lost_calls="count", price=0.5)
    arguments = found.arguments(f"--api={file}", "--budget=150 USD")
    killed(found, commands, arguments, times, seed=times)
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
    answers = {one["key"] for one in found.ledger() if one["kind"] == "answered"}
    assert len(answers) == cost["calls"]


def test_so_many_lost_calls_that_a_stratum_has_no_answer(
    bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = frame_of()
    rare = frame["label"] == "c"
    frame.loc[rare, "confidence"] = 0.5
    plan = {"always": dict.fromkeys(frame["id"][rare], "drop-after"), "honours": False}
    found = bench(frame, **plan)
    flags = (f"--api={found.file(lost_calls='count')}", "--quiet", "--budget=100")
    said = refused(found.arguments(*flags), capsys, folder=found.folder, code=3)
    assert "of " in said
    assert "strata have no answer, because" in said
    assert "set lost_calls: repeat" in said
    assert len(found.api.charged) <= 100


def test_lost_calls_are_made_up_for_where_an_estimate_needs_them(bench: Any) -> None:
    frame = frame_of()
    lost = dict.fromkeys(frame["id"][frame.index % 2 == 0], "drop-after")
    found = bench(frame, always=lost, honours=False)
    document = found.bought("--budget=60", lost_calls="count", concurrency=8)
    strata = document["shift"]["strata"]
    assert min(stratum["calls"] for stratum in strata) >= 2
    assert len(found.api.charged) == 60
    assert document["shift"]["cost"]["calls"] < 60


@pytest.mark.parametrize("method", ["plus", "masa", "proportional", "uniform"])
def test_a_budget_is_spent_where_lost_calls_use_a_stratum_up(bench: Any, method: str) -> None:
    frame = frame_of()
    # Of the class c, three in four are lost: with them, more are asked for than there are.
    lost = frame.index[(frame["label"] == "c") & (frame.index % 4 > 0)]
    found = bench(frame, always=dict.fromkeys(frame["id"][lost], "drop-after"), honours=False)
    flags = (f"--method={method}", "--budget=330")
    document = found.bought(*flags, lost_calls="count", concurrency=8, price=1.0)
    shift = document["shift"]
    assert shift["cost"]["spent"] == len(found.api.charged) == 330
    assert shift["cost"]["calls"] < 330
    assert shift["stopped"] == "budget"


@pytest.mark.slow
def test_money_is_never_exceeded_with_many_calls_in_flight(bench: Any) -> None:
    found = bench(faults=FAULTS, latency=(0.05, 0.1))
    document = found.bought("--budget=0.05USD", price=0.00025, concurrency=64, retries=20)
    cost = document["shift"]["cost"]
    assert (cost["calls"], cost["spent"], cost["currency"]) == (200, 0.05, "USD")
    assert document["shift"]["stopped"] == "budget"
    assert len(found.api.charged) == len(set(found.api.charged)) == 200
    assert found.api.stats["most_in_flight"] == 64


@pytest.mark.slow
def test_a_log_tells_how_many_answers_there_are(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slicebeam.pipelines.show.terminal._LINE_SECONDS", 0.05)
    found = bench(latency=(0.05, 0.05))
    flags = ["--budget=100", "--log-format=json"]
    assert run(found.arguments(f"--api={found.file(concurrency=4)}", *flags)) == 0
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    counted = [one for one in events if one["event"] == "progress"]
    assert len(counted) > 3
    done = [one["done"] for one in counted]
    assert done == sorted(done)
    assert 0 < done[-1] <= 100
    assert {(one["total"], one["unit"]) for one in counted} == {(100, "answers")}
    assert {one["text"] for one in counted} == {"asking up to 100 of 400 items"}


def test_a_second_run_on_the_same_ledger_pays_nothing(bench: Any) -> None:
    found = bench()
    ledger = f"--ledger={found.folder / 'paid'}"
    first = found.bought("--budget=80", ledger)
    second = found.bought("--budget=80", ledger, output="second")
    assert undated(second) == undated(first)
    assert [one["shift"]["cost"]["replayed"] for one in (first, second)] == [0, 80]
    assert len(found.api.charged) == 80
    # A larger budget pays for what is new in it only.
    third = found.bought("--budget=100", ledger, output="third")
    assert third["shift"]["cost"]["replayed"] == 80
    assert len(found.api.charged) == 100
    assert not (found.folder / "out" / "ledger").exists()


def test_the_ledger_of_another_api_or_other_data_is_refused(
    bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    found = bench()
    found.bought("--budget=60", ids=False)
    other = found.file("other.yaml", url=f"{found.api.url}/answer?version=2")
    flags = (f"--api={found.file()}", "--quiet", "--budget=60")
    arguments = found.arguments(f"--api={other}", *flags[1:], ids=False)
    said = refused(arguments, capsys, folder=found.folder)
    assert (
        "the answers in DIR/out/ledger belong to other requests: url, method, params, json or headers were different"
        in said
    )
    assert "choose another --ledger folder" in said
    found.frame.loc[0, "label"] = "b"
    found.pool()
    said = refused(found.arguments(*flags, ids=False), capsys, folder=found.folder)
    assert "belong to other requests: data is 400 examples" in said
    said = refused(found.arguments(*flags), capsys, folder=found.folder)
    assert "belong to other requests: they were requested without --example-id" in said
    assert len(found.api.charged) == 60


def test_what_has_no_class_is_told_why(bench: Any) -> None:
    frame = frame_of()
    refused_items = dict.fromkeys(frame["id"][::11], "422")
    found = bench(frame, always=refused_items)
    document = found.bought("--budget=100", labels={"a": "a", "b": "b", "d": "c", "UNKNOWN": None})
    asked = {one["key"] for one in found.ledger() if one["kind"] == "answered"}
    mine = frame[frame["id"].isin(asked)].assign(why=lambda rows: rows["new"].fillna("nothing"))
    told = " ".join(document["shift"]["warnings"])
    refused_number = sum(one in refused_items for one in asked)
    unmapped = ((mine["why"] == "c") & ~mine["id"].isin(refused_items)).sum()
    assert f"{document['shift']['cost']['no_result']} of 100 answers are not a class" in told
    assert f"{unmapped} 'c'" in told
    assert f"{refused_number} HTTP 422" in told


def test_a_class_that_was_never_seen_is_told(bench: Any) -> None:
    found = bench()
    labels = {"a": "a", "b": "b", "c": "d", "UNKNOWN": None}
    document = found.bought("--budget=100", labels=labels)
    assert "to class 'd', which occurs neither" in " ".join(document["shift"]["warnings"])
    document = found.bought("--budget=100", labels={**labels, "c": "c"})
    assert "which occurs neither" not in " ".join(document["shift"]["warnings"])


def test_rows_may_be_appended_where_items_have_an_id(bench: Any) -> None:
    frame = frame_of(ROWS + 100)
    found = bench(frame)
    found.frame = frame[:ROWS]
    found.pool()
    found.bought("--budget=80")
    found.frame = frame
    found.pool()
    document = found.bought("--budget=80")
    cost = document["shift"]["cost"]
    assert document["dataset"]["n"] == ROWS + 100
    assert 0 < cost["replayed"] < cost["calls"] == 80
    charged = found.api.charged
    assert len(charged) == len(set(charged)) == 80 + 80 - cost["replayed"]
    assert unpaid(document) == unpaid(found.replayed("--budget=80"))


def test_two_runs_at_once_on_one_ledger(
    bench: Any, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    found = bench(latency=(0.05, 0.1))
    flags = (f"--api={found.file()}", "--budget=300", f"--ledger={found.folder / 'paid'}")
    first = commands.start(found.arguments(*flags), environment=KEYS)
    wait_for(found, 20, first)
    second = found.arguments(*flags, "--quiet", output="second")
    said = refused(second, capsys, folder=found.folder, code=3)
    assert "another run " in said
    assert "is using DIR/paid; wait for it, or choose another --ledger" in said
    assert first.ended().code == 0
    assert len(found.api.charged) == len(set(found.api.charged)) == 300


@pytest.mark.parametrize("wrong", ["answer", "labels"])
@pytest.mark.slow
def test_what_is_mended_reads_the_paid_answers_again(
    bench: Any, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    frame = frame_of()
    names = {"a": "ALPHA", "b": "BETA", "c": "GAMMA"}
    found = bench(frame, answers=dict(zip(frame["text"], frame["new"].map(names), strict=True)))
    labels = {name: label for label, name in names.items()}
    mended: dict[str, Any] = {"labels": {**labels, "UNKNOWN": None}}
    given = {"answer": "result.lable"} if wrong == "answer" else {"labels": ...}
    file = found.file(**{**mended, **given})
    said = refused(
        found.arguments(f"--api={file}", "--quiet", "--budget=100"), capsys, folder=found.folder
    )
    assert said.startswith("DIR/api.yaml: none of the first 20 answers is a class (")
    assert ("nothing at" if wrong == "answer" else "none of them is a class of the pool") in said
    assert "correct 'answer'" in said
    assert len(found.api.charged) == 20
    # All are bought, and have no class as long as the file is wrong.
    document = found.bought("--budget=100", **{**mended, **given, "stop_after": 0})
    assert document["shift"]["cost"]["no_result"] == 100
    assert len(found.api.charged) == 100
    document = found.bought("--budget=100", **mended)
    assert len(found.api.charged) == 100
    assert unpaid(document) == unpaid(found.replayed("--budget=100"))


@google_first
@pytest.mark.slow
def test_output_and_ledger_in_object_storage(bench: Any, bucket: Bucket) -> None:
    found = bench(faults={"503": 0.05})
    bucket.write("api.yaml", Path(found.file(concurrency=32)).read_bytes())
    flags = (f"--api={bucket.uri}/api.yaml", "--quiet", "--budget=60")
    for output in ("first", "second"):
        arguments = found.arguments(*flags, f"--ledger={bucket.uri}/paid")
        arguments = [one for one in arguments if not one.startswith("--output")]
        assert run([*arguments, f"--output={bucket.uri}/{output}"]) == 0
    assert len(found.api.charged) == 60
    first, second = (
        json.loads(bucket.read(f"{name}/changelist.json")) for name in ("first", "second")
    )
    assert undated(first) == undated(second)
    assert second["shift"]["cost"]["replayed"] == 60
    assert unpaid(first) == unpaid(found.replayed("--budget=60"))


def hidden(text: str) -> None:
    for word in WORDS:
        assert word not in text


SECRETIVE: dict[str, Any] = {
    "json": {"id": "{id}", "text": "{text}", "token": "${JSON_KEY}"},
    "params": {"key": "${PARAM_KEY}"},
}


# What each fault ends in; the log as JSON says of the others what it says of these.
ENDS = [
    ("401-mirror", 2, "HTTP 401: "),
    ("404-mirror", 2, "HTTP 404: "),
    ("500-mirror", 3, "HTTP 500 3 times"),
    ("422-mirror", 2, "none of the first 20 answers"),
    ("garbage-mirror", 2, "none of the first 20 answers"),
    ("echo-mirror", 2, "none of the first 20 answers"),
    ("null-mirror", 2, "none of the first 20 answers"),
    ("drop-before", 3, "a dropped connection"),
    ("unreachable", 3, "no connection"),
    ("broken", 3, "the HTTP client failed: RuntimeError"),
    (None, 0, ""),
]
OF_EITHER_LOG = ("401-mirror", "500-mirror", None)


@pytest.mark.parametrize(
    ("fault", "code", "told", "log"),
    [(*end, "text") for end in ENDS] + [(*end, "json") for end in ENDS if end[0] in OF_EITHER_LOG],
)
@pytest.mark.slow
def test_secrets_are_told_nowhere(
    bench: Any,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fault: str | None,
    code: int,
    told: str,
    log: str,
) -> None:
    struck = {} if fault in (None, "unreachable", "broken") else {fault: 1.0}
    found = bench(faults=struck, authorization=BEARER)
    address = found.api.url
    if fault == "unreachable":
        address = f"http://127.0.0.1:{free_port()}"
    if fault == "broken":

        def fail(*arguments: Any, **given: Any) -> None:
            raise RuntimeError(f"{arguments} {given}")

        monkeypatch.setattr("aiohttp.ClientSession.request", fail)
    url = f"{address}/answer?key=${{URL_KEY}}"
    file = found.file(url=url, **SECRETIVE, retries=2)
    arguments = found.arguments(f"--api={file}", "--budget=60", f"--log-format={log}", "--json")
    assert run(arguments) == code
    printed = capfd.readouterr()
    assert told in printed.err
    hidden(printed.out + printed.err)
    hidden(found.everything())
    if log == "json":
        assert all(json.loads(line) for line in printed.err.splitlines())
    if fault is not None and "mirror" in fault and fault not in ("500-mirror", "echo-mirror"):
        # What the API said is told, and the secrets in it are not.
        assert "***" in printed.err
    assert not list((found.folder / "tmp").glob("slicebeam-*.log"))


def test_answers_that_hold_secrets_are_told_without_them(bench: Any) -> None:
    frame = frame_of()
    frame.loc[::7, "new"] = None
    found = bench(frame, always=dict.fromkeys(frame["id"][::7], "echo-mirror"))
    document = found.bought(
        "--budget=100", url=f"{found.api.url}/answer?key=${{URL_KEY}}", **SECRETIVE
    )
    hidden(found.everything())
    assert any("***" in str(one.get("value")) for one in found.ledger())
    assert unpaid(document) == unpaid(found.replayed("--budget=100"))


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGINT, 130, "interrupted"),
        pytest.param(signal.SIGTERM, 143, "terminated", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_signal_loses_nothing(
    bench: Any, commands: Commands, number: signal.Signals, code: int, word: str
) -> None:
    found = bench(latency=(0.1, 0.2))
    arguments = found.arguments(f"--api={found.file()}", "--budget=150", "--quiet")
    command = commands.start(arguments, environment=KEYS)
    wait_for(found, 40, command)
    command.send(number)
    ended = command.ended()
    assert ended.code == code
    assert (
        ended.said == f"slicebeam: {word}; a shift continues with the same options and --resume\n"
    )
    answered = [one["key"] for one in found.ledger() if one["kind"] == "answered"]
    assert sorted(answered) == sorted(found.api.charged)
    assert 40 <= len(answered) < 150
    assert run([*arguments, "--resume"]) == 0
    document = found.document()
    assert document["shift"]["cost"]["replayed"] == len(answered)
    assert document["shift"]["cost"]["unaccounted"] == 0
    assert len(found.api.charged) == len(set(found.api.charged)) == 150
    assert unpaid(document) == unpaid(found.replayed("--budget=150"))


def test_a_file_that_describes_the_run(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = bench()
    found.file(price=0.001)
    told = {
        "command": "shift",
        "data": "{here}/pool.parquet",
        "label": "label",
        "old_prediction": "old",
        "difficulty": "confidence",
        "example_id": "id",
        "api": "{here}/api.yaml",
        "ledger": "{here}/paid",
        "budget": "0.06USD",
        "output": "{here}/out-{date}",
    }
    path = found.folder / "shift.yaml"
    path.write_text(yaml.safe_dump(told))
    assert run(["run", str(path), "--date=2026-11-20", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["calls"], printed["spent"]) == (60, 0.06)
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


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"anwser": "x"}, "unknown key 'anwser'; did you mean 'answer'"),
        ({"url": ...}, "key 'url' is missing"),
        ({"url": "ftp://x"}, "is not a URL; write it as https://host/path"),
        ({"answer": "a..b"}, "is not a JMESPath expression"),
        ({"json": {"id": "{idd}"}}, "unknown column 'idd'; did you mean 'id'"),
        ({"json": {"id": "{}"}}, "write {column} for a column"),
        ({"json": {"id": 7}}, "no {column} is in url, params, json or headers, so every call"),
        ({"labels": ["a"]}, "labels: ['a']: write pairs, as {name: value}"),
        ({"headers": {"A": "${NO_SUCH}"}}, "the environment variable NO_SUCH is not set"),
        ({"headers": {"A b": "c"}}, "'A b' is not a header name"),
        ({"labels": {}}, "labels: the list is empty"),
        ({"labels": {"x": 7}}, "class 7 is not a class of label 'label', whose classes are text"),
        ({"price": -1}, "price: -1: it must be greater than or equal to 0"),
        ({"concurrency": 0}, "concurrency: 0"),
        ({"price": 0.1, "currency": "EUR"}, "--budget is in USD and the price in EUR"),
        ({}, "is money, but calls have no price"),
        ({"price": 1}, "--budget buys 6 calls, but --method plus needs at least 18"),
    ],
)
def test_a_wrong_api_file_costs_nothing(
    bench: Any, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], told: str
) -> None:
    found = bench()
    money = "price" in changes or not changes
    file = found.file(**changes)
    arguments = found.arguments(f"--api={file}", f"--budget={'6USD' if money else '60'}", "--quiet")
    assert told in refused(arguments, capsys, folder=found.folder)
    assert found.api.requests == []
    assert found.ledger() == []
    assert not (found.folder / "out" / "changelist.json").exists()


def test_api_files_that_are_none(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = bench()
    wrong = found.folder / "wrong.yaml"
    for path, text, told in (
        (found.folder / "none.yaml", None, "DIR/none.yaml: no such file"),
        (found.folder, None, "is a folder; name a file"),
        (wrong, "url: [", "DIR/wrong.yaml: cannot be read"),
        (wrong, "- url", "a mapping with 'url' and 'answer' is expected"),
        (wrong, "url: a\nurl: b", "'url' occurs twice"),
    ):
        if text is not None:
            path.write_text(text)
        arguments = found.arguments(f"--api={path}", "--budget=60", "--quiet")
        assert told in refused(arguments, capsys, folder=found.folder)
