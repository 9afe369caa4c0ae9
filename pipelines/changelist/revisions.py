"""Revisions of a ChangeList: a document never changes; an edit writes a new one next to it.

``changelist.json`` is revision 0, and ``changelist.r3.json`` in the same folder is revision 3, which
says from which revision it was made, and by which edits.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.changelist.discovered import Parent
from slicebeam.pipelines.changelist.document import ChangeList, SearchChangeList
from slicebeam.pipelines.changelist.reading import CHANGELIST, read_changelist, read_search
from slicebeam.transforms.storage.publish import sha256_of
from slicebeam.transforms.storage.storage import (
    StoragePath,
    open_input,
    remove_abandoned,
    storage_errors,
    storage_path,
    written_new,
)

P = ParamSpec("P")
Result = TypeVar("Result")

_NAME = re.compile(r"changelist\.r([1-9][0-9]*)\.json")
# The seconds after which a name without content is taken for one that a killed writer left.
_ABANDONED = 60.0


class SupersededError(EngineError):
    """The document that was edited is not the last revision any more; nothing was written."""


def revision_path(folder: StoragePath, revision: int) -> StoragePath:
    """Return the path of a revision."""
    return folder / (f"changelist.r{revision}.json" if revision else CHANGELIST)


def revisions(folder: StoragePath) -> list[int]:
    """Return the numbers of the revisions after the first that are in a folder, ascending."""
    with storage_errors(folder, "read"):
        names = [
            name
            for path in folder.iterdir()
            if (name := _NAME.fullmatch(path.name))
            # Of a bucket each would be a request.
            and (not isinstance(path, Path) or path.is_file())
        ]
    return sorted(int(name[1]) for name in names)


def latest(folder: StoragePath, option: str = "--changelist") -> StoragePath:
    """Return the path of the last revision of the document in a folder; those of another are passed over."""
    first = folder / CHANGELIST
    if not first.is_file():
        raise InputError(f"{option} {folder}: there is no {CHANGELIST} in this folder")
    changelist_id = read_changelist(str(first), option).changelist_id
    for number in reversed(revisions(folder)):
        path = revision_path(folder, number)
        # What cannot be read may hold edits: that is an error, and not passed over.
        if not _is_reserved(path) and read_search(str(path), option).changelist_id == changelist_id:
            return path
    return first


def later_revision(
    folder: StoragePath, document: ChangeList, taken: list[int] | None = None
) -> StoragePath | None:
    """Return the path of a later revision of a document; for a writer, among ``taken``, also of a mere name."""
    for number in reversed(revisions(folder) if taken is None else taken):
        path = revision_path(folder, number)
        if number <= document.revision:
            return None
        if isinstance(path, Path) and _is_reserved(path):
            if taken is not None and time.time() - path.stat().st_mtime < _ABANDONED:
                return path
            continue
        # One that can't be read holds no edit.
        with suppress(InputError):
            if read_search(str(path), "--changelist").changelist_id == document.changelist_id:
                return path
    return None


def base_of(uri: str, option: str = "--changelist") -> str:
    """Return the path of a document: of a folder, that of the last revision in it."""
    path = storage_path(uri, option)
    return str(latest(path, option)) if path.is_dir() else uri


def publish_revision(
    base_uri: str, base: SearchChangeList, changed: SearchChangeList, *, is_last: bool = False
) -> tuple[SearchChangeList, StoragePath]:
    """Write a changed document as the next revision, and return it as it was written, with its path.

    Of several writers at a time each gets another number. ``is_last``: whether the document that was
    changed has to be the last revision, so that no edit is lost.
    """
    path = storage_path(base_uri)
    with storage_errors(path, "read"), open_input(path) as stream:
        fingerprint = f"sha256:{sha256_of(stream)}"
    if read_search(base_uri, "--changelist").to_json() != base.to_json():
        raise EngineError(
            f"{base_uri} was replaced by another run in the meantime; run the command again"
        )
    parent = Parent(
        changelist_id=base.changelist_id, revision=base.revision, fingerprint=fingerprint
    )
    number = base.revision
    while True:
        # Of one listing: what comes after it must not be passed over by a larger number.
        taken = revisions(path.parent)
        if is_last and (later := later_revision(path.parent, base, taken)):
            raise SupersededError(
                f"{later.name} was written in the meantime; run the command again"
            )
        # A number that somebody has taken just now may not be listed yet.
        number = max(number, *taken, 0) + 1
        update = {"parent": parent, "replaced_files": None, "revision": number}
        last = revision_path(path.parent, number - 1)
        if isinstance(last, Path):
            # Its writer may have been killed when it had its name.
            remove_abandoned(last)
        target = revision_path(path.parent, number)
        if written_new(target, changed.model_copy(update=update).to_json().encode()):
            return read_search(str(target), "--changelist"), target


def from_last(edit: Callable[P, Result]) -> Callable[P, Result]:
    """Let an edit begin anew, from the last revision, when another edit was written meanwhile."""

    @wraps(edit)
    def edited(*args: P.args, **kwargs: P.kwargs) -> Result:
        while True:
            with suppress(SupersededError):
                return edit(*args, **kwargs)
            # The other one may still be writing.
            time.sleep(0.02)

    return edited


def _is_reserved(path: StoragePath) -> bool:
    with storage_errors(path, "read"):
        return isinstance(path, Path) and path.stat().st_size == 0
