"""What becomes of topics when a model is updated, by the rule of the AdaTest paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# From this share of failing tests on a topic fails.
FAILS_FROM = 0.2

STATES = ("passing", "failing", "fixed", "broken")


def fails_by_rule(failures: ArrayLike, tests: ArrayLike) -> NDArray[np.bool_]:
    """Return which topics fail: at least a fifth of their tests do."""
    # In whole numbers, since 0.2 is no binary fraction.
    n = np.asarray(tests, dtype=np.int64)
    failing: NDArray[np.bool_] = (5 * np.asarray(failures, dtype=np.int64) >= n) & (n > 0)
    return failing


def state_by_rule(
    failures: ArrayLike, tests: ArrayLike, failures_before: ArrayLike | None = None
) -> list[str]:
    """Return of each topic one of `STATES`.

    >>> state_by_rule([1, 2, 1, 2], 10, [1, 2, 2, 1])
    ['passing', 'failing', 'fixed', 'broken']
    """
    now = fails_by_rule(failures, tests)
    before = now if failures_before is None else fails_by_rule(failures_before, tests)
    return [
        "failing" if new and old else "broken" if new else "fixed" if old else "passing"
        for new, old in zip(now.tolist(), before.tolist(), strict=True)
    ]
