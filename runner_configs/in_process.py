"""The engine inside the process of the run, alone or with worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.runner_configs.backend import Backend, run_aside
from slicebeam.runner_configs.private_sockets import in_process_runner
from slicebeam.runner_configs.worker_processes import WorkerProcesses

if TYPE_CHECKING:
    from slicebeam.runner_configs.backend import Build
    from slicebeam.runner_configs.options import DirectOptions


class InProcess(Backend):
    """Runs jobs in this process, or hands their bundles to processes that it started."""

    def __init__(self, options: DirectOptions) -> None:
        self.workers = workers = options.workers
        self.name = "direct" if workers == 1 else f"direct, {workers} processes"
        # They import for a second what they need: in the meantime this process does its own.
        self._processes = WorkerProcesses(workers) if workers > 1 else None

    def sent_options(self, name: str) -> list[str]:  # noqa: ARG002  (nobody else sees the job)
        """Return the options that a job is run with, as flags."""
        return [f"--direct_num_workers={self.workers}"]

    def run(self, build: Build, name: str) -> Any:
        """Run a pipeline."""
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions

        options = PipelineOptions(self.sent_options(name))
        pipeline = beam.Pipeline(runner=self._runner(), options=options)
        build(pipeline)
        if self._processes is None:
            return pipeline.run()
        return run_aside(pipeline.run, self._processes.check)

    def _runner(self) -> Any:
        if self._processes is not None:
            return in_process_runner(self._processes.address(self.log), self._processes.sockets)
        # Made explicitly: DirectRunner would first look for another runner's binary on the web.
        from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

        return FnApiRunner()

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the worker processes."""
        return self._processes.cpu_seconds() if self._processes is not None else 0.0

    def stop(self) -> None:
        """End the worker processes."""
        if self._processes is not None:
            self._processes.stop()
