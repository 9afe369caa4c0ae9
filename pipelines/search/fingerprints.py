"""Whether the data of a document is still what it was: its fingerprint is computed again."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError, OptionError, SlicebeamError
from slicebeam.pipelines.config.common import validated
from slicebeam.pipelines.config.confirmation import Confirmed, refuse_unconfirmed
from slicebeam.pipelines.run.stage import Stage
from slicebeam.transforms.storage.files import expand_paths, in_both

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.config.search import SearchConfig
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.search.iterations import SearchObserver

# Computed after the encoding, or not at all.
_MEASURED = frozenset({"since", "tfma_metric", "tfma_module"})


class OtherDataError(InputError):
    """Data is not what a document is about."""


def check_same_data(
    uri: str,
    document: SearchChangeList,
    files: Sequence[str],
    confirmed: Confirmed,
    remedy: str = "add --other-data if you mean to count on this",
) -> None:
    """Refuse data with another fingerprint than a document; of a discovery, it is not computed again."""
    if document.discovery is not None:
        return
    again = fingerprint_again(uri, document, expand_paths(files), confirmed)
    if again != document.dataset.fingerprint:
        raise OtherDataError(
            f"--data {', '.join(files)} is not the data that {uri} is about: its fingerprint is "
            f"{short(again)}, and that of the document {short(document.dataset.fingerprint)}; name "
            f"the data of the document, or {remedy}"
        )


def short(fingerprint: str) -> str:
    """Return what people compare of a fingerprint."""
    return fingerprint.partition(":")[2][:12]


def fingerprint_again(
    uri: str, document: SearchChangeList, files: Sequence[str], confirmed: Confirmed
) -> str:
    """Encode data as the run of a document did, and return its fingerprint."""
    from slicebeam.pipelines.run.engine import start_engine
    from slicebeam.pipelines.run.stage import hidden_run
    from slicebeam.pipelines.search.building import fingerprint_of

    # It is encoded on this machine, whatever engine the run had.
    engine_here = {"runner_config": "direct", "runner_option": (), "beam": ()}
    then = document.provenance.config
    earlier = {name: one for name, one in then.items() if name not in _MEASURED} | engine_here
    refuse_unconfirmed(uri, earlier, asdict(confirmed))
    with (
        tempfile.TemporaryDirectory(prefix="slicebeam-") as folder,
        start_engine("direct", ()) as engine,
    ):
        options = {
            **{name: one for name, one in earlier.items() if one is not None},
            "data": tuple(files),
            "output": str(Path(folder) / "out"),
            "work_dir": None,
        }
        step: Any
        config: Any
        if document.provenance.command == "check":
            from slicebeam.pipelines.config.check import check_config
            from slicebeam.pipelines.search.check import prepare_check

            step, config = prepare_check, check_config(options)
        else:
            from slicebeam.pipelines.config.search import search_config
            from slicebeam.pipelines.prepare.encoded_dataset import prepare

            step, config = prepare, search_config(options)
        with hidden_run(config, files, engine, Path(folder) / "work") as run:
            return fingerprint_of(step(config, run))


def against_data_of(
    config: SearchConfig, document: SearchChangeList, engine: Engine, observer: SearchObserver
) -> SearchConfig | None:
    """Return the search with the earlier run's data; None, with a note why, where its published slices have to do."""
    from slicebeam.metrics.measures.registry import statistic_space
    from slicebeam.pipelines.prepare.source import format_of
    from slicebeam.transforms.encode.convert import first_columns
    from slicebeam.transforms.encode.sources import StoredFile, open_parquet

    observer.stage(Stage("looking for the data of the earlier run"))
    try:
        if engine.elsewhere is not None:
            raise InputError(
                f"this machine verifies the data, and the workers of {engine.elsewhere} are for more "
                "than it may read; name that data with --baseline-data"
            )
        if document.check is not None or document.revision:
            raise InputError("a person chose its slices")
        options = {name: getattr(config, name) for name in config.model_fields_set}
        options |= {"since": None, "baseline_data": document.dataset.uri}
        against = validated(type(config), options)
        statistic_space(config.metric, "earlier", weighted=config.weight is not None)
        files, today = expand_paths(document.dataset.uri, "its data"), expand_paths(config.data)
        if in_both(files, today):
            raise InputError("this run reads the same files")
        then, now = (
            {*first_columns(paths[0], config.format, config.csv_layout)} for paths in (files, today)
        )
        if then != now:
            raise InputError(f"only one data set has {', '.join(map(repr, sorted(then ^ now)))}")
        if format_of(config, [*today, *files]) == "parquet":
            # Refuses columns of which one type cannot hold both.
            open_parquet([StoredFile(path, path) for path in (*today, *files)])
        confirmed = Confirmed(config.model, metric=config.metric)
        again = fingerprint_again(str(config.since), document, files, confirmed)
        if again != document.dataset.fingerprint:
            raise InputError(
                f"{' '.join(document.dataset.uri)} has other examples or predictions now"
            )
    except SlicebeamError as error:
        if document.provenance.config.get("baseline_data"):
            raise OptionError(
                f"--since {config.since}: that run compared its data with earlier data, so only its data "
                f"can be compared, not its slices: {error}; name the data with --baseline-data"
            ) from error
        observer.note(
            f"--since {config.since}: its slices are compared as published, without its data: {error}"
        )
        return None
    observer.note(
        f"--since {config.since}: its data is still there, so each slice is compared on both data sets"
    )
    return against
