"""Accuracy and the other shares, one row each."""

from slicebeam.metrics.measures.share import FOne, Share

METRICS = (
    Share("accuracy", "Accuracy", "~wrong", "", higher_is_better=True),
    Share("error_rate", "Error rate", "wrong", "", higher_is_better=False),
    Share("precision", "Precision", "positive", "predicted", higher_is_better=True),
    Share("recall", "Recall", "predicted", "positive", higher_is_better=True),
    Share("fnr", "False negative rate", "~predicted", "positive", higher_is_better=False),
    Share("fpr", "False positive rate", "predicted", "~positive", higher_is_better=False),
    Share("specificity", "Specificity", "~predicted", "~positive", higher_is_better=True),
    # Neither direction is good or bad in itself; more counts as worse.
    Share("prediction_rate", "Prediction rate", "predicted", "", higher_is_better=False),
    Share(
        "label_rate",
        "Label rate",
        "positive",
        "",
        higher_is_better=False,
        # The label is the same for every model.
        compares_models=False,
    ),
    Share(
        "disagreement",
        "Disagreement",
        "disagree",
        "",
        higher_is_better=False,
        # It is of both models at once, so that a slice is held against all examples.
        compares_models=False,
    ),
    FOne(),
    # With one label and one prediction an example, every micro average is the accuracy.
    *(
        Share(f"{name}_micro", f"{title}, micro average", "~wrong", "", higher_is_better=True)
        for name, title in (("precision", "Precision"), ("recall", "Recall"), ("f1", "F1"))
    ),
)
