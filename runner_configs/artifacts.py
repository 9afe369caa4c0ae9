"""Finds the programs of engines: named by the user, by a variable, or in the cache folder."""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from pathlib import Path

from slicebeam.metrics.errors import EngineError, FileError

_FLINK = re.compile(r"META-INF/maven/org\.apache\.beam/beam-runners-flink-([\d.]+)/pom\.properties")
_SPARK = re.compile(r"META-INF/maven/org\.apache\.spark/spark-core_[\d.]+/pom\.properties")


def cache_folder() -> Path:
    """Return the folder of downloaded and built programs: $SLICEBEAM_CACHE, or one of the user's."""
    named = os.environ.get("SLICEBEAM_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "slicebeam"


def find_program(given: Path | str | None, variable: str, cached: str, option: str) -> Path | None:
    """Return the file that the option, the variable or the cache names; None if none does."""
    for path, source in ((given, f"option {option}"), (os.environ.get(variable), variable)):
        if path:
            found = Path(path).expanduser()
            if not found.is_file():
                raise FileError(f"{source} {found}: no such file")
            return found
    in_cache = sorted(cache_folder().glob(cached))
    return in_cache[-1] if in_cache else None


def job_server_jar(
    given: str | None, engine: str, version: str, variable: str, gradle_target: str
) -> Path:
    """Return the jar of Beam's job server: of a path, or with ``download`` the one that Beam publishes."""
    if given == "download":
        from apache_beam.utils.subprocess_server import JavaJarServer

        url = JavaJarServer.path_to_beam_jar(gradle_target)
        try:
            return Path(JavaJarServer.local_jar(url))
        except (OSError, RuntimeError, ValueError) as error:
            raise EngineError(f"cannot download the job server {url}: {error}") from error
    found = find_program(given, variable, f"{engine}-job-server-{version}.jar", "job_server_jar")
    if found is None:
        raise EngineError(
            f"no job server for {f'{engine} {version}'.removesuffix(' *')}: name its jar with "
            f"--runner-option job_server_jar=PATH or {variable}, or let Beam download it with "
            "job_server_jar=download"
        )
    return found


def java_program(name: str) -> str:
    """Return the path of the Java that starts a job server."""
    found = shutil.which(name)
    if found is None:
        raise EngineError(
            f"{name!r} is missing, and the job server needs it: install Java 11 or 17, or name it "
            "with --runner-option java=PATH"
        )
    return found


def jar_version(jar: Path, engine: str) -> str | None:
    """Return the version of Flink (major.minor) or Spark that a job server is built for.

    None if it does not tell.
    """
    try:
        with zipfile.ZipFile(jar) as opened:
            for name in opened.namelist():
                if engine == "flink" and (found := _FLINK.fullmatch(name)):
                    return found.group(1)
                if engine == "spark" and _SPARK.fullmatch(name):
                    text = opened.read(name).decode("utf-8")
                    version = re.search(r"^version=(\S+)", text, re.MULTILINE)
                    return version.group(1) if version else None
    except (OSError, zipfile.BadZipFile) as error:
        raise EngineError(
            f"{jar} is not a readable jar ({error}); name another job server"
        ) from error
    return None
