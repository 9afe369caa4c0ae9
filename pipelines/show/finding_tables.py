"""The findings of a run: a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from slicebeam.pipelines.show.worst_slices import number_text, signed_text

if TYPE_CHECKING:
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.findings import Finding, FindingModel

# The interval of the difference is shown from this width.
WIDE = 100
# Of several lists each has a share of the lines, and at least so many.
MOST_LINES = 20
LEAST_LINES = 5


class Findings(NamedTuple):
    """The findings of one metric in one direction, and how they were chosen."""

    model: FindingModel
    findings: list[Finding]


def all_findings(document: SearchChangeList) -> list[Findings]:
    """Return the findings of each metric and direction, those of older documents being none."""
    return [
        Findings(
            model,
            [
                one
                for one in document.findings
                if (one.metric, one.direction) == (model.metric, model.direction)
            ],
        )
        for model in document.finding_models
    ]


def heading(document: SearchChangeList, shown: Findings) -> str:
    """Return what the findings of a metric are, in a sentence."""
    titles = {entry.key: entry.name for entry in document.metrics}
    title = titles.get(shown.model.metric, shown.model.metric)
    is_change = document.comparison.kind == "baseline"
    if is_change:
        verb = "degraded" if shown.model.direction == "worse" else "improved"
        return f"Where {title} {verb} more than the lines above let one expect:"
    side = shown.model.direction
    return f"Where {title} is {side} than the lines above let one expect:"


def reason_line(shown: Findings) -> str | None:
    """Return why a metric has no findings, where it could have some; None where that is plain."""
    model = shown.model
    if model.stop == "not possible":
        return f"{model.metric} has no findings: {model.reason}."
    if not shown.findings and model.candidates:
        return (
            f"No finding of {model.metric}: of its {model.candidates:,} significantly {model.direction} "
            "slices none stands out with a family-wise error of alpha."
        )
    return None


def left_out_line(shown: Findings) -> str | None:
    """Return what was not looked at; None where all was."""
    model = shown.model
    if not model.left_out:
        return None
    return (
        f"The findings of {model.metric} were chosen among the {model.candidates:,} slices that say most "
        f"by themselves; {model.left_out:,} others were not looked at."
    )


def table(document: SearchChangeList, shown: Findings, width: int | None, most: int) -> Any:
    """Return a rich table with a line for each finding.

    Parameters
    ----------
    width : columns of the terminal; None to show all of the slices' texts
    most : lines
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    is_change = document.comparison.kind == "baseline"
    names = {one.slice_id: one for one in document.slices}
    number = signed_text if is_change else number_text
    has_held = any(one.held_share is not None for one in shown.findings)
    wide = width is None or width >= WIDE
    own = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), width=width)
    headers = ["", "n", "change" if is_change else shown.model.metric, "expected"]
    headers += ["95% interval*"] if wide else []
    headers += ["held"] if has_held else []
    for header in headers:
        own.add_column(header, justify="right", no_wrap=True)
    # Last, so that it has all the width that the numbers leave.
    ratio = None if width is None else 1
    own.add_column("slice", no_wrap=True, overflow="ellipsis", ratio=ratio)
    for one in shown.findings[:most]:
        cells = [str(one.rank), f"{one.n:,}", number(one.value), number(one.expected)]
        if wide:
            cells.append(f"{signed_text(one.interval[0])} … {signed_text(one.interval[1])}")
        if has_held:
            cells.append("" if one.held_share is None else f"{one.held_share:.0%}")
        slice_ = names.get(one.slice_id)
        own.add_row(*cells, Text(one.slice_id if slice_ is None else slice_.name))
    return own


def legend(shown: list[Findings], width: int) -> str:
    """Return what the columns hold that do not say it themselves."""
    words = ["expected: from the findings above it"]
    if any(one.held_share is not None for some in shown for one in some.findings):
        words.append("held: share of all errors, or loss, in the findings so far")
    if width >= WIDE:
        words.append("* of the difference, without allowance for the choice")
    return "; ".join(words) + "."
