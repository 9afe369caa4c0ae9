"""What commands that test slices have in common: their models, their metrics and their tests."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field, field_validator, model_validator

from slicebeam.metrics.errors import InputError
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
from slicebeam.metrics.registry import metric, needs_of, statistic_space
from slicebeam.metrics.slice_test import check_test, needs_rows
from slicebeam.pipelines.data_config import DataConfig, flag


class RunConfig(DataConfig):
    """Options of every command that tests slices; the names are those of the flags, ``_`` for ``-``.

    Attributes
    ----------
    command : the command
    choices : the options that take one of some words, with these
    """

    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        **DataConfig.choices,
        "compare": COMPARISONS,
        "alternative": ALTERNATIVES,
        "test": TESTS,
        "correction": CORRECTIONS,
    }

    label: str = ""
    prediction: str | None = None
    score: str | None = None
    model: str | None = None
    baseline_prediction: str | None = None
    baseline_score: str | None = None
    baseline_model: str | None = None
    loss: str | None = None
    baseline_loss: str | None = None
    positive_class: str | None = None
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    features: tuple[str, ...] = ()
    exclude_features: tuple[str, ...] = ()
    weight: str | None = None
    group: str | None = None
    metric: tuple[str, ...] = ("accuracy",)
    compare: str | None = None
    alternative: Alternative = "worse"
    test: Test = "auto"
    replicates: Annotated[int, Field(ge=2, le=10_000)] | None = None
    correction: str | None = None
    alpha: Annotated[float, Field(gt=0, lt=1)] | None = None
    min_slice_size: Annotated[int, Field(ge=1)] | None = None
    since: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _losses_are_the_metric(cls, given: Any) -> Any:
        # Who names a column of losses need not say that they are what is compared.
        if isinstance(given, dict) and given.get("loss") and "metric" not in given:
            return {**given, "metric": ("loss",)}
        return given

    @field_validator("metric")
    @classmethod
    def _known_metrics(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(metric(name).name for name in names))

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
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
                raise InputError(f"{flag(name)} {self.label!r} is the label; name another column")
        for side, (column, _, model) in sides.items():
            prefix = "" if side == "prediction" else "baseline-"
            if column and model:
                raise InputError(
                    f"--{prefix}prediction and --{prefix}model both give predictions; choose one"
                )
        if self.comparison == "baseline":
            self._check_models_differ()
        if self.compare == "baseline" and not self.has_baseline:
            raise InputError(
                "--compare baseline needs the old model: give --baseline-prediction, "
                "--baseline-score, --baseline-model or --baseline-loss"
            )
        if self.positive_class is not None and not self._sets_a_class_apart():
            raise InputError(
                "--positive-class is for scores and for metrics of one class, but the predictions are "
                f"classes and the metric is {', '.join(self.metric)}; leave it out"
            )
        if self.threshold != 0.5 and not self.uses_threshold:
            raise InputError("--threshold is for scores, but the predictions are classes")
        self._check_scores()
        self._check_test()
        if self.compare == "overall" and self.baseline_model:
            raise InputError("--baseline-model is for --compare baseline, not overall")
        return self

    def _check_models_differ(self) -> None:
        """Refuse a baseline that is read from the same place as the predictions."""
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
                raise InputError(
                    f"--{name} and --baseline-{name} are both {column!r}: a model does not differ from "
                    "itself; name the old model's"
                )

    def _check_losses(self) -> None:
        needs = needs_of(self.metric)
        if self.baseline_loss and not self.loss:
            raise InputError("--baseline-loss needs the losses of the new model, too: give --loss")
        for name in ("loss", "baseline_loss"):
            if getattr(self, name) and not needs.losses:
                raise InputError(
                    f"{flag(name)} is for --metric loss, not {', '.join(self.metric)}; leave one out"
                )
        if needs.losses and not self.loss:
            raise InputError("--metric loss needs a column of losses: give --loss")
        compares = self.comparison == "baseline"
        if needs.losses and compares and not self.baseline_loss:
            raise InputError(
                "--metric loss needs the losses of both models: give --baseline-loss, or "
                "--compare overall"
            )
        if needs.predictions and compares and self.baseline_loss and not self._has_old_predictions:
            raise InputError(
                f"--metric {', '.join(self.metric)} needs the old model's predictions: give "
                "--baseline-prediction, --baseline-score or --baseline-model"
            )
        if needs.labels and not self.label:
            raise InputError("--label is missing")

    @property
    def _has_old_predictions(self) -> bool:
        return bool(self.baseline_prediction or self.baseline_score or self.baseline_model)

    def _sets_a_class_apart(self) -> bool:
        return self.uses_threshold or needs_of(self.metric).one_class

    def _check_scores(self) -> None:
        for name in self.metric:
            if not metric(name).needs.scores:
                continue
            if not (self.score or self.model):
                raise InputError(f"--metric {name} needs scores: give --score, or --model")
            if self.comparison == "baseline" and not (self.baseline_score or self.baseline_model):
                raise InputError(
                    f"--metric {name} needs scores of both models: give --baseline-score, or "
                    "--baseline-model"
                )

    def _check_test(self) -> None:
        for name in self.metric:
            check_test(self.test, name, self.comparison, weighted=self.weight is not None)
        if self.group and self.test not in ("auto", *OF_ROWS):
            raise InputError(
                f"--test {self.test} takes examples for independent, but --group is given; use auto or "
                "bootstrap-rows, which resample whole groups"
            )
        if self.group and self.example_id and not self.names_examples:
            raise InputError(
                "--example-id has no effect beside --group, whose examples are resampled together"
            )
        if self.replicates is not None and not self.draws_replicates:
            raise InputError(
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
        if self.min_slice_size is not None:
            return self.min_slice_size
        return 1 if self.is_paper else min(metric(name).min_slice_size for name in self.metric)

    def smallest_slice_of(self, name: str) -> int:
        """Return the smallest slice that is tested for a metric."""
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
