"""The named metrics, one row each."""

from math import inf

from slicebeam.metrics.measures import count_metrics
from slicebeam.metrics.measures.count_metrics import ClassMetric, FOne, Share, macro_average
from slicebeam.metrics.measures.mean import Mean, RootMean
from slicebeam.metrics.measures.r_squared import RSquared
from slicebeam.metrics.measures.ranking import AreaUnderCurve, AveragePrecision
from slicebeam.metrics.metric import Metric

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
                count_metrics.examples, 0.0, "there is no example"),
    ClassMetric("mcc_multiclass", "Matthews correlation of all classes", count_metrics.correlation,
                count_metrics.outside_largest_class, -1.0, count_metrics.MATTHEWS.undefined),
    ClassMetric("kappa", "Cohen's kappa", count_metrics.kappa, count_metrics.outside_common_class,
                -1.0, "all labels and predictions are one class"),
    ClassMetric("precision_macro", "Precision, macro average", macro_average(1.0, 0.0, 1.0),
                count_metrics.examples, 0.0, Metric.undefined),
    ClassMetric("recall_macro", "Recall, macro average", macro_average(1.0, 1.0, 0.0),
                count_metrics.examples, 0.0, Metric.undefined),
    ClassMetric("f1_macro", "F1, macro average", macro_average(2.0, 1.0, 1.0),
                count_metrics.examples, 0.0, Metric.undefined),
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
