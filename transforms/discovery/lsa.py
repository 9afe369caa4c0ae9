"""Vectors of texts by the words in them: TF-IDF and a truncated SVD, fitted to a sample."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.transforms.encode.passes import read_found, write_found
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray
    from slicebeam.transforms.storage.storage import StoragePath


_MOST_FEATURES = 50_000
# From so many texts on, what occurs in one of them only says nothing about the others.
_LARGE_SAMPLE = 1_000
# Directions of less than this share of the first one's strength are rounding errors.
_SMALLEST_STRENGTH = 1e-6
_SHORTEST = 1e-6
_MOST_SEED = 2**32
# Texts that are held as words at once.
_TOGETHER = 10_000


def _vectorizer(**more: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(lowercase=True, ngram_range=(1, 2), sublinear_tf=True, **more)


@dataclass(frozen=True, eq=False)
class LsaEncoder:
    """Latent semantic analysis: TF-IDF of words and pairs of words, projected, of unit length.

    A text without a word of the vocabulary is the zero vector, as is a text whose words have no part in
    the kept directions: components [D, V] of V words, with idf ln((1 + n) / (1 + texts with it)) + 1.

    Deerwester, Dumais, Furnas, Landauer, Harshman, "Indexing by latent semantic analysis", JASIS
    41(6), 1990. Halko, Martinsson, Tropp, "Finding structure with randomness", SIAM Review 53(2),
    2011. The same numbers as scikit-learn's TfidfVectorizer, TruncatedSVD and Normalizer in a row.
    """

    name: ClassVar[str] = "lsa"
    vocabulary: tuple[str, ...]
    idf: FloatArray
    components: NDArray[np.float32]

    @classmethod
    def fit(cls, texts: Sequence[str], *, dimensions: int = 128, seed: int) -> LsaEncoder:
        """Learn the words, and at most so many directions, of texts; the same texts and seed give the same."""
        from sklearn.decomposition import TruncatedSVD

        vectorizer = _vectorizer(
            min_df=2 if len(texts) >= _LARGE_SAMPLE else 1, max_features=_MOST_FEATURES
        )
        try:
            weights = vectorizer.fit_transform(texts)
        except ValueError as error:
            raise _no_words(texts, vectorizer) from error
        rows, features = weights.shape
        # One more than this is not a direction, and scikit-learn takes no single column.
        most = min(dimensions, rows, features)
        # All rows are of length one or zero.
        cosines = weights @ weights[0].T
        if features < 2 or cosines.toarray().min() >= 1 - 1e-9:
            raise OptionError(
                f"--encoder lsa: the {len(texts):,} texts have the same words, so nothing "
                "distinguishes them; is --text the right column?"
            )
        svd = TruncatedSVD(most, algorithm="randomized", random_state=seed % _MOST_SEED)
        svd.fit(weights)
        strength = svd.singular_values_
        kept = strength > _SMALLEST_STRENGTH * strength[0]
        return cls(
            tuple(vectorizer.get_feature_names_out().tolist()),
            np.asarray(vectorizer.idf_, np.float64),
            np.asarray(svd.components_[kept], np.float32),
        )

    @cached_property
    def fingerprint(self) -> str:
        """``sha256:…`` of the vocabulary, the weights and the directions."""
        digest = hashlib.sha256(b"lsa 1-2-grams sublinear\0")
        for name, array in self.to_arrays().items():
            digest.update(f"{name} {array.shape}\0".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return f"sha256:{digest.hexdigest()}"

    @cached_property
    def _fitted(self) -> Any:
        vectorizer = _vectorizer(vocabulary=self.vocabulary)
        vectorizer.idf_ = self.idf
        return vectorizer

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of texts, shape ``[n, D]``, of length one or zero."""
        vectors = np.zeros((len(texts), len(self.components)), np.float32)
        for start in range(0, len(texts), _TOGETHER):
            part = slice(start, start + _TOGETHER)
            weights = self._fitted.transform(texts[part])
            projected = np.asarray(weights @ self.components.T, np.float64)
            lengths = np.linalg.norm(projected, axis=1, keepdims=True)
            np.divide(projected, lengths, out=vectors[part], where=lengths > _SHORTEST)
        return vectors

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all that it is, as an ``.npz`` takes it.

        The vocabulary is one text in UTF-8, a word a line: an array of texts would make each as wide
        as the longest word.
        """
        words = "\n".join(self.vocabulary).encode()
        return {
            "vocabulary": np.frombuffer(words, np.uint8),
            "idf": self.idf,
            "components": self.components,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> LsaEncoder:
        """Return the encoder that `to_arrays` stored."""
        words = np.asarray(arrays["vocabulary"], np.uint8).tobytes().decode()
        idf = np.asarray(arrays["idf"], np.float64)
        components = np.asarray(arrays["components"], np.float32).reshape(-1, idf.size)
        return cls(tuple(words.split("\n")), idf, components)


def _no_words(texts: Sequence[str], vectorizer: Any) -> InputError:
    words = vectorizer.build_analyzer()
    if any(words(text) for text in texts):
        return InputError(
            f"--encoder lsa: no word is in two of the {len(texts):,} texts, so nothing connects "
            "them; use --encoder minilm, or another column as --text"
        )
    return InputError(
        f"--encoder lsa: none of the {len(texts):,} texts has a word of two letters or more; is --text "
        "the right column?"
    )


@dataclass(frozen=True)
class StoredEncoder:
    """An `LsaEncoder` that a process loads when it first embeds a text."""

    name: ClassVar[str] = "lsa"
    path: str
    fingerprint: str

    @classmethod
    def written(cls, fitted: LsaEncoder, path: StoragePath) -> StoredEncoder:
        """Write a fitted encoder."""
        write_found(path, {name: values.ravel() for name, values in fitted.to_arrays().items()})
        return cls(str(path), fitted.fingerprint)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of texts, see `LsaEncoder.encode`."""
        return self.load().encode(texts)

    def load(self) -> LsaEncoder:
        """Return the encoder itself."""
        return _loaded(self.path, self.fingerprint)


@lru_cache(maxsize=2)
def _loaded(path: str, fingerprint: str) -> LsaEncoder:  # noqa: ARG001  (what the path holds now)
    return LsaEncoder.from_arrays(read_found(storage_path(path)))
