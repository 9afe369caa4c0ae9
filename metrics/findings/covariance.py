"""The variances of a finding's value and its expectation, and their covariance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.findings.conditional import pattern_variances

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import BoolArray, FloatArray
    from slicebeam.metrics.findings.model import ExpectationModel
    from slicebeam.metrics.findings.target_sums import TargetSums


class Covariance(NamedTuple):
    """The variances of a finding's value and of what is expected of it, and their covariance.

    Both are means over the finding's examples, and the model was fitted to these as well as to others:
    the more of all examples the finding holds, the more the two go together.
    """

    value: float
    both: float
    expected: float

    def interval_of_difference(
        self,
        value: float,
        of_value: tuple[float, float],
        expected: float,
        of_expected: tuple[float, float],
    ) -> tuple[float, float]:
        """Return the interval of value minus expectation, from the intervals of both.

        MOVER (Zou and Donner 2008, Statist. Med. 27:1693), for values that go together (Zou 2007,
        Psychol. Methods 12:399, equation 15): it keeps that the interval of a small slice's rate is
        not symmetric. The confidence is that of the intervals given.

        30 of 100 examples against an expectation that is known to ±0.02:

        >>> both = Covariance(0.0021, 0.0, 0.0001)
        >>> low, high = both.interval_of_difference(0.30, (0.219, 0.396), 0.10, (0.08, 0.12))
        >>> round(low, 4), round(high, 4)
        (0.1166, 0.2981)
        """
        product = math.sqrt(self.value * self.expected)
        correlation = max(-1.0, min(1.0, self.both / product)) if product > 0 else 0.0

        def length(one: float, other: float) -> float:
            squared = one**2 + other**2 - 2.0 * correlation * one * other
            return math.sqrt(max(squared, 0.0))

        difference = value - expected
        return (
            difference - length(value - of_value[0], of_expected[1] - expected),
            difference + length(of_value[1] - value, expected - of_expected[0]),
        )


def of_patterns(
    model: ExpectationModel,
    sums: FloatArray,
    layout: TargetSums,
    inside: BoolArray,
    taken: FloatArray,
) -> Covariance:
    """Return the covariance of a finding's value and expectation, for independent examples.

    The value is Σ w·x/Σw over the finding's examples; to first order the expectation is that of the
    true means plus Σ taken·w·(x − μ)/Σw over all examples. Deviations are those from the model with
    the finding in it, so that what sets the finding apart adds nothing to them, with the variance of
    each pattern as it is inside and outside (HC2, see `pattern_variances`): neither the model's
    variance function nor equal variances are assumed (White 1980, Econometrica 48:817).
    """
    squares = layout.moment(sums, 2, 0)
    spread = squares * pattern_variances(model, sums, layout)
    size = float(layout.moment(sums, 1, 0)[inside].sum())
    of_value = spread * inside
    return Covariance(
        *(
            float(part.sum()) / size**2
            for part in (of_value, of_value * taken, spread * np.square(taken))
        )
    )
