"""Starts or continues a run, and says in errors how to continue."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.run.lock_files import LostLockError
from slicebeam.pipelines.run.published_run import hash_of_document, published_before
from slicebeam.pipelines.run.work_folder import described
from slicebeam.transforms.storage.publication import remove_abandoned_lock
from slicebeam.transforms.storage.storage import beneath, storage_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.pipelines.config.common import DataConfig
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.observer import Observer
    from slicebeam.pipelines.run.paths import RunPaths
    from slicebeam.pipelines.run.published_run import Document
    from slicebeam.pipelines.run.work_folder import WorkFolder


def begin_run(
    config: DataConfig,
    kind: type[Document],
    places: RunPaths,
    work: WorkFolder,
    engine: Engine,
    observer: Observer,
    *,
    resume: bool,
) -> Document | None:
    """Begin a run in its work folder, or continue with it; return its document if it is published.

    Parameters
    ----------
    resume : continue with what there is; a run that is published already has nothing to do

    Raises
    ------
    InputError
        To resume: what there is to continue with has other options or other data.
    EngineError
        The work folder cannot be written, or another run is using it.
    """
    document = places.document
    if resume:
        done = published_before(kind, document, described(config, places.files), work.marker())
        if done is not None:
            observer.note(f"already published: {document}; nothing to compute")
            remove_work(work, observer, is_ours=False)
            if isinstance(document, Path):
                with storage_errors(document, "write"):
                    remove_abandoned_lock(document)
            return done
    replaces = hash_of_document(document)
    open_work(config, places, work, engine, observer, resume=resume, replaces=replaces)
    return None


def open_work(
    config: DataConfig,
    places: RunPaths,
    work: WorkFolder,
    engine: Engine,
    observer: Observer,
    *,
    resume: bool,
    replaces: str | None = None,
) -> None:
    """Make the work folder ready, again or to continue, and let the engine log to it.

    Parameters
    ----------
    replaces : hash of the document that the run is to replace; None if there is none
    """
    work.begin(config, places.files, resume=resume, replaces=replaces)
    if resume and not work.is_resumed:
        observer.note(f"--resume: there is no unfinished run in {work.path}; a new one starts now")
    engine.log_to(
        beneath(work.path, "workers.log"),
        work.run.run_id,
        resumes=work.is_resumed,
        note=observer.note,
    )


def remove_work(work: WorkFolder, observer: Observer, *, is_ours: bool = True) -> None:
    """Remove the work folder; if that fails the user gets a note, but the result is published.

    Parameters
    ----------
    is_ours : whether this process holds the folder; else another one left it
    """
    try:
        if is_ours:
            work.remove()
        else:
            work.remove_rest()
    except EngineError as error:
        observer.note(f"{error}; the result is published, and the folder may be deleted")


# What an error says that continuing with the same work folder would only meet again.
_ANEW = "without --resume"


@contextmanager
def resumable(work: WorkFolder) -> Iterator[None]:
    """Say in an error of engine or storage where a run continues from.

    Of a run that ends for wrong input nothing is left to continue from, unless it went on itself.
    """
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
        if _ANEW in str(error):
            raise
        again = "continue with the same command and --resume"
        if "--memory-budget" in str(error):
            again = _in_less_memory(work)
        raise type(error)(f"{error}\nfinished work is in {work.path}; {again}") from error
    except MemoryError as error:
        raise EngineError(
            f"out of memory; finished work is in {work.path}; {_in_less_memory(work)}, or start over "
            "with a lower --top-values or --max-cross-size"
        ) from error


def _in_less_memory(work: WorkFolder) -> str:
    if "memory_budget" in work.run.config:
        return "start over with a lower --memory-budget, without --resume"
    return "continue with --resume and a lower --memory-budget"
