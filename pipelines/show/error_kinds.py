"""Which kind of error a finding has more often than the other examples: a line for each, of its confusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slicebeam.metrics.errors import printable, shortened
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.parts import Confusion
from slicebeam.pipelines.changelist.slices import Finding

# A difference of rates tells something if it is so many standard errors, and so large.
_LEAST_Z, _LEAST_DIFFERENCE = 3.0, 0.01
_SMALL_SHARE = 0.1


def error_lines(document: SearchChangeList, findings: Sequence[Finding]) -> list[str]:
    """Return a heading, and a line for each finding of which a kind of error differs clearly; else nothing."""
    slices = {slice_.slice_id: slice_ for slice_ in document.slices}
    positive = document.provenance.config.get("positive_class")
    lines = ["Kind of error that differs most, as a share of the examples with that label:"]
    for finding in findings:
        about = slices.get(finding.slice_id)
        if about is not None and about.confusion is not None:
            n = about.size.n, document.dataset.n - about.size.n
            text = error_text(about.confusion, n, finding.direction == "worse", positive)
            lines += [] if text is None else [f"{finding.rank:>2}  {text}"]
    return lines if len(lines) > 1 else []


def error_text(
    confusion: Confusion, n: tuple[int, int], is_worse: bool, positive: str | None = None
) -> str | None:
    """Return the kind of error that a slice has most in excess of the others, or of the old model; None if none differs clearly."""
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
    return f"{kind} {here}" + (f", before {there}" if before else f" against {there} of the others")


def _kind(classes: Sequence[Any], label: int, predicted: int, positive: str | None) -> str:
    names = ["the other class" if value is None else _name(value) for value in classes]
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
