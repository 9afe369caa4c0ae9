"""Data that the tests share."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

ADULT = Path(__file__).parent.parent / "pipelines" / "demo_data" / "adult_scored.parquet"
ADULT_ROLES = ("row_id", "income", "prediction", "score", "prediction_old", "score_old")


@pytest.fixture(scope="session")
def adult_path() -> Path:
    return ADULT


@pytest.fixture(scope="session")
def adult() -> pd.DataFrame:
    return pd.read_parquet(ADULT)
