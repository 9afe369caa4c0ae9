"""A Flink cluster on this machine: a job manager and task managers, reachable from here only."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import yaml

from slicebeam.metrics.errors import EngineError
from slicebeam.runner_configs.cluster import ask
from slicebeam.runner_configs.cluster_packages import FLINK, flink_home
from slicebeam.runner_configs.cluster_processes import ClusterFolder, Program, Running
from slicebeam.runner_configs.portable import free_port

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

_HOST = "127.0.0.1"
_START = 120.0


def up(
    folder: ClusterFolder,
    *,
    task_managers: int = 2,
    slots: int = 1,
    port: int | None = None,
    version: str = FLINK,
) -> Running:
    """Start a cluster and wait until it is ready.

    Parameters
    ----------
    port : of the REST address and the pages; None for any that is free

    Raises
    ------
    EngineError
        It does not start.
    """
    home = flink_home(version)
    folder.begin()
    rest = port or free_port()
    for path in home.glob("conf/log*"):
        shutil.copy(path, folder.path / "conf")
    settings = _settings(home, folder.path, rest, slots)
    (folder.path / "conf" / "config.yaml").write_text(yaml.safe_dump(settings), "utf-8")
    programs = [_start(folder, version, "jobmanager", "jobmanager")]
    names = [f"taskmanager-{number + 1}" for number in range(task_managers)]
    programs += [_start(folder, version, "taskmanager", name) for name in names]
    running = Running(version, f"{_HOST}:{rest}", f"{_HOST}:{rest}", tuple(programs))
    folder.remember(running)
    folder.await_ready(lambda: _slots(running) == task_managers * slots, running, _START)
    return running


def _start(folder: ClusterFolder, version: str, kind: str, name: str) -> Program:
    home = flink_home(version)
    variables = {
        "FLINK_HOME": str(home),
        "FLINK_CONF_DIR": str(folder.path / "conf"),
        "FLINK_LOG_DIR": str(folder.path / "log"),
        "FLINK_PID_DIR": str(folder.path / "tmp"),
    }
    return folder.start(name, [str(home / "bin" / f"{kind}.sh"), "start-foreground"], variables)


def status(running: Running) -> str:
    """Return a line on a cluster that runs."""
    found = ask(f"http://{running.pages}/overview")
    return (
        f"Flink {found['flink-version']} at {running.address}: {found['taskmanagers']} task "
        f"managers, {found['slots-available']} of {found['slots-total']} slots free, "
        f"{found['jobs-running']} jobs running"
    )


def _slots(running: Running) -> int:
    try:
        return int(ask(f"http://{running.pages}/overview")["slots-total"])
    except EngineError:
        return 0


def _settings(home: Path, folder: Path, rest: int, slots: int) -> dict[str, Any]:
    shipped = yaml.safe_load((home / "conf" / "config.yaml").read_text("utf-8"))
    return {
        # What newer Javas keep closed to Flink, as Flink ships it.
        "env": shipped["env"],
        "jobmanager": {
            "bind-host": _HOST,
            "rpc": {"address": _HOST, "port": free_port()},
            "memory": {"process": {"size": "1024m"}},
            "execution": {"failover-strategy": "region"},
        },
        "taskmanager": {
            "bind-host": _HOST,
            "host": _HOST,
            "numberOfTaskSlots": slots,
            # Else all of a small job goes to one of the task managers.
            "load-balance": {"mode": "SLOTS"},
            "memory": {"process": {"size": "1500m"}},
        },
        "parallelism": {"default": slots},
        # A task manager that is gone is noticed after two heartbeats. A job that begins again before
        # would be sent to it once more, and have one attempt less.
        "heartbeat": {"interval": 2000, "timeout": 10000},
        "restart-strategy": {"type": "fixed-delay", "fixed-delay": {"attempts": 2, "delay": "8 s"}},
        "rest": {"address": _HOST, "bind-address": _HOST, "port": rest, "bind-port": str(rest)},
        # Every job brings the job server's jar, 150 MB a node: it goes soon after the job.
        "blob": {"server": {"port": str(free_port())}, "service": {"cleanup": {"interval": 20}}},
        "io": {"tmp": {"dirs": str(folder / "tmp")}},
    }
