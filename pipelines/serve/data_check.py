"""Whether the data is what a document is about: its fingerprint is made again, and kept."""

from __future__ import annotations

import json
import tempfile
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import SlicebeamError
from slicebeam.pipelines.config.confirmation import refuse_unconfirmed
from slicebeam.transforms.storage.files import expand_paths
from slicebeam.transforms.storage.storage import identity, storage_path, written_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.config.confirmation import Confirmed
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.serve.served import ServedOutput

# Computed after the encoding, or not at all.
_MEASURED = frozenset({"since", "tfma_metric", "tfma_module"})
_KEPT = "fingerprints.json"


@dataclass(frozen=True)
class DataCheck:
    """What is known of the data."""

    is_same: bool | None
    said: str


@dataclass
class DataChecker:
    """Makes the fingerprint of the data once for each state of its files."""

    served: ServedOutput
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self, document: SearchChangeList) -> DataCheck:
        """Return whether the data is what a document is about; the first time reads all of it."""
        expected = document.dataset.fingerprint
        if document.discovery is not None:
            return DataCheck(
                None,
                "The fingerprint of a discovery's data needs all embeddings, and is not made again: "
                "the numbers of examples are compared.",
            )
        with self._lock:
            try:
                found = self._fingerprint(document)
            except SlicebeamError as error:
                return DataCheck(None, f"The fingerprint of the data can't be made again: {error}")
        if found == expected:
            return DataCheck(True, "The data has the fingerprint that the document has.")
        return DataCheck(
            False,
            f"The data is not what the document is about: its fingerprint is {_short(found)}, and that "
            f"of the document {_short(expected)}. Name the data by --data.",
        )

    def _fingerprint(self, document: SearchChangeList) -> str:
        files = expand_paths(self.served.data)
        states = [identity(storage_path(path, "--data")) for path in files]
        key = json.dumps([document.changelist_id, files, states])
        kept = self._kept()
        if kept.get("of") == key:
            return str(kept["fingerprint"])
        served = self.served
        found = fingerprint_again(served.uri, document, files, served.config.confirmed)
        with written_whole(self.served.state / _KEPT) as stream:
            stream.write(json.dumps({"of": key, "fingerprint": found}).encode())
        return found

    def _kept(self) -> dict[str, Any]:
        try:
            found = json.loads((self.served.state / _KEPT).read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


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
        from slicebeam.pipelines.check.check import prepare_check
        from slicebeam.pipelines.config.check import check_config

        return prepare_check, check_config(options)
    from slicebeam.pipelines.config.search import search_config
    from slicebeam.pipelines.prepare.preparation import prepare

    return prepare, search_config(options)


def _short(fingerprint: str) -> str:
    return fingerprint.partition(":")[2][:12]
