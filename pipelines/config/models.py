"""The options that name predictions and labels."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slicebeam.pipelines.config.common import DataConfig
from slicebeam.pipelines.config.option_fields import COLUMN, Option


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
            "Model to predict with: of scikit-learn (pickle, joblib), a TensorFlow SavedModel (folder), "
            "ONNX, or module:function of Python. Loading one runs the code in it: name only what you trust.",
            "Models",
            metavar="<model>",
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
            "The old model. Loading it runs the code in it, as for --model.",
            "Models",
            metavar="<model>",
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
        Option(
            "Smallest score, or probability by --model, that predicts the positive class.", "Models"
        ),
    ] = 0.5
