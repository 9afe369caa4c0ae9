"""A slice that is not what its words say: labels make another one, which is judged on its own."""

import json

import numpy as np
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.attribution.labelers import RecordedLabels
from slicebeam.pipelines.attribution.session import Finished, LabelPaths, Plan, run_rounds, session
from slicebeam.pipelines.changelist.discovered import ClassifierDefinition
from tests.attribute_runs import TEXT, fill, opened, population, truthful
from tests.refusals import refuses

TRUTH = RecordedLabels("truth", ())


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
        assert opened_session.updated().definition == with_all.definition
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
        before = dict(old.store.known)
        drawn = old.state.rounds[0].precision
        updated = old.updated()
        document, old_state = old.document, old.state
    people.member = updated.member
    one = document.slices[1]
    place = LabelPaths.of(str(finished.document), None)
    with session(people, document, one, Plan(TEXT, looks=2), place, begins=True) as new:
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
        people.member = updated.member
        place = LabelPaths.of(str(finished.document), None)
        plan = Plan(TEXT, seed=run)
        with session(people, document, document.slices[1], plan, place, begins=True) as new:
            found = run_rounds(new, TRUTH, budget=120, rounds=1).assessed.attribution
        truths = shares(people, people.member)
        for at, interval in enumerate((found.precision, found.recall)):
            hits[run, at] = interval.lo <= truths[at] <= interval.hi
        values[run] = found.precision.value, truths[0]
    assert (hits.mean(axis=0) >= 0.92).all(), hits.mean(axis=0)
    errors = values[:, 0] - values[:, 1]
    assert abs(errors.mean()) < 4 * errors.std() / runs**0.5


def test_a_train_round_by_sheets(tmp_path):
    from slicebeam.pipelines.attribution.session import estimate

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
