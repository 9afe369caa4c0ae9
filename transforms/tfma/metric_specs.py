"""Metrics of TensorFlow Model Analysis as a user names them: ``tfma:NDCG(gain_key=gain)``."""

from __future__ import annotations

import ast
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Collection

PREFIX = "tfma:"
_OF_TFMA = ("tensorflow_model_analysis", "tensorflow", "tf_keras", "keras")
# Letters of a metric with its arguments, and brackets within brackets: what parses them recurses.
_LONGEST, _DEEPEST = 10_000, 5
# Arguments that TFMA has in the MetricsSpec, not in the metric.
OF_CLASSES = ("binarize", "aggregate")
SCOPE = ("query_key", "example_weights", *OF_CLASSES)
_SPEC = re.compile(r"(?P<path>[A-Za-z_][\w.]*)(?:\((?P<arguments>.*)\))?", re.DOTALL)
_EXAMPLE = "write tfma:NDCG(gain_key=gain,top_k_list=[3],query_key=query)"


@dataclass(frozen=True)
class MetricSpec:
    """A metric of TFMA or Keras, or of a user's own module.

    Attributes
    ----------
    text : as the user wrote it
    class_name : of the metric
    module : of a user's own metric; empty for those of TFMA and Keras
    config : JSON of its arguments
    scope : JSON of what its MetricsSpec has besides: ``query_key`` (column of the queries that it ranks
        within), ``example_weights``, ``binarize``, ``aggregate``

    Examples
    --------
    >>> spec = parse_metric("tfma:NDCG(gain_key=gain,top_k_list=[3],query_key=q)")
    >>> spec.class_name, spec.config, spec.query_key
    ('NDCG', '{"gain_key": "gain", "top_k_list": [3]}', 'q')
    >>> parse_metric("tfma:my.metrics.Lift", modules=["my.metrics"]).module
    'my.metrics'
    """

    text: str
    class_name: str
    module: str
    config: str
    scope: str = "{}"

    @property
    def query_key(self) -> str:
        """Column of the queries; empty for none."""
        return str(json.loads(self.scope).get("query_key", ""))

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the metric."""
        return dict(json.loads(self.config))


def is_tfma(name: str) -> bool:
    """Return whether the name of a metric is of TFMA."""
    return name.startswith(PREFIX)


def is_own(module: str) -> bool:
    """Return whether the module of a metric is a user's own."""
    return bool(module) and module.split(".", maxsplit=1)[0] not in _OF_TFMA


def parse_metric(text: str, modules: Collection[str] = ()) -> MetricSpec:
    """Return the metric that a user, or a document, named.

    Parameters
    ----------
    modules : those of ``--tfma-module``: no other module of a user's own is imported

    Raises
    ------
    OptionError
        It can't be read, an argument is not a JSON value, or its module is not in ``modules``.
    """
    found = _SPEC.fullmatch(text.removeprefix(PREFIX).strip())
    if found is None or len(text) > _LONGEST:
        raise OptionError(f"--metric {text[:_LONGEST]!r} can't be read; {_EXAMPLE}")
    arguments: dict[str, Any] = {}
    for part in split_outside(found["arguments"] or ""):
        name, sign, value = part.partition("=")
        if not sign or not name.strip().isidentifier():
            raise OptionError(f"--metric {text!r}: {part!r} is no name=value; {_EXAMPLE}")
        arguments[name.strip()] = _value(value.strip())
    scope = {name: arguments.pop(name) for name in SCOPE if arguments.get(name)}
    for name, value in {**arguments, **scope}.items():
        # Keras makes an object of a mapping that names a class.
        if not is_plain(value, has_mappings=name in scope):
            raise OptionError(
                f"--metric {text!r}: {name} is neither a number, a text, true, false, none nor a list of these"
            )
    module, _, name = found["path"].rpartition(".")
    if not is_own(module):
        module = ""
    elif module not in modules:
        raise OptionError(
            f"--metric {text!r}: {module} is not a module of TFMA, and importing it runs its code; if you "
            f"trust it, add --tfma-module {module}"
        )
    config, rest = (json.dumps(one, sort_keys=True) for one in (arguments, scope))
    return MetricSpec(text, name, module, config, rest)


def split_outside(text: str) -> list[str]:
    """Return what commas separate that are in no brackets and no quotes.

    >>> split_outside("accuracy,tfma:A(b=[1,2],c='x)')")
    ['accuracy', "tfma:A(b=[1,2],c='x)')"]
    """
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if sign in "'\"":
            quote = "" if sign == quote else quote or sign
        elif not quote:
            depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth <= 0 and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return [part for part in parts if part.strip()] if text.strip() else []


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        # A word is a text without quotes.
        return text


def is_plain(value: Any, *, has_mappings: bool = False, depth: int = 0) -> bool:
    """Return whether an argument is a number, a text, a truth value, nothing or a list of these."""
    if depth > _DEEPEST:
        return False
    if isinstance(value, dict) and has_mappings:
        return all(isinstance(key, str | int) for key in value) and is_plain(
            list(value.values()), has_mappings=True, depth=depth
        )
    if isinstance(value, list | tuple):
        return all(is_plain(one, has_mappings=has_mappings, depth=depth + 1) for one in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool | int | str)
