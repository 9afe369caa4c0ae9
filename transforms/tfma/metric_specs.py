"""Metrics of TensorFlow Model Analysis as a user names them: ``tfma:NDCG(gain_key=gain)``."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

from slicebeam.metrics.errors import OptionError

PREFIX = "tfma:"
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
    query_key : column of the queries that it ranks within; empty for none

    Examples
    --------
    >>> spec = parse_metric("tfma:NDCG(gain_key=gain,top_k_list=[3],query_key=q)")
    >>> spec.class_name, spec.config, spec.query_key
    ('NDCG', '{"gain_key": "gain", "top_k_list": [3]}', 'q')
    >>> parse_metric("tfma:my.metrics.Lift").module
    'my.metrics'
    """

    text: str
    class_name: str
    module: str
    config: str
    query_key: str

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the metric."""
        return dict(json.loads(self.config))


def is_tfma(name: str) -> bool:
    """Return whether the name of a metric is of TFMA."""
    return name.startswith(PREFIX)


def parse_metric(text: str) -> MetricSpec:
    """Return the metric that a user named.

    Raises
    ------
    OptionError
        It can't be read.
    """
    found = _SPEC.fullmatch(text.removeprefix(PREFIX).strip())
    if found is None:
        raise OptionError(f"--metric {text!r} can't be read; {_EXAMPLE}")
    arguments: dict[str, Any] = {}
    for part in split_outside(found["arguments"] or ""):
        name, sign, value = part.partition("=")
        if not sign or not name.strip().isidentifier():
            raise OptionError(f"--metric {text!r}: {part!r} is no name=value; {_EXAMPLE}")
        arguments[name.strip()] = _value(value.strip())
    query_key = arguments.pop("query_key", "")
    module, _, name = found["path"].rpartition(".")
    return MetricSpec(text, name, module, json.dumps(arguments, sort_keys=True), str(query_key))


def split_outside(text: str) -> list[str]:
    """Return what commas separate that are in no brackets.

    >>> split_outside("accuracy,tfma:A(b=[1,2],c=3)")
    ['accuracy', 'tfma:A(b=[1,2],c=3)']
    """
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth <= 0:
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
    except (ValueError, SyntaxError):
        # A word is a text without quotes.
        return text
