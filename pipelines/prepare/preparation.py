"""From files to encoded shards: what the columns mean, how they are cut, and their codes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.metrics.errors import ColumnError, EngineError, InputError, OptionError, unknown_name
from slicebeam.metrics.registry import averaged_column, needs_of, statistic_space
from slicebeam.pipelines.prepare.drift import drift_lines
from slicebeam.pipelines.prepare.exact_auc import ExactAuc
from slicebeam.pipelines.prepare.given_domains import given_domains
from slicebeam.pipelines.prepare.rows import read_rows
from slicebeam.pipelines.prepare.scaling import scale, totals
from slicebeam.pipelines.run.run_stage import run_stage
from slicebeam.pipelines.run.stage import Stage
from slicebeam.transforms.encode.convert import Conversion, ConvertToParquet, converted_source
from slicebeam.transforms.encode.domains import FeatureDomain, LeftOutColumn
from slicebeam.transforms.encode.extract_predictions import (
    Outcome,
    Predictor,
    check_classes,
    class_type,
)
from slicebeam.transforms.encode.extract_slice_keys import (
    Encoding,
    ExtractPredictions,
    ExtractSliceKeys,
    ReadExamples,
    shard_path,
)
from slicebeam.transforms.encode.learn_domains import (
    DomainOptions,
    LearnDomains,
    domain_from_json,
    domain_to_json,
    read_domains,
)
from slicebeam.transforms.encode.models import load_model, model_features
from slicebeam.transforms.encode.number_equal_rows import ROW_BYTES, NumberEqualRows, read_repeats
from slicebeam.transforms.encode.pass_over_files import OverShards, PassOverFiles
from slicebeam.transforms.encode.shards import CONTENT, Shard, read_all_facts, rows_in
from slicebeam.transforms.encode.sources import StoredFile, open_parquet
from slicebeam.transforms.storage.files import file_format
from slicebeam.transforms.storage.storage import matching

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.measures.base import Needs
    from slicebeam.pipelines.config.common import DataConfig
    from slicebeam.pipelines.config.search import SearchConfig
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.given_domains import GivenDomains
    from slicebeam.pipelines.prepare.given_slices import GivenSlices
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.encode.extract_predictions import Side
    from slicebeam.transforms.encode.pass_over_files import Found, Function
    from slicebeam.transforms.encode.shards import Scaling
    from slicebeam.transforms.encode.sources import Source
    from slicebeam.transforms.storage.storage import StoragePath

# CPU time of reading a value and of counting or coding it, measured on a million examples.
_SECONDS_PER_VALUE = 4e-8
# The same of reading a byte of text, and writing it as Parquet.
_SECONDS_PER_BYTE = 2e-8
# The same of summing an example of a shard, and below what it is not worth a job.
_SECONDS_PER_ROW = 2e-8
_LEAST_PASS_SECONDS = 1.0
# The same of telling an example from equal ones.
_SECONDS_PER_NUMBER = 3e-7
# Bytes that a column of a chunk takes while it is read and coded, for the size of a chunk.
_CELL_BYTES = 40
_SMALLEST_CHUNK = 1024
_MOST_REASONS = 5


@dataclass(frozen=True)
class RepeatedIds:
    """Ids that several examples have.

    Attributes
    ----------
    number : how many
    one : of them
    """

    number: int
    one: Any


@dataclass(frozen=True)
class EncodedDataset:
    """The examples, ready to be counted.

    Attributes
    ----------
    source : where they were read from
    outcome : what is asked of each example
    domains : of the features
    left_out : the columns that are no features, and why
    lattice : the slices
    scaling : how the shards become statistics
    totals : int64 [raw columns and total terms] the statistics of all examples
    shards : the encoded files
    labels : the classes
    content : a hash of all examples' codes and what is measured of them, whatever their order
    of_all : int64 [columns and total terms] what the metrics are told of all examples
    repeated_ids : ids that several examples have, where they are named and not to be groups
    models_agree : whether two models are compared that differ on no example
    given : the slices of a check, which has no domains
    drift : what the data holds and that of the given domains did not
    top_values : how many values of a column were named at most; None where there are no domains
    lost : features of the given domains that the data has not
    """

    source: Source
    outcome: Outcome
    domains: tuple[FeatureDomain, ...]
    left_out: tuple[LeftOutColumn, ...]
    lattice: Lattice
    scaling: Scaling
    totals: NDArray[np.int64]
    shards: tuple[str, ...]
    labels: tuple[Any, ...]
    content: int
    of_all: NDArray[np.int64]
    repeated_ids: RepeatedIds | None = None
    models_agree: bool = False
    given: GivenSlices | None = None
    drift: tuple[str, ...] = ()
    top_values: int | None = None
    lost: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Number of examples."""
        return int(self.space.sizes(self.totals))

    @property
    def space(self) -> StatisticSpace:
        """The statistics."""
        return self.scaling.space


def prepare(
    config: SearchConfig,
    files: Sequence[str],
    work: WorkFolder,
    engine: Engine,
    on_stage: Callable[[Stage], None],
) -> EncodedDataset:
    """Read the data, learn the domains and write the encoded shards."""
    if any(file_format(path, config.format) != "parquet" for path in files):
        on_stage(Stage("reading the data", _files(work, "parquet", "*.parquet"), "blocks read"))
    else:
        on_stage(Stage("reading the data"))
    source = read_source(config, files, work, engine)
    if source.rows == 0:
        raise OptionError(f"--data {' '.join(config.data)}: there are no examples in it")
    outcome = resolve_outcome(config, source)
    features = choose_features(config, source, outcome)
    return prepare_source(config, source, outcome, features, work, engine, on_stage)


def prepare_source(
    config: SearchConfig,
    source: Source,
    outcome: Outcome,
    features: Sequence[str],
    work: WorkFolder,
    engine: Engine,
    on_stage: Callable[[Stage], None],
    known: tuple[FeatureDomain, ...] = (),
) -> EncodedDataset:
    """Learn the domains of features, beside those that are known, and write the encoded shards."""
    learned = learn(config, source, features, work, engine)
    domains, left_out = (*known, *learned.domains), learned.left_out
    if not domains:
        reasons = "; ".join(
            f"{column.name}: {column.reason}" for column in left_out[:_MOST_REASONS]
        )
        raise InputError(
            f"no feature is left to slice by ({reasons or 'no other column'}); give the data with the "
            "columns that describe an example"
        )
    space = statistic_space(config.metric, config.comparison, weighted=config.weight is not None)
    lattice = Lattice(
        tuple(domain.size for domain in domains),
        # Levels beyond the number of features hold no slice, and take no share of alpha.
        max(1, min(config.max_cross_size, len(domains))),
        tuple(domain.kind == "list" for domain in domains),
        tuple(domain.radix > domain.size for domain in domains),
    )
    chunks = sum(-(-split.rows // source.chunk_rows) for split in source.splits)
    on_stage(
        Stage("encoding the examples", _files(work, "shards", "*.arrow"), "chunks encoded", chunks)
    )
    encoding = Encoding(
        source,
        domains,
        outcome,
        space,
        work.folder("shards"),
        config.group or config.example_id,
        "--group" if config.group else "--example-id",
        model_columns(config, source, features),
        is_resampled=config.resamples_examples,
    )
    prepared = encode(config, encoding, lattice, left_out, work, engine)
    return replace(prepared, drift=learned.drift, top_values=learned.top_values, lost=learned.lost)


def _files(work: WorkFolder, stage: str, pattern: str) -> Callable[[], int]:
    return lambda: sum(1 for _ in work.path_of(stage).glob(pattern))


def read_source(
    config: DataConfig, files: Sequence[str], work: WorkFolder, engine: Engine
) -> Source:
    """Return the source of the data; files that are no Parquet are converted first."""
    kinds = [file_format(path, config.format) for path in files]
    _refuse_csv_options(config, kinds)
    if all(kind == "parquet" for kind in kinds):
        source = open_parquet(
            [StoredFile(path, path, identity=work.identity_of(path)) for path in files]
        )
    elif len(set(kinds)) > 1:
        raise OptionError(f"--data mixes formats ({', '.join(sorted(set(kinds)))}); convert some")
    else:
        conversion = Conversion(
            work.folder("parquet"),
            config.column_names,
            config.skip_rows,
            kinds[0] != "csv",
            config.delimiter,
        )
        transform = ConvertToParquet(list(zip(files, kinds, strict=True)), conversion)
        size = sum(int(identity[0]) for identity in map(work.identity_of, files) if identity)
        run_stage(
            work,
            engine,
            "parquet",
            lambda pipeline: pipeline | "Convert to Parquet" >> transform,
            transform.is_written,
            job="convert",
            seconds=size * _SECONDS_PER_BYTE,
            reads_data=True,
        )
        source = converted_source(conversion, files)
    return source.in_chunks(chunk_rows(config, len(source.schema)))


def _refuse_csv_options(config: DataConfig, kinds: Sequence[str]) -> None:
    if "csv" in kinds:
        return
    if config.column_names or config.skip_rows:
        raise OptionError(f"--column-names and --skip-rows are for CSV, but the data is {kinds[0]}")
    if config.delimiter != ",":
        raise OptionError(f"--delimiter is for CSV, but the data is {kinds[0]}")


def chunk_rows(config: DataConfig, columns: int) -> int:
    """Return how many examples are read at a time: fewer where there are many columns."""
    fits = config.memory // 2 // (columns * _CELL_BYTES)
    return max(min(config.chunk_rows, fits), min(config.chunk_rows, _SMALLEST_CHUNK))


def resolve_outcome(config: RunConfig, source: Source) -> Outcome:
    """Return what is asked of each example, after checking that the columns fit each other."""
    label_type = source.column_type(config.label, "--label") if config.label else pa.null()
    needs = needs_of(config.metric)
    new, old = (_predictor(config, prefix, needs, source) for prefix in ("", "baseline_"))
    # Else the slice is held against all examples: what the old model said is of no account.
    used = [new, old] if config.comparison == "baseline" else [new]
    compared = [
        class_type(config.label, label_type, column, source.schema.field(column).type)
        for column in (predictor.column for predictor in used)
        if column and needs.predicted_classes
    ]
    for name in filter(None, map(averaged_column, needs.values)):
        source.column_type(name, f"--metric mean:{name}")
    if config.weight:
        source.column_type(config.weight, "--weight")
    outcome = Outcome(
        config.label or None,
        "",
        new,
        old if config.comparison == "baseline" else None,
        threshold=config.threshold,
        needs=needs,
        weight=config.weight,
    )
    common = ""
    if outcome.uses_classes:
        own = class_type(config.label, label_type, config.label, label_type)
        common = "double" if "double" in [own, *compared] else own
    is_binary = needs.one_class or (config.uses_threshold and needs.predicted_classes)
    positive = _positive_class(config, label_type, common) if is_binary else None
    return replace(outcome, class_type=common, positive_class=positive)


def _predictor(config: RunConfig, prefix: str, needs: Needs, source: Source) -> Predictor:
    """Return where a model's predictions come from, after checking that the columns are there."""
    column, score, model = (
        getattr(config, prefix + name) for name in ("prediction", "score", "model")
    )
    loss = getattr(config, prefix + "loss") if needs.losses else None
    for name, option in ((column, "prediction"), (score, "score"), (loss, "loss")):
        if name:
            source.column_type(name, "--" + prefix.replace("_", "-") + option)
    # Beside predicted classes the score is only read where a metric is about scores.
    is_read = needs.scores or not (column or model)
    return Predictor(column, score if is_read else None, model, loss)


def _positive_class(config: RunConfig, label_type: pa.DataType, common: str) -> Any:
    text = config.positive_class
    if text is None:
        if common == "string":
            why = (
                "--score does not say which class it speaks of"
                if config.uses_threshold
                else f"{', '.join(config.metric)} is about one class"
            )
            raise OptionError(
                f"--positive-class is missing: label {config.label!r} is text, and {why}"
            )
        return 1.0 if common == "double" else 1
    if common == "string":
        return text
    if pa.types.is_boolean(label_type) and text.lower() in ("true", "false"):
        return int(text.lower() == "true")
    try:
        return float(text) if common == "double" else int(text)
    except ValueError as error:
        raise OptionError(
            f"--positive-class {text!r} is no value of label {config.label!r}, which is {label_type}"
        ) from error


def choose_features(config: RunConfig, source: Source, outcome: Outcome) -> list[str]:
    """Return the columns that are features: those named, or all that are nothing else."""
    names = source.schema.names
    for option, given in (
        ("features", config.features),
        ("exclude-features", config.exclude_features),
    ):
        for name in given:
            if name not in names:
                raise ColumnError(f"--{option}: {unknown_name('column', name, names)}")
    for name in config.features:
        if name in config.exclude_features:
            raise OptionError(
                f"--features and --exclude-features both name {name!r}; leave it out of one"
            )
    for option, column in (("--example-id", config.example_id), ("--group", config.group)):
        if column:
            source.column_type(column, option)
    roles = {outcome.label, config.prediction, config.score, config.baseline_prediction}
    roles |= {config.baseline_score, config.example_id, config.weight, config.group}
    roles |= {config.loss, config.baseline_loss}
    roles |= set(map(averaged_column, config.metric))
    for name in config.features:
        if name in roles:
            raise OptionError(
                f"--features: {name!r} is the label, a prediction, a score, a loss, a weight, a group, an "
                "id or what is averaged; a slice of it would say nothing"
            )
    chosen = config.features or tuple(name for name in names if name not in roles)
    return [name for name in dict.fromkeys(chosen) if name not in set(config.exclude_features)]


@dataclass(frozen=True)
class Learned:
    """How the features are cut.

    Attributes
    ----------
    domains : of the features
    left_out : the columns that have none, and why
    drift : what this data holds and that of the given domains did not, a line a column
    top_values : how many values of a column were named at most
    lost : features of the given domains that this data has not
    """

    domains: tuple[FeatureDomain, ...]
    left_out: tuple[LeftOutColumn, ...]
    drift: tuple[str, ...]
    top_values: int
    lost: tuple[str, ...] = ()


def learn(
    config: SearchConfig,
    source: Source,
    features: Sequence[str],
    work: WorkFolder,
    engine: Engine,
) -> Learned:
    """Return the domains of the features: learned, or those of another run with what is new."""
    given = (
        given_domains(config.domains, source, features, config.domains_option)
        if config.domains
        else None
    )
    if given is not None:
        if config.features:
            # What is not asked for is not missed.
            given = replace(given, lost=())
        features = given.features
    options = domain_options(config, given)
    learned: list[FeatureDomain | LeftOutColumn] = []
    if features:
        transform = LearnDomains(source, features, options, work.folder("domains"))
        facts = run_stage(
            work,
            engine,
            "domains",
            lambda pipeline: pipeline | "Learn domains" >> transform,
            transform.is_written,
            seconds=source.rows * len(features) * _SECONDS_PER_VALUE,
            reads_data=True,
            facts=lambda _: {"learned": list(map(domain_to_json, read_domains(transform.folder)))},
        )
        learned = [domain_from_json(shape) for shape in facts["learned"]]
    domains = tuple(domain for domain in learned if isinstance(domain, FeatureDomain))
    left_out = tuple(domain for domain in learned if isinstance(domain, LeftOutColumn))
    if given is None:
        return Learned(domains, left_out, (), options.top_values)
    return Learned(
        domains,
        (*given.left_out, *left_out),
        drift_lines(given, domains, source.rows, config.used_min_slice_size),
        options.top_values,
        given.lost,
    )


def domain_options(config: SearchConfig, given: GivenDomains | None) -> DomainOptions:
    """Return how columns are cut: as many values are named as by the given run, unless chosen."""
    top_values = config.top_values
    if given is not None and given.top_values and "top_values" not in config.model_fields_set:
        top_values = given.top_values
    return DomainOptions(
        config.bins,
        top_values,
        frozenset(config.features),
        config.memory,
        given.domains if given is not None else {},
        config.used_min_slice_size,
    )


def model_columns(
    config: RunConfig, source: Source, features: Sequence[str]
) -> dict[Side, tuple[str, ...]]:
    """Return the columns that each model file reads."""
    columns: dict[Side, tuple[str, ...]] = {}
    files: tuple[tuple[Side, str | None], ...] = (
        ("prediction", config.model),
        ("baseline", config.baseline_model),
    )
    for side, path in files:
        if path is None:
            continue
        names = model_features(load_model(path), features)
        for name in names:
            source.column_type(name, f"--model {path} reads it")
        columns[side] = tuple(names)
    return columns


def missing_shard(encoding: Encoding, facts: Sequence[Mapping[str, Any]]) -> StoragePath:
    """Return the first shard that is not among those whose facts are known, which lack examples."""
    known = {split.index: 0 for split in encoding.source.splits}
    starts = {(fact["split"], fact["start_row"]) for fact in facts}
    for fact in facts:
        known[fact["split"]] += fact["rows"]
    split = next(one for one in encoding.source.splits if known[one.index] != one.rows)
    mine = sorted(
        (fact["start_row"], fact["rows"]) for fact in facts if fact["split"] == split.index
    )
    row, batch = split.start_row, 0
    while (split.index, row) in starts:
        row += mine[batch][1]
        batch += 1
    return shard_path(encoding.folder, split.index, batch)


def encode(
    config: RunConfig,
    encoding: Encoding,
    lattice: Lattice,
    left_out: tuple[LeftOutColumn, ...],
    work: WorkFolder,
    engine: Engine,
) -> EncodedDataset:
    """Write the shards, unless they are written, and check what they say of the examples."""
    run_stage(
        work,
        engine,
        "shards",
        lambda pipeline: (
            pipeline
            | "Read examples" >> ReadExamples(encoding.source, encoding.columns())
            | "Extract predictions" >> ExtractPredictions(encoding)
            | "Extract slice keys" >> ExtractSliceKeys(encoding)
        ),
        lambda: rows_in(matching(encoding.folder, "*.arrow")) == encoding.source.rows,
        job="encode",
        seconds=encoding.source.rows * len(encoding.columns()) * _SECONDS_PER_VALUE,
        reads_data=True,
    )
    paths = matching(encoding.folder, "*.arrow")
    facts = read_all_facts(paths)
    rows = sum(fact["rows"] for fact in facts)
    if rows != encoding.source.rows:
        raise EngineError(
            f"{missing_shard(encoding, facts)} is missing: {encoding.source.rows - rows:,} of "
            f"{encoding.source.rows:,} examples are not there; run again without --resume"
        )
    labels = check_classes(
        [fact["classes"] for fact in facts],
        encoding.outcome,
        is_positive_named=config.positive_class is not None,
    )

    def over(stage: str, function: Function) -> list[Found]:
        return pass_over(paths, rows, stage, function, work, engine)

    scaling = scale(encoding, over, facts, rows)
    found = over("totals", partial(totals, scaling, lattice))
    of_all = np.sum([one["totals"] for one in found], axis=0)
    if config.weight and not scaling.space.weights(of_all).sum() > 0:
        raise OptionError(f"--weight {config.weight!r} is 0 for every example")
    shards = tuple(map(str, paths))
    repeated: RepeatedIds | None = None
    if config.numbers_rows:
        column = "id" if encoding.example_id else CONTENT
        heaviest = scaling.heaviest if column == CONTENT else 0.0
        files = numbered(config, paths, column, rows, work, engine, heaviest)
        if column == CONTENT:
            scaling = replace(scaling, numbered=tuple(map(str, files)))
        elif repeats := read_repeats(files):
            start = read_all_facts([paths[repeats.shard]])[0]["start_row"]
            repeated = RepeatedIds(repeats.values, _id_at(encoding, start + repeats.row))
    differs = [fact["differs"] for fact in facts if fact["rows"]]
    exact = ExactAuc(lattice, scaling, shards, of_all, config.memory, work, engine)
    return EncodedDataset(
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
        exact.of_all(),
        repeated_ids=repeated,
        models_agree=bool(differs) and all(one is False for one in differs),
    )


def numbered(
    config: RunConfig,
    shards: Sequence[StoragePath],
    column: str,
    rows: int,
    work: WorkFolder,
    engine: Engine,
    heaviest: float = 0.0,
) -> list[StoragePath]:
    """Return the files with the numbers of examples that have the same hash in a column."""
    seconds = rows * _SECONDS_PER_NUMBER
    folder = work.folder("ids")
    parts = -(-rows * ROW_BYTES // config.memory)
    if seconds >= _LEAST_PASS_SECONDS:
        parts = max(parts, engine.workers)
    transform = NumberEqualRows(tuple(map(str, shards)), column, parts, folder, heaviest)
    run_stage(
        work,
        engine,
        "ids",
        lambda pipeline: pipeline | "Number equal rows" >> transform,
        transform.is_written,
        seconds=seconds,
    )
    return matching(folder, "*.arrow")


def _id_at(encoding: Encoding, position: int) -> Any:
    """Return the id of an example."""
    name = encoding.example_id or ""
    (value,) = read_rows(encoding.source, np.array([position]), [name]).column(name).to_pylist()
    return value


def pass_over(
    shards: Sequence[StoragePath],
    rows: int,
    stage: str,
    function: Function,
    work: WorkFolder,
    engine: Engine,
) -> list[Found]:
    """Return what a function finds in the shards, which workers read where there are many rows."""
    seconds = rows * _SECONDS_PER_ROW
    if engine.workers == 1 or seconds < _LEAST_PASS_SECONDS:
        return [function(map(Shard, shards))]
    dealt = [
        [*map(str, shards[group :: 2 * engine.workers])] for group in range(2 * engine.workers)
    ]
    transform = PassOverFiles(OverShards(function), dealt, work.folder(stage))
    noted = run_stage(
        work,
        engine,
        stage,
        lambda pipeline: pipeline | stage >> transform,
        transform.is_written,
        seconds=seconds,
        facts=lambda _: {"parts": transform.parts()},
    )
    return transform.read(noted["parts"])
