"""Reads ChangeLists of earlier runs, and the tables of slices next to them."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError

from slicebeam.metrics.errors import FileError, InputError
from slicebeam.pipelines.changelist.document import (
    SCHEMA_VERSION,
    ChangeList,
    PublishedFile,
    SearchChangeList,
    ShiftChangeList,
)
from slicebeam.transforms.storage.publish import DocumentFile, sha256_of
from slicebeam.transforms.storage.storage import (
    StoragePath,
    named_content,
    open_input,
    storage_errors,
    storage_path,
)
from slicebeam.transforms.storage.strict_text import parse_json

if TYPE_CHECKING:
    from slicebeam.transforms.storage.publication import FileSet

_Document = TypeVar("_Document", bound=ChangeList)

CHANGELIST, TABLE, TFMA_TABLE = "changelist.json", "slices.parquet", "tfma.parquet"


def naming_files(document: _Document, files: FileSet) -> _Document:
    """Return a document that names the files it is published with, and those that it replaces."""
    named = {name.partition(".")[0]: _entry(file) for name, file in files.files.items()}
    replaced = tuple(map(_entry, files.replaced))
    return document.model_copy(update={"files": named or None, "replaced_files": replaced or None})


def _entry(file: DocumentFile) -> PublishedFile:
    return PublishedFile(name=file.name, sha256=f"sha256:{file.sha256}", size=file.size)


def file_of(uri: str, document: ChangeList, well_known: str) -> StoragePath:
    """Return the path of a file that belongs to a document.

    That is the one which the document names; where it is not there, as next to a copy of the document,
    the one with the well-known name, which may be another run's.
    """
    folder = storage_path(uri).parent
    named = (document.files or {}).get(well_known.partition(".")[0])
    if named is not None and (folder / named.name).is_file():
        return folder / named.name
    return folder / well_known


def read_changelist(uri: str, option: str, *, with_slices: bool = True) -> ChangeList:
    """Return the ChangeList in a file that ``option`` names, without the slices, which are most of it, if not wanted."""
    path = storage_path(uri, option)
    text = named_content(path, f"{option} {uri}", "name its changelist.json")
    try:
        content = parse_json(text.decode())
    except ValueError as error:
        raise InputError(f"{option} {uri}: not readable as JSON ({error})") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if not isinstance(version, str):
        raise FileError(
            f"{option} {uri}: not a ChangeList; name the changelist.json of an earlier run"
        )
    if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise InputError(
            f"{option} {uri}: a ChangeList of version {version}, but this program reads {SCHEMA_VERSION}"
        )
    if not with_slices:
        content = {**content, "slices": []}
        content.pop("since", None)
    provenance = content.get("provenance")
    is_of_shift = isinstance(provenance, dict) and provenance.get("command") == "shift"
    kind = ShiftChangeList if is_of_shift else SearchChangeList
    try:
        # In strict JSON true is not 1, and "2" is not 2.
        document = kind.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{option} {uri}: not a valid ChangeList ({place}: {first['msg']}); restore it, "
            "or run the command again"
        ) from error
    for trouble in (*_doubles(document), *misfits(document, with_slices=with_slices)):
        raise InputError(f"{option} {uri}: {trouble}")
    return document


def read_search(uri: str, option: str, *, with_slices: bool = True) -> SearchChangeList:
    """Return the ChangeList of a search or check; parameters and errors as of `read_changelist`."""
    document = read_changelist(uri, option, with_slices=with_slices)
    if not isinstance(document, SearchChangeList):
        raise InputError(
            f"{option} {uri} is the document of a shift; name the document of a search or a check"
        )
    return document


def read_shift(uri: str, option: str) -> ShiftChangeList:
    """Return the ChangeList of a shift; parameters and errors as of `read_changelist`."""
    document = read_changelist(uri, option)
    if not isinstance(document, ShiftChangeList):
        raise InputError(f"{option} {uri} is not the document of a shift; name one that is")
    return document


def _doubles(document: ChangeList) -> Iterator[str]:
    names = [f"slice {slice_.slice_id}" for slice_ in document.slices]
    names += [f"the domain of {domain.name}" for domain in document.dataset.domains]
    names += [f"the finding model {m.metric}, {m.direction}" for m in document.finding_models]
    for slice_ in document.slices:
        names += [f"slice {slice_.slice_id}, metric {change.metric}" for change in slice_.changes]
    for name, number in Counter(names).items():
        if number > 1:
            yield f"{name} occurs twice; keep one of the two"


def misfits(document: ChangeList, *, with_slices: bool = True) -> Iterator[str]:
    """Yield where findings, which somebody may have edited, do not fit the rest of the document."""
    remedy = "undo the change, or run the search again"
    metrics, slices = (
        {part.key for part in document.metrics},
        {s.slice_id for s in document.slices},
    )
    sides = {(model.metric, model.direction) for model in document.finding_models}
    for metric, _ in sides:
        if metric not in metrics:
            yield f"finding_models has {metric!r}, which is not a metric of the document; {remedy}"
    for at, finding in enumerate(document.findings):
        side = finding.metric, finding.direction
        if side not in sides:
            yield f"findings[{at}] is of {', '.join(side)}, which is not in finding_models; {remedy}"
        if with_slices and finding.slice_id not in slices:
            yield (
                f"findings[{at}] is about slice {finding.slice_id!r}, which is not in the document; {remedy}"
            )
    for model in document.finding_models:
        listed = [finding.rank for finding in model.listed(document.findings)]
        ranks = sorted([*listed, *model.removed])
        if listed != sorted(listed) or ranks != list(range(1, len(ranks) + 1)):
            yield (
                f"findings of {model.metric}, {model.direction}, have the ranks "
                f"{', '.join(map(str, listed)) or 'none'}, which are not consecutive from 1, apart "
                f"from the removed ones; {remedy}"
            )


@contextmanager
def opened_table(uri: str, document: SearchChangeList) -> Iterator[pa.NativeFile | None]:
    """Open the table that a document names; None if it is not next to it."""
    path = file_of(uri, document, TABLE)
    with storage_errors(path, "read"), ExitStack() as stack:
        try:
            stream = stack.enter_context(open_input(path))
        except FileNotFoundError:
            stream = None
        # Under the well-known name it may be a later run's.
        if stream and f"sha256:{sha256_of(stream)}" != document.search.slices_fingerprint:
            stream = None
        if stream:
            stream.seek(0)
        yield stream


@contextmanager
def local_table(uri: str, document: SearchChangeList) -> Iterator[Path | None]:
    """Yield the path of the table beside a document, of a copy where it is in a bucket; None if it is not there."""
    path = file_of(uri, document, TABLE)
    if isinstance(path, Path) or not path.is_file():
        yield path if isinstance(path, Path) and path.is_file() else None
        return
    with tempfile.NamedTemporaryFile(prefix="slicebeam-", suffix=".parquet") as copy:
        with storage_errors(path, "read"), open_input(path) as stream:
            shutil.copyfileobj(stream, copy, 1 << 24)
        copy.flush()
        yield Path(copy.name)


def read_table(
    uri: str, document: SearchChangeList, metrics: Sequence[str], columns: Sequence[str]
) -> dict[str, pa.Table] | None:
    """Return columns of each metric's rows in the table that a document names; None if it is not there."""
    with opened_table(uri, document) as stream:
        if stream is None:
            return None
        table = pq.read_table(stream, columns=[*columns, "metric"])
    return {
        name: table.filter(pc.equal(table.column("metric"), name)).select(columns)
        for name in metrics
    }
