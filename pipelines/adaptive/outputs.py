"""What models give for texts: classes with probabilities, classes alone, numbers, or texts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.errors import OptionError
from slicebeam.transforms.encode.python_models import array_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray

# What a Hugging Face pipeline calls the text that it writes.
_WRITTEN = ("generated_text", "translation_text", "summary_text", "answer")


@dataclass(frozen=True, eq=False)
class Outputs:
    """The outputs of a model for n inputs.

    Attributes
    ----------
    texts : what was put out, as text; None where there is no output; object [n]
    classes : the classes of the probabilities; empty where there are none
    probabilities : float64 [n, classes]; None where there are none
    numbers : float64 [n]; None where outputs are no numbers
    """

    texts: NDArray[np.object_]
    classes: tuple[str, ...] = ()
    probabilities: FloatArray | None = None
    numbers: FloatArray | None = None

    @cached_property
    def is_known(self) -> NDArray[np.bool_]:
        """Whether there is an output; [n]."""
        return np.array([text is not None for text in self.texts.tolist()], dtype=bool)

    def codes_of(self, names: NDArray[np.object_]) -> IntArray:
        """Return the classes of names, −1 for those that the model does not know; [names]."""
        places = {name: place for place, name in enumerate(self.classes)}
        return np.array([places.get(name, -1) for name in names.tolist()], dtype=np.int64)


def as_outputs(raw: Any, inputs: int, name: str, classes: Sequence[Any] | None = None) -> Outputs:
    """Return what a model returned.

    Parameters
    ----------
    raw : a list of texts, classes, truth values or numbers; an array of probabilities [n, classes]; or
        what a pipeline of Hugging Face returns
    inputs : how many texts it was given
    name : of the model, for the errors
    classes : of the probabilities

    Raises
    ------
    OptionError
        It is none of these, or not one output an input.
    """
    try:
        found = len(raw)
    except TypeError:
        raise OptionError(
            f"--model {name} returned a {type(raw).__name__}; it should return one output a text"
        ) from None
    if found != inputs:
        raise OptionError(f"--model {name} returned {found:,} outputs for {inputs:,} texts")
    if inputs and isinstance(raw, (list, tuple)) and isinstance(raw[0], (dict, list)):
        first = raw[0][0] if isinstance(raw[0], list) and raw[0] else raw[0]
        if isinstance(first, dict):
            return _of_pipeline(raw, name)
    array = array_of(raw)
    if array.ndim == 2:
        return _of_probabilities(array, name, classes)
    if array.ndim != 1:
        raise OptionError(
            f"--model {name} returned an array of shape {array.shape}; it should return one output a text, "
            "or probabilities [texts, classes]"
        )
    if array.dtype.kind in "fiu":
        numbers = array.astype(np.float64)
        known = ~np.isnan(numbers)
        texts = np.array(
            [
                str(one) if ok else None
                for one, ok in zip(array.tolist(), known.tolist(), strict=True)
            ],
            object,
        )
        return Outputs(texts, numbers=numbers)
    return Outputs(np.array([None if one is None else str(one) for one in array.tolist()], object))


def _of_probabilities(array: NDArray[Any], name: str, classes: Sequence[Any] | None) -> Outputs:
    if classes is None:
        raise OptionError(
            f"--model {name} returned probabilities, and does not say of which classes; give the function "
            "an attribute output_names, a list of the classes"
        )
    if len(classes) != array.shape[1]:
        raise OptionError(
            f"--model {name} has {len(classes)} output_names, and returned {array.shape[1]} probabilities"
        )
    names = tuple(str(one) for one in classes)
    if len(set(names)) < len(names):
        raise OptionError(
            f"--model {name} has output_names {', '.join(names)}, of which two are the same; name each "
            "class once"
        )
    probabilities = array.astype(np.float64)
    texts = np.array(names, object)[probabilities.argmax(axis=1)]
    texts[np.isnan(probabilities).any(axis=1)] = None
    return Outputs(texts, names, probabilities)


def _of_pipeline(raw: Sequence[Any], name: str) -> Outputs:
    """Return what a pipeline of Hugging Face returned: labels with scores, or texts."""
    rows = [one if isinstance(one, list) else [one] for one in raw]
    if all(row and "label" in row[0] and "score" in row[0] for row in rows):
        classes = tuple(dict.fromkeys(str(one["label"]) for row in rows for one in row))
        places = {label: place for place, label in enumerate(classes)}
        scores = np.zeros((len(rows), len(classes)))
        for number, row in enumerate(rows):
            for one in row:
                scores[number, places[str(one["label"])]] = one["score"]
        if all(len(row) == len(classes) for row in rows):
            return _of_probabilities(scores, name, classes)
        return Outputs(np.array(classes, object)[scores.argmax(axis=1)])
    key = next((one for one in _WRITTEN if all(row and one in row[0] for row in rows)), None)
    if key is None:
        raise OptionError(
            f"--model {name} returned dictionaries without 'label' and 'score' or '{_WRITTEN[0]}'; return "
            "texts, numbers or probabilities"
        )
    return Outputs(np.array([str(row[0][key]) for row in rows], object))
