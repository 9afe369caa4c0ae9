"""What clusters on this machine need: packages from PyPI and programs that are built, in the cache folder.

``python -m tests.engines.programs`` loads and builds all of them.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

FLINK = "1.19.3"
SPARK = "3.5.0"
_PRISM = "github.com/apache/beam/sdks/v2/go/cmd/prism"
# Its scripts and configuration are the same in every wheel: one that is always there will do.
_ANY_WHEEL = ("--only-binary=:all:", "--platform=manylinux2014_x86_64", "--python-version=3.11")
_FROM_SOURCE = ("--no-binary=:all:",)


def cache_folder():
    named = os.environ.get("SLICEBEAM_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named).expanduser() if named else Path(base) / "slicebeam"


def flink_home():
    home = cache_folder() / f"flink-{FLINK}"
    if not home.is_dir():
        libraries = _downloaded("apache-flink-libraries", FLINK, _FROM_SOURCE)
        wheel = _downloaded("apache-flink", FLINK, _ANY_WHEEL)
        with _making() as folder:
            _extract(libraries, folder)
            unpacked = folder / f"apache-flink-libraries-{FLINK}" / "deps"
            with zipfile.ZipFile(wheel) as scripts:
                scripts.extractall(folder)
            for part in ("bin", "conf"):
                shutil.copytree(folder / "pyflink" / part, unpacked / part, dirs_exist_ok=True)
            _finish(unpacked, home)
    return home


def spark_home():
    home = cache_folder() / f"spark-{SPARK}"
    if not home.is_dir():
        source = _downloaded("pyspark", SPARK, _FROM_SOURCE)
        with _making() as folder:
            _extract(source, folder)
            _finish(folder / f"pyspark-{SPARK}" / "deps", home)
    return home


def flink_job_server():
    return _job_server("flink", FLINK.rpartition(".")[0])


def spark_job_server():
    return _job_server("spark", SPARK)


def prism():
    binary = cache_folder() / f"prism-{version('apache-beam')}"
    if not binary.is_file():
        with _making() as folder:
            environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-modcacherw"}
            command = ["go", "install", f"{_PRISM}@v{version('apache-beam')}"]
            subprocess.run(command, check=True, env=environment)
            (folder / "prism").replace(binary)
    return binary


def _job_server(engine, number):
    """Beam's job server for a version of an engine, built from Beam's libraries."""
    jar = cache_folder() / f"{engine}-job-server-{number}.jar"
    if not jar.is_file():
        with _making() as folder:
            shutil.copy(Path(__file__).parent / f"{engine}_job_server" / "pom.xml", folder)
            command = ["mvn", "--batch-mode", "--quiet", f"--file={folder}/pom.xml"]
            subprocess.run([*command, f"-D{engine}.version={number}", "package"], check=True)
            (folder / "target" / "job-server.jar").replace(jar)
    return jar


def _downloaded(package, number, options):
    """The archive of a package, from an earlier time or by pip."""
    folder = cache_folder() / "downloads"
    folder.mkdir(parents=True, exist_ok=True)
    # A wheel's name has an underscore where the package has a hyphen.
    pattern = f"{package.replace('-', '[-_]')}-{number}*"
    if not list(folder.glob(pattern)):
        with _making() as made:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--disable-pip-version-check", *options, f"--dest={made}"]
            subprocess.run([*command, f"{package}=={number}"], check=True)
            for path in made.iterdir():
                path.replace(folder / path.name)
    return next(folder.glob(pattern))


@contextmanager
def _making():
    """A folder beside what is made in it, so that it appears there whole."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as name:
        yield Path(name)


def _extract(path, folder):
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")


def _finish(unpacked, home):
    for script in (unpacked / "bin").iterdir():
        script.chmod(0o755)
    unpacked.replace(home)


if __name__ == "__main__":
    for make in (flink_job_server, spark_job_server, prism, flink_home, spark_home):
        print(make())
