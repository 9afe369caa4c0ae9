"""Models given as files or functions: loading them, what they read, and what they predict."""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from slicebeam.metrics.errors import FileError, OptionError, SlicebeamError, install_hint
from slicebeam.transforms.encode.exported_models import exported_model
from slicebeam.transforms.encode.output_models import OutputModel
from slicebeam.transforms.encode.python_models import is_python_model, python_model
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.metrics.arrays import FloatArray

_MOST_COLUMNS = 12


def model_features(model: Any, features: Sequence[str]) -> list[str]:
    """Return the columns that a model reads: those it was trained on, else all features."""
    if find_spec("pandas") is None:
        raise OptionError(f"--model needs pandas, whose frames it reads; {install_hint('sklearn')}")
    names = getattr(model, "feature_names_in_", None)
    return list(features) if names is None else [str(name) for name in names]


def _named(columns: Sequence[str]) -> str:
    more = f", … {len(columns) - _MOST_COLUMNS} more" if len(columns) > _MOST_COLUMNS else ""
    return ", ".join(columns[:_MOST_COLUMNS]) + more


def load_model(path: str) -> Any:
    """Load a model of scikit-learn, TensorFlow, ONNX or Python; this runs the code in it."""
    import pickle

    if is_python_model(path):
        return python_model(path)
    try:
        exported = exported_model(path)
    except FileNotFoundError as error:
        raise FileError(f"--model {path}: no such file") from error
    if exported is not None:
        return exported
    try:
        with storage_path(path, "--model").open("rb") as stream:
            if path.endswith(".joblib"):
                import joblib

                model = joblib.load(stream)
            else:
                model = pickle.load(stream)  # noqa: S301  (the user named this file)
    except SlicebeamError:
        raise
    except FileNotFoundError as error:
        raise FileError(f"--model {path}: no such file") from error
    except ImportError as error:
        raise OptionError(
            f"--model {path}: a package that it needs is missing ({error})"
        ) from error
    except Exception as error:
        raise OptionError(
            f"--model {path}: not readable as a pickle or joblib file ({type(error).__name__}: {error})"
        ) from error
    if not hasattr(model, "predict"):
        raise OptionError(f"--model {path}: a {type(model).__name__} has no predict method")
    return model


def predict(model: Any, table: pa.Table, columns: Sequence[str], path: str) -> pa.Array:
    """Return the classes that a model predicts for the rows of a table."""
    with _named_errors(path, columns):
        predicted = np.asarray(model.predict(_given(model, table, columns)))
        if predicted.shape != (table.num_rows,):
            raise ValueError(
                f"it predicts an array of shape {predicted.shape}, not one class per row"
            )
        return pa.array(predicted.tolist() if predicted.dtype == object else predicted)


@contextmanager
def _named_errors(path: str, columns: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OptionError(
            f"--model {path} failed on the columns {_named(columns)}: {reason}"
        ) from error


def _given(model: Any, table: pa.Table, columns: Sequence[str]) -> Any:
    """Return columns as a model wants them: with names, unless scikit-learn fitted it without."""
    frame = table.select(list(columns)).to_pandas()
    fitted_without = hasattr(model, "n_features_in_") and not hasattr(model, "feature_names_in_")
    return frame.to_numpy() if fitted_without else frame


def probabilities(
    model: Any, table: pa.Table, columns: Sequence[str], path: str
) -> tuple[list[Any], FloatArray]:
    """Return the classes that a model knows, and the probability of each [rows, classes]."""
    if not hasattr(model, "predict_proba"):
        raise OptionError(
            f"--model {path}: a {type(model).__name__} gives no probabilities, which the metrics need; "
            "give a column of scores as --score"
        )
    with _named_errors(path, columns):
        found = np.asarray(model.predict_proba(_given(model, table, columns)), np.float64)
    classes = getattr(model, "classes_", range(found.shape[1]))
    return [getattr(one, "item", lambda one=one: one)() for one in classes], found


def predict_scores(
    model: Any, table: pa.Table, columns: Sequence[str], path: str, positive: Any
) -> pa.Array:
    """Return the probability of the positive class that a model gives each row of a table."""
    classes, found = probabilities(model, table, columns, path)
    if positive not in classes:
        raise OptionError(
            f"--model {path} knows the classes {', '.join(map(repr, classes))}, not --positive-class "
            f"{positive!r}"
        )
    return pa.array(found[:, classes.index(positive)])


def predict_above(
    model: Any, table: pa.Table, columns: Sequence[str], path: str, positive: Any, threshold: float
) -> pa.Array:
    """Return the positive class where its probability is at least a threshold, else the other one."""
    classes, found = probabilities(model, table, columns, path)
    if len(classes) != 2 or positive not in classes:
        raise OptionError(
            f"--model {path} knows the classes {', '.join(map(repr, classes))}, and --threshold "
            f"{threshold:g} tells {positive!r} from one other; give predicted classes as --prediction"
        )
    at = classes.index(positive)
    above = found[:, at] >= threshold
    return pa.array([classes[at if one else 1 - at] for one in above.tolist()])


def predict_numbers(model: Any, table: pa.Table, columns: Sequence[str], path: str) -> pa.Array:
    """Return the number that a model predicts for each row of a table."""
    if not isinstance(model, OutputModel):
        return predict(model, table, columns, path)
    with _named_errors(path, columns):
        found = model.numbers(_given(model, table, columns))
        if found.ndim != 1:
            raise ValueError(f"it gives {found.shape[1]} numbers a row, not one")
        return pa.array(found)


def predict_outputs(
    model: Any, table: pa.Table, columns: Sequence[str], path: str, positive: Any
) -> pa.Array:
    """Return what TensorFlow Model Analysis would take for the predictions of a model.

    Returns: A number for each row: the probability of the positive class, or what a model of
    numbers gives. Of more than two classes a list, the probabilities of the classes 0, 1, 2 and so
    on.
    """
    if isinstance(model, OutputModel):
        with _named_errors(path, columns):
            found = model.numbers(_given(model, table, columns))
    elif not hasattr(model, "predict_proba"):
        return predict(model, table, columns, path)
    else:
        classes, found = probabilities(model, table, columns, path)
        if len(classes) == 2:
            found = found[:, classes.index(positive) if positive in classes else 1]
        elif classes != list(range(len(classes))):
            raise OptionError(
                f"--model {path} knows the classes {', '.join(map(repr, classes))}; metrics of TFMA take "
                "classes numbered from 0"
            )
    if found.ndim == 1:
        return pa.array(found)
    return pa.FixedSizeListArray.from_arrays(pa.array(found.ravel()), found.shape[1])
