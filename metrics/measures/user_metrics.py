"""Metrics of the user's own: imported when the user names them, and held to what a `Metric` returns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import copy
from functools import wraps
from importlib.metadata import entry_points
from types import new_class
from typing import Any

import numpy as np

from slicebeam.metrics.errors import OptionError, SlicebeamError, unknown_name
from slicebeam.metrics.imported import imported, one_line
from slicebeam.metrics.measures.metric import Metric, Needs, Slices
from slicebeam.metrics.significance.outcome_codes import Tested

_Check = Callable[[Any, Slices], str | None]

# Packages that are installed name their metrics in this group of entry points.
GROUP = "slicebeam.metrics"
FORM = "module:Name"
_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_INDICATORS = ("wrong", "positive", "predicted", "disagree")
# Those that this process has imported, by the names that the user gave.
_loaded: dict[str, Metric] = {}


class MetricName(str):
    """The name of an imported metric. Whoever unpickles it, such as a worker, imports the metric too."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[[str], MetricName], tuple[str]]:
        return load, (str(self),)


def loaded(name: str) -> Metric | None:
    """Return a metric that was imported; None otherwise: a name alone imports nothing."""
    return _loaded.get(name)


def load(name: str, known: Sequence[str] = ()) -> MetricName:
    """Import a metric. Only for names that the user gave: importing it runs its code."""
    path = name if _NAME.fullmatch(name) else _entry_point(name, known)
    found = imported(path, "--metric", FORM)
    where = f"--metric {name}"
    if isinstance(found, type) and issubclass(found, Metric):
        try:
            found = found()
        except Exception as error:
            raise OptionError(
                f"{where}: {path.partition(':')[2]}() failed: {one_line(error)}"
            ) from error
    if not isinstance(found, Metric):
        kind = found.__name__ if isinstance(found, type) else type(found).__name__
        raise OptionError(
            f"{where} is not a metric but of the type {kind}; derive it from CellMetric of "
            "slicebeam.metrics.measures.cell_metric"
        )
    _check_attributes(where, found)
    own = MetricName(name)
    _loaded[own] = _checked(where, found, own)
    return own


def _entry_point(name: str, known: Sequence[str]) -> str:
    points = entry_points(group=GROUP)
    paths = sorted({point.value for point in points if point.name == name})
    if not paths:
        raise unknown_name("metric", name, [*known, *sorted(points.names), FORM])
    if len(paths) > 1:
        raise OptionError(
            f"--metric {name}: several packages have it: {' and '.join(paths)}; name one of these"
        )
    return paths[0]


def _check_attributes(where: str, own: Metric) -> None:
    """Refuse a metric whose attributes are missing, wrong or beyond what a user's own may need."""

    def refuse(attribute: str, expected: str) -> None:
        value = getattr(own, attribute, "missing")
        raise OptionError(f"{where}: its {attribute} is {value!r}; {expected}")

    if not isinstance(getattr(own, "title", None), str):
        refuse("title", "write its name for readers, a text")
    if not isinstance(getattr(own, "higher_is_better", None), bool):
        refuse("higher_is_better", "write True or False")
    try:
        low, high = map(float, own.range)
    except (AttributeError, TypeError, ValueError):
        low = high = 0.0
    if not low < high:
        refuse("range", "write its smallest and its largest value, such as (0.0, 1.0)")
    if not isinstance(own.min_slice_size, int) or own.min_slice_size < 1:
        refuse("min_slice_size", "write a whole number above 0")
    needs = getattr(own, "needs", None)
    if (
        not isinstance(needs, Needs)
        or needs.ranked
        or needs.values
        or not set(needs.indicators) <= set(_INDICATORS)
        or not (needs.indicators or needs.classes)
    ):
        refuse("needs", f"write Needs(indicators=...) of {', '.join(_INDICATORS)}, or classes=True")


def _checked(where: str, own: Metric, name: MetricName) -> Metric:
    """Return the metric under the name that the user gave, with its results checked."""
    kind = type(own)
    methods = {
        method: _held(where, method, getattr(kind, method), check)
        for method, check in _CHECKS.items()
        if hasattr(kind, method)
    }
    checked = copy(own)
    try:
        subclass = new_class(kind.__name__, (kind,), {}, lambda space: space.update(methods))
        # Also where the class is frozen.
        object.__setattr__(checked, "__class__", subclass)
        object.__setattr__(checked, "name", name)
    except (AttributeError, TypeError) as error:
        raise OptionError(f"{where}: its class can't be used: {one_line(error)}") from error
    return checked


def _held(
    where: str, method: str, function: Callable[..., Any], check: _Check
) -> Callable[..., Any]:
    """Return a method whose failures, and results that are not valid, are errors for the user."""

    @wraps(function)
    def call(self: Metric, slices: Slices, *rest: Any, **options: Any) -> Any:
        try:
            with np.errstate(all="ignore"):
                result = function(self, slices, *rest, **options)
        except SlicebeamError:
            raise
        except Exception as error:
            raise OptionError(
                f"{where}: {method} failed on {len(slices)} slices: {one_line(error)}"
            ) from error
        if wrong := check(result, slices):
            raise OptionError(f"{where}: {method} {wrong}")
        return result

    return call


def _array(axes: str, wrong: Callable[[Any], Any], expected: str) -> _Check:
    """Return a check of an array of float64: of its shape, and that no value is wrong."""

    def check(result: Any, slices: Slices) -> str | None:
        shape = (len(slices),) if axes == "[slices]" else slices.counts.shape
        has = getattr(result, "shape", None)
        if has != shape or result.dtype.kind != "f":
            kind = f"a {type(result).__name__}" if has is None else f"{result.dtype} of shape {has}"
            return f"returned {kind}; return an array of float64 {axes}, here of shape {shape}"
        places = np.argwhere(wrong(result))
        if not places.size:
            return None
        # The first one, and the sums that it is of.
        place = tuple(places[0])
        counts = ", ".join(f"{count:g}" for count in slices.sums[place[0]][:16])
        return f"returned {result[place]:g} for a slice with the counts {counts}; return {expected}"

    return check


_numbers = _array("[slices]", np.isinf, "a finite number, or NaN without a denominator")
_probabilities = _array("[slices]", lambda p: (p < 0) | (p > 1), "probabilities")
_without_nan = _array("[slices]", np.isnan, "1 where a slice is not tested")


def _interval(result: Any, slices: Slices) -> str | None:
    if not isinstance(result, tuple) or len(result) != 2:
        kind = type(result).__name__
        return f"returned a {kind}; return low and high, arrays of float64 [slices]"
    return _numbers(result[0], slices) or _numbers(result[1], slices)


def _tested(result: Any, slices: Slices) -> str | None:
    if not isinstance(result, Tested):
        return f"returned a {type(result).__name__}; return Tested, as Tested.by makes it"
    return _probabilities(result.p, slices) or _without_nan(result.p, slices)


_CHECKS: dict[str, _Check] = {
    "value": _numbers,
    "gradient": _array(
        "[slices, cells]",
        lambda slope: ~np.isfinite(slope),
        "finite numbers, and 0 where the metric is undefined",
    ),
    "test": _tested,
    "value_interval": _interval,
    "delta_interval": _interval,
    "p_refine": _probabilities,
}
