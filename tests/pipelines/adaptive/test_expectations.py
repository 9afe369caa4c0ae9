"""Failure scores of all expectations, against sums by hand and their own promise."""

import io
import os
import pickle
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicebeam.metrics.adaptive.failure_scores import (
    change_failure,
    fails,
    output_failure,
    state_by_rule,
)
from slicebeam.metrics.errors import FileError, InputError, OptionError
from slicebeam.pipelines.adaptive.expectations import (
    EXPECTATIONS,
    as_value,
    inputs_of,
    parse_expectation,
)
from slicebeam.pipelines.adaptive.inert_pickle import Inert, read_inert
from slicebeam.pipelines.adaptive.outputs import as_outputs
from slicebeam.pipelines.adaptive.scoring import Models, scorable_tests, score_block
from slicebeam.pipelines.adaptive.text_models import TextModel, _FunctionModel
from slicebeam.pipelines.adaptive.tree import Test, TestTree


@given(st.lists(st.floats(0, 1), min_size=2, max_size=5), st.data())
def test_an_output_fails_just_where_another_class_is_more_probable(row, data):
    wanted = data.draw(st.integers(-1, len(row) - 1))
    (score,) = output_failure(np.array([row]), np.array([wanted]))
    assert 0 <= score <= 1
    if wanted < 0:
        assert score == 1
        return
    best = max(value for place, value in enumerate(row) if place != wanted)
    assert fails(score) == ((1 + best - row[wanted]) / 2 > 0.5)
    if len(row) == 2 and abs(sum(row) - 1) < 1e-9:
        assert score == pytest.approx(1 - row[wanted])


@given(st.lists(st.floats(-5, 5), min_size=1), st.sampled_from([0.0, 0.1, 2.0]))
def test_a_change_fails_just_beyond_the_tolerance(changes, tolerance):
    score = change_failure(changes, tolerance)
    assert ((score >= 0) & (score <= 1)).all()
    beyond = np.maximum(changes, 0) - tolerance
    # Of a change that differs by a rounding error from the tolerance either is right.
    clear = np.abs(beyond) > 1e-12
    assert (fails(score) == (beyond > 0))[clear].all()
    order = np.argsort(changes, kind="stable")
    assert (np.diff(score[order]) >= -1e-15).all()


def test_a_change_without_a_number_has_no_score():
    assert np.isnan(change_failure([np.nan, 0.3], 0.1)).tolist() == [True, False]
    assert change_failure(np.inf, 0.1) == 1


def test_topics_by_the_rule_of_the_paper():
    # A fifth of five and of 45 tests is a whole number: with it a topic fails.
    states = ["failing", "passing", "failing", "passing", "failing"]
    assert state_by_rule([1, 8, 9, 0, 2], [5, 45, 45, 0, 3]) == states
    assert state_by_rule([1, 0], [5, 5], [0, 1]) == ["broken", "fixed"]


CLASSES = ("neg", "neu", "pos")
PROBABILITIES = {"good": (0.1, 0.2, 0.7), "goood": (0.1, 0.25, 0.65), "bad": (0.8, 0.1, 0.1)}
PROBABILITIES |= {"ok": (0.2, 0.5, 0.3), "okay": (0.36, 0.34, 0.3)}


class _Fake(TextModel):
    """A model by a table or a function of texts."""

    def outputs(self, texts):
        return as_outputs(_FAKES[self.name](texts), len(texts), self.name, CLASSES)


_FAKES = {
    "probabilities": lambda texts: np.array([PROBABILITIES[one] for one in texts]),
    "classes": lambda texts: [CLASSES[int(np.argmax(PROBABILITIES[one]))] for one in texts],
    "numbers": lambda texts: [float(PROBABILITIES[one][2]) for one in texts],
    "echo": lambda texts: [f"{one}, she said" for one in texts],
    "inverse": lambda texts: [one.removesuffix(", she said").upper() for one in texts],
    "toxic": lambda texts: np.array([(0.0, 0.4, 0.6) if "bad" in one else (0.9, 0, 0.1) for one in texts]),
    "pairs": lambda texts: [str(one[0] == one[1]) for one in texts],
}  # fmt: skip


def scores(model, *tests, pairs=False):
    table = scorable_tests(TestTree.of_tests(tests)).table
    new, inverse, classifier = (_Fake(name, "function") for name in (model, "inverse", "toxic"))
    models = Models(new, None, inverse, classifier)
    scored = score_block(table, models.new, models, has_pairs=pairs)
    return [pytest.approx(one, nan_ok=True) for one in scored.failures.tolist()]


def test_every_expectation_has_the_score_that_its_words_say():
    def expects(kind, value="", input_="good"):
        return Test("/A", input_, expectation=kind, value=value)

    drops, rises = "should not score higher than", "should not score lower than"
    same, nan = "should have the same output as", float("nan")
    cases = {
        "probabilities": [
            (Test("/A", "good", "pos", "pass"), 0.25),
            (Test("/A", "good", "pos", "fail"), 0.75),
            (Test("/A", "okay", "neu", "pass"), 0.51),
            (Test("/A", "good", "unheard of", "pass"), 1.0),
            (expects("should output", "neg"), 0.8),
            (expects("should not output", "neg"), 0.2),
            (expects(same, "goood"), 0.3),
            (expects(same, '["goood", "okay"]'), 0.53),
            # The class changed, and its probability fell by 0.16.
            (expects(f"{same} (tolerance=0.2)", "okay", "ok"), 0.5),
            (expects(f"{same} (tolerance=0.1)", "okay", "ok"), 0.51),
            (expects(drops, "goood"), 0.5 + 0.5 * 0.05 / 1.05),
            (expects(f"{drops} (tolerance=0.1)", "goood"), 0.25),
            (expects(f"{drops} (class=neg)", '["bad", "good"]'), 0.0),
            (expects(f"{rises} (class=pos - neg, tolerance=0.1)", "good", "bad"), 0.5 + 0.5 * 1.2 / 2.2),
            (expects(f"{rises} (unless=neu)", "good", "ok"), nan),
            (expects(f"{rises} (class=unheard of)", "good", "ok"), nan),
        ],
        "classes": [
            (expects(same, "goood"), 0),
            (expects(same, "okay", "ok"), 1),
            (expects("should output", "pos"), 0),
            # Classes alone have no score that could fall.
            (expects(drops, "bad"), nan),
        ],
        "numbers": [
            (expects(rises, "goood"), 0),
            (expects(rises, "good", "goood"), 0.5 + 0.5 * 0.05 / 1.05),
            (expects(f"{same} (tolerance=0.1)", "goood"), 0.25),
        ],
        "echo": [
            (expects("should contain", "she"), 0),
            (expects("should contain", "he said so"), 1),
            (expects("should not contain", "she"), 1),
            (expects("should start with", "good"), 0),
            (expects("should not start with", "good"), 1),
            (expects("should be invertible"), 0),
            (expects("should not be classified as", "pos", "bad"), 0.6),
            (expects("should not be classified as", "pos"), 0.1),
        ],
        "pairs": [
            (Test("/A", "a", "True", "pass", second_input="a"), 0),
            (Test("/A", "a", "True", "pass", second_input="b"), 1),
            (Test("/A", "a", expectation=same, value='[["b", "b"]]', second_input="a"), 0),
        ],
    }  # fmt: skip
    for model, tests in cases.items():
        found = scores(model, *(test for test, _ in tests), pairs=model == "pairs")
        assert found == [score for _, score in tests], model


def test_each_kind_is_in_the_test_above():
    """A row that is added to the table has no score here yet."""
    assert len(EXPECTATIONS) == 11


def test_what_expects_nothing_is_counted():
    tests = [
        Test("/A", "a", "pos", "pass"),
        Test("/A", "b", "pos", "off_topic"),
        Test("/A", "c", "pos", ""),
        Test("/A", "d", "[no output]", "pass"),
        Test("/A", "e", expectation="should sing"),
        Test("/B", "e", expectation="should contain"),
        Test("/A", "g", "pos", "Unknown"),
        Test("/A", "", label="topic_marker"),
        Test("/A/__suggestions__", "f", "pos", "pass"),
    ]
    found = scorable_tests(TestTree.of_tests(tests))
    assert found.table["input"].to_pylist() == ["a"]
    counts = list(found.left_out.items())
    assert counts[:4] == [
        ("off topic", 1),
        ("no label and no expectation, so that nothing is expected", 1),
        ("a label pass or fail without the output that it is about", 1),
        ("a label that is none of pass, fail and off_topic", 1),
    ]
    assert counts[4][0].startswith("unknown expectation 'should sing'; did you mean")
    assert counts[5] == ("'should contain' without a value", 1)
    assert found.misread.to_pylist() == ["/A", "/B"]


@pytest.mark.parametrize(("text", "message"), [
    ("should sing", "unknown expectation 'should sing'"),
    ("should output (tolerance=1)", "unknown parameter 'tolerance'"),
    ("should have the same output as (tolerance=much)", "tolerance 'much' is no number"),
    ("should have the same output as (tolerance=-1)", "tolerance '-1' is no number"),
])  # fmt: skip
def test_wrong_expectations(text, message):
    with pytest.raises(InputError) as caught:
        parse_expectation(text)
    assert message in str(caught.value)


def test_further_inputs_are_one_text_or_a_list():
    assert inputs_of("[a] b") == ["[a] b"]
    assert inputs_of("[1, 2]") == ["[1, 2]"]
    assert inputs_of('[["a", "b"], ["c", "d"]]') == [("a", "b"), ("c", "d")]
    for inputs in (["a"], [""], ["[a] b"], ["a", "b"], [("a", "b")]):
        assert as_value(inputs)
        assert inputs_of(as_value(inputs)) == inputs


class _TensorOfAGraph:
    """It is an array only when it is detached and on the processor, as those of PyTorch are."""

    def __init__(self, array, *, detached=False, here=False):
        self.array, self.detached, self.here = array, detached, here

    def __len__(self):
        return len(self.array)

    def detach(self):
        return _TensorOfAGraph(self.array, detached=True, here=self.here)

    def cpu(self):
        return _TensorOfAGraph(self.array, detached=self.detached, here=True)

    def __array__(self, dtype=None, copy=None):
        if not (self.detached and self.here):
            raise RuntimeError("call detach() and cpu() first")
        return np.asarray(self.array, dtype)


@pytest.mark.parametrize(("raw", "texts"), [
    (["a", None, "b"], ["a", None, "b"]),
    (_TensorOfAGraph(np.array([[0.1, 0.7, 0.2]] * 3)), ["neu"] * 3),
    ([1, 2, 3], ["1", "2", "3"]),
    ([True, False, True], ["True", "False", "True"]),
    (np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [np.nan] * 3]), ["neu", "neg", None]),
    ([{"label": "x", "score": 0.9}, {"label": "y", "score": 0.8}, {"label": "x", "score": 1}], list("xyx")),
    ([[{"label": "x", "score": 0.9}, {"label": "y", "score": 0.1}]] * 3, list("xxx")),
    ([[{"generated_text": "one"}]] * 3, ["one"] * 3),
])  # fmt: skip
def test_what_models_may_return(raw, texts):
    is_pipeline = isinstance(raw, list) and isinstance(raw[0], dict | list)
    classes = None if is_pipeline else CLASSES
    assert as_outputs(raw, 3, "m", classes).texts.tolist() == texts


_SCORES = [{"label": one, "score": 0.5 - at / 5} for at, one in enumerate(CLASSES)]


@pytest.mark.parametrize(("raw", "classes", "message"), [
    (["a"], None, "returned 1 outputs for 3 texts"),
    (7, None, "returned a int"),
    (np.ones((3, 2)), None, "give the function an attribute output_names"),
    (np.ones((3, 2)), CLASSES, "3 output_names, and returned 2 probabilities"),
    (np.ones((3, 2)), ("a", "a"), "output_names a, a, of which two are the same"),
    ([{"a": 1}] * 3, None, "dictionaries without 'label'"),
    (np.ones((3, 2, 2)), None, "shape (3, 2, 2)"),
    ([_SCORES[:2], _SCORES[:2], _SCORES[1:]], None, "scores of some of its classes"),
    ([_SCORES[:2]] * 3, None, "(top_k=None) or of the best alone (top_k=1)"),
    ([_SCORES, _SCORES, _SCORES[:1]], CLASSES, "of all classes for some texts and not for"),
    ([{"label": "x", "score": 1.0}] * 3, CLASSES, "the label 'x', which is none of its classes"),
])  # fmt: skip
def test_what_models_may_not_return(raw, classes, message):
    with pytest.raises(OptionError) as caught:
        as_outputs(raw, 3, "m", classes)
    assert message in str(caught.value)


NAMES = ("input", "expectation", "value")


class _Pipeline:
    """It returns what a text classification of Hugging Face does: the best classes, best first."""

    def __init__(self, top_k, *, has_config):
        self.top_k = top_k
        if has_config:
            names = dict(enumerate(CLASSES))
            self.model = SimpleNamespace(config=SimpleNamespace(id2label=names))

    def probabilities(self, text):
        return np.random.default_rng(sum(text.encode())).dirichlet(np.ones(len(CLASSES)))

    def __call__(self, texts):
        found = []
        for text in texts:
            shares = zip(CLASSES, self.probabilities(text).tolist(), strict=True)
            row = [{"label": label, "score": score} for label, score in shares]
            row.sort(key=lambda one: -one["score"])
            found.append(row[0] if self.top_k == 1 else row[: self.top_k])
        return found


@pytest.mark.parametrize(
    ("top_k", "has_config"), [(1, True), (1, False), (2, True), (None, True), (None, False)]
)
def test_scores_do_not_depend_on_the_texts_beside(top_k, has_config):
    pipeline = _Pipeline(top_k, has_config=has_config)
    model = _FunctionModel("m", pipeline)
    random = np.random.default_rng(1)
    columns = {"input": [f"text {row}" for row in range(60)], "second_input": [""] * 60}
    columns["expectation"] = ["should output", "should not output"] * 30
    tests = pa.table({**columns, "value": random.choice(CLASSES, 60).tolist()})
    expected = []
    for text, phrase, value in zip(*(tests[name].to_pylist() for name in NAMES), strict=True):
        probabilities = dict(zip(CLASSES, pipeline.probabilities(text), strict=True))
        own = probabilities.pop(value)
        best = max(probabilities.values())
        # Of the best class alone it is only known whether it is the value.
        failure = (1 + best - own) / 2 if top_k is None else float(best > own)
        expected.append(failure if phrase == "should output" else 1 - failure)
    for size in (1, 2, 7, 60):
        blocks = [tests.slice(begin, size) for begin in range(0, 60, size)]
        named = SimpleNamespace(outputs=model)
        scored = [score_block(block, named, Models(None), has_pairs=False) for block in blocks]
        assert np.concatenate([one.failures for one in scored]) == pytest.approx(expected)


def test_nothing_of_a_pickle_runs():
    class Bomb:
        def __reduce__(self):
            return (os.getenv, ("HOME",))

    values = {"data": ["a", ("b", "c")], "labels": np.int64(-3), "bomb": Bomb(), "n": [1.5]}
    content = pickle.dumps(values)
    # A real load runs what it says.
    assert pickle.loads(content)["bomb"] == os.environ["HOME"]
    found = read_inert(io.BytesIO(content), "x.pkl")
    assert found["data"] == ["a", ("b", "c")]
    assert found["n"] == [1.5]
    assert isinstance(found["bomb"], Inert)
    assert (found["bomb"].name, found["bomb"].arguments) == ("getenv", ("HOME",))
    with pytest.raises(FileError, match="is no pickle that can be read"):
        read_inert(io.BytesIO(b"no pickle"), "x.pkl")
