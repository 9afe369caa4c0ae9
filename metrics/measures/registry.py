"""The named metrics, one row each, and those that are named with a number; finds them by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import inf

import numpy as np

from slicebeam.metrics.counting.statistic_space import THEN, StatisticSpace, Term
from slicebeam.metrics.errors import OptionError, unknown_name
from slicebeam.metrics.kinds import ABOVE, TOP, Comparison
from slicebeam.metrics.measures import count_metrics, one_model
from slicebeam.metrics.measures.count_metrics import ClassMetric, FOne, Share, fbeta, macro_average
from slicebeam.metrics.measures.earlier import Earlier
from slicebeam.metrics.measures.mean import Mean, RootMean
from slicebeam.metrics.measures.metric import Metric, Needs
from slicebeam.metrics.measures.one_model import CalibrationError, RSquared
from slicebeam.metrics.measures.ranking import AreaUnderCurve, AveragePrecision
from slicebeam.metrics.measures.user_metrics import load, loaded
from slicebeam.metrics.significance import intervals

METRICS: tuple[Metric, ...] = (
    Share("accuracy", "Accuracy", "~wrong", "", higher_is_better=True),
    Share("error_rate", "Error rate", "wrong", "", higher_is_better=False),
    Share("precision", "Precision", "positive", "predicted", higher_is_better=True),
    Share("recall", "Recall", "predicted", "positive", higher_is_better=True),
    Share("fnr", "False negative rate", "~predicted", "positive", higher_is_better=False),
    Share("fpr", "False positive rate", "predicted", "~positive", higher_is_better=False),
    Share("npv", "Negative predictive value", "~positive", "~predicted", higher_is_better=True),
    Share("specificity", "Specificity", "~predicted", "~positive", higher_is_better=True),
    # Neither direction is good or bad in itself; more counts as worse.
    Share("prediction_rate", "Prediction rate", "predicted", "", higher_is_better=False),
    # The label is the same for every model; disagreement is of both models at once.
    Share("label_rate", "Label rate", "positive", "", higher_is_better=False, compares_models=False),
    Share("disagreement", "Disagreement", "disagree", "", higher_is_better=False, compares_models=False),
    FOne(),
    # With one label and one prediction an example, every micro average is the accuracy.
    Share("precision_micro", "Precision, micro average", "~wrong", "", higher_is_better=True),
    Share("recall_micro", "Recall, micro average", "~wrong", "", higher_is_better=True),
    Share("f1_micro", "F1, micro average", "~wrong", "", higher_is_better=True),
    count_metrics.BALANCED_ACCURACY,
    count_metrics.MATTHEWS,
    ClassMetric("balanced_accuracy_multiclass", "Balanced accuracy of all classes", count_metrics.mean_recall,
                "there is no example",
                lambda right, labels, _, confidence: intervals.mean_recall(right, labels, confidence)),
    ClassMetric("mcc_multiclass", "Matthews correlation of all classes", count_metrics.correlation,
                count_metrics.MATTHEWS.undefined, lowest=-1.0,
                beside=lambda labels, predictions: np.maximum(labels, predictions).max(axis=0)),
    ClassMetric("kappa", "Cohen's kappa", count_metrics.kappa, "all labels and predictions are one class",
                lowest=-1.0, beside=lambda labels, predictions: np.minimum(labels, predictions).max(axis=0)),
    ClassMetric("precision_macro", "Precision, macro average", macro_average(1.0, 0.0, 1.0), Metric.undefined),
    ClassMetric("recall_macro", "Recall, macro average", macro_average(1.0, 1.0, 0.0), Metric.undefined),
    ClassMetric("f1_macro", "F1, macro average", macro_average(2.0, 1.0, 1.0), Metric.undefined),
    Mean("loss", "Loss", (-inf, inf)),
    Mean("log_loss", "Log loss", (0.0, inf)),
    Mean("brier", "Brier score", (0.0, 1.0)),
    Mean("mse", "Mean squared error", (0.0, inf)),
    Mean("mae", "Mean absolute error", (0.0, inf)),
    # Of probabilities too low; more counts as worse, --alternative both finds either.
    Mean("calibration_in_the_large", "Observed minus expected rate", (-1.0, 1.0)),
    Mean("log_loss_multiclass", "Log loss of all classes", (0.0, inf)),
    Mean("brier_multiclass", "Brier score of all classes", (0.0, 2.0)),
    Mean("mrr", "Mean reciprocal rank", (0.0, 1.0), higher_is_better=True),
    Mean("jaccard", "Jaccard similarity", (0.0, 1.0), higher_is_better=True),
    Mean("hamming", "Hamming distance", (0.0, inf)),
    RootMean("rmse", "Root mean squared error"),
    RSquared(),
    Mean("mape", "Mean absolute percentage error", (0.0, inf)),
    Mean("smape", "Symmetric mean absolute percentage error", (0.0, 2.0)),
    Mean("poisson_deviance", "Poisson deviance", (0.0, inf)),
    # Too high counts as worse; --alternative both finds either.
    Mean("bias", "Mean of prediction minus label", (-inf, inf)),
    AreaUnderCurve(),
    AveragePrecision(),
)  # fmt: skip

_COLUMN = "mean:"
_Numbered = tuple[Callable[[float], Metric], Callable[[float], bool], str]


def _is_count(number: float) -> bool:
    return number >= 1 and number.is_integer()


def _is_share(number: float) -> bool:
    return 0 < number < 1


def _at_k(name: str, title: str) -> _Numbered:
    """Return a metric of the first results of a query."""
    return (
        lambda k: Mean(f"{name}:{k:.0f}", f"{title} at {k:.0f}", (0.0, 1.0), higher_is_better=True),
        _is_count,
        f"the number of results must be a whole number above 0, such as {name}:10",
    )


# Metrics that are named with a number: what makes them of it, what it must be, and that in words.
_NUMBERED: dict[str, _Numbered] = {
    "fbeta": (fbeta, lambda beta: 0 < beta < inf, "beta must be a number above 0, such as fbeta:2"),
    "pinball": (
        lambda share: Mean(f"pinball:{share!r}", f"Pinball loss ({share!r})", (0.0, inf)),
        _is_share, "the quantile must be between 0 and 1, such as pinball:0.9"),
    "calibration_error": (
        CalibrationError,
        lambda bins: 5 <= bins <= one_model.MOST_BINS and bins.is_integer(),
        "the number of bins must be a whole number from 5 to 50, such as calibration_error:10"),
    "ndcg": _at_k("ndcg", "NDCG"),
    "map": _at_k("map", "Mean average precision"),
    "precision_at": _at_k("precision_at", "Precision"),
    "recall_at_fpr": (
        lambda rate: Share(f"recall_at_fpr:{rate!r}", f"Recall at a false positive rate of {rate!r}",
                           f"{ABOVE}{rate!r}", "positive", higher_is_better=True),
        _is_share, "the rate must be between 0 and 1, such as recall_at_fpr:0.05"),
    "top_k_accuracy": (
        lambda k: Share(f"top_k_accuracy:{k:.0f}", f"Top-{k:.0f} accuracy", f"{TOP}{k:.0f}", "",
                        higher_is_better=True),
        _is_count, "the number of classes must be a whole number above 0, such as top_k_accuracy:3"),
}  # fmt: skip
_FORMS = ("mean:COLUMN", "fbeta:BETA", "pinball:QUANTILE", "top_k_accuracy:K", "recall_at_fpr:RATE",
          "calibration_error:BINS", "ndcg:K", "map:K", "precision_at:K")  # fmt: skip


@cache
def metrics() -> dict[str, Metric]:
    """Return all metrics without a parameter by name, sorted."""
    return {metric.name: metric for metric in sorted(METRICS, key=lambda metric: metric.name)}


def metric(name: str) -> Metric:
    """Return a metric; ``mean:COLUMN`` averages a column, ``fbeta:2`` is F-beta with β = 2.

    A user's own is here once `user_named` imported it: a name alone imports nothing.

    Accuracy is computed from two counts for each slice: right and wrong predictions.

    >>> from slicebeam.metrics.measures.metric import Slices
    >>> accuracy, space = metric("accuracy"), statistic_space(["accuracy"], "overall")
    >>> sums, totals = np.array([[60, 40], [45, 5]]), np.array([850, 150])  # int64 [slices, columns]
    >>> accuracy.delta(Slices(sums, space, totals)).round(3)  # minus the accuracy on all examples
    array([-0.25,  0.05])
    """
    return loaded(name) or _built_in(name)


def metric_on(name: str, space: StatisticSpace) -> Metric:
    """Return a metric as it is measured on the statistics of a run: of two data sets today's against earlier ones."""
    return Earlier(metric(name)) if space.comparison == "earlier" else metric(name)


def is_built_in(name: str) -> bool:
    """Return whether a metric is slicebeam's, so that nothing of the user's is imported for it."""
    prefix, colon, _ = name.partition(":")
    return name.startswith(_COLUMN) or bool(colon and prefix in _NUMBERED) or name in metrics()


def user_named(name: str) -> str:
    """Return the name of a metric that the user chose, and import the metric if it is not built in."""
    if is_built_in(name):
        return _built_in(name).name
    return load(name, [*metrics(), *_FORMS])


@cache
def _built_in(name: str) -> Metric:
    if name.startswith(_COLUMN) and name != _COLUMN:
        column = name.removeprefix(_COLUMN)
        return Mean(name, f"Mean of {column}", (-inf, inf), compares_models=False)
    prefix, colon, text = name.partition(":")
    if colon and prefix in _NUMBERED:
        make, is_valid, expected = _NUMBERED[prefix]
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not is_valid(number):
            raise OptionError(f"--metric {name}: {expected}")
        return make(number)
    if name not in metrics():
        raise unknown_name("metric", name, [*metrics(), *_FORMS])
    return metrics()[name]


def averaged_column(name: str) -> str | None:
    """Return the column that ``mean:COLUMN`` averages, None for another metric."""
    return name.removeprefix(_COLUMN) if name.startswith(_COLUMN) else None


def needs_of(names: Sequence[str]) -> Needs:
    """Return what all of these metrics together want to know of an example."""
    needs = [metric(name).needs for name in names]
    return Needs(
        tuple(sorted({bit for need in needs for bit in need.indicators})),
        any(need.classes for need in needs),
        any(need.ranked for need in needs),
        tuple(sorted({value for need in needs for value in need.values})),
        any(need.average_precision for need in needs),
    )


def statistic_space(
    names: Sequence[str], comparison: Comparison, *, weighted: bool = False
) -> StatisticSpace:
    """Return the statistics that serve all of these metrics."""
    needs = needs_of(names)
    terms: list[Term] = []
    total: list[Term] = []
    for value in needs.values:
        if value.startswith(one_model.PREFIX):
            terms += CalibrationError.terms(value)
            total += CalibrationError.total_terms(value)
        else:
            terms += Mean.terms(value, comparison, weighted=weighted)
            total += Mean.total_terms(value, comparison, weighted=weighted)
    if needs.ranked:
        terms += AreaUnderCurve.terms(comparison)
    return StatisticSpace(
        (*needs.indicators, THEN) if comparison == "earlier" else needs.indicators,
        comparison,
        classes=2 if needs.classes else 0,
        terms=tuple(terms),
        total_terms=tuple(total),
        ranked=needs.ranked,
        average_precision=needs.average_precision,
        weighted=weighted,
    )
