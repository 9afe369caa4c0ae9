"""Reads JSON and YAML files of users, and refuses text that two readers may understand differently.

Both keep the last of two keys of one name, take numbers that no column holds, and values within
values without end; a few lines of YAML can stand for more values than fit any memory.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import yaml

# Documents of runs are nine levels deep, and every value is walked through by recursion.
_DEEPEST = 64
_TOO_DEEP = f"values are nested deeper than {_DEEPEST} levels"
# Aliases stand for a value again and again: counted as often as they stand for one.
_MOST_NODES = 100_000
_LARGEST = 2**64
# Python refuses to read integers of a few thousand digits.
_MOST_DIGITS = 400
_MERGE = "tag:yaml.org,2002:merge"


class MalformedTextError(ValueError):
    """A text is not JSON or YAML, or two readers may understand it differently."""


def parse_json(text: str) -> Any:
    """Return the content of a JSON text."""
    try:
        content = json.loads(
            text,
            object_pairs_hook=_once,
            parse_constant=_no_number,
            parse_int=lambda digits: int(digits[:_MOST_DIGITS]),
        )
    except json.JSONDecodeError as error:
        raise MalformedTextError(f"line {error.lineno}: {error.msg}") from error
    except RecursionError:
        raise MalformedTextError(_TOO_DEEP) from None
    _check_values(content, 0)
    return content


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise MalformedTextError(f"the key {twice!r} occurs twice in an object; keep one of them")
    return found


def _no_number(written: str) -> NoReturn:
    raise MalformedTextError(f"{written} is not a number in JSON")


def _check_values(value: Any, depth: int, *, finite: bool = True) -> None:
    """Refuse values that no option, predicate or document has."""
    if depth > _DEEPEST:
        raise MalformedTextError(_TOO_DEEP)
    if isinstance(value, dict):
        for key, part in value.items():
            _check_values(key, depth + 1, finite=finite)
            _check_values(part, depth + 1, finite=finite)
    elif isinstance(value, (list, tuple, set)):
        for part in value:
            _check_values(part, depth + 1, finite=finite)
    elif isinstance(value, str):
        if not value.isascii() and any("\ud800" <= sign <= "\udfff" for sign in value):
            raise MalformedTextError(f"{value[:40]!r} contains half of a surrogate pair")
    elif isinstance(value, int):
        if abs(value) >= _LARGEST:
            raise MalformedTextError(f"the number {str(value)[:40]}… has more than 64 bits")
    elif finite and isinstance(value, float) and not math.isfinite(value):
        raise MalformedTextError("a number is larger than 64 bits allow")


class _Loader(yaml.SafeLoader):
    """Makes plain values only, and refuses repeated keys, of which one would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if key.tag == _MERGE or not isinstance(key, yaml.ScalarNode):
                continue
            name = self.construct_object(key)
            if name in seen:
                line = key.start_mark.line + 1
                raise MalformedTextError(f"the key {name!r} occurs twice, again in line {line}")
            seen.add(name)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> tuple[Any, yaml.Node | None]:
    """Return the content of a YAML text, and its nodes, which know their lines.

    Tags that would make objects are refused, as the safe loader does.
    """
    try:
        node = yaml.compose(text, _Loader)
        _count(node, 0, {})
        content = None if node is None else _Loader("").construct_document(node)
    except MalformedTextError:
        raise
    except RecursionError:
        raise MalformedTextError(_TOO_DEEP) from None
    except yaml.YAMLError as error:
        raise MalformedTextError(" ".join(str(error).split())) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # What the safe loader does not foresee: a date of month 13, an empty number.
        raise MalformedTextError(
            f"a value does not match its tag or form ({str(error)[:80]})"
        ) from error
    _check_values(content, 0, finite=False)
    return content, node


def _count(node: yaml.Node | None, depth: int, known: dict[int, int]) -> int:
    """Return for how many values a node stands; 0 stands for one that is not yet counted."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    if depth > _DEEPEST:
        raise MalformedTextError(_TOO_DEEP)
    if id(node) in known:
        if not known[id(node)]:
            line = node.start_mark.line + 1
            raise MalformedTextError(f"line {line}: a value contains itself through an alias")
        return known[id(node)]
    known[id(node)] = 0
    parts = node.value
    if isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    total = 1 + sum(_count(part, depth + 1, known) for part in parts)
    if total > _MOST_NODES:
        raise MalformedTextError(f"aliases stand for more than {_MOST_NODES:,} values")
    known[id(node)] = total
    return total
