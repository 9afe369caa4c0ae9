"""Faults of object storage: refusals, delays, silence, lost answers, and runs killed beside it."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from slicebeam.transforms.storage.publish import is_own_name
from tests import storage_faults
from tests.faults.faults import ADULT, CLEAR, EQUAL, Fault, same, verdict
from tests.object_stores import Bucket, gcs_store, moto_store
from tests.storage_faults import Proxy, faulty

# What a client repeats until it succeeds, and how often it strikes.
PASSING = {
    "answers 429": {"kind": "status", "status": 429, "share": 0.05},
    "answers 500": {"kind": "status", "status": 500, "share": 0.05},
    "answers 503": {"kind": "status", "status": 503, "share": 0.05},
    "answers late": {"kind": "delay", "seconds": 0.1, "share": 0.2},
    "ends connections": {"kind": "drop", "share": 0.05},
    "loses answers": {"kind": "lose answer", "share": 0.05},
    "cuts answers": {"kind": "cut answer", "method": "GET", "share": 0.05},
}
# Requests are struck by their number: what waits between them is nothing to the test.
AT_ONCE = "tests.storage_faults:repeat_at_once"
LASTING = {"answers 503 from now on": {"kind": "status", "status": 503}}
LASTING |= {"answers no more": {"kind": "silence"}}


@dataclass(frozen=True)
class Place:
    bucket: Bucket
    proxy: Proxy

    @property
    def environment(self):
        environment = self.bucket.store.environment(self.proxy.endpoint)
        return {**environment, "SLICEBEAM_STORAGE_TIMEOUT": "5"}

    def published(self, bench):
        folder, every = bench.place(), self.bucket.keys()
        for key in every:
            (folder / key.removeprefix("out/").replace("/", "-")).write_bytes(self.bucket.read(key))
        return folder

    def verdict(self, bench, ended):
        return verdict(ended, self.published(bench), bench.undisturbed(), codes=(3,))

    def resumed(self, bench, command):
        ended = bench.commands.run([*command, "--resume"], environment=self.environment)
        if ended.code == 2 and "holds no run to resume" in ended.said:
            ended = bench.commands.run(command, environment=self.environment)
        if ended.code != 0:
            return f"resuming: exit code {ended.code}; {ended.said!r}"
        return same(self.published(bench), bench.undisturbed())

    def nothing_half(self):
        """Return whether nothing is published, or the table under its own name alone."""
        every = self.bucket.keys()
        found = [key for key in every if not key.startswith("out/_work/")]
        strange = [key for key in found if not is_own_name(key.removeprefix("out/"))]
        return f"half published: {found}" if strange else EQUAL


@contextmanager
def opened(store):
    with faulty(store.endpoint) as proxy:
        yield Place(store.new_bucket(), proxy)


def passing(store, fault, bench, number):
    with opened(store) as place:
        command = bench.search(f"{place.bucket.uri}/out", data=ADULT)  # type: ignore[arg-type]
        struck = place.proxy.add(storage_faults.Fault(**fault))
        ended = bench.commands.run(command, environment=place.environment, hook=AT_ONCE)
        yield place.verdict(bench, ended)
        yield EQUAL if struck.struck else "nothing was struck"


def lasting(store, fault, bench, number):
    with opened(store) as place:
        command = bench.search(f"{place.bucket.uri}/out", data=ADULT)  # type: ignore[arg-type]
        place.proxy.add(storage_faults.Fault(**fault, skip=int(bench.random.integers(0, 60))))
        impatient = {**place.environment, "SLICEBEAM_STORAGE_TIMEOUT": "2"}
        ended = bench.commands.run(command, environment=impatient)
        yield place.verdict(bench, ended)
        if ended.code != 0:
            yield place.nothing_half()
            place.proxy.heal()
            yield place.resumed(bench, command)


def killed(store, bench, number):
    with opened(store) as place:
        command = bench.search(f"{place.bucket.uri}/out", data=ADULT)  # type: ignore[arg-type]
        running = bench.commands.start(command, environment=place.environment)
        time.sleep(2 * bench.moment())
        running.send(signal.SIGKILL)
        running.ended()
        yield place.resumed(bench, command)


def two_runs(store, bench, number):
    with opened(store) as place:
        command = bench.search(f"{place.bucket.uri}/out", data=ADULT)  # type: ignore[arg-type]
        running = [bench.commands.start(command, environment=place.environment) for _ in range(2)]
        ended = [one.ended() for one in running]
        codes = [one.code for one in ended]
        yield EQUAL if 0 in codes else f"exit codes {codes}; {[one.said for one in ended]}"
        for its in ended:
            yield place.verdict(bench, its)


@contextmanager
def faults():
    with ExitStack() as stack:
        stores = [stack.enter_context(gcs_store()), stack.enter_context(moto_store())]
        found = []
        for store in stores:
            where = f"{store.scheme}://"
            found += [
                Fault(f"{where} {name}", 3, partial(passing, store, one), {EQUAL})
                for name, one in PASSING.items()
            ]
            found += [
                Fault(f"{where} {name}", 6, partial(lasting, store, one), {EQUAL, CLEAR})
                for name, one in LASTING.items()
            ]
            found += [
                Fault(f"{where} killed, then resumed", 10, partial(killed, store), {EQUAL}),
                Fault(f"{where} two runs in one", 5, partial(two_runs, store), {EQUAL, CLEAR}),
            ]
        yield found
