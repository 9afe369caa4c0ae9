"""Terminal output for discovered slices: their words, and an example of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicebeam.metrics.errors import printable
from slicebeam.transforms.encode.predicates import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.pipelines.changelist.discovered import Discovery, Found, ShownExample
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice

_MOST = 10


def found_lines(document: SearchChangeList) -> list[str]:
    """Return the lines that describe the findings, and how they were found.

    Where there are none, what the first slices are like.
    """
    if document.discovery is None:
        return []
    by_id = {one.slice_id: one for one in document.slices}
    shown = [by_id[one.slice_id] for one in document.findings] or list(document.slices)
    # A slice may be a finding of several metrics.
    first = list(dict.fromkeys(one.slice_id for one in shown))[:_MOST]
    described = [(by_id[slice_id], found) for slice_id in first if (found := by_id[slice_id].found)]
    lines = [line for one, found in described for line in _lines(one, found)]
    if lines:
        has_words = any(found.phrases for _, found in described)
        words = " (words, and their correlation with membership)" if has_words else ""
        lines = [f"What they are like{words}:", *lines, ""]
    return [*lines, *_fitted(document.discovery)]


def _lines(one: Slice, found: Found) -> Iterator[str]:
    if not found.phrases and not found.examples:
        return
    words = ", ".join(
        phrase.text if phrase.correlation is None else f"{phrase.text} ({phrase.correlation:.2f})"
        for phrase in found.phrases
    )
    yield printable(f"  {one.name}" + (f": {words}" if words else ""))
    facts = []
    if found.improved is not None and found.degraded is not None:
        facts.append(f"{found.improved:,} improved, {found.degraded:,} degraded")
    if found.opposite_to_global:
        facts.append("opposite to all examples")
    shown = [_shown(example) for example in found.examples if example.role == "representative"]
    if shown and shown[0] and one.origin.method == "mixture":
        facts.append(f"such as {shown[0]}")
    if facts:
        yield printable("    " + "; ".join(facts))


def _shown(example: ShownExample) -> str:
    """Return a text of an example, or its id."""
    texts = [value for value in example.display.values() if isinstance(value, str)]
    if texts:
        named = "" if example.id is None else f" ({example.id})"
        return f"“{shortened(' '.join(texts[0].split()))}”{named}"
    return f"example {example.row if example.id is None else example.id}"


def _fitted(discovery: Discovery) -> Iterator[str]:
    kept = ""
    if discovery.kept_dimensions < discovery.dimensions:
        kept = f", of which {discovery.kept_variance:.0%} of the variance in {discovery.kept_dimensions}"
    encoder = "" if discovery.encoder == "none" else f" ({discovery.encoder})"
    yield f"Embeddings{encoder} of {discovery.dimensions} dimensions{kept}."
    if discovery.discovery_share is not None:
        yield (
            f"{discovery.discovery_examples:,} examples shaped the mixtures; "
            f"{discovery.evaluation_examples:,} others were tested."
        )
    for one in discovery.resolutions:
        line = f"{one.field}: EM of {one.iterations} iterations"
        line += "" if one.converged else ", not converged"
        if one.r2 is not None and one.r2_expected is not None:
            line += f"; membership explains {one.r2:.1%} of the change ({one.r2_expected:.1%} by chance)"
        yield line + "."
