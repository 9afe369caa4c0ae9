"""Counts and tests user-defined slices, on the data of a document, and what all its slices explain."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.changelist.rules import slice_id_of
from slicebeam.pipelines.config.check import CheckConfig, inherited_options
from slicebeam.pipelines.config.common import IN_PROCESS, EngineChoice, validated
from slicebeam.pipelines.config.confirmation import NOTHING, Confirmed, refuse_unconfirmed
from slicebeam.pipelines.config.discover import LSA
from slicebeam.pipelines.define.predicates import how_read
from slicebeam.pipelines.discovery.known import PublishedDiscovery
from slicebeam.pipelines.prepare.given_slices import WantedSlices, wanted_slice
from slicebeam.pipelines.run.engine import start_engine
from slicebeam.pipelines.run.work_folder import WorkFolder
from slicebeam.pipelines.search.check import prepare_given, wishes_of
from slicebeam.pipelines.search.findings import MOST_COVERING, count_listed
from slicebeam.pipelines.search.iterations import SilentObserver
from slicebeam.pipelines.search.run_steps import Steps, run_steps
from slicebeam.transforms.discovery.embeddings import ExampleSplit
from slicebeam.transforms.storage.files import expand_paths
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.pipelines.changelist.discovered import AnyDefinition
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.parts import SliceCoverage
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.stage import Stage

# Embeddings are a column, or take a few seconds.
_QUICK_ENCODERS = ("none", LSA)


def measured(
    document: SearchChangeList,
    definitions: Sequence[tuple[str, AnyDefinition]],
    *,
    data: tuple[str, ...] | None,
    changelist_uri: str,
    engine: EngineChoice = IN_PROCESS,
    confirmed: Confirmed = NOTHING,
) -> list[Slice]:
    """Return slices with their sizes and changes, as a check of them would find them.

    ``document``: whose models, metrics and tests are used. ``data``: the examples; None for those
    of the document, of which those that shaped its components are left out where slices are about
    components. ``changelist_uri``: of the document, beside which the model of a discovery is.
    ``confirmed``: the entries of the document that the user confirms.
    """
    known = PublishedDiscovery(changelist_uri, document, confirmed)
    wanted = _wanted(known, definitions)
    with _check(known, data, engine) as (config, running, split):
        own = data is None
        prepare = partial(_prepared, wanted=wanted, known=known, split=split, is_own_data=own)
        steps = Steps(prepare)
        published = run_steps(config, steps, running, SilentObserver())
    found = {slice_.slice_id: slice_ for slice_ in published.changelist.slices}
    return [
        found[slice_id_of(definition)].model_copy(update={"name": name})
        for name, definition in definitions
    ]


def coverage_of(
    document: SearchChangeList,
    *,
    data: tuple[str, ...] | None,
    changelist_uri: str,
    engine: EngineChoice = IN_PROCESS,
    confirmed: Confirmed = NOTHING,
) -> tuple[SliceCoverage, ...]:
    """Return how much the slices of a document explain together; see `measured`."""
    if not document.slices or document.dataset.weight_field is not None:
        return ()
    known = PublishedDiscovery(changelist_uri, document, confirmed)
    definitions = [(slice_.name, slice_.definition) for slice_ in document.slices[:MOST_COVERING]]
    wanted = _wanted(known, definitions)
    discovery = document.discovery
    if (
        discovery is not None
        and discovery.encoder not in _QUICK_ENCODERS
        and wishes_of(wanted, ()).embeddings
    ):
        raise OptionError(f"all examples would have to be embedded by {discovery.encoder} again")
    with _check(known, data, engine) as (config, running, split):
        files = expand_paths(config.data)
        work = WorkFolder(storage_path(config.output))
        work.begin(config, files, resume=False)
        with work:
            of_run = files, work, running, _in_silence, split
            prepared = prepare_given(config, wanted, known, *of_run, is_own_data=data is None)
            keys = prepared.lattice.singleton_keys()
            return count_listed(config, prepared, keys, work, running).coverage


def _in_silence(_: Stage) -> None:
    """Report no stage."""


def _wanted(
    known: PublishedDiscovery, definitions: Sequence[tuple[str, AnyDefinition]]
) -> WantedSlices:
    return WantedSlices(
        "changelist",
        known.uri,
        tuple(
            wanted_slice(name, definition, slice_id_of(definition))
            for name, definition in definitions
        ),
        known.document.changelist_id,
    )


@contextmanager
def _check(
    known: PublishedDiscovery, data: tuple[str, ...] | None, choice: EngineChoice
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
    options["data"] = data or document.dataset.uri
    with (
        tempfile.TemporaryDirectory(prefix="slicebeam-") as folder,
        start_engine(*choice) as engine,
    ):
        options |= {
            "output": str(Path(folder) / "out"),
            "changelist": known.uri,
            **dict(zip(("runner_config", "runner_option", "beam"), choice, strict=True)),
        }
        config = validated(CheckConfig, options)
        yield config, engine, split_of(known) if data is None else None


def _prepared(
    config: CheckConfig,
    *rest: Any,
    wanted: WantedSlices,
    known: PublishedDiscovery,
    split: ExampleSplit | None,
    is_own_data: bool,
) -> EncodedDataset:
    files, work, engine, on_stage = rest
    of_run = files, work, engine, on_stage, split
    return prepare_given(config, wanted, known, *of_run, is_own_data=is_own_data)


def split_of(known: PublishedDiscovery) -> ExampleSplit | None:
    """Return which examples shaped the components of a discovery; None where all are tested."""
    discovery, config = known.document.discovery, known.document.provenance.config
    if discovery is None or discovery.discovery_share is None:
        return None
    by = config.get("group") or config.get("example_id")
    return ExampleSplit(discovery.discovery_share, known.document.provenance.seed, by)
