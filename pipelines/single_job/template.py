"""A classic Dataflow template of a batch search: one job graph, launched without this package.

Each launch may give its own data and output; everything else is fixed when the template is written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.options.value_provider import RuntimeValueProvider

from slicebeam.metrics.errors import EngineError, InputError, OptionError, SlicebeamError
from slicebeam.pipelines.single_job.single_job import (
    SearchPart,
    SingleJobSearch,
    check_single_job,
    stages_of,
)
from slicebeam.runner_configs.dataflow import Dataflow
from slicebeam.runner_configs.dataflow_service import refusal
from slicebeam.runner_configs.options import DataflowOptions
from slicebeam.runner_configs.unrun_pipeline import unrun_pipeline
from slicebeam.transforms.secrets.variables import redacted
from slicebeam.transforms.storage.storage import (
    ObjectPath,
    make_folder,
    storage_path,
    written_whole,
)

if TYPE_CHECKING:
    import apache_beam as beam

    from slicebeam.pipelines.config.search import SearchConfig
    from slicebeam.runner_configs.config_files import RunnerConfig
    from slicebeam.transforms.storage.storage import StoragePath

NAME = "slicebeam-batch"
_PATTERN = r"^gs:\/\/[^\n\r]+$"
_PARAMETERS = {
    "data": (
        "Files to search in",
        "gs:// paths or patterns, separated by commas. Default: those of the template.",
    ),
    "output": (
        "Folder of the result",
        "gs:// folder for changelist.json and slices.parquet. Default: that of the template.",
    ),
    "work_dir": (
        "Folder for unfinished work",
        "gs:// folder that no other run uses. Default: _work in the folder of the result.",
    ),
}


class LaunchOptions(PipelineOptions):
    """The options of a launch."""

    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        for name, (label, _) in _PARAMETERS.items():
            parser.add_value_provider_argument(f"--{name}", type=str, default="", help=label)


@dataclass(frozen=True)
class Template:
    """A template that was written.

    Attributes
    ----------
    path : of the template; its metadata is next to it
    launch : a command that makes a job of it; empty if it is for inspection only
    """

    path: StoragePath
    launch: str


def write_template(config: SearchConfig, runner: RunnerConfig, folder: str) -> Template:
    """Write the template of a search.

    Parameters
    ----------
    folder : gs:// folder; or a local one, to look into what would be sent, without any service

    Raises
    ------
    InputError
        The engine is another one, or the search can't be one job.
    EngineError
        Storage failed.
    """
    options = runner.options
    if not isinstance(options, DataflowOptions):
        raise OptionError(
            f"--template is for the engine dataflow, not {runner.runner}: give --runner-config "
            "dataflow, with its options"
        )
    _check_no_secret(options)
    config = check_single_job(config)
    place = storage_path(folder, "--template")
    if isinstance(place, ObjectPath) and place.scheme != "gs":
        raise OptionError(f"--template {folder}: Dataflow reads templates from gs:// only")
    engine = Dataflow(options)
    engine.check()
    for given in filter(None, [*config.data, config.output, config.work_dir]):
        if not engine.sees(given):
            raise InputError(
                f"{given} is not in gs://, and the workers of {engine.runs_on_other_machines()} see "
                "nothing else"
            )
    path = place / NAME
    beam_options = _beam_options(engine, place, path)
    later = beam_options.view_as(LaunchOptions)
    part = SearchPart(
        config,
        engine.name,
        engine.workers,
        stages_of(config),
        {name: getattr(later, name) for name in _PARAMETERS},
        removes_work=True,
    )
    _write(part, beam_options)
    with written_whole(place / f"{NAME}_metadata") as stream:
        stream.write(json.dumps(metadata(), indent=1).encode())
    if isinstance(place, Path):
        return Template(path, "")
    launch = (
        f"gcloud dataflow jobs run NAME --project={options.project} --region={options.region} "
        f"--gcs-location={path} --parameters=data=gs://…,output=gs://…"
    )
    return Template(path, launch)


def _check_no_secret(options: DataflowOptions) -> None:
    for name, value in options.beam_options.items():
        if redacted(str(value)) != str(value):
            raise OptionError(
                f"--template keeps the options of the job, and beam_options.{name} holds "
                f"{redacted(str(value))}, whose value would be in the file; leave it out"
            )


def metadata() -> dict[str, Any]:
    """Return what Google's console shows of the template, and how it checks the parameters."""
    return {
        "name": "slicebeam batch search",
        "description": "Finds the slices of evaluation data where a model is worse.",
        "parameters": [
            {
                "name": name,
                "label": label,
                "helpText": text,
                "isOptional": True,
                "regexes": [_PATTERN],
            }
            for name, (label, text) in _PARAMETERS.items()
        ],
    }


def _beam_options(engine: Dataflow, place: StoragePath, path: StoragePath) -> PipelineOptions:
    beam_options = PipelineOptions(engine.sent_options(NAME))
    google = beam_options.view_as(GoogleCloudOptions)
    google.template_location = str(path)
    if isinstance(place, Path):
        # What is only to be looked at is written without asking any service.
        staging = place / "staging"
        make_folder(staging)
        google.template_location = str(path.absolute()) if isinstance(path, Path) else str(path)
        google.staging_location = str(staging.absolute())
        google.no_auth = True
    return beam_options


def _write(part: SearchPart, options: PipelineOptions) -> None:
    # Made for another runner: for this one Beam would refuse, or replace, a local staging folder.
    with unrun_pipeline(options) as pipeline:
        _ = pipeline | "Search" >> SingleJobSearch(part)
        _write_graph(pipeline, options)


def _write_graph(pipeline: beam.Pipeline, options: PipelineOptions) -> None:
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner

    given = RuntimeValueProvider.runtime_options
    # Where this process has run a job, Beam takes what it was given for what a launch will give.
    RuntimeValueProvider.set_runtime_options(None)
    try:
        DataflowRunner().run_pipeline(pipeline, options)
    except SlicebeamError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0][:300] if lines else type(error).__name__
        raise (
            refusal(error, "accept the template")
            or EngineError(f"the template could not be written: {reason}")
        ) from error
    finally:
        RuntimeValueProvider.set_runtime_options(given)
