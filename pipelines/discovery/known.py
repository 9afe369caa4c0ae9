"""What an earlier discovery knows: it assigns new examples to components, and embeds words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import InputError, OptionError, unknown_name
from slicebeam.pipelines.changelist.reading import file_of
from slicebeam.pipelines.config.confirmation import NOTHING, Confirmed, refuse_unconfirmed
from slicebeam.pipelines.discovery.embedding import EmbeddingFields, embed, embedding_of
from slicebeam.pipelines.discovery.model import MODEL_FILE, DiscoveryModel
from slicebeam.pipelines.discovery.preparation import CACHE, derive
from slicebeam.transforms.discovery.derive_columns import Derivation, is_cluster_field
from slicebeam.transforms.discovery.embeddings import Embedded
from slicebeam.transforms.encode.conditions import (
    columns_of,
    encoders_of,
    needs_embeddings,
    needs_ids,
    queries_of,
)
from slicebeam.transforms.storage.storage import beneath, storage_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from slicebeam.pipelines.changelist.discovered import Discovery
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.run.stage import Workspace
    from slicebeam.transforms.discovery.derive_columns import Clusters
    from slicebeam.transforms.discovery.embeddings import Embedding, ExampleSplit
    from slicebeam.transforms.encode.definitions import AnyDefinition
    from slicebeam.transforms.encode.extract_slice_keys import Encoding
    from slicebeam.transforms.encode.sources import Source
    from slicebeam.transforms.storage.storage import StoragePath


@dataclass(frozen=True)
class PublishedDiscovery:
    """The document of an earlier run, and the files next to it."""

    uri: str
    document: SearchChangeList
    confirmed: Confirmed = NOTHING

    @property
    def folder(self) -> StoragePath:
        """Where the document is."""
        return storage_path(self.uri).parent

    @property
    def discovery(self) -> Discovery:
        """How slices were discovered."""
        if self.document.discovery is None:
            raise InputError(
                f"{self.uri} is not the document of a discovery, so the encoder is unknown; name "
                "the document of slicebeam discover"
            )
        return self.document.discovery

    @cached_property
    def model(self) -> DiscoveryModel:
        """The mixtures."""
        path = file_of(self.uri, self.document, MODEL_FILE)
        return DiscoveryModel.read(path, self.discovery.mixture_fingerprint)

    @property
    def clusters(self) -> Clusters:
        """Assigns examples to components."""
        return self.model.clusters

    @property
    def fields(self) -> EmbeddingFields:
        """Where embeddings come from."""
        discovery = self.discovery
        encoder = None if discovery.encoder == "none" else discovery.encoder
        return EmbeddingFields(
            discovery.embedding_field, discovery.text_field, encoder, beneath(self.folder, CACHE)
        )

    def embedding(self, folder: StoragePath) -> Embedding:
        """Return the same, with what embeds texts."""
        refuse_unconfirmed(
            self.uri, {"encoder": self.fields.encoder}, {"encoder": self.confirmed.encoder}
        )
        own = embedding_of(self.fields, None, 0, folder, self.model.encoder)
        fingerprint = self.discovery.encoder_fingerprint
        if own.encoder is not None and own.encoder.fingerprint != fingerprint:
            raise OptionError(
                f"--encoder {self.discovery.encoder} has changed since the discovery, so new "
                "embeddings cannot be compared; run the discovery again"
            )
        return own


@dataclass(frozen=True)
class DerivedColumnRequest:
    """What slices need of examples besides the columns of the data.

    ``definitions``: of slices without a predicate, by the column of their members. ``own``: columns
    of the data that are not components, whatever their names.
    """

    definitions: Mapping[str, AnyDefinition]
    fields: frozenset[str]
    own: frozenset[str] = frozenset()

    @property
    def all_fields(self) -> set[str]:
        """The columns that predicates and definitions are about."""
        return set(self.fields).union(*map(columns_of, self.definitions.values()))

    @property
    def components(self) -> set[str]:
        """The columns of components that are needed."""
        return {name for name in self.all_fields - self.own if is_cluster_field(name)}

    @property
    def clusters(self) -> bool:
        """Whether components are needed."""
        return bool(self.components)

    @property
    def embeddings(self) -> bool:
        """Whether embeddings are needed."""
        return self.clusters or any(map(needs_embeddings, self.definitions.values()))

    @property
    def ids(self) -> bool:
        """Whether ids are needed."""
        return any(map(needs_ids, self.definitions.values()))

    @property
    def any(self) -> bool:
        """Whether anything is needed that is not a column of the data."""
        return bool(self.definitions) or self.clusters

    def queries(self, embedding: Embedding) -> dict[str, NDArray[np.float32]]:
        """Return the embeddings of the words in definitions: float32 [D] by text."""
        texts = sorted(set().union(*map(queries_of, self.definitions.values())))
        return dict(zip(texts, embedding.queries(texts), strict=True)) if texts else {}

    def check_encoders(self, known: PublishedDiscovery) -> None:
        """Refuse definitions that speak of the embeddings of another encoder."""
        for name, definition in self.definitions.items():
            strange = encoders_of(definition) - {known.discovery.encoder_fingerprint}
            if strange:
                raise InputError(
                    f"{name} is defined by embeddings of another encoder than that of "
                    f"{known.uri}; define it again"
                )


def with_derived(
    config: RunConfig,
    known: PublishedDiscovery,
    wishes: DerivedColumnRequest,
    source: Source,
    encoding: Encoding,
    run: Workspace,
    split: ExampleSplit | None,
) -> Source:
    """Return the examples with the columns that slices ask for and the data has not, in files of the work folder.

    ``split``: the examples that are left out where components are needed; None for all.
    """
    names = source.schema.names
    for name in sorted(wishes.all_fields - set(names)):
        if not is_cluster_field(name):
            raise unknown_name("column", name, names)
    for name in sorted(wishes.components & set(names)):
        raise InputError(f"the data has a column {name!r}, the name of the components; rename it")
    id_field = config.example_id or known.document.dataset.id_field
    if wishes.ids and id_field is None:
        raise InputError("a slice is defined by ids: name the column of ids with --example-id")
    columns = [*(name for name in names if name in wishes.all_fields), *encoding.columns()]
    queries: dict[str, NDArray[np.float32]] = {}
    embeddings = None
    clusters = None
    if wishes.embeddings:
        wishes.check_encoders(known)
        fields = known.fields
        _check_column(known, fields, source)
        source = fields.chunked(config, source)
        embeddings = run.work.folder("embeddings")
        embedding = known.embedding(run.work.folder("encoder"))
        wanted = Embedded(embedding, embeddings, run.work.folder("samples"), 0.0, config.seed)
        files = embed(source, wanted, encoding, run)
        _check_dimensions(known, files.dimensions)
        queries = wishes.queries(embedding)
        clusters = known.clusters if wishes.clusters else None
    derivation = Derivation(
        tuple(dict.fromkeys(columns)),
        embeddings,
        run.work.folder("derived"),
        clusters,
        wishes.definitions,
        queries,
        id_field,
        split=split if wishes.clusters else None,
    )
    return derive(derivation, source, encoding, run)


def _check_column(known: PublishedDiscovery, fields: EmbeddingFields, source: Source) -> None:
    """Refuse data without the column of the embeddings; texts next to them show examples only."""
    name = fields.embedding or fields.text
    if name not in source.schema.names:
        unknown = unknown_name("column", str(name), source.schema.names)
        raise InputError(f"slices of {known.uri} are defined by embeddings of a column: {unknown}")


def _check_dimensions(known: PublishedDiscovery, dimensions: int) -> None:
    if dimensions != known.discovery.dimensions:
        raise InputError(
            f"embeddings of the data have {dimensions} dimensions, but those of the discovery had "
            f"{known.discovery.dimensions}; use the same encoder"
        )
