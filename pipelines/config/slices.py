"""The common options of commands that test slices: their models, their metrics and their tests."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import Field, model_validator

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.metrics.kinds import REPLICATES, Alternative, Correction, Test
from slicebeam.pipelines.config.measured_models import MetricsConfig
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

# What knows the metrics needs scipy, and is imported where a configuration is checked: the fields
# are read for a page of help.

Direction = Annotated[
    Alternative,
    Option(
        "Statistics", "Direction of the change to find: worse, better or both.", comes_first=True
    ),
]


EvalConfig = Annotated[
    OptionalPath,
    Option(
        "Data",
        "EvalConfig of TensorFlow Model Analysis (text or JSON), which gives models, metrics and "
        "sizes. A check also uses its slices and thresholds, and exits with 1 if a threshold "
        "fails. Needs the extra tfma.",
        metavar=FILE,
        has_placeholders=True,
    ),
]


class RunConfig(MetricsConfig):
    """Options of every command that tests slices."""

    features: Annotated[
        Texts, Option("Features", metavar=COLUMNS, default="all others", by_commas=True)
    ] = ()
    """Columns to slice by. Repeatable, or separated by commas."""
    exclude_features: Annotated[Texts, Option("Features", metavar=COLUMNS, by_commas=True)] = ()
    """Columns not to slice by. Repeatable, or separated by commas."""
    weight: Annotated[str | None, Option("Data", metavar=COLUMN)] = None
    """Column of sampling weights (0 or more)."""
    group: Annotated[str | None, Option("Data", metavar=COLUMN)] = None
    """Column of groups of examples that belong together, such as a user's. Whole groups are
    resampled."""
    query: Annotated[str | None, Option("Data", metavar=COLUMN)] = None
    """Column of the query of each row, for metrics of rankings such as ndcg:10, where a row has one
    --label (relevance) and --score. The queries are then the examples."""
    alternative: Direction = "worse"
    test: Annotated[Test, Option("Statistics")] = "auto"
    """auto: the metric's own test, calibrated for small slices too. bootstrap-rows: t over Poisson
    replicates of the examples. paper: AutoSlicer's t over 20 replicates, with its settings (alpha
    0.01, no correction, size 1)."""
    replicates: Annotated[
        Annotated[int, Field(ge=2, le=10_000)] | None,
        Option("Statistics", default="200, 20 for paper"),
    ] = None
    """Number of bootstrap replicates."""
    correction: Annotated[Correction | None, Option("Statistics", default="fdr-level")] = None
    """Correction for testing many slices: fdr-level, fwer-level, bh, by or none."""
    alpha: Annotated[
        Annotated[float, Field(gt=0, lt=1)] | None, Option("Statistics", default="0.05")
    ] = None
    """Significance level."""
    min_slice_size: Annotated[
        Annotated[int, Field(ge=1)] | None, Option("Statistics", default="20")
    ] = None
    """Smallest slice to test, in examples."""
    since: Annotated[OptionalPath, Option("Output", metavar=FILE, has_placeholders=True)] = default(
        None
    )
    """ChangeList of an earlier run, to report what is new, gone, worse or better since. Its bins
    and values are used unless you choose others."""
    # Becomes `since`, or nothing, before there is a configuration.
    since_if_exists: Annotated[
        OptionalPath, Option("Output", metavar=FILE, has_placeholders=True), Field(exclude=True)
    ] = default(None)
    """Like --since, but a missing file is not an error. For the first of a series of runs."""

    @model_validator(mode="before")
    @classmethod
    def _queries_are_examples(cls, given: Any) -> Any:
        query = given.get("query") if isinstance(given, dict) else None
        if not query:
            return given
        if given.get("example_id") not in (None, query):
            raise OptionError(
                "--example-id has no effect with --query, whose queries are the examples; leave it out"
            )
        return {**given, "example_id": None if given.get("group") else query}

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        from slicebeam.metrics.registry import needs_of

        sides = {
            "prediction": (self.prediction, self.score, self.model),
            "baseline": (self.baseline_prediction, self.baseline_score, self.baseline_model),
        }
        self.check_losses()
        needs = needs_of(self.measured)
        if not any(sides["prediction"]) and needs.predictions:
            raise InputError("no predictions: give --prediction, --score or --model")
        for name in (
            *("prediction", "score", "baseline_prediction", "baseline_score"),
            *("query", "weight", "group", "example_id"),
        ):
            if self.label and getattr(self, name) == self.label:
                raise OptionError(f"{flag(name)} {self.label!r} is the label; name another column")
        for side, (column, _, model) in sides.items():
            prefix = "" if side == "prediction" else "baseline-"
            if column and model:
                raise OptionError(
                    f"--{prefix}prediction and --{prefix}model both give predictions; choose one"
                )
        if self.comparison == "baseline" or needs.two_models:
            self.check_models_differ()
        if self.model_inputs and not (self.model or self.baseline_model):
            raise OptionError("--model-inputs is for --model and --baseline-model; leave it out")
        if self.compare == "baseline" and not self.has_baseline:
            raise OptionError(
                "--compare baseline needs the old model: give --baseline-prediction, "
                "--baseline-score, --baseline-model or --baseline-loss"
            )
        if self.positive_class is not None and not self.sets_a_class_apart():
            of_classes = "the predictions are classes and " if self.prediction or self.model else ""
            raise OptionError(
                f"--positive-class is for scores and for metrics of one class, but {of_classes}the metric "
                f"is {', '.join(self.metric)}; leave it out"
            )
        if self.threshold != 0.5 and not self.uses_threshold:
            why = (
                f"--metric {', '.join(self.metric)} compares no classes; leave it out"
                if not needs.predicted_classes
                else "the predictions are classes"
            )
            raise OptionError(f"--threshold is for scores, but {why}")
        others = [name for name in self.metric if not needs_of([name]).rankings]
        if self.query and (others or self.tfma_metric):
            raise OptionError(
                f"--query is for metrics of rankings, and {(*others, *self.tfma_metric)[0]} is not one; "
                "name others by --metric, such as ndcg:10"
            )
        self.check_scores()
        self._check_test()
        self.check_tfma()
        if self.compare == "overall" and self.baseline_model and not needs.two_models:
            raise OptionError("--baseline-model is for --compare baseline, not overall")
        return self

    def _check_test(self) -> None:
        from slicebeam.metrics.testing.slice_test import check_comparison

        for name in self.metric:
            check_comparison(
                name,
                self.comparison,
                weighted=self.weight is not None,
                resampled=self.group is not None or self.test != "auto",
            )
        if self.group and self.example_id and not self.names_examples:
            raise OptionError(
                "--example-id has no effect with --group, whose examples are resampled together"
            )
        if self.replicates is not None and not self.resamples_examples:
            raise OptionError(
                f"--replicates is for a bootstrap, and --test {self.test} of {self.metric[0]} draws "
                "none; use bootstrap-rows"
            )

    @property
    def leaves_outputs_out(self) -> bool:
        """Whether columns that are named like a model's output are no features."""
        return False

    @property
    def names_examples(self) -> bool:
        """Whether ids identify examples to the user, and not only for resampling."""
        return False

    @property
    def used_test(self) -> Test:
        """The test, which for groups is the bootstrap of examples."""
        return "bootstrap-rows" if self.group and self.test == "auto" else self.test

    @property
    def resamples_examples(self) -> bool:
        """Whether examples are resampled: all of them, or those of promising slices."""
        from slicebeam.metrics.registry import statistic_space
        from slicebeam.metrics.testing.slice_test import needs_rows

        space = statistic_space(self.metric, self.comparison, weighted=self.weight is not None)
        return any(needs_rows(self.used_test, name, space) for name in self.metric)

    @property
    def numbers_rows(self) -> bool:
        """Whether examples with the same id, or the same content where they have none, are counted."""
        return not self.group and (self.example_id is not None or self.resamples_examples)

    @property
    def is_paper(self) -> bool:
        """Whether the published test is used, whose other settings then are the published ones."""
        return self.test == "paper"

    @property
    def used_alpha(self) -> float:
        """Level of significance."""
        return self.alpha if self.alpha is not None else (0.01 if self.is_paper else 0.05)

    @property
    def used_correction(self) -> Correction:
        """Correction for multiplicity."""
        return self.correction or ("none" if self.is_paper else "fdr-level")

    @property
    def used_min_slice_size(self) -> int:
        """Smallest slice that is tested."""
        from slicebeam.metrics.registry import metric

        if self.min_slice_size is not None:
            return self.min_slice_size
        return 1 if self.is_paper else min(metric(name).min_slice_size for name in self.metric)

    def smallest_slice_of(self, name: str) -> int:
        """Return the smallest slice that is tested for a metric."""
        from slicebeam.metrics.registry import metric

        if self.min_slice_size is not None or self.is_paper:
            return self.used_min_slice_size
        return metric(name).min_slice_size

    @property
    def used_replicates(self) -> int:
        """Bootstrap replicates."""
        return self.replicates or REPLICATES.get(self.used_test, 0)

    @property
    def files_read(self) -> tuple[str, ...]:
        """The files that decide the result, besides the data."""
        models: list[str] = []
        if self.model or self.baseline_model:
            from slicebeam.transforms.encode.models import model_files

            models = [*model_files(self.model), *model_files(self.baseline_model)]
        return (*models, *filter(None, [self.since]))

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the options has no effect, a line each."""
        uri = getattr(self, "eval_config", None)
        if uri is None:
            return ()
        from slicebeam.transforms.tfma.eval_config import eval_plan

        plan = eval_plan(uri)
        lines = [*plan.notes]
        if self.command == "search" and (plan.specs or plan.has_thresholds):
            lines.append("slicing_specs and thresholds are for slicebeam check and are ignored")
        return tuple(f"--eval-config {uri}: {line}" for line in lines)

    def resolved(self, strategy: str) -> dict[str, Any]:  # noqa: ARG002  (a search has several)
        """Return every option that had an effect on a run, defaults too: what repeats it."""
        return self.options_used()

    def options_used(self) -> dict[str, Any]:
        """Return every option that has an effect with any strategy, including defaults."""
        options = self.model_dump(mode="json", exclude_none=True)
        options |= {
            "alpha": self.used_alpha,
            "compare": self.comparison,
            "correction": self.used_correction,
            "min_slice_size": self.used_min_slice_size,
        }
        if self.resamples_examples:
            options["replicates"] = self.used_replicates
        unused = {
            "positive_class": not self.sets_a_class_apart(),
            "threshold": not self.uses_threshold,
            "example_id": self.query is not None,
        }
        return {
            name: value
            for name, value in options.items()
            if not unused.get(name, False) and value not in ([], "")
        }


Config = TypeVar("Config", bound=RunConfig)
