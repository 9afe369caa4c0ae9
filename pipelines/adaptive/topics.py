"""Topics: the folders of a test tree, such as ``/Facilities/Restaurant``.

The root is ``""``. Topics are often percent-encoded, but not always; they are compared as they are
written, and decoded only to be shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from slicebeam.metrics.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Collection

SUGGESTIONS = "/__suggestions__"


def parent(topic: str) -> str:
    """Return the topic above; of the root the root.

    >>> parent("/Facilities/Restaurant"), parent("/Facilities")
    ('/Facilities', '')
    """
    return topic.rpartition("/")[0]


def with_ancestors(topic: str) -> tuple[str, ...]:
    """Return a topic and all above it, the root first.

    >>> with_ancestors("/Facilities/Restaurant")
    ('', '/Facilities', '/Facilities/Restaurant')
    """
    parts = topic.split("/")
    return tuple("/".join(parts[:end]) for end in range(1, len(parts) + 1))


def is_within(topic: str, ancestor: str) -> bool:
    """Whether a topic is the other one, or below it.

    >>> is_within("/Price/Taxes", "/Price"), is_within("/Prices", "/Price"), is_within("/Price", "")
    (True, False, True)
    """
    return topic == ancestor or topic.startswith(f"{ancestor}/")


def is_topic(text: str) -> bool:
    """Whether a text is a topic: the root, or names after slashes.

    >>> is_topic(""), is_topic("/A/B"), is_topic("A")
    (True, True, False)
    """
    return text == "" or text.startswith("/")


def below(topic: str, name: str) -> str:
    """Return the topic of a name below another one, percent-encoded as AdaTest writes it.

    >>> below("/Price", "Taxes & fees")
    '/Price/Taxes%20%26%20fees'
    """
    return f"{topic}/{quote(name, safe='')}"


def displayed(topic: str) -> str:
    """Return a topic as people read it; the root is ``/``.

    >>> displayed("/Price/Taxes%20%26%20fees"), displayed("/Vocabulary+POS"), displayed("")
    ('/Price/Taxes & fees', '/Vocabulary+POS', '/')
    """
    return unquote(topic) or "/"


def encoded(text: str, topics: Collection[str], option: str = "") -> str:
    """Return a topic that a person wrote as the tree writes it; of a new one the new names are encoded.

    >>> encoded("/Vocabulary+POS/Not bad", ["/Vocabulary+POS"])
    '/Vocabulary+POS/Not%20bad'
    """
    topic = text.strip().rstrip("/")
    if not is_topic(topic) or "//" in topic or SUGGESTIONS in topic:
        where = f"{option} " if option else ""
        raise InputError(f"{where}{text!r} is not a valid topic; write it as /Price/Taxes")
    spelt = {displayed(one): one for one in topics}
    if topic in topics or topic == "":
        return topic
    if topic in spelt:
        return spelt[topic]
    above, _, name = topic.rpartition("/")
    return below(encoded(above, topics), unquote(name))
