"""The options of a user joined with those of an EvalConfig."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import OptionError
from slicebeam.metrics.kinds import OF_NUMBERS
from slicebeam.pipelines.config.option_fields import flag
from slicebeam.transforms.tfma.eval_config import eval_plan
from slicebeam.transforms.tfma.metric_specs import is_tfma, split_outside

if TYPE_CHECKING:
    from collections.abc import Mapping


def with_eval_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a user with those that ``eval_config`` adds."""
    uri = options.get("eval_config")
    given = {key: value for key, value in options.items() if value is not None}
    if not isinstance(uri, str) or not uri:
        return dict(options)
    added = dict(eval_plan(uri).options)
    _join_metrics(uri, added, given)
    for prefix in ("", "baseline_"):
        roles = [f"{prefix}{name}" for name in ("prediction", "score", "model")]
        named = [name for name in roles if name in added]
        others = [name for name in roles if name in given and name not in added]
        if named and others:
            raise OptionError(
                f"{flag(others[0])} {given[others[0]]!r} contradicts prediction_key "
                f"{added[named[0]]!r} of --eval-config {uri}; leave one out"
            )
    if "threshold" in added:
        cut = given.get("threshold")
        if given.get("prediction"):
            # The predictions are classes: no score is cut.
            del added["threshold"]
        elif isinstance(cut, (int, float)) and abs(cut - added["threshold"]) < 1e-9:
            given.pop("threshold")
    for name, value in added.items():
        other = given.get(name, value)
        other = tuple(other) if isinstance(other, list) else other
        if other != value:
            raise _contradiction(uri, name, other, value)
    return {**added, **given}


def _join_metrics(uri: str, added: dict[str, Any], given: dict[str, Any]) -> None:
    """Join the metrics of a user and a file; the user's order says what steers the search."""
    listed = given.get("metric", ())
    listed = split_outside(listed) if isinstance(listed, str) else list(listed)
    own = tuple(name for name in listed if not is_tfma(name))
    of_file = added.pop("metric", ())
    if own and of_file and set(own) != set(of_file):
        raise _contradiction(uri, "metric", own, of_file)
    if (
        own
        and not of_file
        and "score" in added
        and OF_NUMBERS.issuperset(one.split(":")[0] for one in own)
    ):
        for prefix in ("", "baseline_"):
            if (column := added.pop(f"{prefix}score", None)) is not None:
                added[f"{prefix}prediction"] = column
    if first := own or of_file:
        given["metric"] = (*first, *(name for name in listed if is_tfma(name)))


def _contradiction(uri: str, name: str, own: Any, value: Any) -> OptionError:
    shown = [",".join(one) if isinstance(one, tuple) else one for one in (own, value)]
    return OptionError(
        f"{flag(name)} {shown[0]} contradicts {shown[1]} of --eval-config {uri}; leave one out"
    )
