"""Whether the data is what a document is about: its fingerprint is made again, and kept."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import SlicebeamError
from slicebeam.pipelines.define.fingerprints import fingerprint_again
from slicebeam.transforms.storage.files import expand_paths
from slicebeam.transforms.storage.storage import identity, storage_path, written_whole

if TYPE_CHECKING:
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.page.served import ServedOutput

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


def _short(fingerprint: str) -> str:
    return fingerprint.partition(":")[2][:12]
