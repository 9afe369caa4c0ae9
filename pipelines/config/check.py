"""The configuration of a check, most of which may come from the document of an earlier run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import model_validator

from slicebeam.metrics.errors import InputError, OptionError, unknown_name
from slicebeam.pipelines.config.common import CHUNK_OPTIONS, Command, validated
from slicebeam.pipelines.config.confirmation import refuse_unconfirmed
from slicebeam.pipelines.config.option_fields import (
    COLUMN,
    COLUMNS,
    FILE,
    Option,
    OptionalPath,
    Texts,
    default,
    flag,
)
from slicebeam.pipelines.config.slices import EvalConfig, RunConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

_OLD_MODEL = ("baseline_prediction", "baseline_score", "baseline_model", "baseline_loss")
# What a check takes over from the run whose slices it checks. Options of a group that belong
# together are taken over together, and only if the user gives none of them.
_TOGETHER = (
    ("label",),
    ("prediction", "score", "model", "loss"),
    (*_OLD_MODEL, "compare"),
    ("metric",),
    ("alternative",),
    ("test",),
    ("correction",),
    ("alpha",),
    ("min_slice_size",),
    ("weight",),
    ("example_id", "group"),
    ("query",),
    ("positive_class",),
    ("threshold",),
    ("score_classes",),
    ("seed",),
)
# What only means something beside options that the user may have given otherwise.
_BESIDE = {
    "positive_class": ("metric", "prediction", "score", "model", "label"),
    "query": ("metric",),
    "threshold": ("prediction", "score", "model"),
    "score_classes": ("metric", "score", "label"),
    # Their defaults depend on these.
    "min_slice_size": ("metric", "test"),
    "alpha": ("test",),
    "correction": ("test",),
    "replicates": ("metric", "test", "compare", "group"),
    "features": ("prediction", "score", "model"),
    "exclude_features": ("prediction", "score", "model"),
}


class CheckConfig(RunConfig):
    """Options of ``slicebeam check``."""

    command: ClassVar[Command] = "check"

    changelist: Annotated[
        OptionalPath, Option("Known slices", metavar=FILE, has_placeholders=True)
    ] = default(None)
    """ChangeList of an earlier run, whose slices to check."""
    slices: Annotated[OptionalPath, Option("Known slices", metavar=FILE, has_placeholders=True)] = (
        default(None)
    )
    """YAML file of predicates to check, such as '- age < 25 & sex = Female'."""
    eval_config: EvalConfig = default(None)
    encoder: Annotated[
        str | None, Option("Known slices", metavar="<encoder>", stands_instead=True)
    ] = None
    """Encoder in --changelist, to confirm it. Needed if it is code (module:function) or an endpoint
    (openai:URL) that receives your texts."""
    label: Annotated[str, Option("Models", metavar=COLUMN, default="as in --changelist")] = ""
    """Column of the true class or value."""
    features: Annotated[
        Texts, Option("Models", metavar=COLUMNS, default="all others", by_commas=True)
    ] = ()
    """Columns that --model reads, if the model does not know their names. Repeatable, or separated
    by commas."""
    exclude_features: Annotated[Texts, Option("Models", metavar=COLUMNS, by_commas=True)] = ()
    """Columns that --model does not read, if the model does not know the names of its columns.
    Repeatable, or separated by commas."""

    @model_validator(mode="after")
    def _checks(self) -> CheckConfig:
        if self.eval_config is not None:
            self._check_eval_config(self.eval_config)
        elif (self.changelist is None) == (self.slices is None):
            raise InputError(
                "give the slices to check: either --changelist, of an earlier run, or --slices, a YAML "
                "file of predicates, or --eval-config"
            )
        if self.encoder is not None and self.changelist is None:
            raise OptionError(
                "--encoder confirms the encoder of a --changelist, but --changelist is not given"
            )
        for name in ("features", "exclude_features"):
            if getattr(self, name) and not (self.model or self.baseline_model):
                raise OptionError(
                    f"{flag(name)} is for a --model without column names; the slices of a check are given"
                )
        return self

    def _check_eval_config(self, uri: str) -> None:
        """Refuse slices beside those of an EvalConfig, and thresholds that lack the old model."""
        for name in ("changelist", "slices"):
            if getattr(self, name) is not None:
                raise OptionError(
                    f"{flag(name)} and --eval-config {uri} both give the slices to check; leave one out"
                )
        from slicebeam.transforms.tfma.eval_config import eval_plan

        changes = eval_plan(uri).changes
        if changes and self.comparison != "baseline":
            raise OptionError(
                f"--eval-config {uri}: the change_threshold of {changes[0]} needs the old model; give "
                "--baseline-score, --baseline-prediction or --baseline-model"
            )

    @property
    def non_identity(self) -> frozenset[str]:
        """The options that do not change the result, so a run may resume with others."""
        derives = self.changelist is not None
        return super().non_identity - (CHUNK_OPTIONS if derives else frozenset())

    @property
    def files_read(self) -> tuple[str, ...]:
        """The files that decide the result, besides the data."""
        return (
            *super().files_read,
            *filter(None, [self.changelist, self.slices, self.eval_config]),
        )


def check_config(options: dict[str, Any]) -> CheckConfig:
    """Return the validated configuration of a check.

    With a ChangeList, missing options are those of the run that the document describes: its
    columns, metrics and tests. A model is code, which only the user may name.
    """
    for name in options:
        if name not in CheckConfig.model_fields:
            raise unknown_name("option", name, CheckConfig.model_fields)
    changelist = options.get("changelist")
    others = options.get("slices") or options.get("eval_config")
    if isinstance(changelist, str) and changelist and not others:
        from slicebeam.pipelines.changelist.reading import read_search
        from slicebeam.pipelines.changelist.revisions import base_of

        # Of a folder the last revision.
        options = {**options, "changelist": base_of(changelist)}
        document = read_search(options["changelist"], "--changelist")
        taken = taken_over(document.provenance.config, options)
        refuse_unconfirmed(options["changelist"], taken, options)
        options = {**taken, **options}
    from slicebeam.pipelines.config.eval_options import with_eval_config

    return validated(CheckConfig, with_eval_config(options))


def taken_over(earlier: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an earlier run that a check has too, unless others were given."""
    taken: dict[str, Any] = {}
    groups = list(_TOGETHER)
    if earlier.get("model") or earlier.get("baseline_model"):
        groups += [("features",), ("exclude_features",)]
    if earlier.get("test") != "auto" or earlier.get("group"):
        groups.append(("replicates",))
    if given.get("compare") == "baseline":
        groups.append(_OLD_MODEL)
    for group in groups:
        if any(name in given for name in group):
            continue
        for name in group:
            beside = _BESIDE.get(name, ())
            if name in earlier and not any(other in given for other in beside):
                taken[name] = earlier[name]
    if "group" in taken:
        # A discovery takes both, and examples are resampled by one.
        taken.pop("example_id", None)
    return taken
