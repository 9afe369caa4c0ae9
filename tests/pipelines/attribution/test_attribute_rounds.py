"""Labels in rounds, of a slice and of what they make of it: what is estimated holds, and a stop loses nothing."""

import itertools
import json
import shutil

import numpy as np
import pyarrow as pa
import pytest

from slicebeam.metrics.attribution.estimates import UNSURE, alignment
from slicebeam.metrics.attribution.estimates import Draws as MetricDraws
from slicebeam.metrics.errors import EngineError, InputError, OptionError
from slicebeam.pipelines.attribution import labels as labels_module
from slicebeam.pipelines.attribution import session as session_module
from slicebeam.pipelines.attribution import sheets, state
from slicebeam.pipelines.attribution.labelers import RecordedLabels
from slicebeam.pipelines.attribution.session import Finished, Stopped, estimate, run_rounds
from slicebeam.pipelines.attribution.sheets import sheet_of
from slicebeam.pipelines.config.common import validated
from slicebeam.pipelines.config.document import RoundsConfig
from slicebeam.transforms.encode.definitions import ClassifierDefinition
from tests.attribute_runs import (
    TEXT,
    asked_in,
    attribution_in,
    fill,
    labels_file,
    labels_folder,
    opened,
    population,
    truthful,
)
from tests.refusals import refuses
from tests.running import Killed

TRUTH = RecordedLabels("truth", ())


class Counting:
    """A labeler who tells the truth and remembers what was asked; it may stop, or fail."""

    def __init__(self, after=None, error=None):
        self.asked = []
        self.after, self.error = after, error

    def label(self, items, people, store):
        some = list(items)[: self.after]
        self.asked += some
        TRUTH.label(some, people, store)
        if self.error is not None:
            raise self.error


def refused(error, match, folder, people, **plan):
    with pytest.raises(error, match=match), opened(folder, people, **plan):
        pass


def test_the_estimates_are_those_of_the_metrics_for_what_was_drawn(tmp_path):
    people = population()
    with opened(tmp_path, people) as session:
        found = run_rounds(session, TRUTH, budget=240, rounds=2).assessed.attribution
        rounds, state = session.state.rounds, session.state
    assert len(rounds) == 2
    # A round goes on with the order of the slice, and draws anew outside it.
    first, second = (set(one.precision) for one in rounds)
    assert not first & second
    assert rounds[0].recall[:20] != rounds[1].recall[:20]
    # By hand: weights of the record, truths of the population.
    inside = np.array([people.truth_of(item) for one in rounds for item in one.precision], np.int8)
    items = [item for one in rounds for item in one.recall]
    outside = np.flatnonzero(~people.member)
    place = {people.ids[int(at)].as_py(): rank for rank, at in enumerate(outside)}
    draws = MetricDraws(
        np.array([place[item] for item in items]),
        np.array([weight for one in rounds for weight in one.weights]),
        np.array([people.truth_of(item) for item in items], np.int8),
        min(one.least_weight for one in rounds),
    )
    expected = alignment(inside, 300, draws, 3700)
    assert found.precision.value == expected.precision.estimate
    assert (found.recall.lo, found.recall.hi) == (expected.recall.low, expected.recall.high)
    assert (found.missed.lo, found.missed.hi) == (expected.missed.low, expected.missed.high)
    # Of a proposal by the similarity, w is q·N_C.
    similarity = people.similarity([TEXT])[0][outside].astype(float)
    scaled = ((similarity - similarity.min()) / np.ptp(similarity)) ** 4.0
    np.testing.assert_allclose(draws.weight, (0.2 + 0.8 * scaled / scaled.mean())[draws.item])
    assert state.looks == 1


def test_looks_are_counted_and_more_than_planned_are_said(tmp_path):
    people = population(recall=0.7)
    with opened(tmp_path, people, looks=2) as session:
        for look in range(1, 4):
            session.draw(40)
            TRUTH.label(session.open_items, people, session.store)
            found, evidence = session.look(), session.evidence
            expected = alignment(evidence.inside, 300, evidence.outside, 3700, looks=2)
            assert found.attribution.precision.lo == expected.precision.low
            assert found.attribution.recall.hi == expected.recall.high
            # To look again at the same labels is no further look.
            assert (session.look(), len(session.state.looked)) == (found, look)
            assert found.attribution.precision.confidence == pytest.approx(0.975)
            said = any("look 3" in note and "2 were planned" in note for note in found.notes)
            assert said == (look == 3)
    assert "only 92%" in found.notes[0]


def test_the_plan_of_the_first_round_is_kept(tmp_path):
    people = population()
    with opened(tmp_path, people, looks=3, least_recall=0.6) as session:
        session.sample(40)
    with opened(tmp_path, people) as session:
        assert (session.state.looks, session.state.least_recall) == (3, 0.6)
    said = "--looks 2, but the first round was drawn with 3"
    refused(InputError, said, tmp_path, people, looks=2)
    refused(InputError, "--seed 5", tmp_path, people, seed=5)
    refused(InputError, "--least-recall 0.5", tmp_path, people, least_recall=0.5)


def test_other_examples_than_those_drawn_from_are_refused(tmp_path):
    with opened(tmp_path, population()) as session:
        session.sample(40)
    other = population()
    other.member = np.roll(other.member, 1)
    refused(InputError, "the data has changed since items were drawn", tmp_path, other)
    other.member[:] = False
    refused(InputError, "has no example in this data", tmp_path, other)
    # The order of the examples is none of it.
    turned = population()
    for name in ("member", "truth", "hashes", "z", "raw"):
        setattr(turned, name, getattr(turned, name)[::-1])
    turned.ids = turned.ids.take(pa.array(np.arange(4000)[::-1].copy()))
    with opened(tmp_path, turned) as session:
        fill(session.sample(40).sheet, truthful(turned))
        assert estimate(session).assessed.attribution.precision.value > 0.5


def test_nothing_is_asked_twice(tmp_path):
    people = population(size=40, outside=200, precision=0.7, recall=0.5)
    labeler = Counting()
    with opened(tmp_path, people, looks=9, least_precision=0.7, least_recall=0.45) as session:
        run_rounds(session, labeler, budget=180, rounds=6)
        drawn = [item for one in session.state.rounds for item in one.recall]
    assert len(set(labeler.asked)) == len(labeler.asked) <= 180
    # Draws with replacement hit some items again, and their labels count for each draw.
    assert len(set(drawn)) < len(drawn)
    told = attribution_in(tmp_path / "changelist.r1.json")
    assert sum(one["labelled"] for one in told["rounds"] if one["phase"] == "precision") == 40
    # The same words of another slice: only what is not known is asked.
    other = population(size=40, outside=200, precision=0.7, recall=0.5)
    other.member = ~other.member
    one = session.slice.model_copy(update={"slice_id": "0ther"})
    again = Counting()
    same = (other, session.document, one, session.plan, session.place)
    with session_module.session(*same, begins=True) as second:
        second.draw(100)
        again.label(second.open_items, other, second.store)
        found = second.evidence.digest
    assert not set(again.asked) & set(labeler.asked)
    # The labels are of the words, whatever becomes of the other folder.
    shutil.rmtree(session.folder)
    with session_module.session(*same) as second:
        assert second.evidence.digest == found
        assert not second.evidence.open


def test_a_label_that_was_taken_away_is_asked_again(tmp_path):
    people = population()
    with opened(tmp_path, people) as session:
        run_rounds(session, TRUTH, budget=60, rounds=1)
        session.draw(30)
        TRUTH.label(session.open_items, people, session.store)
        first = session.state.rounds[0].asked[3]
    path = labels_file(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(one for one in lines if json.loads(one)["item"] != first))
    with opened(tmp_path, people) as session:
        sampled = session.sample(30)
        assert (sampled.drawn.number, sampled.left, sampled.is_new) == (1, 1, False)
        assert str(first) in asked_in(sampled.sheet)


def test_a_census_is_exact(tmp_path):
    people = population(size=20, outside=60, precision=0.5, recall=0.5)
    with opened(tmp_path, people) as session:
        found = run_rounds(session, TRUTH, budget=500, rounds=1)
        told = found.assessed.attribution
        assert told.recall.lo == told.recall.hi == pytest.approx(people.recall)
        assert told.precision.lo == told.precision.hi == people.precision
        refuses(InputError, "every example has been drawn", session.sample, 10)
    assert found.assessed.decision == "update"


def test_a_slice_of_all_examples_has_recall_1(tmp_path):
    with opened(tmp_path, population(size=100, outside=0, precision=0.9, recall=1.0)) as session:
        found = run_rounds(session, TRUTH, budget=100, rounds=1).assessed
    assert (found.attribution.recall.lo, found.attribution.missed.hi) == (1.0, 0.0)
    assert (found.decision, found.attribution.state) == ("accept", "accepted")


def test_a_stopped_run_goes_on(tmp_path):
    people, labeler = population(), Counting(after=30)
    with opened(tmp_path, people) as session:
        assert isinstance(run_rounds(session, labeler, budget=100, rounds=1), Stopped)
        assert not session.state.looked
    labeler.after, labeler.error = 20, EngineError("the API is down")
    with pytest.raises(EngineError), opened(tmp_path, people) as session:
        run_rounds(session, labeler, budget=100, rounds=1)
    labeler.after = labeler.error = None
    with opened(tmp_path, people) as session:
        stopped_asked = len(labeler.asked)
        finished = run_rounds(session, labeler, budget=100, rounds=1)
    assert stopped_asked == 50
    assert len(labeler.asked) == len(set(labeler.asked)) <= 100
    with opened(tmp_path / "straight", people) as session:
        straight = run_rounds(session, TRUTH, budget=100, rounds=1)
    assert isinstance(finished, Finished)
    attribution = finished.assessed.attribution
    there = {"labels_uri": attribution.labels_uri}
    assert attribution == straight.assessed.attribution.model_copy(update=there)
    # Once more: all is known, and nothing new is published.
    with opened(tmp_path, people) as session:
        session.slice = session.slice.model_copy(update={"attribution": attribution})
        assert run_rounds(session, labeler, budget=100, rounds=1).document is None
        assert len(session.state.looked) == 1


def test_a_crash_between_any_two_writes_loses_nothing(tmp_path, monkeypatch):
    people = population()
    with opened(tmp_path / "whole", people) as session:
        whole = run_rounds(session, TRUTH, budget=120, rounds=2).assessed.attribution
    writes = itertools.count()

    def dying_at(number, real):
        def write(*given):
            if next(writes) == number:
                raise Killed
            return real(*given)

        return write

    for number in range(12):
        writes, folder = itertools.count(), tmp_path / str(number)
        with monkeypatch.context() as patched:
            for module in (labels_module, sheets, state):
                patched.setattr(module, "written_whole", dying_at(number, module.written_whole))
            try:
                with opened(folder, people) as session:
                    run_rounds(session, Counting(after=50), budget=120, rounds=2)
                    run_rounds(session, Counting(), budget=120, rounds=2)
            except Killed:
                pass
        with opened(folder, people) as session:
            found = run_rounds(session, Counting(), budget=120, rounds=2).assessed.attribution
            assert len(session.state.looked) <= 2
        assert (found.precision, found.recall) == (whole.precision, whole.recall)


def test_two_processes_don_t_mix_their_labels(tmp_path):
    people = population()
    with opened(tmp_path, people):
        refused(EngineError, "--labels-dir", tmp_path, people)
        # Other words of the same slice are another file.
        with opened(tmp_path, people, text="it is about music"):
            pass


def test_only_the_draws_before_a_missing_label_count(tmp_path):
    people = population()
    with opened(tmp_path, people) as session:
        drawn = session.sample(80).drawn
        first = drawn.asked[:30]
        TRUTH.label((*first, *drawn.asked[-5:]), people, session.store)
        found = session.evidence
        assert found.waiting == 5
        counted = {*first} & {*drawn.precision}
        assert found.inside.size == len(counted)
        told = session.look()
        assert told.attribution.state == "labelling"
        assert any("don't count yet" in note for note in told.notes)
    # In the sheet both phases come in turn, so that both get labelled.
    assert 5 < len(counted) < 25


def test_a_damaged_record_is_told(tmp_path):
    people = population()
    with opened(tmp_path, people) as session:
        session.sample(40)
        TRUTH.label(session.open_items[:3], people, session.store)
    folder, path = labels_folder(tmp_path), labels_file(tmp_path)
    path.write_text(path.read_text().splitlines(keepends=True)[0] + '{"item": 1\n')
    refused(EngineError, r"labels\.jsonl, line 2 is damaged", tmp_path, people)
    path.write_text("")
    (folder / "state.json").write_text("{}")
    refused(EngineError, r"state\.json is damaged", tmp_path, people)


def test_labels_are_kept_as_lines_of_json(tmp_path):
    with opened(tmp_path, population(textual=True)) as session:
        session.draw(20)
        items = session.open_items
        session.store.add({items[0]: UNSURE}, "me")
        assert session.store.add({items[0]: UNSURE}, "you") == 0
        assert session.store.add({items[0]: 1}, "you") == 1
    # Of an item the last line counts.
    first, last = labels_file(tmp_path).read_text().splitlines()
    assert json.loads(first)["label"] == "unsure"
    told = json.loads(last)
    assert told.pop("at")
    assert told == {"item": items[0], "text": TEXT, "label": "yes", "labeler": "you"}


def test_the_beginning_of_a_line_that_a_crash_left_is_no_label(tmp_path):
    people = population()
    with opened(tmp_path, people) as session:
        session.draw(20)
        items = session.open_items
        session.store.add({items[0]: UNSURE}, "me")
    path = labels_file(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:30])
    with opened(tmp_path, people) as session:
        assert set(session.store.known) == {items[0]}
        session.store.add({items[1]: 1}, "me")
    assert [json.loads(line)["item"] for line in path.read_text().splitlines()] == [*items[:2]]
    # A label that is taken back is one more line, of none or of the one before.
    with opened(tmp_path, people) as session:
        before = session.store.known[items[0]]
        session.store.add({items[0]: 0}, "you")
        session.store.take_back(items[1], None)
        session.store.take_back(items[0], before)
    with opened(tmp_path, people) as session:
        assert session.store.known == {items[0]: before}
    labels = [json.loads(line)["label"] for line in path.read_text().splitlines()]
    assert labels == ["unsure", "yes", "no", None, "unsure"]


def test_the_revision_tells_the_attribution_and_the_edit(tmp_path):
    with opened(tmp_path, population(precision=0.5)) as session:
        finished = run_rounds(session, TRUTH, budget=200, rounds=1)
    assert finished.document == tmp_path / "changelist.r1.json"
    told = json.loads(finished.document.read_text())
    attribution = told["slices"][0]["attribution"]
    assert (attribution["state"], attribution["queries"]) == ("rejected", [TEXT])
    assert attribution["labels_uri"].startswith("attribution/words-")
    phases = [(one["phase"], one["round"], one["labeler"]) for one in attribution["rounds"]]
    assert phases == [("precision", 1, "column truth"), ("recall", 1, "column truth")]
    [edit] = told["edits"]
    assert (edit["op"], edit["target"]) == ("attribute", "3f2a9c01")
    assert edit["after"] == attribution
    assert "before" not in edit


def test_nothing_to_estimate_is_told(tmp_path):
    people = population()
    refused(InputError, "start with 'slicebeam attribute sample'", tmp_path, people, begins=False)
    with opened(tmp_path, people) as session:
        session.sample(20)
        refuses(InputError, r"there are no labels yet.*round-001\.csv", estimate, session)
        assert sheet_of(session.folder, 1).is_file()


@pytest.mark.parametrize(("option", "value"), [
    ("looks", 0),
    ("least_precision", 1.5),
    ("least_recall", -0.1),
    ("exponent", -1.0),
    ("exponent", float("inf")),
    ("uniform_share", 0.0),
    ("budget", 0),
    ("rounds", 0),
    ("train", -1),
])  # fmt: skip
def test_wrong_numbers(option, value, tmp_path):
    options = {"changelist": str(tmp_path), "slice": "a", "text": TEXT, "budget": 5}
    assert validated(RoundsConfig, options).looks is None
    said = f"--{option.replace('_', '-')} {value}: it must be"
    refuses(OptionError, said, validated, RoundsConfig, {**options, option: value})


def test_an_empty_text(tmp_path):
    refused(OptionError, "--text is empty", tmp_path, population(), text=" ")


def poor(seed=0):
    """A slice of which half is true, and that misses half."""
    return population(precision=0.5, recall=0.5, strength=4.0, seed=seed)


def shares(people, member):
    return people.truth[member].mean(), member[people.truth].mean()


def test_an_update_finds_a_better_slice(tmp_path):
    people = poor()
    with opened(tmp_path, people) as opened_session:
        finished = run_rounds(opened_session, TRUTH, budget=150, rounds=1, train=100)
        labelled = set(opened_session.store.known)
        [training] = [one for one in opened_session.state.rounds if one.train]
        rounds = opened_session.state.rounds
        estimated = {item for one in rounds for item in one.precision + one.recall}
        with_all = opened_session.updated()
        # Labels of estimates train nothing.
        opened_session.store.add(dict.fromkeys(estimated, 0), "nobody")
        assert opened_session.updated() == with_all
    assert isinstance(finished, Finished)
    assert finished.assessed.decision == "update"
    assert not set(training.train) & estimated
    assert len(training.train) == 100
    assert labelled == estimated | set(training.train)
    told = json.loads(finished.document.read_text())
    assert [edit["op"] for edit in told["edits"]] == ["attribute", "add_slice"]
    new = told["slices"][1]
    definition = ClassifierDefinition.model_validate(new["definition"])
    assert new["slice_id"] == finished.proposed.slice_id == told["edits"][1]["target"]
    # The definition alone, on raw embeddings, tells who is in it.
    logit = people.raw.astype(float) @ np.array(definition.coefficients) + definition.intercept
    member = logit >= 0
    assert new["size"]["n"] == member.sum()
    assert min(shares(people, member)) > 0.75 > max(shares(people, people.member))
    phases = {one["phase"]: one["labelled"] for one in told["slices"][0]["attribution"]["rounds"]}
    assert phases["train"] == 100


def test_the_new_slice_is_drawn_anew_and_known_labels_are_used(tmp_path):
    people = poor()
    with opened(tmp_path, people) as old:
        finished = run_rounds(old, TRUTH, budget=150, rounds=1, train=100)
        before, drawn = dict(old.store.known), old.state.rounds[0].precision
        updated = old.updated()
        document, old_state = old.document, old.state
    people.member = people.classified(updated)
    one = document.slices[1]
    place = session_module.LabelPaths.of(str(finished.document), None)
    plan = state.Plan(TEXT, looks=2)
    with session_module.session(people, document, one, plan, place, begins=True) as new:
        first = new.draw(100)
        # The old sample is none of the new slice: the order is another one.
        both = [item for item in drawn if people.member[people.ids.index(item).as_py()]]
        assert len(both) > 10
        assert len(set(both) & set(first.precision)) < len(both)
        assert first.precision[: len(both)] != tuple(both)
        assert new.state.sampling_seed != old_state.sampling_seed
        assert not set(first.asked) & set(before)
        assert set(first.items) & set(before)
        assert new.evidence.open == tuple(dict.fromkeys(x for x in first.items if x not in before))
        TRUTH.label(new.open_items, people, new.store)
        found = new.look().attribution
    assert found.precision.lo <= shares(people, people.member)[0] <= found.precision.hi


@pytest.mark.slow
def test_the_intervals_of_the_new_slice_cover_too(tmp_path):
    runs, hits, values = 150, np.zeros((150, 2), bool), np.zeros((150, 2))
    for run in range(runs):
        people = poor()
        with opened(tmp_path / str(run), people, seed=run) as old:
            finished = run_rounds(old, TRUTH, budget=120, rounds=1, train=60)
            updated, document = old.updated(), old.document
        people.member = people.classified(updated)
        place = session_module.LabelPaths.of(str(finished.document), None)
        about = (document, document.slices[1], state.Plan(TEXT, seed=run))
        with session_module.session(people, *about, place, begins=True) as new:
            found = run_rounds(new, TRUTH, budget=120, rounds=1).assessed.attribution
        truths = shares(people, people.member)
        for at, interval in enumerate((found.precision, found.recall)):
            hits[run, at] = interval.lo <= truths[at] <= interval.hi
        values[run] = found.precision.value, truths[0]
    assert (hits.mean(axis=0) >= 0.92).all(), hits.mean(axis=0)
    errors = values[:, 0] - values[:, 1]
    assert abs(errors.mean()) < 4 * errors.std() / runs**0.5


def test_a_train_round_by_sheets(tmp_path):
    people = poor()
    with opened(tmp_path, people) as one:
        fill(one.sample(120).sheet, truthful(people))
        assert estimate(one).proposed is None
        training = one.sample(60, is_train=True)
        assert set(training.drawn.train) == set(training.drawn.asked)
        half = list(training.drawn.asked)[:30]
        fill(training.sheet, lambda item: truthful(people)(item) if int(item) in half else "")
        # Not before all of them are labelled.
        assert estimate(one).proposed is None
        fill(training.sheet, truthful(people))
        assert estimate(one).proposed is not None
        # Labels to train by are no look at those to estimate by.
        assert len(one.state.looked) == 1
        # Once is enough.
        assert estimate(one).document is None


def test_labels_that_make_no_slice_are_told(tmp_path):
    people = poor()
    with opened(tmp_path, people) as one:
        one.draw(40, is_train=True)
        assert one.updated() is None
        one.store.add(dict.fromkeys(one.open_items, -1), "me")
        refuses(InputError, "there is no yes or no label to train on", one.updated)
        one.store.add(dict.fromkeys(one.state.rounds[0].asked, 0), "me")
        people.scores = lambda *_: np.zeros(people.truth.size)
        refuses(InputError, "none of the 4,000 examples would be in the slice", one.updated)


def test_there_may_be_nothing_left_to_train_by(tmp_path):
    with opened(tmp_path, population(size=5, outside=5, precision=1.0, recall=1.0)) as one:
        run_rounds(one, TRUTH, budget=10, rounds=1)
        refuses(InputError, "already has a label", one.draw, 4, is_train=True)
