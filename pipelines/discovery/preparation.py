"""From files to encoded shards in which the components of mixtures are features."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import apache_beam as beam

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.pipelines.discovery.description import check_phrases
from slicebeam.pipelines.discovery.discovered import Discovered, PreparedDiscovery
from slicebeam.pipelines.discovery.embedding import (
    EmbeddingFields,
    embed,
    embedding_of,
    sample_texts,
)
from slicebeam.pipelines.discovery.fitting import fit_mixtures
from slicebeam.pipelines.discovery.model import DiscoveryModel
from slicebeam.pipelines.prepare.encoded_dataset import Examples, example_encoding, prepare_source
from slicebeam.pipelines.prepare.features import choose_features, resolve_outcome
from slicebeam.pipelines.prepare.source import findings_of, read_source, read_within
from slicebeam.pipelines.run.stage import SilentObserver, Stage
from slicebeam.transforms.discovery.derive_columns import (
    Derivation,
    cluster_field,
    derive_chunk,
    derived_examples,
    derived_source,
    is_cluster_field,
)
from slicebeam.transforms.discovery.embeddings import Embedded, ExampleSplit
from slicebeam.transforms.discovery.encoders import needs_fit
from slicebeam.transforms.discovery.lsa import StoredEncoder
from slicebeam.transforms.encode.extract_predictions import has_losses
from slicebeam.transforms.encode.extract_slice_keys import (
    Encoding,
    ExtractPredictions,
    ReadExamples,
)
from slicebeam.transforms.storage.storage import beneath, storage_path

if TYPE_CHECKING:
    from slicebeam.pipelines.config.discover import DiscoverConfig
    from slicebeam.pipelines.run.stage import Workspace
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.discovery.embeddings import Embedding
    from slicebeam.transforms.encode.extract_predictions import Outcome
    from slicebeam.transforms.encode.sources import Source

CACHE = "embeddings"
# Examples that clusters to start from are looked for in: so many, and so many for each component.
_SAMPLE, _SAMPLE_PER_COMPONENT = 20_000, 100
# CPU time of assigning an example to components and writing its columns.
_SECONDS_PER_ROW = 5e-6


def prepare_discovery(config: DiscoverConfig, run: Workspace) -> PreparedDiscovery:
    """Embed the examples, fit the mixtures, and write the shards of the examples that are tested."""
    run.show(Stage("reading the data"))
    if config.phrases:
        # Before anything that takes long, or is paid for, and is then for nothing.
        check_phrases(config.phrases)
    source = read_source(config, run)
    within = None
    if config.within_findings is not None:
        run.show(Stage("choosing the examples in the findings"))
        source, within = read_within(source, findings_of(config.within_findings), run)
    _refuse_taken(config, source)
    fields = EmbeddingFields(
        config.embedding,
        config.text,
        config.used_encoder,
        beneath(storage_path(config.output, "--output"), CACHE),
    )
    fields.check(source)
    outcome = resolve_outcome(config, source)
    features, encoding = _encoding(config, source, outcome, run.work)
    source = fields.chunked(config, source)
    sample = fields.sample(source, config.seed, run.work)
    if config.used_encoder is not None and not needs_fit(config.used_encoder):
        # What is wrong with it is said before anything takes long.
        embedding_of(fields, None, config.seed, run.work.folder("encoder"))
    if sample is not None and config.used_encoder is not None:
        run.show(Stage("sampling texts"))
        sample_texts(sample, source, run)
    if config.used_encoder is not None and needs_fit(config.used_encoder):
        run.show(Stage("learning the words"))
    embedding = embedding_of(fields, sample, config.seed, run.work.folder("encoder"))
    split = _split(config)
    wanted = _embedded(config, source, embedding, outcome, split, run.work)
    embedded = embed(source, wanted, encoding, run)
    fitted = fit_mixtures(config, embedded, wanted.samples, run)
    own = embedding.encoder
    arrays = own.load().to_arrays() if isinstance(own, StoredEncoder) else {}
    discovered = Discovered(
        source,
        embedding,
        embedded,
        run.work.folder("beside"),
        fitted,
        DiscoveryModel(fitted.clusters, arrays),
        sample,
    )
    derivation = Derivation(
        tuple(dict.fromkeys([*features, *encoding.columns()])),
        wanted.folder,
        run.work.folder("derived"),
        fitted.clusters,
        {},
        {},
        config.example_id,
        discovered.beside,
        outcome if has_losses(config.metric[0]) else None,
        config.metric[0],
        split,
    )
    run.show(Stage("assigning the examples to components"))
    tested = derive(derivation, source, encoding, run)
    run.show(Stage("encoding the examples"))
    # Columns are those that were written: what describes an example is no feature.
    examples = Examples(tested, outcome, features)
    known = fitted.clusters.domains
    prepared = prepare_source(config, examples, replace(run, observer=SilentObserver()), known)
    return PreparedDiscovery(
        **{**vars(prepared), "run": run, "within": within}, discovered=discovered
    )


def _refuse_taken(config: DiscoverConfig, source: Source) -> None:
    """Refuse data with columns of the names that are about to be given."""
    for components in config.components:
        if cluster_field(components) in source.schema.names:
            raise InputError(
                f"the data has a column {cluster_field(components)!r}, the name of the "
                "components; rename it"
            )


def _encoding(
    config: DiscoverConfig, source: Source, outcome: Outcome, work: WorkFolder
) -> tuple[list[str], Encoding]:
    """Return the features that are searched beside components, and what else is read."""
    described = {config.embedding, config.text}
    for name in config.features:
        if name in described:
            raise OptionError(
                f"--features: {name!r} is the embedded column; its components are already features"
            )
        if is_cluster_field(name):
            raise OptionError(
                f"--features: {name!r}: components are always features; leave them out"
            )
    everything = choose_features(config, source).features
    features = everything if config.features else []
    read = [name for name in everything if name not in described]
    return features, example_encoding(config, source, (), outcome, read, work)


def _split(config: DiscoverConfig) -> ExampleSplit | None:
    if config.loss_weight == 0:
        return None
    # Examples that go together shape the mixtures together, or none of them does.
    return ExampleSplit(config.discovery_share, config.seed, config.group or config.example_id)


def _embedded(
    config: DiscoverConfig,
    source: Source,
    embedding: Embedding,
    outcome: Outcome,
    split: ExampleSplit | None,
    work: WorkFolder,
) -> Embedded:
    if split is not None and not has_losses(config.metric[0]):
        raise OptionError(
            f"--loss-weight needs a loss for each example, which --metric {config.metric[0]} does "
            "not have; name accuracy, a loss or an error first"
        )
    shaping = source.rows * (split.share if split else 1.0)
    most = max(_SAMPLE, _SAMPLE_PER_COMPONENT * max(config.components))
    return Embedded(
        embedding,
        work.folder("embeddings"),
        work.folder("samples"),
        min(1.0, most / max(shaping, 1.0)),
        config.seed,
        outcome if split is not None else None,
        config.metric[0],
        split,
    )


def derive(derivation: Derivation, source: Source, encoding: Encoding, run: Workspace) -> Source:
    """Write the examples with the columns that are derived, unless they are written."""
    run.stage(
        "derived",
        lambda pipeline: (
            pipeline
            | "Read examples" >> ReadExamples(source, derivation.read)
            | "Extract predictions" >> ExtractPredictions(encoding)
            | "Derive columns" >> beam.Map(partial(derive_chunk, derivation))
        ),
        lambda: derived_examples(derivation.folder) == source.rows,
        job="derive",
        seconds=source.rows * _SECONDS_PER_ROW,
        reads_data=True,
    )
    # Files may hold fewer examples than a chunk: they are read as they were written.
    return derived_source(derivation.folder, source.rows).in_chunks(source.chunk_rows)
