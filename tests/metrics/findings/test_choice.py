"""The choice of findings, and how sure their differences are: rows, simulation, and a slow choice."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from slicebeam.metrics.findings import choice
from slicebeam.metrics.findings.choice import Changes
from slicebeam.metrics.findings.conditional import rate_p_value
from slicebeam.metrics.findings.model import fit
from slicebeam.metrics.significance.intervals import wilson
from tests.conftest import slow
from tests.encoded_table import EncodedTable

DEMO = Path(__file__).parents[3] / "pipelines" / "demo_data" / "adult_scored.parquet"
OUTPUTS = ("row_id", "prediction", "score", "prediction_old", "score_old")
# Slices that are planted, and by how much.
PLANTED = {
    ((0, 1),): 0.8, ((1, 2), (2, 3)): 1.3, ((3, 0), (4, 0)): 1.6,
    ((5, 4), (6, 4)): 1.3, ((0, 3), (1, 0)): 1.5,
}  # fmt: skip


def planted(seed, rows=20_000, features=8, strength=1.0):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 5, (rows, features))
    shift = np.zeros(rows)
    for conditions, size in PLANTED.items():
        if max(feature for feature, _ in conditions) >= features:
            continue
        shift += strength * size * np.all([codes[:, f] == c for f, c in conditions], axis=0)
    return rng, codes, shift


def wrong(rng, shift, base=-2.2):
    return (rng.random(shift.size) < 1 / (1 + np.exp(-base - shift))).astype(float)


@pytest.fixture(scope="module")
def errors():
    rng, codes, shift = planted(1)
    return EncodedTable(codes, wrong(rng, shift), "rate")


def expected_on_rows(table, found):
    """The mean of what a regression on rows expects of each finding from those before it."""
    overall = np.average(table.target, weights=table.weight)
    values, columns = [], []
    for finding in found.findings:
        own = table.members(finding.candidate)
        if not columns:
            fitted = np.full(table.rows, overall)
        elif table.layout.kind == "rate":
            model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-13, max_iter=500)
            X = np.stack(columns, axis=1)
            fitted = model.fit(X, table.target, table.weight).predict_proba(X)[:, 1]
        else:
            X = np.column_stack([np.ones(table.rows), *columns])
            root = np.sqrt(table.weight)
            fitted = X @ np.linalg.lstsq(X * root[:, None], table.target * root, rcond=None)[0]
        values.append(np.average(fitted[own], weights=table.weight[own]))
        columns.append(own * 1.0)
    return values


def agrees_with_rows(table, found):
    np.testing.assert_allclose(
        [finding.expected for finding in found.findings],
        expected_on_rows(table, found),
        rtol=1e-10,
        atol=1e-12,
    )
    union = np.zeros(table.rows, bool)
    w, x = table.weight, table.target
    for finding in found.findings:
        own = table.members(finding.candidate)
        assert finding.size == w[own].sum()
        assert finding.value == pytest.approx(np.average(x[own], weights=w[own]), rel=1e-12)
        union |= own
        assert finding.cumulative_size == pytest.approx(w[union].sum(), rel=1e-10)
        assert finding.cumulative_total == pytest.approx((w * x)[union].sum(), rel=1e-10)
        outside = np.average(x[~union], weights=w[~union])
        assert finding.outside == pytest.approx(outside, rel=1e-10)


def test_planted_slices_are_the_findings_and_nothing_else(errors):
    found = errors.find()
    conditions = [errors.conditions(finding.candidate) for finding in found.findings]
    assert set(conditions) == set(PLANTED)
    assert len(conditions) == len(PLANTED)
    assert found.stop == "nothing left"
    assert found.candidates > 60
    agrees_with_rows(errors, found)
    # The model is that of all findings.
    memberships = np.stack([errors.members(f.candidate) for f in found.findings], axis=1)
    slow = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-13, max_iter=500)
    slow.fit(memberships, errors.target)
    np.testing.assert_allclose(found.model.coefficients[1:], slow.coef_[0], atol=1e-8)


def slow_choice(table, alpha=0.05):
    """All candidates' p-values on every step, from memberships of rows."""
    candidates = table.candidates()
    eligible = np.flatnonzero(candidates.significant & (candidates.harm > 0))
    members = np.stack([table.members(at) for at in eligible], axis=1)
    masks, chosen = np.zeros(table.rows, np.int64), []
    while True:
        distinct, pattern = np.unique(masks, return_inverse=True)
        n, x = np.bincount(pattern), np.bincount(pattern, table.target)
        model = fit("rate", distinct, len(chosen), n, x)
        best = None
        for at, own in zip(eligible, members.T, strict=True):
            part = np.bincount(pattern[own], minlength=n.size)
            observed, expected = table.total[at], float(part @ model.expected)
            if observed <= expected or at in chosen:
                continue
            bound = alpha / (table.levels * table.tests[table.level[at] - 1])
            if rate_p_value(model, n, part, observed, "upper") > bound:
                continue
            size = part.sum()
            a, b = observed / size, expected / size
            ratio = observed * np.log(a / b)
            ratio += (size - observed) * np.log((1 - a) / (1 - b)) if observed < size else 0.0
            gain = ratio - np.log(table.tests[table.level[at] - 1])
            if best is None or gain > best[0] + 1e-6:
                best = gain, at
        if best is None:
            return chosen
        masks[table.members(best[1])] |= 1 << len(chosen)
        chosen.append(best[1])


def test_equals_a_slow_choice_that_tests_every_candidate(monkeypatch):
    # Few are tested before the others are screened.
    monkeypatch.setattr(choice, "_FIRST", 2)
    monkeypatch.setattr(choice, "_NEXT", 3)
    for seed in (3, 4):
        rng, codes, shift = planted(seed, rows=4000, features=6, strength=1.2)
        table = EncodedTable(codes, wrong(rng, shift, -1.6), "rate")
        found = table.find()
        assert [finding.candidate for finding in found.findings] == slow_choice(table)
        assert len(found.findings) >= 3


def test_permuted_data_have_no_findings_even_among_all_slices():
    rng, codes, shift = planted(5, rows=8000)
    y, false = wrong(rng, shift), 0
    for _ in range(8):
        table = EncodedTable(codes, rng.permutation(y), "rate")
        found = table.find(table.candidates(np.ones(table.keys.size, bool)))
        assert found.candidates > 300
        false += len(found.findings)
    assert false == 0


@pytest.mark.slow
def test_permutations_of_a_real_table_have_a_finding_in_at_most_one_of_twenty():
    frame = pq.read_table(DEMO).to_pandas()
    columns = []
    for name in frame.columns.difference([*OUTPUTS, "income"]):
        values = frame[name]
        if values.dtype.kind in "iuf":
            edges = np.unique(np.quantile(values, np.linspace(0, 1, 11)[1:-1]))
            columns.append(np.searchsorted(edges, values, side="right"))
        else:
            columns.append(values.astype("category").cat.codes.to_numpy())
    codes = np.stack(columns, axis=1).astype(np.int64)
    y = (frame["income"] != frame["prediction"]).to_numpy(float)
    rng, false = np.random.default_rng(1), 0
    real = EncodedTable(codes, y, "rate", levels=3)
    for _ in range(100):
        table = real.with_target(rng.permutation(y))
        everything = np.ones(table.keys.size, bool)
        false += bool(table.find(table.candidates(everything)).findings)
    # Where the rate is .05, ten or more are seen in 3 percent of such tests.
    assert false <= 9
    # The errors as they are have findings that hold most of them.
    found = real.find()
    assert 5 <= len(found.findings) <= 30
    assert found.findings[-1].cumulative_total > 0.9 * y.sum()
    agrees_with_rows(real, found)


def test_two_models_by_least_squares_where_the_change_itself_is_for_the_worse():
    rng, codes, _ = planted(6)
    # The update helps everywhere (fewer errors), less so where feature 2 is 3, and harms one slice.
    harmed = (codes[:, 0] == 2) & (codes[:, 1] == 1) & (codes[:, 2] != 3)
    gained = np.where(codes[:, 2] == 3, 0.02, 0.10)
    draw = rng.random(len(codes))
    change = np.where(draw < gained, -1.0, 0.0)
    change[harmed] = np.where(draw[harmed] < 0.2, 1.0, 0.0)
    table = EncodedTable(codes, change, "mean")
    found = table.find(table.candidates(harm=table.total / table.sizes[:, 0]))
    conditions = [table.conditions(finding.candidate) for finding in found.findings]
    assert conditions == [((0, 2), (1, 1))]
    agrees_with_rows(table, found)
    # What improved less is worse than expected, but no finding.
    relative = table.find()
    assert ((2, 3),) in [table.conditions(finding.candidate) for finding in relative.findings]


@pytest.mark.parametrize("kind", ["rate", "mean"])
def test_weights(kind):
    rng, codes, shift = planted(8)
    weight = rng.integers(1, 9, shift.size)
    target = (
        wrong(rng, shift) if kind == "rate" else rng.gamma(0.5, 1.0, shift.size) * np.exp(shift)
    )
    table = EncodedTable(codes, target, kind, weight=weight)
    found = table.find()
    conditions = {table.conditions(finding.candidate) for finding in found.findings}
    assert len(conditions & set(PLANTED)) >= 4
    assert len(conditions - set(PLANTED)) <= 1
    agrees_with_rows(table, found)


def test_sums_in_another_unit_give_the_same_findings():
    rng, codes, shift = planted(14, rows=8000)
    losses = rng.gamma(0.5, 1.0, shift.size) * np.exp(shift)
    plain, scaled = (EncodedTable(codes, losses * unit, "mean").find() for unit in (1.0, 1024.0))
    assert len(plain.findings) >= 3
    for one, other in zip(plain.findings, scaled.findings, strict=True):
        assert one.candidate == other.candidate
        assert other.expected == pytest.approx(1024.0 * one.expected, rel=1e-12)
        assert other.p_value == pytest.approx(one.p_value, rel=1e-6)


def test_rates_with_a_denominator():
    rng, codes, shift = planted(9)
    positive = rng.random(shift.size) < 0.5
    table = EncodedTable(codes, wrong(rng, shift) * positive, "rate", counted=positive)
    found = table.find()
    assert table.rows == positive.sum()
    conditions = {table.conditions(finding.candidate) for finding in found.findings}
    assert len(conditions & set(PLANTED)) >= 4
    agrees_with_rows(table, found)


def test_a_separated_slice_is_a_finding_and_leaves_the_model_sound():
    rng, codes, shift = planted(10, rows=6000)
    y = wrong(rng, 0 * shift)
    y[(codes[:, 0] == 1) & (codes[:, 1] == 1)] = 1.0
    table = EncodedTable(codes, y, "rate")
    found = table.find()
    assert [table.conditions(f.candidate) for f in found.findings] == [((0, 1), (1, 1))]
    assert found.findings[0].value == 1.0
    assert found.model.unbounded.tolist() == [0.0, 1.0]
    assert sorted(found.model.expected)[1] == 1.0


def test_the_other_direction_is_the_mirror_image(errors):
    mirrored = EncodedTable(errors.codes, 1.0 - errors.target, "rate")
    up, down = errors.find(), mirrored.find(upward=False)
    assert [f.candidate for f in up.findings] == [f.candidate for f in down.findings]
    for one, other in zip(up.findings, down.findings, strict=True):
        assert one.expected == pytest.approx(1.0 - other.expected, rel=1e-12)
        assert one.p_value == pytest.approx(other.p_value, rel=1e-8)
    # In the direction that nothing was planted in there is nothing beyond what is worse elsewhere.
    assert not {f.candidate for f in errors.find(upward=False).findings} & {
        f.candidate for f in up.findings
    }


def test_order_of_rows_and_blocks_changes_no_bit(errors):
    first = errors.find()
    order = np.random.default_rng(0).permutation(errors.rows)
    other = EncodedTable(errors.codes[order], errors.target[order], "rate", blocks=7).find()
    assert repr(other.findings) == repr(first.findings)
    for name in ("coefficients", "expected", "unbounded"):
        assert getattr(other.model, name).tobytes() == getattr(first.model, name).tobytes()
    assert other.masks.tobytes() == first.masks.tobytes()


def test_groups_must_show_it_too():
    rng, group = np.random.default_rng(12), np.repeat(np.arange(600), 20)
    # All rows of a group share feature 0, and are wrong or right together.
    codes = np.column_stack([rng.integers(0, 12, 600)[group], rng.integers(0, 5, group.size)])
    rate = np.where(rng.random(600) < 0.2, 0.8, 0.05)
    # This slice cuts through the groups, and is worse in all of them.
    rate = np.where(codes[:, 1] == 4, rate[group] + 0.15, rate[group])
    table = EncodedTable(codes, rng.random(group.size) < rate, "rate")
    everything = table.candidates(np.ones(table.keys.size, bool))
    alone = {table.conditions(f.candidate) for f in table.find(everything).findings}
    robust = table.find(everything, group=group)
    assert {conditions for conditions in alone if conditions[0][0] == 0}
    assert [table.conditions(f.candidate) for f in robust.findings] == [((1, 4),)]
    # The larger p of both tests.
    assert robust.findings[0].p_value > 0
    agrees_with_rows(table, robust)


def test_equal_candidates_go_by_level_and_id():
    rng, codes, _ = planted(13, rows=5000, features=4)
    y = wrong(rng, 2.0 * (codes[:, 1] == 3), -2.0)
    # Feature 4 repeats feature 1: the same rows under a larger id, and as a conjunction of both.
    table = EncodedTable(np.column_stack([codes, codes[:, 1]]), y, "rate")
    slices = [table.conditions(at) for at in range(table.keys.size)]
    assert {((1, 3),), ((4, 3),), ((1, 3), (4, 3))} <= set(slices)
    for tests in (table.tests, [max(table.tests)] * 2):
        table.tests = tests
        found = table.find()
        assert [table.conditions(f.candidate) for f in found.findings] == [((1, 3),)]
    # The larger id is taken where the ids are the other way round.
    found = table.find(table.candidates()._replace(id=-table.keys))
    assert [table.conditions(f.candidate) for f in found.findings] == [((4, 3),)]


def test_why_there_are_no_more(errors, monkeypatch):
    two = errors.find(most=2)
    assert (two.stop, len(two.findings)) == ("most findings", 2)
    assert [f.candidate for f in two.findings] == [f.candidate for f in errors.find().findings[:2]]
    none = errors.find(errors.candidates(np.zeros(errors.keys.size, bool)))
    assert (none.stop, none.findings, none.candidates) == ("no candidates", [], 0)
    assert none.model.expected.tolist() == [pytest.approx(errors.target.mean())]
    # No slice is worse: significant ones that are better are no candidates.
    better = errors.candidates()._replace(harm=-np.ones(errors.keys.size))
    assert errors.find(better).stop == "no candidates"
    whole = errors.find()
    monkeypatch.setattr(choice, "MOST_CANDIDATES", 40)
    some = errors.find()
    assert some.candidates == 40
    assert some.left_out == whole.candidates - 40
    assert some.findings[0] == whole.findings[0]


def test_differences_that_are_not_worth_a_line_end_the_list():
    # Half of the rows: .106 against .1 of all, p = .0023, which is within .05/10; but 2.0 nats are
    # fewer than the 2.3 that naming one of ten slices takes.
    code = np.repeat([0, 1], 10_000)
    wrong_rows = np.concatenate([np.arange(10_000) < 1060, np.arange(10_000) < 940]) * 1.0
    table = EncodedTable(code[:, None], wrong_rows, "rate", levels=1)
    every = table.candidates(np.ones(2, bool))
    table.tests = [10]
    found = table.find(every)
    assert (found.findings, found.stop) == ([], "small differences")
    # One of seven takes 1.9.
    table.tests = [7]
    (one,) = table.find(every).findings
    assert one.p_value == pytest.approx(0.0023, abs=1e-4)
    assert 0 < one.gain < 0.1


def test_counts_that_contradict_the_candidates_are_refused(errors):
    def run(change):
        counted = errors.counting()

        def lie(chosen, positions):
            counts = counted(chosen, positions)
            return counts._replace(**change(counts))

        return choice.Choice(
            candidates=errors.candidates(),
            everything=errors.everything,
            layout=errors.layout,
            count_inside=lie,
            upward=True,
            tests_per_level=errors.tests,
        ).run()

    for change, words in (
        (lambda found: {"sums": found.sums + 1.0}, "but counting inside it found"),
        (lambda found: {"masks": found.masks + 9}, "of pattern 9, which has none"),
        (
            lambda found: {"sizes": found.sizes * 1e6},
            "fewer examples of pattern 0 than the finding",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            run(change)


Z = 1.959963984540054


def two_features(seed, rows=4000):
    """Codes, and the log odds of errors where the effects of two overlapping slices add up."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 4, (rows, 2))
    codes[:, 1] = np.where(rng.random(rows) < 0.5, codes[:, 0], codes[:, 1])
    return rng, codes, -2.0 + 1.5 * (codes[:, 0] == 1) + 1.2 * (codes[:, 1] == 2)


def fit_rows(X, t, w, kind):
    """Fitted values and the variance function of a regression on rows, by Newton's steps."""
    beta = np.zeros(X.shape[1])
    for _ in range(60):
        mu = expit(X @ beta) if kind == "rate" else X @ beta
        v = mu * (1 - mu) if kind == "rate" else np.ones(mu.size)
        beta += np.linalg.solve(X.T @ (X * (w * v)[:, None]), X.T @ (w * (t - mu)))
    return mu, v


def of_rows(table, found, at, group=None):
    """The covariance of value and expectation of a finding, row by row."""
    members = [table.members(one.candidate) for one in found.findings[: at + 1]]
    w, t = table.weight, table.target
    X = np.column_stack([np.ones(table.rows), *members]).astype(float)
    _, v = fit_rows(X[:, :-1], t, w, table.layout.kind)
    inside = members[-1].astype(float)
    gram = X[:, :-1].T @ (X[:, :-1] * (w * v)[:, None])
    taken = X[:, :-1] @ np.linalg.solve(gram, X[:, :-1].T @ (w * v * inside))
    after, v = fit_rows(X, t, w, table.layout.kind)
    deviations = w * (t - after)
    of_value, of_expected = inside * deviations, taken * deviations
    if group is None:
        # Each pattern's mean squared deviation, and its leverage at the mean weight.
        pattern = np.unique(X, axis=0, return_inverse=True)[1]
        inverse = np.linalg.inv(X.T @ (X * (w * v)[:, None]))
        squares, size = np.bincount(pattern, w**2), np.bincount(pattern, w)
        leverage = (X @ inverse * X).sum(axis=1) * v * (squares / size)[pattern]
        scale = 1.0 / (1.0 - leverage)
    else:
        of_value, of_expected = np.bincount(group, of_value), np.bincount(group, of_expected)
        groups = np.unique(group).size
        scale = np.full(of_value.size, groups / (groups - 1.0))
    n = (w * inside).sum()
    products = of_value**2, of_value * of_expected, of_expected**2
    return [(scale * product).sum() / n**2 for product in products]


@pytest.mark.parametrize("kind", ["rate", "mean", "weights", "groups"])
def test_covariance_is_that_of_the_rows(kind):
    rng, codes, log_odds = two_features(3)
    wrong = (rng.random(log_odds.size) < expit(log_odds)) * 1.0
    weight = rng.integers(1, 6, wrong.size) if kind == "weights" else None
    target = rng.gamma(1.0, 1.0, wrong.size) + wrong if kind == "mean" else wrong
    table = EncodedTable(codes, target, "mean" if kind == "mean" else "rate", weight=weight)
    group = np.unique(rng.integers(0, 900, wrong.size), return_inverse=True)[1]
    group = group if kind == "groups" else None
    found = table.find(group=group)
    assert len(found.findings) >= 2
    for at, one in enumerate(found.findings):
        expected = of_rows(table, found, at, group)
        np.testing.assert_allclose(one.covariance, expected, rtol=1e-6, atol=1e-12)


def difference_interval(one, of_value):
    z = Z * np.sqrt(one.covariance.expected)
    around = one.expected - z, one.expected + z
    return one.covariance.interval_of_difference(one.value, of_value, one.expected, around)


# Share of the slice, its error rate, and the rate outside: each once covered by far too few or too wide.
RATES = {
    "half, less variable": (0.5, 0.97, 0.5), "always wrong": (0.5, 1.0, 0.3),
    "most of all": (0.8, 0.3, 0.05), "plain": (0.3, 0.4, 0.1),
}  # fmt: skip


@pytest.mark.parametrize("design", [
    "always wrong",
    *(slow(one) for one in list(RATES) if one != "always wrong"),
])  # fmt: skip
def test_intervals_of_rates_cover(design):
    share, inside, outside = RATES[design]
    rng, rows, runs, covered, width, differences = np.random.default_rng(5), 1000, 300, 0, [], []
    for _ in range(runs):
        own = rng.random(rows) < share
        wrong = (rng.random(rows) < np.where(own, inside, outside)) * 1.0
        found = EncodedTable(np.where(own, 1, 0)[:, None], wrong, "rate", levels=1).find()
        one = found.findings[0]
        low, high = difference_interval(one, wilson(wrong[own].sum(), own.sum(), 0.95))
        truth = (1.0 - own.mean()) * (inside - outside)
        covered += low <= truth <= high
        width.append(high - low)
        differences.append(one.value - one.expected - truth)
    assert 0.92 <= covered / runs <= 0.98
    assert np.mean(width) == pytest.approx(2 * Z * np.std(differences), rel=0.12)


@pytest.mark.slow
def test_intervals_of_losses_cover_where_the_rest_varies_more():
    rng, rows, runs, covered = np.random.default_rng(6), 1000, 300, 0
    for _ in range(runs):
        own = rng.random(rows) < 0.4
        loss = np.where(own, rng.normal(2, 0.2, rows), rng.exponential(1, rows))
        table = EncodedTable(np.where(own, 1, 0)[:, None], loss, "mean", levels=1)
        one = table.find().findings[0]
        off = Z * np.sqrt(one.covariance.value)
        low, high = difference_interval(one, (one.value - off, one.value + off))
        covered += low <= (1.0 - own.mean()) <= high
    assert 0.92 <= covered / runs <= 0.98


@pytest.mark.slow
def test_intervals_of_a_second_finding_cover():
    runs, covered, seconds = 200, 0, 0
    for seed in range(runs):
        rng, codes, log_odds = two_features(100 + seed)
        wrong = (rng.random(log_odds.size) < expit(log_odds)) * 1.0
        table = EncodedTable(codes, wrong, "rate", levels=1)
        found = table.find()
        slices = [table.conditions(one.candidate) for one in found.findings]
        if slices[:2] != [((0, 1),), ((1, 2),)]:
            continue
        seconds += 1
        one = found.findings[1]
        own = codes[:, 1] == 2
        low, high = difference_interval(one, wilson(wrong[own].sum(), own.sum(), 0.95))
        # What the model of the first finding would expect of the true rates.
        first = codes[:, 0] == 1
        rates = expit(log_odds)
        fitted = np.where(first, rates[first].mean(), rates[~first].mean())
        covered += low <= (rates - fitted)[own].mean() <= high
    assert seconds > 150
    assert 0.92 <= covered / seconds <= 0.985


@pytest.mark.parametrize("counts", [True, slow(False)])
def test_a_slice_that_did_not_change_is_no_finding_however_much_others_did(counts):
    rng, runs, of_planted, of_others = np.random.default_rng(8), 60, 0, 0
    cluster = np.repeat(np.arange(50), 100)
    effect = np.where(cluster < 5, -0.6, np.where(cluster < 10, 0.55, 0.0))
    for _ in range(runs):
        change = rng.normal(effect, 0.5)
        if counts:
            change = np.sign(np.rint(change))
        table = EncodedTable(cluster[:, None], change, "mean", levels=1)
        squares = np.bincount(cluster, change**2)
        # Significant as a search with a false discovery rate calls slices: at 1 % here.
        called = table.total / np.sqrt(squares) > 2.33
        candidates = table.candidates(called, harm=table.total)
        found = table.find(candidates, changes=Changes(table.total, squares, counts))
        clusters = [table.conditions(one.candidate)[0][1] for one in found.findings]
        of_planted += sum(5 <= one < 10 for one in clusters)
        of_others += any(one >= 10 for one in clusters)
        for one in found.findings:
            assert one.p_value <= 0.05 / 50
    assert of_planted > 4.5 * runs
    # At most 5 % of runs: 6 of 60 have a probability of .08. Without the test of the change: 12 and more.
    assert of_others <= 6


def test_groups_that_did_not_change_are_no_findings():
    rng, cluster = np.random.default_rng(9), np.repeat(np.arange(20), 200)
    group = np.repeat(np.arange(800), 5)
    # All improved but the last, which has not changed; each group changes as one.
    change = np.where(cluster < 19, -1.0, 0.0) + rng.normal(0, 0.5, 800)[group]
    change -= np.where(cluster == 19, change[cluster == 19].mean() - 0.05, 0.0)
    table = EncodedTable(cluster[:, None], change, "mean", levels=1)
    squares = np.bincount(cluster, change**2)
    candidates = table.candidates(np.arange(20) == 19, harm=table.total)
    without = table.find(candidates, group=group)
    assert [table.conditions(one.candidate) for one in without.findings] == [((0, 19),)]
    found = table.find(candidates, group=group, changes=Changes(table.total, squares, False))
    assert found.findings == []
