"""``slicebeam search``: from files to a published ChangeList."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Generic

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.reading import TABLE, naming_files
from slicebeam.pipelines.config.slices import Config
from slicebeam.pipelines.prepare.preparation import prepare
from slicebeam.pipelines.run.paths import RunPaths, places_of, removing_new_folders, writer
from slicebeam.pipelines.run.published import Published
from slicebeam.pipelines.run.published_run import with_run
from slicebeam.pipelines.run.resuming import begin_run, remove_work, resumable
from slicebeam.pipelines.run.stage import Stage
from slicebeam.pipelines.run.work_folder import WorkFolder
from slicebeam.pipelines.search.building import build, listed_positions
from slicebeam.pipelines.search.earlier_run import BaselineRun, earlier_run
from slicebeam.pipelines.search.explain import explain
from slicebeam.pipelines.search.findings import finding_lists
from slicebeam.pipelines.search.gate import gate_of, judged_anew, with_gate
from slicebeam.pipelines.search.iterations import Iterations
from slicebeam.pipelines.search.list_coverage import MOST_COVERING, list_coverage
from slicebeam.pipelines.search.report_order import Reported, report_order
from slicebeam.pipelines.search.results import collect
from slicebeam.pipelines.search.since import compare_runs
from slicebeam.pipelines.search.slice_lookup import check_slice_text, find_slice_key
from slicebeam.pipelines.search.slices_table import SliceNames, write_slices
from slicebeam.pipelines.tfma.evaluate import evaluation_of, with_tfma
from slicebeam.pipelines.tfma.messages import TFMA_TABLE, write_messages
from slicebeam.transforms.storage.publication import files_to_publish
from slicebeam.transforms.storage.publish import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicebeam.pipelines.changelist.gate import Gate
    from slicebeam.pipelines.config.search import SearchConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.search.iteration_records import SearchResult
    from slicebeam.pipelines.search.results import Results
    from slicebeam.pipelines.search.search_observer import SearchObserver
    from slicebeam.transforms.storage.publish import Version


@dataclass(frozen=True)
class ExtraOutputs(Generic[Config]):
    """What a command publishes besides the document and its table.

    Attributes
    ----------
    write : writes them, and returns the document with their sections
    """

    names: tuple[str, ...]
    write: Callable[
        [Config, EncodedDataset, SearchChangeList, Sequence[IO[bytes]], WorkFolder, Engine],
        SearchChangeList,
    ]


@dataclass(frozen=True)
class Steps(Generic[Config]):
    """The steps that differ between commands, between reading the data and publishing the result.

    Attributes
    ----------
    order : returns the slices to report, of each metric the significant ones first
    further : what is published besides; None for nothing
    judge : returns whether the run passes ``--fail-on``; None for no gate
    """

    prepare: Callable[
        [Config, Sequence[str], WorkFolder, Engine, Callable[[Stage], None]], EncodedDataset
    ]
    iterations: type[Iterations]
    collect: Callable[
        [Config, EncodedDataset, SearchResult, Iterations, WorkFolder, Engine], Results
    ]
    names: Callable[[EncodedDataset], SliceNames]
    order: Callable[[Results, Config], Reported]
    further: ExtraOutputs[Config] | None = None
    judge: Callable[[SearchChangeList, str | None], Gate | None] = gate_of


def run_search(
    config: SearchConfig,
    engine: Engine,
    observer: SearchObserver,
    *,
    resume: bool = False,
    explained_slice: str | None = None,
    fail_on: str | None = None,
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
        config,
        search_steps(),
        engine,
        observer,
        earlier,
        resume=resume,
        explained_slice=explained_slice,
        fail_on=fail_on,
    )


def search_steps() -> Steps[SearchConfig]:
    """Return the steps of a search."""
    return Steps(prepare, Iterations, collect, searched_names, report_order)


def compared(config: SearchConfig) -> tuple[SearchConfig, BaselineRun | None]:
    """Return a search as it is run, and the earlier run that it is compared with."""
    earlier = earlier_run(config)
    if earlier is not None and earlier.document.discovery is not None:
        raise OptionError(
            f"--since {config.since} is the document of a discovery, whose slices are not columns "
            "of the data; follow them with slicebeam check --changelist, or name the document of "
            "a search"
        )
    if earlier is not None and earlier.document.dataset.domains:
        config = config.with_domains_of_since()
    return config, earlier


def searched_names(prepared: EncodedDataset) -> SliceNames:
    """Return the names of the slices of a search."""
    return SliceNames(prepared.lattice, prepared.domains)


def run_steps(
    config: Config,
    steps: Steps[Config],
    engine: Engine,
    observer: SearchObserver,
    earlier: BaselineRun | None = None,
    *,
    resume: bool = False,
    explained_slice: str | None = None,
    fail_on: str | None = None,
) -> Published:
    """Run a command's steps within the common ones, and publish the result."""
    if explained_slice is not None:
        check_slice_text(explained_slice, config)
    with removing_new_folders(config):
        # What is wrong with a metric is said before anything is read.
        evaluation = evaluation_of(config)
        places = places_of(config)
        further = () if steps.further is None else steps.further.names
        places = replace(places, further=(*further, *([TFMA_TABLE] if evaluation else [])))
        # What is there now is what this run may replace.
        before = version_of(places.document)
        engine.check_storage([*places.files, places.output, places.work])
        observer.begin(config, places.files, engine.name)
        for line in config.notes:
            observer.note(line)
        work = WorkFolder(places.work)
        done = begin_run(config, SearchChangeList, places, work, engine, observer, resume=resume)
        if done is not None:
            if explained_slice is not None:
                raise OptionError(
                    f"--explain {explained_slice!r}: the run is published, and its intermediate "
                    "results are gone; leave --resume out to run it again"
                )
            done = judged_anew(done, places.document, steps.judge(done, fail_on))
            return Published(done, places.document, places.table)
        with work, resumable(work):
            found = find_and_publish(
                config,
                steps,
                places,
                before,
                work,
                engine,
                observer,
                earlier,
                explained_slice,
                fail_on,
            )
            remove_work(work, observer)
        return Published(found.changelist, places.document, places.table, found.explanation)


@dataclass(frozen=True)
class SearchOutcome:
    """The published result, and the explanation of a slice's test."""

    changelist: SearchChangeList
    explanation: tuple[str, ...] = ()


def find_and_publish(
    config: Config,
    steps: Steps[Config],
    places: RunPaths,
    before: Version | None,
    work: WorkFolder,
    engine: Engine,
    observer: SearchObserver,
    earlier: BaselineRun | None,
    explained_slice: str | None = None,
    fail_on: str | None = None,
) -> SearchOutcome:
    """Do all steps, of which those that the work folder holds are done, and publish the result.

    Parameters
    ----------
    before : version of the document that is replaced
    explained_slice : id or text of the slice whose test to explain
    fail_on : what makes the run fail; None for nothing
    """
    prepared = steps.prepare(config, places.files, work, engine, observer.stage)
    observer.prepared(prepared)
    names = steps.names(prepared)
    explained_key = (
        None if explained_slice is None else find_slice_key(explained_slice, prepared, names)
    )
    iterations = steps.iterations(
        config, prepared, work, engine, observer.progress, observer.recorded
    )
    searched = iterations.search()
    observer.stage(Stage("describing the results"))
    results = steps.collect(config, prepared, searched, iterations, work, engine)
    order = steps.order(results, config)
    observer.stage(Stage("choosing findings"))
    lists = finding_lists(config, prepared, results, searched.tests_per_level, names, work, engine)
    first = listed_positions(order, lists)[:MOST_COVERING]
    coverage = list_coverage(
        config, prepared, results.keys[first], work, engine, results.sums[first]
    )
    further = places.further
    with files_to_publish(places.document, (*further, TABLE), before, writer()) as files:
        write_slices(files.streams[TABLE], results, names, prepared.rows, lists)
        changelist = build(
            config,
            prepared,
            searched,
            results,
            names,
            order,
            lists,
            engine.name,
            f"sha256:{files.sha256(TABLE)}",
        ).model_copy(update={"coverage": coverage})
        if TFMA_TABLE in further:
            changelist, messages = with_tfma(
                changelist, evaluation_of(config), prepared, work, engine, observer.stage
            )
            write_messages(files.streams[TFMA_TABLE], messages)
        if earlier is not None:
            since = compare_runs(config, earlier, changelist, results, names)
            changelist = changelist.model_copy(update={"since": since})
        if steps.further is not None:
            others = [files.streams[name] for name in steps.further.names]
            changelist = steps.further.write(config, prepared, changelist, others, work, engine)
        changelist = with_gate(changelist, steps.judge(changelist, fail_on))
        changelist = with_run(naming_files(changelist, files), work.run)
        work.check(at_once=True)
        for line in files.publish(changelist.to_json().encode("utf-8")):
            observer.note(line)
    if explained_slice is None:
        return SearchOutcome(changelist)
    explained = explain(explained_slice, explained_key, config, prepared, searched, results, names)
    return SearchOutcome(changelist, explained)
