"""The examples of a run, encoded and ready to be counted: from files to shards, and passes over these."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import apache_beam as beam
import numpy as np

from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.metrics.errors import EngineError, InputError, OptionError
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import statistic_space
from slicebeam.pipelines.prepare.exact_auc import ExactAuc
from slicebeam.pipelines.prepare.features import (
    check_parity_columns,
    choose_features,
    feature_hints,
    learn,
    resolve_outcome,
)
from slicebeam.pipelines.prepare.scaling import scale, totals
from slicebeam.pipelines.prepare.source import (
    SECONDS_PER_VALUE,
    format_of,
    read_rows,
    read_source,
    reserved_rows,
)
from slicebeam.pipelines.run.stage import Stage, Workspace
from slicebeam.transforms.count.search_graph import EncodeExamples
from slicebeam.transforms.encode.extract_predictions import check_classes, sum_labels
from slicebeam.transforms.encode.extract_slice_keys import Encoding
from slicebeam.transforms.encode.list_outcomes import refuse_lengths
from slicebeam.transforms.encode.passes import (
    ROW_BYTES,
    as_row,
    from_row,
    number_equal_rows,
    over_shards,
    read_found,
    read_repeats,
    write_found,
)
from slicebeam.transforms.encode.shards import CONTENT, Scaling, read_all_facts, rows_in
from slicebeam.transforms.storage.parts import WriteParts
from slicebeam.transforms.storage.storage import StoragePath, matching
from slicebeam.transforms.storage.work_files import part_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.pipelines.changelist.document import Within
    from slicebeam.pipelines.config.search import SearchConfig
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.features import ColumnHint, Learned
    from slicebeam.pipelines.prepare.wanted_slices import GivenSlices
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.encode.domains import FeatureDomain, LeftOutColumn
    from slicebeam.transforms.encode.extract_predictions import LabelCounts, Outcome, Side
    from slicebeam.transforms.encode.passes import Found, Function
    from slicebeam.transforms.encode.sources import Source


@dataclass(frozen=True)
class RepeatedIds:
    """Ids that several examples have."""

    number: int
    one: Any


@dataclass(frozen=True)
class EncodedDataset:
    """The examples, ready to be counted."""

    run: Workspace
    source: Source
    outcome: Outcome
    domains: tuple[FeatureDomain, ...]
    left_out: tuple[LeftOutColumn, ...]
    lattice: Lattice
    scaling: Scaling
    totals: IntArray  # int64 [raw columns and total terms] the statistics of all examples
    shards: tuple[str, ...]
    labels: tuple[Any, ...]
    content: int  # a hash of all examples' codes and measurements, in any order
    of_all: IntArray  # int64 [columns and total terms] what the metrics know of all examples
    repeated_ids: RepeatedIds | None = None  # where ids are named and are not to be groups
    models_agree: bool = False  # whether two models are compared that differ on no example
    given: GivenSlices | None = None  # the slices of a check, which has no domains
    drift: tuple[str, ...] = ()  # values that the data of the given domains did not have
    top_values: int | None = None  # most values of a column that are named; None without domains
    lost: tuple[str, ...] = ()  # features of the given domains that the data has not
    label_counts: LabelCounts | None = None  # also with each feature; None if labels are no classes
    hints: tuple[ColumnHint, ...] = ()  # features that look like no property of an example
    model_columns: dict[Side, tuple[str, ...]] = field(default_factory=dict)  # what each reads
    within: Within | None = None  # the findings that they are within; None for all of the data
    reserved: EncodedDataset | None = None  # the examples with which findings are confirmed

    @property
    def rows(self) -> int:
        """Number of examples."""
        return int(self.space.sizes(self.totals))

    @property
    def space(self) -> StatisticSpace:
        """The statistics."""
        return self.scaling.space

    def slices(self, sums: IntArray | None = None) -> Slices:
        """Return sums [slices, columns] as parts of all examples; all of these as one slice without any."""
        sums = self.of_all[None, : self.space.columns] if sums is None else sums
        return Slices(sums, self.space, self.of_all)

    def exact_auc(self, memory: int) -> ExactAuc:
        """Return what counts AUC and average precision from the scores."""
        of_examples = self.lattice, self.scaling, self.shards, self.totals
        return ExactAuc(*of_examples, memory, self.run)

    def scan(self, stage: str, function: Function, seconds: float) -> list[Found]:
        """Return the result of a function on the shards, of ``seconds`` for each example; a run that continues finds it."""
        whole = self.rows * seconds
        return pass_over_shards(self.shards, stage, function, self.run, whole, keeps=True)


# CPU time of summing an example of a shard, and below what it is not worth a job.
SECONDS_PER_ROW = 2e-8
LEAST_PASS_SECONDS = 1.0
# CPU time of distinguishing an example from equal ones.
SECONDS_PER_NUMBER = 3e-7


def pass_over(
    function: Callable[[Any], Found],
    groups: Sequence[Any],
    stage: str,
    run: Workspace,
    seconds: float,
    has_written: Callable[[], bool] = lambda: True,
) -> list[Found]:
    """Return the result of a function for each group, by workers if that is worth a job."""
    if run.engine.workers == 1 or seconds < LEAST_PASS_SECONDS:
        return [function(group) for group in groups]
    transform = WriteParts(partial(as_row, function), groups, run.work.path_of(stage))
    run.work.folder(stage)
    found = run.parts(stage, transform, seconds=seconds, has_written=has_written)
    return list(map(from_row, found))


def pass_over_shards(
    shards: Sequence[str],
    stage: str,
    function: Function,
    run: Workspace,
    seconds: float,
    *,
    keeps: bool = False,
) -> list[Found]:
    """Return the result of a function on the shards; with ``keeps`` a run that continues finds it in any case."""
    groups = 2 * run.engine.workers
    if run.engine.workers > 1 and seconds >= LEAST_PASS_SECONDS:
        dealt = [shards[at::groups] for at in range(min(groups, len(shards)))]
        return pass_over(partial(over_shards, function), dealt, stage, run, seconds)
    if not keeps:
        return [over_shards(function, shards)]
    path = part_path(run.work.folder(stage), 0)
    # Workers of an earlier process may have written it in several parts.
    if run.work.done(stage) != {"parts": 1}:
        run.work.empty(stage)
        write_found(path, over_shards(function, shards))
        run.work.finish(stage, {"parts": 1})
    return [read_found(path)]


def prepare(config: SearchConfig, run: Workspace) -> EncodedDataset:
    """Read the data, learn the domains and write the encoded shards."""
    if config.domains:
        from slicebeam.pipelines.prepare.inherited import read_domains_of

        # What is wrong with it is said before anything takes long.
        read_domains_of(config.domains, config.domains_option)
    stage = Stage("reading the data")
    if format_of(config, run.files) != "parquet":
        stage = replace(stage, done=_files(run, "parquet", "*.parquet"), unit="blocks read")
    run.show(stage)
    return prepare_source(config, read_examples(config, run), run)


class Examples(NamedTuple):
    """The data, and what its columns are."""

    source: Source
    outcome: Outcome
    features: Sequence[str]
    left_out: tuple[LeftOutColumn, ...] = ()


def read_examples(config: SearchConfig, run: Workspace) -> Examples:
    """Read what the files say of themselves, after converting those that are no Parquet."""
    source = read_source(config, run)
    outcome = resolve_outcome(config, source)
    return Examples(source, outcome, *choose_features(config, source))


def prepare_source(
    config: SearchConfig, examples: Examples, run: Workspace, known: tuple[FeatureDomain, ...] = ()
) -> EncodedDataset:
    """Learn the domains of features, beside those that are known, and write the encoded shards."""
    source, reserved = examples.source, None
    learned = learn(config, source, examples.features, run)
    if config.reserved is not None:
        source, reserved = reserved_rows(source, config.reserved, run)
        examples = examples._replace(source=source)
    encoding, lattice, left_out = encoding_of(config, examples, learned, run.work, known)
    chunks = sum(-(-split.rows // source.chunk_rows) for split in source.splits)
    written = _files(run, "shards", "*.arrow")
    run.show(Stage("encoding the examples", written, "chunks encoded", chunks))
    prepared = encode(config, encoding, lattice, left_out, run)
    if reserved is not None:
        folder = run.work.folder("reserved-shards")
        encoding = replace(encoding, source=reserved, folder=folder)
        measured = encode(config, encoding, lattice, left_out, run, "reserved-")
        prepared = replace(prepared, reserved=measured)
    # What is known already are no columns of the data, or chosen by other means.
    chosen = {domain.name for domain in known} | set(config.features)
    return replace(
        prepared,
        drift=learned.drift,
        top_values=learned.top_values,
        lost=learned.lost,
        hints=feature_hints(prepared.domains, prepared.label_counts, prepared.rows, chosen),
    )


def encoding_of(
    config: SearchConfig,
    examples: Examples,
    learned: Learned,
    work: WorkFolder,
    known: tuple[FeatureDomain, ...] = (),
) -> tuple[Encoding, Lattice, tuple[LeftOutColumn, ...]]:
    """Return how the examples are encoded, the slices that there are, and the columns without any."""
    source, outcome, features, left_out = examples
    domains, left_out = (*known, *learned.domains), (*left_out, *learned.left_out)
    if not domains:
        reasons = "; ".join(f"{column.name}: {column.reason}" for column in left_out[:5])
        raise InputError(
            f"no feature is left to slice by ({reasons or 'no other column'}); give data with "
            "columns that describe the examples"
        )
    check_parity_columns(config, domains, left_out)
    lattice = Lattice(
        tuple(domain.size for domain in domains),
        # Levels beyond the number of features hold no slice, and take no share of alpha.
        max(1, min(config.max_cross_size, len(domains))),
        tuple(domain.kind == "list" for domain in domains),
        tuple(domain.radix > domain.size for domain in domains),
    )
    encoding = example_encoding(config, source, domains, outcome, features, work)
    return encoding, lattice, left_out


def _files(run: Workspace, stage: str, pattern: str) -> Callable[[], int]:
    return lambda: sum(1 for _ in run.work.path_of(stage).glob(pattern))


def example_encoding(
    config: RunConfig,
    source: Source,
    domains: tuple[FeatureDomain, ...],
    outcome: Outcome,
    features: Sequence[str],
    work: WorkFolder,
) -> Encoding:
    """Return how the examples are encoded; models read the features, unless they name columns."""
    return Encoding(
        source,
        domains,
        outcome,
        statistic_space(config.measured, config.comparison, weighted=config.weight is not None),
        work.folder("shards"),
        config.group or config.example_id,
        "--group" if config.group else "--example-id",
        _model_columns(config, source, features),
        is_resampled=config.resamples_examples,
    )


def _model_columns(
    config: RunConfig, source: Source, features: Sequence[str]
) -> dict[Side, tuple[str, ...]]:
    columns: dict[Side, tuple[str, ...]] = {}
    models: dict[Side, str | None] = {"prediction": config.model, "baseline": config.baseline_model}
    named: list[tuple[str, ...]] = []
    for side, path in models.items():
        if path is None:
            continue
        from slicebeam.transforms.encode.models import load_model, model_features

        own = tuple(model_features(load_model(path)))
        columns[side] = own or tuple(config.model_inputs or features)
        for name in columns[side]:
            source.column_type(name, f"--model {path} reads it" if own else "--model-inputs")
        named.append(own)
    if config.model_inputs and all(named):
        raise OptionError(
            f"--model-inputs: the model names its own columns ({', '.join(named[-1])}); leave it out"
        )
    return columns


def encode(
    config: RunConfig,
    encoding: Encoding,
    lattice: Lattice,
    left_out: tuple[LeftOutColumn, ...],
    run: Workspace,
    prefix: str = "",
) -> EncodedDataset:
    """Write the shards, unless they exist, and check what they say of the examples; ``prefix`` is of the stages."""
    run.stage(
        f"{prefix}shards",
        lambda pipeline: (
            pipeline
            | "Splits" >> beam.Create(list(encoding.source.splits))
            | "Encode" >> EncodeExamples(encoding)
        ),
        lambda: rows_in(matching(encoding.folder, "*.arrow")) == encoding.source.rows,
        job="encode",
        seconds=encoding.source.rows * len(encoding.columns()) * SECONDS_PER_VALUE,
        reads_data=True,
    )
    paths = matching(encoding.folder, "*.arrow")
    shards = tuple(map(str, paths))
    facts = read_all_facts(paths)
    rows = sum(fact["rows"] for fact in facts)
    if rows != encoding.source.rows:
        raise EngineError(
            f"{encoding.folder}: {encoding.source.rows - rows:,} of {encoding.source.rows:,} examples "
            "are missing; run again without --resume"
        )
    refuse_lengths(fact["lengths"] for fact in facts)
    labels = check_classes(
        [fact["classes"] for fact in facts],
        encoding.outcome,
        is_positive_named=config.positive_class is not None,
    )

    def over(stage: str, function: Function) -> list[Found]:
        seconds = rows * SECONDS_PER_ROW
        return pass_over_shards(shards, f"{prefix}{stage}", function, run, seconds)

    scaling = scale(encoding, over, facts, rows)
    found = over("totals", partial(totals, scaling, lattice))
    of_all = np.sum([one["totals"] for one in found], axis=0)
    if config.weight and not scaling.space.weights(of_all).sum() > 0:
        raise OptionError(f"--weight {config.weight!r} is 0 for every example")
    repeated: RepeatedIds | None = None
    if config.numbers_rows and not prefix:
        scaling, repeated = _with_numbers(config, encoding, scaling, paths, rows, run)
    differs = [fact["differs"] for fact in facts if fact["rows"]]
    prepared = EncodedDataset(
        run,
        encoding.source,
        encoding.outcome,
        encoding.domains,
        left_out,
        lattice,
        scaling,
        of_all,
        shards,
        tuple(labels),
        sum(fact["content"] for fact in facts) % 2**64,
        of_all,
        repeated_ids=repeated,
        models_agree=bool(differs) and all(differ is False for differ in differs),
        label_counts=sum_labels(
            [fact["labels"] for fact in facts], [domain.radix for domain in encoding.domains]
        ),
        model_columns=encoding.model_columns,
    )
    return replace(prepared, of_all=prepared.exact_auc(config.memory).of_all(f"{prefix}auc-of-all"))


def _with_numbers(
    config: RunConfig,
    encoding: Encoding,
    scaling: Scaling,
    shards: Sequence[StoragePath],
    rows: int,
    run: Workspace,
) -> tuple[Scaling, RepeatedIds | None]:
    """Return the scaling with the numbers of equal examples, or the ids that several examples have."""
    name = encoding.example_id
    column, heaviest = ("id", 0.0) if name else (CONTENT, scaling.heaviest)
    seconds, folder = rows * SECONDS_PER_NUMBER, run.work.folder("ids")
    parts = -(-rows * ROW_BYTES // config.memory)
    if seconds >= LEAST_PASS_SECONDS:
        parts = max(parts, run.engine.workers)
    run.parts("ids", number_equal_rows(shards, column, parts, folder, heaviest), seconds=seconds)
    files = matching(folder, "*.arrow")
    if not name:
        return replace(scaling, numbered=tuple(map(str, files))), None
    repeats = read_repeats(files)
    if not repeats:
        return scaling, None
    position = read_all_facts([shards[repeats.shard]])[0]["start_row"] + repeats.row
    (example,) = read_rows(encoding.source, np.array([position]), [name]).column(name).to_pylist()
    return scaling, RepeatedIds(repeats.values, example)
