"""``--fail-on worse``: from a document to an exit code, and why.

| what the document says | exit code |
|---|---|
| a threshold of an EvalConfig is not met, with or without ``--fail-on`` | 1 |
| a metric is significantly worse on a slice, or over all examples since the earlier run | 1 |
| else: for some metric not one slice could be tested, or something that may be worse could not | 2 |
| else | 0 |

A check of a run that reported no slice is not a failure: there is nothing to check.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slicebeam.pipelines.search.since_overall import has_worsened, overall_text

if TYPE_CHECKING:
    from slicebeam.pipelines.changelist.document import SearchChangeList

PASSED, FAILED, BLIND = 0, 1, 2


@dataclass(frozen=True)
class Verdict:
    """Whether a run passes.

    Attributes
    ----------
    code : exit code: 0 passed, 1 something is worse, 2 nothing could be tested
    reasons : why it does not pass; empty if it does
    """

    code: int
    reasons: tuple[str, ...] = ()


def verdict(document: SearchChangeList, fail_on: str | None) -> Verdict:
    """Return whether a run passes.

    Parameters
    ----------
    fail_on : ``worse``, or None: every run passes
    """
    missed: tuple[str, ...] = ()
    if document.validation is not None and not document.validation.passed:
        missed = document.validation.reasons()
    if fail_on is None:
        return Verdict(FAILED, missed) if missed else Verdict(PASSED)
    metrics = document.testing.metrics
    worse = [
        f"{one.metric} is significantly worse on {one.degraded:,} "
        f"slice{'' if one.degraded == 1 else 's'}"
        for one in metrics
        if one.degraded
    ]
    if document.since is not None:
        worse += [overall_text(one) for one in document.since.overall if has_worsened(one)]
    if worse or missed:
        return Verdict(FAILED, (*missed, *worse))
    blind = tuple(
        f"no slice could be tested for {one.metric}: {one.blind}"
        for one in metrics
        if one.blind is not None
    )
    blind += tuple(f"cannot be judged: {one}" for one in document.testing.unseen)
    return Verdict(BLIND, blind) if blind else Verdict(PASSED)
