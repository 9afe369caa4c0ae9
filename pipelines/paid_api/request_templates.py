"""How an item becomes a request: templates with columns in them, and with secrets of the environment.

In a text ``{column}`` stands for a column of the item; else placeholders are those of `placeholders`.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from pydantic import BaseModel, ConfigDict, Field

from slicebeam.metrics.errors import ColumnError, InputError, unknown_name
from slicebeam.pipelines.config.placeholders import split_placeholders
from slicebeam.transforms.storage.secrets import URL_SIGNS, refuse_plain_http, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slicebeam.pipelines.paid_api.calls import Item

_BASE64 = ":base64"
_HOST = re.compile(r"https?://[^\s/?#]+", re.IGNORECASE)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# Headers and parameters that hold a key, also where it is spelt out.
_KEY_NAME = re.compile(
    r"authorization|cookie|\bkey\b|[-_.]key\b|apikey|(?:^|[-_.])token\b|secret|passw|signature|credential",
    re.IGNORECASE,
)
# Only the client may say where a request ends.
_OWN_HEADERS = {"content-length", "transfer-encoding", "connection"}
# Made once: an encoder costs more than a body.
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


Scalar = str | bool | int | float


class RequestFields(BaseModel):
    """What an API file says of requests: templates, and how they are sent."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    url: str
    method: Literal["GET", "POST", "PUT", "PATCH"] = "POST"
    headers: dict[str, Scalar] = {}
    params: dict[str, Scalar] = {}
    json_body: Any = Field(default=None, alias="json")
    idempotency_header: str | None = "Idempotency-Key"


class _Column(NamedTuple):
    """Where a column of the item is filled in."""

    name: str
    as_base64: bool


# A text with columns in it. In the template of a body lists and dictionaries have such texts.
_Text = tuple[str | _Column, ...]


@dataclass(frozen=True, repr=False)
class Request:
    """A request of an item, with its secrets: never shown; ``params`` are not yet quoted."""

    url: str
    params: tuple[tuple[str, str], ...]
    headers: dict[str, str]
    body: bytes | None

    @property
    def address(self) -> str:
        """The URL with the parameters, quoted."""
        if not self.params:
            return self.url
        return (
            f"{self.url}{'&' if '?' in self.url else '?'}{urlencode(self.params, quote_via=quote)}"
        )


class RequestTemplates:
    """The templates of an API's requests; they may hold secrets, and are never shown.

    ``values`` are those of the environment variables in them; defaults are not secrets.
    """

    def __init__(self, api: RequestFields, path: str, environment: Mapping[str, str]) -> None:
        self.path, self._environment = path, environment
        self.values: list[str] = []
        # Where in the file what may be a key stands.
        self._keys: list[str] = []
        if api.method == "GET" and api.json_body is not None:
            raise self.wrong("json", "a GET request has no body; use params, or method: POST")
        if api.idempotency_header is not None:
            self._check_header("idempotency_header", api.idempotency_header)
        self._headers = {
            name: self._header(f"headers.{name}", name, value, api.idempotency_header)
            for name, value in api.headers.items()
        }
        self._params = {
            name: self._text(f"params.{name}", _as_text(value))
            for name, value in api.params.items()
        }
        for part, names in (("headers", api.headers), ("params", api.params)):
            self._keys += [f"{part}.{name}" for name in names if _KEY_NAME.search(name)]
        self._url = self._read_url(api.url)
        self._body = self._read_body("json", api.json_body)
        self._check_scheme(api.url)

    def wrong(self, key: str, what: str) -> InputError:
        """Return the error of a key of the file."""
        return InputError(f"{self.path}, {key}: {what}")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in them."""
        texts = (self._url, *self._params.values(), *self._headers.values(), *_texts(self._body))
        parts = (part for text in texts for part in text)
        return tuple(dict.fromkeys(part.name for part in parts if isinstance(part, _Column)))

    def request(self, item: Item) -> Request:
        """Return the request of an item; refuse a column that is missing, or holds what it can't."""
        body = None
        headers = {}
        if self._body is not None:
            body = _ENCODE(_filled(self._body, item)).encode("utf-8", "replace")
            headers["Content-Type"] = "application/json"
        for name, template in self._headers.items():
            value = _spelt(template, item)
            if not value.isprintable():
                raise InputError(
                    f"item {item.key!r}: header {name!r} would contain a line break or a control "
                    "character; send that column in json or params"
                )
            # One of the same name, however written, is replaced.
            headers = {key: old for key, old in headers.items() if key.lower() != name.lower()}
            headers[name] = value
        params = tuple((name, _spelt(text, item)) for name, text in self._params.items())
        return Request(_spelt(self._url, item, partial(quote, safe="")), params, headers, body)

    def _check_scheme(self, template: str) -> None:
        """Refuse to send what may be a key where others can read it."""
        address = self._url[0] if isinstance(self._url[0], str) else ""
        # A variable that is the host is no key.
        behind = re.sub(r"^https?://(\$\{[^{}]*\}|[^/?#])*", "", template, flags=re.IGNORECASE)
        keys = [key for key in self._keys if key != "url" or "${" in behind]
        if "@" in urlsplit(address).netloc:
            keys.append("url")
        if keys:
            refuse_plain_http(f"{self.path}, url", address, f"the key in {keys[0]}")

    def _check_header(self, key: str, name: str) -> None:
        if not _HEADER_NAME.fullmatch(name):
            raise self.wrong(key, f"{name!r} is not a header name")
        if name.lower() in _OWN_HEADERS:
            raise self.wrong(key, f"{name!r} is set by the client; leave it out")

    def _header(self, key: str, name: str, value: Any, idempotency_header: str | None) -> _Text:
        self._check_header(key, name)
        if name.lower() == (idempotency_header or "").lower():
            raise self.wrong(key, "the idempotency_header is set for each call; leave it out")
        text = self._text(key, _as_text(value))
        if not all(isinstance(part, _Column) or part.isprintable() for part in text):
            raise self.wrong(key, "it contains a line break or a control character; remove it")
        return text

    def _read_url(self, template: str) -> _Text:
        first, *others = self._text("url", template) or ("",)
        host = _HOST.match(first) if isinstance(first, str) else None
        if host is None:
            raise self.wrong("url", f"{template!r} is not a URL; write it as https://host/path")
        if others and host.end() == len(host.string):
            raise self.wrong(
                "url",
                f"{template!r}: a column must not decide where secrets are sent; write the host out",
            )
        if any(isinstance(part, str) and "#" in part for part in (first, *others)):
            raise self.wrong("url", f"{template!r}: the part after # is never sent; leave it out")
        path = (host.string[host.end() :], *others)
        spelt = [quote(part, safe=URL_SIGNS) if isinstance(part, str) else part for part in path]
        return (f"{host[0]}{spelt[0]}", *spelt[1:])

    def _read_body(self, key: str, template: Any) -> Any:
        if isinstance(template, str):
            return self._text(key, template)
        if isinstance(template, dict):
            for name in template:
                if not isinstance(name, str):
                    raise self.wrong(key, f"the key {name!r} is not text; put it in quotes")
            return {name: self._read_body(f"{key}.{name}", part) for name, part in template.items()}
        if isinstance(template, list):
            return [self._read_body(f"{key}[{at}]", part) for at, part in enumerate(template)]
        if isinstance(template, float) and not math.isfinite(template):
            raise self.wrong(key, f"{template} is not a number in JSON")
        if template is not None and not isinstance(template, (bool, int, float)):
            raise self.wrong(key, f"{template!r} is not a JSON value; put it in quotes")
        return template

    def _text(self, key: str, template: str) -> _Text:
        parts: list[str | _Column] = []
        for part in split_placeholders(
            template, f"{self.path}, {key}", partial(self._variable, key)
        ):
            if isinstance(part, str):
                parts.append(part)
            elif name := part["name"]:
                parts.append(_Column(name.removesuffix(_BASE64), name.endswith(_BASE64)))
            else:
                raise self.wrong(
                    key, f"{template!r}: write {{column}} for a column, and {{{{ for a brace"
                )
        return tuple(parts)

    def _variable(self, key: str, variable: re.Match[str]) -> str:
        value = self._environment.get(variable["name"])
        if value:
            self.values.append(value)
        elif value is None or variable["default"] is not None:
            value = value_of(variable, f"{self.path}, {key}", self._environment)
        self._keys.append(key)
        return value


def _texts(template: Any) -> Iterator[_Text]:
    if isinstance(template, tuple):
        yield template
    elif isinstance(template, (dict, list)):
        for part in template.values() if isinstance(template, dict) else template:
            yield from _texts(part)


def _filled(template: Any, item: Item) -> Any:
    """Return the template of a body with the item's values; that of a single column as JSON has it."""
    if isinstance(template, tuple):
        is_column = len(template) == 1 and isinstance(template[0], _Column)
        return _value(template[0], item) if is_column else _spelt(template, item)
    if isinstance(template, dict):
        return {name: _filled(part, item) for name, part in template.items()}
    if isinstance(template, list):
        return [_filled(part, item) for part in template]
    return template


def _spelt(text: _Text, item: Item, quoted: Callable[[str], str] = str) -> str:
    """Return a text with the item's values, quoted."""
    return "".join(
        part if isinstance(part, str) else quoted(_as_text(_value(part, item))) for part in text
    )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _value(column: _Column, item: Item) -> Any:
    """Return what JSON can hold of the item's value."""
    name, where = column.name, f"item {item.key!r}: column {column.name!r}"
    if name not in item.fields:
        raise ColumnError(f"item {item.key!r}: {unknown_name('column', name, item.fields)}")
    value = item.fields[name]
    if hasattr(value, "item"):
        value = value.item()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise InputError(
            f"{where} is missing (null), but the request needs it; leave such rows out of the pool"
        )
    if not column.as_base64:
        return _plain(value, name, where)
    if not isinstance(value, (bytes, bytearray, memoryview, str)):
        raise InputError(f"{where} is neither binary nor text; write {{{name}}} without {_BASE64}")
    data = value.encode() if isinstance(value, str) else bytes(value)
    return base64.b64encode(data).decode("ascii")


def _plain(value: Any, name: str, where: str) -> Any:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, Decimal) and value.is_finite():
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _plain(part, name, where) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part, name, where) for part in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise InputError(f"{where} is binary; write {{{name}{_BASE64}}}")
    raise InputError(
        f"{where} holds {str(value)[:40]!r}, which JSON cannot represent; leave the row out or convert "
        "the column"
    )
