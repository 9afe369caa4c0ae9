"""The ledger of paid calls: what was sent and what was answered, so that nothing is paid twice.

A folder, on disk or in a bucket, of append-only segments of JSON lines, one segment per run. A request
leaves only after its ``sent`` record is durable, and an answer counts only after its ``answered`` record is.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import re
import zlib
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timezone
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError, InputError, OptionError
from slicebeam.pipelines.paid_api.calls import Answer
from slicebeam.pipelines.run.lock_files import lock_of
from slicebeam.transforms.storage.object_stores import VersionConflictError
from slicebeam.transforms.storage.storage import (
    ObjectPath,
    StoragePath,
    make_folder,
    storage_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from slicebeam.pipelines.run.lock_files import RunLock

_VERSION = 1
# Characters of a body that are kept: what a user needs to see why there is no answer.
_KEPT = 2000
_READ_TOGETHER = 16
# Number of the segment, and in object storage of the group of records.
_SEGMENT = re.compile(r"segment-(\d{6})(?:-(\d{8}))?\.jsonl")
_CRC = b',"crc":'
# Made once: an encoder costs more than a record.
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Ledger:
    """What was sent to a paid API and what it answered; a context manager, made by `open`.

    ``count_lost``: whether calls without an outcome count as paid. ``answers``: the first answer of
    each key, in the order in which they were recorded. ``bodies``: of answers without a class,
    which another ``answer`` path may read.
    """

    def __init__(
        self,
        folder: StoragePath,
        identity: Mapping[str, str],
        *,
        count_lost: bool,
        redact: Callable[[str], str],
        lock: RunLock,
    ) -> None:
        self.folder, self.count_lost = folder, count_lost
        self._identity, self._redact, self._lock = dict(identity), redact, lock
        self._answers: dict[str, Answer] = {}
        self._bodies: dict[str, str] = {}
        # Calls whose outcome may still come, and those whose outcome never came, by key.
        self._flying: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self.answers, self.bodies = MappingProxyType(self._answers), MappingProxyType(self._bodies)
        self._waiting: deque[dict[str, Any]] = deque()
        self._failure = ""
        # What begins a new segment, once.
        self._head = b""
        self._segment: _FileSegment | _ObjectSegment
        self._is_scheduled = False
        self._next_write: asyncio.Future[None]
        # Its one thread writes all waiting records together: a thousand records cost one write.
        self._writer: ThreadPoolExecutor | None = None

    @classmethod
    def open(
        cls,
        folder: StoragePath,
        identity: Mapping[str, str],
        *,
        count_lost: bool = False,
        redact: Callable[[str], str] = str,
    ) -> Ledger:
        """Return the ledger of a folder, which is made where it is not there; it belongs to one identity.

        ``count_lost`` says whether a call with an unknown outcome counts as paid; ``redact`` removes secrets
        from a text.
        """
        if folder.is_file():
            raise OptionError(f"--ledger {folder} is a file; name a folder")
        with storage_errors(folder, "make"):
            make_folder(folder)
        lock = lock_of(folder)
        try:
            lock.acquire()
        except EngineError as error:
            raise _as_ledger_error(error) from error
        try:
            ledger = cls(folder, identity, count_lost=count_lost, redact=redact, lock=lock)
            number, after = ledger._read()
            head = {"kind": "ledger", "version": _VERSION, "identity": ledger._identity}
            ledger._head = _line({**head, "created_at": _now(), "after": after})
            ledger._segment = (
                _ObjectSegment(folder, number)
                if isinstance(folder, ObjectPath)
                else _FileSegment(folder, number)
            )
            ledger._writer = ThreadPoolExecutor(1)
            # Its thread starts now, and not between the first record and those that come with it.
            ledger._writer.submit(ledger._write_waiting)
        except BaseException:
            lock.release()
            raise
        return ledger

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except EngineError:
            # The error that ends the run says more than that its lock could not be removed either.
            if error is None:
                raise

    def close(self) -> None:
        """Wait for pending writes, and release the folder."""
        if self._writer is None:
            return
        if not self._failure:
            self._writer.submit(self._write_waiting)
        self._writer.shutdown()
        self._writer = None
        self._segment.close()
        self._lock.release()

    @property
    def lost(self) -> Mapping[str, int]:
        """How often each key was sent without an outcome, of those that have no answer."""
        return {key: times for key, times in self._lost.items() if key not in self._answers}

    @property
    def calls(self) -> int:
        """Calls that count: the answers, and where they count the lost ones."""
        return len(self._answers) + (self._lost.total() if self.count_lost else 0)

    @property
    def unaccounted(self) -> int:
        """Calls without an outcome that do not count, though they may have been charged."""
        return 0 if self.count_lost else self._lost.total()

    def idempotency_key(self, key: str) -> str:
        """Return the idempotency key of an item's call, the same in every run."""
        text = json.dumps([self._identity, key], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def reread(self, extract: Callable[[str], tuple[Any, str | None]]) -> int:
        """Read the kept bodies by the file's present rules; return how many give another answer."""
        mended = 0
        for key, body in self._bodies.items():
            value, problem = extract(body)
            answer = Answer(key, self._clean(value), None)
            if problem is None and answer != self._answers[key]:
                self._answers[key] = answer
                mended += 1
        return mended

    async def sent(self, key: str) -> None:
        """Record that a request is about to leave."""
        await self._record(self._sent(key))

    async def answered(self, answer: Answer, body: str = "", *, mendable: bool = True) -> None:
        """Record the answer to a call, and the beginning of a body without a class.

        ``mendable``: another ``answer`` path may find an answer in the body.
        """
        await self._record(self._answered(answer, body, mendable=mendable))

    async def failed(self, key: str, reason: str) -> None:
        """Record that a call that was sent certainly cost nothing."""
        reason = self._redact(reason)[:_KEPT]
        await self._record({"kind": "failed", "key": key, "at": _now(), "reason": reason})

    def lose(self, key: str) -> None:
        """Mark a sent call as lost: its outcome will never come."""
        if self._flying[key] > 0:
            self._flying[key] -= 1
            self._lost[key] += 1

    def sent_all(self, keys: Sequence[str]) -> None:
        """Record that requests are about to leave, all at once."""
        self._record_all([self._sent(key) for key in keys])

    def answered_all(self, answers: Sequence[Answer]) -> None:
        """Record answers, all at once."""
        self._record_all([self._answered(answer, "", mendable=True) for answer in answers])

    def _sent(self, key: str) -> dict[str, Any]:
        if key in self._answers:
            raise ValueError(f"item {key!r} already has an answer and is not paid twice")
        return {"kind": "sent", "key": key, "at": _now()}

    def _answered(self, answer: Answer, body: str, *, mendable: bool) -> dict[str, Any]:
        record: dict[str, Any] = {"kind": "answered", "key": answer.key, "at": _now()}
        if answer.problem is None:
            record["value"] = self._clean(answer.value)
        else:
            record["problem"] = self._redact(answer.problem)[:_KEPT]
        if body:
            record["body" if mendable else "refusal"] = self._redact(body)[:_KEPT]
        return record

    def _clean(self, value: Any) -> Any:
        return self._redact(value) if isinstance(value, str) else value

    async def _record(self, record: dict[str, Any]) -> None:
        writer = self._open_writer()
        self._waiting.append(record)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._next_write = asyncio.wrap_future(writer.submit(self._write_waiting))
        # Others wait for the same write, which must not end where one of them is cancelled.
        await asyncio.shield(self._next_write)

    def _record_all(self, records: list[dict[str, Any]]) -> None:
        writer = self._open_writer()
        self._waiting += records
        if records:
            writer.submit(self._write_waiting).result()

    def _open_writer(self) -> ThreadPoolExecutor:
        if self._writer is None:
            raise EngineError(f"the ledger {self.folder} is closed")
        return self._writer

    def _write_waiting(self) -> None:
        """Write all waiting records; those of an earlier call may have been among them."""
        # Who adds a record from now on schedules another write, whether or not this one takes it.
        self._is_scheduled = False
        if self._failure:
            # After a write that failed nothing is written: the file may end in half a line.
            raise EngineError(self._failure)
        records = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not records:
            return
        try:
            self._lock.check()
            self._segment.write(self._head + b"".join(map(_line, records)))
        except EngineError as error:
            self._failure = str(_as_ledger_error(error))
            raise EngineError(self._failure) from error
        except Exception as error:
            self._failure = f"the ledger can't be written: {type(error).__name__}: {error}"
            raise EngineError(self._failure) from error
        self._head = b""
        for record in records:
            self._apply(record)

    def _apply(self, record: Mapping[str, Any]) -> None:
        kind, key = record["kind"], record["key"]
        if kind == "sent":
            self._flying[key] += 1
        elif self._flying[key] > 0:
            self._flying[key] -= 1
        if kind == "answered" and key not in self._answers:
            self._answers[key] = Answer(key, record.get("value"), record.get("problem"))
            if "body" in record:
                self._bodies[key] = record["body"]

    def _read(self) -> tuple[int, str]:
        """Read all segments; return the number of the next one and the name of the last file."""
        with storage_errors(self.folder, "read"):
            found = sorted(
                (int(name[1]), int(name[2] or 0), path)
                for path in self.folder.iterdir()
                if (name := _SEGMENT.fullmatch(path.name))
            )
            with ThreadPoolExecutor(_READ_TOGETHER) as threads:
                texts = list(threads.map(lambda file: file[2].read_bytes(), found))
        segment, group, last = 0, 0, ""
        for (number, part, path), text in zip(found, texts, strict=True):
            if (number, part) not in ((segment, group + 1), (segment + 1, min(part, 1))):
                raise self._missing(path)
            self._read_file(path, text, last if part <= 1 else None)
            segment, group, last = number, part, path.name
        self._lose_flying()
        return segment + 1, last

    def _read_file(self, path: StoragePath, text: bytes, after: str | None) -> None:
        """Read a file; ``after`` names the file before it, where it begins a segment."""
        # A line without its end was not yet durable, and nothing followed from it.
        for number, line in enumerate(text.split(b"\n")[:-1], 1):
            body, mark, crc = line.rpartition(_CRC)
            if not mark or crc != b"%d}" % zlib.crc32(body):
                raise EngineError(
                    f"{path}, line {number} is damaged: its content has changed; restore the "
                    "file, or choose another --ledger"
                )
            record = json.loads(body + b"}")
            if number == 1 and after is not None:
                self._check_head(path, record)
                if record["after"] != after:
                    raise self._missing(path)
                # What was sent by runs that have ended has no outcome any more.
                self._lose_flying()
            elif record["kind"] != "ledger":
                self._apply(record)

    def _lose_flying(self) -> None:
        self._lost += self._flying
        self._flying.clear()

    def _missing(self, path: StoragePath) -> EngineError:
        return EngineError(
            f"{self.folder}: what was written before {path.name} is missing; restore it, because "
            "it records what was paid, or choose another --ledger"
        )

    def _check_head(self, path: StoragePath, record: Mapping[str, Any]) -> None:
        if record["kind"] != "ledger" or record.get("version") != _VERSION:
            raise InputError(
                f"{path} was written by another version; choose another --ledger folder"
            )
        before = record["identity"]
        for name in {**self._identity, **before}:
            if self._identity.get(name) != before.get(name):
                raise InputError(
                    f"the answers in {self.folder} belong to other requests: "
                    f"{_difference(name, self._identity.get(name), before.get(name))}; choose "
                    "another --ledger folder"
                )


class _FileSegment:
    """A file that only grows; it is made when there is something to write."""

    def __init__(self, folder: Path, number: int) -> None:
        self.path = folder / f"segment-{number:06d}.jsonl"
        self._file: int | None = None

    def write(self, data: bytes) -> None:
        with storage_errors(self.path, "write"):
            if self._file is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
                self._file = os.open(self.path, flags, 0o666)
                folder = os.open(self.path.parent, os.O_RDONLY)
                # Some file systems can't sync a folder, and keep names anyway.
                with suppress(OSError):
                    os.fsync(folder)
                os.close(folder)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)


class _ObjectSegment:
    """One object for each group of records, because objects do not grow."""

    def __init__(self, folder: ObjectPath, number: int) -> None:
        self._folder, self._number, self._written = folder, number, 0

    def write(self, data: bytes) -> None:
        path = self._folder / f"segment-{self._number:06d}-{self._written + 1:08d}.jsonl"
        try:
            path.store.write(path.bucket, path.key, io.BytesIO(data), is_new=True)
        except VersionConflictError as error:
            # It may be what a lost answer to this very request wrote.
            if path.read_bytes() != data:
                raise EngineError(
                    f"another run also writes to {self._folder}; wait for it, or choose another "
                    "--ledger"
                ) from error
        self._written += 1

    def close(self) -> None:
        pass


def _line(record: Mapping[str, Any]) -> bytes:
    """Return a record as a line of JSON that ends with the CRC-32 of what is before it."""
    text = _ENCODE(record).encode()[:-1]
    return b"%s%s%d}\n" % (text, _CRC, zlib.crc32(text))


def _as_ledger_error(error: EngineError) -> EngineError:
    """Return an error of the lock or of storage with the ledger's own option in it."""
    text = str(error).replace("another --output or --work-dir", "another --ledger")
    text = text.replace("run again without --resume", "choose another --ledger")
    return EngineError(text.replace("--work-dir", "--ledger"))


def _difference(name: str, now: str | None, before: str | None) -> str:
    """Return how the requests differ from those that were paid before."""
    if name == "api":
        return "url, method, params, json or headers were different"
    if name in ("data", "example_id") and (now is None or before is None):
        with_ids = (before is not None) == (name == "example_id")
        return f"they were requested {'with' if with_ids else 'without'} --example-id"
    return f"{name} is {now or 'missing'} but was {before or 'missing'}"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
