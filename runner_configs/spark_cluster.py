"""A Spark cluster on this machine: a master and workers, reachable from here only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicebeam.metrics.errors import EngineError
from slicebeam.runner_configs.cluster import ask
from slicebeam.runner_configs.cluster_packages import SPARK, spark_home
from slicebeam.runner_configs.cluster_processes import ClusterFolder, Running
from slicebeam.runner_configs.portable import free_port

if TYPE_CHECKING:
    from typing import Any

_HOST = "127.0.0.1"
_START = 120.0
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
# Every executor gets a copy of the job server's jar, a quarter of a gigabyte: those of applications
# that have ended go after a minute.
_CLEANUP = (
    "-Dspark.worker.cleanup.enabled=true "
    "-Dspark.worker.cleanup.interval=20 "
    "-Dspark.worker.cleanup.appDataTtl=30"
)


def up(
    folder: ClusterFolder,
    *,
    workers: int = 2,
    cores: int = 1,
    port: int | None = None,
    web_port: int | None = None,
    version: str = SPARK,
) -> Running:
    """Start a cluster and wait until it is ready.

    Parameters
    ----------
    port, web_port : of the master and of its pages; None for any that are free

    Raises
    ------
    EngineError
        It does not start.
    """
    home = spark_home(version)
    folder.begin()
    port, web_port = port or free_port(), web_port or free_port()
    master = f"spark://{_HOST}:{port}"
    start = str(home / "bin" / "spark-class")
    variables = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": _HOST,
        "SPARK_PUBLIC_DNS": _HOST,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_CONF_DIR": str(folder.path / "conf"),
        "SPARK_LOCAL_DIRS": str(folder.path / "tmp"),
        "SPARK_WORKER_OPTS": _CLEANUP,
    }
    command = [start, _MASTER, "--host", _HOST, "--port", str(port), "--webui-port", str(web_port)]
    programs = [folder.start("master", command, variables)]
    for number in range(workers):
        work = folder.path / "work" / str(number + 1)
        work.mkdir(parents=True, exist_ok=True)
        command = [start, _WORKER, "--host", _HOST, "--port", "0", "--webui-port", "0"]
        command += ["--cores", str(cores), "--memory", "1g", "--work-dir", str(work), master]
        programs.append(folder.start(f"worker-{number + 1}", command, variables))
    running = Running(version, master, f"{_HOST}:{web_port}", tuple(programs))
    folder.remember(running)
    folder.await_ready(lambda: len(_alive(running)) == workers, running, _START)
    return running


def status(running: Running) -> str:
    """Return a line on a cluster that runs."""
    alive = _alive(running)
    free = sum(worker["coresfree"] for worker in alive)
    cores = sum(worker["cores"] for worker in alive)
    return (
        f"Spark {running.version} at {running.address}: {len(alive)} workers, {free} of {cores} "
        "cores free"
    )


def _alive(running: Running) -> list[Any]:
    try:
        state = ask(f"http://{running.pages}/json/")
    except EngineError:
        return []
    return [worker for worker in state["workers"] if worker["state"] == "ALIVE"]
