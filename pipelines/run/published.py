"""What a run published, with the record of the run, which lets the same command end at once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.pipelines.changelist.document import ChangeList, Run
from slicebeam.pipelines.run.work_folder import OtherRunError
from slicebeam.transforms.storage.publish import sha256_of, version_of, well_known
from slicebeam.transforms.storage.storage import storage_errors

if TYPE_CHECKING:
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.run.work_folder import RunMarker
    from slicebeam.transforms.storage.storage import StoragePath

Document = TypeVar("Document", bound=ChangeList)

# The page that people open beside a document, and what its first bytes say of who wrote it.
PAGE = "report.html"
PAGE_MARK = '<meta name="generator" content="slicebeam">'
_MARKED_WITHIN = 4096
_ANEW = "leave --resume out to replace it"


@dataclass(frozen=True)
class Published:
    """What a run published."""

    changelist: SearchChangeList
    changelist_path: StoragePath
    slices_path: StoragePath
    explanation: tuple[str, ...] = ()  # of the test of a slice, line by line


def sealed(document: Document, run: Run) -> Document:
    """Return a document with the run that published it, and the hash of its own content."""
    content = content_hash(json.loads(_with(document, run).to_json()))
    return _with(document, run.model_copy(update={"content": content}))


def _with(document: Document, run: Run) -> Document:
    provenance = document.provenance.model_copy(update={"run": run})
    return document.model_copy(update={"provenance": provenance})


def content_hash(content: Any) -> str:
    """Return the hash of a document's content as JSON has it, without the hash that stands in it."""
    run = content["provenance"]["run"]
    bare = {name: value for name, value in run.items() if name != "content"}
    bare_provenance = {**content["provenance"], "run": bare}
    text = json.dumps({**content, "provenance": bare_provenance}, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def hash_of_document(path: StoragePath) -> str | None:
    """Return the hash of the bytes of a document; None if there is none."""
    text = _text(path)
    return None if text is None else f"sha256:{hashlib.sha256(text).hexdigest()}"


def published_before(
    kind: type[Document], path: StoragePath, run: RunMarker, begun: RunMarker | None
) -> Document | None:
    """Return the document that a run has published already; None if the run has something to do."""
    text = _text(path)
    if text is None:
        return None
    if begun is not None and begun.replaces == version_of(path):
        # What the run is to replace.
        return None
    try:
        return _unchanged(kind, path, text, run)
    except InputError:
        if begun is None:
            raise
        # Another run published in the meantime; this one continues.
        return None


def _unchanged(kind: type[Document], path: StoragePath, text: bytes, run: RunMarker) -> Document:
    try:
        content = json.loads(text)
        document = kind.model_validate_json(text)
    except (ValueError, ValidationError) as error:
        raise OptionError(f"--resume: {path} is not a document of this command; {_ANEW}") from error
    recorded = document.provenance.run
    if recorded is None:
        raise OptionError(f"--resume: {path} does not record its options and data; {_ANEW}")
    for what, mine, its in (
        ("options", run.config_hash, recorded.config),
        ("data", run.data_hash, recorded.data),
    ):
        if mine != its:
            raise OtherRunError(f"--resume: {path} was published with different {what}; {_ANEW}")
    if content_hash(content) != recorded.content:
        raise OptionError(f"--resume: {path} has changed since it was published; {_ANEW}")
    for named in (document.files or {}).values():
        for name in (well_known(named.name), named.name):
            _check_file(path.parent / name, named.sha256)
    return document


def _check_file(file: StoragePath, digest: str) -> None:
    """Raise an InputError where a file has not the content that was published."""
    with storage_errors(file, "read"):
        if not file.is_file():
            raise OptionError(f"--resume: {file} has disappeared since it was published; {_ANEW}")
        with file.open("rb") as stream:
            found = f"sha256:{sha256_of(stream)}"
    if found != digest:
        raise OptionError(f"--resume: {file} has changed since it was published; {_ANEW}")


def remove_page(folder: StoragePath) -> str | None:
    """Remove the page of a document that is replaced, no other file of its name, and return a line that says so."""
    page = folder / PAGE
    with storage_errors(page, "remove"):
        if not page.is_file():
            return None
        with page.open("rb") as stream:
            if PAGE_MARK.encode() not in stream.read(_MARKED_WITHIN):
                return None
        page.unlink(missing_ok=True)
    return f"{page} showed the result that is replaced now, and is removed; slicebeam report {folder} writes it anew"


def _text(path: StoragePath) -> bytes | None:
    with storage_errors(path, "read"):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
