"""Options of every command that reads a ChangeList and writes its next revision."""

from __future__ import annotations

from typing import Annotated

from slicebeam.pipelines.confirmation import Confirmed
from slicebeam.pipelines.option_fields import FILE, PATH, Option
from slicebeam.pipelines.run_options import Display


class DocumentConfig(Display):
    """Options of every command that reads a ChangeList."""

    changelist: Annotated[
        str,
        Option(
            "ChangeList, of any revision; or its folder, for the last revision.",
            "Data",
            metavar=PATH,
        ),
    ]


class ExamplesConfig(DocumentConfig):
    """Options of every command that reads the examples of a ChangeList, too."""

    data: Annotated[
        tuple[str, ...],
        Option(
            "Files or globs of the examples. Repeatable.",
            "Data",
            metavar=PATH,
            default="as in --changelist",
        ),
    ] = ()
    model: Annotated[
        str | None,
        Option(
            "Confirms the model in --changelist. Loading it runs the code in it.",
            "Models",
            metavar=FILE,
        ),
    ] = None
    baseline_model: Annotated[
        str | None,
        Option("Confirms the old model in --changelist.", "Models", metavar=FILE),
    ] = None
    encoder: Annotated[
        str | None,
        Option(
            "Confirms the encoder in --changelist, where it is code (module:function) or an endpoint "
            "(openai:URL) that gets your texts.",
            "Models",
            metavar="<encoder>",
        ),
    ] = None
    allow_http: Annotated[
        bool,
        Option("Send keys over http:// to other machines, where others can read them.", "Engine"),
    ] = False

    @property
    def confirmed(self) -> Confirmed:
        """What the user names again of what the document names."""
        return Confirmed(self.model, self.baseline_model, self.encoder)


class CountingConfig(ExamplesConfig):
    """Options of every command that counts new slices."""

    runner_config: Annotated[
        str,
        Option(
            "Engine: direct, direct_multi, prism, flink, spark, dataflow, or a YAML file.",
            "Engine",
            metavar="<engine>",
        ),
    ] = "direct"
    runner_option: Annotated[
        tuple[str, ...],
        Option("Option of the engine. Repeatable.", "Engine", metavar="<key=value>"),
    ] = ()
