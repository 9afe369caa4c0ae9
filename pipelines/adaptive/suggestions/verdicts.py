"""What a person's verdict on an output makes of the test: it expects what the person said."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.adaptive.expectations import (
    NO_OUTPUT,
    OUTPUTS,
    OUTPUTS_NOT,
    SAME,
    parse_expectation,
)
from slicebeam.pipelines.adaptive.failure_scores import fails
from slicebeam.pipelines.adaptive.tree import FAIL, IMPUTED, OFF_TOPIC, PASS

if TYPE_CHECKING:
    from slicebeam.pipelines.adaptive.tree import Test

Label = Literal["pass", "fail", "off_topic"]


def judged(test: Test, output: str, score: float, label: Label) -> dict[str, str]:
    """Return the columns of a test after a verdict on an output, with which they agree.

    An expectation that says which class is right gives way to the verdict. One of another kind, such as
    ``should contain``, stays where it agrees.

    >>> from slicebeam.pipelines.adaptive.tree import Test
    >>> judged(Test("", "Not bad.", expectation="should output", value="negative"), "positive", 0.9, "pass")
    {'label': 'pass', 'output': 'positive', 'expectation': 'should output', 'value': 'positive'}
    """
    if label == OFF_TOPIC:
        return {"label": label}
    if output in NO_OUTPUT:
        raise InputError(
            "the model gives no output for this test; judge it off topic, or remove it"
        )
    columns = {"label": str(label), "output": output}
    if not test.expectation:
        return columns
    kind = ""
    try:
        kind = parse_expectation(test.expectation).kind.name
    except InputError:
        # Nobody can say what it expects.
        score = math.nan
    agrees = not math.isnan(score) and bool(fails(score)) == (label == FAIL)
    # That another output is expected says that this one is wrong, unless the other is a guess.
    is_known = label == FAIL and kind == OUTPUTS and test.labeler != IMPUTED
    if agrees and (is_known or kind not in (OUTPUTS, OUTPUTS_NOT, SAME)):
        return columns
    return columns | {"expectation": OUTPUTS if label == PASS else OUTPUTS_NOT, "value": output}
