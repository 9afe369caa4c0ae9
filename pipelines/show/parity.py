"""The lines of ``--parity``: for each measure the lowest and the highest group, and their gap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicebeam.pipelines.search.summary import counted
from slicebeam.pipelines.show.finding_numbers import Numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.parts import ParityGap, ParityGroup

_MOST_NAMES = 5
_TEXT = Numbers([]).text


def parity_lines(document: SearchChangeList) -> Iterator[str]:
    """Yield the lines of each column: how it is divided, each measure, and which groups are left out."""
    for column in dict.fromkeys(one.column for one in document.parity):
        gaps = [one for one in document.parity if one.column == column]
        bins = ", in bins" if gaps[0].kind == "bins" else ""
        yield f"Largest gaps between groups of {column}{bins}:"
        for one in gaps:
            yield f"  {_gap_text(one, names_model=document.comparison.kind == 'baseline')}"
        for names in dict.fromkeys(one.left_out for one in gaps):
            where = [_words(one.measure) for one in gaps if one.left_out == names]
            if names:
                more = f" and {len(names) - _MOST_NAMES:,} more" * (len(names) > _MOST_NAMES)
                yield (
                    f"  Left out of {', '.join(dict.fromkeys(where))}, with fewer than {gaps[0].least} "
                    f"examples: {', '.join(names[:_MOST_NAMES])}{more}."
                )


def _words(measure: str) -> str:
    return measure.replace("_", " ")


def _gap_text(one: ParityGap, *, names_model: bool) -> str:
    what = _words(one.measure)
    if names_model:
        what += ", old model" if one.model == "before" else ", new model"
    if one.lowest is None or one.highest is None or one.gap is None:
        return f"{what}: {counted(one.groups, 'group')} of at least {one.least} examples; nothing to compare"
    p = f"{one.p_value:.2g}".removeprefix("0")
    return (
        f"{what}: lowest {_group_text(one.lowest)}, highest {_group_text(one.highest)}: "
        f"gap {_TEXT(one.gap.value)}, 95 % {_TEXT(one.gap.lo)} to {_TEXT(one.gap.hi)}, p {p}"
    )


def _group_text(group: ParityGroup) -> str:
    return f"{_TEXT(group.value)} in {group.name} (n {group.n:,})"
