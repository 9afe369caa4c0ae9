"""The engines that tests and benchmarks run on, each started when it is first asked for."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property

from slicebeam.runner_configs import cluster_packages, flink_cluster, spark_cluster
from slicebeam.runner_configs.cluster_processes import ClusterFolder, Running

# Everything really runs on the engine, small as it is.
_ALL = "smallest_job_seconds=0"


@dataclass(frozen=True)
class Started:
    """A cluster and its folder."""

    folder: ClusterFolder
    running: Running


class Engines:
    def __init__(self, folder):
        self.folder = folder
        self._stack = ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def options(self, name, *more):
        engine, _, rest = name.partition("-")
        if engine in ("direct", "direct_multi"):
            return {"runner_config": name, "runner_option": more}
        kind, _, environment = rest.partition("-")
        given = [_ALL, *more, f"environment={environment or 'loopback'}"]
        if engine == "prism":
            given.append(f"binary={cluster_packages.prism()}")
        elif engine == "flink":
            given.append(f"job_server_jar={cluster_packages.flink_job_server()}")
            if kind == "cluster":
                given.append(f"master={self.flink.running.address}")
        else:
            given.append(f"job_server_jar={cluster_packages.spark_job_server()}")
            if kind == "cluster":
                given += [
                    f"master={self.spark.running.address}",
                    f"version={cluster_packages.SPARK}",
                ]
                given.append(f"web_ui={self.spark.running.pages}")
        return {"runner_config": engine, "runner_option": tuple(given)}

    def arguments(self, name, *more):
        options = self.options(name, *more)
        given = [f"--runner-option={option}" for option in options["runner_option"]]
        return [f"--runner-config={options['runner_config']}", *given]

    @cached_property
    def flink(self):
        """A job manager and two task managers."""
        folder = ClusterFolder(self.folder / "flink")
        running = flink_cluster.up(folder)
        self._stack.callback(_stop, folder)
        return Started(folder, running)

    @cached_property
    def spark(self):
        """A master and two workers."""
        folder = ClusterFolder(self.folder / "spark")
        running = spark_cluster.up(folder)
        self._stack.callback(_stop, folder)
        return Started(folder, running)

    def replace_task_manager(self):
        """Kill a task manager, and start another, as whoever looks after a cluster does."""
        folder, running = self.flink.folder, self.flink.running
        *others, dead = running.programs
        os.killpg(dead.pid, signal.SIGKILL)
        new = flink_cluster._start(folder, running.version, "taskmanager", dead.name)
        running = replace(running, programs=(*others, new))
        folder.remember(running)
        self.flink = Started(folder, running)


def _stop(folder):
    running = folder.running()
    if running is not None:
        folder.stop(running)
