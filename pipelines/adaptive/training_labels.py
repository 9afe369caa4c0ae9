"""Which label is right for the input of a failing test, as far as the test truly says it.

A test that expects an output says it. One that expects any other output says it where there are two
labels. One that expects the same output as for another input says it where the label of that one is
known, from the training data or from another test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.pipelines.adaptive.expectations import (
    OUTPUTS,
    OUTPUTS_NOT,
    SAME,
    inputs_of,
    parse_expectation,
)
from slicebeam.pipelines.adaptive.scoring import NEEDED, scorable_tests
from slicebeam.pipelines.adaptive.tree import ID, IMPUTED

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection, Mapping, Sequence

    from slicebeam.pipelines.adaptive.class_names import ClassNames
    from slicebeam.pipelines.adaptive.text_models import Text
    from slicebeam.pipelines.adaptive.tree import TestTree

_GUESS = "what is expected is a guess (labeler imputed)"
_OTHER_LABELS = "it rules one label out, and there are more than two"
_NO_LABEL = "same output as for an input whose label is not known"
_TWO_LABELS = "tests of the same input, or of inputs with the same output, expect different labels"


@dataclass(frozen=True)
class FailingTest:
    """A failing test."""

    id: str
    topic: str
    text: Text
    expectation: str
    value: str
    is_guess: bool  # Nobody said so.


def said_in_tree(
    tree: TestTree, texts: Collection[Text], names: ClassNames
) -> dict[Text, set[str]]:
    """Return the outputs that tests expect for some inputs, by their names elsewhere; without guesses."""
    guesses = tree.table.filter(pc.equal(tree.table["labeler"], IMPUTED))[ID]
    tests = names.applied(scorable_tests(tree).table)
    firsts = pa.array({one if isinstance(one, str) else one[0] for one in texts}, pa.string())
    kept = pc.and_(
        pc.is_in(tests["input"], firsts), pc.invert(pc.is_in(tests[ID], guesses.combine_chunks()))
    )
    said: dict[Text, set[str]] = {}
    for row in tests.filter(kept).select(list(NEEDED)).to_pylist():
        if parse_expectation(row["expectation"]).kind.name == OUTPUTS:
            # Which of the two it is depends on the inputs that are looked up.
            for text in (row["input"], (row["input"], row["second_input"])):
                if text in texts:
                    said.setdefault(text, set()).add(row["value"])
    return said


def compared_inputs(test: FailingTest) -> list[Text]:
    """Return the inputs that should have the same output as that of a test."""
    is_same = parse_expectation(test.expectation).kind.name == SAME
    return inputs_of(test.value) if is_same else []


def labelled(
    failing: Sequence[FailingTest],
    labels: Sequence[str],
    in_tree: Mapping[Text, set[str]],
    in_data: Mapping[Text, set[str]],
    left_out: Counter[str],
) -> list[tuple[FailingTest, str]]:
    """Return the tests that say which label is right, with it."""
    said: list[tuple[FailingTest, str]] = []
    by_text = {text: set(found) for text, found in in_tree.items()}
    known = {text: in_tree.get(text, set()) | found for text, found in in_data.items()}
    known = {**in_tree, **known}
    for one in failing:
        label, reason = _label(one, labels, known)
        if label:
            said.append((one, label))
            by_text.setdefault(one.text, set()).add(label)
        else:
            left_out[reason] += 1
    agreed = [(one, label) for one, label in said if len(by_text[one.text]) == 1]
    if len(agreed) < len(said):
        left_out[_TWO_LABELS] += len(said) - len(agreed)
    return agreed


def _label(
    test: FailingTest, labels: Sequence[str], known: Mapping[Text, set[str]]
) -> tuple[str, str]:
    """Return the label that is right for a test, or none and the reason."""
    if test.is_guess:
        return "", _GUESS
    kind = parse_expectation(test.expectation).kind.name
    if kind == OUTPUTS:
        return test.value, ""
    if kind == OUTPUTS_NOT:
        others = [one for one in labels if one != test.value]
        if len(labels) == 2 and len(others) == 1:
            return others[0], ""
        return "", _OTHER_LABELS
    if kind == SAME:
        found = {label for text in compared_inputs(test) for label in known.get(text, ())}
        if len(found) > 1:
            return "", _TWO_LABELS
        return (found.pop(), "") if found else ("", _NO_LABEL)
    return "", f"{kind!r} says no label"
