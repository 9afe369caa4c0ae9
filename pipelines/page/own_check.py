"""A check of a user's own data by a document, in a process of its own."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.changelist.reading import CHANGELIST, read_search
from slicebeam.pipelines.page.overview import since_slice
from slicebeam.runner_configs.guarded_process import GuardedProcess, python_module

if TYPE_CHECKING:
    from collections.abc import Sequence

# Bytes of the end of the log in which errors are looked for.
_END = 1 << 16


class OwnCheck:
    """Runs ``slicebeam check`` on a file, compared with the document by ``--since``.

    It ends with this process, and by `cancel`.
    """

    def __init__(
        self, uri: str, data: str, shown: str, confirmed: Sequence[str], folder: Path
    ) -> None:
        self.shown, self.is_cancelled = shown, False
        self._output, self._log = folder / "out", folder / "log.jsonl"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        command = [*python_module("slicebeam.pipelines.commands.cli"), "check"]
        command += [f"--changelist={uri}", f"--since={uri}", f"--data={data}", *confirmed]
        command += [f"--output={self._output}", "--log-format=json"]
        own = Path(tempfile.mkdtemp(prefix="slicebeam-"))
        self._process = GuardedProcess(command, self._log, own, {"TMPDIR": str(own)})

    @property
    def is_running(self) -> bool:
        """Whether it goes on."""
        return not self._process.has_ended

    def cancel(self) -> None:
        """End it, and wait until it is gone."""
        if self.is_running:
            self.is_cancelled = True
        self._process.stop()

    def status(self) -> dict[str, Any]:
        """Return what the page shows: how far it is, what it found, or why it found nothing."""
        if self.is_running:
            return {"state": "running", "file": self.shown, **self._progress()}
        path = self._output / CHANGELIST
        if self.is_cancelled:
            return {"state": "cancelled", "file": self.shown}
        if not path.is_file():
            return {"state": "failed", "file": self.shown, "error": self._error()}
        return {"state": "done", "file": self.shown, **compared(str(path))}

    def _events(self) -> list[dict[str, Any]]:
        """Return the last events of the log; what else is printed there is none."""
        with suppress(OSError), self._log.open("rb") as stream:
            stream.seek(max(0, self._log.stat().st_size - _END))
            found = []
            for line in stream.read().splitlines():
                with suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict) and "event" in event:
                        found.append(event)
            return found
        return []

    def _progress(self) -> dict[str, Any]:
        for event in reversed(self._events()):
            if event["event"] in ("stage", "progress"):
                names = ("text", "done", "total", "unit")
                return {name: event[name] for name in names if event.get(name) is not None}
        return {"text": "starting"}

    def _error(self) -> str:
        for event in reversed(self._events()):
            if event["event"] == "error":
                return str(event["message"])
        return f"the check ended without a result; its log is {self._log}"


def compared(uri: str) -> dict[str, Any]:
    """Return the numbers of a check beside those of the document that it was compared with."""
    document = read_search(uri, "own data")
    since = document.since
    if since is None:
        raise TypeError("a check that was compared with nothing")
    return {
        "n": document.dataset.n,
        "summary": since.summary,
        "corrected_for": since.corrected_for,
        "warnings": [*document.dataset.drift, *since.warnings],
        "overall": [one.model_dump(mode="json", exclude_none=True) for one in since.overall],
        "slices": [since_slice(one) for one in since.slices],
        "more": max(0, len(document.slices) * len(document.metrics) - len(since.slices)),
    }
