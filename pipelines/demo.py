"""``slicebeam demo``: the census data that ships with the package, and what is searched in it.

The data is the test part of the UCI Adult data set (B. Becker and R. Kohavi, CC BY 4.0) with the
predictions of two models; ``examples/make_demo_data.py`` makes it.
"""

from __future__ import annotations

from pathlib import Path

from slicebeam.pipelines.config import SearchConfig

DATA = Path(__file__).parent / "demo_data" / "adult_scored.parquet"


def demo_runs(output: Path) -> list[tuple[str, SearchConfig]]:
    """Return a title and a configuration for each comparison."""
    common = {
        "data": (str(DATA),),
        "label": "income",
        "prediction": "prediction",
        "example_id": "row_id",
    }
    roles = {"score", "score_old"}
    return [
        (
            "1. Where is the model worse than over all examples?",
            SearchConfig(
                **common,
                exclude_features=tuple(sorted(roles | {"prediction_old"})),
                output=str(output / "overall"),
            ),
        ),
        (
            "2. Where did the update make it worse?",
            SearchConfig(
                **common,
                baseline_prediction="prediction_old",
                exclude_features=tuple(sorted(roles)),
                output=str(output / "baseline"),
            ),
        ),
    ]
