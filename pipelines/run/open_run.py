"""One run of a command: what it reads, where it works, and what it publishes, with the record that lets it end at once."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import ValidationError

from slicebeam.metrics.errors import EngineError, InputError, OptionError
from slicebeam.pipelines.changelist.document import ChangeList, Run, SearchChangeList
from slicebeam.pipelines.changelist.reading import CHANGELIST, TABLE, naming_files
from slicebeam.pipelines.run.lock_files import LostLockError
from slicebeam.pipelines.run.stage import Observer, Workspace
from slicebeam.pipelines.run.work_folder import OtherRunError, WorkFolder, described
from slicebeam.transforms.storage.files import expand_paths
from slicebeam.transforms.storage.publication import files_to_publish, remove_abandoned_lock
from slicebeam.transforms.storage.publish import sha256_of, version_of, well_known
from slicebeam.transforms.storage.storage import (
    StoragePath,
    beneath,
    make_folder,
    storage_errors,
    storage_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import DataOptions, RunMarker
    from slicebeam.transforms.storage.publication import FileSet


Document = TypeVar("Document", bound=ChangeList)

# The page that people open beside a document, and what its first bytes say of who wrote it.
PAGE = "report.html"
PAGE_MARK = '<meta name="generator" content="slicebeam">'
_MARKED_WITHIN = 4096
_ANEW = "leave --resume out to replace it"
# An error that says so would only be met again in the same work folder.
_WITHOUT_RESUME = "without --resume"


@dataclass(frozen=True)
class Published:
    """What a run published."""

    changelist: SearchChangeList
    changelist_path: StoragePath
    slices_path: StoragePath
    explanation: tuple[str, ...] = ()  # of the test of a slice, line by line


@dataclass
class RunContext(Workspace, Generic[Document]):
    """A run that holds its work folder."""

    output: StoragePath
    replaces: str | None  # the only version of the document that it may replace
    published: Document | None = None  # set from the start where an earlier process published

    @property
    def document(self) -> StoragePath:
        """Path of the document, which names the other files that are published."""
        return self.output / CHANGELIST

    @property
    def table(self) -> StoragePath:
        """Path of the table of slices."""
        return self.output / TABLE

    def files_to_publish(self, *names: str) -> AbstractContextManager[FileSet]:
        """Open files that appear together with the document, or not at all."""
        writer = f"the run of process {os.getpid()} on {socket.gethostname()}"
        return files_to_publish(self.document, names, self.replaces, writer)

    def publish(self, document: Document, files: FileSet) -> Document:
        """Publish the document and its files, unless another run replaced it or took the lock."""
        run = Run(config=self.work.run.config_hash, data=self.work.run.data_hash)
        document = sealed(naming_files(document, files), run)
        self.work.check(at_once=True)
        for line in files.publish(document.to_json().encode("utf-8")):
            self.observer.note(line)
        _try_to(lambda: remove_page(self.output), self.observer)
        self.published = document
        return document


@contextmanager
def open_run(
    config: DataOptions,
    engine: Engine,
    observer: Observer,
    kind: type[Document],
    *,
    resume: bool = False,
    publishes: bool = True,
    shares_output: bool = False,
) -> Iterator[RunContext[Document]]:
    """Begin a run in its work folder, or continue it; remove the folder at the end, or after wrong input.

    ``kind``: class of the document, which is at the end of a run that ``publishes``. ``shares_output``:
    whether the engine's workers must see the output.
    """
    with _removing_new_folders(config):
        files, output, folder = paths_of(config)
        work, replaces = WorkFolder(folder), version_of(output / CHANGELIST)
        run = RunContext[Document](work, engine, observer, files, output, replaces)
        engine.check_storage([*files, *([output] if shares_output else []), folder])
        observer.begin(config, files, engine.name)
        for line in getattr(config, "notes", ()):
            observer.note(line)
        if resume and publishes:
            described_now = described(config, files)
            run.published = published_before(kind, run.document, described_now, work.marker())
        if run.published is not None:
            observer.note(f"already published: {run.document}; nothing to compute")
            _try_to(work.remove_rest, observer)
            if isinstance(run.document, Path):
                with storage_errors(run.document, "write"):
                    remove_abandoned_lock(run.document)
            yield run
            return
        work.begin(config, files, resume=resume, replaces=replaces if publishes else None)
        if resume and not work.is_resumed:
            observer.note(f"--resume: there is no unfinished run in {folder}; a new one starts now")
        log, is_resumed = beneath(folder, "workers.log"), work.is_resumed
        engine.log_to(log, work.run.run_id, resumes=is_resumed, note=observer.note)
        with work, _saying_how_to_continue(work):
            yield run
            _try_to(work.remove, observer)


def paths_of(config: DataOptions) -> tuple[Sequence[str], StoragePath, StoragePath]:
    """Return input files, output folder and work folder, after making the output folder."""
    files = expand_paths(config.data)
    output = storage_path(config.output, "--output")
    if output.is_file():
        raise OptionError(f"--output {output} is a file; name a folder")
    with storage_errors(output, "make the output folder"):
        make_folder(output)
    folder = (
        storage_path(config.work_dir, "--work-dir") if config.work_dir else beneath(output, "_work")
    )
    if os.path.realpath(str(folder)) == os.path.realpath(str(output)):
        raise OptionError(
            f"--work-dir {folder} is the output folder; name another folder, or leave it out"
        )
    return files, output, folder


@contextmanager
def _removing_new_folders(config: DataOptions) -> Iterator[None]:
    """Where wrong input ends a run, remove the empty folders that were not there before it."""
    missing: list[Path] = []
    for option, name in (("--output", config.output), ("--work-dir", config.work_dir)):
        path = storage_path(name, option) if name else None
        if isinstance(path, Path):
            with storage_errors(path, "read"):
                missing += [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    except InputError:
        for folder in sorted(missing, key=lambda folder: -len(folder.parts)):
            # Another process may have put something there in the meantime.
            with suppress(OSError):
                folder.rmdir()
        raise


def _try_to(remove: Callable[[], str | None], observer: Observer) -> None:
    """Remove a folder or file that nobody needs; if that fails the user gets a note, but the result is published."""
    try:
        line = remove()
    except EngineError as error:
        line = f"{error}; the result is published, and what could not be removed may be deleted"
    if line is not None:
        observer.note(line)


@contextmanager
def _saying_how_to_continue(work: WorkFolder) -> Iterator[None]:
    """Say in an error of engine or storage where a run continues from; after wrong input there is nothing left."""
    in_less_memory = "continue with --resume and a lower --memory-budget"
    if "memory_budget" in work.run.config:
        in_less_memory = "start over with a lower --memory-budget, without --resume"
    try:
        yield
    except InputError:
        if not work.is_resumed:
            # The error that ends the run says more than what can't be removed.
            with suppress(EngineError):
                work.remove()
        raise
    except EngineError as error:
        # Where the folder is gone or another run's, nothing else matters, and nothing is finished.
        try:
            work.check(at_once=True)
        except EngineError as trouble:
            # Storage that is down can't tell whose the folder is, and the first error says why.
            if isinstance(trouble, LostLockError):
                raise
        if _WITHOUT_RESUME in str(error):
            raise
        again = "continue with the same command and --resume"
        if "--memory-budget" in str(error):
            again = in_less_memory
        raise type(error)(f"{error}\nfinished work is in {work.path}; {again}") from error
    except MemoryError as error:
        raise EngineError(
            f"out of memory; finished work is in {work.path}; {in_less_memory}, or start over "
            "with a lower --top-values or --max-cross-size"
        ) from error


def sealed(document: Document, run: Run) -> Document:
    """Return a document with the run that published it, and the hash of its own content."""

    def recorded(run: Run) -> Document:
        provenance = document.provenance.model_copy(update={"run": run})
        return document.model_copy(update={"provenance": provenance})

    content = content_hash(json.loads(recorded(run).to_json()))
    return recorded(run.model_copy(update={"content": content}))


def content_hash(content: Any) -> str:
    """Return the hash of a document's content as JSON has it, without the hash that stands in it."""
    run = content["provenance"]["run"]
    bare = {name: value for name, value in run.items() if name != "content"}
    bare_provenance = {**content["provenance"], "run": bare}
    text = json.dumps({**content, "provenance": bare_provenance}, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def hash_of_document(path: StoragePath) -> str | None:
    """Return the hash of a published file; None if there is none."""
    with storage_errors(path, "read"):
        if not path.is_file():
            return None
        with path.open("rb") as stream:
            return f"sha256:{sha256_of(stream)}"


def published_before(
    kind: type[Document], path: StoragePath, run: RunMarker, begun: RunMarker | None
) -> Document | None:
    """Return the document that a run has published already; None if the run has something to do."""
    text = None
    with storage_errors(path, "read"), suppress(FileNotFoundError):
        text = path.read_bytes()
    # What the run is to replace is not what it published.
    if text is None or (begun is not None and begun.replaces == version_of(path)):
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
    digests: dict[StoragePath, tuple[str | None, str | None]] = {}
    digests[path] = content_hash(content), recorded.content
    for named in (document.files or {}).values():
        for file in (path.parent / well_known(named.name), path.parent / named.name):
            digests[file] = (hash_of_document(file), named.sha256)
    for file, (now, then) in digests.items():
        if now != then:
            what = "disappeared" if now is None else "changed"
            raise OptionError(f"--resume: {file} has {what} since it was published; {_ANEW}")
    return document


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
