"""How encoded examples become integers: known only when all of them are written."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import frexp, ldexp
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.counting.counting import Tables
from slicebeam.metrics.counting.statistic_space import BUCKETS, Deviations, Range, Term
from slicebeam.metrics.errors import ColumnError, InputError
from slicebeam.metrics.kinds import ABOVE
from slicebeam.metrics.measures.mean import LABEL
from slicebeam.metrics.measures.one_model import PREFIX, of_error, part_edges
from slicebeam.metrics.measures.registry import averaged_column
from slicebeam.metrics.significance.auc import bucket_edges
from slicebeam.metrics.significance.random_subset import BINS, bin_edges, bin_sums, population
from slicebeam.transforms.encode.shards import WEIGHT, Scaling, Shard, score_columns, value_column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.lattice import Lattice
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.transforms.encode.extract_slice_keys import Encoding
    from slicebeam.transforms.encode.passes import Found, Function

    # Applies a function to all shards, under a name, and returns what it finds in each group of them.
    OverShards = Callable[[str, Function], list[Found]]

# Cells of which macro averages may be made.
_MOST_CELLS = 4096
# Scores whose quantiles are taken; of more, every k-th.
_SCORES_AT_MOST = 10_000_000
# Bits of a sum of places within a bin, each at most 1.
_BINNED_BITS = 62
# Of values that differ by less, beside their size, a float has too few digits.
_LEAST_SPREAD = 1e-12
# The third power of smaller values may be no float64.
_SMALLEST = 1e-75
# A unit of a sum that is a larger part of a typical value makes sums of small slices rough.
_ROUGH = 0.01


def scale(
    encoding: Encoding, over: OverShards, facts: Sequence[dict[str, Any]], rows: int
) -> Scaling:
    """Return how the columns of all shards become statistics."""
    space = encoding.space
    classes: tuple[Any, ...] = ()
    other: Any = None
    # Shards without them have many.
    if space.classes or all(fact["pairs"] for fact in facts if fact["rows"]):
        pairs = [one for fact in facts for listed in fact["pairs"].values() for one in listed]
        known = set(pairs) - {None}
        rest = sorted(known - {encoding.outcome.positive_class})
        other = rest[0] if None in pairs and rest else None
        # Where no example has the other class it has no name, but it may be predicted.
        unnamed = (None,) if None in pairs and not rest else ()
        classes = (*sorted(known), *unnamed)
    if space.classes:
        space = replace(space, classes=len(classes))
        if space.cells > _MOST_CELLS:
            most = max(
                k for k in range(len(classes)) if replace(space, classes=k).cells <= _MOST_CELLS
            )
            raise InputError(
                f"label {encoding.outcome.label!r} and the predictions have {len(classes)} "
                "classes; macro averages count a cell for every combination of classes, here "
                f"for at most {most} classes: use accuracy, or a metric of one class with "
                "--positive-class"
            )
    ranges: dict[tuple[str, bool], Range] = {}
    for name, old, low, high in (ends for fact in facts for ends in fact["ranges"]):
        earlier = ranges.get((name, old), Range(low, high))
        ranges[name, old] = Range(min(low, earlier.low), max(high, earlier.high))
    _check_ranges(ranges)
    heaviest, exponent = 1.0, 0
    if space.weighted:
        heaviest, exponent = frexp(max(fact["heaviest"] for fact in facts))
    space = replace(space.scaled(ranges, heaviest, rows), weight_exponent=exponent)
    largest = ldexp(heaviest, exponent) if space.weighted else 0.0
    scaling = Scaling(space, classes, other, heaviest=largest)
    if space.ranked:
        scaling = _ranked(scaling, over, rows)
    if any(indicator.startswith(ABOVE) for indicator in space.indicators):
        scaling = _with_cuts(scaling, over, rows)
    return _refined(scaling, over, ranges, heaviest)


def _check_ranges(ranges: Mapping[tuple[str, bool], Range]) -> None:
    """Raise a ColumnError where values differ too little for sums of their powers."""
    for name in sorted({name for name, _ in ranges}):
        both = [ends for (value, _), ends in ranges.items() if value == name]
        low, high = min(ends.low for ends in both), max(ends.high for ends in both)
        size = max(abs(low), abs(high))
        is_lost = 0.0 < high - low < _LEAST_SPREAD * size
        if not is_lost and not 0.0 < size < _SMALLEST:
            continue
        column = averaged_column(name)
        what = f"the values of {name}" if column is None else f"the values of column {column!r}"
        where = f"{what}, from {low:g} to {high:g}, differ by {high - low:.2g},"
        if is_lost:
            raise ColumnError(f"{where} too little for numbers of this size; subtract a constant")
        raise ColumnError(f"{where} which is too small to be squared; multiply by a constant")


def _refined(
    scaling: Scaling, over: OverShards, ranges: dict[tuple[str, bool], Range], heaviest: float
) -> Scaling:
    """Return the scaling with the bits that the data leaves, by sizes that are the same in any order."""
    space = scaling.space
    if not (space.terms or space.weighted):
        return scaling
    found = over("sizes", partial(_sizes, scaling))
    both = [int(size) for size in np.sum([one["sizes"] for one in found], axis=0)]
    rows, numbers = both[0], len(both) // 2
    sizes, sums = both[1 : 1 + numbers], both[1 + numbers :]
    weight_sizes = sizes[len(space.all_terms) :]
    # Each example may have lost half a unit.
    own = [(size + rows) * scale for size, scale in zip(sizes, space.scales, strict=False)]
    scales = zip(weight_sizes, space.weight_scales, strict=True)
    first, second = ((size + rows) * scale for size, scale in scales)
    refined = space.refined(ranges, heaviest, own, (first, second))
    rough = set()
    for term, scale, size in zip(refined.all_terms, refined.scales, own, strict=True):
        most = refined.largest(term, ranges, heaviest)
        if scale > _ROUGH * max(size - most, 0.0) / rows:
            rough.add(term.value)
    scaling = replace(scaling, space=refined, rough=tuple(sorted(rough)))
    if not space.terms or space.comparison == "earlier":
        return scaling
    units = (*space.scales, *space.weight_scales)
    measured = [total * unit for total, unit in zip(sums, units, strict=True)]
    return _with_deviations(scaling, over, ranges, heaviest, rows, measured)


def _sizes(scaling: Scaling, shards: Iterable[Shard]) -> Found:
    """Return the number of rows, then the sizes of the terms and weights, then their sums."""
    terms = len(scaling.space.all_terms)
    rows, sizes = 0, np.zeros((2, terms + 2), np.int64)
    for shard in shards:
        for block in shard.blocks(scaling):
            rows += block.rows
            sizes[0, :terms] += np.abs(block.terms).sum(axis=1)
            sizes[1, :terms] += block.terms.sum(axis=1)
            sizes[:, terms : terms + len(block.weights)] += block.weights.sum(axis=1)
    return {"sizes": np.append(rows, sizes)}


def _with_deviations(
    scaling: Scaling,
    over: OverShards,
    ranges: dict[tuple[str, bool], Range],
    heaviest: float,
    rows: int,
    sums: Sequence[float],
) -> Scaling:
    """Return the scaling with what the slices' means are held against: deviations from the mean, or changes."""
    space = scaling.space
    centres: dict[str, float] = {}
    edges: dict[str, FloatArray] = {}
    spreads: dict[str, tuple[float, float]] = {}
    known = dict(zip(space.all_terms, sums, strict=False))
    weight, squares = sums[-2:] if space.weighted else (float(rows), float(rows))
    # Of weighted deviations the squares are summed with the squared weights.
    linear, squared = (1, 2) if space.weighted else (0, 0)
    paired = space.comparison == "baseline"
    source = "change" if paired else "new"
    for name in sorted({term.value for term in space.terms if term.source == source}):
        new = ranges[name, False]
        if paired:
            centre, old = 0.0, ranges[name, True]
            variance = known[Term(name, "change", 2, squared)] / rows
            low = min(new.low - old.high, 0.0) * heaviest
            high = max(new.high - old.low, 0.0) * heaviest
        else:
            centre = known[Term(name, "new", 1, linear)] / weight if weight > 0 else 0.0
            first, second = (known[Term(name, "new", power, squared)] for power in (1, 2))
            variance = (second - 2.0 * centre * first + centre**2 * squares) / rows
            low, high = ((end - space.shift(name) - centre) * heaviest for end in new)
        spreads[name] = centre, variance
        if low <= 0.0 <= high and variance > 0:
            centres[name] = centre
            edges[name] = bin_edges(low, high, variance**0.5)
    unexplained = None
    if "r2" in centres and LABEL in centres:
        mean, of_label = spreads[LABEL]
        slope = (centres["r2"] + space.shift("r2")) / of_label
        unexplained = partial(of_error, slope=slope, centre=mean, variance=of_label)
        farthest = max(abs(end - space.shift(LABEL) - mean) for end in ranges[LABEL, False])
        low, high = (end - space.shift("r2") - centres["r2"] for end in ranges["r2", False])
        low, high = low - slope * farthest**2, high + slope * of_label
        edges["r2"] = bin_edges(low, high, spreads["r2"][1] ** 0.5)
    binned = {name for name in centres if name.startswith(PREFIX)}
    edges |= {name: part_edges(name, centres[name]) for name in binned}
    centres.pop(LABEL, None)
    if not centres:
        return scaling
    unit = ldexp(1.0, rows.bit_length() - _BINNED_BITS)
    found = over("deviations", partial(_binned, space, centres, edges, unit, unexplained))
    of = []
    for name, centre in centres.items():
        own = np.sum([one[name] for one in found], axis=0).reshape(3, BINS)
        if name in binned:
            # One point a part, so that none is in another bin.
            own[2] = 0
        of.append((name, Deviations(centre, population(own, edges[name], unit))))
    return replace(scaling, space=replace(space, deviations=tuple(of)))


def _binned(
    space: StatisticSpace,
    centres: Mapping[str, float],
    edges: Mapping[str, FloatArray],
    unit: float,
    unexplained: Callable[[FloatArray, FloatArray], FloatArray] | None,
    shards: Iterable[Shard],
) -> Found:
    """Return the sums by bin [3 * BINS] of each value's weighted deviations from its centre, or changes."""
    sums = {name: np.zeros((3, BINS), np.int64) for name in centres}
    for shard in shards:
        weight = space.in_weight_units(shard.column(WEIGHT)) if space.weighted else None
        for name, centre in centres.items():
            values = shard.column(value_column(name, old=False))
            if space.comparison == "baseline":
                values = values - shard.column(value_column(name, old=True))
            else:
                values = values - space.shift(name) - centre
            if name == "r2" and unexplained is not None:
                label = shard.column(value_column(LABEL, old=False)) - space.shift(LABEL)
                values = unexplained(values, label)
            sums[name] += bin_sums(values if weight is None else values * weight, edges[name], unit)
    return {name: own.ravel() for name, own in sums.items()}


def _ranked(scaling: Scaling, over: OverShards, rows: int) -> Scaling:
    """Return the scaling with the buckets of scores."""
    space = scaling.space
    step = -(-rows // _SCORES_AT_MOST)
    names = score_columns(space)
    found = over("scores", partial(_sampled, names, step, None))
    edges, coarse = [], []
    for name in names:
        scores = np.concatenate([one[name] for one in found])
        own = bucket_edges(scores, BUCKETS)
        held = np.bincount(np.searchsorted(own, np.unique(scores), side="right"), minlength=BUCKETS)
        edges.append(own)
        # A score that is in no sample may be in any bucket.
        coarse.append((held > 1) | (step > 1))
    histograms = over("buckets", partial(_histograms, scaling.space, names, edges))
    in_buckets = [
        np.sum([histogram[name] for histogram in histograms], axis=0).reshape(2, BUCKETS)
        for name in names
    ]
    space = replace(space, coarse=tuple(tuple(one.tolist()) for one in coarse))
    if space.average_precision:
        space = replace(space, by_score=tuple(tuple(row.tolist()) for row in in_buckets[0]))
    return replace(
        scaling,
        space=space,
        rows=tuple(bucket.sum(axis=0) for bucket in in_buckets),
        edges=tuple(edges),
        coarse=tuple(coarse),
        places=tuple(map(_places, in_buckets)),
    )


def _with_cuts(scaling: Scaling, over: OverShards, rows: int) -> Scaling:
    """Return the scaling with the scores that no larger share of all negatives than wanted is above."""
    space, cuts = scaling.space, []
    names = [name for name in space.indicators if name.startswith(ABOVE)]
    columns = [*score_columns(space), *([WEIGHT] if space.weighted else [])]
    step = -(-rows // _SCORES_AT_MOST)
    found = over("negatives", partial(_sampled, columns, step, ~space.holds("positive")))
    values = {name: np.concatenate([part[name] for part in found]) for name in columns}
    weights = values.get(WEIGHT, np.ones(values[columns[0]].size))
    if not weights.sum() > 0:
        raise InputError(
            f"--metric recall_at_{names[0].replace(ABOVE, 'fpr:')}: no example has a negative label, so "
            "there is no false positive rate; leave it out"
        )
    for side, column in enumerate(score_columns(space)):
        order = np.argsort(-values[column])
        scores, above = values[column][order], np.cumsum(weights[order])
        for name in names:
            # With it, too many are at least the cut; above it are those with a higher score.
            too_many = above > float(name.removeprefix(ABOVE)) * above[-1] * (1 + _LEAST_SPREAD)
            cuts.append((name, side == 1, float(scores[np.argmax(too_many)])))
    return replace(scaling, cuts=tuple(cuts))


def _sampled(
    names: Sequence[str], step: int, wanted: BoolArray | None, shards: Iterable[Shard]
) -> Found:
    """Return every k-th value of some columns, of the wanted cells (bool [cells]) or of all."""
    parts: dict[str, list[FloatArray]] = {name: [np.zeros(0)] for name in names}
    for shard in shards:
        kept = slice(None) if wanted is None else wanted[shard.column("cell")]
        for name in names:
            parts[name].append(shard.column(name)[kept][::step])
    return {name: np.concatenate(some) for name, some in parts.items()}


def _histograms(
    space: StatisticSpace,
    names: Sequence[str],
    edges: Sequence[FloatArray],
    shards: Iterable[Shard],
) -> Found:
    """Return the examples of each class in each bucket [2 * buckets] of each model's scores."""
    positive = space.holds("positive")
    histograms = {name: np.zeros(2 * BUCKETS, np.int64) for name in names}
    for shard in shards:
        # Only the label of the cell is needed: pairs of classes are not in it yet.
        label = positive[shard.column("cell")].astype(np.int64)
        for name, own in zip(names, edges, strict=True):
            bucket = np.searchsorted(own, shard.column(name), side="right")
            histograms[name] += np.bincount(label * BUCKETS + bucket, minlength=2 * BUCKETS)
    return dict(histograms)


def _places(histogram: IntArray) -> FloatArray:
    """Return where a score of each bucket stands among all examples of the other class."""
    share = histogram / np.maximum(histogram.sum(axis=1, keepdims=True), 1)
    below = np.cumsum(share, axis=1) - share / 2
    return np.stack([1.0 - below[1], below[0]])


def totals(scaling: Scaling, lattice: Lattice, shards: Iterable[Shard]) -> Found:
    """Return the sums of all examples [columns]."""
    tables = Tables([], lattice, scaling.space, None)
    for shard in shards:
        for block in shard.blocks(scaling):
            tables.add(block)
    return {"totals": tables.total[0]}
