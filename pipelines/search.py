"""``slicebeam search``: from files to a published ChangeList."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Generic

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.pipelines.changelist import SearchChangeList
from slicebeam.pipelines.changelist_files import CHANGELIST, TABLE, naming_files
from slicebeam.pipelines.covering import cover
from slicebeam.pipelines.document import build
from slicebeam.pipelines.earlier_run import Earlier, earlier_run
from slicebeam.pipelines.explain import explain
from slicebeam.pipelines.iterations import Iterations
from slicebeam.pipelines.preparation import prepare
from slicebeam.pipelines.published_run import with_run
from slicebeam.pipelines.report_order import Reported, report_order
from slicebeam.pipelines.results import collect
from slicebeam.pipelines.resuming import begin_run, remove_work, resumable
from slicebeam.pipelines.run_config import Config
from slicebeam.pipelines.since import compare_runs
from slicebeam.pipelines.slice_lookup import check_slice_text, find_slice_key
from slicebeam.pipelines.slices_table import SliceNames, write_slices
from slicebeam.pipelines.stage import Stage
from slicebeam.pipelines.work_folder import WorkFolder
from slicebeam.transforms.files import expand_paths
from slicebeam.transforms.publication import files_to_publish
from slicebeam.transforms.publish import version_of
from slicebeam.transforms.storage import StoragePath, make_folder, storage_errors, storage_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from slicebeam.pipelines.config import SearchConfig
    from slicebeam.pipelines.data_config import DataConfig
    from slicebeam.pipelines.iterations import Searched
    from slicebeam.pipelines.preparation import Prepared
    from slicebeam.pipelines.results import Results
    from slicebeam.pipelines.runner import Engine
    from slicebeam.pipelines.terminal import Terminal
    from slicebeam.transforms.publish import Version


@dataclass(frozen=True)
class Published:
    """What a run published.

    Attributes
    ----------
    changelist : the document
    changelist_path, slices_path : where it and the table are
    explanation : how the slice that was asked for got its p-value, line by line
    """

    changelist: SearchChangeList
    changelist_path: StoragePath
    slices_path: StoragePath
    explanation: tuple[str, ...] = ()


@dataclass(frozen=True)
class Further(Generic[Config]):
    """What a command publishes besides the document and its table.

    Attributes
    ----------
    names : of the files
    write : writes them, and returns the document with what it has to say of them
    """

    names: tuple[str, ...]
    write: Callable[
        [Config, Prepared, SearchChangeList, Sequence[IO[bytes]], WorkFolder, Engine],
        SearchChangeList,
    ]


@dataclass(frozen=True)
class Steps(Generic[Config]):
    """What a command does its own way between reading the data and publishing what was found.

    Attributes
    ----------
    prepare : reads the data and writes the encoded shards
    iterations : counts and tests the slices
    collect : returns what was found
    names : tells how the slices are called
    order : returns the slices to report, of each metric the significant ones first
    further : what is published besides; None for nothing
    """

    prepare: Callable[
        [Config, Sequence[str], WorkFolder, Engine, Callable[[Stage], None]], Prepared
    ]
    iterations: type[Iterations]
    collect: Callable[[Config, Prepared, Searched, Iterations, WorkFolder, Engine], Results]
    names: Callable[[Prepared], SliceNames]
    order: Callable[[Results, Config], Reported]
    further: Further[Config] | None = None


def run_search(
    config: SearchConfig,
    engine: Engine,
    terminal: Terminal,
    *,
    resume: bool = False,
    asked: str | None = None,
) -> Published:
    """Search the slices and publish what was found.

    Raises
    ------
    InputError
        The options or the data are wrong.
    EngineError
        The engine or the storage failed; what is finished stays in the work folder.
    """
    config, earlier = compared(config)
    return run_steps(
        config, search_steps(), engine, terminal, earlier=earlier, resume=resume, asked=asked
    )


def search_steps() -> Steps[SearchConfig]:
    """Return what a search does."""
    return Steps(prepare, Iterations, collect, searched_names, report_order)


def compared(config: SearchConfig) -> tuple[SearchConfig, Earlier | None]:
    """Return a search as it is run, and the earlier run that it is compared with."""
    earlier = earlier_run(config)
    if earlier is not None and earlier.document.discovery is not None:
        raise OptionError(
            f"--since {config.since} is of a discovery, whose slices are no columns of the data; follow "
            "them by slicebeam check --changelist, or name the document of a search"
        )
    if earlier is not None and earlier.document.dataset.domains:
        config = config.with_domains_of_since()
    return config, earlier


def searched_names(prepared: Prepared) -> SliceNames:
    """Return the names of the slices of a search."""
    return SliceNames(prepared.lattice, prepared.domains)


@dataclass(frozen=True)
class Places:
    """Where a run reads and writes.

    Attributes
    ----------
    files : of the data
    output, work : folders
    further : names of what is published besides the table and the document
    """

    files: Sequence[str]
    output: StoragePath
    work: StoragePath
    further: tuple[str, ...] = ()

    @property
    def document(self) -> StoragePath:
        """The document, which names the other files that are published."""
        return self.output / CHANGELIST

    @property
    def table(self) -> StoragePath:
        """The well-known name of the table."""
        return self.output / TABLE


@contextmanager
def removing_new_folders(config: DataConfig) -> Iterator[None]:
    """Where wrong input ends a run, remove the empty folders that were not there before it."""
    missing: list[Path] = []
    for option, name in (("--output", config.output), ("--work-dir", config.work_dir)):
        path = storage_path(name, option) if name else None
        if isinstance(path, Path):
            with storage_errors(path, "read"):
                missing += [one for one in (path, *path.parents) if not one.exists()]
    try:
        yield
    except InputError:
        for folder in sorted(missing, key=lambda one: -len(one.parts)):
            # Somebody else may have put something there meanwhile.
            with suppress(OSError):
                folder.rmdir()
        raise


def places_of(config: DataConfig) -> Places:
    """Return where a run reads and writes, after making the output folder.

    Raises
    ------
    InputError
        A path can't be what it is to be.
    """
    files = expand_paths(config.data)
    output = storage_path(config.output, "--output")
    if output.is_file():
        raise OptionError(f"--output {output} is a file; name a folder")
    with storage_errors(output, "make the output folder"):
        make_folder(output)
    folder = storage_path(config.work_dir, "--work-dir") if config.work_dir else output / "_work"
    if _same(folder, output):
        raise OptionError(
            f"--work-dir {folder} is the output; name another folder, or leave it out"
        )
    return Places(files, output, folder)


def run_steps(
    config: Config,
    steps: Steps[Config],
    engine: Engine,
    terminal: Terminal,
    *,
    earlier: Earlier | None,
    resume: bool,
    asked: str | None,
) -> Published:
    """Do what all commands do, each with its own steps, and publish what was found."""
    if asked is not None:
        check_slice_text(asked, config)
    with removing_new_folders(config):
        return _run_steps(
            config, steps, engine, terminal, earlier=earlier, resume=resume, asked=asked
        )


def _run_steps(
    config: Config,
    steps: Steps[Config],
    engine: Engine,
    terminal: Terminal,
    *,
    earlier: Earlier | None,
    resume: bool,
    asked: str | None,
) -> Published:
    places = places_of(config)
    if steps.further is not None:
        places = replace(places, further=steps.further.names)
    # What is there now is what this run may replace.
    before = version_of(places.document)
    engine.check_storage([*places.files, places.output, places.work])
    terminal.begin(config, places.files, engine.name)
    work = WorkFolder(places.work)
    done = begin_run(config, SearchChangeList, places, work, engine, terminal, resume=resume)
    if done is not None:
        if asked is not None:
            raise OptionError(
                f"--explain {asked!r}: the run is published, and what it computed is gone; leave "
                "--resume out to run it again"
            )
        return Published(done, places.document, places.table)
    with work, resumable(work):
        found = find_and_publish(
            config, steps, places, before, work, engine, terminal, earlier, asked
        )
        remove_work(work, terminal)
    return Published(found.changelist, places.document, places.table, found.explanation)


@dataclass(frozen=True)
class Described:
    """What was found, as it was published, and how a slice of it was tested."""

    changelist: SearchChangeList
    explanation: tuple[str, ...] = ()


def find_and_publish(
    config: Config,
    steps: Steps[Config],
    places: Places,
    before: Version | None,
    work: WorkFolder,
    engine: Engine,
    terminal: Terminal,
    earlier: Earlier | None,
    asked: str | None = None,
) -> Described:
    """Do all steps, of which those that the work folder holds are done, and publish the result.

    Parameters
    ----------
    before : version of the document that is replaced
    asked : id or text of the slice whose test is explained
    """
    prepared = steps.prepare(config, places.files, work, engine, terminal.stage)
    terminal.prepared(prepared)
    names = steps.names(prepared)
    asked_key = None if asked is None else find_slice_key(asked, prepared, names)
    iterations = steps.iterations(
        config, prepared, work, engine, terminal.progress, terminal.recorded
    )
    searched = iterations.search()
    terminal.stage(Stage("describing what was found"))
    results = steps.collect(config, prepared, searched, iterations, work, engine)
    order = steps.order(results, config)
    called = order.by_metric[0]
    called = called[results.metrics[0].significant[called]]
    further = places.further
    with files_to_publish(places.document, (*further, TABLE), before, writer()) as files:
        with ThreadPoolExecutor(1) as aside:
            # The engine has examples to count, the table none to wait for.
            writing = aside.submit(
                write_slices, files.streams[TABLE], results, names, prepared.rows
            )
            chosen = cover(config, prepared, results, called, work, engine)
            writing.result()
        changelist = build(
            config,
            prepared,
            searched,
            results,
            names,
            order,
            chosen,
            engine.name,
            f"sha256:{files.sha256(TABLE)}",
        )
        if earlier is not None:
            since = compare_runs(config, earlier, changelist, results, names)
            changelist = changelist.model_copy(update={"since": since})
        if steps.further is not None:
            others = [files.streams[name] for name in further]
            changelist = steps.further.write(config, prepared, changelist, others, work, engine)
        changelist = with_run(naming_files(changelist, files), work.run)
        work.check(at_once=True)
        for line in files.publish(changelist.to_json().encode("utf-8")):
            terminal.note(line)
    if asked is None:
        return Described(changelist)
    explained = explain(asked, asked_key, config, prepared, searched, results, names)
    return Described(changelist, explained)


def _same(one: StoragePath, other: StoragePath) -> bool:
    if isinstance(one, Path) and isinstance(other, Path):
        return one.resolve() == other.resolve()
    return one == other


def writer() -> str:
    """Return what another run is told of this one."""
    return f"the run of process {os.getpid()} on {socket.gethostname()}"
