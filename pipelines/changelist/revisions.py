"""Revisions of a ChangeList: a document never changes; an edit writes a new one next to it.

``changelist.json`` is revision 0, and ``changelist.r3.json`` in the same folder is revision 3, which
says from which revision it was made, and by which edits.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import time
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.changelist.discovered import Parent
from slicebeam.pipelines.changelist.reading import CHANGELIST, read_search
from slicebeam.transforms.storage.object_stores import VersionConflictError
from slicebeam.transforms.storage.publish import sha256_of
from slicebeam.transforms.storage.storage import (
    locked,
    open_input,
    settle,
    storage_errors,
    storage_path,
    sync_folder,
    temporary_beside,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import ParamSpec

    from slicebeam.pipelines.changelist.discovered import Edit
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.transforms.storage.storage import ObjectPath, StoragePath

    P = ParamSpec("P")

Result = TypeVar("Result")

_NAME = re.compile(r"changelist\.r([1-9][0-9]*)\.json")
_SHA256 = "sha256"
# What a writer that was killed left, and the seconds after which it is taken for that.
_LEFT, _ABANDONED = ".changelist.r*.json.????????", 60.0


class SupersededError(EngineError):
    """The document that was edited is not the last revision any more; nothing was written."""


def revision_path(folder: StoragePath, revision: int) -> StoragePath:
    """Return the path of a revision."""
    return folder / (f"changelist.r{revision}.json" if revision else CHANGELIST)


def revisions(folder: StoragePath) -> list[int]:
    """Return the numbers of the revisions after the first that are in a folder, ascending."""
    with storage_errors(folder, "read"):
        found = [
            name
            for path in folder.iterdir()
            if (name := _NAME.fullmatch(path.name))
            # Of a bucket each would be a request.
            and (not isinstance(path, Path) or path.is_file())
        ]
    return sorted(int(name[1]) for name in found)


def latest(folder: StoragePath, option: str = "--changelist") -> StoragePath:
    """Return the path of the last revision of the document in a folder.

    Revisions of another document, which a run has replaced since, are passed over.
    """
    first = folder / CHANGELIST
    own = read_search(str(first), option).changelist_id if first.is_file() else None
    for number in reversed(revisions(folder)):
        path = revision_path(folder, number)
        if not _is_reserved(path) and own in (None, read_search(str(path), option).changelist_id):
            return path
    if own is None:
        raise InputError(f"{option} {folder}: there is no {CHANGELIST} in this folder")
    return first


def later_revision(folder: StoragePath, document: SearchChangeList) -> StoragePath | None:
    """Return the path of a later revision of a document than it is itself, None if there is none."""
    for number in reversed(revisions(folder)):
        path = revision_path(folder, number)
        # One that can't be read is no reason not to continue from an earlier one.
        with suppress(InputError):
            if number > document.revision and (
                read_search(str(path), "--changelist").changelist_id == document.changelist_id
            ):
                return path
    return None


def base_of(uri: str, option: str = "--changelist") -> str:
    """Return the path of a document: of a folder, that of the last revision in it."""
    path = storage_path(uri, option)
    return str(latest(path, option)) if path.is_dir() else uri


def publish_revision(
    base_uri: str,
    base: SearchChangeList,
    changed: SearchChangeList,
    edits: tuple[Edit, ...],
    *,
    is_last: bool = False,
) -> tuple[SearchChangeList, StoragePath]:
    """Write a changed document as the next revision, and return it as it was written, with its path.

    Of several who do so at a time each gets a number of its own.

    ``base_uri``: path of the changed document; any revision. ``is_last``: whether the changed
    document has to be the last revision, so that no edit is lost.
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
    update = {
        "parent": parent,
        "edits": (*base.edits, *edits),
        "changelist_id": base.changelist_id,
        "files": base.files,
        "replaced_files": None,
    }
    number = base.revision
    while True:
        taken = revisions(path.parent)
        if is_last:
            _check_last(path.parent, base, taken)
        # A number that somebody has taken just now may not be listed yet.
        number = max(number, *taken, 0) + 1
        document = changed.model_copy(update={**update, "revision": number})
        target = revision_path(path.parent, number)
        if _created(target, document.to_json().encode()):
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


def _check_last(folder: StoragePath, base: SearchChangeList, taken: list[int]) -> None:
    """Refuse to go on from a document of which there is a later revision, or just comes to be."""
    for number in taken:
        path = revision_path(folder, number)
        if number <= base.revision:
            continue
        is_later = False
        if isinstance(path, Path) and _is_reserved(path):
            is_later = time.time() - path.stat().st_mtime < _ABANDONED
        else:
            # One that can't be read holds no edit that could get lost.
            with suppress(InputError):
                later = read_search(str(path), "--changelist")
                is_later = later.changelist_id == base.changelist_id
        if is_later:
            raise SupersededError(f"{path.name} was written in the meantime; run the command again")


def _created(path: StoragePath, content: bytes) -> bool:
    """Write a file where there is none of this name, and say whether that was so."""
    if not isinstance(path, Path):
        return _created_object(path, content)
    _remove_abandoned(path.parent)
    with temporary_beside(path) as (stream, temporary), storage_errors(path, "write"):
        stream.write(content)
        settle(stream, temporary)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:
            # A file system without links: an empty file keeps the name until the whole one is there.
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return False
            temporary.replace(path)
        sync_folder(path.parent)
    return True


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed writers left long ago: a living one locks its file when it has made it."""
    for left in folder.glob(_LEFT):
        if left.is_symlink() or not left.is_file():
            continue
        with suppress(OSError), left.open("rb") as stream:
            age = time.time() - os.fstat(stream.fileno()).st_mtime
            if age > _ABANDONED and locked(stream.fileno()):
                left.unlink()


def _created_object(path: ObjectPath, content: bytes) -> bool:
    digest = hashlib.sha256(content).hexdigest()
    metadata = {_SHA256: digest}
    try:
        path.store.write(path.bucket, path.key, io.BytesIO(content), metadata, is_new=True)
    except VersionConflictError:
        # The answer to the write may have got lost, and the repeated request met its own object.
        found = path.store.facts(path.bucket, path.key)
        return found is not None and found.metadata.get(_SHA256) == digest
    return True


def _is_reserved(path: StoragePath) -> bool:
    """Whether a file only reserves its name for a writer."""
    if not isinstance(path, Path):
        return False
    with storage_errors(path, "read"):
        found = path.stat()
    return stat.S_ISREG(found.st_mode) and found.st_size == 0
