"""Removes secrets from output, in whatever form they come back."""

from __future__ import annotations

import base64
import html
import json
import re
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
