"""The engines that tests and benchmarks run on, each started when it is first asked for."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from slicebeam.runner_configs import cluster_packages, flink_cluster, spark_cluster
from slicebeam.runner_configs.cluster_processes import ClusterFolder

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from slicebeam.runner_configs.cluster_processes import Running

# Everything really runs on the engine, small as it is.
_ALL = "smallest_job_seconds=0"


@dataclass(frozen=True)
class Started:
    """A cluster and its folder."""

    folder: ClusterFolder
    running: Running


class Engines:
    """Engines by name; a context, which ends the clusters that were started.

    Parameters
    ----------
    folder : for the clusters
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def options(self, name: str, *more: str) -> dict[str, Any]:
        """The options of a search on an engine, such as ``flink-cluster-external``."""
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

    def arguments(self, name: str, *more: str) -> list[str]:
        """The same, as arguments of the command line."""
        options = self.options(name, *more)
        given = [f"--runner-option={option}" for option in options["runner_option"]]
        return [f"--runner-config={options['runner_config']}", *given]

    @cached_property
    def flink(self) -> Started:
        """A job manager and two task managers."""
        folder = ClusterFolder(self.folder / "flink")
        running = flink_cluster.up(folder)
        self._stack.callback(_stop, folder)
        return Started(folder, running)

    @cached_property
    def spark(self) -> Started:
        """A master and two workers."""
        folder = ClusterFolder(self.folder / "spark")
        running = spark_cluster.up(folder)
        self._stack.callback(_stop, folder)
        return Started(folder, running)

    def replace_task_manager(self) -> None:
        """Kill a task manager, and start another, as whoever looks after a cluster does."""
        folder, running = self.flink.folder, self.flink.running
        *others, dead = running.programs
        os.killpg(dead.pid, signal.SIGKILL)
        new = flink_cluster._start(folder, running.version, "taskmanager", dead.name)
        running = replace(running, programs=(*others, new))
        folder.remember(running)
        self.flink = Started(folder, running)


def _stop(folder: ClusterFolder) -> None:
    """End what runs now, which a test may have replaced."""
    running = folder.running()
    if running is not None:
        folder.stop(running)
