import pickle
import string
from collections import Counter
from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, CountVectorizer

from slicebeam.metrics.discovery import descriptions as module
from slicebeam.metrics.discovery import pca
from slicebeam.metrics.discovery.descriptions import (
    ROLES,
    EmbeddingSums,
    PhraseScores,
    TypicalExamples,
    best_phrases,
    candidate_phrases,
    content_words,
    distinct_best,
    log_odds_ratio,
    occurrences,
    scored,
)

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
WORDS = ["the", "of", "movie", "film", "player", "battery", "good", "bad", "not", "plot"]


def pieces(rng, n):
    return list(pairwise([0, *np.sort(rng.integers(0, n + 1, rng.integers(0, 9))).tolist(), n]))


def population(seed, n=80, D=6, S=5, P=9, dtype=np.float64):
    """Unit embeddings with an offset; the first slice is empty, the second is all examples."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, D)) + 0.5
    z[:, 0] = 0.3
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    members = rng.random((S, n)) < rng.random((S, 1))
    members[0], members[1] = False, True
    return z.astype(dtype), members, rng.normal(size=(P, D)), rng


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(10))
def test_scores_are_those_of_the_similarity_of_every_example(seed, dtype):
    z, members, phrases, rng = population(seed, dtype=dtype)
    cut = pieces(rng, len(z))
    overall = reduce(add, [pca.sums(z[a:b]) for a, b in cut])
    slices = reduce(add, [EmbeddingSums.of(members[:, a:b], z[a:b]) for a, b in cut])
    found, exact = scored(overall, slices, phrases), z.astype(np.float64)
    similarity = exact @ phrases.T
    for s in range(2, len(members)):
        assert members[s].any()
        assert not members[s].all()
        apart = exact[members[s]].mean(axis=0) - exact.mean(axis=0)
        np.testing.assert_allclose(found.score[s], phrases @ apart, atol=1e-12)
        for p in range(len(phrases)):
            wanted = np.corrcoef(members[s], similarity[:, p])[0, 1]
            assert found.correlation[s, p] == pytest.approx(wanted, abs=1e-10)
    assert not found.score[0].any()
    assert not found.correlation[:2].any()
    np.testing.assert_allclose(found.score[1], 0, atol=1e-13)


@pytest.mark.parametrize("seed", range(10))
def test_sums_of_embeddings_do_not_depend_on_how_rows_are_cut(seed):
    z, members, _, rng = population(seed, n=2 * module._BLOCK + 99)
    wanted = members.astype(np.longdouble) @ z.astype(np.longdouble)
    whole = EmbeddingSums.of(members, z)
    parts = [EmbeddingSums.of(members[:, a:b], z[a:b]) for a, b in pieces(rng, len(z))]
    for found in (whole, reduce(add, parts, EmbeddingSums.zero(5, 6)), reduce(add, parts[::-1])):
        np.testing.assert_array_equal(found.n, members.sum(axis=1))
        np.testing.assert_allclose(found.total, wanted.astype(float), rtol=1e-12, atol=1e-12)


def test_a_phrase_to_which_all_are_equally_similar_describes_nothing():
    z, members, _, _ = population(1)
    z[:, 0] = 0.3
    same = np.eye(6)[:1]
    found = scored(pca.sums(z), EmbeddingSums.of(members, z), np.vstack([same, 0 * same]))
    np.testing.assert_allclose(found.score, 0, atol=1e-15)
    assert not found.correlation.any()
    one = scored(pca.sums(z[:1]), EmbeddingSums.of(members[:, :1], z[:1]), same)
    assert not one.score.any()
    assert not one.correlation.any()
    assert not scored(pca.PcaSums.zero(6), EmbeddingSums.zero(5, 6), same).correlation.any()


def test_the_best_phrases_have_the_highest_correlation_above_zero_and_do_not_repeat():
    texts = ["movies", "the movie", "bad movie", "battery life", "plot", "price"]
    correlation = np.array([[0.5, 0.6, 0.4, 0.3, -0.2, 0.3], [0.0] * 6])
    score = np.array([[0.9, 0.1, 0.5, 0.1, -0.5, 0.2], [0.0] * 6])
    found = best_phrases(PhraseScores(score, correlation), texts, 3)
    assert [each.text for each in found[0]] == ["the movie", "price", "battery life"]
    assert (found[0][0], found[1]) == (("the movie", 0.1, 0.6), [])
    first = best_phrases(PhraseScores(score, correlation), texts, 1)
    assert [len(each) for each in first] == [1, 0]


@pytest.mark.parametrize(("ranked", "kept"), [
    (["movie", "the movie", "movies", "bad movie", "plot"], ["movie", "plot"]),
    (["bad movie", "movie", "funny movie", "bad"], ["bad movie", "funny movie"]),
    (["story", "stories", "actresses", "actress"], ["story", "actresses"]),
    (["car", "care", "class", "glass"], ["car", "care", "class", "glass"]),
    (["Film's plot", "film", "films", "plot twist"], ["Film's plot", "plot twist"]),
    (["the", "of the", "plot"], ["the", "plot"]),
    (["star wars", "wars of the star", "!", "?"], ["star wars", "!", "?"]),
    ([], []),
])  # fmt: skip
def test_a_phrase_whose_words_are_among_those_of_a_better_one_is_left_out(ranked, kept):
    assert [ranked[place] for place in distinct_best(ranked, 9)] == kept
    assert [ranked[place] for place in distinct_best(ranked, 1)] == kept[:1]
    assert distinct_best(ranked, 0) == []


def slow_occurrences(texts, min_texts):
    """n-grams of scikit-learn that begin and end with no stop word, of texts without punctuation."""
    vectorizer = CountVectorizer(ngram_range=(1, 3), binary=True, token_pattern=r"\S+")
    counts = vectorizer.fit_transform(texts).sum(axis=0).A1
    # What turns a sentence round is worth telling.
    stop = ENGLISH_STOP_WORDS - {"not"}
    return {
        phrase: count
        for phrase, count in zip(vectorizer.get_feature_names_out(), counts.tolist(), strict=True)
        if count >= min_texts and not {phrase.split()[0], phrase.split()[-1]} & stop
    }


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=9), min_size=1, max_size=25),
    st.integers(1, 4),
)
def test_occurrences_are_those_of_scikit_learn(texts, min_texts):
    joined = [" ".join(words) for words in texts]
    found = occurrences(joined, min_texts)
    wanted = slow_occurrences(joined, min_texts)
    assert dict(zip(found.phrases, found.texts.tolist(), strict=True)) == wanted
    assert found.phrases == sorted(wanted)
    for column, phrase in enumerate(found.phrases):
        has = [f" {phrase} " in f" {text} " for text in joined]
        np.testing.assert_array_equal(found.within[:, [column]].toarray().ravel(), has)


def test_candidates_neither_begin_nor_end_with_what_says_nothing():
    texts = [
        "The battery life of the PLAYER isn't good, and it's 2 hours a day; battery life! X",
        "Battery\nlife: the player’s 3d show of the day don't last. " + "z" * 50,
    ] * 3
    found = candidate_phrases(texts, min_texts=4)
    assert set(found) == {"battery", "life", "day"}
    found = candidate_phrases(texts, min_texts=3)
    for phrase in ("battery life", "battery life of", "player isn't good", "good", "hours a day"):
        assert (phrase in found) == (phrase != "battery life of"), phrase
    # "life: the player" and "day; battery" are of two clauses.
    assert "player’s 3d show" in found
    assert not {"show of", "don't last", "isn't good"} & set(found)
    assert not any("life the" in each or "day battery" in each for each in found)
    assert not any(each.split()[-1] in {"it's", "2", "x", "player’s", "z" * 50} for each in found)


def test_candidates_are_few_distinct_and_the_same_each_time():
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list(string.ascii_lowercase), 5)) for _ in range(60)]
    texts = [" ".join(rng.choice(words, 12, p=np.arange(1, 61) / 1830)) for _ in range(300)]
    found = candidate_phrases(texts, most=50)
    assert len(found) == len(set(found)) == 50
    assert found == candidate_phrases(texts, most=50)
    counts = Counter(
        gram
        for text in texts
        for gram in {" ".join(text.split()[i : i + L]) for L in (1, 2, 3) for i in range(13 - L)}
    )
    wanted = sorted(
        (p for p in counts if counts[p] >= 5), key=lambda p: (-counts[p] * len(p.split()), p)
    )
    assert found == wanted[:50]
    order = rng.permutation(300)
    assert candidate_phrases([texts[i] for i in order], most=50) == found
    assert candidate_phrases(texts, most=0) == []


def test_of_each_slice_what_is_distinctive_comes_first_in_turns():
    background = ["plain common words here today"] * 400
    texts = [*background, *["rare comet sighting"] * 6, *["tiny ladder broke"] * 6]
    members = np.zeros((3, 412), bool)
    members[0, 400:406], members[1, 406:] = True, True
    found = candidate_phrases(texts, most=12, members=members)
    assert found[:6] == ["comet", "broke", "comet sighting", "ladder", "rare", "ladder broke"]
    # The other half is what is frequent.
    assert found[6:] == candidate_phrases(texts, most=6)
    # What one text of a slice says is not what the slice says, nor what it says less than others.
    members[2, [400, 406]] = True
    plain = candidate_phrases(texts, most=12)
    assert candidate_phrases(texts, most=12, members=members[2:]) == plain
    members[2, :2], members[2, 401:406] = True, True
    some = candidate_phrases(texts, most=20, members=members[2:])
    assert all(set(phrase.split()) <= {"rare", "comet", "sighting"} for phrase in some[:6])
    general = candidate_phrases(texts, most=100)
    assert some[6:] == [phrase for phrase in general if phrase not in some[:6]][:14]
    nothing = candidate_phrases(texts, most=6, members=np.zeros((2, 412), bool))
    assert nothing == candidate_phrases(texts, most=6)
    assert nothing == candidate_phrases(texts, most=6, members=np.zeros((0, 412), bool))


def test_the_log_odds_ratio_is_the_formula():
    y, n = (7, 12), (40, 300)
    share = 19.5 / 341
    terms = [(k + 10 * share, of - k + 10 * (1 - share)) for k, of in zip(y, n, strict=True)]
    delta = np.log(terms[0][0] / terms[0][1]) - np.log(terms[1][0] / terms[1][1])
    variance = sum(1 / have + 1 / lack for have, lack in terms)
    assert log_odds_ratio(*y, *n) == pytest.approx(delta / variance**0.5, rel=1e-12)
    # As often inside as outside, and of no texts, it says nothing.
    np.testing.assert_allclose(
        log_odds_ratio([4, 0, 0], [4, 0, 7], [9, 0, 0], [9, 0, 30]), 0, 0, 0.05
    )
    assert np.isfinite(log_odds_ratio([9, 0], [0, 9], [9, 9], [9, 9])).all()


def test_texts_without_phrases_have_no_candidates(monkeypatch):
    for texts in ([], [""], ["the of", "1 2 3", "… !"] * 9):
        assert candidate_phrases(texts, min_texts=1) == []
        assert candidate_phrases(texts, min_texts=1, members=np.ones((2, len(texts)), bool)) == []
    assert candidate_phrases(["plot"], min_texts=1) == ["plot"]
    monkeypatch.setattr(module, "_WORDS_PER_TEXT", 2)
    twists = candidate_phrases(["plot twist battery"] * 5)
    assert twists == ["plot twist", "plot", "twist"]
    monkeypatch.setattr(module, "_WORDS_PER_PHRASE", 1)
    assert candidate_phrases(["plot twist"] * 5) == ["plot", "twist"]


def test_content_words():
    assert content_words("The Films of the year") == ("films", "year")
    assert content_words("film’s plot") == ("film", "plot")
    assert content_words("of the") == ("of", "the")
    assert content_words("!") == ("!",)


def examples(seed, n, S):
    """Log-odds and changes with many ties, and rows in no order."""
    rng = np.random.default_rng(seed)
    members = rng.random((S, n)) < rng.random((S, 1))
    members[:1] = False
    log_odds = rng.integers(-3, 4, (S, n)).astype(float)
    log_odds[rng.random((S, n)) < 0.05] = np.inf
    change = rng.integers(-2, 3, n).astype(float)
    return members, log_odds, rng.permutation(10 * n)[:n], change, rng


def slow_shown(members, log_odds, rows, change, most, s, shift):
    """Sort tuples, example by example."""
    of_slice = [
        (float(log_odds[s, i]), float(change[i] + shift), int(rows[i]))
        for i in range(len(rows))
        if members[s, i]
    ]
    sorts = {
        "representative": lambda e: (-e[0], e[2]),
        "improved": lambda e: (-e[1], -e[0], e[2]),
        "degraded": lambda e: (e[1], -e[0], e[2]),
        "boundary": lambda e: (e[0], e[2]),
    }
    right = {"improved": lambda e: e[1] > 0, "degraded": lambda e: e[1] < 0}
    return [
        (role, row, odds, D)
        for role in ROLES
        for odds, D, row in sorted(filter(right.get(role, bool), of_slice), key=sorts[role])[:most]
    ]


@settings(deadline=None)
@given(
    st.integers(0, 1 << 30),
    st.integers(0, 50),
    st.integers(0, 4),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.5, -1.0, 9.0]),
)
def test_typical_examples_are_the_best_of_all_however_rows_are_cut(seed, n, S, most, shift):
    members, log_odds, rows, change, rng = examples(seed, n, S)
    parts = [
        TypicalExamples.of(members[:, a:b], log_odds[:, a:b], rows[a:b], most, change[a:b])
        for a, b in pieces(rng, n)
    ]
    whole = TypicalExamples.of(members, log_odds, rows, most, change)
    merged = reduce(add, parts, TypicalExamples.zero(most))
    shuffled = reduce(add, [parts[i] for i in rng.permutation(len(parts))])
    for found in (whole, merged, shuffled):
        for column in ("role", "slices", "rows"):
            np.testing.assert_array_equal(getattr(found, column), getattr(whole, column))
        assert (np.bincount(found.role) <= S * most).all()
        for s in range(S):
            wanted = slow_shown(members, log_odds, rows, change, most, s, shift)
            assert found.shown(s, shift=shift) == wanted
    assert whole.shown(S) == []


def test_roles_without_changes_and_of_one_example():
    members, log_odds, rows, _, _ = examples(3, 40, 3)
    found = TypicalExamples.of(members, log_odds, rows, 2)
    merged = pickle.loads(pickle.dumps(found + TypicalExamples.zero(2)))
    assert {each.role for each in merged.shown(2)} == {"representative", "boundary"}
    assert len(merged.shown(2)) == 4
    found = TypicalExamples.of(np.ones((1, 1), bool), np.ones((1, 1)), np.array([7]), 3, np.ones(1))
    assert found.shown(0) == [(role, 7, 1.0, 1.0) for role in ROLES if role != "degraded"]
