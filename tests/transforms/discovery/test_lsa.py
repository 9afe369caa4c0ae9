import io

import numpy as np
import pytest
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.discovery.lsa import LsaEncoder
from tests.refusals import refuses

WORDS = ["film", "plot", "actor", "phone", "battery", "Screen", "war", "vote", "Größe", "naïve"]


def _texts(count, seed=0):
    random = np.random.default_rng(seed)
    return [
        " ".join(random.choice(WORDS, random.integers(2, 9)))
        + f" item{random.integers(count // 8)}."
        for _ in range(count)
    ]


@pytest.mark.parametrize(("count", "least"), [(400, 1), (1200, 2)])
def test_equal_to_scikit_learn(count, least):
    texts = _texts(count)
    oracle = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=least, max_features=50_000),
        TruncatedSVD(20, random_state=7),
        Normalizer(),
    ).fit(texts)
    fitted = LsaEncoder.fit(texts, dimensions=20, seed=7)
    new = _texts(60, seed=1)
    vectors = fitted.encode(new)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, oracle.transform(new), atol=3e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_same_texts_and_seed_give_the_same():
    texts = _texts(300)
    one, other = (LsaEncoder.fit(texts, dimensions=16, seed=3) for _ in range(2))
    assert one.fingerprint == other.fingerprint
    np.testing.assert_array_equal(one.encode(texts), other.encode(texts))
    assert LsaEncoder.fit(texts, dimensions=15, seed=3).fingerprint != one.fingerprint
    assert LsaEncoder.fit(texts[:-1], dimensions=16, seed=3).fingerprint != one.fingerprint
    # Whatever else is asked with it, a text has its vector.
    np.testing.assert_allclose(one.encode(texts[5:6])[0], one.encode(texts)[5], atol=1e-7)


def test_comes_back_from_arrays():
    texts = _texts(300)
    fitted = LsaEncoder.fit(texts, dimensions=16, seed=3)
    expected, file = fitted.encode(texts), io.BytesIO()
    np.savez(file, **fitted.to_arrays())
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        read = LsaEncoder.from_arrays(arrays)
    assert (read.fingerprint, read.name) == (fitted.fingerprint, "lsa")
    np.testing.assert_array_equal(read.encode(texts), expected)


def test_texts_without_a_known_word_are_zero():
    fitted = LsaEncoder.fit(_texts(300), dimensions=16, seed=3)
    vectors = fitted.encode(["", "  ", "unheard", "?!", "film"])
    assert not vectors[:4].any()
    assert np.linalg.norm(vectors[4]) == pytest.approx(1, abs=1e-6)
    assert fitted.encode([]).shape == (0, 16)
    # Known, but of no part in the directions that were kept.
    texts = ["alpha beta", "alpha gamma"] * 50 + ["omega psi"]
    assert not LsaEncoder.fit(texts, dimensions=2, seed=0).encode(["omega psi"]).any()


@pytest.mark.parametrize(("count", "most"), [(5, 5), (40, 40)])
def test_fewer_directions_where_there_are_no_more(count, most):
    assert LsaEncoder.fit(_texts(count * 8)[:count], seed=0).components.shape[0] <= most
    # Two kinds of texts, however many rows.
    two = LsaEncoder.fit(["a good film", "a bad phone"] * 40, seed=0)
    assert two.components.shape[0] == 2
    np.testing.assert_allclose(
        two.encode(["good film", "GOOD film!"])[0], two.encode(["GOOD film!"])[0], atol=1e-6
    )


@pytest.mark.parametrize(("texts", "told"), [
    ([], "none of the 0 texts has a word of two letters or more"),
    (["", " ", "? a b"], "none of the 3 texts has a word of two letters or more"),
    (["the same"] * 9, "the 9 texts have the same words"),
    (["word", "Word", "word."], "the 3 texts have the same words"),
    (["two words", "two words!", "two WORDS"], "the 3 texts have the same words"),
    ([f"w{number}" for number in range(1000)], "no word is in two of the 1,000 texts"),
])  # fmt: skip
def test_texts_that_say_nothing(texts, told):
    refuses(InputError, told, LsaEncoder.fit, texts, seed=0)


def test_a_word_of_a_megabyte():
    texts = [*_texts(50 * 8)[:50], "x" * 1_000_000]
    arrays = LsaEncoder.fit(texts, dimensions=8, seed=0).to_arrays()
    assert sum(array.nbytes for array in arrays.values()) < 2_000_000
