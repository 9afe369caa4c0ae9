"""``--focus``: which cells of the confusion matrix count, and how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.errors import InputError, OptionError, unknown_name
from slicebeam.pipelines.config.shift import ACCURACY, is_table
from slicebeam.pipelines.prepare.id_lists import read_csv, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicebeam.metrics.arrays import BoolArray, FloatArray
    from slicebeam.metrics.shift.estimates import Strata
    from slicebeam.pipelines.shift.pool import LabelledPool

_COLUMNS = ("label", "prediction", "weight")
_NO_RESULT = "no result"
# Weights are squared: beyond these their products would lose digits.
_LEAST, _MOST = 1e-6, 1e6


def focus_weights(focus: str | None, pool: LabelledPool) -> FloatArray | None:
    """Return the weights of the cells: float64 [L, P], with the column "no result"; None for none."""
    if focus is None:
        return None
    weights = np.zeros((pool.labels.size, len(pool.classes) + 1))
    if focus == ACCURACY:
        weights[np.arange(pool.labels.size), pool.labels] = 1
        return weights
    names = _Names(pool)
    if is_table(focus):
        _fill(weights, focus, names)
    else:
        weights[names.cell(focus)] = 1
    return weights


def higher_is_better(weights: FloatArray, strata: Strata) -> bool | None:
    """Return whether the weighted cells are right predictions; None where some are and some are not."""
    right: BoolArray = strata.right[:, None] == np.arange(strata.shape[1])
    kinds = set(right[weights > 0].tolist())
    return kinds.pop() if len(kinds) == 1 else None


class _Names:
    """The rows and columns of the confusion matrix by the names of their classes."""

    def __init__(self, pool: LabelledPool) -> None:
        self.labels = {
            name: row
            for row, code in enumerate(pool.labels.tolist())
            for name in _spellings(pool.classes[code])
        }
        self.predictions = {
            name: code for code, one in enumerate(pool.classes) for name in _spellings(one)
        }
        # A class of this name stays one.
        self.predictions.setdefault(_NO_RESULT, len(pool.classes))

    def cell(self, focus: str) -> tuple[int, int]:
        """Return the row and column of LABEL:PREDICTION; both names may contain colons."""
        parts = focus.split(":")
        pairs = [(":".join(parts[:at]), ":".join(parts[at:])) for at in range(1, len(parts))]
        known = [(a, b) for a, b in pairs if a in self.labels and b in self.predictions]
        if len(known) > 1:
            raise OptionError(
                f"--focus {focus!r} could be label {known[0][0]!r} or {known[1][0]!r}; name the cell in a "
                "table, weights.csv"
            )
        if known:
            return self.labels[known[0][0]], self.predictions[known[0][1]]
        # Where one of both is known, the other one is wrong.
        with_label = [pair for pair in pairs if pair[0] in self.labels]
        if with_label:
            raise _unknown("prediction", with_label[0][1], self.predictions, "--focus")
        with_prediction = [pair for pair in pairs if pair[1] in self.predictions]
        raise _unknown("label", (with_prediction or pairs)[0][0], self.labels, "--focus")


def _unknown(kind: str, name: str, known: Mapping[str, int], where: str) -> OptionError:
    # Of several spellings of a class the first is shown.
    shown: dict[int, str] = {}
    for spelling, place in known.items():
        shown.setdefault(place, spelling)
    return OptionError(f"{where}: {unknown_name(kind, name, shown.values())}")


def _place(kind: str, name: str, known: Mapping[str, int], where: str) -> int:
    if name not in known:
        raise _unknown(kind, name, known, where)
    return known[name]


def _spellings(value: Any) -> list[str]:
    """Return how a class may be written: true as in JSON too, 1.0 as 1 too."""
    if isinstance(value, bool):
        return [str(value).lower(), str(value)]
    if isinstance(value, float):
        return [f"{value:.0f}", str(value)]
    return [str(value)]


def _fill(weights: FloatArray, uri: str, names: _Names) -> None:
    """Read a table of the columns label, prediction and weight; cells that it lacks have weight 0."""
    where = f"--focus {uri}"
    header, rows = read_csv(read_text(uri, "--focus"), where)
    if sorted(header) != sorted(_COLUMNS):
        raise InputError(
            f"{where}: its columns are {', '.join(header)}; give label, prediction and weight, each once"
        )
    at = [header.index(name) for name in _COLUMNS]
    seen: set[tuple[int, int]] = set()
    for number, row in enumerate(rows, 1):
        label, prediction, text = (row[column] for column in at)
        line = f"{where}, row {number}"
        cell = (
            _place("label", label, names.labels, line),
            _place("prediction", prediction, names.predictions, line),
        )
        if cell in seen:
            raise InputError(f"{line}: {label}, {prediction} is there twice; keep one weight")
        seen.add(cell)
        weights[cell] = _weight(text, line)
    if not weights.any():
        raise InputError(f"{where}: no cell has a weight above 0; give one to the cells that count")


def _weight(text: str, line: str) -> float:
    try:
        weight = np.nan if "_" in text else float(text)
    except ValueError:
        weight = np.nan
    if weight != 0 and not _LEAST <= weight <= _MOST:
        raise InputError(
            f"{line}: weight {text!r} is not a valid weight; give 0, or a number from {_LEAST:g} to "
            f"{_MOST:,.0f}"
        )
    return weight
