"""Faults of clusters: an executor, a worker or the run itself killed in mid-job."""

import signal
import time
from contextlib import suppress
from functools import partial

import psutil

from tests.faults.faults import CLEAR, EQUAL, WAYS, Fault, resumed, verdict

# A run on a cluster takes a minute, and one that is begun again more than that.
_MOST_SECONDS = 600.0
_MOMENTS = ("shards/*.arrow", "iteration-1/0*.arrow", "iteration-1/plan")


def executor(engines, running):
    for pid in engines.spark.pids():
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                if any("CoarseGrainedExecutorBackend" in part for part in process.cmdline()):
                    process.kill()
                    return True
    return False


def worker(cluster, engines, running):
    for pid in getattr(engines, cluster).pids():
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                if any("runner_configs.boot" in part for part in process.cmdline()):
                    process.kill()
                    return True
    return False


def run_itself(engines, running):
    running.send(signal.SIGKILL)
    return True


KILLS = {
    "Flink: a worker process killed": ("flink-cluster-process", partial(worker, "flink")),
    "Flink: the run killed": ("flink-cluster-process", run_itself),
    "Spark: an executor killed": ("spark-cluster-process", executor),
    "Spark: a worker process killed": ("spark-cluster-process", partial(worker, "spark")),
    "Spark: the run killed": ("spark-cluster-process", run_itself),
}


def struck(engines, name, kill, bench, number):
    flags = WAYS["batch"]
    output = bench.place() / "out"
    command = bench.search(output, *flags)
    running = bench.commands.start([*command, *engines.arguments(name)])
    pattern = _MOMENTS[number % len(_MOMENTS)]
    while running.runs() and not any((output / "_work" / "stages").glob(pattern)):
        time.sleep(0.02)
    # Between two jobs there is no worker to kill: the next job has some.
    is_struck = False
    while running.runs() and not is_struck:
        is_struck = kill(engines, running)
        time.sleep(0.02)
    ended = running.ended(_MOST_SECONDS)
    if ended.code == -signal.SIGKILL and kill is run_itself:
        yield EQUAL
    else:
        yield verdict(ended, output, bench.undisturbed(*flags), codes=(3,))
    yield EQUAL if is_struck else "nothing was killed"
    if ended.code != 0:
        # What was finished on a cluster is gone on with in this process.
        yield resumed(bench, command, output, bench.undisturbed(*flags))


def faults(engines):
    """Return what can happen to clusters, which are started when they are first needed."""
    return [
        Fault(f"{what}, then resumed", 3, partial(struck, engines, name, kill), {EQUAL, CLEAR})
        for what, (name, kill) in KILLS.items()
    ]
