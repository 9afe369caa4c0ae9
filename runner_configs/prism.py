"""Prism: Beam's portable runner as one program on this machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import EngineError
from slicebeam.runner_configs.artifacts import find_program
from slicebeam.runner_configs.portable import PortableEngine, executable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.runner_configs.options import PrismOptions

BINARY_VARIABLE = "SLICEBEAM_PRISM"
# Prism lives next to its workers: what it costs to send it a job.
_PROGRAM = "github.com/apache/beam/sdks/v2/go/cmd/prism"


class Prism(PortableEngine):
    """Runs jobs on a Prism of this run's own."""

    def __init__(self, options: PrismOptions) -> None:
        # Prism asks for one worker, which works on several bundles at once in threads.
        super().__init__(options, options.workers)
        self.options = options
        self.name = f"prism, {options.workers} threads"

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

    def server_command(self, folder: Path, port: int) -> Sequence[str]:  # noqa: ARG002
        """Return the command of Prism."""
        return [
            str(self.binary()),
            f"--job_port={port}",
            "--serve_http=false",
            "--log_kind=text",
            "--log_level=warn",
        ]
