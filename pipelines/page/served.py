"""An output that is served: its document, its data, and the folder for what the server keeps."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.reading import CHANGELIST, read_changelist
from slicebeam.pipelines.changelist.revisions import later_revision, revision_path, revisions
from slicebeam.pipelines.page.answers import RefusedError
from slicebeam.transforms.storage.storage import (
    remove_folder,
    storage_errors,
    storage_path,
    written_whole,
)

if TYPE_CHECKING:
    from slicebeam.pipelines.changelist.document import ChangeList
    from slicebeam.pipelines.config.adapt import ServeConfig
    from slicebeam.pipelines.define.document_data import DocumentData
    from slicebeam.transforms.storage.storage import StoragePath

NAMED = "slicebeam serve"
# Says which output a state is of.
_OF = "output.txt"


@dataclass
class OpenedData:
    """The data of the document, opened once for all features, until another run replaces it."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _data: DocumentData | None = None

    def of(self, served: ServedOutput) -> DocumentData:
        """Return it, opened where it is not yet."""
        with self._lock:
            now, document = served.latest(), served.search()
            same = document.changelist_id
            if self._data is None or self._data.known.document.changelist_id != same:
                # Imported here, since it imports Beam.
                from slicebeam.pipelines.define.document_data import open_data

                named, confirmed = served.config.data or None, served.config.confirmed
                self._data = open_data(now.uri, document, named, confirmed)
                # What was made of it goes with the server.
                served.at_end.callback(self._data.close)
            return self._data


@dataclass(frozen=True)
class ServedOutput:
    """An output as the features of the server get it.

    ``uri``: of the document's last revision when the output was opened. ``folder``: of the
    document. ``document``: as it was then; `latest` has what was edited since. ``data``: files or
    globs of the examples: those of the command line, or those of the document. ``config``: options
    of the command. ``state``: folder on this machine for what the server keeps of this output; it
    exists and is the user's. ``at_end``: what the features do when the server ends.
    """

    uri: str
    folder: StoragePath
    document: ChangeList
    data: tuple[str, ...]
    config: ServeConfig
    state: Path
    at_end: ExitStack = field(default_factory=ExitStack, compare=False, repr=False)
    opened: OpenedData = field(default_factory=OpenedData, compare=False, repr=False)

    @classmethod
    def open(cls, uri: str, config: ServeConfig) -> ServedOutput:
        """Return the output in a folder, or that a document belongs to."""
        path = storage_path(uri, NAMED)
        is_folder = path.is_dir()
        folder = path if is_folder else path.parent
        first = str(path / CHANGELIST) if is_folder else uri
        document = read_changelist(first, NAMED)
        data = config.data or document.dataset.uri
        opened = cls(first, folder, document, data, config, state_folder(folder))
        return opened.latest() if is_folder else opened

    def search(self) -> SearchChangeList:
        """Return the last revision of the document, which is to be that of a search or check."""
        document = self.latest().document
        if not isinstance(document, SearchChangeList):
            raise RefusedError("the document of a shift has no slices", 404)
        return document

    def latest(self) -> ServedOutput:
        """Return the output with the last revision of its document."""
        if not isinstance(self.document, SearchChangeList):
            return self
        clock = time.monotonic()
        if (
            not isinstance(self.folder, Path)
            and clock - _LISTED.get(self.state, -_SECONDS) < _SECONDS
        ):
            return _LATEST[self.state][2] if self.state in _LATEST else self
        _LISTED[self.state] = clock
        numbers = revisions(self.folder)
        if not numbers or numbers[-1] <= self.document.revision:
            return self
        path = revision_path(self.folder, numbers[-1])
        # A revision never changes, so that it need not be read for every question.
        stamp = path.stat().st_mtime_ns if isinstance(path, Path) else 0
        known = _LATEST.get(self.state)
        if known is None or known[:2] != (path, stamp):
            newer = later_revision(self.folder, self.document)
            if newer is None:
                return self
            now = replace(self, uri=str(newer), document=read_changelist(str(newer), NAMED))
            _LATEST[self.state] = known = (path, stamp, now)
        return known[2]

    def look_again(self) -> None:
        """Let the next request see a revision that this server has just written."""
        _LISTED.pop(self.state, None)


# In a bucket, each listing is a request: the seconds for which it holds, and when it was last made.
_SECONDS = 2.0
_LISTED: dict[Path, float] = {}
# Of each output the path of its last revision, when that was written, and what it is with it.
_LATEST: dict[Path, tuple[StoragePath, int, ServedOutput]] = {}


def state_folder(folder: StoragePath) -> Path:
    """Return the folder for what the server keeps of an output, in the user's cache.

    It is not in the output, which may come from a stranger, with links to the user's files in it.
    """
    named = str(folder.resolve()) if isinstance(folder, Path) else str(folder)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    if not cache.is_absolute():
        raise InputError(f"{NAMED}: XDG_CACHE_HOME {str(cache)!r} is not an absolute path")
    states = cache / "slicebeam" / "serve"
    kept = states / hashlib.sha256(named.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    with storage_errors(states, "write"):
        cache.mkdir(parents=True, exist_ok=True)
        for one in (states.parent, states, kept):
            _make_own(one)
        remove_old_states(states)
        with written_whole(kept / _OF) as stream:
            stream.write(named.encode("utf-8", "surrogateescape"))
    return kept


def _make_own(folder: Path) -> None:
    """Make a folder that only the user enters, or check that it is one."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise InputError(
            f"{NAMED}: {folder} is a link, or another user's, or others may write to it; remove it, or "
            "set XDG_CACHE_HOME to a folder of your own"
        )


def remove_old_states(states: Path) -> None:
    """Remove what earlier servers kept of outputs on this machine that are gone."""
    for state in states.iterdir():
        try:
            named = os.fsdecode((state / _OF).read_bytes())
        except OSError:
            # Another server is just making it.
            continue
        if not ("://" in named or os.path.lexists(named)):
            remove_folder(state)
