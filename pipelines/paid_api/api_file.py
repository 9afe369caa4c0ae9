"""The file that describes a paid API: how an item becomes a request, and where its answer is."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import Field, PrivateAttr, ValidationError, model_validator

from slicebeam.metrics.errors import FileError, InputError, unknown_name
from slicebeam.pipelines.paid_api.answer_paths import (
    LONGEST_TEXT,
    AnswerPath,
    classes_by_answer,
    kind,
)
from slicebeam.pipelines.paid_api.calls import Item
from slicebeam.pipelines.paid_api.request_templates import Request, RequestFields, RequestTemplates
from slicebeam.transforms.storage.secrets import hiding
from slicebeam.transforms.storage.storage import named_content, storage_path
from slicebeam.transforms.storage.strict_text import parse_yaml

_HIDDEN = "***"


class ApiFile(RequestFields):
    """The description of a paid API; made by `read`.

    ``url``, ``params``, ``headers``, ``json_body``: templates, in which ``{column}`` stands for a
    column of the item and ``${NAME}`` for an environment variable. ``answer``: a JMESPath
    expression that finds the answer. ``labels``: the class of each answer; None if answers are
    classes themselves. ``price``: of a call, in ``currency``; None if the file gives none.
    ``retries``: further calls after one that failed. ``lost_calls``: what becomes of a call of
    which nobody knows whether it was served: ``repeat`` it, or ``count`` it as paid. Only a file
    that names its ``idempotency_header`` says that the API knows a repeated call, so ``repeat`` is
    the default there and ``count`` elsewhere. ``idempotency_header``: the name of the header by
    which the API knows a call that is repeated; it is sent by default, since an API that ignores it
    takes no harm. ``stop_after``: this many first answers without a class end the run; 0 for never.
    """

    answer: str
    labels: dict[Any, Any] | None = None
    price: Annotated[float, Field(ge=0)] | None = None
    currency: str = "USD"
    timeout: Annotated[float, Field(gt=0, le=86_400)] = 30.0
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 16
    rate_limit: Annotated[float, Field(gt=0)] | None = None
    retries: Annotated[int, Field(ge=0, le=100)] = 5
    lost_calls: Literal["repeat", "count"] = "count"
    stop_after: Annotated[int, Field(ge=0)] = 20

    _templates: RequestTemplates = PrivateAttr()
    _classes: dict[tuple[str, Any], Any] = PrivateAttr(default_factory=dict)
    _answer_path: AnswerPath = PrivateAttr()
    _secrets: tuple[str, ...] = PrivateAttr(())
    _hidden: re.Pattern[str] | None = PrivateAttr(None)

    @model_validator(mode="before")
    @classmethod
    def _repeat_where_keys_are_honoured(cls, content: Any) -> Any:
        if isinstance(content, dict) and content.get("idempotency_header") is not None:
            return {"lost_calls": "repeat", **content}
        return content

    @classmethod
    def read(cls, path: str, environment: Mapping[str, str]) -> ApiFile:
        """Return the description in a YAML file, local, or at ``gs://`` or ``s3://``."""
        return cls.of(*_content(path), path, environment)

    @classmethod
    def of(
        cls,
        content: Mapping[Any, Any],
        node: yaml.Node | None,
        path: str,
        environment: Mapping[str, str],
    ) -> ApiFile:
        """Return what the content of a file says; ``node`` is None for what was never written."""
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for key in content:
            if key not in known:
                raise InputError(f"{path}: {unknown_name('key', str(key), known)}")
        context = _Context(path, environment, _written_labels(node))
        try:
            return cls.model_validate(content, context=context)
        except ValidationError as error:
            raise _wrong(path, error) from None

    def model_post_init(self, context: Any) -> None:
        """Make the templates of requests from the file."""
        if not isinstance(context, _Context):
            raise TypeError("an ApiFile is made by ApiFile.read")
        self._templates = RequestTemplates(self, context.path, context.environment)
        wrong = self._templates.wrong
        self._answer_path = AnswerPath(self.answer, wrong)
        self._classes = classes_by_answer(self.labels, context.written_labels, wrong)
        self._secrets = tuple(dict.fromkeys(self._templates.values))
        # What the file itself spells out as an answer is not a secret.
        self._hidden = hiding({one for one in self._secrets if ("text", one) not in self._classes})

    @property
    def path(self) -> str:
        """The file."""
        return self._templates.path

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that requests are made of."""
        return self._templates.columns

    @property
    def secrets(self) -> tuple[str, ...]:
        """What came from environment variables, empty values left out."""
        return self._secrets

    @property
    def identity(self) -> str:
        """SHA-256 of the request, independent of the use of the answer; it contains no secret."""
        content = {
            "url": self.url,
            "method": self.method,
            "params": self.params,
            "json": self.json_body,
            "headers": sorted(name.lower() for name in self.headers),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def request(self, item: Item) -> Request:
        """Return the request of an item."""
        return self._templates.request(item)

    def take_texts(self) -> None:
        """Take texts of any length as answers, as models write them, and not only names of classes."""
        self._answer_path.longest = LONGEST_TEXT

    def answer_in(self, body: bytes | str) -> tuple[Any, str | None]:
        """Return the answer that a body holds, and None; or None, and why it holds none."""
        return self._answer_path.answer_in(body, self.redact)

    def class_of(self, value: Any) -> Any:
        """Return the class of an answer by ``labels``, None if it has none ("no result").

        Without ``labels`` an answer is its own class.
        """
        return value if self.labels is None else self._classes.get(kind(value))

    def redact(self, text: str) -> str:
        """Return a text with ``***`` for each secret, quoted, escaped or in base64 as well."""
        return text if self._hidden is None else self._hidden.sub(_HIDDEN, text)


class _Context(NamedTuple):
    """Where a file is, and how the answers of its labels are written there."""

    path: str
    environment: Mapping[str, str]
    written_labels: list[str]


def _content(path: str) -> tuple[dict[Any, Any], yaml.Node | None]:
    try:
        text = named_content(storage_path(path, "--api"), path).decode()
        content, node = parse_yaml(text)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise FileError(f"{path}: cannot be read ({reason})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: a mapping with 'url' and 'answer' is expected")
    return content, node


def _wrong(path: str, error: ValidationError) -> InputError:
    first = error.errors()[0]
    keys = [str(part) for part in first["loc"]]
    if first["type"] == "missing":
        return InputError(f"{path}: key {keys[0]!r} is missing; add it")
    # Of a value that may be of several types, the types follow the key.
    named = keys[:2] if keys[0] in ("headers", "params") else keys[:1]
    reason = first["msg"].replace("Input should be", "it must be")
    if first["type"] == "dict_type":
        reason = "write pairs, as {name: value}"
    return InputError(f"{path}, {'.'.join(named)}: {first['input']!r}: {reason}")


def _written_labels(node: yaml.Node | None) -> list[str]:
    """Return the keys of the labels as in the file, where NO is not a boolean."""
    if not isinstance(node, yaml.MappingNode):
        return []
    for key, value in node.value:
        if key.value == "labels" and isinstance(value, yaml.MappingNode):
            return [str(one.value) for one, _ in value.value]
    return []
