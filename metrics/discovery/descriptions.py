"""What describes slices: n-grams that their embeddings are most like (Eyuboglu et al. 2022), and typical examples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from scipy import sparse

from slicebeam.metrics.arrays import ArrayLike, BoolArray, FloatArray, IntArray, floats
from slicebeam.metrics.chunks import FIXED, JOINED, Embeddings, Summed, blocks
from slicebeam.metrics.discovery.pca import PcaSums

_BLOCK = 4096
# A word, or a sign that ends a clause, which no phrase goes across.
_TOKEN = re.compile(r"[^\W_]+(?:['’\-][^\W_]+)*|[.,;:!?()\[\]{}\"“”…/|\n\t]")
_WORD, _POSSESSIVE = re.compile(r"[^\W_]"), ("'s", "’s")
_LONGEST_WORD = 40
_WORDS_PER_TEXT, _WORDS_PER_PHRASE = 200, 3
# Of scikit-learn's list, but they have a meaning of their own: Nothman, Qin and Yurchak (2018).
_MEANINGFUL = {
    "amount", "bill", "bottom", "cry", "describe", "detail", "empty", "fill", "fire", "front", "full",
    "interest", "mill", "mine", "move", "part", "serious", "show", "side", "sincere", "system", "thick",
    "thin",
    # What turns a sentence round, or strengthens it, can be what a slice has in common.
    "cannot", "never", "no", "none", "nor", "not", "nothing", "only", "very", "well", "without",
}  # fmt: skip
# Examples inside and outside a slice in which a phrase is taken to occur as often as overall.
_PRIOR_EXAMPLES = 10.0


class Occurrences(NamedTuple):
    """Which texts the phrases of a sample occur in."""

    phrases: list[str]
    texts: IntArray  # [P] in how many texts each occurs
    within: sparse.csr_array  # float64 [n, P]: 1 where text i has phrase p


def candidate_phrases(
    texts: Sequence[str], *, most: int = 2000, members: BoolArray | None = None, min_texts: int = 5
) -> list[str]:
    """Return the n-grams of texts, in lower case, that are most useful to describe slices."""
    # Those come first that account for most words; of ``members`` [S, n] of slices half of the places go, in turns, to
    # what is most distinctive of each. A phrase neither begins nor ends with a stop word, a letter or a number.
    grams = occurrences(texts, min_texts)
    words = np.array([phrase.count(" ") + 1 for phrase in grams.phrases], np.int64)
    # Phrases are in alphabetical order, which a stable sort keeps.
    ranked = np.argsort(-grams.texts * words, kind="stable")
    if members is not None and members.size:
        distinct = list(dict.fromkeys(_distinctive(grams, members).tolist()))
        ranked = np.append(np.array(distinct[: most // 2], np.int64), ranked)
    return [grams.phrases[number] for number in list(dict.fromkeys(ranked.tolist()))[:most]]


def occurrences(texts: Sequence[str], min_texts: int) -> Occurrences:
    """Return the n-grams of texts, in alphabetical order."""
    # Loading it takes longer than most texts.
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(
        # An empty phrase, the first in order, since texts without any are an error.
        analyzer=lambda text: ["", *_phrases(_tokens(text, _WORDS_PER_TEXT))],
        binary=True,
        dtype=np.float64,
    )
    within = counter.fit_transform([*texts, ""])[:-1]
    counts = np.bincount(within.indices, minlength=within.shape[1])
    often = 1 + np.flatnonzero(counts[1:] >= min_texts)
    phrases = counter.get_feature_names_out()[often].tolist()
    return Occurrences(phrases, counts[often], sparse.csr_array(within[:, often]))


def _phrases(tokens: list[str]) -> Iterator[str]:
    """Yield the n-grams of a text that may be phrases."""
    for begin, first in enumerate(tokens):
        if not _begins_phrase(first):
            continue
        for end in range(begin + 1, min(begin + _WORDS_PER_PHRASE, len(tokens)) + 1):
            last = tokens[end - 1]
            if not _WORD.match(last):
                break
            if _begins_phrase(last) and not last.endswith(_POSSESSIVE):
                yield " ".join(tokens[begin:end])


def log_odds_ratio(
    inside: ArrayLike, outside: ArrayLike, n_inside: ArrayLike, n_outside: ArrayLike
) -> FloatArray:
    """Return how much more a phrase is said inside than outside, in standard errors: Monroe, Colaresi and Quinn (2008)."""
    # "Fightin' Words", equations 15 and 22, with a prior of 10 texts.
    y, more, n, others = floats(inside, outside, n_inside, n_outside)
    # Half a text with the phrase, and half without, keep the logarithms finite.
    share = (y + more + 0.5) / (n + others + 1)
    have = [texts + _PRIOR_EXAMPLES * share for texts in (y, more)]
    lack = [texts + _PRIOR_EXAMPLES * (1 - share) for texts in (n - y, others - more)]
    delta = np.log(have[0] / lack[0]) - np.log(have[1] / lack[1])
    return np.asarray(delta / np.sqrt(sum(1 / texts for texts in (*have, *lack))))


def _distinctive(grams: Occurrences, members: BoolArray) -> IntArray:
    """Return the phrases that are most distinctive of each slice, in turns."""
    inside = np.asarray(members.astype(np.float64) @ grams.within)
    size = np.count_nonzero(members, axis=1)[:, None]
    ratio = log_odds_ratio(inside, grams.texts - inside, size, members.shape[1] - size)
    ratio = np.where((inside > 1) & (ratio > 0), ratio, -np.inf)
    order = np.argsort(-ratio, axis=1, kind="stable")
    useful = np.isfinite(np.take_along_axis(ratio, order, axis=1))
    # Column by column: the best of all slices before the second best of any.
    return np.asarray(order.T[useful.T])


def content_words(phrase: str) -> tuple[str, ...]:
    """Return the words of a phrase, without possessives, that are not stop words (all if all are)."""
    words = [token for token in _tokens(phrase, len(phrase)) if _WORD.match(token)]
    content = [word for word in words if not _is_stop_word(word)] or words or [phrase]
    return tuple(word[:-2] if word.endswith(_POSSESSIVE) else word for word in content)


def _tokens(text: str, most: int) -> list[str]:
    # A text of a megabyte is not read to its end.
    return [token.group().lower() for token in islice(_TOKEN.finditer(text), most)]


@cache
def _begins_phrase(token: str) -> bool:
    return _WORD.match(token) is not None and not _is_stop_word(token)


def _is_stop_word(word: str) -> bool:
    """Whether no phrase begins or ends with the word: a stop word, a letter, a number, a code."""
    if not 1 < len(word) <= _LONGEST_WORD or not any(letter.isalpha() for letter in word):
        return True
    # Loading it takes longer than most texts.
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    plain = word.replace("’", "'")
    stem = plain.partition("'")[0]
    return plain.endswith("n't") or (stem in ENGLISH_STOP_WORDS and stem not in _MEANINGFUL)


@dataclass(frozen=True)
class EmbeddingSums(Summed):
    """Sums of the embeddings in each of S slices, which may overlap."""

    n: IntArray  # [S] examples
    total: FloatArray  # [S, D] Σz

    @classmethod
    def zero(cls, slices: int, dimensions: int) -> EmbeddingSums:
        """Return the sums over no examples."""
        return cls(np.zeros(slices, np.int64), np.zeros((slices, dimensions)))

    @classmethod
    def of(cls, members: BoolArray, z: Embeddings) -> EmbeddingSums:
        """Return what one chunk adds to the sums."""
        total = np.zeros((members.shape[0], z.shape[1]))
        for rows in blocks(z.shape[0], _BLOCK):
            total += members[:, rows].astype(np.float64) @ z[rows].astype(np.float64)
        return cls(np.count_nonzero(members, axis=1).astype(np.int64), total)


class PhraseScores(NamedTuple):
    """How well each of P phrases describes each of S slices."""

    # [S, P] inner product of the phrase's embedding with (mean of the slice − mean of all)
    score: FloatArray
    # [S, P] Pearson's, over all examples, of membership with the inner product of embeddings
    correlation: FloatArray


def scored(overall: PcaSums, slices: EmbeddingSums, phrases: Embeddings) -> PhraseScores:
    """Return how well phrases [P, D] describe slices, 0 for an empty one, from the sums of embeddings alone."""
    p, n, D = phrases.astype(np.float64), max(overall.n, 1), overall.mean.size
    mean = slices.total / np.maximum(slices.n, 1)[:, None]
    score: FloatArray = np.where((slices.n > 0)[:, None], mean - overall.mean, 0.0) @ p.T
    scatter = np.einsum("pd,pd->p", p @ overall.scatter, p)
    # A direction in which nothing varies is left with what the others are rounded by.
    rounding = float(np.finfo(np.float64).eps) * D * np.trace(overall.scatter)
    varies = scatter > rounding * np.square(p).sum(axis=1)
    deviation = np.sqrt(np.where(varies, scatter, 1.0) / n)
    share = slices.n / n
    odds = np.sqrt(share / np.where(share < 1, 1 - share, 1.0))
    correlation = np.where(varies, score / deviation, 0.0) * np.where(share < 1, odds, 0.0)[:, None]
    return PhraseScores(score, np.clip(correlation, -1.0, 1.0))


class BestPhrase(NamedTuple):
    """A phrase that describes a slice, with its scores."""

    text: str
    score: float
    correlation: float


def best_phrases(
    scores: PhraseScores, phrases: Sequence[str], few: int = 5
) -> list[list[BestPhrase]]:
    """Return of each slice the few phrases of the best correlation, then score, then place, the best first."""
    best = []
    for score, correlation in zip(scores.score, scores.correlation, strict=True):
        order = np.lexsort((-score, -correlation))
        order = order[score[order] > 0]
        chosen = order[distinct_best([phrases[at] for at in order], few)]
        of_slice = zip(chosen, score[chosen].tolist(), correlation[chosen].tolist(), strict=True)
        best.append([BestPhrase(phrases[at], *scored) for at, *scored in of_slice])
    return best


def distinct_best(ranked: Sequence[str], few: int) -> list[int]:
    """Return the places of the first few phrases that repeat no better one, as "the movies" does "movie"."""
    kept: dict[int, tuple[str, ...]] = {}
    for place, phrase in enumerate(ranked):
        if len(kept) == few:
            break
        words = content_words(phrase)
        if not any(_within(words, better) or _within(better, words) for better in kept.values()):
            kept[place] = words
    return list(kept)


def _within(words: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether all words are among others, except for a plural, as "story" and "stories"."""
    return all(any(a == b or b in _plurals(a) or a in _plurals(b) for b in others) for a in words)


def _plurals(word: str) -> tuple[str, ...]:
    return f"{word}s", f"{word}es", f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"


Role: TypeAlias = Literal["representative", "improved", "degraded", "boundary"]
ROLES: tuple[Role, ...] = get_args(Role)


class TypicalExample(NamedTuple):
    """A shown example of a slice."""

    role: Role
    row: int
    log_odds: float  # of its membership, in nats
    change: float  # D, with the shift; NaN without changes


@dataclass(frozen=True)
class TypicalExamples(Summed):
    """The best ``most`` members of each slice in each role; of equals the lower row. Chunks may be cut anyhow."""

    most: int = field(metadata=FIXED)
    role: IntArray = field(metadata=JOINED)  # position in `ROLES`
    slices: IntArray = field(metadata=JOINED)
    rows: IntArray = field(metadata=JOINED)
    log_odds: FloatArray = field(metadata=JOINED)
    change: FloatArray = field(metadata=JOINED)

    @classmethod
    def zero(cls, most: int) -> TypicalExamples:
        """Return those of no examples."""
        none, nothing = np.zeros(0, np.int64), np.zeros(0)
        return cls(most, none, none, none, nothing, nothing)

    @classmethod
    def of(
        cls,
        members: BoolArray,
        log_odds: FloatArray,
        rows: IntArray,
        most: int,
        change: FloatArray | None = None,
    ) -> TypicalExamples:
        """Return those of one chunk, of members and log-odds [S, n] and rows [n], none twice."""
        slices, places = np.nonzero(members)
        D = np.full(rows.size, np.nan) if change is None else change
        inside = slices, rows[places], log_odds[slices, places], D[places]
        columns: Any = (np.tile(column, len(ROLES)) for column in inside)
        return cls(most, np.repeat(np.arange(len(ROLES)), slices.size), *columns).best()

    def best(self) -> TypicalExamples:
        """Return the best of each; of equal changes, as zero-one losses have, the highest log-odds."""
        by_change = np.select([self.role == 1, self.role == 2], [-self.change, self.change])
        by_odds = np.where(self.role == 3, self.log_odds, -self.log_odds)
        order = np.lexsort((self.rows, by_odds, by_change, self.slices, self.role))
        group = (self.role * (self.slices.max(initial=0) + 1) + self.slices)[order]
        place = np.arange(group.size) - np.searchsorted(group, group)
        kept = order[place < self.most]
        columns: Any = self.role, self.slices, self.rows, self.log_odds, self.change
        return TypicalExamples(self.most, *(column[kept] for column in columns))

    def __add__(self, other: TypicalExamples) -> TypicalExamples:
        return super().__add__(other).best()

    def shown(self, number: int, *, shift: float = 0.0) -> list[TypicalExample]:
        """Return the examples of a slice by role, ``shift`` (of one model the mean loss) added to every change."""
        inside = self.slices == number
        columns = self.role, self.rows, self.log_odds, self.change + shift
        examples = zip(*(column[inside].tolist() for column in columns), strict=True)
        shown = [TypicalExample(ROLES[role], *example) for role, *example in examples]
        better = {"improved": 1.0, "degraded": -1.0}
        return [at for at in shown if at.role not in better or at.change * better[at.role] > 0]
