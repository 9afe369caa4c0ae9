"""What the topic of a slice is called, and what is said of the slice in the descriptions of its tests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from slicebeam.pipelines.adaptive.topics import below
from slicebeam.pipelines.show.worst_slices import number_text, signed_text

if TYPE_CHECKING:
    from slicebeam.pipelines.changelist.changes import Change
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice

# Of a discovered slice, in its topic.
_PHRASES = 3


def topics_of(document: SearchChangeList, root: str) -> dict[str, str]:
    """Return the topics of all slices below a root, by their ids; no two have the same.

    A topic has the name of its slice, or that of a discovered one its first phrases.
    """
    slices = document.slices
    names = [_plain_name(document, one) for one in slices]
    for more in ([one.name for one in slices], [one.slice_id for one in slices]):
        counts = Counter(names)
        names = [
            f"{name} ({also})" if counts[name] > 1 and name != also else name
            for name, also in zip(names, more, strict=True)
        ]
    return {one.slice_id: below(root, name) for one, name in zip(slices, names, strict=True)}


def _plain_name(document: SearchChangeList, one: Slice) -> str:
    phrases = [] if one.found is None else [each.text for each in one.found.phrases[:_PHRASES]]
    if document.discovery is None or not phrases:
        return one.name
    # A name that a person gave stays.
    if one.predicate is None or one.name != str(one.predicate):
        return one.name
    groups = {each.field for each in document.discovery.resolutions}
    others = [str(each) for each in one.conditions if each.field not in groups]
    return " & ".join([", ".join(phrases), *others])


def slice_text(document: SearchChangeList, one: Slice) -> str:
    """Return what was found on a slice: its name, the metric with its interval, what was expected."""
    finding = next((each for each in document.findings if each.slice_id == one.slice_id), None)
    change = one.changes[0]
    if finding is not None:
        change = next((each for each in one.changes if each.metric == finding.metric), change)
    expected = None if finding is None else finding.expected
    return f"{one.name}: {_change_text(change, expected)}"


def _change_text(change: Change, expected: float | None) -> str:
    of = f"in {change.n:,} examples"
    if change.before is not None:
        moved = "" if change.delta is None else f" {change.delta.text('+.3f')}"
        text = f"change of {change.metric}{moved} {of}"
        return text if expected is None else f"{text}, expected {signed_text(expected)}"
    text = f"{change.metric} {change.after.text('.3f')} {of}"
    if expected is not None:
        return f"{text}, expected {number_text(expected)}"
    return text if change.reference is None else f"{text}, over all {number_text(change.reference)}"


def origin_text(document: SearchChangeList) -> str:
    """Return the run that a slice comes from."""
    day = f"{document.created_at:%Y-%m-%d}"
    return f"{document.provenance.command} of {day} ({document.changelist_id})"
