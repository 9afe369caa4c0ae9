"""What tests expect of a model: a row each kind, with how far an output is from it.

An expectation is written as a phrase between an input and a value, as AdaTest's older form has it:
*input* ``should output`` *value*. Some have parameters: ``should not score lower than (class=positive,
tolerance=0.1)``. A test without an expectation has its label say what is expected: after ``pass`` the
output is right, after ``fail`` it is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slicebeam.metrics.arrays import FloatArray, IntArray
from slicebeam.metrics.errors import InputError, unknown_name
from slicebeam.pipelines.adaptive.failure_scores import FAILS_ABOVE, change_failure, output_failure
from slicebeam.pipelines.adaptive.outputs import Outputs
from slicebeam.pipelines.adaptive.tree import FAIL, PASS, Test

Texts = NDArray[np.object_]
Value = Literal["output", "inputs"]
# Outputs that AdaTest writes where there is none yet.
NO_OUTPUT = ("", "__TOEVAL__", "[no output]")
_WRITTEN = re.compile(r"(?P<name>[^(]*?)\s*(?:\((?P<given>.*)\))?\s*")


@dataclass(frozen=True)
class ModelAnswers:
    """Tests of one expectation, and what the model gave for them."""

    # Of all distinct inputs; `at` has the place of each test's.
    outputs: Outputs
    at: IntArray  # int64 [tests]
    values: Texts  # [tests]
    # For values that are inputs: which test each is of, and its output; int64 [2, inputs].
    others: IntArray
    parameters: Parameters
    # What the classifier makes of the outputs of the tests; [tests].
    second: Outputs | None = None

    def largest(self, of_others: FloatArray) -> FloatArray:
        """Return the largest of each test's numbers, one for each other input; NaN where one is."""
        largest = np.full(len(self.at), -np.inf)
        with np.errstate(invalid="ignore"):
            np.maximum.at(largest, self.others[0], of_others)
        return np.where(np.isneginf(largest), np.nan, largest)


@dataclass(frozen=True)
class Parameters:
    """What stands in parentheses behind an expectation."""

    # The class whose probability is compared, or two, as ``positive - negative``; None for the
    # one that is predicted for the input.
    of_class: str | None = None
    tolerance: float = 0.0  # Change that is no failure, ≥ 0.
    unless: str | None = None  # Class that, predicted for the input, takes the test out.


@dataclass(frozen=True)
class Expectation:
    """A kind of expectation."""

    name: str
    # What its value is: an output (a class or a text), or further inputs.
    value: Value
    # Returns the failure scores, float64 [tests]; NaN for what can't be said.
    score: Callable[[ModelAnswers], FloatArray]
    help: str
    parameters: tuple[str, ...] = ()
    # Whether it is about what a classifier makes of the output.
    needs_classifier: bool = False


def _outputs(tests: ModelAnswers) -> FloatArray:
    outputs = tests.outputs
    if outputs.probabilities is not None:
        return output_failure(outputs.probabilities[tests.at], outputs.codes_of(tests.values))
    return (outputs.texts[tests.at] != tests.values).astype(np.float64)


def _outputs_not(tests: ModelAnswers) -> FloatArray:
    score = 1.0 - _outputs(tests)
    # Of classes that are equally probable the model gives one, and that is its output.
    is_tied = (score == FAILS_ABOVE) & (tests.outputs.texts[tests.at] == tests.values)
    return np.where(is_tied, np.nextafter(FAILS_ABOVE, 1.0), score)


def _same(tests: ModelAnswers) -> FloatArray:
    outputs, (of, other) = tests.outputs, tests.others
    first, tolerance = tests.at[of], tests.parameters.tolerance
    if outputs.probabilities is not None:
        wanted = outputs.probabilities.argmax(axis=1)[first]
        score = output_failure(outputs.probabilities[other], wanted)
        moved = outputs.probabilities[other, wanted] - outputs.probabilities[first, wanted]
        score = np.where((score > 0.5) & (np.abs(moved) <= tolerance), 0.5, score)
        score = np.where(np.isnan(moved), np.nan, score)
    elif outputs.numbers is not None:
        score = change_failure(np.abs(outputs.numbers[other] - outputs.numbers[first]), tolerance)
    else:
        score = (outputs.texts[other] != outputs.texts[first]).astype(np.float64)
    return tests.largest(score)


def _change(tests: ModelAnswers) -> FloatArray:
    """Return how much more the inputs score than each of the others; NaN without a number."""
    outputs, (of, other) = tests.outputs, tests.others
    first = tests.at[of]
    if outputs.numbers is not None:
        return outputs.numbers[first] - outputs.numbers[other]
    if outputs.probabilities is None:
        return np.full(len(of), np.nan)
    named = tests.parameters.of_class
    if named is None:
        wanted = outputs.probabilities.argmax(axis=1)[first]
        return outputs.probabilities[first, wanted] - outputs.probabilities[other, wanted]
    parts = [named] if named in outputs.classes else named.split(" - ", 1)
    codes = outputs.codes_of(np.array(parts, object))
    if (codes < 0).any():
        return np.full(len(of), np.nan)
    scores = outputs.probabilities[:, codes[0]] - sum(
        outputs.probabilities[:, code] for code in codes[1:].tolist()
    )
    change: FloatArray = scores[first] - scores[other]
    return change


def _not_lower(tests: ModelAnswers) -> FloatArray:
    return tests.largest(change_failure(-_change(tests), tests.parameters.tolerance))


def _not_higher(tests: ModelAnswers) -> FloatArray:
    return tests.largest(change_failure(_change(tests), tests.parameters.tolerance))


def _pairs(tests: ModelAnswers, holds: Callable[[str, str], bool]) -> FloatArray:
    texts = tests.outputs.texts[tests.at].tolist()
    return np.array(
        [
            text is not None and not holds(text, value)
            for text, value in zip(texts, tests.values.tolist(), strict=True)
        ],
        dtype=np.float64,
    )


def _contains(tests: ModelAnswers) -> FloatArray:
    return _pairs(tests, lambda text, value: value in text)


def _contains_not(tests: ModelAnswers) -> FloatArray:
    return _pairs(tests, lambda text, value: value not in text)


def _starts(tests: ModelAnswers) -> FloatArray:
    return _pairs(tests, str.startswith)


def _starts_not(tests: ModelAnswers) -> FloatArray:
    return _pairs(tests, lambda text, value: not text.startswith(value))


def _classified_not(tests: ModelAnswers) -> FloatArray:
    second = tests.second
    if second is None:
        return np.full(len(tests.at), np.nan)
    if second.probabilities is None:
        return (second.texts == tests.values).astype(np.float64)
    codes = second.codes_of(tests.values)
    # Of a class that the classifier does not know it can't say that an output is not of it.
    return np.where(codes < 0, np.nan, 1.0 - output_failure(second.probabilities, codes))


OUTPUTS, OUTPUTS_NOT = "should output", "should not output"
SAME = "should have the same output as"
CLASSIFIED_NOT = "should not be classified as"
NOT_LOWER, NOT_HIGHER = "should not score lower than", "should not score higher than"
_CHANGES = ("class", "tolerance", "unless")

EXPECTATIONS: dict[str, Expectation] = {
    one.name: one
    for one in (
        Expectation(OUTPUTS, "output", _outputs, "The output is the value."),
        Expectation(OUTPUTS_NOT, "output", _outputs_not, "The output is not the value."),
        Expectation(
            SAME,
            "inputs",
            _same,
            "The output is the same for the input and for the value, another input or a JSON list of such.",
            ("tolerance", "unless"),
        ),
        Expectation(
            NOT_LOWER,
            "inputs",
            _not_lower,
            "The probability of a class, or the number, is not lower for the input than for the value.",
            _CHANGES,
        ),
        Expectation(
            NOT_HIGHER,
            "inputs",
            _not_higher,
            "The probability of a class, or the number, is not higher for the input than for the value.",
            _CHANGES,
        ),
        Expectation("should contain", "output", _contains, "The output contains the value."),
        Expectation(
            "should not contain", "output", _contains_not, "The output does not contain the value."
        ),
        Expectation("should start with", "output", _starts, "The output starts with the value."),
        Expectation(
            "should not start with", "output", _starts_not, "The output does not start with it."
        ),
        Expectation(
            CLASSIFIED_NOT,
            "output",
            _classified_not,
            "--output-classifier does not give the output the class in the value, such as toxic.",
            needs_classifier=True,
        ),
    )
}
# What AdaTest's first versions called the same.
_SYNONYMS = {
    "should be": OUTPUTS,
    "should not be": OUTPUTS_NOT,
    "should be the same as for": SAME,
    "should not be less than for": NOT_LOWER,
}


@dataclass(frozen=True)
class ParsedExpectation:
    """An expectation as it is written, with its parameters."""

    kind: Expectation
    parameters: Parameters = field(default_factory=Parameters)


def parse_expectation(text: str) -> ParsedExpectation:
    """Return what an expectation says.

    >>> parse_expectation("should have the same output as (tolerance=0.1)").parameters.tolerance
    0.1
    """
    found = _WRITTEN.fullmatch(text)
    name = text if found is None else found["name"]
    kind = EXPECTATIONS.get(_SYNONYMS.get(name, name))
    if kind is None:
        raise unknown_name("expectation", name, EXPECTATIONS)
    given: dict[str, str] = {}
    for part in (found["given"] or "").split(",") if found is not None else ():
        key, _, value = (word.strip() for word in part.partition("="))
        if not key:
            continue
        if key not in kind.parameters:
            raise InputError(f"{text!r}: {unknown_name('parameter', key, kind.parameters)}")
        given[key] = value
    try:
        tolerance = float(given.get("tolerance", "0"))
    except ValueError:
        tolerance = -1.0
    if not 0 <= tolerance < np.inf:
        raise InputError(f"{text!r}: tolerance {given['tolerance']!r} is no number of at least 0")
    return ParsedExpectation(kind, Parameters(given.get("class"), tolerance, given.get("unless")))


def expectation_of(test: Test) -> tuple[str, str]:
    """Return the expectation of a test and its value, which its label may imply; empty for none."""
    if test.expectation:
        return test.expectation, test.value
    if test.label in (PASS, FAIL) and test.output not in NO_OUTPUT:
        return (OUTPUTS if test.label == PASS else OUTPUTS_NOT), test.output
    return "", ""


def inputs_of(value: str) -> list[Any]:
    """Return the further inputs in a value: one text, or a JSON list of texts or of pairs.

    >>> inputs_of("a [good] one"), inputs_of('["a", "b"]')
    (['a [good] one'], ['a', 'b'])
    """
    if value.startswith("["):
        try:
            listed = json.loads(value)
        except ValueError:
            return [value]
        if isinstance(listed, list) and listed and all(isinstance(one, str) for one in listed):
            return listed
        if isinstance(listed, list) and listed and all(_is_pair(one) for one in listed):
            return [tuple(one) for one in listed]
    return [value]


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list) and len(value) == 2 and all(isinstance(one, str) for one in value)
    )


def as_value(inputs: list[Any]) -> str:
    """Return the value that stands for further inputs."""
    if len(inputs) == 1 and isinstance(inputs[0], str) and inputs[0][:1] not in ("", "["):
        return inputs[0]
    return json.dumps(
        [list(one) if isinstance(one, tuple) else one for one in inputs], ensure_ascii=False
    )
