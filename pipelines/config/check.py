"""The configuration of a check, most of which may come from the document of an earlier run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from slicebeam.pipelines.config.common import CHUNK_OPTIONS, Command, validated
from slicebeam.pipelines.config.confirmation import refuse_unconfirmed
from slicebeam.pipelines.config.option_fields import (
    Column,
    Columns,
    Excludes,
    Needed,
    Option,
    OptionalFile,
    Requires,
    Rule,
    default,
)
from slicebeam.pipelines.config.search import with_eval_config
from slicebeam.pipelines.config.slices import RunConfig

_PREDICTION = "prediction score model loss"
_OLD_MODEL = "baseline_prediction baseline_score baseline_model baseline_loss"
# Options that a check inherits from the baseline run. Each is not inherited if the user sets it, or one
# of these: options that belong together, and those on which its meaning or its default depends.
_INHERITED = {
    **dict.fromkeys(("label", "metric", "alternative", "test", "weight", "seed"), ""),
    **dict.fromkeys(_PREDICTION.split(), _PREDICTION),
    **dict.fromkeys((*_OLD_MODEL.split(), "compare"), f"{_OLD_MODEL} compare"),
    **dict.fromkeys(("example_id", "group"), "example_id group"),
    **dict.fromkeys(("features", "exclude_features"), "prediction score model"),
    "correction": "test",
    "alpha": "test",
    "min_slice_size": "metric test",
    "replicates": "metric test compare group",
    "query": "metric",
    "positive_class": "metric prediction score model label",
    "threshold": "prediction score model",
    "score_classes": "metric score label",
}


class CheckConfig(RunConfig):
    """Options of ``slicebeam check``."""

    command: ClassVar[Command] = "check"
    rules: ClassVar[tuple[Rule, ...]] = (
        Requires("encoder", "changelist", "it confirms the encoder of a document"),
        Requires("features exclude_features", "model baseline_model", "it says what a model reads"),
        Excludes("changelist", "slices", "both give the slices to check"),
        Excludes("eval_config", "changelist slices", "both give the slices to check"),
        Needed("changelist slices eval_config", why="the slices to check are missing"),
    )

    changelist: Annotated[OptionalFile, Option("Known slices")] = default(None)
    """ChangeList of an earlier run, whose slices to check."""
    slices: Annotated[OptionalFile, Option("Known slices")] = default(None)
    """YAML file of predicates to check, such as '- age < 25 & sex = Female'."""
    encoder: Annotated[
        str | None, Option("Known slices", metavar="<encoder>", is_overridable=True)
    ] = None
    """Encoder in --changelist, to confirm it. Needed if it is code (module:function) or an endpoint
    (openai:URL) that receives your texts."""
    label: Annotated[Column, Option("Models")] = ""
    """Column of the true class or value. [default: as in --changelist]"""
    features: Annotated[Columns, Option("Models")] = ()
    """Columns that --model reads, if the model does not know their names. Repeatable, or separated
    by commas. [default: all others]"""
    exclude_features: Annotated[Columns, Option("Models")] = ()
    """Columns that --model does not read, if the model does not know the names of its columns.
    Repeatable, or separated by commas."""

    @property
    def non_identity(self) -> frozenset[str]:
        """The options that do not change the result, so a run may resume with others."""
        derives = self.changelist is not None
        return super().non_identity - (CHUNK_OPTIONS if derives else frozenset())


def check_config(options: dict[str, Any]) -> CheckConfig:
    """Return the validated configuration of a check, which inherits from the run of a ChangeList."""
    changelist = options.get("changelist")
    others = options.get("slices") or options.get("eval_config")
    if isinstance(changelist, str) and changelist and not others:
        from slicebeam.pipelines.changelist.reading import read_search
        from slicebeam.pipelines.changelist.revisions import base_of

        options = {**options, "changelist": base_of(changelist)}
        document = read_search(options["changelist"], "--changelist")
        taken = inherited_options(document.provenance.config, options)
        refuse_unconfirmed(options["changelist"], taken, options)
        options = {**taken, **options}
    return validated(CheckConfig, with_eval_config(options))


def inherited_options(earlier: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a check inherits from an earlier run, unless the user sets others."""
    beside = dict(_INHERITED)
    if options.get("compare") == "baseline":
        beside |= dict.fromkeys(_OLD_MODEL.split(), _OLD_MODEL)
    if not (earlier.get("model") or earlier.get("baseline_model")):
        del beside["features"], beside["exclude_features"]
    if earlier.get("test") == "auto" and not earlier.get("group"):
        del beside["replicates"]
    taken = {
        name: earlier[name]
        for name, others in beside.items()
        if name in earlier and not any(other in options for other in (name, *others.split()))
    }
    if "group" in taken:
        # A discovery takes both, and examples are resampled by one.
        taken.pop("example_id", None)
    return taken
