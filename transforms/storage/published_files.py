"""The files that a document names: tables next to it, of which one name never has two contents.

``slices.0123456789ab.parquet`` is such a name. The same content also stands under the well-known
name ``slices.parquet``, which changes with every publication.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

# A document comes from anywhere; a name in it never leads out of its folder.
NAME_PATTERN = r"^[a-z]+\.[0-9a-f]{12}\.[a-z]+$"
_NAME = re.compile(r"([a-z]+)\.[0-9a-f]{12}(\.[a-z]+)")


@dataclass(frozen=True)
class DocumentFile:
    """A file that a document names, under a name that no other content ever has."""

    name: str
    sha256: str
    size: int

    @property
    def well_known(self) -> str:
        """The name under which the file of the last publication stands."""
        return well_known(self.name)


def well_known(name: str) -> str:
    """Return the name under which a file stands that a document names by a name of its own.

    >>> well_known("slices.d1f83c09e2bd.parquet")
    'slices.parquet'
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not the name of a published file")
    return found[1] + found[2]


def own_name(well_known: str, sha256: str, before: str) -> str:
    """Return the name of a file with this content, written over this version of a document.

    So a name that a replaced document used is never used again, and its file can be removed meanwhile.

    >>> own_name("slices.parquet", "ab12", "")
    'slices.c82cc94b6048.parquet'
    """
    stem, _, kind = well_known.partition(".")
    digest = hashlib.sha256(f"{before} {sha256}".encode()).hexdigest()
    return f"{stem}.{digest[:12]}.{kind}"


def is_own_name(name: str) -> bool:
    """Whether a file bears such a name."""
    return _NAME.fullmatch(name) is not None


def files_in(document: bytes) -> tuple[tuple[DocumentFile, ...], tuple[DocumentFile, ...]]:
    """Return the files that a document names, and those that it says it replaces.

    What is not a document of this kind, or one of an earlier version, names none.
    """
    try:
        content = json.loads(document)
    except ValueError:
        return (), ()
    if not isinstance(content, dict):
        return (), ()
    named, replaced = content.get("files"), content.get("replaced_files")
    return (
        _files(list(named.values()) if isinstance(named, dict) else []),
        _files(replaced if isinstance(replaced, list) else []),
    )


def _files(entries: list[Any]) -> tuple[DocumentFile, ...]:
    found = []
    for one in entries:
        if isinstance(one, dict) and is_own_name(str(one.get("name"))):
            sha256 = str(one.get("sha256")).removeprefix("sha256:")
            found.append(DocumentFile(str(one["name"]), sha256, int(one.get("size") or 0)))
    return tuple(found)
