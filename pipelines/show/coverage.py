"""How much of what examples differ by the findings, and all listed slices, explain together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicebeam.pipelines.search.summary import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.show.finding_tables import FindingTables

# Shares below have two digits.
_SMALL_SHARE = 0.01


def coverage_lines(document: SearchChangeList, lists: Iterable[FindingTables]) -> list[str]:
    """Return a line for each list of findings, and for the slices of each metric, where it is known."""
    lines = [
        _line(
            document,
            shown.model.metric,
            counted(len(shown.findings), "finding"),
            shown.model.r2,
            shown.model.r2_expected,
        )
        for shown in lists
        if not shown.model.removed
    ]
    return [*filter(None, lines), *list_coverage_lines(document)]


def list_coverage_lines(document: SearchChangeList) -> list[str]:
    """Return a line for the slices of each metric, where it is known."""
    listed = len(document.slices)
    whose = counted(listed, "listed slice")
    lines = []
    for one in document.coverage:
        some = whose if one.slices >= listed else f"first {one.slices:,} of {whose}"
        lines.append(_line(document, one.metric, some, one.r2, one.r2_expected))
    return [*filter(None, lines)]


def _line(
    document: SearchChangeList, metric: str, whose: str, r2: float | None, expected: float | None
) -> str | None:
    if r2 is None or expected is None:
        return None
    explain = f"The {whose[2:]} explains" if whose.startswith("1 ") else f"The {whose} explain"
    share = f"{r2:.1%}" if r2 >= _SMALL_SHARE else f"{100 * r2:.2g}%"
    change = "the change of " if document.comparison.kind == "baseline" else ""
    return (
        f"{explain} {share} of the variance of {change}{metric} between examples "
        f"({100 * expected:.2g}% by chance)."
    )
