"""Models of TensorFlow and ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.errors import OptionError, install_hint
from slicebeam.transforms.encode.output_models import OutputModel
from slicebeam.transforms.encode.python_models import is_python_model
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from numpy.typing import NDArray

_SAVED = "saved_model.pb"
_SIGNATURE = "serving_default"


class ExportedModel(OutputModel):
    """A model that gives one number, or one for each class, 0, 1, 2 and so on.

    Its inputs are columns, by their names; a single input of several numbers takes all features in
    their order.

    `path`: of the model, for errors. `widths`: of each input, in their order: 1 for a column, k for
    a matrix [rows, k].
    """

    def __init__(self, path: str, widths: Mapping[str, int]) -> None:
        self.path = path
        self.matrix: str | None = None
        if len(widths) == 1 and next(iter(widths.values())) > 1:
            (self.matrix,) = widths
            self.n_features_in_ = widths[self.matrix]
        elif wide := [name for name, width in widths.items() if width > 1]:
            raise OptionError(
                f"--model {path}: input {wide[0]!r} is {widths[wide[0]]} numbers wide, and there "
                "are other inputs; a column is one number"
            )
        else:
            self.feature_names_in_ = np.array(list(widths), object)

    def run(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return what the model gives [rows] or [rows, classes] for its inputs, arrays by name."""
        raise NotImplementedError

    def outputs(self, given: pd.DataFrame | NDArray[Any]) -> NDArray[Any]:
        """Return what the model gives [rows, outputs]."""
        if self.matrix is None:
            columns = {name: np.asarray(given[name]) for name in self.feature_names_in_}
        elif given.shape[1] != self.n_features_in_:
            raise ValueError(
                f"it takes {self.n_features_in_} columns, not {given.shape[1]}; name them with --features"
            )
        else:
            columns = {self.matrix: np.asarray(given)}
        return np.asarray(self.run(columns), np.float64).reshape(len(given), -1)


class SavedModel(ExportedModel):
    """A SavedModel of TensorFlow, by its signature ``serving_default``."""

    def __init__(self, path: str) -> None:
        try:
            import tensorflow as tf
        except ImportError as error:
            raise _missing(path, "TensorFlow", "tensorflow") from error
        self._tf = tf
        # What it holds is not kept alive by its signature.
        self._loaded = tf.saved_model.load(path)
        if _SIGNATURE not in self._loaded.signatures:
            raise OptionError(f"--model {path}: the SavedModel has no signature {_SIGNATURE!r}")
        self._function = self._loaded.signatures[_SIGNATURE]
        self._inputs = dict(self._function.structured_input_signature[1])
        outputs = self._function.structured_outputs
        if len(outputs) != 1:
            raise _several(path, list(outputs))
        (self._output,) = outputs
        widths = {name: _width(one.shape.as_list()) for name, one in self._inputs.items()}
        super().__init__(path, widths)

    def run(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """See `ExportedModel.run`."""
        given = {}
        for name, spec in self._inputs.items():
            values = columns[name]
            if spec.dtype != self._tf.string:
                values = values.astype(spec.dtype.as_numpy_dtype)
            shape = [len(values)] if spec.shape.rank == 1 else [len(values), -1]
            given[name] = self._tf.reshape(self._tf.constant(values, spec.dtype), shape)
        return np.asarray(self._function(**given)[self._output].numpy())


class OnnxModel(ExportedModel):
    """A model in an ONNX file, by ONNX Runtime."""

    def __init__(self, path: str) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise _missing(path, "ONNX Runtime", "onnx") from error
        content = storage_path(path, "--model").read_bytes()
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(content, providers=providers)
        self._inputs = {one.name: one for one in self._session.get_inputs()}
        found = self._session.get_outputs()
        # A classifier of scikit-learn gives the class besides.
        outputs = [one for one in found if one.type in ("tensor(float)", "tensor(double)")]
        if len(outputs) != 1:
            raise _several(path, [one.name for one in found])
        self._output = outputs[0].name
        widths = {name: _width(one.shape) for name, one in self._inputs.items()}
        super().__init__(path, widths)

    def run(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """See `ExportedModel.run`."""
        given = {}
        for name, one in self._inputs.items():
            values = columns[name].astype(_DTYPES.get(one.type, np.float32))
            given[name] = values if len(one.shape) == 1 else values.reshape(len(values), -1)
        return np.asarray(self._session.run([self._output], given)[0])


_DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
}


def _width(shape: list[Any]) -> int:
    """Return how many numbers of a tensor belong to an example; its first axis is that of examples."""
    return int(shape[1]) if len(shape) > 1 and isinstance(shape[1], int) else 1


def _missing(path: str, name: str, extra: str) -> OptionError:
    return OptionError(f"--model {path} needs {name}; {install_hint(extra)}")


def _several(path: str, names: list[str]) -> OptionError:
    return OptionError(
        f"--model {path} has {len(names)} outputs ({', '.join(names)}); export a model with one, the "
        "probabilities"
    )


def exported_model(path: str) -> ExportedModel | None:
    """Return the model in the folder of a SavedModel or in an ONNX file; None for any other file."""
    try:
        if path.endswith(".onnx"):
            return OnnxModel(path)
        if (storage_path(path, "--model") / _SAVED).is_file():
            return SavedModel(path)
    except (OptionError, FileNotFoundError):
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OptionError(f"--model {path} cannot be loaded: {reason}") from error
    return None


def model_files(path: str | None) -> tuple[str, ...]:
    """Return the files that a model is: those of its folder, or itself; none of a function."""
    if not path or is_python_model(path):
        return ()
    place = storage_path(path, "--model")
    if isinstance(place, Path) and place.is_dir():
        return tuple(sorted(str(one) for one in place.rglob("*") if one.is_file()))
    return (path,)
