"""The options of a user, with those of an EvalConfig."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.eval_config.plan import eval_plan
from slicebeam.transforms.tfma.metric_specs import is_tfma, split_outside

if TYPE_CHECKING:
    from collections.abc import Mapping

# Metrics that read predicted numbers, and no scores.
_OF_VALUES = frozenset({"mse", "mae", "bias"})


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
    if "metric" in found:
        found["metric"] = _metrics(uri, found, given)
        given.pop("metric", None)
        given.pop("tfma_metric", None)
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
    if "threshold" in found and given.get("prediction"):
        # Classes are given: no score is cut.
        del found["threshold"]
    if "threshold" in found and _is_near(given.get("threshold"), found["threshold"]):
        given.pop("threshold")
    for name, value in found.items():
        own = given.get(name, value)
        own = tuple(own) if isinstance(own, list) else own
        if own != value:
            raise _contradiction(uri, name, own, value)
    return {**found, **given}


def _metrics(uri: str, found: dict[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the metrics of both, those of our own first; what they read stays in ``found``."""
    listed = given.get("metric", ())
    listed = split_outside(listed) if isinstance(listed, str) else list(listed)
    listed += given.get("tfma_metric", ())
    own = tuple(name for name in listed if not is_tfma(name))
    of_file = tuple(name for name in found["metric"] if not is_tfma(name))
    if own and of_file and set(own) != set(of_file):
        raise _contradiction(uri, "metric", own, of_file)
    if own and not of_file and "score" in found and _OF_VALUES.issuperset(own):
        for prefix in ("", "baseline_"):
            if (column := found.pop(f"{prefix}score", None)) is not None:
                found[f"{prefix}prediction"] = column
    # The user's order says what steers the search.
    first = own or of_file or ("loss" if given.get("loss") else "accuracy",)
    others = [name for name in (*listed, *found["metric"]) if is_tfma(name)]
    return (*first, *dict.fromkeys(others))


def _contradiction(uri: str, name: str, own: Any, value: Any) -> OptionError:
    shown = [",".join(one) if isinstance(one, tuple) else one for one in (own, value)]
    return OptionError(
        f"{_flag(name)} {shown[0]} contradicts {shown[1]} of --eval-config {uri}; leave one out"
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _is_near(given: Any, threshold: float) -> bool:
    return isinstance(given, (int, float)) and abs(given - threshold) < 1e-9


def _has_baseline(given: Mapping[str, Any]) -> bool:
    names = ("baseline_prediction", "baseline_score", "baseline_model")
    return any(given.get(name) for name in names) and given.get("compare") != "overall"
