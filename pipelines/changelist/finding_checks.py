"""Checks that the findings of a document are consistent with each other and with their slices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import InputError
from slicebeam.metrics.registry import metric

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.pipelines.changelist.document import ChangeList
    from slicebeam.pipelines.changelist.findings import Finding, FindingModel

# A difference may be off by rounding, as a part of the numbers that it is of.
_ROUNDING = 1e-9


def check_findings(where: str, document: ChangeList, *, with_slices: bool) -> None:
    """Hold the findings of a document against its slices, metrics and models.

    ``where``: what was read, for the error. ``with_slices``: whether the document was read with its
    slices.
    """
    for trouble in _troubles(document, with_slices=with_slices):
        raise InputError(f"{where}: {trouble}; undo the change, or run the search again")


def _troubles(document: ChangeList, *, with_slices: bool) -> Iterator[str]:
    """Yield the errors."""
    sizes = {one.slice_id: one.size.n for one in document.slices}
    models = [(one.metric, one.direction) for one in document.finding_models]
    metrics = {one.key for one in document.metrics}
    ranks: dict[tuple[str, str], list[int]] = {model: [] for model in models}
    for at, model in enumerate(document.finding_models):
        if model.metric not in metrics:
            yield f"finding_models[{at}] is of {model.metric!r}, which is not a metric of the document"
        if models.index(models[at]) < at:
            yield f"finding_models[{at}] is the second of {model.metric}, {model.direction}"
        if not all(map(math.isfinite, (*model.coefficients, *model.unbounded))):
            yield f"finding_models[{at}] has a coefficient that is not a finite number"
        yield from _wrong_intersections(f"finding_models[{at}]", model)
        if min(model.candidates, model.left_out) < 0:
            yield f"finding_models[{at}] counts fewer than 0 slices"
    for at, one in enumerate(document.findings):
        place = f"findings[{at}]"
        own = ranks.get((one.metric, one.direction))
        if own is None:
            yield f"{place} is of {one.metric!r}, {one.direction}, which is not in finding_models"
        else:
            own.append(one.rank)
        if with_slices and one.slice_id not in sizes:
            yield f"{place} is about slice {one.slice_id!r}, which is not in the document"
        yield from _wrong_numbers(place, one)
        if with_slices:
            yield from _wrong_size(place, one, sizes[one.slice_id])
    for model in document.finding_models:
        own = ranks[model.metric, model.direction]
        known = sorted([*own, *model.removed])
        if own != sorted(own) or known != list(range(1, len(known) + 1)):
            listed = ", ".join(map(str, own)) or "none"
            yield (
                f"findings of {model.metric}, {model.direction}, have the ranks {listed}, which "
                "are not consecutive from 1, apart from the removed ones"
            )


def _wrong_numbers(place: str, one: Finding) -> Iterator[str]:
    numbers = {
        name: getattr(one, name)
        for name in ("value", "expected", "difference", "p_value", "held_share", "rate_outside")
    }
    numbers |= {"interval.0": one.interval[0], "interval.1": one.interval[1]}
    numbers |= {f"corrected.{name}": number for name, number in one.corrected}
    numbers |= {f"confirmed.{name}": number for name, number in one.confirmed or ()}
    for name, number in numbers.items():
        if number is not None and not math.isfinite(number):
            yield f"{place}.{name} is {number}, which is not a finite number"
    low, high = one.interval
    if low is not None and high is not None and low > high:
        yield f"{place}.interval begins at {low:g}, above its end at {high:g}"
    ordered = [one.corrected.low, one.corrected.difference, one.corrected.high]
    known = [number for number in ordered if number is not None]
    if known != sorted(known):
        yield f"{place}.corrected is {one.corrected.difference:g}, outside its interval"
    off = abs(one.value - one.expected - one.difference)
    if off > _ROUNDING * max(abs(one.value), abs(one.expected)):
        yield (
            f"{place}.difference is {one.difference:g}, but value - expected is "
            f"{one.value - one.expected:g}"
        )
    if not 0.0 <= one.p_value <= 1.0:
        yield f"{place}.p_value is {one.p_value:g}, which is not a probability"
    if one.held_share is not None and not 0.0 <= one.held_share <= 1.0 + _ROUNDING:
        yield f"{place}.held_share is {one.held_share:g}, which is not between 0 and 1"


def _wrong_intersections(place: str, model: FindingModel) -> Iterator[str]:
    whole = 0.0
    for at, one in enumerate(model.intersections):
        own = f"{place}.intersections[{at}]"
        ranks = one.findings
        if list(ranks) != sorted(set(ranks)) or any(
            not 1 <= rank < len(model.coefficients) for rank in ranks
        ):
            yield f"{own} is of the findings {list(ranks)}, which are not ascending ranks"
        if not 0.0 < one.share <= 1.0:
            yield f"{own}.share is {one.share:g}, which is not between 0 and 1"
        if one.value is not None and not math.isfinite(one.value):
            yield f"{own}.value is {one.value}, which is not a finite number"
        whole += one.share
    if whole > 1.0 + _ROUNDING:
        yield f"the shares of {place}.intersections add up to {whole:g}, above 1"


def _wrong_size(place: str, one: Finding, size: int) -> Iterator[str]:
    """Yield that n is not the size of the slice, or above it where the metric counts some only."""
    try:
        counts_all = metric(one.metric).counted is None
    except InputError:
        # A metric of another build.
        counts_all = False
    if not 0 < one.n <= size or (counts_all and one.n != size):
        yield f"{place}.n is {one.n:,}, but its slice has {size:,} examples"
