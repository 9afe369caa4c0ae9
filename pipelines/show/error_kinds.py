"""Which kind of error a finding has more often than the other examples: a line for each, of its confusion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.errors import printable, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.parts import Confusion
    from slicebeam.pipelines.changelist.slices import Finding

# A difference of rates tells something if it is so many standard errors, and so large.
_LEAST_Z, _LEAST_DIFFERENCE = 3.0, 0.01
_SMALL_SHARE = 0.1


def error_lines(document: SearchChangeList, findings: Sequence[Finding]) -> list[str]:
    """Return a heading, and a line for each finding of which a kind of error differs clearly; else nothing."""
    lines = list(_lines(document, findings))
    heading = "Kind of error that differs most, as a share of the examples with that label:"
    return [heading, *lines] if lines else []


def _lines(document: SearchChangeList, findings: Sequence[Finding]) -> Iterator[str]:
    listed = {slice_.slice_id: slice_ for slice_ in document.slices}
    positive = document.provenance.config.get("positive_class")
    for finding in findings:
        slice_of = listed.get(finding.slice_id)
        if slice_of is None or slice_of.confusion is None:
            continue
        n = slice_of.size.n, document.dataset.n - slice_of.size.n
        text = error_text(slice_of.confusion, n, finding.direction == "worse", positive)
        if text is not None:
            yield f"{finding.rank:>2}  {text}"


def error_text(
    confusion: Confusion, n: tuple[int, int], is_worse: bool, positive: str | None = None
) -> str | None:
    """Return the kind of error that a slice has most in excess, or saves most; None if none differs clearly.

    It is compared with the ``n[1]`` other examples, of two models with the old one on the slice.
    """
    before = confusion.inside_before
    tables = np.array([confusion.inside, before or confusion.outside], float)
    sizes = np.array([n[0], n[0] if before else n[1]], float)
    # Weights count as if they were 1 on average.
    tables *= (sizes / np.maximum(tables.sum(axis=(1, 2)), 1e-300))[:, None, None]
    of_label = tables.sum(axis=2, keepdims=True)
    rates = tables / np.maximum(of_label, 1e-300)
    difference = (rates[0] - rates[1]) * (1 if is_worse else -1)
    pooled = tables.sum(axis=0) / np.maximum(of_label.sum(axis=0), 1e-300)
    error = np.sqrt(pooled * (1 - pooled) * (1 / np.maximum(of_label, 1e-300)).sum(axis=0))
    tells = (difference >= _LEAST_DIFFERENCE) & (difference >= _LEAST_Z * error)
    tells &= (of_label > 0).all(axis=0) & ~np.eye(len(confusion.classes), dtype=bool)
    if not tells.any():
        return None
    excess = np.where(tells, of_label[0] * difference, -np.inf)
    label, predicted = np.unravel_index(np.argmax(excess), excess.shape)
    here, there = (_share(rate[label, predicted]) for rate in rates)
    kind = _kind(confusion.classes, int(label), int(predicted), positive)
    return (
        f"{kind} {here}, before {there}"
        if before
        else f"{kind} {here} against {there} of the others"
    )


def _kind(classes: Sequence[Any], label: int, predicted: int, positive: str | None) -> str:
    names = [
        "the other class" if class_name is None else _name(class_name) for class_name in classes
    ]
    if positive is None and {*classes} <= {0, 1}:
        positive = "1"
    if len(classes) == 2 and positive in names:
        return "false negatives" if names[label] == positive else "false positives"
    return f"most often {names[predicted]} for {names[label]}:"


def _name(value: Any) -> str:
    is_whole = isinstance(value, float) and value.is_integer()
    return printable(shortened(str(int(value) if is_whole else value)))


def _share(rate: float) -> str:
    return f"{rate:.0%}" if rate >= _SMALL_SHARE else f"{100 * rate:.2g}%"
