"""A condition on a value that the data does not have names the nearest that it has."""

import pandas as pd
import pytest

from slicebeam.pipelines.cli import run
from tests.running import refused


@pytest.mark.parametrize(("value", "hint"), [
    ("Roma", "; did you mean 'city = Rome'?"),
    ("Zürich", ""),
    ("rome", "; did you mean 'city = Rome'?"),
])  # fmt: skip
def test_the_nearest_value_is_named(value, hint, tmp_path, capsys):
    cities = {"city": ["Rome", "Oslo"] * 50, "y": "a", "p": ["a", "b"] * 50}
    pd.DataFrame(cities).to_csv(tmp_path / "t.csv", index=False)
    search = ["search", f"--data={tmp_path}/t.csv", "--label=y", "--prediction=p"]
    assert run([*search, "--features=city", f"--output={tmp_path}/out", "--quiet"]) == 0
    define = ["define", f"--changelist={tmp_path}/out", "--name=x", f"--where=city = {value}"]
    message = refused([*define, "--quiet"], capsys, folder=tmp_path)
    assert message == f"slice 'x' would have no examples; change its definition{hint}"
