"""The options of a user, with those of an EvalConfig."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.eval_config.plan import eval_plan

if TYPE_CHECKING:
    from collections.abc import Mapping


def with_eval_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a user with those that ``eval_config`` adds.

    Raises
    ------
    OptionError
        The file asks for what cannot be done, or an option contradicts it.
    """
    uri = options.get("eval_config")
    given = {key: value for key, value in options.items() if value is not None}
    if not isinstance(uri, str) or not uri:
        return dict(options)
    found = dict(eval_plan(uri, has_baseline=_has_baseline(given)).options)
    models = ("prediction", "score", "model")
    for prefix in ("", "baseline_"):
        named = [one for one in models if prefix + one in found]
        others = [one for one in models if prefix + one in given and prefix + one not in found]
        if named and others:
            column = found[prefix + named[0]]
            raise OptionError(
                f"{_flag(prefix + others[0])} {given[prefix + others[0]]!r} contradicts "
                f"prediction_key {column!r} of --eval-config {uri}; leave one out"
            )
    for name in ("metric",):
        if name in found and name in given:
            own = given[name]
            listed = own.split(",") if isinstance(own, str) else list(own)
            if set(listed) == set(found[name]):
                # The user's order says what steers the search.
                found[name] = tuple(listed)
    if "threshold" in found and (given.get("model") or given.get("prediction")):
        # Classes are given: no score is cut.
        del found["threshold"]
    if "threshold" in found and _is_near(given.get("threshold"), found["threshold"]):
        given.pop("threshold")
    for name, value in found.items():
        own = given.get(name, value)
        own = tuple(own) if isinstance(own, list) else own
        if own != value and not (name == "metric" and tuple(own) == value):
            shown = [",".join(one) if isinstance(one, tuple) else one for one in (own, value)]
            raise OptionError(
                f"{_flag(name)} {shown[0]} contradicts {shown[1]} of --eval-config {uri}; leave one out"
            )
    return {**found, **given, **{name: found[name] for name in found if name == "metric"}}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _is_near(given: Any, threshold: float) -> bool:
    return isinstance(given, (int, float)) and abs(given - threshold) < 1e-9


def _has_baseline(given: Mapping[str, Any]) -> bool:
    names = ("baseline_prediction", "baseline_score", "baseline_model")
    return any(given.get(name) for name in names) and given.get("compare") != "overall"
