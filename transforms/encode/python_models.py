"""Models of Python, such as those of PyTorch, named ``module:function``."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.errors import OptionError
from slicebeam.metrics.imported import imported, one_line
from slicebeam.transforms.encode.output_models import OutputModel

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from numpy.typing import NDArray

_NAME = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<function>[A-Za-z_]\w*)")


class FunctionModel(OutputModel):
    """A function of a frame of columns, a column an input.

    `function`: takes a pandas DataFrame and returns an array or tensor: [rows] or [rows, classes]
    of probabilities (numbers where metrics compare numbers), or [rows] of classes (integers, truth
    values, text).
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        names = getattr(function, "feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = names

    def outputs(self, given: pd.DataFrame | NDArray[Any]) -> NDArray[Any]:
        """See `OutputModel.outputs`."""
        return array_of(self._function(given))


def is_python_model(name: str) -> bool:
    """Return whether ``--model`` names a function, and no file.

    >>> is_python_model("my_models:predict"), is_python_model("s3://bucket/model.onnx")
    (True, False)
    """
    return _NAME.fullmatch(name) is not None


def python_model(name: str) -> Any:
    """Return the model that ``module:function`` stands for; this runs the code in the module.

    A function of a frame is the model itself. One without parameters returns it, and is called once a
    worker: a function of a frame, a model handler of Beam's whose examples are dictionaries, or a model
    with a method ``predict``, as scikit-learn has it.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise OptionError(f"--model {name}: write module:function")
    function = imported(name, "--model")
    made = function
    if callable(function) and not hasattr(function, "predict") and not _takes_a_frame(function):
        try:
            made = function()
        except Exception as error:
            raise OptionError(
                f"--model {name}: {found['function']}() failed: {one_line(error)}"
            ) from error
    return _model(name, made)


def _takes_a_frame(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(
        one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        for one in parameters
    )


def _model(name: str, made: Any) -> Any:
    from apache_beam.ml.inference.base import ModelHandler

    if isinstance(made, ModelHandler):
        try:
            made.set_environment_vars()
            return FunctionModel(_of_handler(made, made.load_model()))
        except Exception as error:
            raise OptionError(
                f"--model {name}: loading the model failed: {one_line(error)}"
            ) from error
    if hasattr(made, "predict"):
        return made
    if callable(made):
        return FunctionModel(made)
    raise OptionError(
        f"--model {name} is a {type(made).__name__}; name a function of a pandas DataFrame, or one "
        "without parameters that returns a model"
    )


def _of_handler(handler: Any, model: Any) -> Callable[[pd.DataFrame], Any]:
    """Return a model handler of Beam's as a function of a frame."""
    from apache_beam.ml.inference.base import PredictionResult

    def predict(frame: pd.DataFrame) -> NDArray[Any]:
        examples: list[Any] = frame.to_dict("records")
        for before in handler.get_preprocess_fns():
            examples = [before(one) for one in examples]
        together = int(handler.batch_elements_kwargs().get("max_batch_size", len(examples) or 1))
        results: list[Any] = []
        for start in range(0, len(examples), together):
            results += handler.run_inference(examples[start : start + together], model)
        for after in handler.get_postprocess_fns():
            results = [after(one) for one in results]
        values = [one.inference if isinstance(one, PredictionResult) else one for one in results]
        return np.array([array_of(one) for one in values])

    return predict


def array_of(value: Any) -> NDArray[Any]:
    """Return an array, a list or a tensor as an array of NumPy."""
    # A tensor of PyTorch may be on another device, or part of a graph.
    value = value.detach().cpu() if hasattr(value, "detach") else value
    return np.asarray(value)
