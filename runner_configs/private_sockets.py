"""A folder for Unix sockets that no other user of the machine can enter."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from pathlib import Path

from slicebeam.metrics.errors import EngineError

# Bytes of the longest path of a Unix socket that every system takes, and of the longest name in it.
_LONGEST_PATH = 103
_LONGEST_NAME = 16
_PLAIN = re.compile(r"[\w/.+-]+", re.ASCII)
_LAST = "/tmp"  # noqa: S108  (mkdtemp makes a folder in it that nobody else can enter)


def socket_folder() -> Path:
    """Return a new folder for sockets: temporary, or in ``/tmp`` where that path means something else to gRPC."""
    tried = dict.fromkeys((tempfile.gettempdir(), _LAST))
    for parent in tried:
        if not os.path.isdir(parent) or not _PLAIN.fullmatch(parent):  # noqa: PTH112
            continue
        folder = Path(tempfile.mkdtemp(prefix="slicebeam-", dir=parent))
        if stat.S_IMODE(folder.stat().st_mode) & 0o077:
            folder.rmdir()
            raise EngineError(
                f"{parent} cannot hold private folders, which the sockets of an engine "
                "need; set TMPDIR to a folder on a local disk"
            )
        if len(os.fsencode(folder)) + 1 + _LONGEST_NAME <= _LONGEST_PATH:
            return folder
        folder.rmdir()
    raise EngineError(
        f"the path of the temporary folder {next(iter(tried))} is too long for sockets, or "
        "contains special characters; set TMPDIR to another folder"
    )
