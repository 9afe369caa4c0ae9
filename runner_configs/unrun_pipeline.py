"""Pipelines that are put together to look at, and perhaps run in this process."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import apache_beam as beam

if TYPE_CHECKING:
    from collections.abc import Iterator

    from apache_beam.options.pipeline_options import PipelineOptions


@contextmanager
def unrun_pipeline(options: PipelineOptions | None = None) -> Iterator[beam.Pipeline]:
    """Yield a new pipeline, whose temporary folder is removed at the end."""
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

    # Named: DirectRunner would first look for another runner's binary on the web.
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=options)
    try:
        yield pipeline
    finally:
        # Beam makes the folder with the pipeline, and removes it only after a run.
        shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
