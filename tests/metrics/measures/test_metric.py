"""Every metric against scikit-learn, and against itself: weights, gradients and deltas."""

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from sklearn import metrics as sk

from slicebeam.metrics.counting.statistic_space import BUCKETS, Range, StatisticSpace, fixed_point
from slicebeam.metrics.measures import cell_metric
from slicebeam.metrics.measures.cell_metric import CellMetric
from slicebeam.metrics.measures.mean import LABEL, number_loss
from slicebeam.metrics.measures.metric import Metric, Needs, Slices
from slicebeam.metrics.measures.one_model import of_error
from slicebeam.metrics.measures.registry import averaged_column, metric, metrics, statistic_space
from slicebeam.metrics.significance.auc import bucket_edges
from slicebeam.metrics.significance.outcome_codes import Reason
from tests.deviations import with_deviations
from tests.option_words import COMPARISONS

# The values of lists are measured elsewhere; one has a mean that is better when it is higher.
OF_LISTS = ("log_loss_multiclass", "brier_multiclass", "hamming", "mrr")
NAMES = tuple(one for one in metrics() if one not in OF_LISTS)
NAMES += ("fbeta:2", "fbeta:0.5", "mean:x", "pinball:0.9")
MACRO = tuple(name for name in NAMES if metric(name).needs.classes)


@dataclass(frozen=True)
class Examples:
    """What is known of each example; pairs are of the new and the old model."""

    label: np.ndarray
    predicted: tuple
    score: tuple
    truth: np.ndarray
    guess: tuple
    column: np.ndarray
    weight: np.ndarray | None = None

    @classmethod
    def random(cls, seed, rows, *, classes=2, weighted=False):
        rng = np.random.default_rng(seed)
        label = rng.integers(0, classes, rows)

        def predicted():
            return np.where(rng.random(rows) < 0.7, label, rng.integers(0, classes, rows))

        def score():
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
    def rows(self):
        return self.label.size

    def take(self, rows):
        """The same examples again, fewer or repeated."""

        def of(values):
            if isinstance(values, tuple):
                return tuple(map(of, values))
            return None if values is None else values[rows]

        return Examples(*(of(getattr(self, field.name)) for field in fields(self)))

    def value(self, name, *, old):
        """A value of each example, as its definition says."""
        positive, error = self.label == 1, self.guess[old] - self.truth
        score = np.clip(self.score[old], np.finfo(float).eps, 1 - np.finfo(float).eps)
        if name == "log_loss":
            return -np.where(positive, np.log(score), np.log1p(-score))
        if name == "jaccard":
            return self.score[old]
        if name == "calibration_in_the_large":
            return positive - self.score[old]
        if name == "brier":
            return (self.score[old] - positive) ** 2
        if averaged_column(name):
            return self.column
        loss = number_loss(name)
        guess = np.maximum(self.guess[old], 0.1) if name == "poisson_deviance" else self.guess[old]
        return error**2 / 2 if loss is None else loss.of(self.truth, guess)

    def code(self, axis, *, old):
        """Where each example stands on an axis of the cells."""
        predicted = self.predicted[old]
        codes = {
            "positive": self.label == 1, "predicted": predicted == 1,
            "disagree": self.predicted[0] != self.predicted[1],
            "wrong": predicted != self.label, "label_class": self.label,
            "predicted_class": predicted,
        }  # fmt: skip
        return codes[axis].astype(np.int64)

    def space(self, names, comparison, *, spare=1):
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
        for value in {value for value, _ in ranges} - {LABEL}:
            own = self.value(value, old=False)
            if value == "r2" and np.ptp(self.truth) > 0:
                moments = self.truth.mean(), self.truth.var()
                own = of_error(own, self.truth, own.mean() / moments[1], *moments)
            old = self.value(value, old=True) if comparison == "baseline" else None
            space = with_deviations(space, value, own, self.weight, old)
        if space.average_precision:
            counts = np.zeros((2, BUCKETS), np.int64)
            np.add.at(counts, ((self.label == 1) * 1, self.buckets(old=False)), 1)
            space = replace(space, by_score=tuple(map(tuple, counts.tolist())))
        return space

    def cells(self, space):
        cells = np.zeros(self.rows, np.int64)
        for (axis, old), (stride, _) in space.axes.items():
            cells += stride * self.code(axis, old=old)
        return cells

    def buckets(self, *, old):
        edges = bucket_edges(self.score[old], BUCKETS)
        return np.searchsorted(edges, self.score[old], side="right")

    def _placement(self, *, old):
        """How much of the other class an example's score is on the right side of, by buckets."""
        bucket, positive = self.buckets(old=old), self.label == 1
        placement = np.zeros(self.rows)
        for mine, sign in ((positive, 1), (~positive, -1)):
            ahead = sign * (bucket[mine][:, None] - bucket[~mine][None, :])
            share = (ahead > 0).sum(axis=1) + 0.5 * (ahead == 0).sum(axis=1)
            placement[mine] = share / max(np.count_nonzero(~mine), 1)
        return placement

    def term(self, term, space):
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

    def matrix(self, space):
        """What each example adds to each column [rows, raw columns and total terms]."""
        rows, cells = np.arange(self.rows), self.cells(space)
        weight = np.ones(self.rows, np.int64)
        parts = []
        powers = [np.ones(self.rows, np.int64)]
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

    def sums(self, space, members, times=None):
        """Sums of slices (members [slices, rows]) and of all, [.., layers, columns]."""
        matrix, drawn = self.matrix(space), np.ones((1, self.rows), np.int64)
        if times is not None:
            drawn = np.concatenate([drawn, times])
        inside = [drawn[:, some] @ matrix[some][:, : space.raw_columns] for some in members]
        return np.stack(inside), drawn @ matrix

    def reduced(self, space, members):
        """What metrics are given: sums [slices, columns], and totals."""
        sums, totals = self.sums(space, members)
        return space.reduce(sums[:, 0], totals), space.reduce(totals, totals)[0]

    def slices(self, space, members):
        """The same as metrics take them."""
        sums, totals = self.reduced(space, members)
        return Slices(sums, space, totals)

    def of(self, names, comparison, members):
        """Slices in the space of some metrics."""
        return self.slices(self.space(names, comparison), members)


def random_members(seed, slices, rows):
    rng = np.random.default_rng(seed)
    members = rng.random((slices, rows)) < rng.uniform(0.2, 0.9, (slices, 1))
    members[0] = True
    return members


def by_sklearn(name, some, *, old=False):
    """The metric of some examples by scikit-learn or numpy."""
    label, guess, weight = some.label, some.predicted[old], some.weight
    positive, marked, score = label == 1, guess == 1, some.score[old]
    negative, unmarked = ~positive, ~marked
    numbers = some.truth, some.guess[old]
    error, with_weight = np.abs(np.subtract(*numbers)), {"sample_weight": weight}
    binary = {
        "accuracy": lambda: sk.accuracy_score(label, guess, **with_weight),
        "error_rate": lambda: sk.zero_one_loss(label, guess, **with_weight),
        "precision": lambda: sk.precision_score(positive, marked, **with_weight),
        "recall": lambda: sk.recall_score(positive, marked, **with_weight),
        "fnr": lambda: 1 - sk.recall_score(positive, marked, **with_weight),
        "fpr": lambda: 1 - sk.recall_score(negative, unmarked, **with_weight),
        "specificity": lambda: sk.recall_score(negative, unmarked, **with_weight),
        "npv": lambda: sk.precision_score(negative, unmarked, **with_weight),
        "balanced_accuracy_multiclass": lambda: sk.recall_score(
            label, guess, labels=np.unique(label), average="macro", **with_weight
        ),
        "mcc_multiclass": lambda: sk.matthews_corrcoef(label, guess, **with_weight),
        "kappa": lambda: sk.cohen_kappa_score(label, guess, **with_weight),
        "prediction_rate": lambda: np.average(marked, weights=weight),
        "label_rate": lambda: np.average(positive, weights=weight),
        "disagreement": lambda: sk.zero_one_loss(*some.predicted, **with_weight),
        "f1": lambda: sk.f1_score(positive, marked, **with_weight),
        "balanced_accuracy": lambda: sk.balanced_accuracy_score(positive, marked, **with_weight),
        "mcc": lambda: sk.matthews_corrcoef(positive, marked, **with_weight),
        "average_precision": lambda: sk.average_precision_score(positive, score),
        "auc": lambda: sk.roc_auc_score(positive, score, **with_weight),
        "log_loss": lambda: sk.log_loss(positive, score, **with_weight),
        "brier": lambda: sk.brier_score_loss(positive, score, **with_weight),
        "mse": lambda: sk.mean_squared_error(some.truth, some.guess[old], **with_weight),
        "mae": lambda: sk.mean_absolute_error(some.truth, some.guess[old], **with_weight),
        "calibration_in_the_large": lambda: np.average(positive - score, weights=weight),
        "jaccard": lambda: np.average(score, weights=weight),
        "r2": lambda: sk.r2_score(*numbers, **with_weight),
        "rmse": lambda: sk.root_mean_squared_error(some.truth, some.guess[old], **with_weight),
        "mape": lambda: sk.mean_absolute_percentage_error(*numbers, **with_weight),
        "smape": lambda: np.average(2 * error / np.abs(numbers).sum(axis=0), weights=weight),
        "pinball:0.9": lambda: sk.mean_pinball_loss(*numbers, alpha=0.9, **with_weight),
        "poisson_deviance": lambda: sk.mean_poisson_deviance(
            some.truth, np.maximum(numbers[1], 0.1), **with_weight
        ),
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
        return float(function[of](label, guess, average=average, zero_division=0, **with_weight))
    return float(binary[name]())


def comparisons(name):
    return COMPARISONS if metric(name).compares_models else ("overall",)


def weightings(names):
    """Metrics without weights, and with them where they take any."""
    return [
        (one, some)
        for one in names
        for some in (False, True)
        if not some or metric(one).takes_weights
    ]


CASES = [(name, comparison) for name in NAMES for comparison in comparisons(name)]


@pytest.mark.parametrize(("name", "weighted"), weightings(NAMES))
def test_values_are_those_of_scikit_learn(name, *, weighted):
    for classes in (2, 4):
        examples = Examples.random(classes, 400, classes=classes, weighted=weighted)
        members = random_members(5, 8, examples.rows)
        if classes == 4:
            # A class that is predicted, and no label.
            members[1] &= examples.label != 3
        slices = [examples.take(some) for some in members]
        sides = (False, True)[: len(comparisons(name))]
        expected = {old: [by_sklearn(name, some, old=old) for some in slices] for old in sides}
        for comparison in comparisons(name):
            space = examples.space([name], comparison)
            raw, totals = examples.sums(space, members)
            sums = space.reduce(raw[:, 0], totals)
            for old in sides[: space.sides]:
                value = metric(name).value(Slices(sums, space, is_old=old))
                np.testing.assert_allclose(value, expected[old], rtol=1e-12, atol=1e-12)
                if metric(name).resampled:
                    of_raw = metric(name).value_of_raw(Slices(raw[:, 0], space, is_old=old))
                    np.testing.assert_allclose(of_raw, value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_share_a_space(monkeypatch, comparison, *, weighted):
    """All statistics side by side give what each metric's own statistics give."""
    monkeypatch.setattr(cell_metric, "_PERMUTATIONS", 1000)
    for classes in (2, 3):
        examples = Examples.random(9, 300, classes=classes, weighted=weighted)
        members = random_members(7, 5, examples.rows)
        names = [
            one
            for one, some in weightings(NAMES)
            if some == weighted and comparison in comparisons(one)
        ]
        space = examples.space(names, comparison)
        slices = examples.slices(space, members)
        for name in names:
            own, alone = metric(name), examples.space([name], comparison)
            few, few_totals = examples.reduced(alone, members)
            for old in (False, True)[: space.sides]:
                np.testing.assert_allclose(
                    own.value(replace(slices, is_old=old)),
                    own.value(Slices(few, alone, is_old=old)),
                    rtol=1e-13,
                )
            for ends in zip(
                own.delta_interval(slices, 0.9),
                own.delta_interval(Slices(few, alone, few_totals), 0.9),
                strict=True,
            ):
                # The whole has no width, but for the root of what rounding leaves.
                np.testing.assert_allclose(*ends, rtol=1e-8, atol=1e-8)
            by_itself = own.test(Slices(few, alone, few_totals), "both")
            together = own.test(slices, "both")
            np.testing.assert_array_equal(together.methods, by_itself.methods)
            np.testing.assert_allclose(together.p, by_itself.p, rtol=1e-8)


@pytest.mark.parametrize(("name", "comparison"), [one for one in CASES if one[0] != "r2"])
def test_an_integer_weight_is_that_many_examples(name, comparison):
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
        given = Slices(sums, one, totals), Slices(again, other, totals_again)
        ours, theirs = (getattr(own, read)(some)[1:] for some in given)
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)
    first, second = own.target(one), own.target(other)
    if first is not None:
        for power in (0, 1):
            found = first.layout.moment(own.target_sums(Slices(sums, one)), 1, power)
            expected_sums = second.layout.moment(own.target_sums(Slices(again, other)), 1, power)
            np.testing.assert_allclose(found, expected_sums, rtol=1e-9, atol=1e-7)


@pytest.mark.parametrize(("name", "comparison"), CASES)
def test_gradients_are_finite_differences(name, comparison):
    own = metric(name)
    if not isinstance(own, CellMetric):
        return
    space = Examples.random(0, 50, classes=3 if name in MACRO else 2).space([name], comparison)
    cells = np.random.default_rng(1).uniform(5, 80, (6, space.cells))
    cells[:2] *= 1000
    for old in (False, True)[: space.sides]:
        gradient = own.gradient(Slices(cells, space, is_old=old))
        # Twice the examples, the same value.
        np.testing.assert_allclose((gradient * cells).sum(axis=1), 0, atol=1e-12)
        for cell in range(space.cells):
            step = np.zeros(space.cells)
            step[cell] = 1e-4
            width = 1e-4 * cells[:, cell]
            ends = (Slices(cells * (1 + sign * step), space, is_old=old) for sign in (1, -1))
            steps = np.subtract(*map(own.value, ends))
            np.testing.assert_allclose(gradient[:, cell] * 2 * width, steps, rtol=1e-6, atol=1e-11)


@pytest.mark.parametrize(("name", "weighted"), weightings(NAMES))
def test_deltas_references_complements_and_inputs(name, *, weighted):
    examples = Examples.random(11, 300, classes=3 if name in MACRO else 2, weighted=weighted)
    members = random_members(12, 6, examples.rows)[1:]
    parts = [examples.take(some) for some in members]
    own = metric(name)
    value = np.array([by_sklearn(name, some) for some in parts])
    rest = [by_sklearn(name, examples.take(~some)) for some in members]
    for comparison in comparisons(name):
        slices = examples.of([name], comparison, members)
        if comparison == "overall":
            reference = np.full(len(members), by_sklearn(name, examples))
        else:
            reference = np.array([by_sklearn(name, some, old=True) for some in parts])
        close = {"rtol": 1e-12, "atol": 1e-11}
        np.testing.assert_allclose(own.reference(slices), reference, **close)
        np.testing.assert_allclose(own.complement(slices), rest, **close)
        np.testing.assert_allclose(own.delta(slices), value - reference, **close)
        for at in range(len(slices)):
            inputs = own.inputs(slices.rows([at]))
            assert len(inputs) >= 3
            assert all(inputs)
            assert np.isfinite(list(inputs.values())).all()


def test_undefined_here_is_0_or_a_warning_in_scikit_learn():
    """The exceptions that the page on metrics names, for a slice whose examples are all of one class."""
    label, predicted = np.zeros(40, np.int64), np.repeat([0, 1], 20)
    both = (predicted, predicted)
    examples = replace(Examples.random(1, 40), label=label, predicted=both)
    for name, theirs in (
        ("mcc", sk.matthews_corrcoef(label, predicted)),
        ("recall", sk.recall_score(label, predicted, zero_division=0)),
    ):
        slices = examples.of([name], "overall", np.ones((1, 40), bool))
        assert np.isnan(metric(name).value(slices)[0])
        assert theirs == 0
    # Kappa is 0 where only the labels are one class, and is tested; what is undefined is not.
    for name, value, reason in (("kappa", 0, 0), ("mcc_multiclass", np.nan, Reason.UNDEFINED)):
        slices = examples.of([name], "overall", np.arange(40)[None] < 30)
        np.testing.assert_equal(metric(name).value(slices), [value])
        assert metric(name).untestable(slices).tolist() == [reason]


class Plain(Metric):
    """The error rate with what a metric must have, and nothing else."""

    name, title = "plain", "Plain"
    higher_is_better = False
    range = (0.0, 1.0)
    needs = Needs(indicators=("wrong",))

    def value(self, slices):
        return metric("error_rate").value(slices)

    test_subset = test_change = delta_interval = value_interval = None


def test_a_metric_says_by_default_which_slices_are_not_tested():
    sums = np.array([[6, 4], [0, 0], [50, 10]])
    own, space = Plain(), StatisticSpace(("wrong",), "overall")
    assert own.untestable(Slices(sums, space, sums[2])).tolist() == [
        0,
        Reason.UNDEFINED,
        Reason.WHOLE,
    ]
    expected = {"n": 10.0, "N": 60.0, "value": 0.4, "reference": 1 / 6}
    assert own.inputs(Slices(sums[0][None], space, sums[2])) == expected
    # All examples may be the slice where two models are compared on it.
    paired = StatisticSpace(("wrong",), "baseline")
    cells = np.array([[6, 4, 1, 2], [0, 0, 0, 0]])
    assert own.untestable(Slices(cells, paired, cells[0])).tolist() == [0, Reason.UNDEFINED]
