"""The options that name predictions and labels."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slicebeam.pipelines.config.common import DataConfig
from slicebeam.pipelines.config.option_fields import COLUMN, FILE, Option


class ModelsConfig(DataConfig):
    """Options of every command that compares predictions with labels."""

    label: Annotated[
        str,
        Option(
            "Column of the true class or value. Not needed with --loss or for mean:COLUMN.",
            "Models",
            metavar=COLUMN,
        ),
    ] = ""
    prediction: Annotated[
        str | None,
        Option(
            "Column of predicted classes or values, of the label's type.", "Models", metavar=COLUMN
        ),
    ] = None
    score: Annotated[
        str | None,
        Option(
            "Column with the probability of --positive-class. With --prediction, which gives the "
            "classes, only auc, log_loss and brier use it.",
            "Models",
            metavar=COLUMN,
        ),
    ] = None
    model: Annotated[
        str | None,
        Option(
            "Model to predict with: scikit-learn (pickle, joblib), TensorFlow SavedModel "
            "(folder) or ONNX. Loading a model runs the code in it: give only files that you "
            "trust.",
            "Models",
            metavar=FILE,
            has_placeholders=True,
            stands_instead=True,
        ),
    ] = None
    baseline_prediction: Annotated[
        str | None,
        Option(
            "Column of the old model's predictions, to compare two models.",
            "Models",
            metavar=COLUMN,
        ),
    ] = None
    baseline_score: Annotated[
        str | None, Option("Column of the old model's scores.", "Models", metavar=COLUMN)
    ] = None
    baseline_model: Annotated[
        str | None,
        Option(
            "File of the old model. Loading it runs the code in it, as with --model.",
            "Models",
            metavar=FILE,
            has_placeholders=True,
            stands_instead=True,
        ),
    ] = None
    loss: Annotated[
        str | None,
        Option(
            "Column of each example's loss, instead of label and predictions.",
            "Models",
            metavar=COLUMN,
        ),
    ] = None
    baseline_loss: Annotated[
        str | None, Option("Column of the old model's losses.", "Models", metavar=COLUMN)
    ] = None
    positive_class: Annotated[
        str | None,
        Option(
            "Class whose probability is the score.",
            "Models",
            metavar="<class>",
            default="1 or true",
            takes_numbers=True,
        ),
    ] = None
    threshold: Annotated[
        float,
        Field(ge=0, le=1),
        Option("Smallest score that predicts the positive class.", "Models"),
    ] = 0.5
