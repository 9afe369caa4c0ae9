"""Scores the tests of a tree by models: in blocks, of which each input is asked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.adaptive.expectations import (
    NO_OUTPUT,
    OUTPUTS,
    OUTPUTS_NOT,
    ModelAnswers,
    ParsedExpectation,
    inputs_of,
    parse_expectation,
)
from slicebeam.pipelines.adaptive.tree import FAIL, ID, IMPUTED, OFF_TOPIC, PASS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.pipelines.adaptive.outputs import Outputs
    from slicebeam.pipelines.adaptive.text_models import Text, TextModel
    from slicebeam.pipelines.adaptive.tree import TestTree

# Tests that are scored together.
BLOCK = 16_384
# Why a test has no score: the codes of `Scored.reasons` from 1 on.
NO_SCORE = (
    "no output",
    "no output for another input of the test",
    "no output of the classifier",
    "excused by the output for the input (unless=)",
    "no probability or number of the class that the expectation compares",
)
_NO_OUTPUT, _NO_OTHER, _NO_SECOND, EXCUSED, _NO_NUMBER = range(1, len(NO_SCORE) + 1)
# Why a proposal is not scored whose answer nobody has judged.
GUESS = "what is expected is a guess that nobody has judged (labeler imputed)"
NEEDED = ("input", "second_input", "other_inputs", "expectation", "value")


@dataclass(frozen=True)
class Models:
    """The models that a tree is scored by: the new one, the old one, and a classifier of outputs."""

    new: TextModel
    old: TextModel | None = None
    classifier: TextModel | None = None

    @property
    def scored(self) -> tuple[TextModel, ...]:
        """The models whose failures are counted, the new one first."""
        return (self.new,) if self.old is None else (self.new, self.old)


@dataclass(frozen=True, eq=False)
class ScorableTests:
    """The tests of a tree that expect something."""

    table: pa.Table  # id, topic, label, and what an expectation needs
    left_out: dict[str, int]  # How many tests are not scored, by the reason.
    has_pairs: bool  # Whether inputs are pairs of texts.
    # Topics of the tests that nobody understands.
    misread: pa.Array


def scorable_tests(tree: TestTree, *, with_guesses: bool = False) -> ScorableTests:
    """Return the tests that expect something, with the expectation that a label implies."""
    table = tree.table.filter(pa.array(tree.is_test)).combine_chunks()
    label, output = table["label"], table["output"]
    has_output = pc.invert(pc.is_in(output, pa.array(NO_OUTPUT)))
    implies = pc.and_(pc.equal(table["expectation"], ""), has_output)
    passes, fails = (pc.and_(implies, pc.equal(label, one)) for one in (PASS, FAIL))
    empty = pa.scalar("", pa.string())
    implied = pc.if_else(passes, OUTPUTS, pc.if_else(fails, OUTPUTS_NOT, empty))
    expectation = pc.if_else(pc.equal(table["expectation"], ""), implied, table["expectation"])
    value = pc.if_else(pc.or_(passes, fails), output, table["value"])
    left_out: dict[str, int] = {}
    off_topic = pc.equal(label, OFF_TOPIC)
    nothing = pc.and_(pc.equal(expectation, ""), pc.invert(off_topic))
    _count(left_out, "off topic", off_topic)
    guess = pc.and_(pc.equal(table["labeler"], IMPUTED), pc.equal(label, empty))
    if not with_guesses:
        _count(left_out, GUESS, guess)
        off_topic = pc.or_(off_topic, guess)
    unlabelled = pc.and_(nothing, pc.equal(label, empty))
    judged = pc.and_(nothing, pc.is_in(label, pa.array([PASS, FAIL])))
    unknown = pc.and_(nothing, pc.invert(pc.or_(unlabelled, judged)))
    _count(left_out, "no label and no expectation, so that nothing is expected", unlabelled)
    _count(left_out, "a label pass or fail without the output that it is about", judged)
    _count(left_out, "a label that is none of pass, fail and off_topic", unknown)
    expects = keep = pc.invert(pc.or_(off_topic, nothing))
    for written in pc.unique(expectation.filter(keep)).to_pylist():
        wrong = pc.and_(keep, pc.equal(expectation, written))
        try:
            parse_expectation(written)
            reason = f"{written!r} without a value"
            wrong = pc.and_(wrong, pc.equal(value, ""))
        except InputError as error:
            reason = str(error)
        _count(left_out, reason, wrong)
        keep = pc.and_(keep, pc.invert(wrong))
    chosen = pa.table(
        {
            ID: table[ID],
            "topic": table["topic"],
            "label": label,
            "input": table["input"],
            "second_input": table["second_input"],
            "other_inputs": table["other_inputs"],
            "expectation": expectation,
            "value": value,
        }
    ).filter(keep)
    misread = table["topic"].filter(pc.and_(expects, pc.invert(keep))).combine_chunks()
    chosen = chosen.combine_chunks()
    has_pairs = bool(pc.any(pc.not_equal(chosen["second_input"], "")).as_py())
    return ScorableTests(chosen, left_out, has_pairs or _compares_pairs(chosen), misread)


def _compares_pairs(tests: pa.Table) -> bool:
    """Whether the further input of a test is a pair."""
    likely = tests.filter(pc.match_substring_regex(tests["value"], r"^\[\s*\["))
    return any(
        isinstance(one, tuple)
        for _, same in _by_expectation(likely)
        if same.kind.kind.value == "inputs"
        for value in likely["value"].take(pa.array(same.rows)).to_pylist()
        for one in inputs_of(value)
    )


def _count(left_out: dict[str, int], reason: str, which: Any) -> None:
    number = pc.sum(which).as_py() or 0
    if number:
        left_out[reason] = int(number)


def needed_inputs(tests: pa.Table, *, has_pairs: bool) -> list[Text]:
    """Return all inputs that a model is given for tests, each once; those of a test together."""
    return list(
        dict.fromkeys(
            one for of_test in inputs_by_test(tests, has_pairs=has_pairs) for one in of_test
        )
    )


def inputs_by_test(tests: pa.Table, *, has_pairs: bool) -> list[list[Text]]:
    """Return the inputs that a model is given for each test, that of the test first."""
    found = [[text] for text in _inputs(tests, has_pairs=has_pairs)]
    for _, same in _by_expectation(tests):
        for place, text in _others(tests, same, has_pairs=has_pairs):
            found[same.rows[place]].append(text)
    return found


def _others(tests: pa.Table, same: _SameKind, *, has_pairs: bool) -> Iterator[tuple[int, Text]]:
    """Yield the further inputs of tests of one expectation, each with the place of its test among them."""
    column = tests["value" if same.kind.kind.value == "inputs" else "other_inputs"]
    written = column.take(pa.array(same.rows)).to_numpy()
    for place in np.flatnonzero(written != "").tolist():
        for text in inputs_of(written[place]):
            yield place, (text, "") if has_pairs and isinstance(text, str) else text


def _inputs(tests: pa.Table, *, has_pairs: bool) -> list[Text]:
    texts: list[str] = tests["input"].to_pylist()
    if not has_pairs:
        return list(texts)
    return list(zip(texts, tests["second_input"].to_pylist(), strict=True))


@dataclass(frozen=True)
class _SameKind:
    """Tests of one expectation."""

    kind: ParsedExpectation
    rows: IntArray


def _by_expectation(tests: pa.Table) -> Iterator[tuple[str, _SameKind]]:
    encoded = tests["expectation"].combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    for code, written in enumerate(encoded.dictionary.to_pylist()):
        yield written, _SameKind(parse_expectation(written), np.flatnonzero(codes == code))


@dataclass(frozen=True, eq=False)
class Scored:
    """The outputs and the failure scores of tests."""

    outputs: NDArray[np.object_]  # As texts, None where there is none; object [tests].
    failures: FloatArray  # float64 [tests]; NaN where a test can't be scored.
    # Why not, 1 for the first of `NO_SCORE`; 0 of a test that is scored; int64 [tests].
    reasons: IntArray
    # What the classifier made of the outputs; None where there is none; object [tests].
    second: NDArray[np.object_]


def score_block(tests: pa.Table, model: TextModel, models: Models, *, has_pairs: bool) -> Scored:
    """Return how a model does on tests."""
    places: dict[Text, int] = {}
    inputs = _inputs(tests, has_pairs=has_pairs)
    at = np.array([places.setdefault(text, len(places)) for text in inputs], dtype=np.int64)
    kinds = list(_by_expectation(tests))
    values = tests["value"].to_numpy(zero_copy_only=False)
    others: dict[str, IntArray] = {}
    for written, same in kinds:
        found = [
            (place, places.setdefault(text, len(places)))
            for place, text in _others(tests, same, has_pairs=has_pairs)
        ]
        others[written] = np.array(found, dtype=np.int64).reshape(-1, 2).T
    outputs = model.outputs(list(places))
    failures, reasons = np.full(len(at), np.nan), np.zeros(len(at), np.int64)
    seconds = np.full(len(at), None, object)
    is_known = outputs.is_known
    for written, same in kinds:
        rows, own = same.rows, others[written]
        # Of several inputs that should have an output, each is scored; the worst one counts.
        of = np.arange(len(rows))
        places_of = at[rows]
        if same.kind.kind.value == "output":
            of, places_of = np.append(of, own[0]), np.append(places_of, own[1])
        second = _second(same, models, outputs, places_of)
        measured = ModelAnswers(
            outputs, places_of, values[rows][of], own, same.kind.parameters, second
        )
        score = np.full(len(rows), -np.inf)
        with np.errstate(invalid="ignore"):
            np.maximum.at(score, of, same.kind.kind.score(measured))
        why = np.where(np.isnan(score), _NO_NUMBER, 0)
        if second is not None:
            why[of[~second.is_known]] = _NO_SECOND
            seconds[rows] = second.texts[: len(rows)]
        # One of the further inputs that has no output says nothing of the test.
        why[own[0][~is_known[own[1]]]] = _NO_OTHER
        unless = same.kind.parameters.unless
        if unless is not None:
            why[outputs.texts[at[rows]] == unless] = EXCUSED
        why[~is_known[at[rows]]] = _NO_OUTPUT
        failures[rows], reasons[rows] = np.where(why == 0, score, np.nan), why
    return Scored(outputs.texts[at], failures, reasons, seconds)


def _second(same: _SameKind, models: Models, outputs: Outputs, at: IntArray) -> Outputs | None:
    """Return what the classifier makes of the outputs, if the expectation needs it."""
    if models.classifier is None or not same.kind.kind.needs_classifier:
        return None
    return models.classifier.outputs([text or "" for text in outputs.texts[at].tolist()])


def score_tests(
    tests: ScorableTests, models: Models, on_scored: Callable[[int], None] = lambda _: None
) -> list[Scored]:
    """Return how each model does on all tests; ``on_scored`` gets the number of each block."""
    needed = tests.table.select(list(NEEDED))
    results = []
    for model in models.scored:
        blocks = []
        for start in range(0, len(needed), BLOCK):
            block = needed.slice(start, BLOCK)
            blocks.append(score_block(block, model, models, has_pairs=tests.has_pairs))
            on_scored(len(block))
        parts = ((one.outputs, one.failures, one.reasons, one.second) for one in blocks)
        results.append(Scored(*map(np.concatenate, zip(*parts, strict=True))))
    return results


def refuse_missing_models(tests: pa.Table, models: Models) -> None:
    """Refuse tests whose expectation needs a model that is not given."""
    for written, same in _by_expectation(tests):
        if same.kind.kind.needs_classifier and models.classifier is None:
            raise InputError(
                f"{len(same.rows):,} tests have the expectation {written!r}, which needs another model: give "
                "--output-classifier, or remove these tests"
            )
