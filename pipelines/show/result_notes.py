"""The lines below the tables: what changed since an earlier run, what was tested and left out."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from slicebeam.pipelines.search.since_overall import overall_text
from slicebeam.pipelines.search.summary import counted
from slicebeam.pipelines.show.feature_hints import hint_lines
from slicebeam.pipelines.show.terminal_text import FILES
from slicebeam.pipelines.show.worst_slices import LEAST_ROWS, number_text, signed_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.pipelines.changelist.changes import SinceSlice
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.show.terminal_text import ResultPlaces

MOST_CHANGES = 10
# Where a warning refers to a column. It may name slices before, and these may have any name.
_SEE_TABLE = re.compile(r"((?:column reason of|value_error in) )slices\.parquet(\)?\.)\Z")


def since_lines(document: SearchChangeList, places: ResultPlaces = FILES) -> list[str]:
    """Return what changed since an earlier run.

    The metrics over all examples come first, then a line for each slice, the worst first.
    """
    since = document.since
    if since is None:
        return []
    lines = [since.summary]
    lines += [f"  {overall_text(one)}" for one in since.overall]
    named = len(since.metrics) > 1
    most = max(LEAST_ROWS, MOST_CHANGES // max(len(since.metrics), 1))
    for metric in [one.metric for one in since.metrics] or [since.metric]:
        changed = [one for one in since.slices if one.metric in (metric, None)]
        for one in changed[:most]:
            what = _what_changed(one)
            if not what:
                break
            lines.append(_since_line(one, what, f"{metric}: " if named else ""))
        more = sum(bool(_what_changed(one)) for one in changed[most:])
        if more:
            lines.append(f"  and {more:,} more in {places.document}")
    return [*lines, *since.warnings]


def _what_changed(one: SinceSlice) -> list[str]:
    words = {"degraded": "worse", "improved": "better"}
    what = {"new": ["new"], "gone": ["gone"]}.get(one.status, [])
    if one.significant:
        what.append(words.get(one.direction, "changed"))
    elif one.value_change is not None and one.value_change.significant:
        # The slice moved with all examples, or no further from them than chance allows.
        what.append(f"value {words.get(one.value_change.direction, 'changed')}")
    return what


def _since_line(one: SinceSlice, what: list[str], metric: str) -> str:
    moments = (one.then, one.now)
    values = [number_text(None if at is None else at.value) for at in moments]
    deltas = [signed_text(None if at is None else at.delta.value) for at in moments]
    return (
        f"  {', '.join(what):<11} {metric}{values[0] or '?':>5} → {values[1] or '?':<5}  "
        f"delta {deltas[0] or '?':>6} → {deltas[1] or '?':<6}  {one.name}"
    )


def notes(
    document: SearchChangeList, places: ResultPlaces = FILES, *, is_short: bool = False
) -> list[str]:
    """Return the lines about the basis of the table, and what was left out.

    ``is_short``: leave out how many slices the table does not show.
    """
    testing, search = document.testing, document.search
    lines = [*_untested(document), *_thresholds(document, places)]
    lines += _unvisited(document)
    lines += document.dataset.drift
    if document.adaptive is not None and (trained := document.adaptive.trained_text()):
        lines.append(trained)
    table = rf"\g<1>{places.slices}\2"
    lines += [_SEE_TABLE.sub(table, warning) for warning in testing.warnings]
    if testing.expected_false is not None:
        lines.append(
            f"If no slice differed, about {testing.expected_false:,.0f} would be called significant"
            f"{', over all metrics' if len(testing.metrics) > 1 else ''}."
        )
    hidden = []
    if search.inherited:
        them = "it" if search.inherited == 1 else "them"
        slices = counted(search.inherited, "significant slice")
        hidden.append(f"{slices} that a slice above {them} explains")
    if search.duplicates:
        hidden.append(f"{search.duplicates:,} with the same examples as a shorter one")
    if hidden and not is_short:
        lines.append(f"Not shown: {', '.join(hidden)}.")
    if search.saved_slices == "significant":
        lines.append(f"{places.slices} holds the significant slices and the singletons only.")
    sketched = [domain.name for domain in document.dataset.domains if domain.error]
    if sketched:
        lines.append(f"Bins and values from sketches, not exact: {', '.join(sketched)}.")
    reasons: dict[str, list[str]] = {}
    for column in document.dataset.left_out:
        reasons.setdefault(column.reason, []).append(column.name)
    lines += [f"Left out: {', '.join(names)}: {reason}." for reason, names in reasons.items()]
    return [*lines, *hint_lines(document.dataset)]


def _thresholds(document: SearchChangeList, places: ResultPlaces) -> Iterator[str]:
    """Yield whether the thresholds of an EvalConfig are met, and the first ones that are not."""
    found = document.validation
    if found is None:
        return
    reasons = found.reasons()
    if not reasons:
        yield f"TFMA finds all thresholds met, on {found.checked:,} slices."
        return
    yield f"TFMA finds {len(reasons):,} threshold{'' if len(reasons) == 1 else 's'} not met:"
    yield from (f"  {one}" for one in reasons[:MOST_CHANGES])
    if len(reasons) > MOST_CHANGES:
        yield f"  and {len(reasons) - MOST_CHANGES:,} more in {places.document}"


def tested_line(document: SearchChangeList) -> str:
    """Return how many slices were tested, and how."""
    testing = document.testing
    smallest = testing.min_slice_size
    of = f" of at least {smallest} examples" if smallest > 1 else ""
    tests = testing.test
    if len(testing.metrics) > 1:
        tests = "; ".join(f"{one.metric}: {one.test}" for one in testing.metrics)
    noun = "slice" if sum(testing.tested_per_level) == 1 else "slices"
    return f"{_tested(document)} {noun}{of} tested ({document.search.strategy}; {tests})."


def chance_line(document: SearchChangeList) -> str | None:
    """Return how often a gate fails by chance; None without one, and where nothing is corrected."""
    testing, gate = document.testing, document.gate
    if gate is None or gate.fail_on != "worse" or testing.correction == "none":
        return None
    runs = round(1 / testing.alpha)
    return f"Where nothing is worse, about 1 run in {runs:,} fails by chance, at most (--alpha {testing.alpha:g})."


def found_line(document: SearchChangeList) -> str:
    """Return how many slices are significant, of how many, and how many of them are findings.

    Those of several metrics, or of both sides, are counted apart too.
    """
    significant = counted(document.testing.significant, "significant slice")
    findings = counted(len(document.findings), "finding")
    metrics = Counter(one.metric for one in document.findings)
    sides = Counter(one.direction for one in document.findings)
    parts = [f"{number:,} of {name}" for name, number in metrics.items() if len(metrics) > 1]
    parts = parts or [f"{number:,} {side}" for side, number in sides.items() if len(sides) > 1]
    listed = f" ({', '.join(parts)})" if parts else ""
    stops = {one.stop for one in document.finding_models}
    why = ""
    if "most findings" in stops:
        why = ", the maximum of a list"
    elif "small differences" in stops:
        why = "; others differ too little to list"
    return f"{significant} of {_tested(document)} tested; {findings}{listed}{why}."


def _tested(document: SearchChangeList) -> str:
    return f"{sum(document.testing.tested_per_level):,}"


def _unvisited(document: SearchChangeList) -> Iterator[str]:
    """Yield which slices the strategy left out, and what visits them."""
    search, testing = document.search, document.testing
    most = testing.family_size - sum(testing.tested_per_level)
    where = []
    if document.provenance.config.get("prune_significant") and any(
        one.cross_size < search.max_cross_size for one in document.slices
    ):
        where.append("within significant slices (leave --prune-significant out)")
    if search.stopped == "iterations":
        where.append("below the end of the queue (more --iterations, a larger --max-candidates)")
    if most and where:
        yield (
            f"Up to {counted(most, 'slice')} of at least {testing.min_slice_size} examples "
            f"{'was' if most == 1 else 'were'} not visited: {' and '.join(where)}."
        )


def _untested(document: SearchChangeList) -> Iterator[str]:
    """Yield the slices of a check that were not tested."""
    check = document.check
    if check is not None and check.too_small:
        yield f"Too small to be tested: {check.too_small:,} of the given slices."
    if check is not None and check.empty:
        yield f"Without any example in this data: {check.empty:,} of the given slices."
