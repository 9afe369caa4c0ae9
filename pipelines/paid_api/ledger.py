"""The ledger of paid calls: what was sent and what was answered, so that nothing is paid twice.

A folder of segments, one for each run that made calls, of lines of JSON. A record is durable before
its call continues: a request leaves only after it is recorded as sent, and an answer counts only
after it is recorded. Nothing is ever rewritten.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError, InputError, OptionError
from slicebeam.pipelines.paid_api.calls import Answer
from slicebeam.pipelines.paid_api.ledger_segments import SEGMENT, line_of, new_segment, record_of
from slicebeam.pipelines.paid_api.ledger_writer import Entry, LedgerWriter, of_ledger
from slicebeam.pipelines.run.lock_files import lock_file
from slicebeam.pipelines.run.run_lock import RunLock
from slicebeam.transforms.storage.storage import StoragePath, make_folder, storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Self

_VERSION = 1
# Characters of a body that are kept: what a user needs to see why there is no answer.
_KEPT = 2000
_READ_TOGETHER = 16


@dataclass
class _LedgerState:
    """What the records say.

    Attributes
    ----------
    answers : the first answer of each key, in the order of the records
    bodies : of answers without a class, which another ``answer`` path may read
    flying : calls whose outcome may still come, by key
    lost : calls whose outcome never came, by key
    """

    answers: dict[str, Answer] = field(default_factory=dict)
    bodies: dict[str, str] = field(default_factory=dict)
    flying: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)

    def add(self, record: Mapping[str, Any]) -> None:
        kind, key = record["kind"], record["key"]
        if kind == "sent":
            self.flying[key] += 1
            return
        self._land(key)
        if kind == "answered" and key not in self.answers:
            self.answers[key] = Answer(key, record.get("value"), record.get("problem"))
            if "body" in record:
                self.bodies[key] = record["body"]

    def _land(self, key: str) -> None:
        self.flying[key] -= 1
        if self.flying[key] <= 0:
            del self.flying[key]

    def lose(self, key: str) -> None:
        if self.flying[key] > 0:
            self._land(key)
            self.lost[key] += 1

    def lose_all(self) -> None:
        self.lost.update(self.flying)
        self.flying.clear()


class Ledger:
    """What was sent to a paid API and what it answered; made by `open`.

    A context, which at its end waits for what is being written and lets others have the folder.

    Attributes
    ----------
    count_lost : whether calls without an outcome count as paid
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
        self._state = _LedgerState()
        self._writer: LedgerWriter | None = None

    @classmethod
    def open(
        cls,
        folder: StoragePath,
        identity: Mapping[str, str],
        *,
        count_lost: bool = False,
        redact: Callable[[str], str] = str,
    ) -> Ledger:
        """Return the ledger of a folder, which is made where it is not there.

        Parameters
        ----------
        identity : what its answers are answers to: the API, the data
        count_lost : whether a call with an unknown outcome counts as paid
        redact : removes secrets from a text

        Raises
        ------
        InputError
            It is the ledger of something else, or no folder.
        EngineError
            Another run has it, it is damaged, or storage fails.
        """
        if folder.is_file():
            raise OptionError(f"--ledger {folder} is a file; name a folder")
        with storage_errors(folder, "make"):
            make_folder(folder)
        lock = RunLock(folder, lock_file(folder))
        try:
            lock.acquire()
        except EngineError as error:
            raise of_ledger(error) from error
        try:
            ledger = cls(folder, identity, count_lost=count_lost, redact=redact, lock=lock)
            number, after = ledger._read()
            kept = {"kind": "ledger", "version": _VERSION, "identity": ledger._identity}
            head = line_of({**kept, "created_at": _now(), "after": after})
            ledger._writer = LedgerWriter(new_segment(folder, number), head, lock)
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
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._lock.release()

    @property
    def answers(self) -> Mapping[str, Answer]:
        """The answers by key, in the order in which they were noted."""
        return MappingProxyType(self._state.answers)

    @property
    def lost(self) -> Mapping[str, int]:
        """How often each key was sent without an outcome, of those that have no answer."""
        state = self._state
        return {key: times for key, times in state.lost.items() if key not in state.answers}

    @property
    def calls(self) -> int:
        """Calls that count: the answers, and where they count the lost ones."""
        lost = sum(self._state.lost.values()) if self.count_lost else 0
        return len(self._state.answers) + lost

    @property
    def unaccounted(self) -> int:
        """Calls without an outcome that do not count, though they may have been charged."""
        return 0 if self.count_lost else sum(self._state.lost.values())

    @property
    def bodies(self) -> Mapping[str, str]:
        """What is kept of the bodies of answers without a class, by key."""
        return MappingProxyType(self._state.bodies)

    def idempotency_key(self, key: str) -> str:
        """Return the idempotency key of an item's call, the same in every run."""
        text = json.dumps([self._identity, key], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def reread(self, extract: Callable[[str], tuple[Any, str | None]]) -> int:
        """Read the kept bodies again, and return how many of them now give another answer.

        Nothing is written: the next run reads them again, by what its file says then.

        Parameters
        ----------
        extract : returns the answer in a body and None, or None and what is wrong
        """
        mended = 0
        for key, body in self._state.bodies.items():
            value, problem = extract(body)
            mine = Answer(key, self._clean(value), None)
            if problem is None and mine != self._state.answers[key]:
                self._state.answers[key] = mine
                mended += 1
        return mended

    async def sent(self, key: str) -> None:
        """Note that a request is about to leave."""
        await self._settled([self._sent(key)])

    async def answered(self, answer: Answer, body: str = "", *, mendable: bool = True) -> None:
        """Note the answer to a call.

        Parameters
        ----------
        body : of an answer without a class, to be kept as far as there is room
        mendable : whether another ``answer`` path may find an answer in the body
        """
        await self._settled([self._answered(answer, body, mendable=mendable)])

    async def failed(self, key: str, reason: str) -> None:
        """Note that a call that was sent certainly cost nothing."""
        reason = self._redact(reason)[:_KEPT]
        await self._settled([{"kind": "failed", "key": key, "at": _now(), "reason": reason}])

    def lose(self, key: str) -> None:
        """Take it that the outcome of a call that was sent will never come."""
        self._state.lose(key)

    def sent_all(self, keys: Sequence[str]) -> None:
        """Note that requests are about to leave, all at once."""
        self._settle([self._sent(key) for key in keys])

    def answered_all(self, answers: Sequence[Answer]) -> None:
        """Note answers, all at once."""
        self._settle([self._answered(answer, "", mendable=True) for answer in answers])

    def _sent(self, key: str) -> dict[str, Any]:
        if key in self._state.answers:
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

    async def _settled(self, records: list[dict[str, Any]]) -> None:
        future = asyncio.get_running_loop().create_future()
        self._begin(records, future)
        await future

    def _settle(self, records: list[dict[str, Any]]) -> None:
        if records:
            future: Future[None] = Future()
            self._begin(records, future)
            future.result()

    def _begin(
        self, records: list[dict[str, Any]], future: asyncio.Future[None] | Future[None]
    ) -> None:
        def apply() -> None:
            for record in records:
                self._state.add(record)

        if self._writer is None:
            raise EngineError(f"the ledger {self.folder} is closed")
        self._writer.put(Entry([line_of(record) for record in records], apply, future))

    def _read(self) -> tuple[int, str]:
        """Read all segments, and return the number of the next one and the name of the last."""
        with storage_errors(self.folder, "read"):
            found = sorted(
                (int(name[1]), int(name[2] or 0), path)
                for path in self.folder.iterdir()
                if (name := SEGMENT.fullmatch(path.name))
            )
            with ThreadPoolExecutor(_READ_TOGETHER) as threads:
                texts = list(threads.map(lambda one: one[2].read_bytes(), found))
        before, last = (0, 0), ""
        for (segment, group, path), text in zip(found, texts, strict=True):
            if (segment, group) not in ((before[0], before[1] + 1), (before[0] + 1, min(group, 1))):
                raise self._missing(path)
            self._read_segment(path, text, last if group <= 1 else None)
            before, last = (segment, group), path.name
        self._state.lose_all()
        return before[0] + 1, last

    def _missing(self, path: StoragePath) -> EngineError:
        return EngineError(
            f"{self.folder}: what was written before {path.name} is missing; restore it, because "
            "it records what was paid, or choose another --ledger"
        )

    def _read_segment(self, path: StoragePath, text: bytes, after: str | None) -> None:
        """Read a file of a segment; for its first one, ``after`` names the records before it."""
        lines = text.split(b"\n")
        # A line that was not written to its end was not yet durable, and nothing followed from it.
        for number, line in enumerate(lines[:-1], 1):
            record = record_of(line)
            if record is None:
                raise EngineError(
                    f"{path}, line {number} is damaged: its content has changed; restore the "
                    "file, or choose another --ledger"
                )
            if number == 1 and after is not None:
                self._check_identity(path, record)
                if record["after"] != after:
                    raise self._missing(path)
                # What was sent by runs that have ended has no outcome any more.
                self._state.lose_all()
            elif record["kind"] != "ledger":
                self._state.add(record)

    def _check_identity(self, path: StoragePath, record: Mapping[str, Any]) -> None:
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
