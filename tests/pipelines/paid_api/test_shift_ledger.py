"""The ledger holds what was durable when it was told, tells damage, and belongs to one run."""

import asyncio
import io
import json
import os
import threading

import pytest

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.paid_api import ledger as ledgers
from slicebeam.pipelines.paid_api.calls import Answer
from slicebeam.pipelines.paid_api.ledger import Ledger
from slicebeam.transforms.storage import storage
from slicebeam.transforms.storage.storage import ObjectPath, storage_path
from tests.conftest import google_first, own_stores, slow
from tests.object_stores import one_line
from tests.refusals import refusal, refuses
from tests.storage_faults import Fault

IDENTITY = {"api": "a" * 64, "data": "d"}
# What storage matters for is known of one kind of object storage; the others take longer.
STORAGES = ["local", "gcs_server", slow("moto")]
each_storage = pytest.mark.parametrize("folder", STORAGES, indirect=True)


def opened(folder, **given):
    return Ledger.open(folder, IDENTITY, **given)


def answered(folder, *answers):
    """Store answers, each group in a write of its own, by a ledger that is opened for them."""
    with opened(folder) as ledger:
        for answer in answers:
            ledger.answered_all([answer])


def noted(ledger, *calls):
    async def run():
        for name, *arguments in calls:
            await getattr(ledger, name)(*arguments)

    asyncio.run(run())


def segment(folder):
    (path,) = folder.glob("segment-*.jsonl")
    return path


def lines(folder):
    paths = sorted(folder.glob("segment-*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@pytest.fixture(params=["local", "gcs_server", "moto"])
def folder(request, tmp_path):
    if request.param == "local":
        yield tmp_path / "ledger"
        return
    store = request.getfixturevalue(request.param)
    patch = request.getfixturevalue("monkeypatch")
    for name, value in store.environment().items():
        patch.setenv(name, value)
    patch.setattr("boto3.DEFAULT_SESSION", None)
    storage._store.cache_clear()
    yield storage_path(f"{store.new_bucket().uri}/ledger")
    storage._store.cache_clear()


def test_what_was_noted_is_there_again(folder):
    values = [("a", "x"), ("b", 1.5), ("c", False), ("d", None, "HTTP 4")]
    answers = [Answer(*one) for one in values]
    with opened(folder) as ledger:
        assert (dict(ledger.answers), ledger.calls, dict(ledger.lost)) == ({}, 0, {})
        noted(ledger, *(("sent", one.key) for one in answers), ("sent", "lost"), ("sent", "free"))
        noted(ledger, ("failed", "free", "HTTP 503"), *(("answered", one) for one in answers[1:]))
        ledger.answered_all(answers[:1])
        ledger.sent_all(["e", "lost"])
        assert ledger.lost == {}
        ledger.lose("e")
        ledger.lose("never sent")
        assert (ledger.lost, ledger.unaccounted) == ({"e": 1}, 1)
        before = dict(ledger.answers)
    with opened(folder) as ledger:
        assert dict(ledger.answers) == before == {one.key: one for one in answers}
        assert list(ledger.answers) == ["b", "c", "d", "a"]
        assert [type(ledger.answers[key].value) for key in "abc"] == [str, float, bool]
        assert (ledger.lost, ledger.calls) == ({"lost": 2, "e": 1}, 4)
        ledger.answered_all([Answer("e", "y")])
    with opened(folder, count_lost=True) as ledger:
        # The call of which nobody knew the outcome may have been paid too.
        assert (ledger.calls, dict(ledger.lost)) == (5 + 3, {"lost": 2})
    with opened(folder) as ledger:
        assert ledger.calls == 5


def test_an_answer_is_not_paid_twice_and_the_first_counts(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.answered_all([Answer("a", 1), Answer("a", 2)])
        assert ledger.answers["a"].value == 1
        refuses(ValueError, "already has an answer", ledger.sent_all, ["a"])
    with opened(tmp_path) as ledger:
        assert (ledger.answers["a"].value, ledger.calls) == (1, 1)
    # A closed one takes nothing.
    refuses(EngineError, "closed", ledger.sent_all, ["b"])


def test_a_run_that_notes_nothing_leaves_nothing_and_a_file_is_no_ledger(tmp_path):
    for _ in range(2):
        with opened(tmp_path / "new") as ledger:
            ledger.sent_all([])
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "x").write_text("")
    refuses(InputError, r"--ledger .*x is a file; name a folder", opened, tmp_path / "x")


def test_each_run_that_notes_something_begins_a_segment(tmp_path):
    for number in range(3):
        answered(tmp_path, Answer(str(number), number))
    names = [f"segment-{number:06d}.jsonl" for number in (1, 2, 3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert [one["kind"] for one in lines(tmp_path)] == ["ledger", "answered"] * 3
    assert lines(tmp_path)[0]["identity"] == IDENTITY


@each_storage
def test_the_ledger_of_something_else(folder):
    answered(folder, Answer("a", 1))
    with pytest.raises(InputError) as error:
        Ledger.open(folder, {**IDENTITY, "api": "b" * 64})
    different = "url, method, params, json or headers were different"
    one_line(error, str(folder), different, "another --ledger")
    less = {"api": IDENTITY["api"]}
    refuses(InputError, "they were requested without --example-id", Ledger.open, folder, less)
    # A run that was refused keeps nobody out.
    with opened(folder) as ledger:
        assert ledger.calls == 1


@each_storage
def test_a_second_run_is_refused_while_the_first_lives(folder):
    with opened(folder) as ledger:
        refuses(EngineError, r"another run .*; wait for it, .*another --ledger", opened, folder)
        ledger.answered_all([Answer("a", 1)])
    with opened(folder) as ledger:
        assert ledger.calls == 1


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_is_cut_at_the_end_was_never_noted(tmp_path, cut):
    answered(tmp_path, Answer("a", 1), Answer("b", 2))
    text = segment(tmp_path).read_bytes()
    segment(tmp_path).write_bytes(text[:-cut])
    with opened(tmp_path) as ledger:
        assert list(ledger.answers) == ["a"]
        ledger.answered_all([Answer("c", 3)])
    # It is in the midst of the ledger now.
    with opened(tmp_path) as ledger:
        assert list(ledger.answers) == ["a", "c"]


def test_a_first_line_that_is_cut(tmp_path):
    answered(tmp_path, Answer("a", 1))
    os.truncate(segment(tmp_path), 20)
    with opened(tmp_path) as ledger:
        assert ledger.calls == 0
        ledger.answered_all([Answer("b", 1)])
    with opened(tmp_path) as ledger:
        assert list(ledger.answers) == ["b"]


@pytest.mark.parametrize("line", [1, 2, 3, 4])
def test_damage_is_told_with_file_and_line(tmp_path, line):
    with opened(tmp_path) as ledger:
        ledger.answered_all([Answer(key, f"value of {key}") for key in "abc"])
    written = segment(tmp_path).read_bytes().split(b"\n")
    written[line - 1] = written[line - 1].replace(b"a", b"z", 1)
    segment(tmp_path).write_bytes(b"\n".join(written))
    error = refusal(EngineError, opened, tmp_path)
    one_line(error, f"segment-000001.jsonl, line {line} is damaged", "restore")


@each_storage
def test_a_segment_that_is_missing_is_told(folder):
    for number in range(3):
        answered(folder, Answer(f"{number} a", 1), Answer(f"{number} b", 1))
    paths = sorted(folder.glob("segment-*.jsonl"))
    assert len(paths) == (6 if isinstance(folder, ObjectPath) else 3)
    paths[1].unlink()
    refuses(EngineError, f"before {paths[2].name} is missing", opened, folder)


def test_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ledgers, "_VERSION", 2)
    answered(tmp_path, Answer("a", 1))
    monkeypatch.undo()
    refuses(InputError, "another version; choose another --ledger", opened, tmp_path)


def test_many_records_are_one_write(tmp_path, monkeypatch):
    synced, sync = [], os.fsync
    first, go = threading.Event(), threading.Event()

    def slow(file):
        synced.append(file)
        first.set()
        go.wait(20)
        sync(file)

    async def note(ledger):
        waiting = [asyncio.create_task(ledger.sent("first"))]
        await asyncio.to_thread(first.wait, 20)
        waiting += [asyncio.create_task(ledger.sent(str(key))) for key in range(1000)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        go.set()
        await asyncio.gather(*waiting)

    with opened(tmp_path) as ledger:
        monkeypatch.setattr(os, "fsync", slow)
        asyncio.run(note(ledger))
        ledger.sent_all([f"more {key}" for key in range(1000)])
    # The folder and the first group, a thousand others, and the batch; the lock's are before.
    assert (len(synced), len(lines(tmp_path))) == (4, 2002)


@google_first
def test_groups_of_records_are_objects(bucket):
    folder = ObjectPath(f"{bucket.uri}/ledger")
    with opened(folder) as ledger:
        ledger.sent_all([str(key) for key in range(100)])
        ledger.answered_all([Answer(str(key), key) for key in range(100)])
    names = [f"segment-000001-{number:08d}.jsonl" for number in (1, 2)]
    assert [path.name for path in sorted(folder.iterdir())] == names


@google_first
def test_an_object_that_another_run_wrote_is_not_replaced(bucket):
    folder = ObjectPath(f"{bucket.uri}/ledger")
    with opened(folder) as ledger:
        path = folder / "segment-000001-00000001.jsonl"
        path.store.write(path.bucket, path.key, io.BytesIO(b"other\n"))
        refuses(EngineError, "another run also writes to", ledger.sent_all, ["a"])
    assert path.read_bytes() == b"other\n"


def test_a_disk_that_is_full_ends_the_calls(tmp_path, monkeypatch):
    write, full = os.write, False

    def refuse(file, data):
        if not full:
            return write(file, data)
        if len(data) > 10:
            return write(file, data[:10])
        raise OSError(28, "No space left on device")

    with opened(tmp_path) as ledger:
        ledger.answered_all([Answer("a", 1)])
        ledger.sent_all(["b"])
        monkeypatch.setattr(os, "write", refuse)
        full = True
        with pytest.raises(EngineError, match=r"No space left.*choose another --ledger"):
            noted(ledger, ("answered", Answer("b", 2)))
        full = False
        # What is on the disk ends in half a line, and nothing may follow it.
        refuses(EngineError, "No space left", noted, ledger, ("sent", "c"))
        refuses(EngineError, "No space left", ledger.sent_all, ["d"])
        assert ledger.calls == 1
    with opened(tmp_path) as ledger:
        assert (ledger.calls, dict(ledger.lost)) == (1, {"b": 1})


@google_first
def test_storage_that_fails_ends_the_calls(bucket, proxy):
    with opened(storage_path(f"{bucket.uri}/ledger")) as ledger:
        ledger.sent_all(["a"])
        proxy.add(Fault("status", "PUT|POST", status=403))
        error = refusal(EngineError, ledger.sent_all, ["b"])
        one_line(error, "cannot write", "segment-000001-00000002.jsonl")
        proxy.heal()
        refuses(EngineError, "cannot write", noted, ledger, ("sent", "c"))
    with opened(storage_path(f"{bucket.uri}/ledger")) as ledger:
        assert ledger.lost == {"a": 1}


@own_stores
def test_a_write_whose_answer_was_lost_is_known_again(bucket, proxy, short_waits):
    with opened(storage_path(f"{bucket.uri}/ledger")) as ledger:
        lost = proxy.add(Fault("lose answer", "PUT|POST", "segment", times=1))
        ledger.answered_all([Answer("a", 1)])
        assert lost.struck == 1
        ledger.answered_all([Answer("b", 2)])
    with opened(storage_path(f"{bucket.uri}/ledger")) as ledger:
        assert list(ledger.answers) == ["a", "b"]


def test_secrets_never_get_in(tmp_path):
    with opened(tmp_path, redact=lambda text: text.replace("secret", "***")) as ledger:
        long = "x" * 1998 + "secret"
        noted(ledger, ("sent", "a"), ("failed", "a", "refused: secret"))
        noted(ledger, ("answered", Answer("a", "secret")))
        noted(ledger, ("answered", Answer("b", None, "no secret"), long))
        assert ledger.answers["a"].value == "***"
    text = segment(tmp_path).read_text()
    assert "sec" not in text
    assert (text.count("***"), lines(tmp_path)[-1]["body"]) == (3, "x" * 1998 + "**")


def test_kept_bodies_are_read_again(tmp_path):
    def extract(body):
        return (body, None) if body.startswith("class") else (None, "nothing there")

    with opened(tmp_path) as ledger:
        for key, body in (("a", "class 1"), ("b", "no")):
            noted(ledger, ("answered", Answer(key, None, "nothing"), body))
        noted(ledger, ("answered", Answer("c", "class 3")))
        asyncio.run(ledger.answered(Answer("d", None, "HTTP 422"), "class 4", mendable=False))
        assert (ledger.reread(extract), ledger.reread(extract)) == (1, 0)
        assert ledger.answers["a"] == Answer("a", "class 1")
        assert ledger.answers["b"].problem == "nothing"
        assert (ledger.answers["d"].problem, ledger.calls) == ("HTTP 422", 4)
    with opened(tmp_path) as ledger:
        assert ledger.answers["a"].problem == "nothing"
        assert ledger.reread(lambda body: (f"now {body}", None)) == 2
        assert ledger.answers["b"] == Answer("b", "now no")


def test_the_idempotency_key_is_of_ledger_and_item(tmp_path):
    with opened(tmp_path / "1") as one, opened(tmp_path / "2") as same:
        assert one.idempotency_key("a") == same.idempotency_key("a")
        assert one.idempotency_key("a") != one.idempotency_key("b")
        assert len(one.idempotency_key("a")) == 32
    with Ledger.open(tmp_path / "3", {**IDENTITY, "data": "e"}) as other:
        assert other.idempotency_key("a") != one.idempotency_key("a")
