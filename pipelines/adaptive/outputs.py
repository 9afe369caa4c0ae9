"""What models give for texts: classes with probabilities, classes alone, numbers, or texts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.errors import OptionError
from slicebeam.transforms.encode.models import array_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray

# What a Hugging Face pipeline calls the text that it writes.
_WRITTEN = ("generated_text", "translation_text", "summary_text", "answer")
# By how much the probabilities of all classes may miss 1; pipelines compute in 32 or 16 bits.
_ROUNDING = 1e-2


@dataclass(frozen=True, eq=False)
class Outputs:
    """The outputs of a model for n inputs."""

    # What was put out, as text; None where there is no output; object [n].
    texts: NDArray[np.object_]
    classes: tuple[str, ...] = ()  # The classes of the probabilities; empty where there are none.
    probabilities: FloatArray | None = None  # float64 [n, classes]; None where there are none.
    numbers: FloatArray | None = None  # float64 [n]; None where outputs are no numbers.

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

    What it says of an input does not depend on the inputs beside it.
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
            return _of_pipeline(raw, name, classes)
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


def model_classes(function: object, model: object) -> Any:
    """Return a function's `output_names`, or else the classes of a pipeline of Hugging Face; or None.

    A pipeline that writes texts has labels too, which mean nothing.
    """
    names = getattr(function, "output_names", None)
    if names is not None:
        return names
    config = getattr(getattr(model, "model", None), "config", None)
    by_number = getattr(config, "id2label", None)
    if not isinstance(by_number, dict) or "classification" not in str(
        getattr(model, "task", "classification")
    ):
        return None
    return [by_number[number] for number in sorted(by_number)]


def _of_pipeline(raw: Sequence[Any], name: str, classes: Sequence[Any] | None) -> Outputs:
    """Return what a pipeline of Hugging Face returned: labels with scores, or texts."""
    rows = [one if isinstance(one, list) else [one] for one in raw]
    if all(row and all({"label", "score"} <= {*one} for one in row) for row in rows):
        return _of_scores(
            [{str(one["label"]): float(one["score"]) for one in row} for row in rows], name, classes
        )
    key = next((one for one in _WRITTEN if all(row and one in row[0] for row in rows)), None)
    if key is None:
        raise OptionError(
            f"--model {name} returned dictionaries without 'label' and 'score' or '{_WRITTEN[0]}'; return "
            "texts, numbers or probabilities"
        )
    return Outputs(np.array([str(row[0][key]) for row in rows], object))


def _of_scores(
    rows: Sequence[dict[str, float]], name: str, classes: Sequence[Any] | None
) -> Outputs:
    """Return probabilities where each row has all classes, else the best class of each row alone."""
    # Which classes there are must not depend on the rows: those that share a block are chance.
    if classes is not None:
        known = [str(one) for one in classes]
        if strange := next((one for row in rows for one in row if one not in known), None):
            raise OptionError(
                f"--model {name} returned the label {strange!r}, which is none of its classes: "
                f"{', '.join(known)}"
            )
        are_whole = {len(row) == len(known) for row in rows}
    else:
        known = sorted(rows[0])
        are_whole = {len(row) > 1 for row in rows}
        if True in are_whole and not all(_is_distribution(row, known) for row in rows):
            raise OptionError(
                f"--model {name} returned scores of some of its classes; return those of all "
                "(top_k=None) or of the best alone (top_k=1), or give the function output_names, a "
                "list of the classes"
            )
    if are_whole == {True}:
        scores = np.array([[row[one] for one in known] for row in rows])
        return _of_probabilities(scores, name, known)
    if True in are_whole:
        raise OptionError(
            f"--model {name} returned scores of all classes for some texts and not for others; return "
            "those of all, or of the best alone"
        )
    best = [
        None if np.isnan([*row.values()]).any() else max(row, key=row.__getitem__) for row in rows
    ]
    return Outputs(np.array(best, object))


def _is_distribution(row: dict[str, float], classes: Sequence[str]) -> bool:
    total = sum(row.values())
    return sorted(row) == classes and (abs(total - 1.0) < _ROUNDING or np.isnan(total))
