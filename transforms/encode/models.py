"""Models given as files or functions: loading them, what they read, and what they predict."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slicebeam.metrics.arrays import FloatArray, NDArray
from slicebeam.metrics.errors import FileError, OptionError, SlicebeamError, install_hint
from slicebeam.metrics.imported import imported, one_line
from slicebeam.transforms.formats.tfrecord import example_class
from slicebeam.transforms.storage.storage import storage_path

Run = Callable[[Mapping[str, NDArray[Any]]], NDArray[Any]]

_MOST_COLUMNS = 12
_CUT = 0.5
_OF_KIND: dict[str, Callable[[Any], Any]] = {
    "float_list": float,
    "int64_list": int,
    "bytes_list": lambda value: value if isinstance(value, bytes) else str(value).encode(),
}
_SAVED, _SIGNATURE = "saved_model.pb", "serving_default"
_NAME = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<function>[A-Za-z_]\w*)")
_DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
}


class OutputModel:
    """A model that is a function of examples, with the methods of scikit-learn that a run calls.

    `outputs` returns [rows] or [rows, classes]: a class of each example, a number, its probability of
    class 1, or those of all classes. The examples are a frame of the columns `names`, or an array
    [rows, width]. `classes`, where they are not 0, 1, 2 and so on, may be filled by the first outputs.
    """

    def __init__(
        self,
        outputs: Callable[[Any], NDArray[Any]],
        names: Sequence[str] | None = None,
        width: int | None = None,
        classes: list[Any] | None = None,
    ) -> None:
        self._outputs = outputs
        known = {"feature_names_in_": names, "n_features_in_": width, "classes_": classes}
        vars(self).update({name: value for name, value in known.items() if value is not None})

    def once(self) -> OutputModel:
        """Return a model whose outputs, always for the same examples, are computed once."""
        model = copy(self)
        found: list[NDArray[Any]] = []

        def outputs(examples: Any) -> NDArray[Any]:
            if not found:
                found.append(self._outputs(examples))
            return found[0]

        vars(model)["_outputs"] = outputs
        return model

    def numbers(self, examples: Any) -> NDArray[np.float64]:
        """Return the outputs as numbers, [rows] or [rows, classes]."""
        found = self._checked(examples)
        if found.dtype.kind in "OSU":
            raise ValueError("it gives text, and metrics of numbers take none")
        return found.astype(np.float64)

    def predict_proba(self, examples: Any) -> NDArray[np.float64]:
        """Return the probability of each class [rows, classes]."""
        found = self._checked(examples)
        if not _are_fractions(found):
            raise ValueError(f"it gives classes ({found.dtype}) and no probabilities")
        return _probabilities(found)

    def predict(self, examples: Any) -> NDArray[Any]:
        """Return the class that the model gives, or the most probable one; of two, 1 from 0.5 on."""
        found = self._checked(examples)
        if not _are_fractions(found):
            return found
        found = _probabilities(found)
        is_binary = found.shape[1] == 2
        place = (found[:, 1] >= _CUT).astype(np.int64) if is_binary else found.argmax(axis=1)
        classes = getattr(self, "classes_", None)
        return place if classes is None else np.array(classes)[place]

    def _checked(self, examples: Any) -> NDArray[Any]:
        found = self._outputs(examples)
        if found.ndim not in (1, 2) or len(found) != len(examples):
            raise ValueError(
                f"it gives an array of shape {found.shape} for {len(examples):,} examples"
            )
        return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found


def _are_fractions(found: NDArray[Any]) -> bool:
    return found.ndim == 2 or found.dtype.kind == "f"


def _probabilities(found: NDArray[Any]) -> NDArray[np.float64]:
    shares = found.astype(np.float64)
    outside = shares[~((shares >= 0) & (shares <= 1))]
    if outside.size:
        raise ValueError(
            f"it gives {outside[0]:g}, which is no probability; metrics of classes take probabilities "
            "or, as integers or text, classes"
        )
    return np.column_stack([1 - shares, shares]) if shares.ndim == 1 else shares


def array_of(value: Any) -> NDArray[Any]:
    """Return an array, a list or a tensor as an array of NumPy."""
    # A tensor of PyTorch may be on another device, or part of a graph.
    value = value.detach().cpu() if hasattr(value, "detach") else value
    return np.asarray(value)


def load_model(path: str) -> Any:
    """Load a model of scikit-learn, TensorFlow, ONNX or Python; this runs the code in it."""
    import pickle

    if is_python_model(path):
        return _python_model(path)
    why = " cannot be loaded"
    try:
        if path.endswith(".onnx"):
            return _onnx_model(path)
        if (storage_path(path, "--model") / _SAVED).is_file():
            return _saved_model(path)
        why = ": not readable as a pickle or joblib file"
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
        name = type(error).__name__
        raise OptionError(f"--model {path}{why} ({name}: {_first_line(error)})") from error
    if not hasattr(model, "predict"):
        raise OptionError(f"--model {path}: a {type(model).__name__} has no predict method")
    return model


def model_files(path: str | None) -> tuple[str, ...]:
    """Return the files that a model is: those of its folder, or itself; none of a function."""
    if not path or is_python_model(path):
        return ()
    place = storage_path(path, "--model")
    if isinstance(place, Path) and place.is_dir():
        return tuple(sorted(str(one) for one in place.rglob("*") if one.is_file()))
    return (path,)


def _saved_model(path: str) -> OutputModel:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise _missing(path, "TensorFlow", "tensorflow") from error
    loaded = tf.saved_model.load(path)
    if _SIGNATURE not in loaded.signatures:
        raise OptionError(f"--model {path}: the SavedModel has no signature {_SIGNATURE!r}")
    signature = loaded.signatures[_SIGNATURE]
    inputs = dict(signature.structured_input_signature[1])
    output = _only_output(path, list(signature.structured_outputs))
    parsed = _parsed_features(signature) if len(inputs) == 1 else {}

    def tensor(name: str, columns: Mapping[str, NDArray[Any]]) -> Any:
        if parsed:
            return tf.constant(_serialized(columns, parsed))
        values, spec = columns[name], inputs[name]
        if spec.dtype != tf.string:
            values = values.astype(spec.dtype.as_numpy_dtype)
        shape = [len(values)] if spec.shape.rank == 1 else [len(values), -1]
        return tf.reshape(tf.constant(values, spec.dtype), shape)

    def run(columns: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        tensors = {name: tensor(name, columns) for name in inputs}
        # The signature alone does not keep the variables alive.
        return np.asarray(loaded.signatures[_SIGNATURE](**tensors)[output].numpy())

    widths = {name: _width(spec.shape.as_list()) for name, spec in inputs.items()}
    return _of_columns(path, dict.fromkeys(parsed, 1) or widths, run)


def _parsed_features(signature: Any) -> dict[str, str]:
    """Return the features that a signature parses of serialized tf.Examples, with the kinds of their lists."""
    import tensorflow as tf

    graph = signature.graph.as_graph_def()
    kinds = {tf.float32: "float_list", tf.int64: "int64_list", tf.string: "bytes_list"}
    found: dict[str, str] = {}
    for nodes in (graph.node, *(one.node_def for one in graph.library.function)):
        by_name = {node.name: node for node in nodes}
        for node in nodes:
            if node.op == "ParseExampleV2":
                # Its inputs are the examples, their names, and the keys of each way to parse.
                ways = zip(node.input[2:4], ("sparse_types", "Tdense"), strict=True)
                for keys, types in ways:
                    listed = by_name[keys.partition(":")[0]].attr["value"].tensor
                    for name, kind in zip(
                        tf.make_ndarray(listed), node.attr[types].list.type, strict=True
                    ):
                        found[name.decode()] = kinds[tf.as_dtype(kind)]
    return found


def _serialized(columns: Mapping[str, NDArray[Any]], kinds: Mapping[str, str]) -> list[bytes]:
    """Return the rows of columns as serialized tf.Examples; a missing value is a missing feature."""
    lists = {name: columns[name].tolist() for name in kinds}
    records = []
    for values in zip(*lists.values(), strict=True):
        example = example_class()()
        for (name, kind), value in zip(kinds.items(), values, strict=True):
            if value is None or value != value:  # noqa: PLR0124  (not a number)
                continue
            cast = _OF_KIND[kind]
            getattr(example.features.feature[name], kind).value.append(cast(value))
        records.append(example.SerializeToString())
    return records


def _onnx_model(path: str) -> OutputModel:
    try:
        import onnxruntime
    except ImportError as error:
        raise _missing(path, "ONNX Runtime", "onnx") from error
    content = storage_path(path, "--model").read_bytes()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    inputs = {spec.name: spec for spec in session.get_inputs()}
    found = session.get_outputs()
    # A classifier of scikit-learn gives the class besides, and skl2onnx a map from each class to its
    # probability.
    maps = [spec.name for spec in found if spec.type.startswith("seq(map(")]
    outputs = [spec.name for spec in found if spec.type in ("tensor(float)", "tensor(double)")]
    of_scores = maps or outputs
    output = _only_output(path, of_scores if len(of_scores) == 1 else [spec.name for spec in found])
    classes: list[Any] = []

    def run(columns: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        tensors = {}
        for name, spec in inputs.items():
            values = columns[name].astype(_DTYPES.get(spec.type, np.float32))
            tensors[name] = values if len(spec.shape) == 1 else values.reshape(len(values), -1)
        (scores,) = session.run([output], tensors)
        if maps:
            classes[:] = sorted(scores[0]) if scores else classes
            scores = [[of_class[one] for one in classes] for of_class in scores]
        return np.asarray(scores)

    widths = {name: _width(spec.shape) for name, spec in inputs.items()}
    return _of_columns(path, widths, run, classes if maps else None)


def _of_columns(
    path: str, widths: Mapping[str, int], run: Run, classes: list[Any] | None = None
) -> OutputModel:
    """Return a model of arrays by name: columns, or of a single input of several numbers a matrix."""
    (matrix, width), *others = widths.items()
    if wide := [name for name in widths if widths[name] > 1 and others]:
        raise OptionError(
            f"--model {path}: input {wide[0]!r} is {widths[wide[0]]} numbers wide, and there are other "
            "inputs; a column is one number"
        )

    def outputs(examples: Any) -> NDArray[Any]:
        if width == 1:
            columns = {name: np.asarray(examples[name]) for name in widths}
        elif examples.shape[1] != width:
            raise ValueError(
                f"it takes {width} columns, not {examples.shape[1]}; name them with --model-inputs"
            )
        else:
            columns = {matrix: np.asarray(examples)}
        return np.asarray(run(columns), np.float64).reshape(len(examples), -1)

    names, number = (list(widths), None) if width == 1 else (None, width)
    return OutputModel(outputs, names, number, classes)


def _width(shape: list[Any]) -> int:
    """Return how many numbers of a tensor belong to an example; its first axis is that of examples."""
    return int(shape[1]) if len(shape) > 1 and isinstance(shape[1], int) else 1


def _missing(path: str, name: str, extra: str) -> OptionError:
    return OptionError(f"--model {path} needs {name}; {install_hint(extra)}")


def _only_output(path: str, names: list[str]) -> str:
    if len(names) != 1:
        raise OptionError(
            f"--model {path} has {len(names)} outputs ({', '.join(names)}); export a model with one, the "
            "probabilities"
        )
    return names[0]


def is_python_model(name: str) -> bool:
    """Return whether ``--model`` names a function, and no file.

    >>> is_python_model("my_models:predict"), is_python_model("s3://bucket/model.onnx")
    (True, False)
    """
    return _NAME.fullmatch(name) is not None


def _python_model(name: str) -> Any:
    """Return the model that ``module:function`` stands for; this runs the code in the module.

    A function of a frame is the model itself; one without parameters returns it: such a function, a model
    handler of Beam's whose examples are dictionaries, or a model with scikit-learn's ``predict``.
    """
    from apache_beam.ml.inference.base import ModelHandler

    model = imported(name, "--model")
    if callable(model) and not hasattr(model, "predict") and not _takes_a_frame(model):
        try:
            model = model()
        except Exception as error:
            called = name.partition(":")[2]
            raise OptionError(f"--model {name}: {called}() failed: {one_line(error)}") from error
    if isinstance(model, ModelHandler):
        try:
            model.set_environment_vars()
            return OutputModel(partial(_infer_frame, model, model.load_model()))
        except Exception as error:
            raise OptionError(
                f"--model {name}: loading the model failed: {one_line(error)}"
            ) from error
    if hasattr(model, "predict"):
        return model
    if callable(model):
        names = getattr(model, "feature_names_in_", None)
        return OutputModel(lambda frame: array_of(model(frame)), names)
    raise OptionError(
        f"--model {name} is a {type(model).__name__}; name a function of a pandas DataFrame, or one "
        "without parameters that returns a model"
    )


def _takes_a_frame(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(
        one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        for one in parameters
    )


def _infer_frame(handler: Any, model: Any, frame: Any) -> NDArray[Any]:
    examples = frame.to_dict("records")
    together = int(handler.batch_elements_kwargs().get("max_batch_size", len(examples) or 1))
    return np.array(list(map(array_of, inferences(handler, model, examples, together))))


def inferences(handler: Any, model: Any, examples: Sequence[Any], together: int) -> list[Any]:
    """Return what a model handler of Beam's infers of examples, so many of them at a time."""
    from apache_beam.ml.inference.base import PredictionResult

    prepared, results = list(examples), list[Any]()
    for before in handler.get_preprocess_fns():
        prepared = list(map(before, prepared))
    for start in range(0, len(prepared), together):
        results += handler.run_inference(prepared[start : start + together], model)
    for after in handler.get_postprocess_fns():
        results = list(map(after, results))
    return [one.inference if isinstance(one, PredictionResult) else one for one in results]


def model_features(model: Any) -> list[str]:
    """Return the columns that a model says it was trained on; none where it does not say so."""
    if find_spec("pandas") is None:
        raise OptionError(f"--model needs pandas, whose frames it reads; {install_hint('sklearn')}")
    return [str(name) for name in getattr(model, "feature_names_in_", ())]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model, the columns that it reads, and its name for errors."""

    loaded: Any
    columns: Sequence[str]
    path: str

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            left_out = len(self.columns) - _MOST_COLUMNS
            named = ", ".join(self.columns[:_MOST_COLUMNS])
            named += f", … {left_out} more" if left_out > 0 else ""
            raise OptionError(
                f"--model {self.path} failed on the columns {named}: {_first_line(error)}"
            ) from error

    def _knows(self, classes: Sequence[Any], rest: str) -> OptionError:
        known = ", ".join(map(repr, classes))
        return OptionError(f"--model {self.path} knows the classes {known}{rest}")

    def _examples(self, table: pa.Table) -> Any:
        """Return columns with their names, unless scikit-learn fitted the model without."""
        frame = table.select(list(self.columns)).to_pandas()
        is_unnamed = not hasattr(self.loaded, "feature_names_in_")
        return frame.to_numpy() if is_unnamed and hasattr(self.loaded, "n_features_in_") else frame

    def classes(self, table: pa.Table) -> pa.Array:
        """Return the classes that the model predicts for the rows of a table."""
        with self._named_errors():
            predicted = np.asarray(self.loaded.predict(self._examples(table)))
            if predicted.shape != (table.num_rows,):
                raise ValueError(
                    f"it predicts an array of shape {predicted.shape}, not one class per row"
                )
            return pa.array(predicted.tolist() if predicted.dtype == object else predicted)

    def probabilities(self, table: pa.Table) -> tuple[list[Any], FloatArray]:
        """Return the classes that the model knows, and the probability of each [rows, classes]."""
        if not hasattr(self.loaded, "predict_proba"):
            raise OptionError(
                f"--model {self.path}: a {type(self.loaded).__name__} gives no probabilities, which the "
                "metrics need; give a column of scores as --score"
            )
        with self._named_errors():
            found = np.asarray(self.loaded.predict_proba(self._examples(table)), np.float64)
        classes = getattr(self.loaded, "classes_", range(found.shape[1]))
        return [getattr(one, "item", lambda one=one: one)() for one in classes], found

    def scores(self, table: pa.Table, positive: Any) -> pa.Array:
        """Return the probability of the positive class for each row."""
        classes, found = self.probabilities(table)
        if positive not in classes:
            raise self._knows(classes, f", not --positive-class {positive!r}")
        return pa.array(found[:, classes.index(positive)])

    def above(self, table: pa.Table, positive: Any, threshold: float) -> pa.Array:
        """Return the positive class where its probability is at least a threshold, else the other one."""
        classes, found = self.probabilities(table)
        if len(classes) != 2 or positive not in classes:
            raise self._knows(
                classes,
                f", and --threshold {threshold:g} tells {positive!r} from one other; give predicted "
                "classes as --prediction",
            )
        at = classes.index(positive)
        above = found[:, at] >= threshold
        return pa.array([classes[at if one else 1 - at] for one in above.tolist()])

    def numbers(self, table: pa.Table) -> pa.Array:
        """Return the number that the model predicts for each row."""
        if not isinstance(self.loaded, OutputModel):
            return self.classes(table)
        with self._named_errors():
            found = self.loaded.numbers(self._examples(table))
            if found.ndim != 1:
                raise ValueError(f"it gives {found.shape[1]} numbers a row, not one")
            return pa.array(found)

    def outputs(self, table: pa.Table, positive: Any) -> pa.Array:
        """Return what TensorFlow Model Analysis takes: the positive class's probability, or a number.

        Of more than two classes, which must be 0, 1, 2 and so on, it is a list of probabilities.
        """
        if isinstance(self.loaded, OutputModel):
            with self._named_errors():
                found = self.loaded.numbers(self._examples(table))
        elif not hasattr(self.loaded, "predict_proba"):
            return self.classes(table)
        else:
            classes, found = self.probabilities(table)
            if len(classes) == 2:
                found = found[:, classes.index(positive) if positive in classes else 1]
            elif classes != list(range(len(classes))):
                raise self._knows(classes, "; metrics of TFMA take classes numbered from 0")
        if found.ndim == 1:
            return pa.array(found)
        return pa.FixedSizeListArray.from_arrays(pa.array(found.ravel()), found.shape[1])
