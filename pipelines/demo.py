"""``slicebeam demo``: the census data that ships with the package, and what is searched in it.

The data is the test part of the UCI Adult data set (B. Becker and R. Kohavi, CC BY 4.0) with the
predictions of two models; ``examples/make_demo_data.py`` makes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slicebeam.pipelines.config import SearchConfig, search_config

DATA = Path(__file__).parent / "demo_data" / "adult_scored.parquet"


def demo_runs(output: Path) -> list[tuple[str, SearchConfig]]:
    """Return a title and a configuration for each comparison."""
    common: dict[str, Any] = {
        "data": (str(DATA),),
        "label": "income",
        "prediction": "prediction",
    }
    # fnlwgt is the weight of the census, which says nothing of a person.
    no_features = ("row_id", "fnlwgt", "score", "score_old")
    runs: list[tuple[str, dict[str, Any]]] = [
        (
            "1. Where is the model worse than over all examples?",
            {
                "exclude_features": (*no_features, "prediction_old"),
                "output": str(output / "overall"),
            },
        ),
        (
            "2. Where did its update change it, and how?",
            {
                "baseline_prediction": "prediction_old",
                "alternative": "both",
                "exclude_features": no_features,
                "output": str(output / "baseline"),
            },
        ),
    ]
    return [(title, search_config({**common, **options})) for title, options in runs]
