"""Secrets: environment variables, used by value and stored by name, and where a key may be sent.

Options of an engine may say ``${NAME}`` or ``${NAME:-default}``. The files of a run (the document,
its work folder, a dry run) contain that text; the value is looked up each time an engine is made.
This process remembers the values, so that an error or a log that repeats one shows the name in its
place. Keys are sent over https, or within this machine: others can read what http carries.
"""

from __future__ import annotations

import base64
import html
import ipaddress
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, urlsplit

from slicebeam.metrics.errors import InputError

ALLOW_HTTP = "--allow-http"
_allowed = False
# Signs that a URL of a user's holds as they are; spaces and letters with accents are quoted.
URL_SIGNS = "%/:?[]@!$&'()*+,;="
# A word as short as this may be part of others that are no secret.
_SHORT = 6


def hiding(secrets: Iterable[str]) -> re.Pattern[str] | None:
    """Return the expression of all that gives a secret away, None if nothing does."""
    forms: set[str] = set()
    for secret in secrets:
        forms |= {form for form in _forms(secret) if form.strip()}
    if not forms:
        return None
    longest_first = sorted(forms, key=lambda form: (-len(form), form))
    return re.compile("|".join(map(_expression, longest_first)))


def _expression(form: str) -> str:
    escaped = re.escape(form)
    if len(form) >= _SHORT:
        return escaped
    return rf"(?<![A-Za-z0-9]){escaped}(?![A-Za-z0-9])"


def _forms(secret: str) -> set[str]:
    quotings = {
        quote(secret, safe=""),
        quote(secret),
        quote(secret, safe=URL_SIGNS),
        quote_plus(secret),
    }
    once = _escaped(secret)
    return {
        secret,
        secret.strip(),
        *quotings,
        *(re.sub("%..", lambda found: found[0].lower(), one) for one in quotings),
        *once,
        # As where an answer in JSON quotes the request, which is JSON too.
        *(twice for one in once for twice in _escaped(one)),
        html.escape(secret),
        *_base64_forms(secret.encode()),
    }


def _escaped(text: str) -> set[str]:
    """Return the text as it stands between the quotation marks of JSON and of Python."""
    in_json = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    return {
        *in_json,
        *(one.replace("/", "\\/") for one in in_json),
        repr(text)[1:-1],
        repr(text.encode())[2:-1],
    }


def _base64_forms(secret: bytes) -> Iterator[str]:
    """Yield the secret in base64, also where it stands behind others, as in ``user:password``."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(secret).decode().rstrip("=")
        if len(secret) < _SHORT:
            continue
        for before in range(3):
            # Only the signs that the bytes before and after it have no part in.
            first, last = -(-before * 8 // 6), (before + len(secret)) * 8 // 6
            yield encode(bytes(before) + secret).decode()[first:last]


HIDDEN = "***"
# Shorter values are parts of too many words.
_SHORTEST = 4
# What ``${…}`` holds.
VARIABLE_NAME = r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?"
_VARIABLE = re.compile(rf"\$\{{{VARIABLE_NAME}\}}")
_HIDDEN_WORDS = (
    r"secret|passw(?:or)?d|passphrase|token|credentials?|api[_.-]?key|access[_.-]?key|account[_.-]?key"
    r"|private[_.-]?key|connection[_.-]?string|signature"
)
# The value may have a variable in it, whose braces are no end of a mapping.
_LITERAL = re.compile(
    rf"(?P<name>[\w.-]*(?:{_HIDDEN_WORDS})[\w.-]*['\"]?\s*[=:]\s*)"
    r"(?P<value>'[^']*'|\"[^\"]*\"|(?:\$\{[^}]*\}|[^\s,}\]'\"])+)",
    re.IGNORECASE,
)
_SECRET_NAME = re.compile(_HIDDEN_WORDS, re.IGNORECASE)

_shown: dict[str, str] = {}


def value_of(match: re.Match[str], where: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the value for the groups ``name`` and ``default`` of a match."""
    known = os.environ if environment is None else environment
    value = known.get(match["name"]) or match["default"]
    if value is None:
        raise InputError(f"{where}: the environment variable {match['name']} is not set; set it")
    return value


def resolved(value: Any, where: str) -> Any:
    """Return an option's value with the values of its variables, in lists and mappings as well."""
    if isinstance(value, dict):
        return {name: resolved(one, where) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(resolved(one, where) for one in value)
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        found = value_of(match, where)
        if os.environ.get(match["name"]):
            remember(found, f"${{{match['name']}}}")
        return found

    return _VARIABLE.sub(fill, value)


def remember(value: str, shown: str = HIDDEN) -> None:
    """Let `redacted` show something else in place of a value."""
    if len(value.strip()) >= _SHORTEST:
        _shown[value] = shown


def forget() -> None:
    """Remember nothing of earlier runs of this process."""
    _shown.clear()
    _pattern.cache_clear()


def redacted(text: str) -> str:
    """Return a text with the names of variables in place of their values.

    Values are found in URL quoting, in JSON and in base64 too; those of less than four characters are
    left.
    """
    if not _shown:
        return text
    values = tuple(sorted(_shown, key=len, reverse=True))
    hidden = _pattern(values)
    return hidden.sub(lambda match: _shown[values[int((match.lastgroup or "v0")[1:])]], text)


@lru_cache(1)
def _pattern(values: tuple[str, ...]) -> re.Pattern[str]:
    forms = ((at, hiding([value])) for at, value in enumerate(values))
    return re.compile(
        "|".join(f"(?P<v{at}>{form.pattern})" for at, form in forms if form is not None)
    )


def redact_file(path: Path) -> None:
    """Redact a log that other programs wrote; one that can't be written stays as it is."""
    if not _shown or not path.is_file():
        return
    with suppress(OSError):
        text = path.read_text("utf-8", "surrogateescape")
        clean = redacted(text)
        if clean != text:
            path.write_text(clean, "utf-8", "surrogateescape")


def without_literals(option: str) -> str:
    """Return an option of an engine without literal secrets.

    >>> without_literals("s3_secret_access_key=abcdef")
    's3_secret_access_key=***'
    >>> without_literals("s3_secret_access_key=${KEY}")
    's3_secret_access_key=${KEY}'
    """

    def hide(name: str, value: str, whole: str) -> str:
        if _VARIABLE.search(value) or value == HIDDEN:
            return whole
        remember(value)
        return name + HIDDEN

    key, equals, value = option.partition("=")
    if equals and is_secret(key):
        return hide(f"{key}=", value, option)
    return _LITERAL.sub(lambda m: hide(m["name"], m["value"].strip("'\""), m[0]), option)


def is_secret(name: str) -> bool:
    """Return whether an option or a variable of this name holds a secret.

    >>> is_secret("s3_secret_access_key"), is_secret("region")
    (True, False)
    """
    return bool(_SECRET_NAME.search(name))


def remember_literals(options: Any, name: str = "") -> None:
    """Remember the literal secrets in options, by the options' names."""
    if isinstance(options, dict):
        for key, value in options.items():
            remember_literals(value, str(key))
    elif isinstance(options, (list, tuple)):
        for value in options:
            remember_literals(value, name)
    elif isinstance(options, str):
        if _VARIABLE.fullmatch(options):
            return
        if is_secret(name):
            remember(options)
        else:
            without_literals(options)


def check_place(variable: str, where: str) -> None:
    """Refuse a variable in a path, which is written down as it is, where its name says secret."""
    if is_secret(variable):
        raise InputError(
            f"{where}: ${{{variable}}} has the name of a secret, and paths are written into the "
            "result; use another variable, or a path without it"
        )


def allow_http(allowed: bool) -> None:
    """Let keys of this process go over http, where the user insists, or no longer."""
    global _allowed  # noqa: PLW0603
    _allowed = allowed


def is_http_allowed() -> bool:
    """Return whether the user insists on http."""
    return _allowed


def is_loopback(host: str | None) -> bool:
    """Return whether the host of a URL is this machine, without a name server.

    >>> is_loopback("127.8.0.1"), is_loopback("::1"), is_loopback("127.0.0.1.example.org")
    (True, True, False)
    """
    with suppress(ValueError):
        return ipaddress.ip_address(host or "").is_loopback
    return (host or "").lower() == "localhost"


def refuse_plain_http(where: str, url: str, key: str, *, allowed: bool | None = None) -> None:
    """Refuse to send a key over ``http://`` to another machine, unless the user insists.

    ``where`` is the option or file of the URL; ``allowed`` None stands for the setting of this process.
    """
    parts, insists = urlsplit(url), _allowed if allowed is None else allowed
    if insists or parts.scheme.lower() != "http" or is_loopback(parts.hostname):
        return
    raise InputError(
        f"{where}: {key} would be sent to {parts.hostname} over http, where others can read it; write "
        f"https://, or give {ALLOW_HTTP} if you insist"
    )
