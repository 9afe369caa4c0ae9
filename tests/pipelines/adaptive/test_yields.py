"""Bugs that are found without a language model, in two real models, against random draws from a pool.

A failure is a bug that needs no opinion: a template whose answer is known, a text that means the same
as before. What is only guessed, the neighbours, and what is drawn from the pool, is judged by people:
the mean of twenty ratings from -4 to 4, where it is at least 1 away from 0. What people rated less
clearly is no failing test, whatever the model says.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.adaptive.class_names import ClassNames
from slicebeam.pipelines.adaptive.outputs import as_outputs
from slicebeam.pipelines.adaptive.paid_outputs import SharedBudget
from slicebeam.pipelines.adaptive.proposers.families import Context
from slicebeam.pipelines.adaptive.proposers.offline import offline_proposers
from slicebeam.pipelines.adaptive.suggestions.rounds import draw, scored, yields
from slicebeam.pipelines.adaptive.suggestions.target import ModelUnderTest
from slicebeam.pipelines.adaptive.tree import TestTree
from slicebeam.transforms.storage.storage import storage_path

EXAMPLE = Path(__file__).parents[3] / "examples" / "sentences"
CLEAR = 1.0
PROPOSALS, ROUNDS, SEEDS = 100, 3, 2
OUTPUTS = ("negative", "neutral", "positive")


class Model:
    """Stands for a `TextModel`, and asks each text once."""

    name, kind, is_paid = "model", "function", False

    def __init__(self, predict):
        self.predict, self.known = predict, dict[str, str]()

    def outputs(self, texts):
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        if new:
            self.known.update(zip(new, self.predict(new), strict=True))
        return as_outputs([self.known[text] for text in texts], len(texts), self.name)


@pytest.fixture(scope="module")
def sentences():
    table, ratings = (pq.read_table(EXAMPLE / f"{n}.parquet") for n in ("sentences", "ratings"))
    assert table["id"].equals(ratings["id"])
    rating = dict(zip(table["text"].to_pylist(), ratings["rating"].to_pylist(), strict=True))
    order = np.random.default_rng(0).permutation(len(rating))
    texts, ratings = list(rating), np.array(list(rating.values()))
    return [texts[row] for row in order], ratings[order]


def vader(_):
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    analyzer = SentimentIntensityAnalyzer()

    def predict(texts):
        scores = [analyzer.polarity_scores(text)["compound"] for text in texts]
        return [OUTPUTS[1 + (score >= 0.05) - (score <= -0.05)] for score in scores]

    return predict


def regression(sentences):
    """A classifier that is trained on the first half of the sentences."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts, ratings = sentences
    labels = np.array(OUTPUTS)[1 + (ratings > 0.5) - (ratings < -0.5)]
    words = TfidfVectorizer(ngram_range=(1, 2), min_df=2)
    model = make_pipeline(words, LogisticRegression(C=4, max_iter=300))
    half = len(texts) // 2
    model.fit(texts[:half], labels[:half])
    return lambda given: model.predict(given).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("make", [vader, regression])
def test_after_three_rounds_three_times_as_many_tests_fail_as_of_random_draws(make, sentences):
    texts, ratings = sentences
    half = len(texts) // 2
    pool = texts[half:]
    clear = {
        text: "positive" if rating > 0 else "negative"
        for text, rating in zip(pool, ratings[half:].tolist(), strict=True)
        if abs(rating) >= CLEAR
    }
    model = Model(make(sentences))
    how = {"has_pairs": False, "names": ClassNames({})}
    target = ModelUnderTest(model, SharedBudget(None), storage_path("none"), print, **how)

    def fails(one):
        if not one.family.is_guess:
            return one.fails
        return one.test.output != clear.get(one.test.input, one.test.output)

    pairs = zip(pool, target.answers(pool), strict=True)
    wrong = [said != clear.get(text, said) for text, said in pairs]
    random = 100 * float(np.mean(wrong))
    found = np.zeros((SEEDS, ROUNDS))
    last = []
    for seed in range(SEEDS):
        tree = TestTree.of_tests([])
        for number in range(ROUNDS):
            tests = list(tree.rows())
            scores = target.score(tests).failures if tests else np.zeros(0)
            context = Context(tree, scores, "", pool, OUTPUTS, seed=seed)
            proposers = offline_proposers().values()
            families = [family for one in proposers for family in one.families(context)]
            suggestions = scored(draw(context, families, PROPOSALS), target.score)
            assert len(suggestions) == PROPOSALS
            accepted = [_judged(one, clear) for one in suggestions if fails(one)]
            found[seed, number] = len(accepted)
            tree = tree.add(accepted)
            last += suggestions
        inputs = tree.column("input").tolist()
        assert len({text.casefold() for text in inputs}) == len(inputs)
    assert random > 10
    assert found[:, -1].mean() >= 3 * random
    proposed = {one.proposer for one in yields(last)}
    assert proposed == set(offline_proposers()) - {"tree"}


def _judged(one, clear):
    """A test as a person accepts it: of a guess with the answer that people gave."""
    if not one.family.is_guess:
        return one.test
    return replace(one.test, expectation="should output", value=clear[one.test.input], labeler="")
