"""Models given as files: loading them, what they read, and what they predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from slicebeam.metrics.errors import FileError, OptionError, SlicebeamError
from slicebeam.transforms.encode.exported_models import exported_model
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_COLUMNS = 12


def model_features(model: Any, features: Sequence[str]) -> list[str]:
    """Return the columns that a model reads: those it was trained on, else all features."""
    names = getattr(model, "feature_names_in_", None)
    return list(features) if names is None else [str(name) for name in names]


def _named(columns: Sequence[str]) -> str:
    more = f", … {len(columns) - _MOST_COLUMNS} more" if len(columns) > _MOST_COLUMNS else ""
    return ", ".join(columns[:_MOST_COLUMNS]) + more


def load_model(path: str) -> Any:
    """Load a model of scikit-learn, TensorFlow or ONNX; this runs the code in the file.

    Raises
    ------
    InputError
        The file is missing, is not a model, or needs a package that is not installed.
    """
    import pickle

    try:
        exported = exported_model(path)
    except FileNotFoundError as error:
        raise FileError(f"--model {path}: no such file") from error
    if exported is not None:
        return exported
    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        raise OptionError(
            "--model needs scikit-learn: install it with pip install 'slicebeam[sklearn]'"
        ) from error
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
    """Return the classes that a model predicts for the rows of a table.

    Raises
    ------
    InputError
        The model refuses the columns, or predicts no classes.
    """
    given = _given(model, table, columns)
    try:
        predicted = np.asarray(model.predict(given))
        if predicted.shape != (table.num_rows,):
            raise ValueError(f"it predicts shape {predicted.shape}, not one class per row")  # noqa: TRY301
        return pa.array(predicted.tolist() if predicted.dtype == object else predicted)
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


def predict_scores(
    model: Any, table: pa.Table, columns: Sequence[str], path: str, positive: Any
) -> pa.Array:
    """Return the probability of the positive class that a model gives each row of a table.

    Raises
    ------
    InputError
        The model gives no probabilities, or does not know the class.
    """
    if not hasattr(model, "predict_proba"):
        raise OptionError(
            f"--model {path}: a {type(model).__name__} gives no probabilities, which the metrics need; "
            "give a column of scores as --score"
        )
    classes = [getattr(one, "item", lambda one=one: one)() for one in model.classes_]
    if positive not in classes:
        raise OptionError(
            f"--model {path} knows the classes {', '.join(map(repr, classes))}, not --positive-class "
            f"{positive!r}"
        )
    given = _given(model, table, columns)
    try:
        scores = np.asarray(model.predict_proba(given), np.float64)[:, classes.index(positive)]
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OptionError(
            f"--model {path} failed on the columns {_named(columns)}: {reason}"
        ) from error
    return pa.array(scores)
