"""Probabilities of several classes, and sets of labels, held against scikit-learn; and what is refused."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from sklearn import metrics as sk
from sklearn.preprocessing import MultiLabelBinarizer

from slicebeam.metrics.errors import InputError
from slicebeam.metrics.measures.registry import needs_of
from slicebeam.transforms.encode.extract_predictions import Outcome, Predictor, extract_predictions
from tests.transforms.encode.test_extract_predictions import chunk

NAMES = np.array(["ant", "bee", "cat", "dog"])


def measured(metrics, classes=(), **columns):
    kind = "string" if classes else "int64"
    needs = needs_of(metrics.split())
    outcome = Outcome("y", kind, Predictor("p", "s"), needs=needs, score_classes=classes)
    return extract_predictions(chunk(**columns), outcome)


@pytest.mark.parametrize("kind", ["integers", "text", "fixed"])
def test_scores_of_all_classes_are_those_of_scikit_learn(kind):
    draw = np.random.default_rng(4)
    # Rounded, so that some are equal.
    scores = np.round(draw.dirichlet(np.ones(4), 300), 1)
    scores = scores[np.abs(scores.sum(axis=1) - 1) < 1e-9]
    label = np.array([draw.choice(4, p=row / row.sum()) for row in scores])
    lists = pa.array(
        scores.astype("float32").tolist(), pa.list_(pa.float32(), 4 if kind == "fixed" else -1)
    )
    classes = () if kind != "text" else tuple(NAMES[::-1])
    column = NAMES[::-1][label] if kind == "text" else label
    names = "log_loss_multiclass brier_multiclass top_k_accuracy:1 top_k_accuracy:3"
    found = measured(names, classes, y=column, s=lists)
    every = np.arange(4)
    expected = sk.log_loss(label, scores, labels=every)
    assert found.values["log_loss_multiclass", False].mean() == pytest.approx(expected, rel=1e-6)
    expected = sk.brier_score_loss(label, scores, labels=every)
    assert found.values["brier_multiclass", False].mean() == pytest.approx(expected, rel=1e-6)
    for k in (1, 3):
        expected = sk.top_k_accuracy_score(label, scores.astype("float32"), k=k, labels=every)
        assert found.indicators[f"top:{k}", False].mean() == pytest.approx(expected)
    none = measured(names, classes, y=column[:0], s=lists[:0])
    assert none.values["brier_multiclass", False].size == none.indicators["top:3", False].size == 0


@pytest.mark.parametrize("names", [NAMES, np.arange(4)])
def test_sets_of_labels_are_those_of_scikit_learn(names):
    draw = np.random.default_rng(5)
    sets = [draw.random((200, 4)) < 0.4 for _ in range(2)]
    lists = [[names[row].tolist() for row in one] for one in sets]
    # A label twice counts once; two empty sets are the same.
    lists[0] = [one + one[:1] for one in lists[0]]
    kind = pa.string() if names is NAMES else pa.int32()
    found = measured(
        "jaccard hamming",
        y=pa.array(lists[0], pa.list_(kind)),
        p=pa.array(lists[1], pa.list_(kind)),
    )
    binary = [MultiLabelBinarizer(classes=names.tolist()).fit_transform(one) for one in lists]
    expected = sk.jaccard_score(*binary, average="samples", zero_division=1)
    assert found.values["jaccard", False].mean() == pytest.approx(expected)
    assert found.values["hamming", False].mean() == pytest.approx(4 * sk.hamming_loss(*binary))


def rankings(relevance, scores, k):
    """By hand, result by result."""
    ranked = [value for _, value in sorted(zip(scores, relevance, strict=True), reverse=True)]
    hits = [at for at, value in enumerate(ranked) if value > 0]
    precisions = [(number + 1) / (at + 1) for number, at in enumerate(hits) if at < k]
    return {
        f"map:{k}": sum(precisions) / min(len(hits), k) if hits else 0,
        f"precision_at:{k}": len(precisions) / k,
        "mrr": 1 / (hits[0] + 1) if hits else 0,
    }


@pytest.mark.parametrize("k", [1, 3, 10])
def test_rankings_are_those_by_hand_and_of_scikit_learn(k):
    draw = np.random.default_rng(6)
    sizes = [0, 1, *draw.integers(2, 8, 60)]
    relevance = [draw.integers(0, 4, size) * draw.integers(0, 2, size) for size in sizes]
    scores = [draw.permutation(size) / 10 for size in sizes]
    names = f"ndcg:{k} map:{k} precision_at:{k} mrr"
    found = measured(
        names, y=[one.tolist() for one in relevance], s=[one.tolist() for one in scores]
    ).values
    for at, own in enumerate(zip(relevance, scores, strict=True)):
        expected = rankings(*own, k)
        if sizes[at] > 1:
            expected[f"ndcg:{k}"] = sk.ndcg_score(*([one] for one in own), k=k)
        for name, value in expected.items():
            assert found[name, False][at] == pytest.approx(value), (name, own)
    assert found[f"ndcg:{k}", False][:2].tolist() == [0, float(relevance[1][0] > 0)]


def test_of_equal_scores_the_less_relevant_comes_first():
    decimals = pa.array([[Decimal(one) for one in (1, 0, 2)]], pa.list_(pa.decimal128(3, 1)))
    for relevance in ([[1.0, 0.0, 2.0]], [[2, 1, 0]], decimals):
        found = measured("mrr precision_at:1 ndcg:1 ndcg:2", y=relevance, s=[[0.5] * 3]).values
        values = [found[name, False][0] for name in ("mrr", "precision_at:1", "ndcg:1", "ndcg:2")]
        assert values == pytest.approx([0.5, 0, 0, 1 / np.log2(3) / (2 + 1 / np.log2(3))])
    # A relevance may be true or false.
    assert measured("mrr", y=[[False, True]], s=[[0.9, 0.1]]).values["mrr", False] == [0.5]


P = [[0.5, 0.5], [0.4, 0.6]]


@pytest.mark.parametrize(("metrics", "classes", "columns", "message"), [
    ("top_k_accuracy:1", (), {"y": [0, 2], "s": P}, "label 'y' holds 2 in row 42 .*its classes are 0, 1; name them by --score-classes, or drop such"),
    ("top_k_accuracy:1", ("a", "b"), {"y": ["a", "c"], "s": P}, "label 'y' holds 'c' in row 42 .* are a, b"),
    ("top_k_accuracy:1", ("a",), {"y": ["a", "a"], "s": P}, "--score-classes names 1 classes, but --score has 2 numbers in row 41 .*; name one for each"),
    ("top_k_accuracy:1", ("a", "a"), {"y": ["a", "a"], "s": P}, "--score-classes names 'a' twice; name each class once"),
    ("top_k_accuracy:2", (), {"y": [0, 1], "s": P}, "top_k_accuracy:2 is 1 everywhere, .* --score have 2 numbers; take a smaller"),
    ("top_k_accuracy:1", (), {"y": [0, 1], "s": pa.array([[], []], pa.list_(pa.float64()))}, "'s' holds an empty list in row 41 .*; name another"),
    ("top_k_accuracy:1", (), {"y": [0, 1], "s": [[0.5, 0.5], [1.0]]}, "'s' holds 2 numbers in row 41 .* 1 in row 42 .*: drop other examples"),
    ("top_k_accuracy:1", (), {"y": [0, 1], "s": [[0.5, 0.5], [None, 1.0]]}, "'s' has a list with a missing number in row 42 .*; drop"),
    ("top_k_accuracy:1", (), {"y": [0, 1], "s": [0.5, 0.5]}, "'s' is double, not a list of the scores of all classes"),
    ("top_k_accuracy:1", (), {"y": [0, 1], "s": [["a"], ["b"]]}, "'s' is list.*, not lists of numbers; name another"),
    ("brier_multiclass", (), {"y": [0, 1], "s": [[0.5, 0.5], [1.5, -0.5]]}, "'s' holds 1.5 in row 42 .*takes probabilities, 0 to 1; convert the scores"),
    ("log_loss_multiclass", (), {"y": [0, 1], "s": [[0.5, 0.5], [0.5, 0.7]]}, "'s' holds 1.2 in row 42 .* in all, .* that add up to 1; divide by the sum"),
    ("mrr", (), {"y": [[1, 0], [1]], "s": P}, "'y' has 1 relevances in row 42 .* 's' has 2 numbers; .*: drop other examples"),
    ("map:3", (), {"y": [[1, 0], [1, -1]], "s": P}, "'y' holds -1 in row 42 .* at least 0; drop such examples"),
    ("ndcg:3", (), {"y": [[1, 0], [1, None]], "s": P}, "'y' has a list with a missing number in row 42 .*; drop"),
    ("ndcg:3", (), {"y": [1, 0], "s": P}, "'y' is int64, not a list of numbers"),
    ("jaccard", (), {"y": [["a"], ["b", None]], "p": [["a"], []]}, "'y' has a list with a missing value in row 42 .*; drop"),
    ("jaccard", (), {"y": [["a"], ["b"]], "p": ["a", "b"]}, "'p' is string, not a list of labels"),
    ("hamming", (), {"y": [["a"], ["b"]], "p": [[1], [2]]}, "'y' is list.* and prediction 'p' is list.* never be equal"),
    ("hamming", (), {"y": [[0.5], [1.0]], "p": [[1], [2]]}, "'y' is list.*labels are text or integers; convert it"),
])  # fmt: skip
def test_lists_that_are_refused(metrics, classes, columns, message):
    with pytest.raises(InputError, match=message):
        measured(metrics, classes, **columns)
