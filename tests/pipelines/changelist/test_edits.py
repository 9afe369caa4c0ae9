"""Edits and their undoing, what is checked of findings, and revisions by several writers."""

import copy
import hashlib
import json
import multiprocessing
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.changelist import edits as ed
from slicebeam.pipelines.changelist import revisions as rev
from slicebeam.pipelines.changelist.discovered import Attribution
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.edits import annotated
from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.changelist.reading import misfits, read_search
from slicebeam.pipelines.commands.cli import run
from slicebeam.transforms.encode import definitions as dc
from slicebeam.transforms.storage import storage
from slicebeam.transforms.storage.storage import storage_path
from tests.conftest import own_stores
from tests.edited_documents import made, predicate, searched
from tests.refusals import refusal, refuses


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return searched(tmp_path_factory.mktemp("searched"))


@pytest.fixture(scope="module")
def document(original):
    document = SearchChangeList.model_validate_json(original.read_text())
    assert len(document.slices) == 3
    return document


def journal(edited):
    """An edited document as it is read again."""
    return SearchChangeList.model_validate_json(edited.to_json())


def test_rename_describe_annotate(document):
    slice_id, before = document.slices[1].slice_id, copy.deepcopy(document)
    renamed = ed.renamed(document, slice_id, "Young")
    names = [one.name for one in renamed.slices]
    assert names == ["topic = food", "Young", "age in [24, 31)"]
    assert (renamed.edits[-1].op, renamed.edits[-1].target) == ("rename", slice_id)
    assert (renamed.edits[-1].before, renamed.edits[-1].after) == ("age < 24", "Young")
    described = ed.described(renamed, slice_id, " below 24\nyears ")
    assert described.slices[1].description == "below 24\nyears"
    again = ed.described(described, slice_id, "")
    assert again.slices[1].description is None
    noted = ed.annotated(again, slice_id, "look here")
    noted = ed.annotated(noted, slice_id, "and here")
    assert noted.slices[1].notes == ("look here", "and here")
    assert noted.edits[-1].before == ["look here"]
    # All else is as it was, in the document that was given too.
    told, slices = {"name": "age < 24", "notes": ()}, list(noted.slices)
    slices[1] = slices[1].model_copy(update=told)
    assert (tuple(slices), document) == (before.slices, before)


def test_a_definition_is_added_once(document):
    women = predicate("sex", "==", "Female")
    added = ed.added(document, made(document, "new", women), "by hand")
    assert (added.edits[-1].op, added.edits[-1].before, added.edits[-1].note) == (
        "add_slice",
        None,
        "by hand",
    )
    with pytest.raises(InputError, match="'new', has the same definition"):
        ed.added(added, made(document, "other", women))


def test_findings_go_with_their_slice_and_come_back(document):
    ranks = {one.slice_id: one.rank for one in document.findings}
    assert sorted(ranks.values()) == list(range(1, len(ranks) + 1))
    assert len(ranks) > 1
    first = document.findings[0].slice_id
    others = [one.slice_id for one in document.slices if one.slice_id != first]
    merged = ed.merged(document, others, made(document, "rest", predicate("sex", "==", "Female")))
    assert [one.slice_id for one in merged.findings] == [first]
    now = journal(ed.removed(document, first))
    # What was expected of the others rests on it, so that their ranks stay.
    del ranks[first]
    assert {one.slice_id: one.rank for one in now.findings} == ranks
    assert now.finding_models[0].removed == (1,)
    assert not [*misfits(now)]
    assert now.edits[-1].before[0]["findings"][0]["finding"]["rank"] == 1
    both = journal(ed.removed(now, now.findings[0].slice_id))
    assert both.finding_models[0].removed == (1, 2)
    for _ in range(2):
        both = journal(ed.undone(both))
    assert (both.findings, both.finding_models) == (document.findings, document.finding_models)


def test_attribution_is_undone_too(document):
    some = Estimate(value=0.5, lo=0.25, hi=0.75, confidence=0.95)
    measured = {"precision": some, "recall": some, "missed": Estimate(value=0.0)}
    bars = {"least_precision": 0.8, "least_recall": 0.5, "looks": 2}
    told = Attribution(text="food", state="estimated", labels_uri="labels", **measured, **bars)
    slice_id = document.slices[0].slice_id
    one = ed.attributed(document, slice_id, told)
    assert one.slices[0].attribution == told
    other = told.model_copy(update={"state": "accepted"})
    now = journal(ed.attributed(one, slice_id, other))
    assert now.slices[0].attribution == other
    now = journal(ed.undone(now))
    assert now.slices[0].attribution == told
    now = journal(ed.undone(now))
    assert now.slices == document.slices


def test_added_slice_that_the_journal_tells_whole_is_undone_too(document):
    # As an attribution writes it.
    new = made(document, "new", predicate("age", "<", 50))
    edit = ed._edit("add_slice", new.slice_id, None, new.model_dump(mode="json"), "a note")
    told = {"slices": (*document.slices, new), "edits": (edit,)}
    now = SearchChangeList.model_validate_json(document.model_copy(update=told).to_json())
    assert ed.undone(now).slices == document.slices


class Steps:
    def __init__(self, document, draw):
        self.first = self.document = document
        self.draw, self.made = draw, 0

    def one(self):
        return self.draw(st.sampled_from(self.document.slices))

    def new(self, definition):
        self.made += 1
        # None is defined like another one.
        extra = dc.MembershipDefinition(ids=(self.made,))
        return made(
            self.first, f"s{self.made}", dc.JoinedDefinition(kind="any_of", of=(definition, extra))
        )

    def take(self):
        document, slices, possible = self.document, self.document.slices, ["add"]
        if slices:
            possible += ["rename", "describe", "annotate", "remove", "split"]
        if len(slices) > 1:
            possible += ["merge"] * 2
        if ed.last_not_undone(document.edits):
            possible += ["undo"] * 2
        op = self.draw(st.sampled_from(possible))
        self.made += 1
        if op == "add":
            edited = ed.added(document, self.new(predicate("age", "<", 20)))
        elif op == "rename":
            edited = ed.renamed(document, self.one().slice_id, f"n{self.made}")
        elif op == "describe":
            edited = ed.described(document, self.one().slice_id, f"d{self.made}")
        elif op == "annotate":
            edited = ed.annotated(document, self.one().slice_id, self.draw(st.sampled_from("xy")))
        elif op == "remove":
            edited = ed.removed(document, self.one().slice_id)
        elif op == "split":
            old = self.one()
            parts = [self.new(old.definition), self.new(dc.NotDefinition(of=old.definition))]
            edited = ed.split(document, old.slice_id, parts)
        elif op == "merge":
            pool = st.lists(st.sampled_from(slices), min_size=2, max_size=4, unique_by=id)
            some = self.draw(pool)
            of = tuple(one.definition for one in some)
            gone = [one.slice_id for one in some]
            edited = ed.merged(document, gone, self.new(dc.JoinedDefinition(kind="any_of", of=of)))
        else:
            edited = ed.undone(document)
        self.document = journal(edited)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_undoing_all_gives_the_slices_of_the_beginning(original, data):
    start = SearchChangeList.model_validate_json(original.read_text())
    steps, states = Steps(start, data.draw), [start.slices]
    for _ in range(data.draw(st.integers(1, 12))):
        before = len(steps.document.edits)
        steps.take()
        # What is undone is what the last edit made, one state back.
        if steps.document.edits[before].op == "undo":
            states.pop()
            assert steps.document.slices == states[-1]
        else:
            states.append(steps.document.slices)
    now = steps.document
    while ed.last_not_undone(now.edits):
        states.pop()
        now = journal(ed.undone(now))
        assert now.slices == states[-1]
    assert (now.slices, now.model_copy(update={"edits": ()})) == (start.slices, start)


def test_find_slice(document):
    first, second, _ = document.slices
    assert ed.find_slice(document, first.slice_id) is first
    assert ed.find_slice(document, "age < 24") is second
    assert ed.find_slice(document, second.slice_id[:5]) is second
    # A name goes before the beginning of an id.
    called = ed.renamed(document, first.slice_id, second.slice_id[:3])
    assert ed.find_slice(called, second.slice_id[:3]).slice_id == first.slice_id
    none = document.model_copy(update={"slices": ()})
    for within, name, message in (
        (document, "age < 42", "unknown slice 'age < 42'; did you mean 'age < 24'"),
        (document, "", "unknown slice ''"),
        (document, "d", r"--slice 'd' may be .*; give the full id"),
        (none, "a", "the document has no slices"),
    ):
        refuses(InputError, message, ed.find_slice, within, name)


@pytest.mark.parametrize("name", ["", "  ", " a", "a\nb", "a\x1b[2J", "\udcff", "age < 24"])
def test_no_names(document, name):
    refuses(InputError, "--name", ed.renamed, document, document.slices[0].slice_id, name)


def test_other_wrong_edits(document):
    slice_id, other = document.slices[0].slice_id, document.slices[1].slice_id
    for edit, target, text, message in (
        (ed.renamed, slice_id, other, f"slice {other} has this name"),
        (ed.renamed, slice_id, "topic = food", "nothing to change"),
        (ed.described, slice_id, " ", "nothing to change"),
        (ed.annotated, slice_id, " \n", "--note is empty"),
        (ed.described, slice_id, "\udcff", "--text is not UTF-8"),
        (ed.removed, "none", None, "unknown slice 'none'"),
    ):
        refuses(InputError, message, edit, document, target, *[text] * (text is not None))


@pytest.mark.parametrize(
    ("op", "before"),
    [("rename", 7), ("rename", None), ("remove_slice", [{}]), ("merge", 3), ("split", [1])],
)
def test_damaged_journal(document, op, before):
    wrong = ed._edit(op, document.slices[0].slice_id, before, None)
    with pytest.raises(InputError, match=f"edit 1, {op}, can't be undone: its entry"):
        ed.undone(document.model_copy(update={"edits": (wrong,)}))


def first(**changed):
    return lambda document: document["findings"][0].update(changed)


def model(**changed):
    return lambda document: document["finding_models"][0].update(changed)


def shared(**changed):
    return lambda document: document["finding_models"][0]["intersections"][0].update(changed)


@pytest.mark.parametrize(("change", "said"), [
    (first(slice_id="ab"), "findings[0] is about slice 'ab', which is not in the document"),
    (first(rank=3), "have the ranks 3, 2"),
    (first(rank=2), "have the ranks 2, 2"),
    (lambda document: document["findings"].reverse(), "have the ranks"),
    (lambda document: document["findings"].pop(0), "have the ranks 2"),
    (first(p_value=1.5), "not a valid ChangeList (findings.0.p_value: Input should be less than or equal to 1)"),
    (first(metric="auc"), "findings[0] is of auc, worse, which is not in finding_models"),
    (first(direction="better"), "findings[0] is of accuracy, better, which is"),
    (model(metric="auc"), "finding_models has 'auc', which is not a metric of the document"),
    (model(candidates=-1), "not a valid ChangeList (finding_models.0.candidates: Input should be greater"),
    (model(removed=[1]), "have the ranks 1, 2"),
    (shared(share=0), "intersections.0.share: Input should be greater than 0"),
    (lambda document: document["finding_models"].append(document["finding_models"][0]), "the finding model accuracy, worse occurs twice; keep one of the two"),
    (first(value="NaN"), "not a valid ChangeList (findings.0.value"),
    (first(value=float("nan")), "not readable as JSON"),
])  # fmt: skip
def test_findings_that_do_not_fit(change, said, original, tmp_path, capsys):
    content = json.loads(original.read_text())
    edited = copy.deepcopy(content)
    change(edited)
    path = tmp_path / "changelist.json"
    path.write_text(json.dumps(edited))
    caught = refusal(InputError, read_search, str(path), "--changelist")
    assert said in caught
    assert caught.startswith(f"--changelist {path}: ")
    assert "\n" not in caught
    name = content["slices"][0]["name"]
    assert run(["edit", "annotate", f"--changelist={path}", f"--slice={name}", "--note=x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    path.write_text(json.dumps(content))
    assert read_search(str(path), "--changelist").findings


def test_removing_a_slice_says_what_goes_with_it(original, tmp_path, capsys):
    content, path = json.loads(original.read_text()), tmp_path / "changelist.json"
    path.write_text(original.read_text())
    gone = content["findings"][0]["slice_id"]
    assert run(["edit", "remove", f"--changelist={path}", f"--slice={gone}"]) == 0
    said = capsys.readouterr().err
    assert "note: removing its slice also removed finding 1 of accuracy (worse);" in said
    revision = json.loads((tmp_path / "changelist.r1.json").read_text())
    ranks = [[one["rank"] for one in told["findings"]] for told in (content, revision)]
    assert ranks[1] == ranks[0][1:]
    assert revision["finding_models"][0]["removed"] == [1]
    assert run(["edit", "undo", f"--changelist={tmp_path}"]) == 0
    again = json.loads((tmp_path / "changelist.r2.json").read_text())
    assert again["findings"] == content["findings"]


@pytest.fixture
def copied(original, tmp_path):
    shutil.copy(original, tmp_path / "changelist.json")
    return str(tmp_path / "changelist.json")


def edit_of(uri, text):
    """Return an edit as it is published, of the document as it is now."""
    base = read_search(uri, "--changelist")
    return uri, base, annotated(base, base.slices[0].slice_id, text)


def noted(uri, text):
    return rev.publish_revision(*edit_of(uri, text))


def test_a_revision_tells_of_its_parent_and_leaves_it_as_it_was(copied, tmp_path):
    before = Path(copied).read_bytes()
    document, path = noted(copied, "one")
    assert path == tmp_path / "changelist.r1.json"
    assert Path(copied).read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["changelist.json", path.name]
    told = json.loads(path.read_text())
    assert told["revision"] == 1
    parent = {"changelist_id": json.loads(before)["changelist_id"], "revision": 0}
    fingerprint = f"sha256:{hashlib.sha256(before).hexdigest()}"
    assert told["parent"] == {**parent, "fingerprint": fingerprint}
    assert [edit["op"] for edit in told["edits"]] == ["annotate"]
    assert document == read_search(str(path), "--changelist")
    # The journal goes on.
    second, path = noted(str(path), "two")
    assert path.name == "changelist.r2.json"
    assert (second.parent.revision, len(second.edits)) == (1, 2)
    assert second.edits[:1] == document.edits
    assert second.slices[0].notes == ("one", "two")


def test_any_revision_may_be_the_base(copied, tmp_path):
    noted(copied, "one")
    noted(str(tmp_path / "changelist.r1.json"), "two")
    document, path = noted(str(tmp_path / "changelist.r1.json"), "another")
    assert (path.name, document.parent.revision) == ("changelist.r3.json", 1)
    assert document.slices[0].notes == ("one", "another")


def test_later_ones_have_larger_numbers_where_some_are_gone(copied, tmp_path):
    noted(copied, "one")
    _, path = noted(copied, "two")
    (tmp_path / "changelist.r1.json").unlink()
    assert noted(str(path), "three")[1].name == "changelist.r3.json"
    # A number is never given again to what is made of it.
    path = tmp_path / "changelist.r3.json"
    (tmp_path / "changelist.r2.json").unlink()
    path.rename(tmp_path / "copy.json")
    assert noted(str(tmp_path / "copy.json"), "four")[1].name == "changelist.r4.json"


def test_latest(copied, tmp_path):
    assert rev.latest(tmp_path) == Path(copied)
    for text in "abcdefghijkl":
        noted(rev.base_of(str(tmp_path)), text)
    # By number, not by name.
    assert rev.latest(tmp_path).name == "changelist.r12.json"
    assert rev.base_of(str(tmp_path)) == str(tmp_path / "changelist.r12.json")
    assert rev.base_of(copied) == copied
    document = read_search(copied, "--changelist")
    assert rev.later_revision(tmp_path, document) == tmp_path / "changelist.r12.json"
    last = read_search(rev.base_of(str(tmp_path)), "--changelist")
    assert rev.later_revision(tmp_path, last) is None
    assert [edit.after[-1] for edit in last.edits] == list("abcdefghijkl")
    (tmp_path / "empty").mkdir()
    said = "there is no changelist.json in this folder"
    refuses(InputError, said, rev.base_of, str(tmp_path / "empty"))


def test_revisions_of_another_document_are_passed_over(copied, tmp_path):
    noted(copied, "one")
    told = json.loads(Path(copied).read_text())
    told["changelist_id"] = "another"
    Path(copied).write_text(json.dumps(told))
    assert rev.latest(tmp_path) == Path(copied)
    assert rev.later_revision(tmp_path, read_search(copied, "--changelist")) is None
    # They keep their numbers.
    assert noted(copied, "two")[1].name == "changelist.r2.json"
    assert rev.latest(tmp_path).name == "changelist.r2.json"


def test_base_that_was_replaced_meanwhile_is_refused(copied, tmp_path):
    edit = edit_of(copied, "one")
    told = json.loads(Path(copied).read_text())
    Path(copied).write_text(json.dumps({**told, "title": "another run"}))
    replaced = "was replaced by another run in the meantime"
    refuses(EngineError, replaced, rev.publish_revision, *edit)
    assert [one.name for one in tmp_path.iterdir()] == ["changelist.json"]


def test_a_damaged_revision_is_an_error_and_not_passed_over(copied, tmp_path):
    noted(copied, "one")
    (tmp_path / "changelist.r1.json").write_text('{"changelist_id": ')
    assert "changelist.r1.json" in refusal(InputError, rev.latest, tmp_path)


def test_an_edit_of_the_last_revision_is_refused_where_there_is_a_later_one(copied, tmp_path):
    edit = edit_of(copied, "two")
    noted(copied, "one")
    said = r"changelist\.r1\.json was written in the meantime"
    refuses(rev.SupersededError, said, rev.publish_revision, *edit, is_last=True)
    assert rev.revisions(tmp_path) == [1]
    # Neither another document's revision nor what can't be read is an edit of this one.
    told = json.loads((tmp_path / "changelist.r1.json").read_text())
    (tmp_path / "changelist.r1.json").write_text(json.dumps({**told, "changelist_id": "another"}))
    (tmp_path / "changelist.r2.json").write_text("{")
    _, path = rev.publish_revision(*edit, is_last=True)
    assert path.name == "changelist.r3.json"


def test_a_revision_that_comes_after_the_look_is_not_passed_over(copied, tmp_path, monkeypatch):
    edit = edit_of(copied, "two")

    def looked(folder):
        monkeypatch.undo()
        before = rev.revisions(folder)
        noted(copied, "one")
        return before

    monkeypatch.setattr(rev, "revisions", looked)
    with pytest.raises(rev.SupersededError):
        rev.publish_revision(*edit, is_last=True)
    assert rev.revisions(tmp_path) == [1]


def test_a_name_that_a_writer_holds_is_waited_for(copied, tmp_path):
    edit, held = edit_of(copied, "one"), tmp_path / "changelist.r1.json"
    held.touch()
    with pytest.raises(rev.SupersededError):
        rev.publish_revision(*edit, is_last=True)
    os.utime(held, (0, 0))
    _, path = rev.publish_revision(*edit, is_last=True)
    assert path.name == "changelist.r2.json"


WRITERS, EACH = 4, 6


def write_some(uri, own, start):
    start.wait()
    for number in range(EACH):
        noted(uri, f"{own}-{number}")


def test_writers_at_the_same_time_get_numbers_of_their_own(copied, tmp_path):
    context = multiprocessing.get_context("fork")
    start = context.Barrier(WRITERS)
    writers = [context.Process(target=write_some, args=(copied, n, start)) for n in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    assert rev.revisions(tmp_path) == list(range(1, WRITERS * EACH + 1))
    texts = []
    for number in rev.revisions(tmp_path):
        document = read_search(str(tmp_path / f"changelist.r{number}.json"), "--changelist")
        assert document.revision == number
        texts += document.slices[0].notes
    # None was overwritten, and none was written twice.
    assert sorted(texts) == [f"{own}-{number}" for own in range(WRITERS) for number in range(EACH)]
    assert len(list(tmp_path.iterdir())) == WRITERS * EACH + 1


def test_number_that_is_taken_just_before_the_file_appears(copied, tmp_path, monkeypatch):
    settle = storage.settle

    def late(stream, temporary):
        settle(stream, temporary)
        if not (tmp_path / "changelist.r1.json").exists():
            (tmp_path / "changelist.r1.json").write_text("somebody else's")

    monkeypatch.setattr(storage, "settle", late)
    document, path = noted(copied, "one")
    assert (path.name, document.revision) == ("changelist.r2.json", 2)
    assert (tmp_path / "changelist.r1.json").read_text() == "somebody else's"


@pytest.mark.parametrize("dies_at", ["settle", "link"])
def test_crash_leaves_no_revision(copied, tmp_path, monkeypatch, dies_at):
    def die(*_):
        os._exit(9)

    process = os.fork()
    if not process:
        try:
            monkeypatch.setattr(
                *((storage, "settle") if dies_at == "settle" else (os, "link")), die
            )
            noted(copied, "lost")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9
    assert (len(list(tmp_path.iterdir())), rev.latest(tmp_path)) == (2, Path(copied))
    (left,) = (one for one in tmp_path.iterdir() if one.name.startswith("."))
    os.utime(left, (0, 0))
    # The next writer gets the number, and removes what the crash left.
    assert noted(copied, "one")[1].name == "changelist.r1.json"
    assert len(list(tmp_path.iterdir())) == 2


def test_crash_after_a_revision_has_its_name(copied, tmp_path, monkeypatch):
    process = os.fork()
    if not process:
        try:
            monkeypatch.setattr(storage, "sync_folder", lambda _: os._exit(9))
            noted(copied, "one")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9
    revision = rev.latest(tmp_path)
    assert (len(list(tmp_path.iterdir())), revision.name) == (3, "changelist.r1.json")
    assert noted(str(revision), "two")[1].name == "changelist.r2.json"
    names = {"changelist.json", "changelist.r1.json", "changelist.r2.json"}
    assert {one.name for one in tmp_path.iterdir()} == names


def test_file_system_without_links(copied, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError(1, "Operation not permitted")))
    # One that died between the two steps keeps a number without a revision.
    (tmp_path / "changelist.r1.json").touch()
    assert rev.latest(tmp_path) == Path(copied)
    document, path = noted(copied, "one")
    assert (path.name, document.slices[0].notes) == ("changelist.r2.json", ("one",))
    assert (tmp_path / "changelist.r1.json").stat().st_size == 0
    assert len(list(tmp_path.iterdir())) == 3


def test_full_disk_is_told(copied, tmp_path, monkeypatch):
    fault = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(storage.os, "fsync", fault)
    refuses(EngineError, "No space left on device; free some space", noted, copied, "one")
    assert [one.name for one in tmp_path.iterdir()] == ["changelist.json"]


@own_stores
def test_object_storage(bucket, original, monkeypatch):
    uri = f"{bucket.uri}/out/changelist.json"
    with storage.written_whole(storage_path(uri)) as stream:
        stream.write(original.read_bytes())
    document, path = noted(uri, "one")
    assert str(path) == f"{bucket.uri}/out/changelist.r1.json"
    assert rev.base_of(f"{bucket.uri}/out") == str(path)
    # Somebody else was quicker: the number was not yet listed when it was chosen.
    monkeypatch.setattr(rev, "revisions", lambda _: [])
    _, path = noted(uri, "two")
    monkeypatch.undo()
    assert str(path) == f"{bucket.uri}/out/changelist.r2.json"
    assert read_search(f"{bucket.uri}/out/changelist.r1.json", "--changelist") == document
    # A write whose answer got lost meets its own object, and that is success.
    content = document.to_json().encode()
    target = storage_path(f"{bucket.uri}/out/changelist.r9.json")
    assert storage.written_new(target, content)
    assert storage.written_new(target, content)
    assert not storage.written_new(target, content + b" ")
    assert target.read_bytes() == content
