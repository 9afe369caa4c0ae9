"""Makes the sentences example: rated sentences with the predictions of two sentiment lexicons.

    python examples/sentences/make_sentences.py hutto_ICWSM_2014

``hutto_ICWSM_2014`` is the unpacked archive of that name in the repository of vaderSentiment
(C. J. Hutto and E. Gilbert, ICWSM 2014, MIT). The packages afinn and vaderSentiment predict. Needs
them and pandas.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from afinn import Afinn
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

FILES = {
    "amazon": "amazonReviewSnippets_GroundTruth.txt",
    "movie": "movieReviewSnippets_GroundTruth.txt",
    "nyt": "nytEditorialSnippets_GroundTruth.txt",
}
# What is no further from 0 is neutral: of mean ratings from -4 to 4, of AFINN's sums of whole numbers,
# and of VADER's scores from -1 to 1.
NEUTRAL_RATING, NEUTRAL_SUM, NEUTRAL_SCORE = 0.5, 0.0, 0.05
OUTPUT = Path(__file__).parent / "sentences.parquet"
RATINGS = Path(__file__).parent / "ratings.parquet"


def classes(scores: pd.Series[float], neutral: float) -> pd.Series[str]:
    """Return negative, neutral or positive for each score."""
    sign = (scores > 0).map({True: "positive", False: "negative"})
    return sign.where(scores.abs() > neutral, "neutral")


def read(source: str, path: Path) -> pd.DataFrame:
    """Return the sentences of a file: an id, the mean of 20 ratings, and the text."""
    lines = [line.split("\t", 2) for line in path.read_text("utf-8").splitlines()]
    table = pd.DataFrame(lines, columns=["id", "rating", "text"])
    table["id"] = source + "-" + table["id"]
    table.insert(1, "source", source)
    return table


def main(folder: str) -> None:
    """Predict the sentiment of each sentence by both lexicons, and write all as Parquet."""
    parts = [read(source, Path(folder) / name) for source, name in FILES.items()]
    table = pd.concat(parts, ignore_index=True)
    old, new = Afinn(), SentimentIntensityAnalyzer()
    ratings = table.pop("rating").astype(float)
    sums = table["text"].map(old.score)
    scores = table["text"].map(lambda text: new.polarity_scores(text)["compound"])
    table["words"] = table["text"].str.split().str.len()
    table["label"] = classes(ratings, NEUTRAL_RATING)
    table["prediction_old"] = classes(sums, NEUTRAL_SUM)
    table["prediction_new"] = classes(scores, NEUTRAL_SCORE)
    for name in ("prediction_old", "prediction_new"):
        print(f"{name}: accuracy {(table[name] == table['label']).mean():.1%}")
    ids = table[["id"]].assign(rating=ratings.astype("float32"))
    ids.to_parquet(RATINGS, index=False, compression="zstd")
    table.to_parquet(OUTPUT, index=False, compression="zstd", compression_level=19)


if __name__ == "__main__":
    main(*sys.argv[1:])
