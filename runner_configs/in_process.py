"""The engine inside the process of the run, alone or with worker processes."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from slicebeam.runner_configs.backend import Backend, counts_of

if TYPE_CHECKING:
    from collections import Counter

    from slicebeam.runner_configs.backend import Build
    from slicebeam.runner_configs.local_processes import LocalProcesses
    from slicebeam.runner_configs.options import DirectOptions


class InProcess(Backend):
    """Runs jobs in this process, or hands their elements to processes that it started."""

    def __init__(self, options: DirectOptions) -> None:
        self.workers = workers = options.workers
        self.name = "direct" if workers == 1 else f"direct, {workers} processes"
        self._processes: LocalProcesses | None = None
        if workers > 1:
            from slicebeam.runner_configs.local_processes import LocalProcesses

            # They import for a second what they need: in the meantime this process does its own.
            self._processes = LocalProcesses(workers)

    def sent_options(self, name: str) -> list[str]:  # noqa: ARG002  (nobody else sees the job)
        """Return the options that a job is run with, as flags."""
        return [f"--direct_num_workers={self.workers}"]

    def run(self, build: Build, name: str) -> Counter[str]:  # noqa: ARG002
        """Run a pipeline: by the worker processes where they can share its elements, else here."""
        # Here, since worker processes are started before this one loads Beam.
        import apache_beam as beam
        from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

        from slicebeam.runner_configs.local_job import run_here, work_of

        # Named: DirectRunner would first look for another runner's binary on the web.
        pipeline = beam.Pipeline(runner=FnApiRunner())
        try:
            build(pipeline)
            if self._processes is not None:
                counts = self._processes.run(pipeline, self.log)
                if counts is not None:
                    return counts
                self.note("one process does a job whose elements depend on each other")
            elif (job := work_of(pipeline)) is not None:
                return run_here(job)
            return counts_of(pipeline.run())
        finally:
            # Beam makes the folder with the pipeline, and removes it only after a run.
            shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the worker processes."""
        return self._processes.cpu_seconds() if self._processes is not None else 0.0

    def stop(self) -> None:
        """End the worker processes."""
        if self._processes is not None:
            self._processes.stop()
