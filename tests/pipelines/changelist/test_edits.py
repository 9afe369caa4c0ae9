"""Edits: what each does, and that undoing all of them gives the slices of the beginning."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.changelist import edits as ed
from slicebeam.pipelines.changelist.discovered import (
    AnyOfDefinition,
    Attribution,
    MembershipDefinition,
    NotDefinition,
)
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.finding_checks import check_findings
from slicebeam.pipelines.changelist.parts import Estimate
from tests.edited_documents import made, predicate, searched


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return searched(tmp_path_factory.mktemp("searched"))


@pytest.fixture(scope="module")
def document(path):
    document = SearchChangeList.model_validate_json(path.read_text())
    assert len(document.slices) == 3
    return document


def by_name(document):
    return [one.name for one in document.slices]


def journal(document, *edits):
    """The document of the last edit, with all in its journal, as it is read again."""
    told = (*document.edits, *(one.edit for one in edits))
    after = edits[-1].document.model_copy(update={"edits": told})
    return SearchChangeList.model_validate_json(after.to_json())


def test_rename_describe_annotate(document):
    slice_id = document.slices[1].slice_id
    before = copy.deepcopy(document)
    renamed = ed.renamed(document, slice_id, "Young")
    assert by_name(renamed.document) == ["topic = food", "Young", "age in [24, 31)"]
    assert (renamed.edit.op, renamed.edit.target) == ("rename", slice_id)
    assert (renamed.edit.before, renamed.edit.after) == ("age < 24", "Young")
    described = ed.described(renamed.document, slice_id, " below 24\nyears ")
    assert described.document.slices[1].description == "below 24\nyears"
    again = ed.described(described.document, slice_id, "")
    assert again.document.slices[1].description is None
    noted = ed.annotated(again.document, slice_id, "look here")
    noted = ed.annotated(noted.document, slice_id, "and here")
    assert noted.document.slices[1].notes == ("look here", "and here")
    assert noted.edit.before == ["look here"]
    # All else is as it was, in the document that was given too.
    told = {"name": "age < 24", "notes": ()}
    slices = list(noted.document.slices)
    slices[1] = slices[1].model_copy(update=told)
    assert tuple(slices) == before.slices
    assert document == before


def test_a_definition_is_added_once(document):
    women = predicate("sex", "==", "Female")
    added = ed.added(document, made(document, "new", women), "by hand")
    assert (added.edit.op, added.edit.before, added.edit.note) == ("add_slice", None, "by hand")
    with pytest.raises(InputError, match="'new', has the same definition"):
        ed.added(added.document, made(document, "other", women))


def test_findings_go_with_their_slice_and_come_back(document):
    ranks = {one.slice_id: one.rank for one in document.findings}
    assert sorted(ranks.values()) == list(range(1, len(ranks) + 1))
    assert len(ranks) > 1
    first = document.findings[0].slice_id
    others = [one.slice_id for one in document.slices if one.slice_id != first]
    merged = ed.merged(document, others, made(document, "rest", predicate("sex", "==", "Female")))
    assert [one.slice_id for one in merged.document.findings] == [first]
    now = journal(document, ed.removed(document, first))
    # What was expected of the others rests on it, so that their ranks stay.
    del ranks[first]
    assert {one.slice_id: one.rank for one in now.findings} == ranks
    assert now.finding_models[0].removed == (1,)
    check_findings("it", now, with_slices=True)
    assert now.edits[-1].before[0]["findings"][0]["finding"]["rank"] == 1
    second = now.findings[0].slice_id
    both = journal(now, ed.removed(now, second))
    assert both.finding_models[0].removed == (1, 2)
    for _ in range(2):
        both = journal(both, ed.undone(both))
    assert (both.findings, both.finding_models) == (document.findings, document.finding_models)


def test_attribution_is_undone_too(document):
    some = Estimate(value=0.5, lo=0.25, hi=0.75, confidence=0.95)
    measured = {"precision": some, "recall": some, "missed": Estimate(value=0.0)}
    bars = {"least_precision": 0.8, "least_recall": 0.5, "looks": 2}
    told = Attribution(
        text="about food", state="estimated", labels_uri="labels", **measured, **bars
    )
    slice_id = document.slices[0].slice_id
    one = ed.attributed(document, slice_id, told)
    assert one.document.slices[0].attribution == told
    other = told.model_copy(update={"state": "accepted"})
    two = ed.attributed(one.document, slice_id, other)
    now = journal(document, one, two)
    assert now.slices[0].attribution == other
    now = journal(now, ed.undone(now))
    assert now.slices[0].attribution == told
    now = journal(now, ed.undone(now))
    assert now.slices == document.slices


def test_added_slice_that_the_journal_tells_whole_is_undone_too(document):
    # As an attribution writes it.
    new = made(document, "new", predicate("age", "<", 50))
    edit = ed._edit("add_slice", new.slice_id, None, new.model_dump(mode="json"), "a note")
    told = {"slices": (*document.slices, new), "edits": (edit,)}
    now = SearchChangeList.model_validate_json(document.model_copy(update=told).to_json())
    assert ed.undone(now).document.slices == document.slices


class Steps:
    """Draws edits that are possible."""

    def __init__(self, document, draw):
        self.first = self.document = document
        self.draw, self.made = draw, 0

    def one(self):
        return self.draw(st.sampled_from(self.document.slices))

    def new(self, definition):
        self.made += 1
        # None is defined like another one.
        extra = MembershipDefinition(ids=(self.made,))
        return made(self.first, f"s{self.made}", AnyOfDefinition(of=(definition, extra)))

    def take(self):
        document, slices = self.document, self.document.slices
        possible = ["add"]
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
            parts = [self.new(old.definition), self.new(NotDefinition(of=old.definition))]
            edited = ed.split(document, old.slice_id, parts)
        elif op == "merge":
            pool = st.lists(st.sampled_from(slices), min_size=2, max_size=4, unique_by=id)
            some = self.draw(pool)
            of = tuple(one.definition for one in some)
            gone = [one.slice_id for one in some]
            edited = ed.merged(document, gone, self.new(AnyOfDefinition(of=of)))
        else:
            edited = ed.undone(document)
        self.document = journal(document, edited)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_undoing_all_gives_the_slices_of_the_beginning(path, data):
    start = SearchChangeList.model_validate_json(path.read_text())
    steps = Steps(start, data.draw)
    states = [start.slices]
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
        now = journal(now, ed.undone(now))
        assert now.slices == states[-1]
    assert now.slices == start.slices
    assert now.model_copy(update={"edits": ()}) == start


def test_find_slice(document):
    first, second, _ = document.slices
    assert ed.find_slice(document, first.slice_id) is first
    assert ed.find_slice(document, "age < 24") is second
    assert ed.find_slice(document, second.slice_id[:5]) is second
    # A name goes before the beginning of an id.
    called = ed.renamed(document, first.slice_id, second.slice_id[:3]).document
    assert ed.find_slice(called, second.slice_id[:3]).slice_id == first.slice_id
    none = document.model_copy(update={"slices": ()})
    for within, name, message in (
        (document, "age < 42", "unknown slice 'age < 42'; did you mean 'age < 24'"),
        (document, "", "unknown slice ''"),
        (document, "d", r"--slice 'd' may be .*; give the full id"),
        (none, "a", "the document has no slices"),
    ):
        with pytest.raises(InputError, match=message):
            ed.find_slice(within, name)


@pytest.mark.parametrize("name", ["", "  ", " a", "a\nb", "a\x1b[2J", "\udcff", "age < 24"])
def test_no_names(document, name):
    with pytest.raises(InputError, match="--name"):
        ed.renamed(document, document.slices[0].slice_id, name)


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
        with pytest.raises(InputError, match=message):
            edit(document, target, *[text] * (text is not None))


@pytest.mark.parametrize(
    ("op", "before"),
    [("rename", 7), ("rename", None), ("remove_slice", [{}]), ("merge", 3), ("split", [1])],
)
def test_damaged_journal(document, op, before):
    wrong = ed._edit(op, document.slices[0].slice_id, before, None)
    with pytest.raises(InputError, match=f"edit 1, {op}, can't be undone: its entry"):
        ed.undone(document.model_copy(update={"edits": (wrong,)}))
