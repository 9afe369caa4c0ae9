"""Reads data whose examples have embeddings, and writes the embeddings once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import apache_beam as beam

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.discovery.fitting import EmbeddedFiles
from slicebeam.pipelines.prepare.source import chunk_rows
from slicebeam.pipelines.run.stage import Stage
from slicebeam.transforms.discovery.embeddings import (
    Embedding,
    TextSample,
    embed_chunk,
    sample_chunk,
)
from slicebeam.transforms.discovery.encoders import encoder, needs_fit
from slicebeam.transforms.discovery.lsa import LsaEncoder, StoredEncoder
from slicebeam.transforms.encode.extract_slice_keys import ExtractPredictions, ReadExamples
from slicebeam.transforms.encode.shards import read_all_facts, rows_in
from slicebeam.transforms.encode.sources import read_split
from slicebeam.transforms.storage.storage import matching

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from slicebeam.pipelines.config.common import DataConfig
    from slicebeam.pipelines.run.stage import Workspace
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.discovery.embeddings import Embedded
    from slicebeam.transforms.discovery.encoders import Encoder
    from slicebeam.transforms.encode.extract_slice_keys import Encoding
    from slicebeam.transforms.encode.sources import Source
    from slicebeam.transforms.storage.storage import StoragePath

# Texts that an encoder is fitted to, and that phrases are taken from, at most.
TEXTS = 20_000
# Numbers of an embedding that take as much memory of a chunk as a column does.
_NUMBERS_PER_COLUMN = 4
# Dimensions that are assumed of an encoder, for the size of a chunk.
_LARGEST_USUAL = 1536
# Texts of a chunk that are embedded by a network, here or elsewhere.
_SLOW_TEXTS = 1024
# CPU time of reading a value or a number of an embedding, measured on 5,000 x 64.
_SECONDS_PER_NUMBER = 4e-9
# The same of embedding a text by whatever does it fastest.
_SECONDS_PER_TEXT = 5e-5


@dataclass(frozen=True)
class EmbeddingFields:
    """The user's options for the embeddings of examples."""

    embedding: str | None
    text: str | None
    encoder: str | None
    cache: StoragePath

    def check(self, source: Source) -> None:
        """Raise an InputError where a column is not there."""
        for name, option in ((self.embedding, "--embedding"), (self.text, "--text")):
            if name:
                source.column_type(name, option)

    def chunked(self, config: DataConfig, source: Source) -> Source:
        """Return the source, of which fewer examples are read at a time where embeddings are long."""
        width = _LARGEST_USUAL
        if self.embedding:
            # The first vector gives the length of all.
            first = next(read_split(source.in_chunks(1), source.splits[0], [self.embedding]))
            value = first.table.column(0)[0].as_py()
            width = len(value) if isinstance(value, list) else 1
        columns = len(source.schema) + width // _NUMBERS_PER_COLUMN
        rows = chunk_rows(config, columns)
        if self.encoder is not None and not self.embedding and not needs_fit(self.encoder):
            # What takes minutes reports its progress.
            rows = min(rows, _SLOW_TEXTS)
        return source.in_chunks(rows)

    def sample(self, source: Source, seed: int, work: WorkFolder) -> TextSample | None:
        """Return which texts are sampled; None if there are none."""
        if self.text is None:
            return None
        share = min(1.0, TEXTS / source.rows)
        return TextSample(self.text, share, seed, work.folder("texts"))


def sample_texts(sample: TextSample, source: Source, run: Workspace) -> None:
    """Write the sampled texts, unless they are written."""
    run.stage(
        "texts",
        lambda pipeline: (
            pipeline
            | "Read examples" >> ReadExamples(source, [sample.column])
            | "Sample texts" >> beam.Map(partial(sample_chunk, sample))
        ),
        lambda: sample.examples() == source.rows,
        seconds=source.rows * _SECONDS_PER_TEXT / 10,
        reads_data=True,
    )


def embedding_of(
    fields: EmbeddingFields,
    sample: TextSample | None,
    seed: int,
    folder: StoragePath,
    fitted: Mapping[str, NDArray[Any]] | None = None,
) -> Embedding:
    """Return where embeddings come from."""
    own: Encoder | None = None
    if fields.encoder is not None and needs_fit(fields.encoder):
        if fitted:
            own = StoredEncoder.written(LsaEncoder.from_arrays(fitted), folder / "lsa.arrow")
        elif sample is not None:
            _, texts = sample.read()
            own = StoredEncoder.written(LsaEncoder.fit(texts, seed=seed), folder / "lsa.arrow")
    elif fields.encoder is not None:
        own = encoder(fields.encoder, cache=fields.cache)
    return Embedding(fields.embedding, fields.text, own)


def embed(source: Source, wanted: Embedded, encoding: Encoding, run: Workspace) -> EmbeddedFiles:
    """Write the embeddings of all examples, unless they are written."""
    folder = wanted.folder
    run.show(
        Stage(
            "embedding the examples" if wanted.embedding.encoder else "reading the embeddings",
            lambda: sum(1 for _ in folder.glob("*.arrow")),
            "chunks",
        )
    )
    columns = list(wanted.embedding.columns)
    if wanted.outcome is not None:
        columns += encoding.columns()
    elif wanted.split is not None and wanted.split.id_column is not None:
        columns.append(wanted.split.id_column)
    run.stage(
        "embeddings",
        lambda pipeline: (
            pipeline
            | "Read examples" >> ReadExamples(source, list(dict.fromkeys(columns)))
            | "Extract predictions" >> ExtractPredictions(encoding)
            | "Embed examples" >> beam.Map(partial(embed_chunk, wanted))
            if wanted.outcome is not None
            else pipeline
            | "Read examples" >> ReadExamples(source, list(dict.fromkeys(columns)))
            | "Embed examples" >> beam.Map(partial(embed_chunk, wanted))
        ),
        lambda: rows_in(matching(folder, "*.arrow")) == source.rows,
        job="embed",
        seconds=source.rows
        * (_SECONDS_PER_TEXT if wanted.embedding.encoder else 400 * _SECONDS_PER_NUMBER),
        reads_data=True,
    )
    return embedded_files(matching(wanted.folder, "*.arrow"), wanted.embedding)


def embedded_files(paths: Sequence[StoragePath], embedding: Embedding) -> EmbeddedFiles:
    """Return the contents of the files of embeddings."""
    facts = read_all_facts(paths)
    lengths = {fact["dimensions"]: fact for fact in facts if fact["rows"]}
    if len(lengths) > 1:
        (D, one), (other, another) = sorted(lengths.items())[:2]
        raise InputError(
            f"{embedding.columns[0]!r} has {D} dimensions in {one['origin']} (from row "
            f"{one['start_row'] + 1:,} of all) and {other} in {another['origin']} (from row "
            f"{another['start_row'] + 1:,}); all embeddings must have the same length"
        )
    return EmbeddedFiles(
        tuple(paths),
        tuple(fact["rows"] for fact in facts),
        tuple(fact["shaping"] for fact in facts),
        next(iter(lengths), 0),
        all(fact["is_zero_one"] for fact in facts),
    )
