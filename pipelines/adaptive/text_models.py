"""Models of texts: a function, a factory, a scikit-learn file, or what an HTTP endpoint has answered."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from apache_beam.ml.inference.base import ModelHandler, PredictionResult

from slicebeam.metrics.errors import FileError, OptionError, SlicebeamError
from slicebeam.metrics.imported import imported, one_line
from slicebeam.pipelines.adaptive.outputs import Outputs, as_outputs, model_classes
from slicebeam.transforms.encode.models import load_model
from slicebeam.transforms.storage.publish import sha256_of
from slicebeam.transforms.storage.storage import open_input, storage_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# A text, or a pair of texts.
Text = str | tuple[str, str]

_API_FILES = (".yaml", ".yml")


@dataclass(frozen=True)
class TextModel:
    """A model by its name: loaded where it is used, once a process."""

    name: str
    kind: Literal["function", "file", "endpoint"]
    content: str | None = None  # Hash of a file.

    @property
    def is_paid(self) -> bool:
        """Whether its answers are bought."""
        return self.kind == "endpoint"

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that it says it has, empty if it says none; of an endpoint its file says it."""
        names = None if self.is_paid else getattr(_loaded(self), "classes", None)
        if isinstance(names, str) or not isinstance(names, (Iterable, type(None))):
            raise OptionError(
                f"--model {self.name}: output_names is {names!r}; make it a list of the classes"
            )
        return tuple(str(one) for one in (() if names is None else names))

    def outputs(self, texts: Sequence[Text]) -> Outputs:
        """Return the outputs for texts."""
        return _loaded(self)(texts)


@dataclass(frozen=True, eq=False)
class AnsweredModel(TextModel):
    """An endpoint with what it has answered; a text without an answer has no output."""

    answers: Mapping[Text, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def _is_numeric(self) -> bool:
        kinds = {type(one) for one in self.answers.values() if one is not None}
        return bool(kinds) and kinds <= {int, float}

    def outputs(self, texts: Sequence[Text]) -> Outputs:
        """Return the answers to texts."""
        said = [self.answers.get(text) for text in texts]
        outputs = np.array([None if one is None else str(one) for one in said], object)
        if not self._is_numeric:
            return Outputs(outputs)
        return Outputs(outputs, numbers=np.array([np.nan if one is None else one for one in said]))


def text_model(name: str, option: str = "--model") -> TextModel:
    """Return the model of a name, after loading it."""
    try:
        if name.endswith(_API_FILES):
            return TextModel(name, "endpoint")
        module, colon, _ = name.partition(":")
        if colon and module and "://" not in name and not storage_path(name).exists():
            model = TextModel(name, "function")
        else:
            try:
                with open_input(storage_path(name, option)) as stream:
                    content = f"sha256:{sha256_of(stream)}"
            except (FileNotFoundError, IsADirectoryError) as error:
                raise FileError(
                    f"{option} {name}: no such file; name module:function, a file of scikit-learn, or the "
                    ".yaml file of an endpoint"
                ) from error
            model = TextModel(name, "file", content=content)
        _loaded(model)
    except SlicebeamError as error:
        raise type(error)(str(error).replace("--model", option)) from error
    return model


@lru_cache(maxsize=8)
def _loaded(model: TextModel) -> Callable[[Sequence[Text]], Outputs]:
    if model.kind == "file":
        return _FileModel(model.name, load_model(model.name))
    return _function(model.name)


class _FileModel:
    """A pipeline of scikit-learn that reads texts."""

    def __init__(self, name: str, model: Any) -> None:
        self.name, self.model = name, model
        self.columns = getattr(model, "feature_names_in_", None)
        classes = getattr(model, "classes_", None)
        # Of several outputs they are a list of arrays.
        self.classes = classes.tolist() if isinstance(classes, np.ndarray) else None

    def __call__(self, texts: Sequence[Text]) -> Outputs:
        given: Any = list(texts)
        if self.columns is not None:
            import pandas as pd

            rows = [text if isinstance(text, tuple) else (text,) for text in texts]
            given = pd.DataFrame(rows, columns=[str(one) for one in self.columns])
        try:
            if hasattr(self.model, "predict_proba"):
                return as_outputs(
                    self.model.predict_proba(given),
                    len(texts),
                    self.name,
                    self.model.classes_.tolist(),
                )
            return as_outputs(np.asarray(self.model.predict(given)), len(texts), self.name)
        except SlicebeamError:
            raise
        except Exception as error:
            raise OptionError(
                f"--model {self.name} failed on {len(texts):,} texts: {one_line(error)}; it should be a "
                "pipeline that reads a list of texts"
            ) from error


class _FunctionModel:
    """A function that returns the outputs for a list of texts."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function
        self.classes = model_classes(function, function)

    def __call__(self, texts: Sequence[Text]) -> Outputs:
        try:
            raw = self.function(list(texts))
        except Exception as error:
            raise OptionError(
                f"--model {self.name} failed on {len(texts):,} texts: {one_line(error)}"
            ) from error
        return as_outputs(raw, len(texts), self.name, self.classes)


class _HandlerModel:
    """A model handler of Beam's."""

    def __init__(self, name: str, handler: Any) -> None:
        self.name, self.handler, self.model = name, handler, handler.load_model()
        self.classes = model_classes(handler, self.model)

    def __call__(self, texts: Sequence[Text]) -> Outputs:
        try:
            results = list(self.handler.run_inference(list(texts), self.model))
        except Exception as error:
            raise OptionError(
                f"--model {self.name} failed on {len(texts):,} texts: {one_line(error)}"
            ) from error
        raw = [one.inference if isinstance(one, PredictionResult) else one for one in results]
        return as_outputs(raw, len(texts), self.name, self.classes)


def _function(name: str) -> Callable[[Sequence[Text]], Outputs]:
    """Return the model of ``module:function``: the function itself, or what it makes."""
    attribute = name.partition(":")[2]
    found = imported(name, "--model")
    if not callable(found):
        raise OptionError(f"--model {name}: {attribute} is no function of a list of texts")
    if _needs_nothing(found):
        try:
            found = found()
        except Exception as error:
            raise OptionError(f"--model {name}: {attribute}() failed: {one_line(error)}") from error
    if isinstance(found, ModelHandler):
        return _HandlerModel(name, found)
    if not callable(found):
        raise OptionError(
            f"--model {name}: {attribute}() returns a {type(found).__name__}, which is no function of a "
            "list of texts"
        )
    return _FunctionModel(name, found)


def _needs_nothing(function: Callable[..., Any]) -> bool:
    """Whether a function makes a model, and does not read texts."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return not any(
        one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL)
        for one in parameters
    )
