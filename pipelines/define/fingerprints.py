"""The fingerprint of a document's data, made again from the data that is there now."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.config.confirmation import refuse_unconfirmed
from slicebeam.transforms.storage.files import expand_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.config.confirmation import Confirmed
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset

# Computed after the encoding, or not at all.
_MEASURED = frozenset({"since", "tfma_metric", "tfma_module"})


def check_same_data(
    uri: str, document: SearchChangeList, files: Sequence[str], confirmed: Confirmed
) -> None:
    """Refuse data with another fingerprint than a document; of a discovery, it is not made again."""
    if document.discovery is not None:
        return
    made = fingerprint_again(uri, document, expand_paths(files), confirmed)
    if made != document.dataset.fingerprint:
        raise InputError(
            f"--data {', '.join(files)} is not the data that {uri} is about: its fingerprint is "
            f"{short(made)}, and that of the document {short(document.dataset.fingerprint)}; name "
            "the data of the document, or add --other-data if you mean to count on this"
        )


def short(fingerprint: str) -> str:
    """Return what people compare of a fingerprint."""
    return fingerprint.partition(":")[2][:12]


def fingerprint_again(
    uri: str, document: SearchChangeList, files: Sequence[str], confirmed: Confirmed
) -> str:
    """Encode data as the run of a document did, and return its fingerprint."""
    from slicebeam.pipelines.run.engine import start_engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.pipelines.search.building import fingerprint_of

    # It is encoded on this machine, whatever engine the run had.
    engine_here = {"runner_config": "direct", "runner_option": ()}
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
        prepare, config = _step(document.provenance.command, options)
        work = WorkFolder(Path(folder) / "work")
        work.begin(config, files, resume=False)
        with work:
            prepared: EncodedDataset = prepare(config, files, work, engine, lambda _: None)
            return fingerprint_of(prepared)


def _step(command: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return what encodes the data of a command, and its configuration."""
    if command == "check":
        from slicebeam.pipelines.config.check import check_config
        from slicebeam.pipelines.search.check import prepare_check

        return prepare_check, check_config(options)
    from slicebeam.pipelines.config.search import search_config
    from slicebeam.pipelines.prepare.encoded_dataset import prepare

    return prepare, search_config(options)
