"""The options that name labels, predictions and metrics, and whether columns and metrics fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from slicebeam.metrics.errors import OptionError
from slicebeam.metrics.kinds import Comparison
from slicebeam.pipelines.config.common import DataConfig
from slicebeam.pipelines.config.option_fields import (
    COLUMN,
    COLUMNS,
    NumberText,
    Option,
    Texts,
    default,
    flag,
)
from slicebeam.transforms.tfma.metric_specs import is_tfma, parse_metric


class ModelsConfig(DataConfig):
    """Options of every command that compares predictions with labels."""

    label: Annotated[str, Option("Models", metavar=COLUMN)] = ""
    """Column of the true class or value. Not needed with --loss or for mean:COLUMN."""
    prediction: Annotated[str | None, Option("Models", metavar=COLUMN)] = None
    """Column of predicted classes or values, of the label's type."""
    score: Annotated[str | None, Option("Models", metavar=COLUMN)] = None
    """Column with the probability of --positive-class. With --prediction, which gives the classes,
    only metrics of scores, such as auc, use it. For log_loss_multiclass, brier_multiclass and
    top_k_accuracy:3 a list of the scores of all classes, or a column for each: p_yes,p_no. For
    ndcg:10 a list of the scores of the results of a query, or with --query a number."""
    model: Annotated[
        str | None, Option("Models", metavar="<model>", has_placeholders=True, stands_instead=True)
    ] = None
    """Model to predict with: of scikit-learn (pickle, joblib), a TensorFlow SavedModel (folder),
    ONNX, or module:function of Python. Loading one runs the code in it: name only what you
    trust."""
    model_inputs: Annotated[
        Texts, Option("Models", metavar=COLUMNS, default="the features", by_commas=True)
    ] = ()
    """Columns that a model takes that does not name them itself, in its order, for both models."""
    baseline_prediction: Annotated[str | None, Option("Models", metavar=COLUMN)] = None
    """Column of the old model's predictions, to compare two models."""
    baseline_score: Annotated[str | None, Option("Models", metavar=COLUMN)] = None
    """Column of the old model's scores."""
    baseline_model: Annotated[
        str | None, Option("Models", metavar="<model>", has_placeholders=True, stands_instead=True)
    ] = None
    """The old model. Loading it runs the code in it, as for --model."""
    loss: Annotated[str | None, Option("Models", metavar=COLUMN)] = None
    """Column of each example's loss, instead of label and predictions."""
    baseline_loss: Annotated[str | None, Option("Models", metavar=COLUMN)] = None
    """Column of the old model's losses."""
    positive_class: Annotated[
        NumberText, Option("Models", metavar="<class>", default="1 or true", takes_numbers=True)
    ] = default(None)
    """Class whose probability is the score."""
    score_classes: Annotated[
        Texts, Option("Models", metavar="<classes>", default="labels are 0, 1, …", by_commas=True)
    ] = ()
    """Classes of a --score that is a list with a number for each of them, or a column for each, in
    its order. Columns name them by default: what follows their common beginning, up to a _."""
    threshold: Annotated[float, Field(ge=0, le=1), Option("Models")] = 0.5
    """Smallest score, or probability by --model, that predicts the positive class."""


class MetricsConfig(ModelsConfig):
    """Options of the metrics of one model, or of two."""

    metric: Annotated[
        Texts,
        Option(
            "Statistics",
            metavar="<metrics>",
            default="accuracy; loss with --loss",
            comes_first=True,
            stands_instead=True,
            by_commas=True,
        ),
    ] = ("accuracy",)
    """Metrics: accuracy, error_rate, precision, recall, f1, fbeta:2, fpr, fnr, specificity,
    npv, balanced_accuracy, mcc, kappa, auc, average_precision, log_loss, brier,
    calibration_in_the_large, calibration_error:10, recall_at_fpr:0.05, mse, rmse, r2, mae, bias, mape,
    smape, pinball:0.9, poisson_deviance, prediction_rate, label_rate, disagreement, loss,
    mean:COLUMN, precision_macro, recall_macro, f1_macro (or _micro), balanced_accuracy_multiclass,
    mcc_multiclass, top_k_accuracy:3, log_loss_multiclass, brier_multiclass, jaccard, hamming, ndcg:10, map:10,
    mrr, precision_at:10.
    module:Name is your own Metric, as is a name that an installed package registers; importing it
    runs its code. tfma:NAME(argument=value) is a metric of TensorFlow Model Analysis, computed
    after the search for the slices it found. Repeatable, or separated by commas; the first one
    steers the search."""
    tfma_module: Annotated[
        Texts, Option("Statistics", metavar="<module>", stands_instead=True)
    ] = ()
    """Module of your own TFMA metrics, which --metric or --eval-config names. Importing it runs its
    code. Repeatable."""
    # Those of `metric` that are of TensorFlow Model Analysis.
    tfma_metric: tuple[str, ...] = Field(default=(), init=False)
    compare: Annotated[
        Comparison | None,
        Option("Statistics", default="baseline if an old model is given", comes_first=True),
    ] = None
    """What a slice is compared with: overall (all examples) or baseline (the old model)."""

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
                f"--metric {others[0]} can't steer a search; name one of slicebeam's own metrics "
                f"first, such as --metric accuracy --metric '{others[0]}'"
            )
        return {**given, "metric": tuple(own), "tfma_metric": others}

    @field_validator("tfma_metric")
    @classmethod
    def _readable_tfma(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        modules = info.data.get("tfma_module", ())
        return tuple(parse_metric(name, modules).text for name in names)

    @field_validator("metric")
    @classmethod
    def _known_metrics(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        from slicebeam.metrics.registry import user_named

        return tuple(dict.fromkeys(map(user_named, names)))

    def check_models_differ(self) -> None:
        """Refuse a baseline that is read from the same place as the predictions."""
        from slicebeam.metrics.registry import needs_of

        needs = needs_of(self.metric)
        read = ["loss"] if needs.losses else []
        if needs.scores or needs.class_scores or needs.rankings:
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
                    f"--{name} and --baseline-{name} are both {column!r}: a model does not differ "
                    "from itself; name the old model's column or file"
                )

    def check_losses(self) -> None:
        """Refuse losses that no metric reads, and metrics that lack losses or labels."""
        from slicebeam.metrics.registry import needs_of

        needs = needs_of(self.measured)
        if self.baseline_loss and not self.loss:
            raise OptionError("--baseline-loss also needs the losses of the new model: give --loss")
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
        if needs.predictions and compares and self.baseline_loss and not self.has_old_predictions:
            raise OptionError(
                f"--metric {', '.join(self.metric)} needs the old model's predictions: give "
                "--baseline-prediction, --baseline-score or --baseline-model"
            )
        if needs.two_models and not self.has_old_predictions:
            raise OptionError(
                "--metric disagreement needs the old model's predictions: give --baseline-prediction, "
                "--baseline-score or --baseline-model"
            )
        if needs.labels and not self.label:
            raise OptionError("--label is missing")

    def check_scores(self) -> None:
        """Refuse metrics of scores where a model has none."""
        from slicebeam.metrics.registry import metric

        of_lists = [name for name in self.metric if metric(name).needs.class_scores]
        if self.score_classes and not of_lists:
            raise OptionError(
                "--score-classes is for metrics of the scores of all classes, such as "
                f"log_loss_multiclass, not {', '.join(self.metric)}; leave it out"
            )
        for name in self.metric:
            needs = metric(name).needs
            scored = needs.predicted_classes and not (self.prediction or self.model)
            if of_lists and (needs.scores or scored):
                raise OptionError(
                    f"--metric {name} takes a number from --score, but {of_lists[0]} a list of them; "
                    + (
                        "measure it in a run of its own"
                        if needs.scores
                        else "give --prediction too"
                    )
                )
            for prefix in ("", "baseline-")[: 2 if self.comparison == "baseline" else 1]:
                of_scores = needs.class_scores or needs.rankings
                role = "score" if of_scores else "prediction" if needs.label_lists else ""
                if role and not getattr(self, f"{prefix}{role}".replace("-", "_")):
                    raise OptionError(
                        f"--metric {name} needs --{prefix}{role}, a column of lists of "
                        f"{'labels' if needs.label_lists else 'scores'}"
                    )
            if not needs.scores:
                continue
            if not (self.score or self.model):
                raise OptionError(f"--metric {name} needs scores: give --score, or --model")
            if self.comparison == "baseline" and not (self.baseline_score or self.baseline_model):
                raise OptionError(
                    f"--metric {name} needs scores of both models: give --baseline-score, or "
                    "--baseline-model"
                )

    def check_tfma(self) -> None:
        """Refuse metrics of TFMA where they have nothing to read."""
        if not self.tfma_metric:
            return
        first = f"--metric {self.tfma_metric[0]}"
        compares = self.comparison == "baseline"
        # A column of predictions is read before a model is run.
        has_scores, had_scores = (
            bool(score or (model and not prediction))
            for score, model, prediction in (
                (self.score, self.model, self.prediction),
                (self.baseline_score, self.baseline_model, self.baseline_prediction),
            )
        )
        if compares and has_scores != had_scores:
            raise OptionError(
                f"{first} reads the same kind of column for both models; give --score and --baseline-score, or neither"
            )
        if self.command == "discover":
            raise OptionError(f"{first} is for search and check, not for discover")
        new = self.score or self.prediction or self.model
        old = self.baseline_score or self.baseline_prediction or self.baseline_model
        if not (self.label and new and (old or not compares)):
            raise OptionError(
                f"{first} needs --label, and --score, --prediction or --model, of both models if there "
                "are two"
            )

    @property
    def measured(self) -> Sequence[str]:
        """The metrics whose statistics are counted, of which ``metric`` are tested."""
        return self.metric

    def sets_a_class_apart(self) -> bool:
        """Whether one class is set apart: by scores, or by a metric of one class."""
        from slicebeam.metrics.registry import needs_of

        return self.uses_threshold or needs_of(self.measured).one_class

    @property
    def uses_threshold(self) -> bool:
        """Whether scores are what predicts the classes."""
        from slicebeam.metrics.registry import needs_of

        needs = needs_of(self.metric)
        if not (needs.scores or needs.predicted_classes or self.tfma_metric):
            return False
        new = self.score is not None and self.prediction is None and self.model is None
        old = (
            self.baseline_score is not None
            and self.baseline_prediction is None
            and self.baseline_model is None
        )
        return new or old or self.cuts_models

    @property
    def cuts_models(self) -> bool:
        """Whether --threshold replaces the classes that models have of their own."""
        return self.threshold != 0.5 and bool(self.model or self.baseline_model)

    @property
    def has_baseline(self) -> bool:
        """Whether an old model is given."""
        return self.has_old_predictions or self.baseline_loss is not None

    @property
    def comparison(self) -> Comparison:
        """What a slice is compared with."""
        if self.compare is not None:
            return self.compare
        from slicebeam.metrics.registry import metric

        is_of_both = all(metric(name).needs.two_models for name in self.metric)
        return "baseline" if self.has_baseline and not is_of_both else "overall"

    @property
    def has_old_predictions(self) -> bool:
        """Whether an old model predicts."""
        return bool(self.baseline_prediction or self.baseline_score or self.baseline_model)
