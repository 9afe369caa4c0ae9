"""Small clusters of Flink and Spark on this machine, to try a run on: no container, no root.

::

    python -m slicebeam.runner_configs.local_cluster flink up
    python -m slicebeam.runner_configs.local_cluster flink status
    python -m slicebeam.runner_configs.local_cluster flink down

``up`` downloads the engine from PyPI and builds Beam's job server with Maven, once; ``jar`` only
builds the job server. ``prism build`` builds Prism with Go.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import InputError, SlicebeamError
from slicebeam.runner_configs import cluster_packages, flink_cluster, spark_cluster
from slicebeam.runner_configs.artifacts import cache_folder
from slicebeam.runner_configs.cluster_processes import ClusterFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.runner_configs.cluster_processes import Running

_FLINK_PORT, _SPARK_PORT, _SPARK_PAGES = 8081, 7077, 8080


def main(given: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; an error is a line on stderr."""
    # Beam warns on import of client libraries that only other engines need.
    logging.getLogger().setLevel(logging.ERROR)
    asked = _arguments(given)
    try:
        if asked.engine == "prism":
            _say(f"prism is {cluster_packages.prism()}")
        elif asked.action == "jar":
            _say(f"the job server is {_job_server(asked)}")
        else:
            _ACTIONS[asked.action](asked, ClusterFolder(_folder(asked)))
    except SlicebeamError as error:
        sys.stderr.write(f"local_cluster: {error}\n")
        return error.exit_code
    return 0


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="local_cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    engines = parser.add_subparsers(dest="engine", required=True)
    flink = engines.add_parser("flink", help="a job manager and task managers")
    flink.add_argument("--task-managers", dest="nodes", type=_count, default=2)
    flink.add_argument(
        "--slots", dest="each", type=_count, default=1, help="slots of a task manager"
    )
    flink.add_argument(
        "--port", type=_count, default=_FLINK_PORT, help="port of the REST API and the web pages"
    )
    flink.add_argument("--version", default=cluster_packages.FLINK)
    spark = engines.add_parser("spark", help="a master and workers")
    spark.add_argument("--workers", dest="nodes", type=_count, default=2)
    spark.add_argument("--cores", dest="each", type=_count, default=1, help="cores of a worker")
    spark.add_argument("--port", type=_count, default=_SPARK_PORT, help="port of the master")
    spark.add_argument(
        "--web-port", type=_count, default=_SPARK_PAGES, help="port of its web pages"
    )
    spark.add_argument("--version", default=cluster_packages.SPARK)
    for engine in (flink, spark):
        engine.add_argument("action", choices=[*_ACTIONS, "jar"])
        engine.add_argument(
            "--folder", help="folder of logs and process ids; by default in the cache folder"
        )
    engines.add_parser("prism", help="Beam's runner for one machine").add_argument(
        "action", choices=["build"]
    )
    return parser.parse_args(given)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _folder(asked: argparse.Namespace) -> Path:
    if asked.folder:
        return Path(asked.folder).expanduser().absolute()
    return cache_folder() / f"{asked.engine}-cluster"


def _job_server(asked: argparse.Namespace) -> Path:
    if asked.engine == "flink":
        return cluster_packages.flink_job_server(asked.version)
    return cluster_packages.spark_job_server(asked.version)


def _up(asked: argparse.Namespace, folder: ClusterFolder) -> None:
    jar = _job_server(asked)
    if asked.engine == "flink":
        running = flink_cluster.up(
            folder,
            task_managers=asked.nodes,
            slots=asked.each,
            port=asked.port,
            version=asked.version,
        )
        more = [f"version={'.'.join(asked.version.split('.')[:2])}"]
    else:
        running = spark_cluster.up(
            folder,
            workers=asked.nodes,
            cores=asked.each,
            port=asked.port,
            web_port=asked.web_port,
            version=asked.version,
        )
        more = [f"version={asked.version}", f"web_ui={running.pages}"]
    _say(_status_of(asked, running))
    options = [f"master={running.address}", f"parallelism={asked.nodes * asked.each}"]
    options += [*more, f"job_server_jar={jar}", "environment=external", "smallest_job_seconds=0"]
    given = " ".join(f"--runner-option {option}" for option in options)
    _say(
        "try it:\n"
        "  slicebeam search --data 'eval/*.parquet' --label LABEL --prediction PREDICTION "
        f"--output out/ --runner-config {asked.engine} {given}\n"
        f"its web pages are at http://{running.pages}/; stop it with 'python -m "
        f"slicebeam.runner_configs.local_cluster {asked.engine} down'"
    )


def _down(asked: argparse.Namespace, folder: ClusterFolder) -> None:
    running = folder.running()
    if running is None:
        raise InputError(f"no {asked.engine} cluster was started in {folder.path}")
    folder.stop(running)
    _say(f"the {asked.engine} cluster at {running.address} is down")


def _status(asked: argparse.Namespace, folder: ClusterFolder) -> None:
    running = folder.running()
    if running is None:
        raise InputError(f"no {asked.engine} cluster was started in {folder.path}")
    for program in running.programs:
        _say(f"{program.name} (process {program.pid}) {'runs' if program.is_running else 'ended'}")
    if all(program.is_running for program in running.programs):
        _say(_status_of(asked, running))


def _status_of(asked: argparse.Namespace, running: Running) -> str:
    kind = flink_cluster if asked.engine == "flink" else spark_cluster
    return kind.status(running)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


_ACTIONS = {"up": _up, "down": _down, "status": _status}

if __name__ == "__main__":
    sys.exit(main())
