"""The numbers of findings as text, with the decimals that their intervals justify."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slicebeam.pipelines.changelist.slices import Finding

# A value between 0 and 1, or a change of one, has so many at least.
_DECIMALS_OF_SHARES = 3
# Beyond these a number has an exponent.
_MOST_DECIMALS, _LONGEST = 7, 1e9
_INFINITE = "∞"


class Numbers:
    """How the numbers of a list of findings are written: all with the same decimals.

    The second digit of the typical interval's width is the last one.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        sizes = [
            abs(number)
            for one in findings
            for number in (one.value, one.expected, one.rate_outside, *_ends(one))
            if number is not None
        ]
        largest = max(sizes, default=0.0)
        widths = [high - low for low, high in _whole(map(_ends, findings))]
        typical = median(widths) if widths else largest / 10
        decimals = 1 - math.floor(math.log10(typical)) if typical > 0 else 0
        least = _DECIMALS_OF_SHARES if largest <= 1 else 0
        self._decimals = max(decimals, least)
        self._has_exponent = largest >= _LONGEST or self._decimals > _MOST_DECIMALS

    def text(self, value: float | None, *, signed: bool = False) -> str:
        """Return a value; nothing for None, and no zero before the decimal point."""
        if value is None:
            return ""
        if self._has_exponent:
            return f"{value:+.3e}" if signed else f"{value:.3e}"
        text = f"{value:{'+' if signed else ''},.{self._decimals}f}"
        return text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text

    def difference(self, one: Finding) -> str:
        """Return the corrected difference with its interval, such as ``+.148 [+.139, +.158]``."""
        return self._with_ends(one.corrected.difference, *_ends(one))

    def confirmed(self, one: Finding) -> str:
        """Return the same of the reserved examples; their number where they are too few."""
        again = one.confirmed
        if again is None:
            return ""
        if again.difference is None:
            return f"n = {again.examples}"
        return self._with_ends(again.difference, again.low, again.high)

    def _with_ends(self, difference: float, low: float | None, high: float | None) -> str:
        ends = (
            f"-{_INFINITE}" if low is None else self.text(low, signed=True),
            f"+{_INFINITE}" if high is None else self.text(high, signed=True),
        )
        return f"{self.text(difference, signed=True)} [{', '.join(ends)}]"


def _ends(one: Finding) -> tuple[float | None, float | None]:
    return one.corrected.low, one.corrected.high


def _whole(intervals: Iterable[tuple[float | None, float | None]]) -> list[tuple[float, float]]:
    return [(low, high) for low, high in intervals if low is not None and high is not None]
