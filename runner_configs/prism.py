"""Prism: Beam's portable runner as one program on this machine."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError
from slicebeam.runner_configs import process_stat
from slicebeam.runner_configs.artifacts import find_program
from slicebeam.runner_configs.portable import PortableEngine, executable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.runner_configs.backend import Build
    from slicebeam.runner_configs.options import PrismOptions

BINARY_VARIABLE = "SLICEBEAM_PRISM"
# Seconds that a job may be without a worker, once it has had one.
_WITHOUT_WORKER = 5.0
# Prism lives next to its workers: what it costs to send it a job.
_PROGRAM = "github.com/apache/beam/sdks/v2/go/cmd/prism"


class Prism(PortableEngine):
    """Runs jobs on a Prism of this run's own."""

    def __init__(self, options: PrismOptions) -> None:
        # Prism asks for one worker, which works on several bundles at once in threads.
        super().__init__(options, options.workers)
        self.options = options
        self.name = f"prism, {options.workers} threads"
        self._worker_seen: float | None = None

    def binary(self) -> Path:
        """Return the program."""
        from apache_beam.version import __version__ as version

        found = find_program(self.options.binary, BINARY_VARIABLE, f"prism-{version}", "binary")
        on_path = shutil.which("prism")
        if found is None and on_path:
            found = Path(on_path)
        if found is None:
            raise EngineError(
                f"prism is missing: build it with 'go install {_PROGRAM}@v{version}', and name it "
                f"with --runner-option binary=PATH or {BINARY_VARIABLE}"
            )
        if not executable(found):
            raise EngineError(f"{found} cannot be run; make it executable (chmod +x)")
        return found

    def check(self) -> None:
        """Refuse a program that is not there."""
        super().check()
        self.binary()

    def run(self, build: Build, name: str) -> Any:
        """Run a job, which gets a worker of its own."""
        self._worker_seen = None
        return super().run(build, name)

    def watch(self, name: str) -> None:
        """Raise also where the job's worker has ended: Prism 2.77 at times waits for it forever."""
        super().watch(name)
        if self.environment != "process" or self._server is None:
            return
        now = time.monotonic()
        if process_stat.children(self._server.pid):
            self._worker_seen = now
        elif self._worker_seen is not None and now - self._worker_seen > _WITHOUT_WORKER:
            raise EngineError(
                "the worker process of the job has ended, killed or for want of memory; its output is "
                f"in {self.log}"
            )

    def server_command(self, folder: Path, port: int) -> Sequence[str]:  # noqa: ARG002
        """Return the command of Prism."""
        return [
            str(self.binary()),
            f"--job_port={port}",
            "--serve_http=false",
            "--log_kind=text",
            "--log_level=warn",
        ]
