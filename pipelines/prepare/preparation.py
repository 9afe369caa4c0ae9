"""From files to encoded shards: source, outcome, features, domains and codes, one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.prepare.encode import encode, example_encoding
from slicebeam.pipelines.prepare.features import (
    check_parity_columns,
    choose_features,
    feature_hints,
    learn,
    resolve_outcome,
)
from slicebeam.pipelines.prepare.source import read_source
from slicebeam.pipelines.run.stage import Stage
from slicebeam.transforms.storage.files import file_format

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicebeam.pipelines.config.search import SearchConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.prepare.features import Learned
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.encode.domains import FeatureDomain, LeftOutColumn
    from slicebeam.transforms.encode.extract_predictions import Outcome
    from slicebeam.transforms.encode.extract_slice_keys import Encoding
    from slicebeam.transforms.encode.sources import Source

_MOST_REASONS = 5


def prepare(
    config: SearchConfig,
    files: Sequence[str],
    work: WorkFolder,
    engine: Engine,
    on_stage: Callable[[Stage], None],
) -> EncodedDataset:
    """Read the data, learn the domains and write the encoded shards."""
    if config.domains:
        from slicebeam.pipelines.prepare.given_domains import read_domains_of

        # What is wrong with it is said before anything takes long.
        read_domains_of(config.domains, config.domains_option)
    if any(file_format(path, config.format) != "parquet" for path in files):
        on_stage(Stage("reading the data", _files(work, "parquet", "*.parquet"), "blocks read"))
    else:
        on_stage(Stage("reading the data"))
    examples = read_examples(config, files, work, engine)
    return prepare_source(config, examples, work, engine, on_stage)


class Examples(NamedTuple):
    """The data, and what its columns are."""

    source: Source
    outcome: Outcome
    features: Sequence[str]
    left_out: tuple[LeftOutColumn, ...] = ()


def read_examples(
    config: SearchConfig, files: Sequence[str], work: WorkFolder, engine: Engine
) -> Examples:
    """Read what the files say of themselves, after converting those that are no Parquet."""
    source = read_source(config, files, work, engine)
    outcome = resolve_outcome(config, source)
    return Examples(source, outcome, *choose_features(config, source, outcome))


def prepare_source(
    config: SearchConfig,
    examples: Examples,
    work: WorkFolder,
    engine: Engine,
    on_stage: Callable[[Stage], None],
    known: tuple[FeatureDomain, ...] = (),
) -> EncodedDataset:
    """Learn the domains of features, beside those that are known, and write the encoded shards."""
    source = examples.source
    learned = learn(config, source, examples.features, work, engine)
    reserved = None
    if config.reserved is not None:
        from slicebeam.pipelines.prepare.rows_within import reserved_rows

        source, reserved = reserved_rows(source, config.reserved, work, engine)
        examples = examples._replace(source=source)
    plan = encoding_of(config, examples, learned, work, known)
    chunks = sum(-(-split.rows // source.chunk_rows) for split in source.splits)
    on_stage(
        Stage("encoding the examples", _files(work, "shards", "*.arrow"), "chunks encoded", chunks)
    )
    prepared = encode(config, *plan, work, engine)
    if reserved is not None:
        encoding, lattice, left_out = plan
        folder = work.folder("reserved-shards")
        encoding = replace(encoding, source=reserved, folder=folder)
        measured = encode(config, encoding, lattice, left_out, work, engine, "reserved-")
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
        reasons = "; ".join(
            f"{column.name}: {column.reason}" for column in left_out[:_MOST_REASONS]
        )
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


def _files(work: WorkFolder, stage: str, pattern: str) -> Callable[[], int]:
    return lambda: sum(1 for _ in work.path_of(stage).glob(pattern))
