"""What is summed per slice: cell counts, sums of values, bucket counts of scores; all integers.

Each example has a few *indicators* (such as "the model is wrong here") and perhaps classes; together
they are its *cell*. A slice's statistics are the examples in each cell, and sums of a loss, its square,
a weight, in fixed point with as many bits as the number of examples leaves of 62: a sum is the same
in any order, on any number of workers, to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import frexp, prod
from typing import Literal, NamedTuple

import numpy as np

from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
from slicebeam.metrics.kinds import Comparison
from slicebeam.metrics.significance.auc import Area, Placements, discretisation_error, placements
from slicebeam.metrics.significance.average_precision import Precisions, precisions
from slicebeam.metrics.significance.random_subset import Population

Source = Literal["new", "old", "change", "gain1", "gain0"]
# What an example gains in rank, if it is positive and if it is not.
GAINS: tuple[Source, ...] = ("gain1", "gain0")

# Set of the examples of the earlier data, where there are two data sets.
THEN = "then"
# Indicators that say something of the example, whichever model is asked.
_OF_THE_EXAMPLE = frozenset({"positive", "disagree", THEN})
# Score buckets of a class; the histogram of a slice is this for either class.
BUCKETS = 256
# Bits of a sum of fixed-point numbers; one is the sign, one is spare.
_SUM_BITS = 62
# A Poisson weight of so much has a probability below 1e-30.
_LARGEST_DRAWN = 32.0
# A range that is this small a part of the values is summed about its middle.
_NARROW = 1 / 16
# What is kept of scores in fixed point: placements and precisions are within -1..1, variances within the largest.
_UNIT = 2.0**-52
_UNDEFINED = np.iinfo(np.int64).min
# The placements, the AUC of the complement, and how far either AUC may be off.
_PLACEMENTS = len(Placements._fields)
_OF_SIDE = _PLACEMENTS + 3
# Average precision, and how far it may be off.
_PRECISION, _ERROR = _OF_SIDE, _OF_SIDE + 1
# Variances in fixed point: a slice without other scores may have a larger one.
_LARGEST_VARIANCE = 1000.0


class Term(NamedTuple):
    """A sum over the slice's examples: Σ weight^weight_power · value^power."""

    value: str  # name of the value, such as ``log_loss``
    # of which model, or ``change`` for new minus old; ``gain1`` (of positives) and ``gain0`` (of
    # negatives) are how much the new score's placement among all examples is higher
    source: Source
    power: int  # of the value
    weight_power: int = 0  # of the example's weight, 0 where there are none
    bin: int | None = None  # of the score that examples are in, None for all


class Range(NamedTuple):
    """The smallest and largest value of an example."""

    low: float
    high: float


class Deviations(NamedTuple):
    """What a slice's sum of a value is held against: all examples' weighted deviations, or changes."""

    centre: float  # the mean of all examples, about the value's shift; of two models 0
    population: Population  # of weight · (value − shift − centre), or of weight · (new − old)


@dataclass(frozen=True)
class StatisticSpace:
    """Which statistics are summed, and where each stands in the array of a slice's sums.

    Attributes
    ----------
    indicators : names of the indicators, the first one is the lowest bit of the cell
    comparison : for ``baseline`` most indicators have a bit for either model; for ``earlier`` there is ``then``
    classes : number of classes where pairs of label and predicted class are counted, else 0
    terms : sums of values, for ``earlier`` of today's (source ``new``) or earlier (``old``) examples
    total_terms : sums that are wanted of all examples only
    ranked : whether scores are counted by buckets
    weighted : whether examples have weights
    scales : of each term and total term: a sum times this is in the value's own units
    weight_scales : the same for the sums of weights and of their squares
    shifts : what was taken off each value (name, number) before it was raised to a power
    weight_exponent : weights are summed in units of 2 to this, so that no power leaves the range
    deviations : all examples' deviations, or changes, of values (name) to hold slices against
    nonnegative : the values of which no example has one below 0, of the new model
    coarse : for each model, whether a score bucket [buckets] may hold several scores; else all may
    average_precision : whether average precision is kept of the scores of one model, beside the AUC
    by_score : then negatives and positives of all examples by bucket

    Examples
    --------
    One indicator gives two cells: 0 for the examples that the model gets right, 1 for those it gets
    wrong. A slice's sums are then two counts:

    >>> space = StatisticSpace(("wrong",), "overall")
    >>> space.cells, space.holds("wrong").tolist()
    (2, [False, True])
    >>> sums = np.array([[60, 40], [45, 5]])  # int64 [slices, columns]
    >>> space.sizes(sums)
    array([100,  50])

    Recall needs two indicators, hence four cells. When two models are compared, what each of them
    predicts has an indicator of its own; the label is the same for both:

    >>> StatisticSpace(("positive", "predicted"), "overall").cells
    4
    >>> StatisticSpace(("positive", "predicted"), "baseline").cells
    8
    """

    indicators: tuple[str, ...]
    comparison: Comparison
    classes: int = 0
    terms: tuple[Term, ...] = ()
    total_terms: tuple[Term, ...] = ()
    ranked: bool = False
    weighted: bool = False
    scales: tuple[float, ...] = ()
    weight_scales: tuple[float, float] = (1.0, 1.0)
    shifts: tuple[tuple[str, float], ...] = ()
    weight_exponent: int = 0
    deviations: tuple[tuple[str, Deviations], ...] = ()
    nonnegative: tuple[str, ...] = ()
    coarse: tuple[tuple[bool, ...], ...] = ()
    average_precision: bool = False
    by_score: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def axes(self) -> dict[tuple[str, bool], tuple[int, int]]:
        """Stride and size of each axis of the cells, by its name and whether it is the old model's."""
        of_old = [name for name in self.indicators if name not in _OF_THE_EXAMPLE]
        classes = [("label_class", False), ("predicted_class", False), ("predicted_class", True)]
        if self.comparison != "baseline":
            of_old, classes = [], classes[:2]
        names = [(name, False) for name in self.indicators] + [(name, True) for name in of_old]
        sizes = [(name, 2) for name in names]
        sizes += [(name, self.classes) for name in classes if self.classes]
        axes, stride = {}, 1
        for axis, size in sizes:
            axes[axis] = stride, size
            stride *= size
        return axes

    @cached_property
    def cells(self) -> int:
        """Number of outcome cells."""
        return prod(length for _, length in self.axes.values())

    def code(self, axis: str, *, old: bool = False) -> IntArray:
        """Return an axis' value in each cell [cells], of the old model for ``old``."""
        stride, size = self.axes[axis, old and axis not in _OF_THE_EXAMPLE | {"label_class"}]
        return np.asarray(np.arange(self.cells) // stride % size)

    def stride(self, axis: str, *, old: bool = False) -> int:
        """Return the factor of an axis' value in a cell's number."""
        return self.axes[axis, old][0]

    def holds(self, indicator: str, *, old: bool = False) -> BoolArray:
        """Return in which cells [cells] an indicator is set."""
        return np.asarray(self.code(indicator, old=old) == 1)

    @property
    def sides(self) -> int:
        """Number of models, or of data sets, whose scores are counted."""
        return 1 if self.comparison == "overall" else 2

    @property
    def cell_columns(self) -> int:
        """Columns that are counted by cell: examples, and weights with their squares."""
        return self.cells * (3 if self.weighted else 1)

    @property
    def raw_columns(self) -> int:
        """Columns that are counted."""
        return self.cell_columns + len(self.terms) + 2 * BUCKETS * self.sides * self.ranked

    @property
    def columns(self) -> int:
        """Columns of a slice's sums once its bucket counts are reduced."""
        size = self._ranking_size * self.sides * self.ranked
        return self.cell_columns + len(self.terms) + size

    @property
    def _ranking_size(self) -> int:
        return _OF_SIDE + len(Precisions._fields) * self.average_precision

    @property
    def passes(self) -> int:
        """Columns that an example is added to."""
        return 1 + 2 * self.weighted + len(self.terms) + self.sides * self.ranked

    def sizes(self, sums: IntArray) -> IntArray:
        """Return the examples [slices] of sums [slices, columns], of two data sets those of today."""
        return np.asarray(sums[..., self.size_columns].sum(axis=-1))

    @cached_property
    def size_columns(self) -> slice | IntArray:
        """The columns of the examples that are the size of a slice: of two data sets those of today."""
        if self.comparison == "earlier":
            return np.flatnonzero(~self.holds(THEN))
        return slice(self.cells)

    @cached_property
    def of_one_set(self) -> StatisticSpace:
        """The statistics of one of two data sets by itself."""
        new = [at for at, term in enumerate(self.all_terms) if term.source == "new"]
        return replace(
            self,
            indicators=tuple(name for name in self.indicators if name != THEN),
            comparison="overall",
            terms=tuple(term for term in self.terms if term.source == "new"),
            total_terms=tuple(term for term in self.total_terms if term.source == "new"),
            scales=tuple(self.scales[at] for at in new) if self.scales else (),
            coarse=self.coarse[:1],
        )

    def of_set(self, sums: IntArray, *, then: bool) -> IntArray:
        """Return what sums [..., columns], perhaps with those of totals, say of one of two data sets."""
        cells = np.flatnonzero(np.tile(self.holds(THEN) == then, self.cell_columns // self.cells))
        source, terms = "old" if then else "new", len(self.terms)
        of_source = [at for at, term in enumerate(self.all_terms) if term.source == source]
        kept = [*cells, *(self.cell_columns + at for at in of_source if at < terms)]
        if self.ranked:
            ranking = self.ranking_columns(old=then)
            kept += range(ranking.start, ranking.stop)
        if sums.shape[-1] > self.columns:
            kept += [self.columns + at - terms for at in of_source if at >= terms]
        return np.asarray(sums[..., kept])

    def counts(self, sums: IntArray) -> IntArray:
        """Return the examples by cell [slices, cells]."""
        return sums[..., : self.cells]

    def weights(self, sums: IntArray, power: int = 1) -> FloatArray:
        """Return the summed weights, or their squares, by cell [slices, cells]; counts without."""
        if not self.weighted:
            return sums[..., : self.cells].astype(np.float64)
        begin = self.cells * power
        return np.asarray(sums[..., begin : begin + self.cells] * (self.weight_scales[power - 1]))

    def term(self, sums: IntArray, term: Term) -> FloatArray:
        """Return a sum of values [slices], about the value's shift."""
        column = self.cell_columns + self.terms.index(term)
        return np.asarray(sums[..., column] * self.scale(term))

    def scale(self, term: Term) -> float:
        """Return the unit that a value is rounded to before it is summed."""
        return self.scales[self.terms.index(term)]

    def total_term(self, totals: IntArray, term: Term) -> float:
        """Return a sum that is wanted of all examples only, about the value's shift."""
        at = self.total_terms.index(term)
        return float(totals[self.columns + at] * self.scales[len(self.terms) + at])

    def shift(self, value: str) -> float:
        """Return the shift subtracted from a value before summing."""
        return dict(self.shifts)[value]

    def in_weight_units(self, weights: FloatArray) -> FloatArray:
        """Return weights in the units that they are summed in."""
        return np.ldexp(weights, -self.weight_exponent)

    @cached_property
    def deviations_by_value(self) -> dict[str, Deviations]:
        """All examples' deviations of the values that slices are held against."""
        return dict(self.deviations)

    def _ranking(self, sums: IntArray, *, old: bool) -> FloatArray:
        reduced = sums[..., self.ranking_columns(old=old)]
        return np.where(reduced == _UNDEFINED, np.nan, reduced * _UNIT)

    def placements(self, sums: IntArray, *, old: bool = False) -> Placements:
        """Return AUC and moments of placements [slices]; NaN where a class is empty."""
        return Placements(*np.moveaxis(self._ranking(sums, old=old)[..., :_PLACEMENTS], -1, 0))

    def area(self, sums: IntArray, *, old: bool = False) -> Area:
        """Return AUC, and that of the examples outside each slice; errors are 0 where a class is empty."""
        columns = np.moveaxis(self._ranking(sums, old=old), -1, 0)
        errors = np.nan_to_num(columns[_PLACEMENTS + 1 : _OF_SIDE])
        return Area(columns[0], errors[0], columns[_PLACEMENTS], errors[1])

    def precisions(self, sums: IntArray) -> Precisions:
        """Return average precision, errors and variance [slices]; values are NaN without positives, errors 0."""
        columns = np.moveaxis(self._ranking(sums, old=False)[..., _OF_SIDE:], -1, 0)
        columns[[1, 3]] = np.nan_to_num(columns[[1, 3]])
        return Precisions(*columns)

    def ranking_columns(self, *, old: bool = False) -> slice:
        """Return the columns of reduced sums that hold a model's ranking."""
        begin = self.cell_columns + len(self.terms) + (self._ranking_size if old else 0)
        return slice(begin, begin + self._ranking_size)

    def moved(self, sums: IntArray, side: int) -> IntArray:
        """Return sums of which AUC, or its change, and AP are at the upper (1) or lower (−1) end of their bounds."""
        moved, pairs = sums.copy(), ((0, _PLACEMENTS + 1), (_PRECISION, _ERROR))
        for old in (False, True)[: self.sides]:
            ranking = moved[:, self.ranking_columns(old=old)]
            for value, error in pairs[: 1 + self.average_precision]:
                at = ranking[:, value] != _UNDEFINED
                ends = ranking[at, value] + (-side if old else side) * ranking[at, error]
                ranking[at, value] = np.clip(ends, 0, round(1.0 / _UNIT))
        return moved

    @staticmethod
    def exact_ranking(
        placed: Placements, complement: FloatArray, precision: FloatArray | None = None
    ) -> IntArray:
        """Return the first of `ranking_columns` [slices, columns], those of AUCs, and AP, without an error."""
        zero = np.zeros(complement.shape)
        of_precision = () if precision is None else (precision, zero)
        return _in_units(np.stack([*placed, complement, zero, zero, *of_precision], axis=1))

    def by_class(self, sums: IntArray) -> IntArray:
        """Return what AUC counts of negatives and positives [slices, 2]: examples, or weights."""
        begin = self.cells if self.weighted else 0
        cells, positive = sums[..., begin : begin + self.cells], self.holds("positive")
        counted = [cells[..., of_class].sum(axis=-1) for of_class in (~positive, positive)]
        return np.stack(counted, axis=-1)

    def histogram(self, sums: IntArray, *, old: bool = False) -> IntArray:
        """Return a model's counts by class and score bucket [slices, 2, buckets] of raw sums."""
        begin = self.cell_columns + len(self.terms) + (2 * BUCKETS if old else 0)
        return sums[:, begin : begin + 2 * BUCKETS].reshape(-1, 2, BUCKETS)

    def of_several_scores(self, *, old: bool = False) -> BoolArray:
        """Return which buckets [buckets] may hold several different scores of a model."""
        return np.array(self.coarse[old]) if self.coarse else np.ones(BUCKETS, bool)

    def reduce(self, sums: IntArray, totals: IntArray) -> IntArray:
        """Return sums whose bucket counts are reduced to what AUC and average precision need."""
        if not self.ranked:
            return sums
        reduced = [sums[:, : self.cell_columns + len(self.terms)]]
        for old in (False, True)[: self.sides]:
            histogram, coarse = self.histogram(sums, old=old), self.of_several_scores(old=old)
            others = self.histogram(totals, old=old) - histogram
            errors = [discretisation_error(counts, coarse) for counts in (histogram, others)]
            columns = [*placements(histogram), placements(others).auc, *errors]
            if self.average_precision:
                of_slices = precisions(histogram, others, coarse)
                variance = np.minimum(of_slices.variance, _LARGEST_VARIANCE)
                columns += of_slices._replace(variance=variance)
            reduced.append(_in_units(np.stack(columns, axis=1)))
        return np.concatenate([*reduced, sums[:, self.raw_columns :]], axis=1)

    def scaled(
        self, ranges: Mapping[tuple[str, bool], Range], heaviest: float, rows: int
    ) -> StatisticSpace:
        """Return the space with shifts, and scales that hold for all values within the ranges."""
        shifts, binned = {}, {term.value for term in self.terms if term.bin is not None}
        for name in {name for name, _ in ranges}:
            spans = [span for (value, _), span in ranges.items() if value == name]
            low, high = min(r.low for r in spans), max(r.high for r in spans)
            is_narrow = high - low < _NARROW * max(abs(low), abs(high)) and name not in binned
            shifts[name] = (low + high) / 2 if is_narrow else 0.0
        above = {name for (name, old), span in ranges.items() if not old and span.low >= 0}
        of_values = tuple(sorted(shifts.items())), tuple(sorted(above))
        shifted = replace(self, shifts=of_values[0], nonnegative=of_values[1])
        sizes = [rows * shifted.largest(term, ranges, heaviest) for term in self.all_terms]
        return shifted.refined(ranges, heaviest, sizes, (rows * heaviest, rows * heaviest**2))

    def refined(
        self,
        ranges: Mapping[tuple[str, bool], Range],
        heaviest: float,
        sizes: Sequence[float],
        weight_sizes: tuple[float, float],
    ) -> StatisticSpace:
        """Return the space with the finest scales that the sums of absolute values allow."""
        # One value that is far larger than all others takes the bits of a sum only once.
        common: dict[Term, float] = {}
        # Old and new values have one scale, to be subtracted.
        of_new = [t._replace(source="new") if t.source == "old" else t for t in self.all_terms]
        for term, same, size in zip(self.all_terms, of_new, sizes, strict=True):
            scale = _scale(size, self.largest(term, ranges, heaviest))
            common[same] = max(scale, common.get(same, 0.0))
        first, second = weight_sizes
        weight_scales = _scale(first, heaviest), _scale(second, heaviest**2)
        scales = tuple(common[same] for same in of_new)
        return replace(self, scales=scales, weight_scales=weight_scales)

    @property
    def all_terms(self) -> tuple[Term, ...]:
        """Terms and total terms."""
        return (*self.terms, *self.total_terms)

    def largest(
        self, term: Term, ranges: Mapping[tuple[str, bool], Range], heaviest: float
    ) -> float:
        """Return the largest absolute value of an example in a sum."""
        if term.source in GAINS:
            return 1.0
        new = ranges[term.value, False]
        if term.source == "change":
            old = ranges[term.value, True]
            size = max(abs(new.high - old.low), abs(old.high - new.low))
        else:
            span = ranges[term.value, term.source == "old" and self.comparison == "baseline"]
            size = max(abs(edge - self.shift(term.value)) for edge in span)
        return float(size**term.power * heaviest**term.weight_power)


def _scale(total: float, largest: float) -> float:
    """Return the unit, a power of 2, of a sum of this size, with room to double in a replicate."""
    _, exponent = frexp(2.0 * total + _LARGEST_DRAWN * largest)
    return float(2.0 ** (exponent - _SUM_BITS))


def _in_units(column: FloatArray) -> IntArray:
    """Return values in fixed point, with a mark for NaN."""
    undefined = np.isnan(column)
    return np.where(undefined, _UNDEFINED, fixed_point(np.where(undefined, 0.0, column), _UNIT))


def fixed_point(values: FloatArray, scale: float) -> IntArray:
    """Return values in units of the scale."""
    return np.rint(values / scale).astype(np.int64)
