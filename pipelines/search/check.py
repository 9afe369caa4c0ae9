"""``slicebeam check``: known slices on new data, without a search."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.config.confirmation import Confirmed
from slicebeam.pipelines.discovery.known import (
    DerivedColumnRequest,
    PublishedDiscovery,
    with_derived,
)
from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset, encode, example_encoding
from slicebeam.pipelines.prepare.features import choose_features, resolve_outcome
from slicebeam.pipelines.prepare.source import chunk_rows, read_source, rows_of_document
from slicebeam.pipelines.prepare.wanted_slices import given_slices, read_given, value_slices
from slicebeam.pipelines.run.stage import Stage, Workspace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slicebeam.pipelines.config.check import CheckConfig
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.wanted_slices import WantedSlices
    from slicebeam.transforms.discovery.embeddings import ExampleSplit

# Slices whose membership takes as much memory of a chunk as a column does.
_SLICES_PER_COLUMN = 4


def prepare_check(config: CheckConfig, run: Workspace) -> EncodedDataset:
    """Read the data and write encoded shards that say in which slices, the values of one list feature, an example is."""
    known = None
    if config.changelist is not None:
        known = PublishedDiscovery(
            config.changelist,
            read_search(config.changelist, "--changelist"),
            Confirmed(encoder=config.encoder),
        )
    if config.eval_config is not None:
        run.show(Stage("looking up the values of the slices"))
        source = read_source(config, run)
        wanted = value_slices(config.eval_config, source, run)
    else:
        wanted = read_given(config.changelist, config.slices)
    return prepare_given(config, wanted, known, run)


def prepare_given(
    config: RunConfig,
    wanted: WantedSlices,
    known: PublishedDiscovery | None,
    run: Workspace,
    split: ExampleSplit | None = None,
    *,
    is_own_data: bool = False,
) -> EncodedDataset:
    """Write encoded shards that say in which of the wanted slices, of a document or a file, an example is.

    The document's examples in ``split`` are left out, and with ``is_own_data`` its reserved ones.
    """
    run.show(Stage("reading the data"))
    source = read_source(config, run)
    within = None
    if known is not None:
        document = known.document
        source, within = rows_of_document(source, document, run, is_own_data=is_own_data)
    outcome = resolve_outcome(config, source)
    features = choose_features(config, source).features
    encoding = example_encoding(config, source, (), outcome, features, run.work)
    size = len(wanted.slices)
    is_discovery = known is not None and known.document.discovery is not None
    wishes = wishes_of(wanted, () if is_discovery else source.schema.names)
    if wishes.any and known is not None:
        source = with_derived(config, known, wishes, source, encoding, run, split)
    try:
        given = given_slices(wanted, source.schema)
    except InputError as error:
        if not source.varying:
            raise
        left_out = ", ".join(source.varying)
        raise InputError(
            f"{error}; of queries, what varies within them is left out: {left_out}"
        ) from error
    columns = len(source.schema) + size // _SLICES_PER_COLUMN
    source = source.in_chunks(chunk_rows(config, columns))
    lattice = Lattice((size,), 1, (True,), (False,))
    encoding = replace(encoding, source=source, given=given.membership)
    run.show(Stage("looking up the slices of the examples"))
    prepared = encode(config, encoding, lattice, (), run)
    return replace(prepared, given=given, within=within)


def wishes_of(wanted: WantedSlices, own: Iterable[str]) -> DerivedColumnRequest:
    """Return what slices ask of examples besides the columns of the data."""
    definitions = {
        one.column: one.definition for one in wanted.slices if one.definition is not None
    }
    fields = [
        condition.field
        for one in wanted.slices
        if one.definition is None and not isinstance(one.predicate, str)
        for condition in one.predicate
    ]
    return DerivedColumnRequest(definitions, frozenset(fields), frozenset(own))
