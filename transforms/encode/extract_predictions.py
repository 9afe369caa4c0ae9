"""The outcome of each example, from columns, scores or a model: what metrics need of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.arrays import Ragged
from slicebeam.metrics.errors import ColumnError, InputError, OptionError, shortened
from slicebeam.metrics.kinds import OF_PROBABILITIES
from slicebeam.metrics.measures.mean import LABEL, number_loss
from slicebeam.metrics.measures.metric import Needs
from slicebeam.metrics.measures.registry import averaged_column, metric
from slicebeam.transforms.encode.column import ChunkColumn, boolean_mask, plain_type
from slicebeam.transforms.encode.list_outcomes import (
    class_outcomes,
    class_places,
    class_scores,
    label_sets,
    ranking_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.transforms.encode.column import Chunk

# Classes beyond this number are not listed: such a label is not a class.
MOST_CLASSES = 1000
# The third power of a larger value may be no float64.
_LARGEST = 1e75

Side = Literal["prediction", "baseline"]
# What a model gives: a class, the probability of the positive one, a number, or what TFMA would take.
Given = Literal["class", "score", "number", "output"]


@dataclass(frozen=True)
class Predictor:
    """Where the predictions of one model are: columns of classes or numbers, of scores, of losses, or a file.

    A score is the probability of the positive class; without the others it also predicts the class.
    """

    column: str | None = None
    score: str | None = None
    model: str | None = None
    loss: str | None = None

    @property
    def is_cut(self) -> bool:
        """Whether its class is what a column of scores says at the threshold."""
        return self.column is None and self.model is None and self.score is not None


@dataclass(frozen=True)
class Outcome:
    """The measurements of each example, and their columns.

    `class_type` is the Arrow type in which classes are compared, if any are. `is_paired`: whether metrics
    compare the two models; else only their classes are, by ``disagreement``. A score of at least `threshold`
    predicts the positive class. `cuts_models`: whether it is applied to the probabilities of models, too,
    instead of using the classes that they predict. `score_classes`: those of a score that is a list.
    """

    label: str | None
    class_type: str
    new: Predictor
    old: Predictor | None = None
    positive_class: Any = None
    threshold: float = 0.5
    needs: Needs = field(default_factory=Needs)
    weight: str | None = None
    cuts_models: bool = False
    is_paired: bool = True
    score_classes: tuple[str, ...] = ()

    @property
    def has_baseline(self) -> bool:
        """Whether metrics compare an old model."""
        return self.old is not None and self.is_paired

    @property
    def uses_classes(self) -> bool:
        """Whether labels and predictions are compared as classes."""
        needs = self.needs
        return bool(needs.indicators) or needs.classes or needs.scores or needs.class_scores

    @property
    def predictors(self) -> dict[Side, Predictor]:
        """The models by side."""
        new: dict[Side, Predictor] = {"prediction": self.new}
        return new if self.old is None else {**new, "baseline": self.old}

    @property
    def cuts_scores(self) -> bool:
        """Whether the classes of a model are what scores say at the threshold."""
        return any(one.is_cut for one in self.predictors.values())


def class_type(label: str, label_type: pa.DataType, other: str, other_type: pa.DataType) -> str:
    """Return the type in which labels and predictions are compared."""
    kind, other_kind = _class_kind(label, label_type), _class_kind(other, other_type)
    if kind != other_kind:
        raise InputError(
            f"label {label!r} is {kind} ({plain_type(label_type)}) and prediction {other!r} is "
            f"{other_kind} ({plain_type(other_type)}): they can never be equal; convert one of them"
        )
    if kind == "text":
        return "string"
    floating = any(pa.types.is_floating(plain_type(one)) for one in (label_type, other_type))
    return "double" if floating else "int64"


def _class_kind(name: str, kind: pa.DataType) -> str:
    kind = plain_type(kind)
    if pa.types.is_string(kind):
        return "text"
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        return "a number"
    of_lists = "; lists are for metrics such as jaccard and ndcg:10"
    raise ColumnError(
        f"column {name!r} of {kind} does not contain classes; use text, integers or booleans"
        f"{of_lists if pa.types.is_nested(kind) else ''}"
    )


def model_column(side: Side, given: Given = "class") -> str:
    """Return the name under which a model's predictions travel with the chunk."""
    return f"\0{side} {given}"


@dataclass(frozen=True)
class Predicted:
    """What metrics need of a chunk: arrays [rows] by name, and whether they are the old model's.

    `classes` are those of the label and of each side; where a score is cut, null for the one that is not
    positive: its name may be in another chunk. `lengths` of lists of scores, by column, and where the first is.
    """

    weights: FloatArray | None = None
    classes: dict[str, pa.Array] = field(default_factory=dict)
    indicators: dict[tuple[str, bool], BoolArray] = field(default_factory=dict)
    scores: dict[Side, FloatArray] = field(default_factory=dict)
    values: dict[tuple[str, bool], FloatArray] = field(default_factory=dict)
    lengths: dict[str, tuple[int, str]] = field(default_factory=dict)

    def listed_classes(self, outcome: Outcome) -> dict[str, list[Any] | None]:
        """Return the classes that are named, by side and of the label; None where there are too many."""
        cut = [side for side, predictor in outcome.predictors.items() if predictor.is_cut]
        named = {side: array.unique() for side, array in self.classes.items() if side not in cut}
        return {
            side: distinct.to_pylist() if len(distinct) <= MOST_CLASSES else None
            for side, distinct in named.items()
        }


def extract_predictions(chunk: Chunk, outcome: Outcome) -> Predicted:
    """Return the measurements that the metrics need for the examples of a chunk."""
    needs, label = outcome.needs, outcome.label
    found = Predicted(weights(chunk, outcome.weight) if outcome.weight else None)
    if label is not None and outcome.uses_classes:
        classes = ChunkColumn.of(chunk, label).classes(outcome.class_type)
        found.classes["label"] = classes
        if outcome.positive_class is not None:
            found.indicators["positive", False] = _is_positive(classes, outcome)
    of_errors = "--metric " + ", ".join(
        v for v in needs.values if v != LABEL and number_loss(v) is not None
    )
    truth: _Numbers | None = None
    if label is not None and needs.predicted_numbers:
        truth = _numbers(chunk, label, of_errors)
    for side, predictor in outcome.predictors.items():
        if side == "prediction" or outcome.is_paired:
            values = _side_values(chunk, outcome, found, side)
            if truth is not None:
                name = predictor.column or predictor.score or model_column(side, "number")
                values |= _errors(truth, _numbers(chunk, name, of_errors), needs)
            found.values.update({(name, side == "baseline"): one for name, one in values.items()})
        if "label" in found.classes and needs.predicted_classes:
            _add_classes(chunk, outcome, found, side)
    if needs.two_models:
        found.indicators["disagree", False] = _disagree(found, outcome)
    for value in needs.values:
        if averaged := averaged_column(value):
            found.values[value, False] = _numbers(chunk, averaged, f"--metric {value}")[1]
    return found


# A column of numbers, and its values [rows].
_Numbers = tuple[ChunkColumn, "FloatArray"]


def _numbers(chunk: Chunk, name: str, taker: str) -> _Numbers:
    column = ChunkColumn.of(chunk, name)
    return column, column.numbers(taker, _LARGEST)


def _side_values(
    chunk: Chunk, outcome: Outcome, found: Predicted, side: Side
) -> dict[str, FloatArray]:
    """Return losses and what lists measure of a model, and add its scores and indicators."""
    needs, predictor = outcome.needs, outcome.predictors[side]
    values: dict[str, FloatArray] = {}
    if predictor.loss and needs.losses:
        values["loss"] = _numbers(chunk, predictor.loss, "a loss")[1]
    if needs.scores:
        column = ChunkColumn.of(chunk, predictor.score or model_column(side, "score"))
        found.scores[side] = column.numbers("a score")
        values |= _probability_losses(column, found.scores[side], found, needs)
    if outcome.label is None or not (needs.class_scores or needs.rankings or needs.label_lists):
        return values
    label = ChunkColumn.of(chunk, outcome.label)
    if predictor.score and needs.class_scores:
        column = ChunkColumn.of(chunk, predictor.score)
        scores = class_scores(column)
        if len(scores):
            found.lengths[predictor.score] = (scores.shape[1], column.row(0))
        labels, names = found.classes["label"], outcome.score_classes
        places = class_places(label, labels, names, scores.shape[1])
        bits, of_classes = class_outcomes(column, scores, places, needs)
        found.indicators.update({(name, side == "baseline"): bit for name, bit in bits.items()})
        values |= of_classes
    if predictor.score and needs.rankings:
        values |= ranking_values(label, ChunkColumn.of(chunk, predictor.score), needs)
    if predictor.column and needs.label_lists:
        values |= label_sets(label, ChunkColumn.of(chunk, predictor.column), needs)
    return values


def _probability_losses(
    column: ChunkColumn, score: FloatArray, found: Predicted, needs: Needs
) -> dict[str, FloatArray]:
    """Return the losses of scores as probabilities, clipped as scikit-learn's ``log_loss`` does."""
    wanted = [value for value in needs.values if value.partition(":")[0] in OF_PROBABILITIES]
    positive = found.indicators.get(("positive", False))
    if not wanted or positive is None:
        return {}
    takes = f"--metric {', '.join(sorted(wanted))} takes probabilities, 0 to 1; convert it"
    _require_probabilities(score, column, takes)

    def log_loss() -> FloatArray:
        smallest = np.finfo(np.float64).eps
        clipped = np.clip(score, smallest, 1 - smallest)
        return -np.where(positive, np.log(clipped), np.log1p(-clipped))

    losses: dict[str, Callable[[], FloatArray]] = {
        "calibration_in_the_large": lambda: positive - score,
        "calibration_error": lambda: score - positive,
        "brier": lambda: (score - positive) ** 2,
        "log_loss": log_loss,
    }
    # In this order they are part of what an example's content is.
    return {
        value: loss()
        for kind, loss in losses.items()
        for value in wanted
        if value.partition(":")[0] == kind
    }


def _errors(truth: _Numbers, predicted: _Numbers, needs: Needs) -> dict[str, FloatArray]:
    """Return the errors of predicted numbers."""
    errors: dict[str, FloatArray] = {}
    for name in needs.values:
        loss = number_loss(name)
        if loss is None:
            continue
        why = f", {loss.why}".format(f"--metric {name}")
        refused = (loss.wrong_labels, truth), (loss.wrong_predictions, predicted)
        for wrong, (column, numbers) in refused:
            if wrong is not None:
                column.refuse(wrong(numbers), numbers, why)
        with np.errstate(over="ignore"):
            errors[name] = loss.of(truth[1], predicted[1])
        if loss.why:
            why = f", of which --metric {name} is too large to be summed; drop such examples"
            truth[0].refuse(~(np.abs(errors[name]) <= _LARGEST), truth[1], why)
    return errors


def _add_classes(chunk: Chunk, outcome: Outcome, found: Predicted, side: Side) -> None:
    """Add the class that a model predicts, and what follows from it."""
    needs, predictor, old = outcome.needs, outcome.predictors[side], side == "baseline"
    label = found.classes["label"]
    if predictor.is_cut:
        is_positive = _above_threshold(chunk, outcome, found, side)
        wrong = is_positive != found.indicators["positive", False]
        classes = (pa.scalar(one, label.type) for one in (outcome.positive_class, None))
        found.classes[side] = pc.if_else(pa.array(is_positive), *classes)
    else:
        shown = predictor.column or f"the predictions of {predictor.model}"
        column = ChunkColumn.of(chunk, predictor.column or model_column(side), shown)
        found.classes[side] = column.classes(outcome.class_type)
        wrong = boolean_mask(pc.not_equal(label, found.classes[side]))
        if "predicted" in needs.indicators:
            is_positive = _is_positive(found.classes[side], outcome)
    if "wrong" in needs.indicators:
        found.indicators["wrong", old] = wrong
    if "predicted" in needs.indicators:
        found.indicators["predicted", old] = is_positive


def _above_threshold(chunk: Chunk, outcome: Outcome, found: Predicted, side: Side) -> BoolArray:
    column = ChunkColumn.of(chunk, str(outcome.predictors[side].score))
    score = found.scores.get(side)
    if score is None:
        score = column.numbers("a score")
    why = (
        f"--threshold {outcome.threshold:g} cuts probabilities, 0 to 1; convert it (a logit x is "
        "1/(1 + exp(-x))), or name predicted classes as --prediction"
    )
    _require_probabilities(score, column, why)
    return score >= outcome.threshold


def _disagree(found: Predicted, outcome: Outcome) -> BoolArray:
    sides = [found.classes[side] for side in outcome.predictors]
    if outcome.cuts_scores:
        # A score tells only the positive class from the other.
        new, old = (_is_positive(classes, outcome) for classes in sides)
        return new != old
    return boolean_mask(pc.not_equal(*sides))


def weights(chunk: Chunk, name: str) -> FloatArray:
    """Return a column of weights [rows]."""
    column = ChunkColumn.of(chunk, name)
    # Weights are summed in units of about the largest one.
    found = column.numbers("a weight", np.finfo(np.float64).max)
    column.refuse(found < 0, found, "; a weight is at least 0", "weight column")
    return found


def _is_positive(classes: pa.Array, outcome: Outcome) -> BoolArray:
    positive = pc.equal(classes, pa.scalar(outcome.positive_class, classes.type))
    return boolean_mask(positive.fill_null(False) if positive.null_count else positive)


def _require_probabilities(score: FloatArray, column: ChunkColumn, why: str) -> None:
    column.refuse(~((score >= 0) & (score <= 1)), score, f", but {why}", "score column")


def check_classes(
    seen: Iterable[dict[str, list[Any] | None]], outcome: Outcome, *, is_positive_named: bool
) -> list[Any]:
    """Return all classes of the label, after checking that predictions speak of the same ones."""
    if not outcome.uses_classes:
        return []
    merged: dict[str, set[Any] | None] = {}
    for side, listed in chain.from_iterable(one.items() for one in seen):
        known = merged.get(side, set())
        merged[side] = None if known is None or listed is None else known | set(listed)
    labels = merged.get("label")
    if labels is None or len(labels) > MOST_CLASSES:
        raise InputError(
            f"label {outcome.label!r} has more than {MOST_CLASSES:,} distinct values: it is not a "
            "class; metrics such as accuracy need classes"
        )
    if _has_fractions(labels):
        raise InputError(
            f"label {outcome.label!r} holds fractions ({_some(labels)}): it is not a class; "
            "metrics such as accuracy need classes, mse and mae need numbers"
        )
    for side, predictor in outcome.predictors.items():
        if side not in merged:
            continue
        values = merged[side]
        # Zeros and ones are never misspelt: a model that is always wrong on them is just that.
        if values is None or not (values & labels or values | labels <= {0, 1}):
            shown = "too many values to list" if values is None else _some(values)
            is_score = values is None or _has_fractions(values)
            hint = "is it a score? give it as --score" if is_score else "use the same spelling"
            raise InputError(
                f"{side} {predictor.column or predictor.model!r} never equals label {outcome.label!r}: "
                f"labels are {_some(labels)}, predictions are {shown}; {hint}"
            )
    if outcome.positive_class is None:
        return sorted(labels)
    # On some days no label is positive, but a misspelt class is never predicted either.
    occurs = outcome.positive_class in labels.union(
        *(merged.get(side) or () for side in outcome.predictors)
    )
    if not occurs and not {*labels, outcome.positive_class} <= {0, 1}:
        raise OptionError(
            f"--positive-class {outcome.positive_class!r} is not a value of label "
            f"{outcome.label!r}: labels are {_some(labels)}"
        )
    if len(labels) > 2:
        several = f"label {outcome.label!r} has {len(labels)} classes ({_some(labels)})"
        if outcome.needs.predicted_classes and outcome.cuts_scores:
            raise InputError(
                f"{several}: a score separates only two; give predicted classes as --prediction"
            )
        if not is_positive_named:
            raise InputError(f"{several}: name the class of interest with --positive-class")
    return sorted(labels)


def _has_fractions(values: set[Any]) -> bool:
    return any(isinstance(value, float) and not value.is_integer() for value in values)


def _some(values: set[Any]) -> str:
    listed = [shortened(repr(value)) for value in sorted(values)[:5]]
    return ", ".join([*listed, "…"][: len(values)])


@dataclass(frozen=True)
class Losses:
    """Losses [rows] of examples by the new model, and by the old one where there are two."""

    new: FloatArray
    old: FloatArray | None
    is_zero_one: bool

    @property
    def change(self) -> FloatArray:
        """D = loss before minus loss after, above 0 where it improved; of one model, minus its loss."""
        return -self.new if self.old is None else self.old - self.new

    @property
    def each(self) -> list[FloatArray]:
        """One column for each model."""
        return [self.new] if self.old is None else [self.new, self.old]


def has_losses(name: str) -> bool:
    """Return whether each example has a loss of its own in a metric, or is right or wrong in it."""
    needs = metric(name).needs
    return bool(needs.values) or needs.predicted_classes


def losses_of(predicted: Predicted, name: str, *, baseline: bool) -> Losses | None:
    """Return the losses of a chunk's examples in a metric: the value that it averages, else wrong classes."""
    sides = (False, True) if baseline else (False,)
    if values := metric(name).needs.values:
        # What is better when it is higher is no loss.
        sign = -1.0 if metric(name).higher_is_better else 1.0
        new, *old = (sign * predicted.values[values[0], side] for side in sides)
        is_zero_one = all(bool(np.isin(loss, (0, 1)).all()) for loss in (new, *old))
        return Losses(new, old[0] if old else None, is_zero_one)
    wrong = [_wrong(predicted, old=side).astype(np.float64) for side in sides]
    return Losses(wrong[0], wrong[1] if baseline else None, is_zero_one=True)


def _wrong(predicted: Predicted, *, old: bool) -> BoolArray:
    """Return which examples the model puts in a wrong class."""
    bits, classes = predicted.indicators, predicted.classes
    if ("wrong", old) in bits:
        return bits["wrong", old]
    if ("predicted", old) in bits and ("positive", False) in bits:
        return bits["predicted", old] != bits["positive", False]
    same = pc.equal(classes["label"], classes["baseline" if old else "prediction"])
    return ~boolean_mask(pc.fill_null(same, False))


# A column is not counted with the label where there are more cells of a value and a class.
MOST_CELLS = 4096


@dataclass(frozen=True)
class LabelCounts:
    """How many examples have each class (sorted), and each value of a feature and class: [codes, classes].

    Lists, and features with more than `MOST_CELLS` cells, have no table.
    """

    classes: tuple[Any, ...]
    sizes: IntArray
    tables: tuple[IntArray | None, ...]


def count_labels(
    labels: pa.Array | None, codes: Sequence[IntArray | Ragged], radices: Sequence[int]
) -> dict[str, Any] | None:
    """Return the counts of a shard as JSON; None where there are no classes, or too many."""
    if labels is None:
        return None
    coded = labels.dictionary_encode()
    classes, label = coded.dictionary.to_pylist(), coded.indices.to_numpy().astype(np.int64)
    if len(classes) > MOST_CLASSES:
        return None
    tables: list[list[int] | None] = []
    for code, radix in zip(codes, radices, strict=True):
        cells = radix * len(classes)
        if isinstance(code, Ragged) or cells > MOST_CELLS:
            tables.append(None)
        else:
            tables.append(np.bincount(code * len(classes) + label, minlength=cells).tolist())
    sizes = np.bincount(label, minlength=len(classes)).tolist()
    return {"classes": classes, "sizes": sizes, "tables": tables}


def sum_labels(
    shards: Sequence[Mapping[str, Any] | None], radices: Sequence[int]
) -> LabelCounts | None:
    """Return the counts of all shards, as `count_labels` returned them; None if those of one are missing."""
    counted = [one for one in shards if one is not None]
    if len(counted) < len(shards):
        return None
    classes = sorted({name for one in counted for name in one["classes"]})
    position = {name: at for at, name in enumerate(classes)}
    columns = [[position[name] for name in one["classes"]] for one in counted]

    def summed(parts: Sequence[Any], rows: int) -> IntArray:
        table = np.zeros((rows, len(classes)), np.int64)
        for part, own in zip(parts, columns, strict=True):
            # Classes may be equal and yet two in a shard, such as 0.0 and -0.0.
            np.add.at(table.T, own, np.array(part, np.int64).reshape(rows, len(own)).T)
        return table

    tables: list[IntArray | None] = []
    for feature, radix in enumerate(radices):
        parts = [one["tables"][feature] for one in counted]
        # Each shard has a part of the classes, and so perhaps few enough cells.
        is_large = radix * len(classes) > MOST_CELLS or any(part is None for part in parts)
        tables.append(None if is_large else summed(parts, radix))
    (sizes,) = summed([one["sizes"] for one in counted], 1)
    return LabelCounts(tuple(classes), sizes, tuple(tables))
