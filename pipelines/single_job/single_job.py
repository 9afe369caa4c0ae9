"""A whole batch search as one job, which publishes by itself.

The graph has a part for each stage that takes workers. It begins with a step on one worker, which
runs the driver's own code: it finds the output of earlier parts in the work folder, and at its own
stage it hands the work out instead of doing it. The last step runs to the end, and publishes.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.options.value_provider import RuntimeValueProvider

from slicebeam.metrics.errors import EngineError, InputError, OptionError
from slicebeam.metrics.registry import statistic_space
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.config.coercion import listed
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.run.engine import Cost, Engine, RunnerConfig
from slicebeam.pipelines.run.paths import places_of, removing_new_folders
from slicebeam.pipelines.run.published import Published
from slicebeam.pipelines.run.published_run import published_before
from slicebeam.pipelines.run.resuming import begin_run, remove_work, resumable
from slicebeam.pipelines.run.stage import Stage
from slicebeam.pipelines.run.work_folder import WorkFolder
from slicebeam.pipelines.search.gate import gate_of, judged_anew
from slicebeam.pipelines.search.search import compared, find_and_publish, search_steps
from slicebeam.pipelines.search.search_observer import SilentObserver
from slicebeam.pipelines.single_job.job_work import DoGroupedSteps, DoSteps, work_of
from slicebeam.runner_configs.in_process import InProcess
from slicebeam.runner_configs.options import DirectOptions
from slicebeam.runner_configs.reported_errors import for_user
from slicebeam.transforms.storage.files import file_format
from slicebeam.transforms.storage.publish import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from slicebeam.pipelines.config.search import SearchConfig
    from slicebeam.pipelines.run.observer import Observer
    from slicebeam.pipelines.single_job.job_work import JobWork

# Work of less than so many seconds is done by the worker that plans.
_SMALLEST_STAGE_SECONDS = 1.0
# A job's name may continue from that of its stage by what identifies its plan.
_PLAN = re.compile(r"-[0-9a-f]{8}$")
_STEPS = "steps"
_JOB = "search"


def check_single_job(config: SearchConfig) -> SearchConfig:
    """Return the search as it is run as one job.

    Raises
    ------
    InputError
        It can't be: its strategy looks at results before it continues, or it runs a model.
    """
    if config.strategy in ("iterative", "priority"):
        raise OptionError(
            f"--strategy {config.strategy} decides after each iteration what to count next, so "
            "this command submits one job per iteration and must keep running; a single job "
            "needs --strategy batch"
        )
    if config.tfma_metric:
        raise OptionError(
            f"--metric {config.tfma_metric[0]} is computed after the search, for the slices it "
            "found; leave it out of a single job"
        )
    for name in ("model", "baseline_model"):
        if getattr(config, name):
            raise OptionError(
                f"--{name.replace('_', '-')} can't be run in a single job, whose graph is built "
                "before the data is known; write the predictions to a column"
            )
    return search_config({**config.model_dump(exclude_unset=True), "strategy": "batch"})


def stages_of(config: SearchConfig) -> tuple[str, ...]:
    """Return the stages that are parts of the graph, in their order."""
    stages = ["domains", "encode"]
    if not all(_is_parquet(path, config) for path in config.data):
        stages.insert(0, "convert")
    space = statistic_space(config.metric, config.comparison, weighted=config.weight is not None)
    if space.ranked:
        stages += ["scores", "buckets"]
    if space.terms or space.weighted:
        stages.append("sizes")
    if space.terms and space.comparison == "overall":
        stages.append("deviations")
    stages.append("totals")
    if config.numbers_rows:
        stages.append("ids")
    if space.ranked:
        stages.append("auc-of-all")
    stages.append("iteration-1")
    if config.resamples_examples and not config.is_paper:
        stages.append("iteration-1-resampled")
        if space.ranked:
            stages.append("iteration-1-resampled-exact")
    if space.ranked:
        stages.append("iteration-1-exact")
    return tuple(stages)


def _is_parquet(path: str, config: SearchConfig) -> bool:
    try:
        return file_format(path, config.format) == "parquet"
    except InputError:
        # A pattern, or not known yet, may be of any format.
        return False


class HandedOutError(Exception):
    """The stage whose work is to be handed out was reached."""

    def __init__(self, build: Callable[[Any], Any]) -> None:
        super().__init__()
        self.build = build


class NothingToDoError(Exception):
    """A later stage was reached: this one has nothing to do for this data."""


class StagedEngine(Engine):
    """The engine of a step of the graph: it does not do the work of other parts.

    Parameters
    ----------
    name, workers : of the engine that runs the whole job
    mine : the stage of this part; None for the last step, which does all that is left
    """

    def __init__(self, name: str, workers: int, stages: tuple[str, ...], mine: str | None) -> None:
        super().__init__(RunnerConfig("direct", DirectOptions()))
        self._name, self._workers = name, workers
        at = stages.index(mine) if mine else len(stages)
        self._done, self._mine, self._later = stages[:at], mine, stages[at + 1 :]

    @property
    def name(self) -> str:
        """What the document calls the engine."""
        return self._name

    @property
    def workers(self) -> int:
        """How many can work at once."""
        return self._workers

    def run(
        self,
        build: Callable[[Any], Any],
        stage: str,
        seconds: float | None = None,
        *,
        before: Callable[[], object] | None = None,
    ) -> Cost:
        """Do a stage here, unless it is another part's, or this one's to hand out.

        Raises
        ------
        HandedOutError, NothingToDoError
            The way ends here.
        """
        own = _PLAN.sub("", stage)
        is_small = _is_small(seconds)
        if own in self._later and not is_small:
            raise NothingToDoError
        if own == self._mine and not is_small:
            # Nothing is emptied: workers may be writing already what this step planned before.
            raise HandedOutError(build)
        if before is not None:
            before()
        # A run within a worker makes Beam forget what the worker's own job was given.
        given = RuntimeValueProvider.runtime_options
        try:
            # Without the driver's log: what is logged here is for the log of the worker.
            InProcess(DirectOptions()).run(build, own)
        except Exception as error:
            raise for_user(error) from error
        finally:
            RuntimeValueProvider.set_runtime_options(given)
        return Cost()

    def attach(self, stage: str, seconds: float | None = None) -> Cost | None:
        """Say that the workers of an earlier part did a stage; None for one that they did not."""
        # Small stages were done where they were planned.
        is_done = _PLAN.sub("", stage) in self._done and not _is_small(seconds)
        return Cost() if is_done else None


def _is_small(seconds: float | None) -> bool:
    return seconds is not None and seconds < _SMALLEST_STAGE_SECONDS


@dataclass(frozen=True)
class SearchPart:
    """What the steps on one worker know.

    Attributes
    ----------
    engine, workers : name of the engine that runs the job, and how many can work at once
    later : options given when the job begins, by name
    removes_work : whether the last step removes the work folder
    fail_on : what makes the run fail; None for nothing
    """

    config: SearchConfig
    engine: str
    workers: int
    stages: tuple[str, ...]
    later: Mapping[str, Any] = field(default_factory=dict)
    removes_work: bool = False
    fail_on: str | None = None

    def given(self) -> SearchConfig:
        """Return the search with the options known only now."""
        given = {name: provider.get() for name, provider in self.later.items()}
        options = self.config.model_dump(exclude_unset=True)
        for name, value in given.items():
            if value:
                options[name] = listed([value]) if name == "data" else value
        missing = [name for name in ("data", "output") if not options.get(name)]
        if missing:
            raise InputError(f"parameter {missing[0]} is missing")
        return search_config(options)

    def work(self, stage: str) -> JobWork | None:
        """Return the work of a stage, None if it has none."""
        try:
            self._go(stage)
        except HandedOutError as reached:
            return work_of(reached.build)
        except NothingToDoError:
            return None
        raise EngineError(f"stage {stage} was passed by")

    def publish(self) -> None:
        """Do the remaining work, and publish."""
        self._go(None)

    def remove_work(self) -> None:
        """Remove the work folder."""
        WorkFolder(places_of(self.given()).work).remove()

    def _go(self, stage: str | None) -> None:
        """Go the driver's way, to the stage or to the end."""
        config, earlier = compared(self.given())
        places = places_of(config)
        before = version_of(places.document)
        work = WorkFolder(places.work)
        work.join(config, places.files)
        with StagedEngine(self.engine, self.workers, self.stages, stage) as engine:
            if stage is None:
                find_and_publish(
                    config,
                    search_steps(),
                    places,
                    before,
                    work,
                    engine,
                    SilentObserver(),
                    earlier,
                    fail_on=self.fail_on,
                )
                return
            steps = search_steps()
            prepared = steps.prepare(config, places.files, work, engine, _ignore)
            steps.iterations(config, prepared, work, engine, _ignore, _ignore).search()
        # The search ended without this stage, as one that finds nothing to resample.
        raise NothingToDoError


def _ignore(_: object) -> None:
    """Do nothing."""


def _aside(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, called in its own thread.

    A pipeline that is run within a step would take the thread's notes of the outer one.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *arguments).result()


class _Plan(beam.DoFn):
    def __init__(self, part: SearchPart, stage: str) -> None:
        self.part, self.stage = part, stage

    def process(self, _: Any) -> Iterator[Any]:
        work = _aside(self.part.work, self.stage)
        if work is not None:
            yield beam.pvalue.TaggedOutput(_STEPS, work.packed())
            yield from work.elements


class _Publish(beam.DoFn):
    def __init__(self, part: SearchPart) -> None:
        self.part = part

    def process(self, _: Any) -> Iterator[int]:
        _aside(self.part.publish)
        yield 1


class _RemoveWork(beam.DoFn):
    def __init__(self, part: SearchPart) -> None:
        self.part = part

    def process(self, _: Any) -> Iterator[int]:
        self.part.remove_work()
        yield 1


@dataclass
class _StagePart(beam.PTransform):
    """One stage: PCollection of one element -> PCollection of one element, when it is finished."""

    part: SearchPart
    stage: str

    def expand(self, begun: Any) -> Any:
        """Wire the transform."""
        plan = beam.ParDo(_Plan(self.part, self.stage)).with_outputs(_STEPS, main="elements")
        planned = begun | "Plan" >> plan
        steps = beam.pvalue.AsSingleton(planned[_STEPS], default_value=b"")
        return (
            planned["elements"]
            | "Spread" >> beam.Reshuffle()
            | "Work" >> beam.ParDo(DoSteps(), steps).with_output_types(tuple[int, Any])
            | "By key" >> beam.GroupByKey()
            | "Sum" >> beam.ParDo(DoGroupedSteps(), steps).with_output_types(int)
            | "Finished" >> beam.combiners.Count.Globally()
        )


@dataclass
class SingleJobSearch(beam.PTransform):
    """A search: pipeline -> PCollection of one element, when the result is published."""

    part: SearchPart

    def expand(self, pipeline: Any) -> Any:
        """Wire the transform."""
        reached = pipeline | "Begin" >> beam.Create([0])
        for stage in self.part.stages:
            reached = reached | stage >> _StagePart(self.part, stage)
        published = reached | "Publish" >> beam.ParDo(_Publish(self.part))
        if not self.part.removes_work:
            return published
        # Apart from publishing, which may be done again as long as the work is there.
        return (
            published
            | "Published" >> beam.combiners.Count.Globally()
            | "Remove work" >> beam.ParDo(_RemoveWork(self.part))
        )


def run_single_job(
    config: SearchConfig,
    engine: Engine,
    observer: Observer,
    *,
    resume: bool = False,
    fail_on: str | None = None,
) -> Published:
    """Send a search as one job, which continues should this process end, and wait for its result.

    Raises
    ------
    InputError
        The options or the data are wrong, or the search can't be one job.
    EngineError
        The engine or the storage failed.
    """
    config = check_single_job(config)
    with removing_new_folders(config):
        return _run_single_job(config, engine, observer, resume=resume, fail_on=fail_on)


def _run_single_job(
    config: SearchConfig, engine: Engine, observer: Observer, *, resume: bool, fail_on: str | None
) -> Published:
    compared_config, _ = compared(config)
    places = places_of(compared_config)
    document = places.document
    engine.check_storage([*places.files, places.output, places.work])
    observer.begin(config, places.files, engine.name)
    work = WorkFolder(places.work)
    done = begin_run(
        compared_config, SearchChangeList, places, work, engine, observer, resume=resume
    )
    if done is not None:
        done = judged_anew(done, document, gate_of(done, fail_on))
        return Published(done, document, places.table)
    part = SearchPart(config, engine.name, engine.workers, stages_of(config), fail_on=fail_on)
    with work, resumable(work):
        observer.stage(Stage("searching, as one job"))

        def published() -> SearchChangeList | None:
            return published_before(SearchChangeList, document, work.run, work.run)

        if engine.attach(_JOB) is None or published() is None:
            engine.end_earlier(_JOB)
            engine.run(lambda pipeline: pipeline | "Search" >> SingleJobSearch(part), _JOB)
        changelist = published()
        if changelist is None:
            what = "has not changed" if document.is_file() else "is missing"
            raise EngineError(f"the job ended, but {document} {what}; run again with --resume")
        remove_work(work, observer)
    return Published(changelist, document, places.table)
