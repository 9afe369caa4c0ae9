"""What encoders embed, and that it is kept and never taken for what it is not."""

import multiprocessing
import threading

import numpy as np
import pytest

from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.discovery import encoder_cache as cache
from slicebeam.transforms.discovery.encoder_cache import CachedEncoder
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
    return "some", fingerprint, folder


def embed_once(texts, source, embed):
    return CachedEncoder(*source, embed).encode(texts)


def assert_embeds(texts, source, embedder):
    np.testing.assert_array_equal(embed_once(texts, source, embedder), _vectors(texts))


@pytest.fixture(autouse=True)
def afresh():
    cache._opened.cache_clear()


def test_each_text_is_embedded_once(tmp_path):
    embedder, texts = Embedder(), [*TEXTS[:30], *TEXTS[10:50], ""]
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
    mine = cache._opened(*_source(tmp_path))
    cache._opened.cache_clear()
    embed_once(TEXTS[20:40], _source(tmp_path), Embedder())
    assert len(mine._places) == 20
    # One of them is known by now, and counts once.
    mine._add(cache._keys(TEXTS[25:26], "sha256:a"), _vectors(TEXTS[25:26]), "")
    keys = cache._keys(TEXTS[:40], "sha256:a")
    assert (mine.missing(keys), len(mine._places)) == ([], 40)
    found = mine.vectors(keys, 0)
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
