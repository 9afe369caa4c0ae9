"""``slicebeam adapt run`` on a model that is sold by an HTTP endpoint: what it finds, and what it pays."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.commands.cli import run
from tests import random_text_models as models
from tests.oracles.adaptive_oracle import failed, topics_of
from tests.paid_bench import NO_PLAN, PaidBench, bench_fixture, fail

TREE = Path(__file__).parents[3] / "examples" / "adaptive" / "hotel_tree.csv"
SAME, PRICE = "should have the same output as", 0.5


def answer(text, of="new"):
    """What the endpoint says of a text: the old one and the new one differ on a third of them."""
    number = models.number(text, of if models.number(text, "differ", 3) == 0 else "both", 2)
    return ("NEGATIVE", "POSITIVE")[number]


def frame_of(number=60):
    """Return tests of which some have the same input, and some compare inputs."""
    rows = []
    for one in range(number):
        test = {"topic": f"/T{one % 4}", "input": f"text {one % (2 * number // 3)}"}
        if one % 5 == 4:
            test |= {"topic": "/T1/Same", "expectation": SAME}
            test["value"] = json.dumps([f"other {one}", f"text {one // 2}"])
        else:
            test |= {"output": "POSITIVE" if one % 3 else "NEGATIVE", "label": "pass"}
        rows.append(test)
    columns = ["topic", "input", "output", "label", "expectation", "value", "second_input"]
    index = [f"id-{one}" for one in range(number)]
    return pd.DataFrame(rows, index, columns, dtype=object).fillna("")


def texts_of(frame):
    values = [json.loads(one) if one else [] for one in frame["value"]]
    pairs = zip(frame.input, values, strict=True)
    return list(dict.fromkeys(text for one, others in pairs for text in (one, *others)))


class Bench(PaidBench):
    def save(self):
        self.frame.to_csv(self.folder / "tree.csv")

    def file(self, of="new", name="", **changes):
        item = f"{of} {{input}}"
        options = {"json": {"id": item, "text": item}, "price": PRICE, "retries": 20, **changes}
        return super().file(name or f"{of}.yaml", **options)

    def arguments(self, *flags, output="out", of="new"):
        model = f"--model={self.folder / f'{of}.yaml'}"
        tree, out = str(self.folder / "tree.csv"), f"--output={self.folder / output}"
        return ["adapt", "run", tree, model, out, *flags]

    def bought(self, *flags, output="out", **changes):
        self.file(**changes)
        assert run(self.arguments("--quiet", *flags, output=output)) == 0
        return self.document(output)

    def document(self, output="out"):
        return super().document(output)["adaptive"]

    def check(self, found, output="out", without=()):
        """Compare a document with a direct computation; return the tests that count."""
        columns = ("new", "old")[: 1 + (len(found["models"]) == 2)]
        frame = self.frame.copy()
        for column in columns:

            def model(text, of=column):
                return None if text in without else answer(text, of)

            frame[column] = [failed(one, model) for one in frame.to_dict("records")]
        known = frame.dropna().astype(dict.fromkeys(columns, bool))
        by_hand = topics_of(known)
        topics = {one["topic"]: one for one in found["topics"]}
        assert set(topics) == set(by_hand.index)
        for topic, row in by_hand.iterrows():
            for name in row.index.intersection(list(topics[str(topic)])):
                assert topics[str(topic)][name] == row[name], (topic, name)
        table = pq.read_table(self.folder / output / "tests.parquet").to_pandas().set_index("id")
        assert (table.passed == ~known.new.reindex(table.index)).all()
        assert (set(table.index), found["tests"]) == (set(known.index), len(known))
        assert sum(found["unscored"].values()) == len(frame) - len(known)
        return known

    def names(self, output="out"):
        found = (path.name for path in (self.folder / output).iterdir())
        return {re.sub(r"\.[0-9a-f]{12}\.", ".", name) for name in found}

    def paid_once(self):
        assert max(Counter(self.api.charged).values()) == 1


PUBLISHED = {"changelist.json", "slices.parquet", "tests.parquet", "topics.yaml", "ledger"}


def planned(frame):
    frame = frame_of() if frame is None else frame
    texts = texts_of(frame)
    answers = {f"{of} {text}": answer(text, of) for text in texts for of in ("new", "old")}
    return frame, {"answers": answers, "honours": False}


bench = bench_fixture(Bench, planned)


def test_each_input_is_paid_once_whatever_is_run(bench):
    found = bench()
    texts = texts_of(found.frame)
    assert len(texts) < len(found.frame.input) + 2 * (found.frame.expectation == SAME).sum()
    document = found.bought()
    found.check(document)
    assert sorted(found.api.charged) == sorted(f"new {text}" for text in texts)
    (paid,) = document["paid"]
    assert (paid["calls"], paid["replayed"]) == (len(texts), 0)
    assert (paid["spent"], found.names()) == (PRICE * len(found.api.charged), PUBLISHED)
    # The ledger has the answers of all that asks again, also where the file has another name.
    ledger = f"--ledger={found.folder / 'out' / 'ledger'}"
    again = found.bought(ledger, output="again", name="renamed.yaml", timeout=7)
    assert again["topics"] == document["topics"]
    assert again["paid"][0] == {**paid, "replayed": len(texts)}
    found.frame.loc["id-0", "input"] = "a new text"
    found.save()
    kept = "--classes=NEGATIVE=NEGATIVE"
    changed = found.bought(ledger, kept, output="changed", labels={"POSITIVE": "POSITIVE"})
    assert found.api.charged[len(texts) :] == ["new a new text"]
    (paid,) = changed["paid"]
    assert (paid["calls"], paid["replayed"]) == (len(texts) + 1, len(texts))
    assert "new.yaml: the endpoint's answer is no key of 'labels'" in str(changed["unscored"])


def test_a_call_without_an_outcome_is_made_again_and_counted_beside(bench, capsys):
    found = bench(frame_of(5), forced={"new text 0": ["drop-after"]})
    found.file()
    assert run(found.arguments()) == 0
    (paid,) = found.document()["paid"]
    answers = len(texts_of(found.frame))
    assert (paid["unaccounted"], paid["spent"]) == (1, PRICE * answers)
    assert len(found.api.charged) == answers + 1
    assert "; 1 call without an outcome" in " ".join(capsys.readouterr().out.split())


def test_a_budget_that_does_not_suffice(bench, capsys):
    found = bench()
    texts, first = texts_of(found.frame), found.bought("--budget=20")
    assert sorted(found.api.charged) == sorted(f"new {one}" for one in texts[:20])
    known = found.check(first, without=texts[20:])
    reason = f"{found.folder / 'new.yaml'}: not bought, because the budget does not suffice"
    assert first["unscored"] == {reason: len(found.frame) - len(known)}
    tests = topics_of(found.frame.assign(new=False)).tests
    assert first.get("untested", {}) == tests.drop(topics_of(known).index).to_dict()
    # With money, and again: the calls of earlier runs count.
    second = found.bought("--budget=10.9 USD")
    assert (len(found.api.charged), second["paid"][0]["spent"]) == (21, 10.5)
    assert run(found.arguments("--budget=5")) == 0
    printed = capsys.readouterr()
    assert "not bought, because the budget does not suffice" in " ".join(printed.out.split())
    assert "asking about" not in printed.err
    assert len(found.api.charged) == 21
    # What it is about to spend is said before.
    assert run(found.arguments("--budget=30")) == 0
    assert f"asking about 9 of {len(texts)} inputs by" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("fail_on", ["failing", "worse"])
def test_a_gate_fails_where_the_budget_hid_a_topic(bench, capsys, fail_on):
    names = [("/Good", "good")] * 12 + [("/Late", "late")] * 12
    texts = [(topic, f"{word} {one}") for one, (topic, word) in enumerate(names)]
    rows = [{"topic": topic, "input": text, "output": answer(text)} for topic, text in texts]
    empty = {"expectation": "", "value": "", "second_input": ""}
    found = bench(pd.DataFrame(rows).assign(label="pass", **empty))
    found.file()
    flags = [f"--fail-on={fail_on}", "--quiet"]
    if fail_on == "worse":
        flags.append(f"--baseline-model={found.file('old')}")
    each = 2 if fail_on == "worse" else 1
    for calls, hidden in ((20 * each, "/Late"), (22 * each, "")):
        code = run(found.arguments(*flags, f"--budget={calls}"))
        said = capsys.readouterr().err
        assert code == (2 if hidden else 0), said
        if hidden:
            assert "slicebeam: FAIL: 1 topic (/Late) can't be judged" in said
    assert len(found.api.charged) == 22 * each


@pytest.mark.slow
def test_two_endpoints_share_a_budget(bench, capsys):
    found = bench()
    texts, old = texts_of(found.frame), found.file("old", price=0.25)
    document = found.bought(f"--baseline-model={old}", "--budget=15.30 USD")
    # An input that only one of them has answered would say nothing.
    assert Counter(one.partition(" ")[0] for one in found.api.charged) == {"new": 20, "old": 20}
    assert [one["spent"] for one in document["paid"]] == [10.0, 5.0]
    found.check(document, without=texts[20:])
    whole = found.bought(f"--baseline-model={old}")
    found.check(whole)
    found.paid_once()
    assert len(found.api.charged) == 2 * len(texts)
    assert whole["models"] == [old, str(found.folder / "new.yaml")]
    # Two files of one endpoint, that read its answers in two ways: one ledger, paid once.
    other = found.file(name="other.yaml", labels={"POSITIVE": "POSITIVE", "NEGATIVE": "POSITIVE"})
    twice = found.bought(f"--baseline-model={other}", "--classes=NEGATIVE=NEGATIVE")
    assert sum(one["calls"] for one in twice["paid"]) == len(texts)
    assert len(found.api.charged) == 2 * len(texts)
    # What is wrong with the second one is said before the first one is paid.
    unpriced, before = found.file("old", price=...), len(found.api.requests)
    flags = (f"--baseline-model={unpriced}", "--budget=5USD", "--quiet")
    assert run(found.arguments(*flags, output="new")) == 2
    assert "gives no price" in capsys.readouterr().err
    assert len(found.api.requests) == before


def test_pairs(bench, capsys):
    several = '[["b", "a"], ["a", "c"]]'
    rows = [
        {"topic": "/P", "input": "a", "second_input": "b", "label": "pass", "output": "POSITIVE"},
        {"topic": "/P", "input": "a", "second_input": "c", "label": "fail", "output": "POSITIVE"},
        {"topic": "/P", "input": "a", "expectation": SAME, "value": "d"},
        {"topic": "/P", "input": "a", "second_input": "b", "expectation": SAME, "value": several},
    ]
    found = bench(frame_of(0), default="POSITIVE")
    found.frame = pd.DataFrame(rows).fillna("")
    found.save()
    found.file()
    assert run(found.arguments("--quiet")) == 2
    assert "tests are pairs of texts, and no {second_input} is in url" in capsys.readouterr().err
    assert found.api.requests == []
    item = "{input}+{second_input}"
    document = found.bought(json={"id": item, "text": item})
    assert sorted(found.api.charged) == ["a+", "a+b", "a+c", "b+a", "d+"]
    (topic,) = document["topics"]
    # The endpoint calls everything positive.
    assert (topic["tests"], topic["failures"]) == (4, 1)


def test_an_output_may_be_a_long_text(bench):
    long = "word " * 1000 + "the end"
    found = bench(frame_of(0), answers={"new a": long, "new b": "short"})
    blank = {"topic": "/A", "expectation": "should contain", "value": "the end"}
    found.frame = pd.DataFrame([{**blank, "input": "a"}, {**blank, "input": "b"}])
    found.frame = found.frame.assign(output="", label="")
    found.save()
    document = found.bought()
    assert (document["tests"], document["topics"][0]["failures"]) == (2, 1)
    tests = pq.read_table(found.folder / "out" / "tests.parquet").to_pandas()
    assert tests.output.tolist() == [long, "short"]
    assert found.bought()["topics"] == document["topics"]
    assert len(found.api.charged) == 2


NO_OUTPUT = "the endpoint's answer holds no output"
LOST = "a call without an outcome, which counts as paid (lost_calls: count)"
REASONS = {
    "garbage": f"{NO_OUTPUT} (no JSON)",
    "null": f"{NO_OUTPUT} (nothing at 'result.label')",
    "elsewhere": f"{NO_OUTPUT} (nothing at 'result.label')",
    "422": f"{NO_OUTPUT} (HTTP 422)",
    **dict.fromkeys(("drop-after", "hang", "half"), LOST),
}


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "reason"), REASONS.items())
def test_what_is_paid_and_no_answer(bench, capsys, fault, reason):
    frame = frame_of(30)
    texts = texts_of(frame)
    bad = texts[::6]
    found = bench(frame, always={f"new {one}": fault for one in bad})
    flags = {"lost_calls": "count", "timeout": 0.5 if fault == "hang" else 20}
    document = found.bought(**flags)
    known = found.check(document, without=bad)
    missing = len(frame) - len(known)
    assert document["unscored"] == {f"{found.folder / 'new.yaml'}: {reason}": missing}
    assert sorted(found.api.charged) == sorted(f"new {one}" for one in texts)
    assert document["paid"][0]["spent"] == PRICE * len(texts)
    by_topic = topics_of(frame.assign(new=False)).tests - topics_of(known).tests
    undecided = {one["topic"]: one.get("undecided", 0) for one in document["topics"]}
    assert undecided == by_topic.to_dict()
    if fault in ("422", "half"):
        # It is not asked again.
        found.bought(**flags)
        assert len(found.api.charged) == len(texts)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "code", "said"), [
    ("401-mirror", 2, "HTTP 401: "),
    ("redirect", 2, "it redirects to /elsewhere"),
    ("500-mirror", 3, "HTTP 500 3 times"),
    ("422-mirror", 2, "none of the first 20 answers"),
    ("garbage-mirror", 2, "none of the first 20 answers"),
    ("echo-mirror", 0, ""),
    ("drop-before", 3, "a dropped connection"),
    ("unreachable", 3, "no connection"),
    ("broken", 3, "the HTTP client failed: RuntimeError"),
    ("crash", 3, "unforeseen RuntimeError"),
    (None, 0, ""),
])  # fmt: skip
def test_the_key_is_shown_nowhere(bench, capfd, monkeypatch, fault, code, said):
    found = bench(frame_of(30), faults={} if fault in NO_PLAN else {fault: 1.0})
    if fault == "crash":
        monkeypatch.setattr("slicebeam.pipelines.adaptive.paid_outputs.AnsweredModel", fail)
    found.file(url=f"{found.struck(fault, monkeypatch)}/answer?key=${{API_KEY}}", retries=2)
    assert run(found.arguments("--json")) == code
    printed = capfd.readouterr()
    assert said in printed.err
    found.hides(printed.out, printed.err, found.everything())
    if fault is not None and "mirror" in fault and fault not in ("500-mirror", "echo-mirror"):
        # What the API said is shown, and the key in it is not.
        assert "***" in printed.err
    if code:
        assert not (found.folder / "out" / "changelist.json").exists()


def test_endpoints_that_nothing_can_be_asked_of(bench, capsys):
    found = bench(frame_of(5))
    for changes, said in (
        ({"json": {"id": 7}}, "no {input} is in url"),
        ({"json": {"id": "{text}", "a": "{input}"}}, "tests have no 'text'"),
        ({"headers": {"A": "${NO_SUCH}"}}, "the environment variable NO_SUCH is not set"),
        ({"currency": "EUR"}, "--budget is in USD and the price in EUR"),
        ({"price": 7}, "buys no call"),
        ({"price": ...}, "gives no price"),
        ({"anwser": "x"}, "did you mean 'answer'"),
    ):
        found.file(**changes)
        assert run(found.arguments("--budget=5USD", "--quiet")) == 2
        assert said in capsys.readouterr().err
    found.file()
    (found.folder / "tree.csv").write_text(",topic,input,output,label\n1,,a,b,pass\n")
    assert run(found.arguments("--quiet")) == 2
    assert "all tests are at the root" in capsys.readouterr().err
    assert found.api.requests == []
    assert not (found.folder / "out" / "changelist.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "times"), [("repeat", 10), ("count", 5)])
def test_killed_runs_pay_each_input_once(bench, commands, lost, times):
    faults = {"429": 0.05, "500": 0.05, "drop-before": 0.04, "drop-after": 0.04}
    honours = lost == "repeat"
    found = bench(frame_of(120), faults=faults, latency=(0.0, 0.05), honours=honours, seed=3)
    texts = texts_of(found.frame)
    found.file(concurrency=4, lost_calls=lost)
    budget = len(texts) - 10
    flags = (f"--budget={budget}", "--quiet") if honours else (f"--budget={budget / 2} USD",)
    found.killed(commands, found.arguments(*flags), times, seed=7, most=15)
    document, charged = found.document(), found.api.charged
    found.paid_once()
    assert len(charged) <= budget
    (paid,) = document["paid"]
    assert (paid["calls"], paid["spent"]) == (budget, PRICE * budget)
    answers = set(found.answered())
    if honours:
        assert len(charged) == len(answers) == budget
        found.check(document, without=texts[budget:])
    else:
        # What was lost may have been charged: with the answers it uses the budget up.
        assert len(answers) <= len(charged) <= budget
        assert len(answers) < budget
        assert "without an outcome" in str(document["unscored"])
        assert paid["unaccounted"] == 0
    assert found.names() == PUBLISHED


@pytest.mark.slow
def test_suggestions_go_on_after_kills_with_the_answers_that_are_paid(bench, commands):
    found = bench(latency=(0.02, 0.05), honours=True)
    tree = str(shutil.copy(TREE, found.folder / "hotel.csv"))
    model = found.file(json={"id": "{input}", "text": "{input}"}, concurrency=2)
    options = ["--topic=/Rooms", "--proposer=mined", "--proposals=30", "--quiet"]
    options += ["--classes=pos=POSITIVE,neg=NEGATIVE"]
    found.killed(commands, ["adapt", "suggest", tree, f"--model={model}", *options], 2, seed=5)
    found.paid_once()
    assert sorted(found.answered()) == sorted(set(found.answered()))
    assert len(found.answered()) == len(found.api.charged) > 30
    # Each kill may lose what was in flight, and the API gives it again.
    assert len(found.api.requests) <= len(found.api.charged) + 2 * 2


@pytest.mark.slow
def test_two_runs_at_once(bench, commands):
    found = bench(frame_of(30), latency=(0.1, 0.2))
    found.file(concurrency=1)
    first = found.start(commands, found.arguments("--quiet"))
    found.wait_for(3, first)
    ledger = f"--ledger={found.folder / 'own'}"
    own = f"--model={found.file('old', concurrency=30)}"
    second = [one for one in found.arguments("--quiet", ledger) if "--model" not in one]
    assert run([*second, own]) == 0
    assert first.runs()
    ended = first.ended()
    # Whichever publishes last: both end, and nothing of either stays.
    assert ended.code == 0, ended
    assert found.names() == PUBLISHED
    found.paid_once()


@pytest.mark.parametrize("bucket", ["gcs_server"], indirect=True)
@pytest.mark.slow
def test_output_and_ledger_in_object_storage(bench, bucket):
    found = bench(frame_of(30))
    model, tree = f"--model={found.file()}", bucket.upload(found.folder / "tree.csv")
    for _ in range(2):
        assert run(["adapt", "run", tree, model, f"--output={bucket.uri}/out", "--quiet"]) == 0
        assert {key for key in bucket.keys("out/") if "lock" in key} == set()
    assert len(found.api.charged) == len(texts_of(found.frame))
    document = json.loads(bucket.read("out/changelist.json"))["adaptive"]
    assert document["paid"][0]["replayed"] == len(found.api.charged)
    assert document["tests"] == 30
