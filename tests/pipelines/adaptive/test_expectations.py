"""Failure scores of all expectations, against sums by hand and their own promise."""

from __future__ import annotations

import io
import os
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicebeam.metrics.adaptive.failure_scores import change_failure, fails, output_failure
from slicebeam.metrics.adaptive.topic_changes import state_by_rule
from slicebeam.metrics.errors import FileError, InputError, OptionError
from slicebeam.pipelines.adaptive.expectations import (
    EXPECTATIONS,
    as_value,
    inputs_of,
    parse_expectation,
)
from slicebeam.pipelines.adaptive.inert_pickle import Inert, read_inert
from slicebeam.pipelines.adaptive.outputs import Outputs, as_outputs
from slicebeam.pipelines.adaptive.scoring import Models, scorable_tests, score_block
from slicebeam.pipelines.adaptive.text_models import TextModel
from slicebeam.pipelines.adaptive.tree import Test, TestTree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@given(
    st.integers(2, 5).flatmap(
        lambda k: st.tuples(
            st.lists(st.floats(0, 1), min_size=k, max_size=k), st.integers(-1, k - 1)
        )
    )
)
def test_an_output_fails_just_where_another_class_is_more_probable(
    drawn: tuple[list[float], int],
) -> None:
    row, wanted = drawn
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
def test_a_change_fails_just_beyond_the_tolerance(changes: list[float], tolerance: float) -> None:
    score = change_failure(changes, tolerance)
    assert ((score >= 0) & (score <= 1)).all()
    beyond = np.maximum(changes, 0) - tolerance
    # Of a change that differs by a rounding error from the tolerance either is right.
    clear = np.abs(beyond) > 1e-12
    assert (fails(score) == (beyond > 0))[clear].all()
    order = np.argsort(changes, kind="stable")
    assert (np.diff(score[order]) >= -1e-15).all()


def test_a_change_without_a_number_has_no_score() -> None:
    assert np.isnan(change_failure([np.nan, 0.3], 0.1)).tolist() == [True, False]
    assert change_failure(np.inf, 0.1) == 1


def test_topics_by_the_rule_of_the_paper() -> None:
    # A fifth of five and of 45 tests is a whole number: with it a topic fails.
    assert state_by_rule([1, 8, 9, 0, 2], [5, 45, 45, 0, 3]) == [
        *("failing", "passing", "failing", "passing", "failing")
    ]
    assert state_by_rule([1, 0], [5, 5], [0, 1]) == ["broken", "fixed"]


CLASSES = ("neg", "neu", "pos")
PROBABILITIES = {
    "good": (0.1, 0.2, 0.7),
    "goood": (0.1, 0.25, 0.65),
    "ok": (0.2, 0.5, 0.3),
    "okay": (0.36, 0.34, 0.3),
    "bad": (0.8, 0.1, 0.1),
}


class _Fake(TextModel):
    """A model by a table or a function of texts."""

    def outputs(self, texts: Sequence[Any]) -> Outputs:
        return as_outputs(_FAKES[self.name](texts), len(texts), self.name, CLASSES)


_FAKES: dict[str, Callable[[Sequence[Any]], Any]] = {
    "probabilities": lambda texts: np.array([PROBABILITIES[one] for one in texts]),
    "classes": lambda texts: [CLASSES[int(np.argmax(PROBABILITIES[one]))] for one in texts],
    "numbers": lambda texts: [float(PROBABILITIES[one][2]) for one in texts],
    "echo": lambda texts: [f"{one}, she said" for one in texts],
    "inverse": lambda texts: [one.removesuffix(", she said").upper() for one in texts],
    "toxic": lambda texts: np.array(
        [(0.0, 0.4, 0.6) if "bad" in one else (0.9, 0, 0.1) for one in texts]
    ),
    "pairs": lambda texts: [str(one[0] == one[1]) for one in texts],
}


def scores(model: str, *tests: Test, pairs: bool = False) -> list[float]:
    table = scorable_tests(TestTree.of_tests(tests)).table
    models = Models(
        _Fake(model, "function"), None, _Fake("inverse", "function"), _Fake("toxic", "function")
    )
    scored = score_block(table, models.new, models, has_pairs=pairs)
    return [pytest.approx(one, nan_ok=True) for one in scored.failures.tolist()]


def test_every_expectation_has_the_score_that_its_words_say() -> None:
    def expects(kind: str, value: str = "", input_: str = "good") -> Test:
        return Test("/A", input_, expectation=kind, value=value)

    drops = "should not score higher than"
    assert scores(
        "probabilities",
        Test("/A", "good", "pos", "pass"),
        Test("/A", "good", "pos", "fail"),
        Test("/A", "okay", "neu", "pass"),
        Test("/A", "good", "unheard of", "pass"),
        expects("should output", "neg"),
        expects("should not output", "neg"),
        expects("should have the same output as", "goood"),
        expects("should have the same output as", '["goood", "okay"]'),
        expects("should have the same output as (tolerance=0.2)", "okay", "ok"),
        expects("should have the same output as (tolerance=0.1)", "okay", "ok"),
        expects(drops, "goood"),
        expects(f"{drops} (tolerance=0.1)", "goood"),
        expects(f"{drops} (class=neg)", '["bad", "good"]'),
        expects("should not score lower than (class=pos - neg, tolerance=0.1)", "good", "bad"),
        expects("should not score lower than (unless=neu)", "good", "ok"),
        expects("should not score lower than (class=unheard of)", "good", "ok"),
    ) == [
        *(0.25, 0.75, 0.51, 1.0),
        *(0.8, 0.2),
        *(0.3, 0.53),
        # The class changed, and its probability fell by 0.16.
        *(0.5, 0.51),
        *(0.5 + 0.5 * 0.05 / 1.05, 0.25, 0.0),
        0.5 + 0.5 * 1.2 / 2.2,
        *(float("nan"), float("nan")),
    ]
    same = "should have the same output as"
    assert scores("classes", expects(same, "goood"), expects(same, "okay", "ok")) == [0, 1]
    assert scores("classes", expects("should output", "pos")) == [0]
    # Classes alone have no score that could fall.
    assert scores("classes", expects(drops, "bad")) == [float("nan")]
    assert scores(
        "numbers",
        expects("should not score lower than", "goood"),
        expects("should not score lower than", "good", "goood"),
        expects(f"{same} (tolerance=0.1)", "goood"),
    ) == [0, 0.5 + 0.5 * 0.05 / 1.05, 0.25]
    assert scores(
        "echo",
        expects("should contain", "she"),
        expects("should contain", "he said so"),
        expects("should not contain", "she"),
        expects("should start with", "good"),
        expects("should not start with", "good"),
        expects("should be invertible"),
        expects("should not be classified as", "pos", "bad"),
        expects("should not be classified as", "pos"),
    ) == [0, 1, 1, 0, 1, 0, 0.6, 0.1]
    assert scores(
        "pairs",
        Test("/A", "a", "True", "pass", second_input="a"),
        Test("/A", "a", "True", "pass", second_input="b"),
        Test("/A", "a", expectation=same, value='[["b", "b"]]', second_input="a"),
        pairs=True,
    ) == [0, 1, 0]


def test_each_kind_is_in_the_test_above() -> None:
    """A row that is added to the table has no score here yet."""
    assert len(EXPECTATIONS) == 11


def test_what_expects_nothing_is_counted() -> None:
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("should sing", "unknown expectation 'should sing'"),
        ("should output (tolerance=1)", "unknown parameter 'tolerance'"),
        ("should have the same output as (tolerance=much)", "tolerance 'much' is no number"),
        ("should have the same output as (tolerance=-1)", "tolerance '-1' is no number"),
    ],
)
def test_wrong_expectations(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_expectation(text)
    assert message in str(caught.value)


def test_further_inputs_are_one_text_or_a_list() -> None:
    assert inputs_of("[a] b") == ["[a] b"]
    assert inputs_of("[1, 2]") == ["[1, 2]"]
    assert inputs_of('[["a", "b"], ["c", "d"]]') == [("a", "b"), ("c", "d")]
    for inputs in (["a"], [""], ["[a] b"], ["a", "b"], [("a", "b")]):
        assert as_value(inputs)
        assert inputs_of(as_value(inputs)) == inputs


class _TensorOfAGraph:
    """It is an array only when it is detached and on the processor, as those of PyTorch are."""

    def __init__(self, array: Any, *, detached: bool = False, here: bool = False) -> None:
        self.array, self.detached, self.here = array, detached, here

    def __len__(self) -> int:
        return len(self.array)

    def detach(self) -> _TensorOfAGraph:
        return _TensorOfAGraph(self.array, detached=True, here=self.here)

    def cpu(self) -> _TensorOfAGraph:
        return _TensorOfAGraph(self.array, detached=self.detached, here=True)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if not (self.detached and self.here):
            raise RuntimeError("call detach() and cpu() first")
        return np.asarray(self.array, dtype)


@pytest.mark.parametrize(
    ("raw", "texts"),
    [
        (["a", None, "b"], ["a", None, "b"]),
        (_TensorOfAGraph(np.array([[0.1, 0.7, 0.2]] * 3)), ["neu"] * 3),
        ([1, 2, 3], ["1", "2", "3"]),
        ([True, False, True], ["True", "False", "True"]),
        (np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [np.nan] * 3]), ["neu", "neg", None]),
        (
            [
                {"label": "x", "score": 0.9},
                {"label": "y", "score": 0.8},
                {"label": "x", "score": 1},
            ],
            list("xyx"),
        ),
        ([[{"label": "x", "score": 0.9}, {"label": "y", "score": 0.1}]] * 3, list("xxx")),
        ([[{"generated_text": "one"}]] * 3, ["one"] * 3),
    ],
)
def test_what_models_may_return(raw: Any, texts: list[str | None]) -> None:
    assert as_outputs(raw, 3, "m", CLASSES).texts.tolist() == texts


@pytest.mark.parametrize(
    ("raw", "classes", "message"),
    [
        (["a"], None, "returned 1 outputs for 3 texts"),
        (7, None, "returned a int"),
        (np.ones((3, 2)), None, "give the function an attribute output_names"),
        (np.ones((3, 2)), CLASSES, "3 output_names, and returned 2 probabilities"),
        (np.ones((3, 2)), ("a", "a"), "output_names a, a, of which two are the same"),
        ([{"a": 1}] * 3, None, "dictionaries without 'label'"),
        (np.ones((3, 2, 2)), None, "shape (3, 2, 2)"),
    ],
)
def test_what_models_may_not_return(raw: Any, classes: Any, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        as_outputs(raw, 3, "m", classes)
    assert message in str(caught.value)


def test_nothing_of_a_pickle_runs() -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (os.getenv, ("HOME",))

    content = pickle.dumps(
        {"data": ["a", ("b", "c")], "labels": np.int64(-3), "bomb": Bomb(), "n": [1.5]}
    )
    # A real load runs what it says.
    assert pickle.loads(content)["bomb"] == os.environ["HOME"]
    found = read_inert(io.BytesIO(content), "x.pkl")
    assert found["data"] == ["a", ("b", "c")]
    assert found["n"] == [1.5]
    assert isinstance(found["bomb"], Inert)
    assert (found["bomb"].name, found["bomb"].arguments) == ("getenv", ("HOME",))
    with pytest.raises(FileError, match="is no pickle that can be read"):
        read_inert(io.BytesIO(b"no pickle"), "x.pkl")
