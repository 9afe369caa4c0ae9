"""An output that is served: its document, its data, and the folder for what the server keeps."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.reading import CHANGELIST, read_changelist
from slicebeam.pipelines.changelist.revisions import later_revision, revision_path, revisions
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from slicebeam.pipelines.changelist.document import ChangeList
    from slicebeam.pipelines.config.serve import ServeConfig
    from slicebeam.transforms.storage.storage import StoragePath

NAMED = "slicebeam serve"
_STATE = ".serve"


@dataclass(frozen=True)
class ServedOutput:
    """An output as the features of the server get it.

    Attributes
    ----------
    uri : of the document's last revision when the output was opened
    folder : of the document
    document : as it was then; `latest` has what was edited since
    data : files or globs of the examples: those of the command line, or those of the document
    config : options of the command
    state : folder on this machine for what the server keeps of this output; it exists and is the user's
    at_end : what the features do when the server ends
    """

    uri: str
    folder: StoragePath
    document: ChangeList
    data: tuple[str, ...]
    config: ServeConfig
    state: Path
    at_end: ExitStack = field(default_factory=ExitStack, compare=False, repr=False)

    @classmethod
    def open(cls, uri: str, config: ServeConfig) -> ServedOutput:
        """Return the output in a folder, or that a document belongs to.

        Raises
        ------
        InputError
            There is no document, or none that this version reads.
        EngineError
            Storage failed.
        """
        path = storage_path(uri, NAMED)
        is_folder = path.is_dir()
        folder = path if is_folder else path.parent
        first = str(path / CHANGELIST) if is_folder else uri
        document = read_changelist(first, NAMED)
        data = config.data or document.dataset.uri
        opened = cls(first, folder, document, data, config, state_folder(folder))
        return opened.latest() if is_folder else opened

    def latest(self) -> ServedOutput:
        """Return the output with the last revision of its document."""
        if not isinstance(self.document, SearchChangeList):
            return self
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


# Of each output the path of its last revision, when that was written, and what it is with it.
_LATEST: dict[Path, tuple[StoragePath, int, ServedOutput]] = {}


def state_folder(folder: StoragePath) -> Path:
    """Return the folder for what the server keeps of an output: in it, or in the user's cache.

    It is in the user's cache where the output is in a bucket, or is another's.

    Raises
    ------
    InputError
        Neither can be written.
    """
    if isinstance(folder, Path):
        beside = folder / _STATE
        if _is_own(beside):
            return beside
        named = str(folder.resolve())
    else:
        named = str(folder)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "slicebeam"
    kept = cache / "serve" / hashlib.sha256(named.encode()).hexdigest()[:16]
    if not _is_own(kept):
        raise InputError(
            f"{NAMED}: neither {folder} nor {kept} can be written; set XDG_CACHE_HOME to a folder "
            "that can"
        )
    return kept


def _is_own(folder: Path) -> bool:
    """Make a folder that only the user enters, and say whether it is there and can be written."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False
