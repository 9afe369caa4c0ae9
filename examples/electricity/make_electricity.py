"""Makes the electricity example: a sample of the NSW electricity market with a forest's predictions.

    python examples/electricity/make_electricity.py electricity.csv

``electricity.csv`` is the normalised Elec2 data set (M. Harries, Splice-2 comparative evaluation:
Electricity pricing, 1999; OpenML's ``electricity``): ``class`` is 1 where the price went up. 3,621
rows are drawn at random, as many as Liu, Rosen and Paul Suganthan (2022) had, and a random forest
is trained on all others, so that no prediction is of a row that the model has seen. Needs
scikit-learn and pandas.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from sklearn.ensemble import RandomForestClassifier

ROWS = 3621
OUTPUT = Path(__file__).parent / "electricity_scored.parquet"


def main(source: str) -> None:
    """Draw the sample, train on the rest, and write the sample with its predictions as Parquet."""
    table = pd.read_csv(source)
    sample = table.sample(ROWS, random_state=0).sort_index()
    rest = table.drop(sample.index)
    features = [name for name in table.columns if name != "class"]
    model = RandomForestClassifier(random_state=0).fit(rest[features], rest["class"])
    sample["prediction"] = model.predict(sample[features])
    error = (sample["prediction"] != sample["class"]).mean()
    print(f"trained on {len(rest):,} rows; {len(sample):,} rows, error {error:.1%}")
    # Small whole numbers; the others keep every digit that was published.
    whole = dict.fromkeys(("day", "class", "prediction"), "int8")
    sample.astype(whole).to_parquet(OUTPUT, index=False, compression="zstd")


if __name__ == "__main__":
    main(*sys.argv[1:])
