"""How an item becomes a request: templates with columns in them, and with secrets of the environment.

In a text ``{column}`` stands for a column of the item; else placeholders are those of `placeholders`.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

from slicebeam.metrics.errors import ColumnError, InputError, unknown_name
from slicebeam.pipelines.config.placeholders import parts_of
from slicebeam.transforms.secrets.plain_http import refuse_plain_http
from slicebeam.transforms.secrets.redaction import URL_SIGNS
from slicebeam.transforms.secrets.variables import value_of

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


class RequestFields(Protocol):
    """What an API file says of requests: templates, and how they are sent."""

    @property
    def url(self) -> str:
        """The template of the address."""

    @property
    def method(self) -> str:
        """The method of HTTP."""

    @property
    def headers(self) -> Mapping[str, str | bool | int | float]:
        """The templates of the headers."""

    @property
    def params(self) -> Mapping[str, str | bool | int | float]:
        """The templates of the parameters of the address."""

    @property
    def json_body(self) -> Any:
        """The template of the body, None for no body."""

    @property
    def idempotency_header(self) -> str | None:
        """The header by which the API knows a call that is repeated."""


@dataclass(frozen=True)
class _Placeholder:
    """Where a column of the item is filled in."""

    name: str
    as_base64: bool

    def value(self, item: Item) -> Any:
        """Return what JSON can hold of the item's value."""
        if self.name not in item.fields:
            raise ColumnError(
                f"item {item.key!r}: {unknown_name('column', self.name, item.fields)}"
            )
        value = item.fields[self.name]
        if hasattr(value, "item"):
            value = value.item()
        if value is None or (isinstance(value, float) and math.isnan(value)):
            raise InputError(
                f"item {item.key!r}: column {self.name!r} is missing (null), but the request "
                "needs it; leave such rows out of the pool"
            )
        if self.as_base64:
            if not isinstance(value, (bytes, bytearray, memoryview, str)):
                raise InputError(
                    f"item {item.key!r}: column {self.name!r} is neither binary nor text; write "
                    f"{{{self.name}}} without {_BASE64}"
                )
            data = value.encode() if isinstance(value, str) else bytes(value)
            return base64.b64encode(data).decode("ascii")
        return self._plain(item, value)

    def _plain(self, item: Item, value: Any) -> Any:
        if value is None or isinstance(value, (str, bool, int)):
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        if isinstance(value, Decimal) and value.is_finite():
            return int(value) if value == value.to_integral_value() else float(value)
        if isinstance(value, (date, time)):
            return value.isoformat()
        if isinstance(value, Mapping):
            return {str(name): self._plain(item, part) for name, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._plain(item, part) for part in value]
        if isinstance(value, (bytes, bytearray, memoryview)):
            raise InputError(
                f"item {item.key!r}: column {self.name!r} is binary; write {{{self.name}{_BASE64}}}"
            )
        shown = str(value)[:40]
        raise InputError(
            f"item {item.key!r}: column {self.name!r} holds {shown!r}, which JSON cannot "
            "represent; leave the row out or convert the column"
        )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, repr=False)
class _Text:
    """A text with columns in it; it may hold secrets, and is never shown."""

    parts: tuple[str | _Placeholder, ...]

    def value(self, item: Item) -> Any:
        """Return the text; of a single column its value, as JSON has it."""
        if len(self.parts) == 1 and isinstance(self.parts[0], _Placeholder):
            return self.parts[0].value(item)
        return self.text(item)

    def text(self, item: Item, quoted: Callable[[str], str] = str) -> str:
        """Return the text, with what each column holds quoted."""
        return "".join(
            part if isinstance(part, str) else quoted(_as_text(part.value(item)))
            for part in self.parts
        )

    @property
    def columns(self) -> Iterator[str]:
        """The columns in it."""
        return (part.name for part in self.parts if isinstance(part, _Placeholder))


def _in_url(text: str) -> str:
    return quote(text, safe="")


@dataclass(frozen=True, repr=False)
class Request:
    """A request of an item, with its secrets: never shown.

    Attributes
    ----------
    url : without the parameters
    params : names and values, not yet quoted
    headers : names and values
    body : JSON in UTF-8, None for a method that has none
    """

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


@dataclass(frozen=True, repr=False)
class Templates:
    """The templates of requests."""

    url: _Text
    params: dict[str, _Text]
    headers: dict[str, _Text]
    body: Any

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in them."""
        texts = [self.url, *self.params.values(), *self.headers.values(), *_texts(self.body)]
        return tuple(dict.fromkeys(name for text in texts for name in text.columns))

    def request(self, item: Item) -> Request:
        """Return the request of an item.

        Raises
        ------
        InputError
            A column that it needs is missing, or holds what a request can't.
        """
        body = None
        headers = {}
        if self.body is not None:
            body = _ENCODE(_filled(self.body, item)).encode("utf-8", "replace")
            headers["Content-Type"] = "application/json"
        for name, template in self.headers.items():
            value = template.text(item)
            if not value.isprintable():
                raise InputError(
                    f"item {item.key!r}: header {name!r} would contain a line break or a control "
                    "character; send that column in json or params"
                )
            # One of the same name, however written, is replaced.
            headers = {key: one for key, one in headers.items() if key.lower() != name.lower()}
            headers[name] = value
        params = tuple((name, text.text(item)) for name, text in self.params.items())
        return Request(self.url.text(item, _in_url), params, headers, body)


@dataclass
class TemplateReader:
    """Makes templates from a file, and records which values came from the environment.

    Attributes
    ----------
    environment : the variables that ``${NAME}`` stands for
    values : of the requested ones, in their order
    keys : where in the file what may be a key stands
    """

    path: str
    environment: Mapping[str, str]
    values: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def wrong(self, key: str, what: str) -> InputError:
        """Return the error of a key."""
        return InputError(f"{self.path}, {key}: {what}")

    def templates(self, api: RequestFields) -> Templates:
        """Return what requests are made of.

        Raises
        ------
        InputError
            What the file says makes no request, or a variable is not set.
        """
        if api.method == "GET" and api.json_body is not None:
            raise self.wrong("json", "a GET request has no body; use params, or method: POST")
        if api.idempotency_header is not None:
            self._check_header("idempotency_header", api.idempotency_header)
        headers = {}
        for name, value in api.headers.items():
            key = f"headers.{name}"
            self._check_header(key, name)
            if name.lower() == (api.idempotency_header or "").lower():
                raise self.wrong(key, "the idempotency_header is set for each call; leave it out")
            headers[name] = self._template(key, _as_text(value))
            if not all(
                isinstance(part, _Placeholder) or part.isprintable() for part in headers[name].parts
            ):
                raise self.wrong(key, "it contains a line break or a control character; remove it")
        params = {
            name: self._template(f"params.{name}", _as_text(value))
            for name, value in api.params.items()
        }
        for part, names in (("headers", headers), ("params", params)):
            self.keys += [f"{part}.{name}" for name in names if _KEY_NAME.search(name)]
        made = Templates(self._url(api.url), params, headers, self._body("json", api.json_body))
        self._check_scheme(api.url, made.url)
        return made

    def _check_scheme(self, template: str, url: _Text) -> None:
        """Refuse to send what may be a key where others can read it."""
        first = url.parts[0]
        address = first if isinstance(first, str) else ""
        # A variable that is the host is no key.
        behind = re.sub(r"^https?://(\$\{[^{}]*\}|[^/?#])*", "", template, flags=re.IGNORECASE)
        keys = [key for key in self.keys if key != "url" or "${" in behind]
        if "@" in urlsplit(address).netloc:
            keys.append("url")
        if keys:
            refuse_plain_http(f"{self.path}, url", address, f"the key in {keys[0]}")

    def _check_header(self, key: str, name: str) -> None:
        if not _HEADER_NAME.fullmatch(name):
            raise self.wrong(key, f"{name!r} is not a header name")
        if name.lower() in _OWN_HEADERS:
            raise self.wrong(key, f"{name!r} is set by the client; leave it out")

    def _url(self, template: str) -> _Text:
        text = self._template("url", template)
        first = text.parts[0] if text.parts else ""
        host = _HOST.match(first) if isinstance(first, str) else None
        if host is None:
            raise self.wrong("url", f"{template!r} is not a URL; write it as https://host/path")
        if len(text.parts) > 1 and isinstance(first, str) and host.end() == len(first):
            raise self.wrong(
                "url",
                f"{template!r}: a column must not decide where secrets are sent; write the host out",
            )
        if any(isinstance(part, str) and "#" in part for part in text.parts):
            raise self.wrong("url", f"{template!r}: the part after # is never sent; leave it out")
        spelt = host[0] + quote(host.string[host.end() :], safe=URL_SIGNS)
        rest = (
            quote(part, safe=URL_SIGNS) if isinstance(part, str) else part
            for part in text.parts[1:]
        )
        return _Text((spelt, *rest))

    def _body(self, key: str, template: Any) -> Any:
        if isinstance(template, str):
            return self._template(key, template)
        if isinstance(template, dict):
            for name in template:
                if not isinstance(name, str):
                    raise self.wrong(key, f"the key {name!r} is not text; put it in quotes")
            return {name: self._body(f"{key}.{name}", part) for name, part in template.items()}
        if isinstance(template, list):
            return [self._body(f"{key}[{at}]", part) for at, part in enumerate(template)]
        if isinstance(template, float) and not math.isfinite(template):
            raise self.wrong(key, f"{template} is not a number in JSON")
        if template is not None and not isinstance(template, (bool, int, float)):
            raise self.wrong(key, f"{template!r} is not a JSON value; put it in quotes")
        return template

    def _template(self, key: str, template: str) -> _Text:
        parts: list[str | _Placeholder] = []
        for part in parts_of(template, f"{self.path}, {key}", partial(self._variable, key)):
            if isinstance(part, str):
                parts.append(part)
            elif part.name:
                parts.append(
                    _Placeholder(part.name.removesuffix(_BASE64), part.name.endswith(_BASE64))
                )
            else:
                raise self.wrong(
                    key, f"{template!r}: write {{column}} for a column, and {{{{ for a brace"
                )
        return _Text(tuple(parts))

    def _variable(self, key: str, variable: re.Match[str]) -> str:
        given = self.environment.get(variable["name"])
        if given:
            # A default is spelt out in the file, and is not a secret.
            self.values.append(given)
        elif given is None or variable["default"] is not None:
            given = value_of(variable, f"{self.path}, {key}", self.environment)
        self.keys.append(key)
        return given


def _texts(template: Any) -> Iterator[_Text]:
    if isinstance(template, _Text):
        yield template
    elif isinstance(template, (dict, list)):
        for part in template.values() if isinstance(template, dict) else template:
            yield from _texts(part)


def _filled(template: Any, item: Item) -> Any:
    if isinstance(template, _Text):
        return template.value(item)
    if isinstance(template, dict):
        return {name: _filled(part, item) for name, part in template.items()}
    if isinstance(template, list):
        return [_filled(part, item) for part in template]
    return template
