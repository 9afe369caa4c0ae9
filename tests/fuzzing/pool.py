"""Worker processes for cases: one that hangs is ended, and one that dies is a verdict."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import os
import resource
import shutil
import tempfile
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fuzzing.case import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

HANG_SECONDS = 60.0
# Address space beyond what the imports take: a few bytes that ask for more must be refused.
MEMORY = 4 << 30
# A process that ran for long holds what Beam keeps of each pipeline.
_CASES_OF_A_PROCESS = 300


@dataclass(frozen=True)
class Ask:
    """A case that is to be run: its kind, seed and number, and another content for its file."""

    kind: str
    seed: int
    number: int
    content: bytes | None = None


def _work(orders: Connection, memory: int, top: str) -> None:
    """Be a worker: run the cases that are asked for until nothing is."""
    # Imported before the fork; here only for the types of what they raise.
    from tests.fuzzing import kinds, running

    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    root = Path(tempfile.mkdtemp(dir=top))
    os.environ |= {
        "HOME": str(root),
        "TMPDIR": str(root),
        # Stores that a mutated path names are never there.
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_EC2_METADATA_DISABLED": "true",
        "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9",
        "SLICEBEAM_STORAGE_TIMEOUT": "2",
    }
    tempfile.tempdir = str(root)
    with suppress(EOFError):
        # Else the parent has ended.
        while (asked := orders.recv()) is not None:
            case = kinds.case(asked.kind, asked.seed, asked.number)
            if asked.content is not None:
                case.files[case.mutated] = asked.content
            # What comes with the first case of its kind is no time of a case's own.
            orders.send(None)
            folder = Path(tempfile.mkdtemp(dir=root))
            verdict = running.attempt(case, folder)
            verdict.kind, verdict.seed, verdict.number = asked.kind, asked.seed, asked.number
            verdict.content = asked.content
            orders.send(verdict)
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class _Worker:
    process: BaseProcess
    orders: Connection
    asked: Ask | None = None
    begun: float = 0.0
    waited: dict[str, float] = field(default_factory=dict)
    done: int = 0

    def begin(self) -> None:
        """Note that a case begins."""
        self.begun, self.waited = time.monotonic(), _waited(self.process.pid)

    def seconds(self) -> float:
        """Return for how long a case has run, without what it waited for a processor.

        A machine with much else to do makes no hang.
        """
        waits = _waited(self.process.pid).items()
        longest = max((wait - self.waited.get(thread, 0.0) for thread, wait in waits), default=0.0)
        return time.monotonic() - self.begun - longest


def _waited(process: int | None) -> dict[str, float]:
    """Return the seconds that each thread of a process could have run, where the system tells."""
    found = {}
    for thread in Path(f"/proc/{process}/task").glob("*/schedstat"):
        # The thread may be gone by now.
        with suppress(OSError):
            found[thread.parent.name] = int(thread.read_text("ascii").split()[1]) / 1e9
    return found


def _start(memory: int, top: str) -> _Worker:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(there, memory, top), daemon=True)
    process.start()
    there.close()
    return _Worker(process, here)


def run_cases(
    asked: Iterable[Ask],
    *,
    workers: int,
    hang_seconds: float = HANG_SECONDS,
    memory: int = MEMORY,
) -> Iterator[Verdict]:
    """Run cases in forked processes and yield what became of them, in no order.

    Parameters
    ----------
    asked : the cases
    workers : processes at once
    hang_seconds : after so long a case hangs, and its process is ended; what it waits for a
        processor is not counted
    memory : bytes of address space of a process
    """
    # Loaded once, ahead of the forks; nothing of it runs here, whose threads no fork would have.
    import tests.fuzzing.running  # noqa: F401

    # What was loaded stays: it need not be looked through again, nor copied by the forks.
    gc.freeze()
    waiting = deque(asked)
    # What a process that is ended leaves behind goes with it.
    top = tempfile.mkdtemp(prefix="slicebeam-fuzz-")
    pool = [_start(memory, top) for _ in range(min(workers, len(waiting)))]
    try:
        while waiting or any(worker.asked for worker in pool):
            for place, worker in enumerate(pool):
                if worker.asked is None and worker.done >= _CASES_OF_A_PROCESS:
                    _dismiss(worker)
                    pool[place] = _start(memory, top)
            for worker in pool:
                if worker.asked is None and waiting:
                    worker.asked = waiting.popleft()
                    worker.begin()
                    worker.orders.send(worker.asked)
            busy = {worker.orders: worker for worker in pool if worker.asked}
            for ready in multiprocessing.connection.wait(list(busy), timeout=0.5):
                verdict = _answer(busy[ready])  # type: ignore[index]
                if verdict is not None:
                    yield verdict
            for place, worker in enumerate(pool):
                late = worker.asked and worker.seconds() > hang_seconds
                if late or not worker.process.is_alive():
                    if worker.asked:
                        yield _failure(worker, late=bool(late))
                    _dismiss(worker)
                    pool[place] = _start(memory, top)
    finally:
        for worker in pool:
            _dismiss(worker)
        shutil.rmtree(top, ignore_errors=True)


def _answer(worker: _Worker) -> Verdict | None:
    """Return the verdict that a worker sent; none where it has only begun, or has died."""
    try:
        sent: Any = worker.orders.recv()
    except (EOFError, OSError):
        worker.process.join(5)
        return None
    if sent is None:
        worker.begin()
        return None
    worker.asked = None
    worker.done += 1
    verdict: Verdict = sent
    return verdict


def _failure(worker: _Worker, *, late: bool) -> Verdict:
    if worker.asked is None:
        raise ValueError("a worker without a case")
    asked, seconds = worker.asked, worker.seconds()
    problem, detail = "crash", f"the process ended with {worker.process.exitcode}"
    if late:
        problem, detail = "hang", f"after {seconds:.0f} s"
    return Verdict(
        *(asked.kind, asked.seed, asked.number, None, problem, detail),
        seconds=seconds,
        content=asked.content,
    )


def _dismiss(worker: _Worker) -> None:
    """End a worker: asked to where it waits, else by its process."""
    with suppress(OSError):
        worker.orders.send(None)
    if worker.asked is None:
        worker.process.join(5)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    worker.orders.close()
