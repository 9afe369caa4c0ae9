"""Metrics of TensorFlow Model Analysis as a user names them: ``tfma:NDCG(gain_key=gain)``."""

from __future__ import annotations

import ast
import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from slicebeam.metrics.errors import OptionError
from slicebeam.metrics.kinds import TFMA

if TYPE_CHECKING:
    from collections.abc import Collection

_OF_TFMA = ("tensorflow_model_analysis", "tensorflow", "tf_keras", "keras")
# Letters of a metric with its arguments, and brackets within brackets: what parses them recurses.
_LONGEST, _DEEPEST = 10_000, 5
# Arguments that TFMA has in the MetricsSpec, not in the metric.
_SCOPE = ("query_key", "example_weights", "binarize", "aggregate")
_WORDS = {"true": True, "false": False, "none": None}
_EXAMPLE = "write tfma:NDCG(gain_key=gain,top_k_list=[3],query_key=query)"


class MetricSpec(NamedTuple):
    """A metric of TFMA or Keras, or of a user's own module.

    ``text``: as the user wrote it. ``module``: empty for those of TFMA and Keras. ``scope``: what
    its MetricsSpec has besides, such as ``query_key``, the column of the queries.

    >>> spec = parse_metric("tfma:NDCG(gain_key=gain,top_k_list=[3],query_key=q)")
    >>> spec.class_name, spec.config, spec.scope
    ('NDCG', '{"gain_key": "gain", "top_k_list": [3]}', {'query_key': 'q'})
    >>> parse_metric("tfma:my.metrics.Lift", modules=["my.metrics"]).module
    'my.metrics'
    """

    text: str
    class_name: str
    module: str
    arguments: dict[str, Any]
    scope: dict[str, Any]

    @property
    def config(self) -> str:
        """The arguments as JSON."""
        return json.dumps(self.arguments, sort_keys=True)


def is_own(module: str) -> bool:
    """Return whether the module of a metric is a user's own."""
    return bool(module) and module.split(".", maxsplit=1)[0] not in _OF_TFMA


def parse_metric(text: str, modules: Collection[str] = ()) -> MetricSpec:
    """Return the metric that a user, or a document, named; ``modules`` are those of ``--tfma-module``."""
    try:
        path, arguments = _called(text.removeprefix(TFMA).strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise OptionError(f"--metric {text[:_LONGEST]!r} can't be read; {_EXAMPLE}") from error
    scope = {name: arguments.pop(name) for name in _SCOPE if arguments.get(name)}
    where = f"--metric {text!r}"
    check_plain(where, arguments)
    check_plain(where, scope, has_mappings=True)
    module, _, name = path.rpartition(".")
    if not is_own(module):
        return MetricSpec(text, name, "", arguments, scope)
    check_confirmed(where, module, modules)
    return MetricSpec(text, name, module, arguments, scope)


def check_confirmed(where: str, module: str, modules: Collection[str]) -> None:
    """Refuse a module of a user's own that ``--tfma-module`` does not name."""
    if module not in modules:
        raise OptionError(
            f"{where}: {module} is not a module of TFMA, and importing it runs its code; if you trust "
            f"it, add --tfma-module {module}"
        )


def check_plain(where: str, arguments: dict[str, Any], *, has_mappings: bool = False) -> None:
    """Refuse arguments that are not JSON values; Keras makes an object of a mapping that names a class."""
    for name, value in arguments.items():
        if not _is_plain(value, has_mappings, 0):
            raise OptionError(
                f"{where}: {name} is not a number, a text, true, false, none or a list of these"
            )


def _called(text: str) -> tuple[str, dict[str, Any]]:
    """Return the path of a call and its arguments."""
    node = ast.parse(text[:_LONGEST], mode="eval").body
    if not isinstance(node, ast.Call):
        return _path(node), {}
    if node.args or len(text) > _LONGEST:
        raise ValueError
    return _path(node.func), {str(key.arg): _value(key.value) for key in node.keywords}


def _path(node: ast.expr) -> str:
    path = ast.unparse(node)
    if not all(map(str.isidentifier, path.split("."))):
        raise ValueError
    return path


def _value(node: ast.expr) -> Any:
    """Return an argument; a word without quotes is a text."""
    if isinstance(node, ast.Name | ast.Attribute):
        path = _path(node)
        return _WORDS.get(path.lower(), path)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    return ast.literal_eval(node)


def _is_plain(value: Any, has_mappings: bool, depth: int) -> bool:
    if depth > _DEEPEST:
        return False
    if isinstance(value, dict) and has_mappings:
        items = list(value.values())
        return all(isinstance(key, str | int) for key in value) and _is_plain(items, True, depth)
    if isinstance(value, list | tuple):
        return all(_is_plain(item, has_mappings, depth + 1) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool | int | str)
