"""What lists measure of an example: scores of several classes, sets of labels, rankings of results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import ColumnError, InputError, OptionError
from slicebeam.metrics.kinds import OF_CLASS_SCORES, OF_LISTS, OF_RANKINGS, TOP
from slicebeam.transforms.encode.column import is_number, plain_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.measures.metric import Needs
    from slicebeam.transforms.encode.column import ChunkColumn

NO_RELEVANCE = ", but a relevance is at least 0; drop such examples"
# Rounded probabilities add up to 1 within so much.
_ROUNDED = 0.01


def class_scores(column: ChunkColumn) -> FloatArray:
    """Return a column of lists of numbers as a matrix [rows, classes]."""
    lists = _lists(column, "a list of the scores of all classes")
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    width = int(lengths[0]) if lengths.size else 1
    if (lengths != width).any():
        at = int(np.argmax(lengths != width))
        refuse_lengths(
            {column.name: (one, column.row(row))} for row, one in ((0, width), (at, lengths[at]))
        )
    if not width:
        raise ColumnError(
            f"score column {column.name!r} holds an empty list in {column.row(0)}; name another column"
        )
    return _numbers(column, lists).reshape(len(lists), width)


def refuse_lengths(seen: Iterable[Mapping[str, tuple[int, str]]]) -> None:
    """Raise a ColumnError where lists of scores have another length, by column, than in an earlier row."""
    first: dict[str, tuple[int, str]] = {}
    for lengths in seen:
        for name, (length, row) in lengths.items():
            before, there = first.setdefault(name, (length, row))
            if length != before:
                raise ColumnError(
                    f"score column {name!r} holds {before} numbers in {there}, but {length} in {row}; "
                    "each class has one: drop other examples"
                )


def _numbers(column: ChunkColumn, lists: pa.Array) -> FloatArray:
    """Return the numbers of all lists, none missing."""
    flat = pc.list_flatten(lists)
    if not is_number(flat.type) and not pa.types.is_boolean(flat.type):
        raise InputError(
            f"column {column.name!r} is {column.kind}, not lists of numbers; name another one"
        )
    flat = flat.cast(pa.float64())
    _refuse_missing(column, pc.fill_null(pc.is_nan(flat), True), lists, "number")
    return np.asarray(flat)


def _refuse_missing(column: ChunkColumn, missing: pa.Array, lists: pa.Array, what: str) -> None:
    if pc.any(missing).as_py():
        row = pc.list_parent_indices(lists)[pc.index(missing, True).as_py()].as_py()
        raise ColumnError(
            f"column {column.name!r} has a list with a missing {what} in {column.row(row)}; drop such examples"
        )


def ranking_values(label: ChunkColumn, score: ChunkColumn, needs: Needs) -> dict[str, FloatArray]:
    """Return how good the rankings of queries are [rows], by lists of relevances and of scores.

    Of equal scores the less relevant result comes first; a query without a relevant one has 0.
    """
    what = "a list of numbers for each query, which --query makes of rows"
    lists = [_lists(column, what) for column in (label, score)]
    sizes, others = (pc.list_value_length(one).to_numpy(zero_copy_only=False) for one in lists)
    if (sizes != others).any():
        at = int(np.argmax(sizes != others))
        raise ColumnError(
            f"label {label.name!r} has {sizes[at]} relevances in {label.row(at)}, but score {score.name!r} "
            f"has {others[at]} numbers; each result has one of both: drop other examples"
        )
    relevance, scores = (_numbers(*one) for one in zip((label, score), lists, strict=True))
    rows = np.repeat(np.arange(len(sizes)), sizes)
    wrong = ~((relevance >= 0) & (relevance < np.inf))
    if wrong.any():
        at = int(np.argmax(wrong))
        row = label.row(int(rows[at]))
        raise ColumnError(f"label {label.name!r} holds {relevance[at]:g} in {row}{NO_RELEVANCE}")

    def total(values: Any) -> Any:
        return np.bincount(rows, values, minlength=len(sizes))

    place = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    ranked = relevance[np.lexsort((relevance, -scores, rows))]
    hit = (ranked > 0).astype(np.int64)
    of_query = total(hit)
    # Relevant results of the query up to each place.
    hits = np.cumsum(hit) - np.repeat(np.cumsum(of_query) - of_query, sizes)
    found: dict[str, FloatArray] = {}
    for name in needs.values:
        kind, _, text = name.partition(":")
        if kind not in OF_RANKINGS:
            continue
        most = int(text or 1)
        is_listed = place < most
        if kind == "mrr":
            found[name] = total(np.where(hit * hits == 1, 1.0 / (place + 1), 0.0))
        elif kind == "precision_at":
            found[name] = total(hit * is_listed) / most
        elif kind == "map":
            precisions = total(hit * is_listed * hits / (place + 1))
            found[name] = precisions / np.clip(of_query, 1, most)
        else:
            discount = is_listed / np.log2(place + 2)
            ideal = total(relevance[np.lexsort((-relevance, rows))] * discount)
            gain = total(ranked * discount)
            found[name] = np.divide(gain, ideal, out=np.zeros(len(sizes)), where=ideal > 0)
    return found


def class_places(
    column: ChunkColumn, label: pa.Array, names: Sequence[str], width: int
) -> IntArray:
    """Return the place [rows] of each label in the lists of scores, by the names of the classes."""
    if names and len(names) != width and len(label):
        raise OptionError(
            f"--score-classes names {len(names)} classes, but --score has {width} numbers in "
            f"{column.row(0)}; name one for each"
        )
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise OptionError(f"--score-classes names {twice!r} twice; name each class once")
    if not names and pa.types.is_string(label.type):
        raise OptionError(
            f"label {column.name!r} is text, and --score has lists of numbers: name the classes in "
            "their order by --score-classes"
        )
    known: list[Any] = list(names) or list(range(width))
    try:
        places = pc.index_in(label, pa.array(known).cast(label.type))
    except pa.ArrowInvalid as error:
        raise OptionError(
            f"--score-classes are not labels of {column.name!r}, which is {column.kind}; name labels "
            "as they are there"
        ) from error
    if places.null_count:
        at = int(np.argmax(places.is_null().to_numpy(zero_copy_only=False)))
        listed = ", ".join(map(str, known[:5])) + (", …" if width > len(known[:5]) else "")
        raise ColumnError(
            f"label {column.name!r} holds {label[at].as_py()!r} in {column.row(at)}, of which --score has no "
            f"number: its classes are {listed}; name them by --score-classes, or drop such examples"
        )
    return np.asarray(places, np.int64)


def class_outcomes(
    column: ChunkColumn, scores: FloatArray, places: IntArray, needs: Needs
) -> tuple[dict[str, BoolArray], dict[str, FloatArray]]:
    """Return the indicators and the values [rows] of scores of all classes.

    Of equal scores the later class counts as the higher one, as in scikit-learn.
    """
    width = scores.shape[1]
    tops = {one: int(one.removeprefix(TOP)) for one in needs.indicators if one.startswith(TOP)}
    if len(scores) and max(tops.values(), default=0) >= width:
        raise OptionError(
            f"--metric top_k_accuracy:{max(tops.values())} is 1 everywhere, because the lists of --score "
            f"have {width} numbers; take a smaller number"
        )
    own = np.take_along_axis(scores, places[:, None], axis=1)
    above = (scores > own) | ((scores == own) & (np.arange(width) > places[:, None]))
    rank = above.sum(axis=1)
    bits = {one: rank < most for one, most in tops.items()}
    values: dict[str, FloatArray] = {}
    wanted = [name for name in needs.values if name in OF_CLASS_SCORES]
    if wanted:
        why = f", but --metric {', '.join(wanted)} takes probabilities"
        odd = np.abs(scores - 0.5).argmax(axis=1)
        furthest, total = scores[np.arange(len(scores)), odd], np.asarray(scores.sum(axis=1))
        outside = ~((furthest >= 0) & (furthest <= 1))
        column.refuse(outside, furthest, f"{why}, 0 to 1; convert the scores", "score column")
        wrong = np.asarray(np.abs(total - 1) > _ROUNDED)
        column.refuse(
            wrong, total, f" in all{why} that add up to 1; divide by the sum", "score column"
        )
    if "log_loss_multiclass" in wanted:
        smallest = np.finfo(np.float64).eps
        values["log_loss_multiclass"] = -np.log(np.clip(own[:, 0], smallest, 1 - smallest))
    if "brier_multiclass" in wanted:
        values["brier_multiclass"] = (scores**2).sum(axis=1) - own[:, 0] ** 2 + (1 - own[:, 0]) ** 2
    return bits, values


def label_sets(label: ChunkColumn, prediction: ChunkColumn, needs: Needs) -> dict[str, FloatArray]:
    """Return how near the lists of labels and predictions are [rows], each label counted once."""
    labels, predicted = (_elements(column) for column in (label, prediction))
    if pa.types.is_string(labels[0].type) != pa.types.is_string(predicted[0].type):
        raise InputError(
            f"label {label.name!r} is {label.kind} and prediction {prediction.name!r} is {prediction.kind}: "
            "they can never be equal; convert one of them"
        )
    rows = len(label.array)
    both = pa.concat_arrays([labels[0], predicted[0].cast(labels[0].type)]).dictionary_encode()
    codes = both.indices.to_numpy().astype(np.int64)
    width = max(len(both.dictionary), 1)
    cut = len(labels[0])
    sets = [
        np.unique(row * width + code)
        for row, code in ((labels[1], codes[:cut]), (predicted[1], codes[cut:]))
    ]
    common = np.intersect1d(sets[0], sets[1], assume_unique=True)
    sizes = [np.bincount(one // width, minlength=rows) for one in (*sets, common)]
    union = sizes[0] + sizes[1] - sizes[2]
    # Two empty sets are the same.
    found = {
        "jaccard": np.where(union > 0, sizes[2] / np.maximum(union, 1), 1.0),
        "hamming": (union - sizes[2]).astype(np.float64),
    }
    return {name: found[name] for name in needs.values if name in OF_LISTS}


def _elements(column: ChunkColumn) -> tuple[pa.Array, Any]:
    """Return the elements of a column of lists, and the row of each."""
    lists = _lists(column, "a list of labels")
    rows = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = pc.list_flatten(lists)
    flat = flat.cast(plain_type(flat.type))
    _refuse_missing(column, flat.is_null(), lists, "value")
    if pa.types.is_integer(flat.type):
        return flat.cast(pa.int64()), rows
    if pa.types.is_null(flat.type) or pa.types.is_string(flat.type):
        return flat.cast(pa.string()), rows
    raise InputError(
        f"column {column.name!r} is {column.kind}, but labels are text or integers; convert it"
    )


def _lists(column: ChunkColumn, what: str) -> pa.Array:
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(test(column.kind) for test in kinds):
        raise InputError(f"column {column.name!r} is {column.kind}, not {what}; name another one")
    column.require_values("; drop such examples")
    return column.array
