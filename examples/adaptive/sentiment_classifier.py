"""A text classifier on real sentences: trained, and later trained further on tests that it failed.

``python sentiment_classifier.py train FOLDER`` writes train.parquet, held_out.parquet and old.pkl into
the folder; ``python sentiment_classifier.py tune FOLDER`` goes on with more.parquet there, and writes
new.pkl. Needs pandas and scikit-learn.
"""

from __future__ import annotations

import pickle
import sys
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import Pipeline

SENTENCES = Path(__file__).parents[1] / "sentences" / "sentences.parquet"
EPOCHS, RATE = 20, 0.05


def train(folder: Path) -> None:
    """Train on four fifths of the sentences: a logistic regression on runs of up to three words."""
    folder.mkdir(parents=True, exist_ok=True)
    sentences = pd.read_parquet(SENTENCES, columns=["id", "source", "text", "label"])
    is_held_out = sentences["id"].map(lambda one: zlib.crc32(one.encode()) % 5 == 0)
    rows = sentences[~is_held_out]
    rows.to_parquet(folder / "train.parquet", index=False)
    sentences[is_held_out].to_parquet(folder / "held_out.parquet", index=False)
    words = TfidfVectorizer(ngram_range=(1, 3), sublinear_tf=True)
    classifier = SGDClassifier(loss="log_loss", alpha=1e-5, random_state=0)
    model = Pipeline([("words", words), ("classifier", classifier)]).fit(
        rows["text"], rows["label"]
    )
    _save(model, folder, "old")


def tune(folder: Path) -> None:
    """Train the old model further, on exported tests and the rows of the data mixed into them."""
    rows = pd.read_parquet(folder / "more.parquet")
    model = pickle.loads((folder / "old.pkl").read_bytes())  # noqa: S301  (written by train)
    vectors = model["words"].transform(rows["text"])
    labels, weights = rows["label"].to_numpy(), rows["weight"].to_numpy()
    classifier = model["classifier"].set_params(learning_rate="constant", eta0=RATE)
    random = np.random.default_rng(0)
    for _ in range(EPOCHS):
        order = random.permutation(len(labels))
        classifier.partial_fit(vectors[order], labels[order], sample_weight=weights[order])
    _save(model, folder, "new")


def _save(model: Pipeline, folder: Path, name: str) -> None:
    (folder / f"{name}.pkl").write_bytes(pickle.dumps(model))
    held_out = pd.read_parquet(folder / "held_out.parquet")
    accuracy = model.score(held_out["text"], held_out["label"])
    print(f"{name}: accuracy {accuracy:.1%} on {len(held_out):,} held-out sentences")


if __name__ == "__main__":
    {"train": train, "tune": tune}[sys.argv[1]](Path(sys.argv[2]))
