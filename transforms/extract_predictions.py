"""ExtractPredictions: where a model is right and wrong, from columns, scores or the model itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.domains import missing_mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from slicebeam.transforms.sources import Chunk

# Classes beyond this number are not listed: such a label is no class.
MOST_CLASSES = 1000

_MOST_COLUMNS = 12

Side = Literal["prediction", "baseline"]


@dataclass(frozen=True)
class Predictor:
    """Where the predictions of one model come from: exactly one of the three.

    Attributes
    ----------
    column : column of predicted classes
    score : column of scores, the probability of the positive class
    model : file of a scikit-learn model
    """

    column: str | None = None
    score: str | None = None
    model: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What makes a prediction right.

    Attributes
    ----------
    label : column of true classes
    class_type : Arrow type text in which classes are compared
    new, old : the model, and the baseline if there is one
    positive_class : the class that a score speaks of, None without scores
    threshold : a score of at least this predicts the positive class
    """

    label: str
    class_type: str
    new: Predictor
    old: Predictor | None = None
    positive_class: Any = None
    threshold: float = 0.5

    def predictor(self, side: Side) -> Predictor | None:
        """Return the model of a side."""
        return self.new if side == "prediction" else self.old


def class_type(label: str, label_type: pa.DataType, other: str, other_type: pa.DataType) -> str:
    """Return the type in which labels and predictions are compared.

    Raises
    ------
    InputError
        They could never be equal, as text and numbers, or are no classes.
    """
    kinds = {
        name: _class_kind(name, kind) for name, kind in ((label, label_type), (other, other_type))
    }
    if kinds[label] != kinds[other]:
        raise InputError(
            f"label {label!r} is {kinds[label]} ({_plain(label_type)}) and prediction {other!r} is "
            f"{kinds[other]} ({_plain(other_type)}): they would never be equal; convert one of them"
        )
    if kinds[label] == "text":
        return "string"
    floating = any(pa.types.is_floating(_plain(kind)) for kind in (label_type, other_type))
    return "double" if floating else "int64"


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _class_kind(name: str, kind: pa.DataType) -> str:
    kind = _plain(kind)
    if pa.types.is_string(kind):
        return "text"
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        return "a number"
    raise InputError(f"column {name!r} of {kind} holds no classes; use text, integers or booleans")


def classes(column: pa.ChunkedArray, data_type: str, name: str, chunk: Chunk) -> pa.Array:
    """Return a column of classes in the common type.

    Raises
    ------
    InputError
        A class is missing, or is none of the common type.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    _refuse_missing(array, name, chunk)
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    target = {"string": pa.string(), "double": pa.float64(), "int64": pa.int64()}[data_type]
    try:
        return array.cast(target)
    except pa.ArrowInvalid as error:
        raise InputError(
            f"{name!r} holds no classes of the label's kind: {str(error).splitlines()[0]}; give "
            "predicted classes"
        ) from error


def _refuse_missing(array: pa.Array, name: str, chunk: Chunk) -> None:
    plain = array.cast(array.type.value_type) if pa.types.is_dictionary(array.type) else array
    missing = missing_mask(plain)
    if missing is not None:
        row = chunk.origin_row + int(np.argmax(missing)) + 1
        raise InputError(
            f"column {name!r} has no value in row {row:,} of {chunk.origin}; "
            "drop such examples or fill the column"
        )


def scores(column: pa.ChunkedArray, name: str, chunk: Chunk) -> NDArray[np.float64]:
    """Return a column of scores [rows].

    Raises
    ------
    InputError
        A score is missing, or the column is not numeric.
    """
    array = column.combine_chunks()
    kind = _plain(array.type)
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        raise InputError(f"score column {name!r} is {kind}; a score is a number")
    _refuse_missing(array, name, chunk)
    numbers: NDArray[np.float64] = array.cast(kind).cast(pa.float64()).to_numpy()
    return numbers


def model_column(side: Side) -> str:
    """Return the name under which a model's predictions travel with the chunk."""
    return f"\0{side}"


@dataclass(frozen=True)
class Predicted:
    """What ExtractPredictions knows of a chunk.

    Attributes
    ----------
    wrong : bool [rows] for each model, by side
    classes : the distinct classes seen, by ``label`` and side; None where there are too many
    """

    wrong: dict[Side, NDArray[np.bool_]]
    classes: dict[str, list[Any] | None]


def extract_predictions(chunk: Chunk, outcome: Outcome) -> Predicted:
    """Return where each model is wrong.

    Parameters
    ----------
    chunk : with the label and the columns of predictions or scores
    outcome : which they are
    """
    label = classes(chunk.table.column(outcome.label), outcome.class_type, outcome.label, chunk)
    seen: dict[str, list[Any] | None] = {"label": _distinct(label)}
    wrong: dict[Side, NDArray[np.bool_]] = {}
    sides: tuple[Side, ...] = ("prediction", "baseline")
    for side in sides:
        predictor = outcome.predictor(side)
        if predictor is None:
            continue
        if predictor.score is not None:
            score = scores(chunk.table.column(predictor.score), predictor.score, chunk)
            positive = _numpy(pc.equal(label, pa.scalar(outcome.positive_class, label.type)))
            wrong[side] = (score >= outcome.threshold) != positive
        else:
            name = predictor.column or model_column(side)
            shown = predictor.column or f"the predictions of {predictor.model}"
            predicted = classes(chunk.table.column(name), outcome.class_type, shown, chunk)
            wrong[side] = _numpy(pc.not_equal(label, predicted))
            seen[side] = _distinct(predicted)
    return Predicted(wrong, seen)


def _numpy(mask: pa.Array) -> NDArray[np.bool_]:
    array: NDArray[np.bool_] = mask.to_numpy(zero_copy_only=False)
    return array


def _distinct(array: pa.Array) -> list[Any] | None:
    distinct = array.unique()
    return distinct.to_pylist() if len(distinct) <= MOST_CLASSES else None


def check_classes(seen: Iterable[dict[str, list[Any] | None]], outcome: Outcome) -> list[Any]:
    """Return all classes of the label, after checking that predictions speak of the same ones.

    Raises
    ------
    InputError
        No predicted class is ever a label, the label is no class, or the positive class is none.
    """
    merged: dict[str, set[Any] | None] = {}
    for one in seen:
        for side, listed in one.items():
            known = merged.get(side, set())
            merged[side] = None if known is None or listed is None else known | set(listed)
    labels = merged.get("label")
    if labels is None or len(labels) > MOST_CLASSES:
        raise InputError(
            f"label {outcome.label!r} has more than {MOST_CLASSES:,} distinct values: it is no class; "
            "accuracy and error_rate need classes"
        )
    if any(isinstance(value, float) and not value.is_integer() for value in labels):
        raise InputError(
            f"label {outcome.label!r} holds fractions ({_some(labels)}): it is no class; accuracy and "
            "error_rate need classes"
        )
    for side in ("prediction", "baseline"):
        predictor = outcome.predictor("prediction" if side == "prediction" else "baseline")
        values = merged.get(side, set())
        if predictor is None or predictor.score is not None:
            continue
        name = predictor.column or predictor.model
        if values is None or not values & labels:
            shown = "too many values to list" if values is None else _some(values)
            hint = "is it a score? give it as --score" if _is_score(values) else "spell both alike"
            raise InputError(
                f"{side} {name!r} never equals label {outcome.label!r}: labels are {_some(labels)}, "
                f"predictions are {shown}; {hint}"
            )
    uses_score = any(p is not None and p.score is not None for p in (outcome.new, outcome.old))
    if uses_score and outcome.positive_class not in labels:
        raise InputError(
            f"--positive-class {outcome.positive_class!r} is no value of label {outcome.label!r}: "
            f"labels are {_some(labels)}"
        )
    if uses_score and len(labels) > 2:
        raise InputError(
            f"label {outcome.label!r} has {len(labels)} classes ({_some(labels)}): a score tells two "
            "apart; give predicted classes as --prediction"
        )
    return sorted(labels)


def _is_score(values: set[Any] | None) -> bool:
    return values is None or any(isinstance(v, float) and not v.is_integer() for v in values)


def _some(values: set[Any]) -> str:
    shown = sorted(values)[:5]
    return ", ".join(map(repr, shown)) + (", …" if len(values) > len(shown) else "")


def model_features(model: Any, features: Sequence[str]) -> list[str]:
    """Return the columns that a model reads: those it was trained on, else all features."""
    names = getattr(model, "feature_names_in_", None)
    return list(features) if names is None else [str(name) for name in names]


def _named(columns: Sequence[str]) -> str:
    more = f", … {len(columns) - _MOST_COLUMNS} more" if len(columns) > _MOST_COLUMNS else ""
    return ", ".join(columns[:_MOST_COLUMNS]) + more


def load_model(path: str) -> Any:
    """Load a scikit-learn model; this runs the code in the file.

    Raises
    ------
    InputError
        The file is missing, is no model, or needs a package that is not installed.
    """
    import pickle

    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        raise InputError(
            "--model needs scikit-learn: install it with pip install 'slicebeam[sklearn]'"
        ) from error
    try:
        if path.endswith(".joblib"):
            import joblib

            model = joblib.load(path)
        else:
            with open(path, "rb") as stream:  # noqa: PTH123
                model = pickle.load(stream)  # noqa: S301  (the user named this file)
    except FileNotFoundError as error:
        raise InputError(f"--model {path}: no such file") from error
    except ImportError as error:
        raise InputError(f"--model {path}: it needs a package that is missing ({error})") from error
    except Exception as error:
        raise InputError(
            f"--model {path}: no readable pickle or joblib file ({type(error).__name__}: {error})"
        ) from error
    if not hasattr(model, "predict"):
        raise InputError(f"--model {path}: a {type(model).__name__} has no predict method")
    return model


def predict(model: Any, table: pa.Table, columns: Sequence[str], path: str) -> pa.Array:
    """Return the classes that a model predicts for the rows of a table.

    Raises
    ------
    InputError
        The model refuses the columns, or predicts no classes.
    """
    frame = table.select(list(columns)).to_pandas()
    try:
        predicted = np.asarray(model.predict(frame))
        if predicted.shape != (table.num_rows,):
            raise ValueError(f"it predicts an array of shape {predicted.shape}, not a class a row")  # noqa: TRY301
        return pa.array(predicted.tolist() if predicted.dtype == object else predicted)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"--model {path} failed on the columns {_named(columns)}: {reason}"
        ) from error
