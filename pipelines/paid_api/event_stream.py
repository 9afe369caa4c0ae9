"""Completions that come as a stream of server-sent events, put together as if they had come whole."""

from __future__ import annotations

import json

_DATA, _DONE = "data:", "[DONE]"
_BEGINNINGS = ("data:", "event:", "id:", "retry:", ":")


def is_event_stream(body: str) -> bool:
    """Whether a body is a stream of events; no JSON begins like one.

    >>> is_event_stream('data: {"choices": []}'), is_event_stream('{"data": 1}')
    (True, False)
    """
    return body.lstrip("\ufeff\r\n ").startswith(_BEGINNINGS)


def whole_completion(body: str) -> str | None:
    """Return the JSON of the completion that a stream of events spells, None where it broke off.

    What ``/v1/completions`` streams becomes ``choices[0].text``, what ``/v1/chat/completions`` streams
    ``choices[0].message.content``; each is there under both names. A stream is whole where ``[DONE]``
    or a reason to finish stands in it.

    >>> whole_completion('data: {"choices": [{"text": "a"}]}')
    """
    pieces: list[str] = []
    is_whole = False
    for line in body.splitlines():
        if not line.startswith(_DATA):
            continue
        data = line[len(_DATA) :].strip()
        if data == _DONE:
            is_whole = True
            break
        try:
            event = json.loads(data)
            choices = event["choices"]
        except (ValueError, KeyError, TypeError, RecursionError):
            # Such as an error in the midst of it.
            return None
        for choice in choices[:1]:
            delta = choice.get("delta") or {}
            piece = choice.get("text") or delta.get("content") or ""
            pieces.append(str(piece))
            is_whole = is_whole or bool(choice.get("finish_reason"))
    if not is_whole:
        return None
    text = "".join(pieces)
    return json.dumps({"choices": [{"text": text, "message": {"content": text}}]})
