"""The answer in a response body: its place, and its class."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NoReturn

from slicebeam.metrics.errors import InputError, OptionError, install_hint
from slicebeam.pipelines.paid_api.event_stream import is_event_stream, whole_completion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_LARGEST = 2**63
# Characters of the name of a class at most: what is longer is some other text of the answer. A text that
# a model writes is not a class.
LONGEST_CLASS, LONGEST_TEXT = 1000, 1_000_000


class AnswerPath:
    """The place of the answer in a response body; ``longest`` characters are an answer at most."""

    def __init__(self, expression: str, wrong: Callable[[str, str], InputError]) -> None:
        try:
            import jmespath
        except ImportError as error:
            raise OptionError(f"--api needs jmespath; {install_hint('api')}") from error
        self._expression = expression
        self.longest = LONGEST_CLASS
        try:
            self._found = jmespath.compile(expression)
        except jmespath.exceptions.JMESPathError as error:
            reason = " ".join(str(error).split())
            raise wrong(
                "answer", f"{expression!r} is not a JMESPath expression ({reason})"
            ) from None

    def answer_in(self, body: bytes | str, redact: Callable[[str], str]) -> tuple[Any, str | None]:
        """Return the answer that a body holds, and None; or None, and why it holds none."""
        import jmespath

        text = body if isinstance(body, str) else body.decode("utf-8", "replace")
        if is_event_stream(text):
            whole = whole_completion(text)
            if whole is None:
                return None, "a stream that broke off"
            body = whole
        try:
            content = json.loads(body, parse_constant=_no_number)
        except (ValueError, RecursionError):
            return None, "no JSON"
        where = repr(self._expression)
        try:
            value = self._found.search(content)
        except (jmespath.exceptions.JMESPathError, ArithmeticError, TypeError, ValueError) as error:
            reason = redact(" ".join(str(error).split()))
            return None, f"{where} fails: {reason[:100]}"
        unusable = _unusable(value, self.longest)
        return (value, None) if unusable is None else (None, f"{unusable} at {where}")


def classes_by_answer(
    labels: Mapping[Any, Any] | None,
    written: Sequence[str],
    wrong: Callable[[str, str], InputError],
) -> dict[tuple[str, Any], Any]:
    """Return the class by kind and value of the answer; ``written`` ones are not read as YAML."""
    if labels is None:
        return {}
    if not labels:
        raise wrong("labels", "the list is empty; give classes, or leave the key out")
    classes = {}
    for answer, label in labels.items():
        if not isinstance(answer, (str, bool, int, float)):
            raise wrong("labels", f"the answer {answer!r} is neither text nor a number")
        if label is not None and not isinstance(label, (str, bool, int, float)):
            raise wrong(f"labels.{answer}", f"{label!r} is not a class")
        classes[kind(answer)] = label
    if len(written) == len(labels):
        for text, label in zip(written, labels.values(), strict=True):
            classes.setdefault(("text", text), label)
    return classes


def kind(value: Any) -> tuple[str, Any]:
    """Return a value with its kind: for Python true is 1."""
    if isinstance(value, bool):
        return "boolean", value
    return ("text" if isinstance(value, str) else "number"), value


def _no_number(written: str) -> NoReturn:
    raise ValueError(f"{written} is not a number in JSON")


def _unusable(value: Any, longest: int) -> str | None:
    """Return why a value can't be a class, None if it can."""
    if value is None:
        return "nothing"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, str):
        if len(value) > longest:
            return f"a text of {len(value):,} characters"
        if any("\ud800" <= sign <= "\udfff" for sign in value):
            return "half of a character"
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return "an infinite number"
    if not isinstance(value, float) and abs(value) >= _LARGEST:
        return "a number beyond 64 bits"
    return None
