"""Scores the tests of a tree by models, in Beam: blocks of tests, each input asked once a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apache_beam as beam
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
from slicebeam.pipelines.adaptive.tree import FAIL, ID, OFF_TOPIC, PASS
from slicebeam.transforms.storage.arrow_files import open_arrow, part_path, write_arrow
from slicebeam.transforms.storage.storage import make_folder, remove_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.pipelines.adaptive.outputs import Outputs
    from slicebeam.pipelines.adaptive.text_models import Text, TextModel
    from slicebeam.pipelines.adaptive.tree import TestTree
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.transforms.storage.storage import StoragePath

# Tests that are scored together.
BLOCK = 16_384
# Why a test has no score: the codes of `Scored.reasons` from 1 on.
NO_SCORE = (
    "no output",
    "no output for another input of the test",
    "no output of the inverse model or the classifier",
    "excused by the output for the input (unless=)",
    "no probability or number of the class that the expectation compares",
)
_NO_OUTPUT, _NO_OTHER, _NO_SECOND, EXCUSED, _NO_NUMBER = range(1, len(NO_SCORE) + 1)
NEEDED = ("input", "second_input", "expectation", "value")


@dataclass(frozen=True)
class Models:
    """The models that a tree is scored by.

    Attributes
    ----------
    new : the model
    old : the one before it; None where there is one model
    inverse : makes inputs of outputs again; None where no test needs it
    classifier : of outputs; None where no test needs it
    """

    new: TextModel
    old: TextModel | None = None
    inverse: TextModel | None = None
    classifier: TextModel | None = None

    @property
    def scored(self) -> tuple[TextModel, ...]:
        """The models whose failures are counted, the new one first."""
        return (self.new,) if self.old is None else (self.new, self.old)


@dataclass(frozen=True, eq=False)
class ScorableTests:
    """The tests of a tree that expect something.

    Attributes
    ----------
    table : id, topic, label, and what an expectation needs, a row each test
    left_out : how many tests are not scored, by the reason
    has_pairs : whether inputs are pairs of texts
    misread : topics of the tests that are left out since nobody understands what they expect; strings
    """

    table: pa.Table
    left_out: dict[str, int]
    has_pairs: bool
    misread: pa.Array


def scorable_tests(tree: TestTree) -> ScorableTests:
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
            kind = parse_expectation(written).kind
            reason = f"{written!r} without a value"
            wrong = pc.and_(wrong, pc.and_(pc.equal(value, ""), pa.scalar(bool(kind.value))))
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
        if same.kind.kind.value == "inputs":
            values = tests["value"].take(pa.array(same.rows)).to_pylist()
            for row, value in zip(same.rows.tolist(), values, strict=True):
                found[row] += _others(value, has_pairs=has_pairs)
    return found


def _others(value: str, *, has_pairs: bool) -> list[Text]:
    """Return the further inputs in a value, all of them pairs where inputs are pairs."""
    return [
        (text, "") if has_pairs and isinstance(text, str) else text for text in inputs_of(value)
    ]


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
    """The outputs and the failure scores of tests.

    Attributes
    ----------
    outputs : as texts, None where there is none; object [tests]
    failures : float64 [tests]; NaN where a test can't be scored
    reasons : why not, 1 for the first of `NO_SCORE`; 0 of a test that is scored; int64 [tests]
    second : what the second model that an expectation needs made of the outputs; None where there is none;
        object [tests]
    """

    outputs: NDArray[np.object_]
    failures: FloatArray
    reasons: IntArray
    second: NDArray[np.object_]


def score_block(tests: pa.Table, model: TextModel, models: Models, *, has_pairs: bool) -> Scored:
    """Return how a model does on tests.

    Parameters
    ----------
    tests : with input, second_input, expectation and value
    model : that is scored
    models : where the others are that expectations need
    """
    places: dict[Text, int] = {}
    inputs = _inputs(tests, has_pairs=has_pairs)
    at = np.array([places.setdefault(text, len(places)) for text in inputs], dtype=np.int64)
    kinds = list(_by_expectation(tests))
    values = tests["value"].to_numpy(zero_copy_only=False)
    others: dict[str, IntArray] = {}
    for written, same in kinds:
        of, other = [], []
        if same.kind.kind.value == "inputs":
            for place, value in enumerate(values[same.rows].tolist()):
                for text in _others(value, has_pairs=has_pairs):
                    of.append(place)
                    other.append(places.setdefault(text, len(places)))
        others[written] = np.array([of, other], dtype=np.int64)
    outputs = model.outputs(list(places))
    texts = tests["input"].to_numpy(zero_copy_only=False)
    failures, reasons = np.full(len(at), np.nan), np.zeros(len(at), np.int64)
    seconds = np.full(len(at), None, object)
    is_known = outputs.is_known
    for written, same in kinds:
        rows, own = same.rows, others[written]
        second = _second(same, models, outputs, at[rows])
        measured = ModelAnswers(
            outputs, at[rows], values[rows], own, texts[rows], same.kind.parameters, second
        )
        score = same.kind.kind.score(measured)
        why = np.where(np.isnan(score), _NO_NUMBER, 0)
        if second is not None:
            why[~second.is_known] = _NO_SECOND
            seconds[rows] = second.texts
        # One of the further inputs that has no output says nothing of the test.
        why[own[0][~is_known[own[1]]]] = _NO_OTHER
        unless = same.kind.parameters.unless
        if unless is not None:
            why[outputs.texts[at[rows]] == unless] = EXCUSED
        why[~is_known[at[rows]]] = _NO_OUTPUT
        failures[rows], reasons[rows] = np.where(why == 0, score, np.nan), why
    return Scored(outputs.texts[at], failures, reasons, seconds)


def _second(same: _SameKind, models: Models, outputs: Outputs, at: IntArray) -> Outputs | None:
    """Return what the second model of an expectation makes of the outputs."""
    option = same.kind.kind.model
    second = {"inverse_model": models.inverse, "output_classifier": models.classifier}.get(option)
    if second is None:
        return None
    return second.outputs([text or "" for text in outputs.texts[at].tolist()])


class _ScoreBlock(beam.DoFn):
    """Scores the tests of a file, and writes outputs and scores to another one."""

    def __init__(
        self, tests: StoragePath, scores: StoragePath, models: Models, has_pairs: bool
    ) -> None:
        self.tests, self.scores, self.models, self.has_pairs = tests, scores, models, has_pairs

    def process(self, number: int) -> Iterator[int]:
        with open_arrow(part_path(self.tests, number)) as reader:
            table = reader.read_all()
        columns = {}
        for place, model in enumerate(self.models.scored):
            scored = score_block(table, model, self.models, has_pairs=self.has_pairs)
            columns[f"output {place}"] = pa.array(scored.outputs, pa.string())
            columns[f"failure {place}"] = pa.array(scored.failures)
            columns[f"reason {place}"] = pa.array(scored.reasons)
            columns[f"second {place}"] = pa.array(scored.second, pa.string())
        found = pa.table(columns)
        write_arrow(part_path(self.scores, number), found.schema, found.to_batches())
        yield table.num_rows


def score_tests(
    tests: ScorableTests,
    models: Models,
    folder: StoragePath,
    engine: Engine,
    on_scored: Callable[[int], None] = lambda _: None,
) -> list[Scored]:
    """Return how each model does on all tests, scored by an engine.

    Parameters
    ----------
    folder : where blocks of tests and their scores are kept meanwhile; the engine's workers see it
    on_scored : called with the number of tests that are scored

    Raises
    ------
    InputError
        A model fails, or returns what is no output.
    EngineError
        The engine or the storage failed.
    """
    given, found = folder / "blocks", folder / "scores"
    for one in (given, found):
        remove_folder(one)
        make_folder(one)
    needed = tests.table.select(list(NEEDED))
    numbers = range(-(-len(needed) // BLOCK))
    for number in numbers:
        block = needed.slice(number * BLOCK, BLOCK)
        write_arrow(part_path(given, number), block.schema, block.to_batches())
    score = _ScoreBlock(given, found, models, tests.has_pairs)
    engine.run(
        lambda pipeline: (
            pipeline
            | "Blocks" >> beam.Create(list(numbers))
            | "Spread" >> beam.Reshuffle()
            | "Score" >> beam.ParDo(score)
        ),
        "score tests",
    )
    tables = []
    for number in numbers:
        with open_arrow(part_path(found, number)) as reader:
            tables.append(reader.read_all())
    on_scored(len(needed))
    whole = pa.concat_tables(tables)
    return [
        Scored(
            whole[f"output {place}"].to_numpy(),
            whole[f"failure {place}"].to_numpy(),
            whole[f"reason {place}"].to_numpy(),
            whole[f"second {place}"].to_numpy(),
        )
        for place in range(len(models.scored))
    ]


def refuse_missing_models(tests: pa.Table, models: Models) -> None:
    """Refuse tests whose expectation needs a model that is not given.

    Raises
    ------
    InputError
        The option of the model is missing.
    """
    given = {"inverse_model": models.inverse, "output_classifier": models.classifier}
    for written, same in _by_expectation(tests):
        option = same.kind.kind.model
        if option and given[option] is None:
            raise InputError(
                f"{len(same.rows):,} tests have the expectation {written!r}, which needs another model: give "
                f"--{option.replace('_', '-')}, or remove these tests"
            )
