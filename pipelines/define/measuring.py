"""Counts and tests user-defined slices, on the data of a document, and what all its slices explain."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.check import CheckConfig, inherited_options
from slicebeam.pipelines.config.common import validated
from slicebeam.pipelines.config.confirmation import refuse_unconfirmed
from slicebeam.pipelines.config.discover import LSA
from slicebeam.pipelines.define.predicates import how_read
from slicebeam.pipelines.discovery.known import PublishedDiscovery
from slicebeam.pipelines.prepare.wanted_slices import WantedSlices, wanted_slice
from slicebeam.pipelines.run.engine import start_engine
from slicebeam.pipelines.run.stage import SilentObserver, hidden_run
from slicebeam.pipelines.search.check import prepare_given, wishes_of
from slicebeam.pipelines.search.listed_counts import MOST_COVERING, count_listed
from slicebeam.pipelines.search.search import Steps, run_steps
from slicebeam.transforms.discovery.embeddings import ExampleSplit
from slicebeam.transforms.encode.definitions import slice_id_of
from slicebeam.transforms.storage.files import expand_paths
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.parts import SliceCoverage
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.define.counting import Counting, DefinedSlice
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.stage import Workspace
    from slicebeam.transforms.encode.definitions import AnyDefinition

# Embeddings are a column, or take a few seconds.
_QUICK_ENCODERS = ("none", LSA)


def measured(
    uri: str, document: SearchChangeList, wanted: Sequence[DefinedSlice], counting: Counting
) -> list[Slice]:
    """Return slices with their sizes and changes, as a check of them would find them.

    ``uri``: of the document, whose models, metrics and tests are used, and beside which the model of a
    discovery is. Of the document's data, those examples that shaped its components are left out where
    slices are about components.
    """
    known = PublishedDiscovery(uri, document, counting.confirmed)
    given = _given(known, [(new.name, new.definition) for new in wanted])
    with _check(known, counting) as (config, engine, split):

        def prepare(config: CheckConfig, run: Workspace) -> EncodedDataset:
            own = not counting.data
            return prepare_given(config, given, known, run, split, is_own_data=own)

        published = run_steps(config, Steps(prepare), engine, SilentObserver())
    found = {slice_.slice_id: slice_ for slice_ in published.changelist.slices}
    return [
        found[slice_id_of(new.definition)].model_copy(update={"name": new.name}) for new in wanted
    ]


def coverage_of(
    uri: str, document: SearchChangeList, counting: Counting
) -> tuple[SliceCoverage, ...]:
    """Return how much the slices of a document explain together; see `measured`."""
    if not document.slices or document.dataset.weight_field is not None:
        return ()
    known = PublishedDiscovery(uri, document, counting.confirmed)
    first = document.slices[:MOST_COVERING]
    given = _given(known, [(slice_.name, slice_.definition) for slice_ in first])
    discovery = document.discovery
    if (
        discovery is not None
        and discovery.encoder not in _QUICK_ENCODERS
        and wishes_of(given, ()).embeddings
    ):
        raise OptionError(f"all examples would have to be embedded by {discovery.encoder} again")
    with _check(known, counting) as (config, engine, split):
        folder = storage_path(config.output)
        with hidden_run(config, expand_paths(config.data), engine, folder) as run:
            own = not counting.data
            prepared = prepare_given(config, given, known, run, split, is_own_data=own)
            keys = prepared.lattice.singleton_keys()
            return count_listed(config, prepared, keys).coverage


def _given(
    known: PublishedDiscovery, definitions: Sequence[tuple[str, AnyDefinition]]
) -> WantedSlices:
    slices = tuple(wanted_slice(name, of, slice_id_of(of)) for name, of in definitions)
    return WantedSlices("changelist", known.uri, slices, known.document.changelist_id)


@contextmanager
def _check(
    known: PublishedDiscovery, counting: Counting
) -> Iterator[tuple[CheckConfig, Engine, ExampleSplit | None]]:
    """Yield a check with the options of a document, in a temporary folder, and the examples left out."""
    document = known.document
    earlier = document.provenance.config
    options: dict[str, Any] = inherited_options(earlier, {})
    refuse_unconfirmed(known.uri, options, asdict(known.confirmed))
    # It is not an option of a check that takes over an earlier run's.
    options |= how_read(document)
    if "example_id" in earlier:
        options["example_id"] = earlier["example_id"]
    if options.get("example_id") and options.get("group"):
        # Of the two that a discovery takes, a check resamples by one.
        del options["example_id"]
    with (
        tempfile.TemporaryDirectory(prefix="slicebeam-") as folder,
        start_engine(*counting.engine) as engine,
    ):
        options |= {
            "data": counting.data or document.dataset.uri,
            "output": str(Path(folder) / "out"),
            "changelist": known.uri,
            **dict(zip(("runner_config", "runner_option", "beam"), counting.engine, strict=True)),
        }
        split = None if counting.data else split_of(known)
        yield validated(CheckConfig, options), engine, split


def split_of(known: PublishedDiscovery) -> ExampleSplit | None:
    """Return which examples shaped the components of a discovery; None where all are tested."""
    discovery, config = known.document.discovery, known.document.provenance.config
    if discovery is None or discovery.discovery_share is None:
        return None
    by = config.get("group") or config.get("example_id")
    return ExampleSplit(discovery.discovery_share, known.document.provenance.seed, by)
