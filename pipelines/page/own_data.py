"""How an update behaves on a user's own examples: a file is brought or named, and checked."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.routing import Route

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.changelist.reading import CHANGELIST, read_search
from slicebeam.pipelines.page.answers import PageRequest, RefusedError, get, post
from slicebeam.pipelines.page.overview import since_slice
from slicebeam.runner_configs.guarded_process import GuardedProcess, python_module
from slicebeam.transforms.storage.files import expand_paths, file_format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from slicebeam.pipelines.page.served import ServedOutput

# Bytes of the end of the log in which errors are looked for.
_END = 1 << 16


class OwnCheck:
    """Runs ``slicebeam check`` on a file with ``--since``; it ends with this process, and by `cancel`."""

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
        "slices": [since_slice(slice_) for slice_ in since.slices],
        "more": max(0, len(document.slices) * len(document.metrics) - len(since.slices)),
    }


_FOLDER, _LONGEST_NAME = "own", 200
# Bytes that stay free on the disk whatever is brought.
_FREE = 256 << 20
_ENDINGS = {"parquet": ".parquet", "csv": ".csv", "jsonl": ".jsonl", "tfrecord": ".tfrecord"}


class _Start(PageRequest):
    """The file to check: that which was brought last, or one of the command line, from 0."""

    file: Annotated[int | None, Field(ge=0)] = None


@dataclass
class OwnData:
    """The one check that may run at a time, and the one file that was brought."""

    served: ServedOutput
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _check: OwnCheck | None = None
    # Path and name of the file that was brought.
    _brought: tuple[Path, str] | None = None
    _is_receiving: bool = False

    @property
    def _folder(self) -> Path:
        return self.served.state / _FOLDER

    def begin_upload(self, name: str) -> tuple[Path, BinaryIO]:
        """Return a new file for what a browser sends, and its stream."""
        shown = _shown_name(name)
        try:
            ending = _ENDINGS[file_format(shown)]
        except InputError as error:
            raise RefusedError(
                f"{shown}: a name that ends in {', '.join(_ENDINGS.values())} tells the format", 415
            ) from error
        if shown.lower().endswith(".gz"):
            ending += ".gz"
        with self._lock:
            if self._is_receiving:
                raise RefusedError("another file is being sent; wait for its end", 409)
            self._refuse_running()
            self._is_receiving, self._brought = True, None
        try:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(mode=0o700, parents=True)
            path = self._folder / f"data{ending}"
            return path, os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        except OSError as error:
            self._is_receiving = False
            raise RefusedError(f"{self._folder} can't be written: {error.strerror}", 507) from error

    def end_upload(self, path: Path, name: str, *, is_whole: bool) -> None:
        """Keep a file that was sent, or remove what came of it."""
        with self._lock:
            self._is_receiving = False
            if is_whole:
                self._brought = path, _shown_name(name)
            else:
                path.unlink(missing_ok=True)

    async def receive(self, request: Request) -> Response:
        """Answer a request that brings a file, which goes to the disk as it comes."""
        name = request.query_params.get("name", "")
        path, stream = await run_in_threadpool(self.begin_upload, name)
        size, is_whole = 0, False
        try:
            with stream:
                async for part in request.stream():
                    size += len(part)
                    await run_in_threadpool(_write, stream, part)
            is_whole = size > 0
        finally:
            self.end_upload(path, name, is_whole=is_whole)
        if not is_whole:
            raise RefusedError(f"{_shown_name(name)} is empty; choose another file")
        return JSONResponse({"file": _shown_name(name), "bytes": size})

    def start(self, request: _Start) -> dict[str, Any]:
        """Start the check of a file."""
        config, earlier = self.served.config, self.served.search().provenance.config
        confirmed = [
            f"--{name.replace('_', '-')}={value}"
            for name in ("model", "baseline_model", "encoder")
            # A model of the playground that the document does not name has no part in the check.
            if (value := getattr(config, name)) is not None and earlier.get(name) == value
        ]
        metrics = earlier.get("metric", ())
        # As flags, metrics are separated by commas: those with one are not named for the user.
        if config.metric and not any("," in name or '"' in name for name in metrics):
            confirmed += [f"--metric={name}" for name in metrics if name in config.metric]
        confirmed += ["--allow-http"] if config.allow_http else []
        with self._lock:
            self._refuse_running()
            if self._is_receiving:
                raise RefusedError("the file is still being sent", 409)
            data, shown = self._named(request.file)
            folder = self.served.state / f"{_FOLDER}-check"
            self._check = OwnCheck(self.served.latest().uri, data, shown, confirmed, folder)
        return self.status()

    def status(self) -> dict[str, Any]:
        """Return how far the check is, or what it found, and which files may be named."""
        check, brought = self._check, self._brought
        state = {"state": "none"} if check is None else check.status()
        return {**state, "files": self._files(), "brought": None if brought is None else brought[1]}

    def cancel(self, _: PageRequest) -> dict[str, Any]:
        """End the check that runs."""
        check = self._check
        if check is not None:
            check.cancel()
        return self.status()

    def _refuse_running(self) -> None:
        if self._check is not None and self._check.is_running:
            raise RefusedError("a check runs; cancel it first, or wait for its end", 409)

    def _files(self) -> list[str]:
        """Return the files of the command line, which alone may be named."""
        return expand_paths(self.served.config.data) if self.served.config.data else []

    def _named(self, number: int | None) -> tuple[str, str]:
        if number is None:
            if self._brought is None:
                raise RefusedError("choose a file first")
            return str(self._brought[0]), self._brought[1]
        files = self._files()
        if number >= len(files):
            raise RefusedError(f"{len(files)} files were named by --data, from 0", 404)
        return files[number], files[number]


def _shown_name(name: str) -> str:
    """Return the name of a file as a page may show it."""
    shown = "".join(one for one in name if one.isprintable()).strip()
    return shown[-_LONGEST_NAME:] or "a file without a name"


def _write(stream: BinaryIO, part: bytes) -> None:
    try:
        if shutil.disk_usage(stream.fileno()).free < _FREE + len(part):
            raise RefusedError(f"the disk has less than {_FREE >> 20} MB left", 507)
        stream.write(part)
    except OSError as error:
        raise RefusedError(f"the file can't be kept: {error.strerror}", 507) from error


def routes(served: ServedOutput) -> list[Route]:
    """Return the routes of own data."""
    own = OwnData(served)
    # What an earlier server was sent is nobody's any more.
    for left in (_FOLDER, f"{_FOLDER}-check"):
        with suppress(OSError):
            shutil.rmtree(served.state / left)
    return [
        Route("/upload/own", own.receive, methods=["POST"]),
        get("/own", own.status),
        post("/own/start", _Start, own.start),
        post("/own/cancel", PageRequest, own.cancel),
    ]
