"""The data of a document, opened once: for new slices, examples, the playground and labels."""

from __future__ import annotations

import tempfile
import threading
import weakref
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import expit

from slicebeam.metrics.chunks import blocks
from slicebeam.metrics.errors import ColumnError, InputError
from slicebeam.metrics.randomness import splitmix64
from slicebeam.pipelines.attribution.population import SlicePopulation
from slicebeam.pipelines.changelist.edits import find_slice
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.config.check import CheckConfig
from slicebeam.pipelines.config.confirmation import NOTHING, Confirmed
from slicebeam.pipelines.define.counting import Counting, DefinedSlice
from slicebeam.pipelines.define.measuring import measured, split_of
from slicebeam.pipelines.define.predicates import how_read
from slicebeam.pipelines.discovery.known import DerivedColumnRequest, PublishedDiscovery
from slicebeam.pipelines.prepare.source import AS_QUERIES, read_rows, read_source, rows_of_document
from slicebeam.pipelines.run.engine import start_engine
from slicebeam.pipelines.run.stage import hidden_run
from slicebeam.transforms.discovery.embeddings import EmbeddedChunk, chunk_name, write_embeddings
from slicebeam.transforms.encode.column import id_hashes
from slicebeam.transforms.encode.conditions import columns_of, members, similarities
from slicebeam.transforms.encode.sources import read_split
from slicebeam.transforms.storage.files import expand_paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.transforms.discovery.embeddings import Embedding
    from slicebeam.transforms.encode.column import Chunk
    from slicebeam.transforms.encode.definitions import AnyDefinition
    from slicebeam.transforms.encode.sources import Source

    Vectors = NDArray[np.float32]

# Rows that are turned to double precision together.
_ROWS_AT_A_TIME = 4096


# What an example is to the models: of one model, and of two.
WRONG, RIGHT = "wrong", "right"
BROKEN, FIXED, BOTH_WRONG, BOTH_RIGHT = "broken", "fixed", "both wrong", "both right"
# Of an example that the model, of two the new one, gets wrong.
FAILING = (BROKEN, BOTH_WRONG, WRONG)


@dataclass
class DocumentData:
    """The examples of a document, read in chunks.

    ``data``: files or globs; None for those of the document. ``seed``: of `order`, 0 to 2³² - 1.
    """

    known: PublishedDiscovery
    data: tuple[str, ...] | None
    seed: int = 0
    # What CSV files are converted to, and embeddings, live as long as this.
    _folder: Any = field(default_factory=lambda: tempfile.TemporaryDirectory(prefix="slicebeam-"))
    # The features of a server share it.
    _embedding_lock: Any = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        weakref.finalize(self, self._folder.cleanup)
        # What is wrong with ids is said before anything is paid.
        _ = self.ids

    def close(self) -> None:
        """Remove what was made of the files; the examples can be read no more."""
        self._folder.cleanup()

    @cached_property
    def source(self) -> Source:
        """The files."""
        paths = self.data or self.known.document.dataset.uri
        earlier = self.known.document.provenance.config
        read = how_read(self.known.document)
        read |= {name: earlier[name] for name in AS_QUERIES if name in earlier}
        # Only what concerns the reading of files has a meaning here.
        config = CheckConfig.model_construct(
            data=paths, output="", slices="none", **{"label": "", **read}
        )
        folder = Path(self._folder.name) / "work"
        with (
            start_engine("direct", ()) as engine,
            hidden_run(config, expand_paths(paths), engine, folder) as run,
        ):
            source, _ = rows_of_document(read_source(config, run), self.known.document, run)
        if self.known.document.discovery is not None:
            self.known.fields.check(source)
            source = self.known.fields.chunked(config, source)
        return source

    @property
    def id_field(self) -> str | None:
        """Column that identifies examples; None for their positions."""
        return self.known.document.dataset.id_field

    def _chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        for split in self.source.splits:
            yield from read_split(self.source, split, columns)

    @cached_property
    def ids(self) -> pa.Array:
        """What identifies the examples: int64 or string [n], each once."""
        if self.id_field is None:
            return pa.array(np.arange(self.source.rows))
        self.source.column_type(self.id_field, "--example-id")
        ids = self.column(self.id_field)
        counts = pc.value_counts(ids)
        twice = counts.filter(pc.greater(counts.field("counts"), 1))
        if ids.null_count or len(twice):
            what = "a row has no id" if ids.null_count else f"{twice[0]['values'].as_py()!r} twice"
            raise ColumnError(
                f"column {self.id_field!r} does not identify examples: {what}; give every example "
                "a unique id"
            )
        return ids

    @cached_property
    def hashes(self) -> NDArray[np.uint64]:
        """Hashes of the ids."""
        if self.id_field is None:
            return np.arange(self.source.rows, dtype=np.uint64)
        hashes = [
            id_hashes(chunk.table.column(0).combine_chunks(), chunk)
            for chunk in self._chunks([self.id_field])
        ]
        return np.concatenate(hashes)

    @cached_property
    def order(self) -> IntArray:
        """The positions in a random order that is always the same for a seed: int64 [n]."""
        shuffled = splitmix64(self.hashes ^ np.uint64(self.seed << 32))
        return np.argsort(shuffled, kind="stable")

    @cached_property
    def roles(self) -> NDArray[np.str_] | None:
        """Whether the models are right of each example; None where no class is predicted."""
        document = self.known.document
        label = document.dataset.label_field
        fields = {model.role: model.prediction_field for model in document.models}
        after, before = fields.get("after"), fields.get("before")
        if label is None or after is None or not document.dataset.classes:
            return None
        truth = self.column(label).cast(pa.string())

        def is_right(name: str) -> NDArray[np.bool_]:
            same = pc.equal(truth, self.column(name).cast(pa.string()))
            return np.asarray(same.fill_null(False))

        now = is_right(after)
        if before is None:
            return np.where(now, RIGHT, WRONG)
        then = is_right(before)
        ways = [then & ~now, ~then & now, ~then & ~now]
        return np.select(ways, [BROKEN, FIXED, BOTH_WRONG], BOTH_RIGHT)

    @cached_property
    def outcome(self) -> dict[str, str]:
        """The columns of the label and of what the models say, each with what it is."""
        document = self.known.document
        columns = {document.dataset.label_field: "label"}
        for role, name in (("before", "old"), ("after", "new")):
            for model in document.models:
                if model.role == role:
                    column = model.prediction_field or model.score_field or model.loss_field
                    columns[column] = name
        return {column: name for column, name in columns.items() if column is not None}

    def tiers(self, of: Slice, first: Sequence[str], option: str) -> list[IntArray]:
        """Return the positions of a slice's examples: those of each of the first roles, and the others.

        ``first``: roles that are worth a look first; they are nothing where no class is predicted.
        ``option``: that asks for examples, for the error where the slice has another number of
        them.
        """
        tiers = self.by_role(of.definition, first)
        check_size(of, sum(map(len, tiers)), option)
        return tiers

    def by_role(self, definition: AnyDefinition, first: Sequence[str]) -> list[IntArray]:
        """Return the positions of the examples of a definition, as `tiers` does."""
        member = self.counted(definition)
        places = self.order[member[self.order]]
        if self.roles is None:
            return [places]
        roles = self.roles[places]
        rest = places[~np.isin(roles, list(first))]
        return [*(places[roles == role] for role in first), rest]

    def members_of(self, definition: AnyDefinition) -> NDArray[np.bool_]:
        """Return which examples are in a slice: bool [n]."""
        chunks = [members[0] for members in self._members({"the slice": definition})]
        return np.concatenate(chunks)

    def counted(self, definition: AnyDefinition) -> BoolArray:
        """Return which examples count for a slice in the document: bool [n].

        Of a discovery that looks at losses, those that shaped its components are not counted for
        slices that are about components.
        """
        member = self.members_of(definition)
        return member & self._tested if self._request({"": definition}).clusters else member

    @cached_property
    def _tested(self) -> BoolArray:
        """Which examples did not shape the components: bool [n]."""
        split, source = split_of(self.known), self.source
        if split is None:
            return np.ones(source.rows, bool)
        read = [split.id_column or source.schema.names[0]]
        return np.concatenate([~split.is_discovery(chunk) for chunk in self._chunks(read)])

    def _request(self, definitions: Mapping[str, AnyDefinition]) -> DerivedColumnRequest:
        is_discovery = self.known.document.discovery is not None
        own = frozenset(() if is_discovery else self.source.schema.names)
        return DerivedColumnRequest(definitions, frozenset(), own)

    def _members(self, definitions: Mapping[str, AnyDefinition]) -> Iterator[BoolArray]:
        """Yield of each chunk which examples are in each slice: bool [slices, rows]."""
        wishes = self._request(definitions)
        if wishes.embeddings:
            wishes.check_encoders(self.known)
        queries = wishes.queries(self._embedding) if wishes.embeddings else {}
        columns = set().union(
            *(columns_of(part, self.id_field) for part in wishes.definitions.values())
        )
        read = sorted(columns - wishes.components)
        for name in read:
            self.source.column_type(name, "")
        for chunk in self._chunks(read):
            table, z = chunk.table, None
            if wishes.embeddings:
                z = self._embedded(chunk.split, chunk.batch)
            if wishes.clusters and z is not None:
                for name, rows in self.known.clusters.assigned(z, chunk.origin_row + 1).items():
                    mixture = self.known.clusters.mixtures[name]
                    table = table.append_column(name, rows.column(mixture.components))
            if not table.num_columns:
                # A table without columns has lost how many rows it has.
                table = pa.table({"none": pa.nulls(0 if z is None else len(z))})
            yield np.stack(
                [
                    members(part, table, z, queries, self.id_field)
                    for part in wishes.definitions.values()
                ]
            )

    def centroids(self, definitions: Mapping[str, AnyDefinition]) -> tuple[FloatArray, IntArray]:
        """Return the mean raw embedding of the `counted` examples of each slice, and their number.

        ``definitions``: by the name that an error has. Returns float64 [slices, D], 0 where there
        are none, and int64 [slices].
        """
        of_components = [
            self._request({"": definition}).clusters for definition in definitions.values()
        ]
        counts_all = ~np.array(of_components)[:, None]
        sums, sizes = np.zeros(()), np.zeros(len(definitions), np.int64)
        for (start, z), chunk in zip(self._all_embedded(), self._members(definitions), strict=True):
            inside = chunk & (counts_all | self._tested[start : start + len(z)])
            sizes += inside.sum(axis=1)
            for block in blocks(len(z), _ROWS_AT_A_TIME):
                sums = sums + inside[:, block].astype(np.float64) @ z[block].astype(np.float64)
        return sums / np.maximum(sizes, 1)[:, None], sizes

    @cached_property
    def _embedding(self) -> Embedding:
        """Where embeddings come from."""
        return self.known.embedding(Path(self._folder.name))

    @property
    def _parts(self) -> list[tuple[int, int, int]]:
        """Where the embeddings of each chunk are: split, batch, and the first row."""
        with self._embedding_lock:
            return self._embedded_parts

    @cached_property
    def _embedded_parts(self) -> list[tuple[int, int, int]]:
        folder, embedding = Path(self._folder.name), self._embedding
        parts = []
        for chunk in self._chunks(embedding.columns):
            z = embedding.of(chunk)
            write_embeddings(folder / chunk_name(chunk.split, chunk.batch), z, {}, {})
            parts.append((chunk.split, chunk.batch, chunk.start_row))
        return parts

    def _embedded(self, split: int, batch: int) -> Vectors:
        _ = self._parts
        return EmbeddedChunk(Path(self._folder.name) / chunk_name(split, batch)).z

    def _all_embedded(self) -> Iterator[tuple[int, Vectors]]:
        for split, batch, start in self._parts:
            yield start, self._embedded(split, batch)

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Return the embeddings of texts by the encoder of the discovery: float32 [texts, D]."""
        return self._embedding.queries(list(texts))

    def similarity(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """Return float32 [q, n]: the cosine of each example's embedding with each query's."""
        found = [self.cosines(query) for query in self.queries(queries)]
        return np.stack(found).astype(np.float32)

    def cosines(self, query: NDArray[np.floating]) -> FloatArray:
        """Return float64 [n]: the cosine of each example's embedding with another one, [D]."""
        return np.concatenate([similarities(z, query) for _, z in self._all_embedded()])

    def rows(self, positions: IntArray) -> pa.Table:
        """Return the fields that show some examples, in this order."""
        return self.read(positions, self.shown)

    def read(self, positions: IntArray, columns: Sequence[str]) -> pa.Table:
        """Return columns of some examples, in this order."""
        rows, place = np.unique(positions, return_inverse=True)
        if not rows.size:
            return self.source.schema.empty_table().select(list(columns))
        return read_rows(self.source, rows.astype(np.int64), list(columns)).take(pa.array(place))

    def ids_of(self, positions: IntArray) -> list[Any]:
        """Return the ids of some examples; None where the document has no column of ids."""
        if self.id_field is None:
            return [None] * len(positions)
        ids: list[Any] = self.ids.take(pa.array(positions)).to_pylist()
        return ids

    @cached_property
    def shown(self) -> list[str]:
        """The columns that show an example: its text and features, or all plain ones."""
        document = self.known.document
        text = document.discovery.text_field if document.discovery is not None else None
        features = [domain.name for domain in document.dataset.domains]
        some = [
            name
            for name in (text, *features)
            if name is not None and name in self.source.schema.names and name != self.id_field
        ]
        if some:
            return some
        # What models say of an example is not a part of it.
        models = {
            name
            for model in document.models
            for name in (model.prediction_field, model.score_field, model.loss_field)
        }
        hidden = {*models, document.dataset.label_field, self.id_field}
        return [
            one.name
            for one in self.source.schema
            if one.name not in hidden and not pa.types.is_nested(one.type)
        ]

    def embeddings(self, positions: IntArray) -> Vectors:
        """Return the raw embeddings of some examples: float32 [m, D]."""
        found: Vectors | None = None
        for start, z in self._all_embedded():
            if found is None:
                found = np.empty((len(positions), z.shape[1]), np.float32)
            own = (positions >= start) & (positions < start + len(z))
            found[own] = z[positions[own] - start]
        return found if found is not None else np.zeros((0, 0), np.float32)

    def scores(self, coefficients: FloatArray, intercept: float) -> FloatArray:
        """Return float64 [n]: the probabilities of a logistic regression on raw embeddings."""
        found = [expit(z @ coefficients + intercept) for _, z in self._all_embedded()]
        return np.concatenate(found)

    def column(self, name: str) -> pa.Array:
        """Return a recorded column, in the order of the ids."""
        kind = self.source.column_type(name, "")
        columns = [
            chunk.table.column(0).cast(kind).combine_chunks() for chunk in self._chunks([name])
        ]
        return pa.chunked_array(columns, kind).combine_chunks()

    def defined(self, name: str, definition: AnyDefinition) -> Slice:
        """Return a slice as the document states it, with its slice_id and its changes."""
        counting = Counting(self.data or (), confirmed=self.known.confirmed)
        new = DefinedSlice(name, definition)
        return measured(self.known.uri, self.known.document, [new], counting)[0]


def check_size(of: Slice, held: int, option: str) -> None:
    """Refuse data in which a slice has another number of examples than in the document."""
    if held != of.size.n:
        raise InputError(
            f"{option}: {of.name} has {held:,} examples in this data and {of.size.n:,} in the "
            "document; name the data that the document is about with --data"
        )


def open_data(
    changelist_uri: str,
    document: SearchChangeList,
    data: tuple[str, ...] | None,
    confirmed: Confirmed = NOTHING,
) -> DocumentData:
    """Open the data of a document, or other files or globs."""
    return DocumentData(PublishedDiscovery(changelist_uri, document, confirmed), data)


def open_population(
    changelist_uri: str,
    slice_name: str,
    *,
    data: tuple[str, ...] | None,
    confirmed: Confirmed = NOTHING,
) -> tuple[SlicePopulation, SearchChangeList, Slice]:
    """Return the examples with the members of a slice, the document, and the slice."""
    document = read_search(changelist_uri, "--changelist")
    named = find_slice(document, slice_name)
    opened = open_data(changelist_uri, document, data, confirmed)
    return SlicePopulation(opened, opened.members_of(named.definition)), document, named
