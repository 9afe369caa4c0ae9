"""What commands that test slices have in common: their models, their metrics and their tests."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field, field_validator, model_validator

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.metrics.kinds import (
    ALTERNATIVES,
    COMPARISONS,
    CORRECTIONS,
    OF_ROWS,
    PAPER,
    REPLICATES,
    TESTS,
    Alternative,
    Comparison,
    Correction,
    Test,
)
from slicebeam.pipelines.config.models import ModelsConfig
from slicebeam.pipelines.config.option_fields import COLUMN, COLUMNS, FILE, Option, flag
from slicebeam.transforms.tfma.metric_specs import is_tfma, parse_metric

# What knows the metrics needs scipy, and is imported where a configuration is checked: the fields
# are read for a page of help.


# Each takes as long as the data itself, so that there are as many as in TFMA.
TFMA_REPLICATES = 20

Direction = Annotated[
    Alternative,
    Option(
        "Direction of the change to find: worse, better or both.",
        "Statistics",
        comes_first=True,
    ),
]


class RunConfig(ModelsConfig):
    """Options of every command that tests slices."""

    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        **ModelsConfig.choices,
        "compare": COMPARISONS,
        "alternative": ALTERNATIVES,
        "test": TESTS,
        "correction": CORRECTIONS,
    }

    features: Annotated[
        tuple[str, ...],
        Option(
            "Columns to slice by. Repeatable, or separated by commas.",
            "Features",
            metavar=COLUMNS,
            default="all others",
            by_commas=True,
        ),
    ] = ()
    exclude_features: Annotated[
        tuple[str, ...],
        Option(
            "Columns not to slice by. Repeatable, or separated by commas.",
            "Features",
            metavar=COLUMNS,
            by_commas=True,
        ),
    ] = ()
    weight: Annotated[
        str | None,
        Option("Column of sampling weights, which are at least 0.", "Data", metavar=COLUMN),
    ] = None
    group: Annotated[
        str | None,
        Option(
            "Column of groups of examples that belong together, such as a user's. Whole groups are "
            "resampled.",
            "Data",
            metavar=COLUMN,
        ),
    ] = None
    metric: Annotated[
        tuple[str, ...],
        Option(
            "Metrics: accuracy, error_rate, precision, recall, f1, fbeta:2, fpr, fnr, specificity, "
            "balanced_accuracy, mcc, auc, log_loss, brier, mse, mae, bias, prediction_rate, "
            "label_rate, loss, mean:COLUMN, precision_macro, recall_macro, f1_macro (or _micro); after "
            "the search, for what it found, tfma:NAME(argument=value) of TensorFlow Model Analysis. "
            "Repeatable, or separated by commas; the first one steers the search.",
            "Statistics",
            metavar="<metrics>",
            default="accuracy; loss with --loss",
            comes_first=True,
            by_commas=True,
        ),
    ] = ("accuracy",)
    # Those of `metric` that are of TensorFlow Model Analysis.
    tfma_metric: tuple[str, ...] = ()
    compare: Annotated[
        str | None,
        Option(
            "What a slice is compared with: overall (all examples) or baseline (the old model).",
            "Statistics",
            default="baseline if an old model is given",
            comes_first=True,
        ),
    ] = None
    alternative: Direction = "worse"
    test: Annotated[
        Test,
        Option(
            "auto: the metric's own test, calibrated for small slices too. bootstrap-rows, "
            "bootstrap-cells: t over Poisson replicates of examples, or of counts. permutation: "
            "random subsets. paper, paper-cells: AutoSlicer's t over 20 replicates, with its settings "
            "(alpha 0.01, no correction, size 1).",
            "Statistics",
        ),
    ] = "auto"
    replicates: Annotated[
        Annotated[int, Field(ge=2, le=10_000)] | None,
        Option(
            "Number of bootstrap replicates.",
            "Statistics",
            default="200 of rows, 1000 of cells, 20 for paper",
        ),
    ] = None
    correction: Annotated[
        str | None,
        Option(
            "Correction for testing many slices: fdr-level, fwer-level, fwer-tarone, bh, by or none.",
            "Statistics",
            default="fdr-level",
        ),
    ] = None
    alpha: Annotated[
        Annotated[float, Field(gt=0, lt=1)] | None,
        Option("Significance level.", "Statistics", default="0.05"),
    ] = None
    min_slice_size: Annotated[
        Annotated[int, Field(ge=1)] | None,
        Option("Smallest slice to test, in examples.", "Statistics", default="20"),
    ] = None
    since: Annotated[
        str | None,
        Option(
            "ChangeList of an earlier run, to report what is new, gone, worse or better since. Its "
            "bins and values are used unless you choose others.",
            "Output",
            metavar=FILE,
            has_placeholders=True,
        ),
    ] = None
    # Becomes `since`, or nothing, before there is a configuration.
    since_if_exists: Annotated[
        str | None,
        Option(
            "As --since, but a missing file is no error: for the first of many runs.",
            "Output",
            metavar=FILE,
            has_placeholders=True,
        ),
        Field(exclude=True),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _losses_are_the_metric(cls, given: Any) -> Any:
        # Who names a column of losses need not say that they are what is compared.
        if isinstance(given, dict) and given.get("loss") and "metric" not in given:
            return {**given, "metric": ("loss",)}
        return given

    @model_validator(mode="before")
    @classmethod
    def _tfma_apart(cls, given: Any) -> Any:
        names = given.get("metric") if isinstance(given, dict) else None
        if not isinstance(names, (list, tuple)):
            return given
        own = [name for name in names if not is_tfma(str(name))]
        others = tuple(dict.fromkeys(str(name) for name in names if is_tfma(str(name))))
        if not others:
            return given
        if not own or is_tfma(str(names[0])):
            raise OptionError(
                f"--metric {others[0]} can't steer a search; name one of slicebeam's own first, such as "
                f"--metric accuracy --metric '{others[0]}'"
            )
        return {**given, "metric": tuple(own), "tfma_metric": others}

    @field_validator("tfma_metric")
    @classmethod
    def _readable_tfma(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(parse_metric(name).text for name in names)

    @field_validator("metric")
    @classmethod
    def _known_metrics(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        from slicebeam.metrics.registry import metric

        return tuple(dict.fromkeys(metric(name).name for name in names))

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        from slicebeam.metrics.registry import needs_of

        sides = {
            "prediction": (self.prediction, self.score, self.model),
            "baseline": (self.baseline_prediction, self.baseline_score, self.baseline_model),
        }
        self._check_losses()
        if not any(sides["prediction"]) and needs_of(self.metric).predictions:
            raise InputError("no predictions: give --prediction, --score or --model")
        for name in (
            *("prediction", "score", "baseline_prediction", "baseline_score"),
            *("weight", "group", "example_id"),
        ):
            if self.label and getattr(self, name) == self.label:
                raise OptionError(f"{flag(name)} {self.label!r} is the label; name another column")
        for side, (column, _, model) in sides.items():
            prefix = "" if side == "prediction" else "baseline-"
            if column and model:
                raise OptionError(
                    f"--{prefix}prediction and --{prefix}model both give predictions; choose one"
                )
        if self.comparison == "baseline":
            self._check_models_differ()
        if self.compare == "baseline" and not self.has_baseline:
            raise OptionError(
                "--compare baseline needs the old model: give --baseline-prediction, "
                "--baseline-score, --baseline-model or --baseline-loss"
            )
        if self.positive_class is not None and not self._sets_a_class_apart():
            raise OptionError(
                "--positive-class is for scores and for metrics of one class, but the predictions are "
                f"classes and the metric is {', '.join(self.metric)}; leave it out"
            )
        if self.threshold != 0.5 and not self.uses_threshold:
            raise OptionError("--threshold is for scores, but the predictions are classes")
        self._check_scores()
        self._check_test()
        self._check_tfma()
        if self.compare == "overall" and self.baseline_model:
            raise OptionError("--baseline-model is for --compare baseline, not overall")
        return self

    def _check_tfma(self) -> None:
        if not self.tfma_metric:
            return
        first = f"--metric {self.tfma_metric[0]}"
        if self.comparison == "baseline":
            raise OptionError(
                f"{first} compares slices with all examples, not two models; add --compare overall"
            )
        if self.command == "discover":
            raise OptionError(f"{first} is for search and check, not for discover")
        if not (self.label and (self.score or self.prediction)):
            raise OptionError(
                f"{first} needs --label, and --score or --prediction; write the predictions of a model "
                "to a column"
            )

    @property
    def tfma_replicates(self) -> int:
        """Bootstrap replicates of metrics of TensorFlow Model Analysis."""
        return self.replicates or TFMA_REPLICATES

    def _check_models_differ(self) -> None:
        """Refuse a baseline that is read from the same place as the predictions."""
        from slicebeam.metrics.registry import needs_of

        needs = needs_of(self.metric)
        read = ["loss"] if needs.losses else []
        if needs.scores:
            read.append("score")
        if needs.predictions:
            # The first of these that is given predicts.
            firsts = [
                next(
                    (one for one in ("prediction", "model", "score") if getattr(self, old + one)),
                    "",
                )
                for old in ("", "baseline_")
            ]
            read += firsts[:1] if firsts[0] == firsts[1] else []
        for name in filter(None, read):
            column = getattr(self, name)
            if column and column == getattr(self, f"baseline_{name}"):
                raise OptionError(
                    f"--{name} and --baseline-{name} are both {column!r}: a model does not differ from "
                    "itself; name the old model's"
                )

    def _check_losses(self) -> None:
        from slicebeam.metrics.registry import needs_of

        needs = needs_of(self.metric)
        if self.baseline_loss and not self.loss:
            raise OptionError("--baseline-loss needs the losses of the new model, too: give --loss")
        for name in ("loss", "baseline_loss"):
            if getattr(self, name) and not needs.losses:
                raise OptionError(
                    f"{flag(name)} is for --metric loss, not {', '.join(self.metric)}; leave one out"
                )
        if needs.losses and not self.loss:
            raise OptionError("--metric loss needs a column of losses: give --loss")
        compares = self.comparison == "baseline"
        if needs.losses and compares and not self.baseline_loss:
            raise OptionError(
                "--metric loss needs the losses of both models: give --baseline-loss, or "
                "--compare overall"
            )
        if needs.predictions and compares and self.baseline_loss and not self._has_old_predictions:
            raise OptionError(
                f"--metric {', '.join(self.metric)} needs the old model's predictions: give "
                "--baseline-prediction, --baseline-score or --baseline-model"
            )
        if needs.labels and not self.label:
            raise OptionError("--label is missing")

    @property
    def _has_old_predictions(self) -> bool:
        return bool(self.baseline_prediction or self.baseline_score or self.baseline_model)

    def _sets_a_class_apart(self) -> bool:
        from slicebeam.metrics.registry import needs_of

        return self.uses_threshold or needs_of(self.metric).one_class

    def _check_scores(self) -> None:
        from slicebeam.metrics.registry import metric

        for name in self.metric:
            if not metric(name).needs.scores:
                continue
            if not (self.score or self.model):
                raise OptionError(f"--metric {name} needs scores: give --score, or --model")
            if self.comparison == "baseline" and not (self.baseline_score or self.baseline_model):
                raise OptionError(
                    f"--metric {name} needs scores of both models: give --baseline-score, or "
                    "--baseline-model"
                )

    def _check_test(self) -> None:
        from slicebeam.metrics.testing.slice_test import check_test

        for name in self.metric:
            check_test(self.test, name, self.comparison, weighted=self.weight is not None)
        if self.group and self.test not in ("auto", *OF_ROWS):
            raise OptionError(
                f"--test {self.test} takes examples for independent, but --group is given; use auto or "
                "bootstrap-rows, which resample whole groups"
            )
        if self.group and self.example_id and not self.names_examples:
            raise OptionError(
                "--example-id has no effect beside --group, whose examples are resampled together"
            )
        if self.replicates is not None and not (self.draws_replicates or self.tfma_metric):
            raise OptionError(
                f"--replicates is for a bootstrap, and --test {self.test} of {self.metric[0]} draws "
                "none; use bootstrap-rows or bootstrap-cells"
            )

    @property
    def names_examples(self) -> bool:
        """Whether ids tell the user which examples are meant, and not only how to resample them."""
        return False

    @property
    def uses_threshold(self) -> bool:
        """Whether scores are what predicts the classes."""
        new = self.score is not None and self.prediction is None and self.model is None
        old = (
            self.baseline_score is not None
            and self.baseline_prediction is None
            and self.baseline_model is None
        )
        return new or old

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
    def draws_replicates(self) -> bool:
        """Whether there are replicates, of examples or of counts."""
        return self.resamples_examples or self.used_test not in ("auto", "permutation")

    @property
    def has_baseline(self) -> bool:
        """Whether an old model is given."""
        return self._has_old_predictions or self.baseline_loss is not None

    @property
    def comparison(self) -> Comparison:
        """What a slice is compared with."""
        if self.compare is None:
            return "baseline" if self.has_baseline else "overall"
        return "baseline" if self.compare == "baseline" else "overall"

    @property
    def is_paper(self) -> bool:
        """Whether the published test is used, whose other settings then are the published ones."""
        return self.test in PAPER

    @property
    def used_alpha(self) -> float:
        """Level of significance."""
        return self.alpha if self.alpha is not None else (0.01 if self.is_paper else 0.05)

    @property
    def used_correction(self) -> Correction:
        """Correction for multiplicity."""
        chosen = self.correction or ("none" if self.is_paper else "fdr-level")
        return next(name for name in CORRECTIONS if name == chosen)

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
        """The files that decide what is found, besides the data."""
        return tuple(filter(None, (self.model, self.baseline_model, self.since)))

    def resolved(self, strategy: str) -> dict[str, Any]:  # noqa: ARG002  (a search has several)
        """Return every option that had an effect on a run, defaults too: what repeats it."""
        return self.options_used()

    def options_used(self) -> dict[str, Any]:
        """Return every option that has an effect whatever is searched, defaults too."""
        options = self.model_dump(mode="json", exclude_none=True)
        options |= {
            "alpha": self.used_alpha,
            "compare": self.comparison,
            "correction": self.used_correction,
            "min_slice_size": self.used_min_slice_size,
        }
        if self.draws_replicates:
            options["replicates"] = self.used_replicates
        elif self.tfma_metric:
            options["replicates"] = self.tfma_replicates
        unused = {
            "positive_class": not self._sets_a_class_apart(),
            "threshold": not self.uses_threshold,
        }
        return {
            name: value
            for name, value in options.items()
            if not unused.get(name, False) and value not in ([], "")
        }


Config = TypeVar("Config", bound=RunConfig)
