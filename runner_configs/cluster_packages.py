"""Installs what a local cluster needs, on request: packages from PyPI, and programs that are built.

The cache folder ($SLICEBEAM_CACHE or ~/.cache/slicebeam) stores everything.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import EngineError
from slicebeam.runner_configs.artifacts import cache_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FLINK = "1.19.3"
SPARK = "3.5.0"

_PRISM = "github.com/apache/beam/sdks/v2/go/cmd/prism"
# Its scripts and configuration are the same in every wheel: one that is always there will do.
_ANY_WHEEL = ("--only-binary=:all:", "--platform=manylinux2014_x86_64", "--python-version=3.11")
_FROM_SOURCE = ("--no-binary=:all:",)


def flink_home(version: str = FLINK) -> Path:
    """Return the folder of a Flink distribution, loading and unpacking it when it is not there."""
    home = cache_folder() / f"flink-{version}"
    if not home.is_dir():
        libraries = _downloaded("apache-flink-libraries", version, _FROM_SOURCE)
        wheel = _downloaded("apache-flink", version, _ANY_WHEEL)
        with tempfile.TemporaryDirectory(dir=_made(cache_folder())) as name:
            folder = Path(name)
            with tarfile.open(libraries) as archive:
                _extract(archive, folder)
            unpacked = folder / f"apache-flink-libraries-{version}" / "deps"
            with zipfile.ZipFile(wheel) as scripts:
                members = [
                    n for n in scripts.namelist() if n.startswith(("pyflink/bin/", "pyflink/conf/"))
                ]
                scripts.extractall(folder, members)  # noqa: S202  (as for an archive)
            for part in ("bin", "conf"):
                shutil.copytree(folder / "pyflink" / part, unpacked / part, dirs_exist_ok=True)
            for script in (unpacked / "bin").glob("*.sh"):
                script.chmod(0o755)
            unpacked.replace(home)
    return home


def spark_home(version: str = SPARK) -> Path:
    """Return the folder of a Spark distribution, loading and unpacking it when it is not there."""
    home = cache_folder() / f"spark-{version}"
    if not home.is_dir():
        source = _downloaded("pyspark", version, _FROM_SOURCE)
        with tempfile.TemporaryDirectory(dir=_made(cache_folder())) as name:
            with tarfile.open(source) as archive:
                _extract(archive, Path(name))
            unpacked = Path(name) / f"pyspark-{version}" / "deps"
            for script in (unpacked / "bin").iterdir():
                script.chmod(0o755)
            unpacked.replace(home)
    return home


def flink_job_server(version: str = FLINK) -> Path:
    """Return the job server for a Flink, building it when it is not there."""
    minor = ".".join(version.split(".")[:2])
    return _job_server("flink", minor, {"flink.version": minor})


def spark_job_server(version: str = SPARK) -> Path:
    """Return the job server for a Spark, building it when it is not there."""
    return _job_server("spark", version, {"spark.version": version})


def prism() -> Path:
    """Return Prism of this Beam's version, building it when it is not there."""
    from apache_beam.version import __version__ as version

    binary = cache_folder() / f"prism-{version}"
    if not binary.is_file():
        go = _tool("go", "install Go 1.24 or later")
        with tempfile.TemporaryDirectory(dir=_made(cache_folder())) as folder:
            _run(
                [go, "install", f"{_PRISM}@v{version}"],
                "building Prism",
                {"GOBIN": folder, "GOFLAGS": "-modcacherw"},
            )
            (Path(folder) / "prism").replace(binary)
    return binary


def _job_server(engine: str, version: str, properties: Mapping[str, str]) -> Path:
    jar = cache_folder() / f"{engine}-job-server-{version}.jar"
    if not jar.is_file():
        maven = _tool("mvn", "install Maven 3.8 or later")
        with tempfile.TemporaryDirectory(dir=_made(cache_folder())) as folder:
            pom = Path(__file__).parent / f"{engine}_job_server" / "pom.xml"
            shutil.copy(pom, folder)
            defined = [f"-D{key}={value}" for key, value in properties.items()]
            command = [maven, "--batch-mode", "--quiet", "--file", f"{folder}/pom.xml", *defined]
            _run([*command, "package"], f"building the job server for {engine} {version}")
            (Path(folder) / "target" / "job-server.jar").replace(jar)
    return jar


def _downloaded(package: str, version: str, options: Sequence[str]) -> Path:
    """Return the archive of a package, from an earlier time or by pip."""
    folder = _made(cache_folder() / "downloads")
    # A wheel's name has an underscore where the package has a hyphen.
    pattern = f"{package.replace('-', '[-_]')}-{version}*"
    if not list(folder.glob(pattern)):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--disable-pip-version-check", *options, "--dest", name]
            _run([*command, f"{package}=={version}"], f"downloading {package} {version}")
            for path in Path(name).iterdir():
                path.replace(folder / path.name)
    return next(folder.glob(pattern))


def _run(command: Sequence[str], what: str, environment: Mapping[str, str] | None = None) -> None:
    sys.stderr.write(f"{what} …\n")
    done = subprocess.run(  # noqa: S603
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        told = next((line for line in lines if "ERROR" in line), lines[-1] if lines else "")
        raise EngineError(f"{what} failed ({told.strip()}); the command was: {' '.join(command)}")


def _tool(name: str, remedy: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise EngineError(f"{name!r} is missing; {remedy}")
    return found


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    # Nothing of an archive may land outside its folder.
    archive.extractall(folder, filter="data")
