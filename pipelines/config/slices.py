"""The common options of commands that test slices: their models, their metrics and their tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import Field, ValidationInfo, field_validator, model_validator

from slicebeam.metrics.errors import OptionError, flag
from slicebeam.metrics.kinds import REPLICATES, Alternative, Comparison, Correction, Test, is_tfma
from slicebeam.pipelines.config.common import DataConfig
from slicebeam.pipelines.config.option_fields import (
    PATH,
    Column,
    Columns,
    Count,
    Differs,
    Excludes,
    Model,
    Names,
    NumberText,
    Option,
    OptionalFile,
    Requires,
    Rule,
    Share,
    Texts,
    any_flag,
    default,
)

if TYPE_CHECKING:
    from slicebeam.metrics.measures.metric import Needs as MetricNeeds

# What knows the metrics needs scipy, and is imported where a configuration is checked: the fields
# are read for a page of help.


def needs_of(metrics: Sequence[str]) -> MetricNeeds:
    """Return what metrics must know of each example."""
    from slicebeam.metrics.measures import registry

    return registry.needs_of(metrics)


class RunConfig(DataConfig):
    """Options of every command that tests slices."""

    # Whether ids identify examples to the user, and not only for resampling.
    names_examples: ClassVar[bool] = False
    rules: ClassVar[tuple[Rule, ...]] = (
        Requires("model_inputs", "model baseline_model", "it says what a model takes"),
        Requires("baseline_loss", "loss"),
        Excludes("prediction", "model", "both give predictions"),
        Excludes("baseline_prediction", "baseline_model", "both give predictions"),
        Differs(
            "label",
            "prediction score baseline_prediction baseline_score query weight group example_id",
        ),
        Excludes(
            "baseline_data",
            "baseline_prediction baseline_score baseline_model baseline_loss",
            "compare with different things",
        ),
        Excludes("baseline_data", "query eval_config"),
        Requires("compare=earlier", "baseline_data"),
        Excludes("compare=overall compare=baseline", "baseline_data"),
    )

    baseline_data: Annotated[Texts, Option("Data", metavar=PATH, has_placeholders=True)] = ()
    """Files or globs of earlier data, of the same columns, to find where a model became worse since.
    Repeatable."""
    label: Annotated[Column, Option("Models")] = ""
    """Column of the true class or value. Not needed with --loss or for mean:COLUMN."""
    prediction: Annotated[Column | None, Option("Models")] = None
    """Column of predicted classes or values, of the label's type."""
    score: Annotated[Column | None, Option("Models")] = None
    """Column with the probability of --positive-class. With --prediction, which gives the classes,
    only metrics of scores, such as auc, use it. For log_loss_multiclass, brier_multiclass and
    top_k_accuracy:3 a list of the scores of all classes, or a column for each: p_yes,p_no. For
    ndcg:10 a list of the scores of the results of a query, or with --query a number."""
    model: Annotated[Model | None, Option("Models")] = None
    """Model to predict with: of scikit-learn (pickle, joblib), a TensorFlow SavedModel (folder),
    ONNX, or module:function of Python. Loading one runs the code in it: name only what you
    trust."""
    model_inputs: Annotated[Columns, Option("Models")] = ()
    """Columns that a model takes that does not name them itself, in its order, for both models.
    [default: the features]"""
    baseline_prediction: Annotated[Column | None, Option("Models")] = None
    """Column of the old model's predictions, to compare two models."""
    baseline_score: Annotated[Column | None, Option("Models")] = None
    """Column of the old model's scores."""
    baseline_model: Annotated[Model | None, Option("Models")] = None
    """The old model. Loading it runs the code in it, as for --model."""
    loss: Annotated[Column | None, Option("Models")] = None
    """Column of each example's loss, instead of label and predictions."""
    baseline_loss: Annotated[Column | None, Option("Models")] = None
    """Column of the old model's losses."""
    positive_class: Annotated[NumberText, Option("Models", metavar="<class>")] = default(None)
    """Class whose probability is the score. [default: 1 or true]"""
    score_classes: Annotated[Names, Option("Models", metavar="<classes>")] = ()
    """Classes of a --score that is a list with a number for each of them, or a column for each, in
    its order. Columns name them by default: what follows their common beginning, up to a _.
    [default: labels are 0, 1, …]"""
    threshold: Annotated[float, Field(ge=0, le=1), Option("Models")] = 0.5
    """Smallest score, or probability by --model, that predicts the positive class."""
    metric: Annotated[
        Names, Option("Statistics", metavar="<metrics>", comes_first=True, is_overridable=True)
    ] = ("accuracy",)
    """Metrics: accuracy, error_rate, precision, recall, f1, fbeta:2, fpr, fnr, specificity, npv,
    balanced_accuracy, mcc, kappa, auc, average_precision, log_loss, brier,
    calibration_in_the_large, calibration_error:10, recall_at_fpr:0.05, mse, rmse, r2, mae, bias,
    mape, smape, pinball:0.9, poisson_deviance, prediction_rate, label_rate, disagreement, loss,
    mean:COLUMN, precision_macro, recall_macro, f1_macro (or _micro), balanced_accuracy_multiclass,
    mcc_multiclass, top_k_accuracy:3, log_loss_multiclass, brier_multiclass, jaccard, hamming,
    ndcg:10, map:10, mrr, precision_at:10. module:Name is your own Metric, as is a name that an
    installed package registers; importing it runs its code. tfma:NAME(argument=value) is a metric
    of TensorFlow Model Analysis, computed after the search for the slices it found. Repeatable, or
    separated by commas; the first one steers the search. [default: accuracy; loss with --loss]"""
    tfma_module: Annotated[
        Texts, Option("Statistics", metavar="<module>", is_overridable=True)
    ] = ()
    """Module of your own TFMA metrics, which --metric or --eval-config names. Importing it runs its
    code. Repeatable."""
    # Those of `metric` that are of TensorFlow Model Analysis.
    tfma_metric: tuple[str, ...] = Field(default=(), init=False)
    compare: Annotated[Comparison | None, Option("Statistics", comes_first=True)] = None
    """What a slice is compared with: overall (all examples), baseline (the old model) or earlier (the
    slice on earlier data). [default: baseline if an old model is given, earlier if earlier data
    is]"""

    features: Annotated[Columns, Option("Features")] = ()
    """Columns to slice by. Repeatable, or separated by commas. [default: all others]"""
    exclude_features: Annotated[Columns, Option("Features")] = ()
    """Columns not to slice by. Repeatable, or separated by commas."""
    weight: Annotated[Column | None, Option("Data")] = None
    """Column of sampling weights (0 or more)."""
    group: Annotated[Column | None, Option("Data")] = None
    """Column of groups of examples that belong together, such as a user's. Whole groups are
    resampled."""
    query: Annotated[Column | None, Option("Data")] = None
    """Column of the query of each row, for metrics of rankings such as ndcg:10, where a row has one
    --label (relevance) and --score. The queries are then the examples."""
    eval_config: Annotated[OptionalFile, Option("Data")] = default(None)
    """EvalConfig of TensorFlow Model Analysis (text or JSON), which gives models, metrics and
    sizes. A check also uses its slices and thresholds, and exits with 1 if a threshold fails. Needs
    the extra tfma."""
    alternative: Annotated[Alternative, Option("Statistics", comes_first=True)] = "worse"
    """Direction of the change to find: worse, better or both."""
    test: Annotated[Test, Option("Statistics")] = "auto"
    """auto: the metric's own test, calibrated for small slices too. bootstrap-rows: t over Poisson
    replicates of the examples. paper: AutoSlicer's t over 20 replicates, with its settings (alpha
    0.01, no correction, size 1)."""
    replicates: Annotated[int | None, Field(ge=2, le=10_000), Option("Statistics")] = None
    """Number of bootstrap replicates. [default: 200, 20 for paper]"""
    correction: Annotated[Correction | None, Option("Statistics")] = None
    """Correction for testing many slices: fdr-level, fwer-level, bh, by or none. [default:
    fdr-level]"""
    alpha: Annotated[Share | None, Option("Statistics")] = None
    """Significance level. [default: 0.05]"""
    min_slice_size: Annotated[Count | None, Option("Statistics")] = None
    """Smallest slice to test, in examples. [default: 20]"""
    since: Annotated[OptionalFile, Option("Output")] = default(None)
    """ChangeList of an earlier run, to report what is new, gone, worse or better since. Its bins
    and values are used unless you choose others. With one model its data is compared, like
    --baseline-data, where it is still there."""
    # Becomes `since` where there is such a file.
    since_if_exists: Annotated[OptionalFile, Option("Output"), Field(exclude=True)] = default(None)
    """Like --since, but a missing file is not an error. For the first of a series of runs."""

    @model_validator(mode="before")
    @classmethod
    def _with_what_follows(cls, chosen: dict[str, Any]) -> dict[str, Any]:
        chosen = dict(chosen)
        optional_since = chosen.pop("since_if_exists", None)
        if optional_since is not None:
            from slicebeam.transforms.storage.storage import storage_path

            if chosen.get("since") is not None:
                raise OptionError(
                    "--since and --since-if-exists both name an earlier run; choose one"
                )
            if not isinstance(optional_since, str) or not optional_since:
                raise OptionError(f"--since-if-exists {optional_since!r} is not a path")
            if storage_path(optional_since, "--since-if-exists").is_file():
                chosen["since"] = optional_since
        # Who names a column of losses need not say that they are what is compared.
        if chosen.get("loss"):
            chosen.setdefault("metric", ("loss",))
        if query := chosen.get("query"):
            if chosen.get("example_id") not in (None, query):
                raise OptionError(
                    "--example-id has no effect with --query, whose queries are the examples; leave it out"
                )
            chosen["example_id"] = None if chosen.get("group") else query
        names = chosen.get("metric")
        if isinstance(names, (list, tuple)) and any(is_tfma(str(name)) for name in names):
            others = tuple(dict.fromkeys(str(name) for name in names if is_tfma(str(name))))
            if is_tfma(str(names[0])):
                raise OptionError(
                    f"--metric {others[0]} can't steer a search; name one of slicebeam's own metrics "
                    f"first, such as --metric accuracy --metric '{others[0]}'"
                )
            chosen["metric"] = tuple(name for name in names if not is_tfma(str(name)))
            chosen["tfma_metric"] = others
        return chosen

    @field_validator("tfma_metric")
    @classmethod
    def _readable_tfma(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if not names:
            return ()
        from slicebeam.transforms.tfma.metric_specs import parse_metric

        modules = info.data.get("tfma_module", ())
        return tuple(parse_metric(name, modules).text for name in names)

    @field_validator("metric")
    @classmethod
    def _are_metrics(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        from slicebeam.metrics.measures.registry import user_named

        if not names:
            raise OptionError("--metric is empty; name one, such as accuracy")
        return tuple(dict.fromkeys(map(user_named, names)))

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        self._check_inputs()
        self._check_models()
        self._check_classes()
        self._check_scores()
        self._check_test()
        self._check_tfma()
        return self

    def _check_inputs(self) -> None:
        """Refuse metrics that lack what they read, and losses that none reads."""
        for name in ("loss", "baseline_loss"):
            if getattr(self, name) and not self.needs.losses:
                metrics = ", ".join(self.metric)
                raise OptionError(
                    f"{flag(name)} is for --metric loss, not {metrics}; leave one out"
                )
        if self.needs.labels and not self.label:
            raise OptionError("--label is missing")
        compares = self.comparison == "baseline"
        for name in self.measured:
            needs = needs_of([name])
            for prefix in ("", "baseline_")[: 1 + (compares or needs.two_models)]:
                for is_read, options, kind in (
                    (needs.losses, "loss", ""),
                    (needs.scores, "score model", ""),
                    (needs.class_scores or needs.rankings, "score", "lists of scores"),
                    (needs.label_lists, "prediction", "lists of labels"),
                    (needs.predictions, "prediction score model", ""),
                ):
                    names = [f"{prefix}{option}" for option in options.split()]
                    if is_read and not any(getattr(self, option) for option in names):
                        of_lists = kind and f", a column of {kind}"
                        instead = ", or --compare overall" if prefix and compares else ""
                        what = f"--metric {name}" if name in self.metric else "--parity"
                        raise OptionError(f"{what} needs {any_flag(names)}{of_lists}{instead}")

    def _check_models(self) -> None:
        """Refuse a baseline that is read from the same place as the predictions."""
        if self.comparison == "overall" and not self.needs.two_models:
            if self.compare and self.baseline_model:
                raise OptionError("--baseline-model is for --compare baseline, not overall")
            return
        needs = needs_of(self.metric)
        read = ["loss"] if needs.losses else []
        if needs.scores or needs.class_scores or needs.rankings:
            read.append("score")
        if needs.predictions and self._predicting("") == self._predicting("baseline_"):
            read.append(self._predicting(""))
        for name in read:
            column = getattr(self, name)
            if column and column == getattr(self, f"baseline_{name}"):
                raise OptionError(
                    f"--{name} and --baseline-{name} are both {column!r}: a model does not differ "
                    "from itself; name the old model's column or file"
                )

    def _check_classes(self) -> None:
        """Refuse what is for one class, for scores or for rankings where there is none."""
        needs, metrics = self.needs, ", ".join(self.metric)
        if self.positive_class is not None and not self.sets_a_class_apart():
            of_classes = "the predictions are classes and " if self.prediction or self.model else ""
            raise OptionError(
                f"--positive-class is for scores and for metrics of one class, but {of_classes}the metric "
                f"is {metrics}; leave it out"
            )
        if self.threshold != 0.5 and not self.uses_threshold:
            why = f"--metric {metrics} compares no classes; leave it out"
            if needs.predicted_classes:
                why = "the predictions are classes"
            raise OptionError(f"--threshold is for scores, but {why}")
        others = [name for name in self.metric if not needs_of([name]).rankings]
        if self.query and (others or self.tfma_metric):
            raise OptionError(
                f"--query is for metrics of rankings, and {(*others, *self.tfma_metric)[0]} is not one; "
                "name others by --metric, such as ndcg:10"
            )

    def _check_scores(self) -> None:
        of_lists = [name for name in self.metric if needs_of([name]).class_scores]
        if self.score_classes and not of_lists:
            raise OptionError(
                "--score-classes is for metrics of the scores of all classes, such as "
                f"log_loss_multiclass, not {', '.join(self.metric)}; leave it out"
            )
        for name in self.metric if of_lists else ():
            needs = needs_of([name])
            if needs.scores or (needs.predicted_classes and not (self.prediction or self.model)):
                remedy = (
                    "measure it in a run of its own" if needs.scores else "give --prediction too"
                )
                raise OptionError(
                    f"--metric {name} takes a number from --score, but {of_lists[0]} a list of them; {remedy}"
                )

    def _check_test(self) -> None:
        from slicebeam.metrics.measures.slice_test import check_comparison

        is_resampled = self.group is not None or self.test != "auto"
        for name in self.metric:
            check_comparison(
                name, self.comparison, weighted=self.weight is not None, resampled=is_resampled
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

    def _check_tfma(self) -> None:
        if not self.tfma_metric:
            return
        first = f"--metric {self.tfma_metric[0]}"
        compares = self.comparison == "baseline"
        # A column of predictions is read before a model is run.
        has_scores, had_scores = (
            bool(getattr(self, f"{prefix}score")) or self._predicting(prefix) == "model"
            for prefix in ("", "baseline_")
        )
        if compares and has_scores != had_scores:
            raise OptionError(
                f"{first} reads the same kind of column for both models; give --score and --baseline-score, or neither"
            )
        if self.command == "discover":
            raise OptionError(f"{first} is for search and check, not for discover")
        has_both = self._predicting("") and (self._predicting("baseline_") or not compares)
        if not (self.label and has_both):
            raise OptionError(
                f"{first} needs --label, and --score, --prediction or --model, of both models if there "
                "are two"
            )

    def _predicting(self, prefix: str) -> str:
        """Return which option of a model predicts, the first of them that is given; empty for none."""
        options = (f"{prefix}{name}" for name in ("prediction", "model", "score"))
        return next((name.removeprefix(prefix) for name in options if getattr(self, name)), "")

    @property
    def measured(self) -> Sequence[str]:
        """The metrics whose statistics are counted, of which ``metric`` are tested."""
        return self.metric

    @property
    def needs(self) -> MetricNeeds:
        """What must be known of each example."""
        return needs_of(self.measured)

    def sets_a_class_apart(self) -> bool:
        """Whether one class is set apart: by scores, or by a metric of one class."""
        return self.uses_threshold or self.needs.one_class

    @property
    def uses_threshold(self) -> bool:
        """Whether scores are what predicts the classes."""
        needs = needs_of(self.metric)
        if not (needs.scores or needs.predicted_classes or self.tfma_metric):
            return False
        predicting = (self._predicting(""), self._predicting("baseline_"))
        return "score" in predicting or self.cuts_models

    @property
    def cuts_models(self) -> bool:
        """Whether --threshold replaces the classes that models have of their own."""
        return self.threshold != 0.5 and bool(self.model or self.baseline_model)

    @property
    def comparison(self) -> Comparison:
        """What a slice is compared with."""
        if self.compare is not None:
            return self.compare
        if self.baseline_data:
            return "earlier"
        is_of_both = all(needs_of([name]).two_models for name in self.metric)
        has_baseline = self._predicting("baseline_") or self.baseline_loss
        return "baseline" if has_baseline and not is_of_both else "overall"

    @property
    def leaves_outputs_out(self) -> bool:
        """Whether columns that are named like a model's output are no features."""
        return False

    @property
    def used_test(self) -> Test:
        """The test, which for groups is the bootstrap of examples."""
        return "bootstrap-rows" if self.group and self.test == "auto" else self.test

    @property
    def resamples_examples(self) -> bool:
        """Whether examples are resampled: all of them, or those of promising slices."""
        from slicebeam.metrics.measures.registry import statistic_space
        from slicebeam.metrics.measures.slice_test import needs_rows

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

    def families(self, levels: int) -> int:
        """Return into how many parts alpha is divided: levels, and of two data sets the overall change."""
        return levels + (self.comparison == "earlier")

    @property
    def used_correction(self) -> Correction:
        """Correction for multiplicity."""
        return self.correction or ("none" if self.is_paper else "fdr-level")

    @property
    def used_min_slice_size(self) -> int:
        """Smallest slice that is tested."""
        return min(map(self.smallest_slice_of, self.metric))

    def smallest_slice_of(self, name: str) -> int:
        """Return the smallest slice that is tested for a metric."""
        from slicebeam.metrics.measures.registry import metric

        if self.min_slice_size is not None:
            return self.min_slice_size
        return 1 if self.is_paper else metric(name).min_slice_size

    @property
    def used_replicates(self) -> int:
        """Bootstrap replicates."""
        return self.replicates or REPLICATES.get(self.used_test, 0)

    @property
    def files_read(self) -> tuple[str, ...]:
        """The files that decide the result, besides the data."""
        from slicebeam.transforms.storage.files import expand_paths

        models: tuple[str, ...] = ()
        if self.model or self.baseline_model:
            from slicebeam.transforms.encode.models import model_files

            models = (*model_files(self.model), *model_files(self.baseline_model))
        earlier = expand_paths(self.baseline_data, "--baseline-data")
        return (*models, *super().files_read, *earlier)

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the options has no effect, a line each."""
        if (uri := self.eval_config) is None:
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
