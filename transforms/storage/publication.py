"""Files that are published together with the document that names them, or not at all."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from slicebeam.transforms.storage.local_publication import local_file_set
from slicebeam.transforms.storage.storage import storage_errors
from slicebeam.transforms.storage.stored_publication import StoredFileSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.transforms.storage.file_set import FileSet
    from slicebeam.transforms.storage.publish import Version
    from slicebeam.transforms.storage.storage import StoragePath


@contextmanager
def files_to_publish(
    document: StoragePath, names: Sequence[str], before: Version | None, writer: str
) -> Iterator[FileSet]:
    """Open the files of a set, none of which appears before `FileSet.publish`.

    `names`: the files' well-known names, such as ``slices.parquet``. `before`: the version of the
    document that the set may replace, as it was when the run began.
    """
    shown = " and ".join(str(document.parent / name) for name in (*names, document.name))
    with ExitStack() as stack:
        if isinstance(document, Path):
            files: FileSet = stack.enter_context(
                local_file_set(document, tuple(names), before, writer)
            )
        else:
            streams = {
                name: stack.enter_context(tempfile.TemporaryFile(prefix="slicebeam-"))
                for name in names
            }
            files = StoredFileSet(document, streams, before, writer)
        with storage_errors(shown, "write"):
            yield files
