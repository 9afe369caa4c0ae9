"""Every metric against scikit-learn, and against itself: weights, gradients, deltas and inputs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from math import comb
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

from slicebeam.metrics.counting.statistic_space import (
    BUCKETS,
    Range,
    StatisticSpace,
    Term,
    fixed_point,
)
from slicebeam.metrics.kinds import COMPARISONS, Comparison
from slicebeam.metrics.measures import cell_metric
from slicebeam.metrics.measures.base import Metric, Needs
from slicebeam.metrics.measures.cell_metric import CellMetric
from slicebeam.metrics.registry import averaged_column, metric, metrics, statistic_space
from slicebeam.metrics.significance import outcome_codes
from slicebeam.metrics.significance.auc import bucket_edges, discretisation_error
from slicebeam.metrics.testing.slice_test import SliceTest
from tests.deviations import with_deviations
from tests.random_subsets import saddle_point

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Sums = NDArray[np.int64]

NAMES = (*metrics(), "fbeta:2", "fbeta:0.5", "mean:x")
# One of each kind.
RESAMPLED = ("accuracy", "precision", "f1", "mcc", "f1_macro", "auc", "log_loss", "mse", "mean:x")
MACRO = ("precision_macro", "recall_macro", "f1_macro")


@dataclass(frozen=True)
class Examples:
    """What is known of each example; pairs are of the new and the old model."""

    label: Sums
    predicted: tuple[Sums, Sums]
    score: tuple[Floats, Floats]
    truth: Floats
    guess: tuple[Floats, Floats]
    column: Floats
    weight: Floats | None = None

    @classmethod
    def random(cls, seed: int, rows: int, *, classes: int = 2, weighted: bool = False) -> Examples:
        rng = np.random.default_rng(seed)
        label = rng.integers(0, classes, rows)

        def predicted() -> Sums:
            return np.where(rng.random(rows) < 0.7, label, rng.integers(0, classes, rows))

        def score() -> Floats:
            # Few enough distinct scores for a bucket each.
            return np.round(rng.beta(1 + 1.5 * (label == 1), 1 + 1.5 * (label != 1)), 2)

        truth = rng.lognormal(1, 1, rows)
        return cls(
            label,
            (predicted(), predicted()),
            (score(), score()),
            truth,
            (truth + rng.normal(0.1, 1, rows), truth + rng.normal(0, 2, rows)),
            rng.normal(40, 12, rows),
            rng.gamma(2, 1, rows) if weighted else None,
        )

    @property
    def rows(self) -> int:
        return self.label.size

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Examples:
        """The same examples again, fewer or repeated."""
        return Examples(
            self.label[rows],
            (self.predicted[0][rows], self.predicted[1][rows]),
            (self.score[0][rows], self.score[1][rows]),
            self.truth[rows],
            (self.guess[0][rows], self.guess[1][rows]),
            self.column[rows],
            None if self.weight is None else self.weight[rows],
        )

    def value(self, name: str, *, old: bool) -> Floats:
        """A value of each example, as its definition says."""
        positive, error = self.label == 1, self.guess[old] - self.truth
        score = np.clip(self.score[old], np.finfo(float).eps, 1 - np.finfo(float).eps)
        if name == "log_loss":
            return -np.where(positive, np.log(score), np.log1p(-score))
        if name == "brier":
            return (self.score[old] - positive) ** 2
        if averaged_column(name):
            return self.column
        losses = {"bias": error, "mae": np.abs(error), "mse": error**2, "loss": error**2 / 2}
        return losses[name]

    def code(self, axis: str, *, old: bool) -> Sums:
        """Where each example stands on an axis of the cells."""
        predicted = self.predicted[old]
        codes = {
            "positive": self.label == 1,
            "predicted": predicted == 1,
            "wrong": predicted != self.label,
            "label_class": self.label,
            "predicted_class": predicted,
        }
        return codes[axis].astype(np.int64)

    def space(self, names: list[str], comparison: Comparison, *, spare: int = 1) -> StatisticSpace:
        """The space of some metrics, scaled for these examples or ``spare`` times as many."""
        space = statistic_space(names, comparison, weighted=self.weight is not None)
        if space.classes:
            every = np.concatenate([self.label, *self.predicted])
            space = replace(space, classes=int(every.max()) + 1)
        ranges = {}
        for value in {value for name in names for value in metric(name).needs.values}:
            for old in (False, True)[: space.sides]:
                own = self.value(value, old=old)
                ranges[value, old] = Range(float(own.min()), float(own.max()))
        heaviest = 1.0 if self.weight is None else float(self.weight.max())
        space = space.scaled(ranges, heaviest, spare * self.rows)
        if comparison == "overall":
            for value in {value for value, _ in ranges}:
                own = self.value(value, old=False)
                space = with_deviations(space, value, own, self.weight)
        return space

    def cells(self, space: StatisticSpace) -> Sums:
        cells = np.zeros(self.rows, np.int64)
        for (axis, old), (stride, _) in space.axes.items():
            cells += stride * self.code(axis, old=old)
        return cells

    def buckets(self, *, old: bool) -> Sums:
        edges = bucket_edges(self.score[old], BUCKETS)
        return np.searchsorted(edges, self.score[old], side="right")

    def _placement(self, *, old: bool) -> Floats:
        """How much of the other class an example's score is on the right side of, by buckets."""
        bucket, positive = self.buckets(old=old), self.label == 1
        placement = np.zeros(self.rows)
        for mine, sign in ((positive, 1), (~positive, -1)):
            ahead = sign * (bucket[mine][:, None] - bucket[~mine][None, :])
            share = (ahead > 0).sum(axis=1) + 0.5 * (ahead == 0).sum(axis=1)
            placement[mine] = share / max(np.count_nonzero(~mine), 1)
        return placement

    def term(self, term: Term, space: StatisticSpace) -> Floats:
        """The summand of a term, in the value's own units."""
        if term.source in ("gain1", "gain0"):
            gain = self._placement(old=False) - self._placement(old=True)
            value = np.where((self.label == 1) == (term.source == "gain1"), gain, 0.0)
        elif term.source == "change":
            value = self.value(term.value, old=False) - self.value(term.value, old=True)
        else:
            value = self.value(term.value, old=term.source == "old") - space.shift(term.value)
        weight = np.ones(self.rows) if self.weight is None else self.weight
        return value**term.power * weight**term.weight_power

    def matrix(self, space: StatisticSpace) -> Sums:
        """What each example adds to each column [rows, raw columns and total terms]."""
        rows, cells = np.arange(self.rows), self.cells(space)
        weight = np.ones(self.rows, np.int64)
        parts = []
        powers: list[Sums] = [np.ones(self.rows, np.int64)]
        if self.weight is not None:
            scaled = zip((self.weight, self.weight**2), space.weight_scales, strict=True)
            powers += [fixed_point(power, scale) for power, scale in scaled]
            weight = powers[1]
        for power in powers:
            part = np.zeros((self.rows, space.cells), np.int64)
            part[rows, cells] = power
            parts.append(part)
        terms = [
            fixed_point(self.term(term, space), scale)[:, None]
            for term, scale in zip((*space.terms, *space.total_terms), space.scales, strict=True)
        ]
        parts += terms[: len(space.terms)]
        for old in (False, True)[: space.sides if space.ranked else 0]:
            part = np.zeros((self.rows, 2 * BUCKETS), np.int64)
            part[rows, (self.label == 1) * BUCKETS + self.buckets(old=old)] = weight
            parts.append(part)
        return np.concatenate([*parts, *terms[len(space.terms) :]], axis=1)

    def sums(
        self,
        space: StatisticSpace,
        members: NDArray[np.bool_],
        times: Sums | None = None,
    ) -> tuple[Sums, Sums]:
        """Sums of slices (members [slices, rows]) and of all, [.., layers, columns].

        ``times`` [replicates, rows] says how often a replicate draws each example.
        """
        matrix = self.matrix(space)
        drawn = np.ones((1, self.rows), np.int64)
        if times is not None:
            drawn = np.concatenate([drawn, times])
        inside = [drawn[:, some] @ matrix[some][:, : space.raw_columns] for some in members]
        return np.stack(inside), drawn @ matrix

    def reduced(self, space: StatisticSpace, members: NDArray[np.bool_]) -> tuple[Sums, Sums]:
        """What metrics are given: sums [slices, columns], and totals."""
        sums, totals = self.sums(space, members)
        return space.reduce(sums[:, 0], totals), space.reduce(totals, totals)[0]


def random_members(seed: int, slices: int, rows: int) -> NDArray[np.bool_]:
    rng = np.random.default_rng(seed)
    members = rng.random((slices, rows)) < rng.uniform(0.2, 0.9, (slices, 1))
    members[0] = True
    return members


def by_sklearn(name: str, some: Examples, *, old: bool = False) -> float:
    """The metric of some examples by scikit-learn or numpy."""
    label, predicted, weight = some.label, some.predicted[old], some.weight
    positive, marked, score = label == 1, predicted == 1, some.score[old]
    negative, unmarked = ~positive, ~marked
    with_weight = {"sample_weight": weight}
    binary: dict[str, Callable[[], float]] = {
        "accuracy": lambda: sk.accuracy_score(label, predicted, **with_weight),
        "error_rate": lambda: sk.zero_one_loss(label, predicted, **with_weight),
        "precision": lambda: sk.precision_score(positive, marked, **with_weight),
        "recall": lambda: sk.recall_score(positive, marked, **with_weight),
        "fnr": lambda: 1 - sk.recall_score(positive, marked, **with_weight),
        "fpr": lambda: 1 - sk.recall_score(negative, unmarked, **with_weight),
        "specificity": lambda: sk.recall_score(negative, unmarked, **with_weight),
        "prediction_rate": lambda: np.average(marked, weights=weight),
        "label_rate": lambda: np.average(positive, weights=weight),
        "f1": lambda: sk.f1_score(positive, marked, **with_weight),
        "balanced_accuracy": lambda: sk.balanced_accuracy_score(positive, marked, **with_weight),
        "mcc": lambda: sk.matthews_corrcoef(positive, marked, **with_weight),
        "auc": lambda: sk.roc_auc_score(positive, score, **with_weight),
        "log_loss": lambda: sk.log_loss(positive, score, **with_weight),
        "brier": lambda: sk.brier_score_loss(positive, score, **with_weight),
        "mse": lambda: sk.mean_squared_error(some.truth, some.guess[old], **with_weight),
        "mae": lambda: sk.mean_absolute_error(some.truth, some.guess[old], **with_weight),
        "loss": lambda: sk.mean_squared_error(some.truth, some.guess[old], **with_weight) / 2,
        "bias": lambda: np.average(some.guess[old] - some.truth, weights=weight),
        "mean:x": lambda: np.average(some.column, weights=weight),
    }
    if name.startswith("fbeta:"):
        beta = float(name.removeprefix("fbeta:"))
        return float(sk.fbeta_score(positive, marked, beta=beta, **with_weight))
    of, _, average = name.rpartition("_")
    if average in ("micro", "macro"):
        function = {"precision": sk.precision_score, "recall": sk.recall_score, "f1": sk.f1_score}
        return float(
            function[of](label, predicted, average=average, zero_division=0, **with_weight)
        )
    return float(binary[name]())


def comparisons(name: str) -> tuple[Comparison, ...]:
    return COMPARISONS if metric(name).compares_models else ("overall",)


CASES = [(name, comparison) for name in NAMES for comparison in comparisons(name)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_scikit_learn(name: str, *, weighted: bool) -> None:
    for classes in (2, 4):
        examples = Examples.random(classes, 400, classes=classes, weighted=weighted)
        members = random_members(5, 8, examples.rows)
        slices = [examples.take(some) for some in members]
        sides = (False, True)[: len(comparisons(name))]
        expected = {old: [by_sklearn(name, some, old=old) for some in slices] for old in sides}
        for comparison in comparisons(name):
            space = examples.space([name], comparison)
            raw, totals = examples.sums(space, members)
            sums = space.reduce(raw[:, 0], totals)
            for old in sides[: space.sides]:
                value = metric(name).value(sums, space, old=old)
                np.testing.assert_allclose(value, expected[old], rtol=1e-12, atol=1e-12)
                of_raw = metric(name).value_of_raw(raw[:, 0], space, old=old)
                np.testing.assert_allclose(of_raw, value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_auc_of_many_scores_is_near(*, weighted: bool) -> None:
    examples = Examples.random(1, 3000, weighted=weighted)
    rng = np.random.default_rng(2)
    examples = replace(examples, score=(rng.normal(examples.label), rng.normal(examples.label)))
    members = random_members(6, 5, examples.rows)
    space = examples.space(["auc"], "baseline")
    raw, _ = examples.sums(space, members)
    for old in (False, True):
        expected = [by_sklearn("auc", examples.take(some), old=old) for some in members]
        error = discretisation_error(space.histogram(raw[:, 0], old=old))
        found = metric("auc").value_of_raw(raw[:, 0], space, old=old)
        assert (np.abs(found - expected) <= error + 1e-12).all()
        assert error.max() < 0.003


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_share_a_space(
    monkeypatch: pytest.MonkeyPatch, comparison: Comparison, *, weighted: bool
) -> None:
    """All statistics side by side give what each metric's own statistics give."""
    monkeypatch.setattr(cell_metric, "_PERMUTATIONS", 1000)
    for classes in (2, 3):
        examples = Examples.random(9, 300, classes=classes, weighted=weighted)
        members = random_members(7, 5, examples.rows)
        names = [name for name in NAMES if comparison in comparisons(name)]
        space = examples.space(names, comparison)
        sums, totals = examples.reduced(space, members)
        for name in names:
            own, alone = metric(name), examples.space([name], comparison)
            few, few_totals = examples.reduced(alone, members)
            for old in (False, True)[: space.sides]:
                np.testing.assert_allclose(
                    own.value(sums, space, old=old), own.value(few, alone, old=old), rtol=1e-13
                )
            for ends in zip(
                own.delta_interval(sums, totals, space, 0.9),
                own.delta_interval(few, few_totals, alone, 0.9),
                strict=True,
            ):
                # The whole has no width, but for the root of what rounding leaves.
                np.testing.assert_allclose(*ends, rtol=1e-8, atol=1e-8)
            by_itself = own.test(few, few_totals, alone, "both")
            together = own.test(sums, totals, space, "both")
            np.testing.assert_array_equal(together.methods, by_itself.methods)
            np.testing.assert_allclose(together.p, by_itself.p, rtol=1e-8)


@pytest.mark.parametrize(("name", "comparison"), CASES)
def test_an_integer_weight_is_that_many_examples(name: str, comparison: Comparison) -> None:
    plain = Examples.random(3, 250, classes=3 if name in MACRO else 2)
    members = random_members(8, 6, plain.rows)
    times = np.random.default_rng(4).integers(0, 5, plain.rows)
    weighted = replace(plain, weight=times.astype(float))
    rows = np.repeat(np.arange(plain.rows), times)
    repeated = plain.take(rows)
    one, other = weighted.space([name], comparison), repeated.space([name], comparison)
    sums, totals = weighted.reduced(one, members)
    again, totals_again = repeated.reduced(other, members[:, rows])
    own = metric(name)
    for read in ("value", "reference", "delta", "complement"):
        given = (sums, one) if read == "value" else (sums, totals, one)
        expected = (again, other) if read == "value" else (again, totals_again, other)
        np.testing.assert_allclose(
            getattr(own, read)(*given)[1:],
            getattr(own, read)(*expected)[1:],
            rtol=1e-10,
            atol=1e-10,
        )
    first, second = own.target(one), own.target(other)
    if first is not None:
        for power in (0, 1):
            found = first.layout.moment(own.target_sums(sums, one), 1, power)
            expected_sums = second.layout.moment(own.target_sums(again, other), 1, power)
            np.testing.assert_allclose(found, expected_sums, rtol=1e-9, atol=1e-7)


@pytest.mark.parametrize(("name", "comparison"), CASES)
def test_gradients_are_finite_differences(name: str, comparison: Comparison) -> None:
    own = metric(name)
    if not isinstance(own, CellMetric):
        return
    space = Examples.random(0, 50, classes=3 if name in MACRO else 2).space([name], comparison)
    cells = np.random.default_rng(1).uniform(5, 80, (6, space.cells))
    cells[:2] *= 1000
    for old in (False, True)[: space.sides]:
        gradient = own.gradient(cells, space, old=old)
        # Twice the examples, the same value.
        np.testing.assert_allclose((gradient * cells).sum(axis=1), 0, atol=1e-12)
        for cell in range(space.cells):
            step = np.zeros(space.cells)
            step[cell] = 1e-4
            width = 1e-4 * cells[:, cell]
            up, down = cells * (1 + step), cells * (1 - step)
            difference = own.of_cells(up, space, old=old) - own.of_cells(down, space, old=old)
            np.testing.assert_allclose(
                gradient[:, cell] * 2 * width, difference, rtol=1e-6, atol=1e-11
            )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_deltas_references_and_complements(name: str, *, weighted: bool) -> None:
    examples = Examples.random(11, 300, classes=3 if name in MACRO else 2, weighted=weighted)
    members = random_members(12, 6, examples.rows)[1:]
    slices = [examples.take(some) for some in members]
    own = metric(name)
    value = np.array([by_sklearn(name, some) for some in slices])
    rest = [by_sklearn(name, examples.take(~some)) for some in members]
    for comparison in comparisons(name):
        space = examples.space([name], comparison)
        sums, totals = examples.reduced(space, members)
        if comparison == "overall":
            reference = np.full(len(members), by_sklearn(name, examples))
        else:
            reference = np.array([by_sklearn(name, some, old=True) for some in slices])
        close = {"rtol": 1e-12, "atol": 1e-11}
        np.testing.assert_allclose(own.reference(sums, totals, space), reference, **close)
        np.testing.assert_allclose(own.complement(sums, totals, space), rest, **close)
        np.testing.assert_allclose(own.delta(sums, totals, space), value - reference, **close)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("name", "comparison"), CASES)
def test_inputs_are_numbers(name: str, comparison: Comparison, *, weighted: bool) -> None:
    examples = Examples.random(13, 200, weighted=weighted)
    members = random_members(14, 3, examples.rows)
    space = examples.space([name], comparison)
    sums, totals = examples.reduced(space, members)
    for one in sums:
        inputs = metric(name).inputs(one, totals, space)
        assert len(inputs) >= 3
        for what, number in inputs.items():
            assert what
            assert isinstance(number, int | float)
            assert np.isfinite(number)


def inputs_and_p(
    name: str, comparison: Comparison, *, weighted: bool = False
) -> list[tuple[dict[str, float], float]]:
    """Inputs and two-sided p of random slices."""
    examples = Examples.random(21, 900, weighted=weighted)
    members = random_members(22, 12, examples.rows)[1:]
    space = examples.space([name], comparison)
    sums, totals = examples.reduced(space, members)
    tested = metric(name).test(sums, totals, space, "both")
    assert not tested.reasons.any()
    inputs = [metric(name).inputs(one, totals, space) for one in sums]
    return list(zip(inputs, tested.p.tolist(), strict=True))


@pytest.mark.parametrize("name", ["accuracy", "precision", "recall", "fpr", "f1"])
def test_the_mid_p_follows_from_its_inputs(name: str) -> None:
    for inputs, p in inputs_and_p(name, "overall"):
        law = stats.hypergeom(inputs["N"], inputs["K"], inputs["n"])
        half = law.pmf(inputs["x"]) / 2
        tails = law.sf(inputs["x"]) + half, law.cdf(inputs["x"]) - half
        np.testing.assert_allclose(p, min(1, 2 * min(tails)), rtol=1e-9)


@pytest.mark.parametrize("name", ["accuracy", "recall", "fpr"])
def test_mcnemar_follows_from_its_inputs(name: str) -> None:
    for inputs, p in inputs_and_p(name, "baseline"):
        b, c = inputs["b (only new marked)"], inputs["c (only old)"]
        assert b + c <= inputs["n"]
        law = stats.binom(b + c, 0.5)
        tails = law.sf(b) + law.pmf(b) / 2, law.cdf(b) - law.pmf(b) / 2
        np.testing.assert_allclose(p, min(1, 2 * min(tails)), rtol=1e-9)


def hall_p(t: float, G: float, df: float) -> float:
    T = t + G * t**2 / 3 + G**2 * t**3 / 27 + G / 6
    return float(2 * stats.t.sf(abs(T), df))


def raised(n: float, variance: float, reference: float, skewness: float) -> float:
    """The variance with γ²/2 more values that are spread as the reference, if that is more."""
    more = skewness**2 / 2
    return max(variance, ((n - 1) * variance + more * reference) / (n - 1 + more))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["log_loss", "brier", "bias"])
def test_random_subsets_follow_from_their_inputs(name: str, *, weighted: bool) -> None:
    examples = Examples.random(21, 900, weighted=weighted)
    value = examples.value(name, old=False)
    for inputs, p in inputs_and_p(name, "overall", weighted=weighted):
        weight = np.ones(value.size) if examples.weight is None else examples.weight
        assert inputs["N"] == value.size
        assert inputs["mean of all"] == pytest.approx(np.average(value, weights=weight), rel=1e-9)
        deviations = weight * (value - inputs["mean of all"])
        tails = saddle_point(deviations, int(inputs["n"]), inputs["S"])
        np.testing.assert_allclose(p, min(1, 2 * min(tails)), rtol=0.01)


def test_a_class_that_one_model_never_predicts_here() -> None:
    """The printed formula: the gradients at the counts, and with half an example more."""
    rng = np.random.default_rng(41)
    label = rng.integers(0, 3, 600)
    new, old = (np.where(rng.random(600) < 0.3, rng.integers(0, 3, 600), label) for _ in range(2))
    inside = np.arange(600) < 60
    new = np.where(inside & (new == 2), 1, new)
    # The old model has the class right, the new one never predicts it: its precision is 0.
    old = np.where(inside, label, old)
    examples = replace(Examples.random(41, 600), label=label, predicted=(new, old))
    space = examples.space(["precision_macro"], "baseline")
    sums, totals = examples.reduced(space, inside[None, :])
    own = metric("precision_macro")
    inputs = own.inputs(sums[0], totals, space)
    cells = {
        name.removeprefix("all count: "): count
        for name, count in inputs.items()
        if name.startswith("all count: ") and count
    }
    counts = np.array([inputs[f"slice count: {name}"] for name in cells])
    codes = np.array([[int(part.split()[-1]) for part in name.split(", ")] for name in cells])
    actual = codes[:, 0]

    def slopes(k: Floats, predicted: Sums) -> Floats:
        """∂ macro precision/∂k: (1 if right else 0, minus the class' precision)/predicted/3."""
        below = np.array([k[predicted == c].sum() for c in range(3)])
        right = np.array([k[(predicted == c) & (actual == c)].sum() for c in range(3)])
        share = right / np.where(below > 0, below, 1)
        each = ((actual == predicted) - share[predicted]) / np.where(below > 0, below, 1)[predicted]
        return np.where(below[predicted] > 0, each, 0) / 3

    k, expected = counts + 0.5, []
    delta = abs(own.delta(sums, totals, space)[0])
    for at in (counts, k):
        d = slopes(at, codes[:, 1]) - slopes(at, codes[:, 2])
        V = (k * d**2).sum()
        expected.append(2 * stats.t.sf(delta / V**0.5, 2 * V**2 / (k * d**4).sum()))
    p = own.test(sums, totals, space, "both").p[0]
    assert p == pytest.approx(max(expected), rel=1e-9)
    # By the gradients at the counts alone it would be smaller.
    assert expected[0] < expected[1]


def test_undefined_here_is_0_or_a_warning_in_scikit_learn() -> None:
    """The exceptions that the page on metrics names, for a slice whose examples are all of one class."""
    label, predicted = np.zeros(40, np.int64), np.repeat([0, 1], 20)
    both = (predicted, predicted)
    examples = replace(Examples.random(1, 40), label=label, predicted=both)
    for name, theirs in (
        ("mcc", sk.matthews_corrcoef(label, predicted)),
        ("recall", sk.recall_score(label, predicted, zero_division=0)),
    ):
        space = examples.space([name], "overall")
        sums, _ = examples.reduced(space, np.ones((1, 40), bool))
        assert np.isnan(metric(name).value(sums, space)[0])
        assert theirs == 0


@pytest.mark.parametrize("weighted", [False, True])
def test_two_constants_are_the_most_extreme_subset(*, weighted: bool) -> None:
    """Of the C(N, n) subsets of n examples one has all the ones."""
    N, n = 40, 13
    column = (np.arange(N) < n) * 1.0
    weight = np.full(N, 3.0) if weighted else None
    examples = replace(Examples.random(3, N), column=column, weight=weight)
    space = examples.space(["mean:x"], "overall")
    sums, totals = examples.reduced(space, np.stack([column == 1, column == 0, column >= 0]))
    own, one = metric("mean:x"), 1 / comb(N, n)
    for alternative, expected in (
        ("worse", [one / 2, 1 - one / 2, 1]),
        ("better", [1 - one / 2, one / 2, 1]),
        ("both", [one, one, 1]),
    ):
        tested = own.test(sums, totals, space, alternative)
        np.testing.assert_allclose(tested.p, expected, rtol=1e-9)
        assert tested.reasons.tolist() == [0, 0, outcome_codes.WHOLE]
    if not weighted:
        of_moments = SliceTest("mean:x", space, "permutation", "both", 1, 0)
        assert (of_moments.of_sums(sums[:2], totals).tested.p < 1e-4).all()
    low, high = own.delta_interval(sums, totals, space, 0.95)
    assert np.isinf(low[:2]).all()
    assert np.isinf(high[:2]).all()
    assert (low[2], high[2]) == (0, 0)
    # As part of all examples it is the same subset.
    parents = sums[[2, 2]]
    for worse, expected in ((True, [one, 1]), (False, [1, one])):
        p = own.p_refine(sums[:2], parents, totals, space, worse=worse)
        np.testing.assert_allclose(p, expected, rtol=1e-9)


def changed(change: Floats, weight: Floats | None = None) -> Examples:
    """Examples whose bias changes by so much."""
    zero = np.zeros(change.size)
    some = Examples.random(3, change.size)
    return replace(some, truth=zero, guess=(zero + change, zero), weight=weight)


@pytest.mark.parametrize("size", [1.0, -1 / 3, 1e-5])
@pytest.mark.parametrize("weighted", [False, True])
def test_constant_changes_are_tested_by_all_flips_of_signs(size: float, *, weighted: bool) -> None:
    n = 10
    # As many examples go the other way, so that changes are not skewed.
    change = np.repeat([size, -size], n)
    weight = np.full(2 * n, 0.7) if weighted else None
    examples = changed(change, weight)
    space = examples.space(["bias"], "baseline")
    sums, totals = examples.reduced(space, (change == size)[None])
    means = np.array(list(itertools.product([1, -1], repeat=n))).mean(axis=1) * size
    upper = (means >= size - 1e-12).mean()
    lower = (means <= size + 1e-12).mean()
    own = metric("bias")
    for alternative, p in (
        ("worse", upper),
        ("better", lower),
        ("both", min(1, 2 * min(upper, lower))),
    ):
        tested = own.test(sums, totals, space, alternative)
        assert tested.p[0] == pytest.approx(p, rel=1e-9)
        assert tested.methods.tolist() == [outcome_codes.SIGN_FLIP]


def test_weighted_constant_changes_count_as_effective_examples() -> None:
    weight = np.random.default_rng(8).gamma(2, 1, 60)
    examples = changed(np.repeat([1.0, -1.0], 30), weight)
    space = examples.space(["bias"], "baseline")
    sums, totals = examples.reduced(space, (np.arange(60) < 30)[None])
    effective = weight[:30].sum() ** 2 / (weight[:30] ** 2).sum()
    p = metric("bias").test(sums, totals, space, "worse").p[0]
    assert p == pytest.approx(2**-effective, rel=1e-9)


def test_flipped_hard_scores_are_seen() -> None:
    """Right before, wrong now: the loss of every example of the slice grows by as much."""
    rows, inside = 400, np.arange(400) < 150
    some = Examples.random(6, rows)
    label = some.label * 1.0
    examples = replace(some, score=(np.where(inside, 1 - label, label), label))
    for name in ("brier", "log_loss"):
        space = examples.space([name], "baseline")
        sums, totals = examples.reduced(space, np.stack([inside, ~inside, inside | True]))
        tested = metric(name).test(sums, totals, space, "worse")
        assert tested.p[0] == pytest.approx(2.0**-150, rel=1e-9)
        assert tested.reasons.tolist() == [0, outcome_codes.UNCHANGED, 0]


def test_a_constant_change_that_may_lack_what_is_rare() -> None:
    """Large changes the other way are rare: a slice of the others alone is no evidence."""
    change = np.where(np.arange(4000) % 100 == 0, -99.0, 1.0)
    common = np.flatnonzero(change == 1)
    examples = changed(change)
    space = examples.space(["bias"], "baseline")
    members = np.zeros((2, change.size), bool)
    for row, n in enumerate((60, 160)):
        members[row, common[:n]] = True
    sums, totals = examples.reduced(space, members)
    tested = metric("bias").test(sums, totals, space, "worse")
    assert tested.reasons.tolist() == [outcome_codes.TOO_SKEWED, 0]
    # A random subset of 160 has none of them in a fifth of cases, and 2⁻¹⁶⁰ says nothing of that.
    assert tested.p[1] > 1e-3
    # On the side of the rare ones there is nothing to lack.
    opposite = changed(-change)
    space = opposite.space(["bias"], "baseline")
    rare = (change == -99)[None]
    sums, totals = opposite.reduced(space, rare)
    tested = metric("bias").test(sums, totals, space, "worse")
    assert tested.p[0] == pytest.approx(2.0**-40, rel=1e-9)


def test_changes_that_are_lost_beside_the_largest_are_not_called() -> None:
    """Fixed point holds the squares of 10⁻¹¹ and 3·10⁻¹¹ as nothing beside that of 1."""
    rng = np.random.default_rng(2)
    small = np.arange(100) < 50
    change = np.where(small, rng.choice([-1e-11, 3e-11], 100), rng.choice([-1.0, 1.0], 100))
    examples = changed(change)
    space = examples.space(["bias"], "baseline")
    sums, totals = examples.reduced(space, small[None])
    tested = metric("bias").test(sums, totals, space, "both")
    assert tested.reasons.tolist() == [outcome_codes.UNVARYING]


def test_auc_that_is_turned_over_is_not_called_unchanged() -> None:
    some = Examples.random(9, 200)
    label, inside = some.label * 1.0, np.arange(200) < 90
    for new, reason in ((1 - label, outcome_codes.UNVARYING), (label, outcome_codes.UNCHANGED)):
        examples = replace(some, score=(new, label))
        space = examples.space(["auc"], "baseline")
        sums, totals = examples.reduced(space, inside[None])
        tested = metric("auc").test(sums, totals, space, "worse")
        assert tested.reasons.tolist() == [reason]
        assert tested.p.tolist() == [1.0]


def test_the_paired_t_follows_from_its_inputs() -> None:
    for inputs, p in inputs_and_p("log_loss", "baseline"):
        n, mean, s2, _ = (
            inputs[f"change on the slice {what}"] for what in ("n", "mean", "variance", "skewness")
        )
        skewness, of_all = inputs["change on all skewness"], inputs["change on all variance"]
        v = raised(n, s2, of_all, skewness) / n
        np.testing.assert_allclose(p, hall_p(mean / v**0.5, skewness / n**0.5, n - 1), rtol=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("name", "comparison"), [case for case in CASES if case[0] in RESAMPLED])
def test_replicates_are_resampled_examples(
    name: str, comparison: Comparison, *, weighted: bool
) -> None:
    """The bootstrap's error is that of scikit-learn's metric of examples drawn again."""
    examples = Examples.random(31, 120, weighted=weighted)
    members = random_members(32, 3, examples.rows)[1:]
    space = examples.space([name], comparison)
    times = np.random.default_rng(33).poisson(1, (9, examples.rows))
    sums, totals = examples.sums(space, members, times)
    test = SliceTest(name, space, "bootstrap-rows", "both", len(times), 0)
    tested, errors = test.run(sums, totals)
    assert not tested.reasons.any()
    weight = np.ones(examples.rows) if examples.weight is None else examples.weight
    deltas = []
    for drawn in (np.ones(examples.rows), *times):
        again = replace(examples, weight=weight * drawn)
        slices = [again.take(some) for some in members]
        values = np.array([by_sklearn(name, some) for some in slices])
        if comparison == "baseline":
            references = np.array([by_sklearn(name, some, old=True) for some in slices])
        else:
            references = np.full(len(slices), by_sklearn(name, again))
        deltas.append(values - references)
    sd = np.std(deltas[1:], axis=0, ddof=1)
    np.testing.assert_allclose(errors, sd, rtol=1e-9)
    p = 2 * stats.t.sf(np.abs(deltas[0]) / sd, len(times) - 1)
    np.testing.assert_allclose(tested.p, p, rtol=1e-8)


class Plain(Metric):
    """The error rate with what a metric must have, and nothing else."""

    name, title = "plain", "Plain"
    higher_is_better = False
    range = (0.0, 1.0)
    needs = Needs(indicators=("wrong",))

    def value(self, sums: Sums, space: StatisticSpace, *, old: bool = False) -> Floats:
        return metric("error_rate").value(sums, space, old=old)

    def test(self, *of_slices: object) -> outcome_codes.Tested:
        raise NotImplementedError

    def delta_interval(self, *of_slices: object) -> tuple[Floats, Floats]:
        raise NotImplementedError

    def value_interval(self, *of_slices: object, old: bool = False) -> tuple[Floats, Floats]:
        raise NotImplementedError

    def p_refine(self, *of_slices: object, worse: bool) -> Floats:
        raise NotImplementedError


def test_a_metric_says_by_default_which_slices_are_not_tested() -> None:
    sums = np.array([[6, 4], [0, 0], [50, 10]])
    own, space = Plain(), StatisticSpace(("wrong",), "overall")
    reasons = own.untestable(sums, sums[2], space)
    assert reasons.tolist() == [0, outcome_codes.UNDEFINED, outcome_codes.WHOLE]
    assert own.inputs(sums[0], sums[2], space) == {
        "n": 10.0,
        "N": 60.0,
        "value": 0.4,
        "reference": 1 / 6,
    }
    # All examples may be the slice where two models are compared on it.
    paired = StatisticSpace(("wrong",), "baseline")
    cells = np.array([[6, 4, 1, 2], [0, 0, 0, 0]])
    assert own.untestable(cells, cells[0], paired).tolist() == [0, outcome_codes.UNDEFINED]
