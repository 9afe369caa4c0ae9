"""``--dry-run``: what a run would do and take, guessed from a sample of its data; nothing is submitted or written."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, replace
from math import comb
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from rich.filesize import decimal

from slicebeam.metrics.counting.counting import Resampling
from slicebeam.metrics.counting.counting_plan import TABLE_ROW, TABLE_UNIT, plan_all, plan_listed
from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.metrics.errors import InputError, OptionError, counted
from slicebeam.metrics.measures.mean import Mean
from slicebeam.metrics.measures.registry import metric, statistic_space
from slicebeam.pipelines.config.search import SearchConfig
from slicebeam.pipelines.prepare.encoded_dataset import SECONDS_PER_NUMBER, SECONDS_PER_ROW
from slicebeam.pipelines.prepare.features import choose_features, resolve_outcome
from slicebeam.pipelines.prepare.inherited import inherited_domains
from slicebeam.pipelines.prepare.source import (
    QUERY_JOBS,
    SECONDS_PER_BYTE,
    SECONDS_PER_VALUE,
    format_of,
    with_lists,
)
from slicebeam.pipelines.prepare.wanted_slices import given_slices, read_given
from slicebeam.pipelines.search.counter import counting_budget
from slicebeam.pipelines.search.search import compared
from slicebeam.pipelines.search.strategies import batch_cost, conjunctions_per_level, test_seconds
from slicebeam.pipelines.tfma.request import cost_lines
from slicebeam.transforms.encode.column import plain_type
from slicebeam.transforms.encode.convert import file_blocks
from slicebeam.transforms.encode.domains import FeatureDomain
from slicebeam.transforms.encode.extract_slice_keys import Encoding
from slicebeam.transforms.encode.learn_domains import learn_domain
from slicebeam.transforms.encode.sources import Source, Split, StoredFile, open_parquet, read_split
from slicebeam.transforms.encode.value_counts import ColumnCounter, unsupported
from slicebeam.transforms.formats.column_kinds import block_kinds, parse_column
from slicebeam.transforms.formats.raw_text import open_bytes, open_stored
from slicebeam.transforms.storage.files import expand_paths
from slicebeam.transforms.storage.storage import identity, storage_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slicebeam.pipelines.config.check import CheckConfig
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.transforms.encode.extract_predictions import Side
    from slicebeam.transforms.storage.file_formats import Format


_BLOCK_BYTES = 4 << 20
_SAMPLE_BYTES = 64 << 20
# Of Parquet so many splits are looked into, and so many rows of each.
_SPLITS, _SPLIT_ROWS, _CHUNK_ROWS = 8, 1 << 16, 1 << 12


@dataclass(frozen=True)
class DataSample:
    """What is known of the data."""

    source: Source  # with the schema; of other formats than Parquet its splits are made up
    bytes: int
    is_sampled: bool  # whether rows and types are estimated from the first block of each file
    files: Sequence[str]
    blocks: pa.Table | None = None  # the beginnings of text files; None for Parquet

    @property
    def rows(self) -> int:
        """Number of examples."""
        return self.source.rows

    def domains(
        self, features: Sequence[str], *, bins: int, top_values: int
    ) -> dict[str, FeatureDomain]:
        """Return a guess at the domain of each feature that has one."""
        schema = self.source.schema
        features = [name for name in features if not unsupported(schema.field(name).type)]
        tables = [] if self.blocks is None else [self.blocks.select(features)]
        # Of Parquet the beginnings of some splits, evenly spread.
        splits = self.source.splits if self.blocks is None else ()
        chosen = splits[:: -(-len(splits) // _SPLITS) or 1]
        for split in chosen:
            rows, taken = 0, 0
            source = self.source.in_chunks(_CHUNK_ROWS)
            with closing(read_split(source, split, features)) as chunks:  # type: ignore[type-var]
                for chunk in chunks:
                    tables.append(chunk.table)
                    rows, taken = rows + chunk.table.num_rows, taken + chunk.table.nbytes
                    if rows >= _SPLIT_ROWS or taken >= _SAMPLE_BYTES // len(chosen):
                        break
        found = {}
        for name in features:
            counter = ColumnCounter(plain_type(schema.field(name).type), _SAMPLE_BYTES)
            pieces = [piece for table in tables for piece in table.column(name).chunks]
            counter.add(pa.chunked_array(pieces))
            values = counter.result()
            learned = learn_domain(name, values, bins=bins, top_values=top_values, named=False)
            if isinstance(learned, FeatureDomain):
                found[name] = learned
        return found


def read_sample(config: RunConfig, files: Sequence[str]) -> DataSample:
    """Return what footers or first blocks of the files say."""
    kind = format_of(config, files)
    size = sum(int(identity(storage_path(path))[0]) for path in files)
    if kind == "parquet":
        source = open_parquet([StoredFile(path, path) for path in files])
        sample = DataSample(source, size, False, files)
    else:
        sample = _of_text(config, files, size, kind)
    if sample.rows == 0:
        raise OptionError(
            f"--data {' '.join(config.data)}: there are no examples in it; name files with some"
        )
    return sample


def _of_text(config: RunConfig, files: Sequence[str], size: int, kind: Format) -> DataSample:
    tables: list[pa.Table] = []
    taken, lines = 0, 0
    for path in files:
        if taken >= _SAMPLE_BYTES:
            break
        # What is not read any further is closed.
        with closing(file_blocks(path, kind, config.csv_layout, _BLOCK_BYTES)) as reading:  # type: ignore[type-var]
            block = next(reading, None)
        if block is None or not block.num_rows:
            continue
        if kind == "tfrecord":
            # As many bytes a record as the block has in memory, which is about what they take.
            lines, taken = lines + block.num_rows, taken + block.nbytes
        else:
            stored = open_stored(path)
            with open_bytes(path, lambda _, stored=stored: stored) as stream:  # type: ignore[misc]
                text = stream.read(_BLOCK_BYTES)
                has_open_line = not stream.read(1) and not text.endswith(b"\n")
                taken += stored.tell()
            has_header = kind == "csv" and not config.column_names
            lines += max(1, text.count(b"\n") + has_open_line - has_header - config.skip_rows)
        for name, kinds in block_kinds(block).items() if kind == "csv" else ():
            # Text columns get the types that their values look like.
            if not pa.types.is_string(type_ := kinds.resolve()):
                column = parse_column(block.column(name), type_, column=name)
                block = block.set_column(block.schema.get_field_index(name), name, column)
        tables.append(block)
    rows = max(1, round(lines * size / taken)) if tables else 0
    splits = (Split(0, StoredFile(files[0], files[0]), 0, (), 0, rows),)
    sample = pa.concat_tables(tables or [pa.table({})], promote_options="permissive")
    source = Source(splits, sample.schema.serialize().to_pybytes(), {})
    return DataSample(source, size, True, files, sample)


# What stands in names for what distinguishes runs.
RUN = "RUN"
# CPU seconds of imports, and of the driver's own work.
IMPORT_SECONDS, _OWN_SECONDS = 1.5, 0.5
# Of an example, to work out which of the listed slices are the same, and what distinguishes them.
# And of each metric of a tested slice, to adjust and write it.
_DESCRIBE_ROW, _DESCRIBE_SLICE = 2e-6, 4e-6
_CAUTION = (
    "from constants measured in process, accurate to a factor of two or three; the cost of "
    "starting and idle machines is not included"
)


@dataclass(frozen=True)
class PlannedJob:
    """A job that would be sent."""

    name: str  # with ``RUN`` for what distinguishes runs
    stage: str
    sent: bool  # whether it goes to the engine; a small one is done in the process of the run
    seconds: float  # of CPU; a bound where the candidates depend on earlier results
    candidates: int = 0
    is_bound: bool = False


@dataclass(frozen=True)
class RunPlan:
    """What a run would do."""

    engine: str
    options: tuple[str, ...]  # of Beam, that each job is sent with
    facts: dict[str, Any]
    jobs: tuple[PlannedJob, ...]
    rest: float  # CPU seconds of the work of the process of the run

    @property
    def seconds(self) -> float:
        """CPU seconds of all."""
        return sum(job.seconds for job in self.jobs) + self.rest

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        estimate = {
            "jobs": sum(job.sent for job in self.jobs),
            "iterations": sum(job.candidates > 0 for job in self.jobs),
            "vcpu_hours": self.seconds / 3600,
            "cpu_seconds": self.seconds,
            "is_bound": any(job.is_bound for job in self.jobs),
        }
        facts = {"engine": self.engine, "options": self.options, **self.facts}
        return {**facts, "jobs": list(map(asdict, self.jobs)), "estimate": estimate}

    def to_text(self) -> str:
        """Return it for a reader."""
        facts = self.facts
        rows = f"{facts['rows']:,}" + (" or so" if facts["is_sampled"] else "")
        size = f"{decimal(facts['bytes'])} in {counted(facts['files'], 'file')}"
        features = f"{facts['features']} features with {facts['singletons']} predicates"
        guessed = "guessed from a sample" if facts["is_guessed"] else "known"
        lines = [
            "nothing is submitted: this is what would run",
            f"engine: {self.engine}",
            f"data: {rows} examples, {size}; {features} ({guessed})",
        ]
        if facts["strategy"] == "given":
            lines.append(f"check: {facts['conjunctions']:,} given slices")
        else:
            lines.append(
                f"search: {facts['strategy']}, {facts['conjunctions']:,} conjunctions of up to "
                f"{facts['max_cross_size']} predicates; counting and testing all of them takes "
                f"about {facts['batch_seconds']:.3g} s of CPU"
            )
        for job in self.jobs:
            where = "on the engine" if job.sent else "in this process, because it is small"
            of_these = f", {job.candidates:,} conjunctions" if job.candidates else ""
            about = "at most" if job.is_bound else "about"
            lines.append(f"job {job.name}: {where}; {about} {job.seconds:.3g} s of CPU{of_these}")
        if self.options:
            lines += ["", "options of each job:", *(f"  {option}" for option in self.options)]
        about = "at most" if any(job.is_bound for job in self.jobs) else "about"
        sent = counted(sum(job.sent for job in self.jobs), "job")
        hours = f"{self.seconds:.3g} s of CPU ({self.seconds / 3600:.3g} vCPU-hours)"
        lines += ["", f"estimate: {about} {hours}; {sent} on the engine", _CAUTION]
        lines += [f"not included: {fact}" for fact in facts["not_estimated"]]
        return "\n".join(lines)


def plan_of(config: RunConfig, engine: Engine) -> RunPlan:
    """Return the plan of a search or a check."""
    if isinstance(config, SearchConfig):
        config, _ = compared(config)
        return _Planner(config, engine).search(config)
    check = cast("CheckConfig", config)
    if check.eval_config is not None:
        raise OptionError(
            "--dry-run: the slices of --eval-config depend on values in the data, which a dry "
            "run does not read; leave one out"
        )
    return _Planner(config, engine).check(check)


class _Planner:
    """Files, schema and options, before any job runs, and the jobs that follow from them."""

    def __init__(self, config: RunConfig, engine: Engine) -> None:
        self.config, self.engine = config, engine
        files = expand_paths(config.data)
        self.work = storage_path(
            config.work_dir or f"{config.output.rstrip('/')}/_work", "--work-dir"
        )
        engine.check_storage([*files, storage_path(config.output, "--output"), self.work])
        sample = read_sample(config, files)
        self.sample = replace(sample, source=with_lists(config, sample.source))
        self.not_estimated = list(cost_lines(config, sample.rows))
        if config.query:
            self.not_estimated.append("how few the queries are: each row is counted as an example")
        resampling = None
        if config.resamples_examples and config.is_paper:
            resampling = Resampling(config.used_replicates, config.seed)
        elif config.resamples_examples:
            self.not_estimated.append("replicates of the slices that turn out to be promising")
        if config.comparison == "earlier" and any(
            isinstance(metric(name), Mean) for name in config.metric
        ):
            self.not_estimated.append("the values of slices that turn out to be promising")
        if isinstance(config, SearchConfig) and config.since and config.follows_data:
            self.not_estimated.append(
                "the data of the run of --since, which is read if it is there"
            )
        weighted = config.weight is not None
        self.space = statistic_space(config.measured, config.comparison, weighted=weighted)
        self.outcome = resolve_outcome(config, self.sample.source)
        self.features = choose_features(config, self.sample.source).features
        self.budget = counting_budget(config, self.space, sample.rows, resampling)

    def search(self, config: SearchConfig) -> RunPlan:
        sample, features = self.sample, self.features
        learned: Sequence[str] = features
        domains: dict[str, FeatureDomain] = {}
        if config.domains:
            given = inherited_domains(
                config.domains, sample.source, features, config.domains_option
            )
            # What is new in this data is not known before it is read.
            domains = {name: one.domain for name, one in given.domains.items()}
            features, learned = list(given.features), given.learned
        domains |= sample.domains(learned, bins=config.bins, top_values=config.top_values)
        if not domains:
            raise InputError("no feature is left to slice by; --features names the columns to use")
        lattice = Lattice(
            tuple(domain.size for domain in domains.values()),
            min(config.max_cross_size, len(domains)),
            tuple(domain.kind == "list" for domain in domains.values()),
        )
        batch = batch_cost(config, lattice, self.space, sample.rows)
        strategy = config.resolved_strategy(lattice.space(), batch_fits=batch.fits)
        jobs = self._reading(len(features), features, domains)
        if strategy == "batch":
            planned = sum(unit.seconds for unit in plan_all(lattice, self.budget))
            tested = batch.tested
            jobs.append(self._job("iteration-1", batch.seconds, lattice.space(), planned=planned))
        else:
            # Bounds for iterations whose candidates depend on earlier results.
            counts = per_level = conjunctions_per_level(lattice)
            if strategy == "priority":
                most = min(config.max_candidates or sum(per_level[1:]), sum(per_level[1:]))
                counts = [per_level[0], *[most] * (config.iterations - 1)]
            tested = sum(counts)
            a_pass = self.budget.rows * self.budget.sums * TABLE_ROW + TABLE_UNIT
            for number, candidates in enumerate(counts, start=1):
                # Each tuple of features that has a candidate is at most one pass over the examples.
                tuples = comb(len(lattice.sizes), min(number, len(per_level)))
                seconds = min(tuples, candidates) * a_pass + candidates * test_seconds(config)
                if candidates:
                    jobs.append(
                        self._job(f"iteration-{number}", seconds, candidates, is_bound=True)
                    )
        facts: dict[str, Any] = {"is_guessed": not config.domains, "strategy": strategy}
        facts["batch_seconds"] = batch.seconds
        return self._plan(lattice, len(domains), facts, jobs, tested)

    def check(self, config: CheckConfig) -> RunPlan:
        wanted = read_given(config.changelist, config.slices)
        membership = given_slices(wanted, self.sample.source.schema).membership
        lattice = Lattice((membership.size,), 1, (True,))
        keys = lattice.singleton_keys()
        none = np.zeros(keys.size, np.int64)
        units = plan_listed(keys, none, none, lattice, self.budget)
        planned = sum(unit.seconds for unit in units)
        jobs = self._reading(0, self.features, membership.columns)
        tests = keys.size * test_seconds(config)
        jobs.append(self._job("iteration-1", planned + tests, keys.size, planned=planned))
        facts = {"is_guessed": False, "strategy": "given"}
        return self._plan(lattice, len(membership.columns), facts, jobs, keys.size)

    def _job(
        self,
        stage: str,
        seconds: float,
        candidates: int = 0,
        *,
        planned: float | None = None,
        is_bound: bool = False,
    ) -> PlannedJob:
        """Return a job, which is sent where its seconds, or those that are planned, are worth it."""
        name = self.engine.job_name(stage, run=RUN)
        is_sent = self.engine.sends(seconds if planned is None else planned)
        return PlannedJob(name, stage, is_sent, seconds, candidates, is_bound)

    def _reading(
        self, learned: int, features: Sequence[str], of_slices: Iterable[str]
    ) -> list[PlannedJob]:
        config, source, rows = self.config, self.sample.source, self.sample.rows
        # A model itself is not loaded, which would run code: it may read all features.
        models: dict[Side, tuple[str, ...]] = (
            {"prediction": tuple(features)} if config.model or config.baseline_model else {}
        )
        of_run = source, (), self.outcome, self.space, self.work, config.group or config.example_id
        encoded = {*of_slices, *Encoding(*of_run, model_columns=models).columns()}
        jobs = []
        if self.sample.is_sampled:
            jobs.append(self._job("convert", self.sample.bytes * SECONDS_PER_BYTE))
        if config.query:
            seconds = rows * len(source.schema) * SECONDS_PER_VALUE
            jobs += [self._job(name, seconds) for name in QUERY_JOBS]
        if learned:
            jobs.append(self._job("domains", rows * learned * SECONDS_PER_VALUE))
        return [*jobs, self._job("encode", rows * len(encoded) * SECONDS_PER_VALUE)]

    def _plan(
        self,
        lattice: Lattice,
        features: int,
        facts: dict[str, Any],
        jobs: Sequence[PlannedJob],
        tested: int,
    ) -> RunPlan:
        sample, space = self.sample, self.space
        # The totals, and what scores, weights and values are scaled by.
        passes = 1 + 2 * space.ranked + bool(space.terms or space.weighted)
        passes += bool(space.terms and space.comparison == "overall")
        of_row = passes * SECONDS_PER_ROW + self.config.numbers_rows * SECONDS_PER_NUMBER
        of_slices = tested * len(self.config.metric) * _DESCRIBE_SLICE
        of_data = {
            "rows": sample.rows,
            "bytes": sample.bytes,
            "files": len(sample.files),
            "is_sampled": sample.is_sampled,
            "not_estimated": self.not_estimated,
            "features": features,
            "singletons": lattice.singletons,
        }
        space_of = {"conjunctions": lattice.space(), "max_cross_size": lattice.max_cross_size}
        return RunPlan(
            self.engine.name,
            tuple(self.engine.sent_options("STAGE", run=RUN)),
            of_data | facts | space_of,
            tuple(jobs),
            IMPORT_SECONDS + _OWN_SECONDS + sample.rows * (of_row + _DESCRIBE_ROW) + of_slices,
        )
