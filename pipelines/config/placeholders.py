"""Placeholders in the texts of a file that describes a run or an API.

``${NAME}`` and ``${NAME:-default}`` stand for an environment variable, ``{{`` for a brace, and
``{name}`` for a value that depends on the kind of file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.storage.secrets import VARIABLE_NAME

_PLACEHOLDER = re.compile(
    r"\$\{(?P<variable>[^{}]*)\}|(?P<doubled>\{\{|\}\})|\{(?P<name>[^{}]*)\}|(?P<brace>[{}])"
)
_VARIABLE = re.compile(VARIABLE_NAME)


def split_placeholders(
    text: str, where: str, value: Callable[[re.Match[str]], str]
) -> Iterator[str | re.Match[str]]:
    """Yield the placeholders of a text, and what stands between them with its variables filled in.

    >>> list(split_placeholders("{{${A}}}/{date}", "run.yaml, data", lambda match: match["name"].lower()))
    ['{a}/', <re.Match object; span=(9, 15), match='{date}'>]

    The group ``name`` of a placeholder is empty, or None, for ``{}`` and for a single brace. ``where``: file and key, for an error. ``value``: returns what a variable stands for; the groups
    ``name`` and ``default`` are as for `variables.value_of`.
    """
    literal, end = "", 0
    for match in _PLACEHOLDER.finditer(text):
        literal += text[end : match.start()]
        end = match.end()
        if match["doubled"]:
            literal += match["doubled"][0]
        elif match["variable"] is not None:
            variable = _VARIABLE.fullmatch(match["variable"])
            if variable is None:
                raise InputError(
                    f"{where}: {match[0]} does not name an environment variable; write ${{NAME}} "
                    "or ${NAME:-default}"
                )
            literal += value(variable)
        else:
            if literal:
                yield literal
            literal = ""
            yield match
    literal += text[end:]
    if literal:
        yield literal
