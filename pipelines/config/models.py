"""The options that name predictions and labels."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slicebeam.pipelines.config.common import DataConfig
from slicebeam.pipelines.config.option_fields import (
    COLUMN,
    COLUMNS,
    NumberText,
    Option,
    Texts,
    default,
)


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
