"""``--dry-run``: the jobs that a search would submit, their options and their cost.

Nothing is submitted or written, and only `read_shape` reads data.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.metrics.registry import statistic_space
from slicebeam.pipelines.plan.cost_model import (
    IMPORT_SECONDS,
    OWN_SECONDS,
    Shape,
    estimate,
    estimate_given,
    totals,
)
from slicebeam.pipelines.plan.data_shape import (
    ColumnShape,
    column_shapes,
    read_shape,
    shape_of_domain,
)
from slicebeam.pipelines.plan.job_steps import steps_of
from slicebeam.pipelines.prepare.features import choose_features
from slicebeam.pipelines.prepare.given_domains import given_domains
from slicebeam.pipelines.prepare.given_slices import given_slices, read_given
from slicebeam.pipelines.prepare.outcome import resolve_outcome
from slicebeam.pipelines.search.batch_cost import batch_cost
from slicebeam.pipelines.search.search import compared
from slicebeam.pipelines.single_job.single_job import (
    SearchPart,
    SingleJobSearch,
    check_single_job,
    stages_of,
)
from slicebeam.pipelines.tfma.evaluate import cost_lines
from slicebeam.transforms.count.combine_slice_metrics import CombineSliceMetrics, WorkItem
from slicebeam.transforms.count.significance import BlockTest, TestSignificance
from slicebeam.transforms.encode.convert import Conversion, ConvertToParquet
from slicebeam.transforms.encode.extract_slice_keys import (
    Encoding,
    ExtractPredictions,
    ExtractSliceKeys,
    ReadExamples,
)
from slicebeam.transforms.encode.learn_domains import DomainOptions, LearnDomains
from slicebeam.transforms.encode.shards import Scaling
from slicebeam.transforms.storage.files import expand_paths, file_format
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicebeam.metrics.counting.lattice import Lattice
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.pipelines.config.check import CheckConfig
    from slicebeam.pipelines.config.search import SearchConfig
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.plan.cost_model import StageCost
    from slicebeam.pipelines.plan.data_shape import DataShape
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.transforms.encode.extract_predictions import Outcome, Side
    from slicebeam.transforms.storage.storage import StoragePath

# What stands in names for what distinguishes runs.
RUN = "RUN"
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_CAUTION = (
    "from constants measured in process, accurate to a factor of two or three; the cost of "
    "starting and idle machines is not included"
)


@dataclass(frozen=True)
class PlannedJob:
    """A job that would be sent.

    Attributes
    ----------
    name : with ``RUN`` for what distinguishes runs
    is_sent : whether it goes to the engine; a small one is done in the process of the run
    steps : of its graph, a line each
    """

    name: str
    is_sent: bool
    steps: tuple[str, ...]
    costs: StageCost


@dataclass(frozen=True)
class RunPlan:
    """What a run would do.

    Attributes
    ----------
    options : of Beam, that each job is sent with
    """

    engine: str
    options: tuple[str, ...]
    facts: dict[str, Any]
    jobs: tuple[PlannedJob, ...]
    rest: tuple[StageCost, ...]
    total: StageCost

    @property
    def sent(self) -> int:
        """How many jobs go to the engine."""
        return sum(job.is_sent for job in self.jobs)

    @property
    def iterations(self) -> int:
        """How many iterations there are, at most."""
        return sum(job.costs.stage.startswith("iteration-") for job in self.jobs) or 1

    def to_json(self) -> str:
        """Return all of it as JSON."""
        return json.dumps(
            {
                "engine": self.engine,
                "options": self.options,
                **self.facts,
                "jobs": [
                    {"name": job.name, "sent": job.is_sent, "steps": job.steps, **asdict(job.costs)}
                    for job in self.jobs
                ],
                "rest": [asdict(one) for one in self.rest],
                "estimate": {
                    "jobs": self.sent,
                    "iterations": self.iterations,
                    "vcpu_hours": self.total.seconds / 3600,
                    "cpu_seconds": self.total.seconds,
                    "shuffled_bytes": self.total.shuffled_bytes,
                    "work_folder_bytes": self.total.written_bytes,
                    "is_bound": self.total.is_bound,
                },
            },
            indent=1,
        )

    def to_text(self) -> str:
        """Return it for a reader."""
        facts, about = self.facts, "at most" if self.total.is_bound else "about"
        guessed = "guessed" if facts["is_guessed"] else "known"
        rows = f"{facts['rows']:,}" + (" or so" if facts["is_sampled"] else "")
        data = (
            f"{rows} examples, {_bytes(facts['bytes'])} in {_many(facts['files'], 'file')}; "
            f"{facts['features']} features with {facts['singletons']} predicates ({guessed})"
        )
        conjunctions = f"{facts['conjunctions']:,} conjunctions of up to {facts['max_cross_size']}"
        lines = [
            "nothing is submitted: this is what would run",
            f"engine: {self.engine}",
            f"data: {data}",
            f"check: {facts['conjunctions']:,} given slices"
            if facts["strategy"] == "given"
            else f"search: {facts['strategy']}, {conjunctions} predicates; counting and testing all "
            f"of them takes about {facts['batch_seconds']:.3g} s of CPU",
        ]
        for job in self.jobs:
            where = "on the engine" if job.is_sent else "in this process, because it is small"
            lines += ["", f"job {job.name}: {where}; {_costs(job.costs)}"]
            lines += [f"  {step}" for step in job.steps]
        if self.rest:
            lines.append("")
            lines += [f"{one.stage}: {_costs(one)}" for one in self.rest]
        if self.options:
            lines += ["", "options of each job:", *(f"  {option}" for option in self.options)]
        total = self.total
        costs = (
            f"{total.seconds / 3600:.3g} vCPU-hours, {_bytes(total.shuffled_bytes)} shuffled, "
            f"{_bytes(total.written_bytes)} in the work folder"
        )
        counts = f"{_many(self.iterations, 'iteration')}, {_many(self.sent, 'job')} on the engine"
        lines += ["", f"estimate: {about} {costs}; {counts}", _CAUTION]
        lines += [f"not included: {one}" for one in facts["not_estimated"]]
        return "\n".join(lines)


def _many(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _costs(cost: StageCost) -> str:
    parts = [f"{'at most' if cost.is_bound else 'about'} {cost.seconds:.3g} s of CPU"]
    if cost.candidates:
        parts.append(f"{cost.candidates:,} conjunctions, {cost.tested:,} tested")
    if cost.shuffled_bytes:
        parts.append(f"{_bytes(cost.shuffled_bytes)} shuffled")
    if cost.written_bytes:
        parts.append(f"{_bytes(cost.written_bytes)} written")
    return ", ".join(parts)


def _bytes(size: float) -> str:
    """Return a size for a reader.

    >>> _bytes(999), _bytes(1500), _bytes(2.5e9)
    ('999 B', '1.5 kB', '2.5 GB')
    """
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.0f} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def plan_search(config: SearchConfig, engine: Engine, *, single_job: bool = False) -> RunPlan:
    """Return the plan of a search.

    Raises
    ------
    InputError
        The options or the data are wrong, as far as its schema shows.
    """
    if single_job:
        config = check_single_job(config)
    config, _ = compared(config)
    looked = _look(config, engine)
    known = looked.known
    features = choose_features(config, known.source, looked.outcome)
    learned = features
    if config.domains:
        given = given_domains(config.domains, known.source, features, config.domains_option)
        # What is new in this data is not known before it is read.
        columns = {name: shape_of_domain(one.domain) for name, one in given.domains.items()}
        columns |= column_shapes(
            known, given.learned, bins=config.bins, top_values=config.top_values
        )
        learned = list(given.features)
    else:
        columns = column_shapes(known, features, bins=config.bins, top_values=config.top_values)
    if not columns:
        raise InputError("no feature is left to slice by; --features names the columns to use")
    encoding = looked.encoding(config, features)
    shape = looked.shape(tuple(columns.values()), len(learned), {*columns, *encoding.columns()})
    lattice = shape.lattice(config.max_cross_size)
    costs = estimate(config, shape, engine.workers)
    batch = batch_cost(config, lattice, shape.space, shape.rows)
    facts = {
        "features": len(columns),
        "singletons": lattice.singletons,
        "is_guessed": not config.domains,
        "strategy": config.resolved_strategy(lattice.space(), batch_fits=batch.fits),
        "batch_seconds": batch.seconds,
        "conjunctions": lattice.space(),
        "max_cross_size": lattice.max_cross_size,
    }
    if single_job:
        part = SearchPart(config, engine.name, engine.workers, stages_of(config))
        steps = steps_of(lambda pipeline: pipeline | "Search" >> SingleJobSearch(part))
        whole = replace(totals(costs), stage="search")
        job = PlannedJob(_name(engine, "search"), True, steps, whole)
        return _planned(engine, looked, facts, [job], [], costs)
    options = DomainOptions(config.bins, config.top_values, frozenset(), config.memory)
    learn = LearnDomains(known.source, learned, options, looked.work / "domains")
    built = _jobs(config, looked, encoding, lattice)
    built["domains"] = lambda pipeline: pipeline | "Learn domains" >> learn
    return _planned(engine, looked, facts, *_split(engine, costs, built), costs)


def plan_check(config: CheckConfig, engine: Engine) -> RunPlan:
    """Return the plan of a check.

    Raises
    ------
    InputError
        The options, the slices or the data are wrong, as far as its schema shows.
    """
    if config.eval_config is not None:
        raise OptionError(
            "--dry-run: the slices of --eval-config depend on values in the data, which a dry "
            "run does not read; leave one out"
        )
    looked = _look(config, engine)
    source = looked.known.source
    given = given_slices(read_given(config.changelist, config.slices), source.schema)
    features = choose_features(config, source, looked.outcome)
    encoding = replace(looked.encoding(config, features), given=given.membership)
    slices = ColumnShape(given.membership.size, has_equal_bins=False, is_list=True)
    shape = looked.shape((slices,), 0, set(encoding.columns()))
    costs = estimate_given(config, shape, engine.workers)
    facts = {
        "features": len(given.membership.columns),
        "singletons": given.membership.size,
        "is_guessed": False,
        "strategy": "given",
        "conjunctions": given.membership.size,
        "max_cross_size": 1,
    }
    built = _jobs(config, looked, encoding, shape.lattice(1))
    return _planned(engine, looked, facts, *_split(engine, costs, built), costs)


@dataclass(frozen=True)
class _Looked:
    """The state of a run of any command before its first job."""

    files: Sequence[str]
    work: StoragePath
    known: DataShape
    outcome: Outcome
    space: StatisticSpace
    is_resampled: bool
    tfma_costs: tuple[str, ...]

    def encoding(self, config: RunConfig, features: Sequence[str]) -> Encoding:
        """Return how examples would be encoded, except for the domains, which no graph shows."""
        models: tuple[tuple[Side, str | None], ...] = (
            ("prediction", config.model),
            ("baseline", config.baseline_model),
        )
        return Encoding(
            self.known.source,
            (),
            self.outcome,
            self.space,
            self.work / "shards",
            config.group or config.example_id,
            "--group" if config.group else "--example-id",
            # A model itself is not loaded, which would run code.
            {side: tuple(features) for side, path in models if path},
            is_resampled=config.resamples_examples,
        )

    def shape(self, columns: tuple[ColumnShape, ...], learned: int, read: set[str]) -> Shape:
        """Return the input of the cost model."""
        converted = 0 if self.known.is_parquet else self.known.bytes
        return Shape(self.known.rows, learned, len(read), converted, columns, self.space)


def _look(config: RunConfig, engine: Engine) -> _Looked:
    files = expand_paths(config.data)
    work = storage_path(config.work_dir or f"{config.output.rstrip('/')}/_work", "--work-dir")
    engine.check_storage([*files, storage_path(config.output, "--output"), work])
    known = read_shape(config, files)
    if known.rows == 0:
        raise OptionError(f"--data {' '.join(config.data)}: there are no examples in it")
    space = statistic_space(config.metric, config.comparison, weighted=config.weight is not None)
    is_resampled = config.resamples_examples and not config.is_paper
    outcome = resolve_outcome(config, known.source)
    costs = tuple(cost_lines(config, known.rows))
    return _Looked(files, work, known, outcome, space, is_resampled, costs)


def _split(
    engine: Engine, costs: Sequence[StageCost], built: dict[str, Callable[[Any], Any]]
) -> tuple[list[PlannedJob], list[StageCost]]:
    """Return the jobs of the stages that have one, and the other stages."""
    # Iterations are alike.
    kinds = {_kind(cost.stage) for cost in costs}
    steps = {kind: steps_of(build) for kind, build in built.items() if kind in kinds}
    jobs = [
        PlannedJob(
            _name(engine, cost.stage), engine.sends(cost.seconds), steps[_kind(cost.stage)], cost
        )
        for cost in costs
        if _kind(cost.stage) in built
    ]
    return jobs, [cost for cost in costs if _kind(cost.stage) not in built]


def _planned(
    engine: Engine,
    looked: _Looked,
    facts: dict[str, Any],
    jobs: list[PlannedJob],
    rest: list[StageCost],
    costs: Sequence[StageCost],
) -> RunPlan:
    of_data: dict[str, Any] = {
        "rows": looked.known.rows,
        "bytes": looked.known.bytes,
        "files": len(looked.files),
        "is_sampled": looked.known.is_sampled,
        "not_estimated": list(looked.tfma_costs),
    }
    if looked.is_resampled:
        of_data["not_estimated"].append("replicates of the slices that turn out to be promising")
    total = totals(costs)
    return RunPlan(
        engine.name,
        tuple(engine.sent_options("STAGE", run=RUN)),
        of_data | facts,
        tuple(jobs),
        tuple(rest),
        replace(total, seconds=total.seconds + IMPORT_SECONDS + OWN_SECONDS),
    )


def _name(engine: Engine, stage: str) -> str:
    return engine.job_name(stage, run=RUN)


def _kind(stage: str) -> str:
    """Return the stage whose graph this one has."""
    return "iteration" if stage.startswith("iteration-") else stage


def _jobs(
    config: RunConfig, looked: _Looked, encoding: Encoding, lattice: Lattice
) -> dict[str, Callable[[Any], Any]]:
    """Return what puts the jobs together that all commands have."""
    converted = ConvertToParquet(
        [(path, file_format(path, config.format)) for path in looked.files],
        Conversion(
            looked.work / "parquet",
            config.column_names,
            config.skip_rows,
            delimiter=config.delimiter,
        ),
    )
    folder = looked.work / "iteration-1"
    combined = CombineSliceMetrics(
        [WorkItem(0, ())], folder / "plan", lattice, Scaling(looked.space), None
    )
    test = BlockTest(
        folder / "plan", "", folder, lattice, looked.space, (), config.used_min_slice_size
    )
    return {
        "convert": lambda pipeline: pipeline | "Convert to Parquet" >> converted,
        "encode": lambda pipeline: (
            pipeline
            | "Read examples" >> ReadExamples(encoding.source, encoding.columns())
            | "Extract predictions" >> ExtractPredictions(encoding)
            | "Extract slice keys" >> ExtractSliceKeys(encoding)
        ),
        "iteration": lambda pipeline: (
            pipeline
            | "Combine slice metrics" >> combined
            | "Test significance" >> TestSignificance(test)
        ),
    }
