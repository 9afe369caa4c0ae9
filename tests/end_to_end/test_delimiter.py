"""CSV with other signs between the values: the same results, with every command that reads data."""

import json

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.config.common import delimiter_character
from tests.conftest import slow
from tests.running import read, refused
from tests.shift_runs import REPLAYED, made

FLAGS = ("--label=label", "--prediction=pred", "--max-cross-size=2", "--quiet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same examples in three files; among them values that hold each of the signs."""
    rng = np.random.default_rng(2)
    rows = 800
    label = rng.integers(0, 2, rows)
    place = rng.choice(["Bonn; Rhein", "Kiel, Ost", "a\tb"], rows)
    wrong = rng.random(rows) < np.where(place == "Kiel, Ost", 0.5, 0.1)
    frame = pd.DataFrame(
        {
            "place": place,
            "size": rng.normal(size=rows).round(2),
            "day": rng.choice(["2026-01-02", "2026-01-03"], rows),
            "label": label,
            "pred": np.where(wrong, 1 - label, label),
        }
    )
    path = tmp_path_factory.mktemp("signs")
    for name, sign in (("comma", ","), ("semicolon", ";"), ("tab", "\t")):
        frame.to_csv(path / f"{name}.csv", index=False, sep=sign)
    return path


@pytest.fixture(scope="module")
def plain(folder):
    out = folder / "plain"
    assert run(["search", f"--data={folder}/comma.csv", f"--output={out}", *FLAGS]) == 0
    return read(out)


@pytest.mark.parametrize(("name", "sign"), [("semicolon", ";"), slow("tab", "tab"), ("tab", "\\t")])
def test_search_finds_the_same(folder, plain, tmp_path, name, sign):
    data = f"--data={folder}/{name}.csv"
    assert run(["search", data, f"--output={tmp_path}", *FLAGS, "--delimiter", sign]) == 0
    found = read(tmp_path)
    assert found.slices_bytes == plain.slices_bytes
    assert found.document["testing"]["significant"] > 0
    used = found.document["provenance"]["config"]["delimiter"]
    assert used == {";": ";"}.get(sign, "\t")
    # The document repeats the run.
    again = tmp_path / "again"
    assert run(["run", f"{tmp_path}/changelist.json", f"--output={again}", "--quiet"]) == 0
    assert read(again).slices_bytes == plain.slices_bytes


def test_check_shift_and_a_file_of_options(folder, plain, tmp_path):
    slices = json.dumps([{"predicate": 'place = "Kiel, Ost"'}])
    (tmp_path / "slices.yaml").write_text(slices)
    options = {"command": "check", "data": f"{folder}/tab.csv", "delimiter": "\t", "label": "label"}
    options |= {"prediction": "pred", "slices": f"{tmp_path}/slices.yaml", "quiet": True}
    (tmp_path / "run.yaml").write_text(json.dumps(options | {"output": f"{tmp_path}/check"}))
    assert run(["run", str(tmp_path / "run.yaml")]) == 0
    checked = read(tmp_path / "check").table
    whole = plain.table[plain.table["slice"] == 'place = "Kiel, Ost"']
    assert checked["n"].tolist() == whole["n"].tolist()
    assert checked["value"].tolist() == whole["value"].tolist()
    made().to_csv(tmp_path / "pool.csv", index=False, sep=";")
    flags = ["shift", f"--data={tmp_path}/pool.csv", "--delimiter=;", *REPLAYED, "--budget=100"]
    assert run([*flags, f"--output={tmp_path}/shift", "--quiet"]) == 0
    assert (tmp_path / "shift" / "changelist.json").exists()


@pytest.mark.parametrize(("text", "said"), [
    ("", "--delimiter is empty; give one character, such as ';' or tab"),
    (";;", "--delimiter ';;' has 2 characters; give a single one, such as ';', or tab"),
    ("semicolon", "--delimiter 'semicolon' has 9 characters"),
    ('"', "--delimiter '\"' can't separate values"),
    ("\n", "--delimiter '\\n' can't separate values"),
    ("x", "--delimiter 'x' can't separate values"),
    ("§", "--delimiter '§' can't separate values"),
])  # fmt: skip
def test_what_is_no_delimiter(text, said):
    with pytest.raises(InputError) as error:
        delimiter_character(text)
    assert str(error.value).startswith(said)


def test_errors_name_the_remedy(folder, tmp_path, capsys):
    def said(data, *flags):
        arguments = ["search", f"--data={data}", *FLAGS, f"--output={tmp_path}/out", *flags]
        return refused(arguments, capsys, folder=folder)

    for name, shown in (("semicolon", "';'"), ("tab", "tab")):
        frame = pd.read_csv(folder / "comma.csv", usecols=["size", "label", "pred"])
        frame.to_csv(tmp_path / "plain.csv", index=False, sep={"tab": "\t"}.get(name, ";"))
        message = said(f"{tmp_path}/plain.csv")
        assert "unknown column 'label'" in message
        assert f"are values separated by {shown}? give --delimiter {shown}" in message
    assert "--delimiter ';;' has 2 characters" in said(f"{folder}/comma.csv", "--delimiter=;;")
    frame.to_parquet(tmp_path / "data.parquet")
    message = said(f"{tmp_path}/data.parquet", "--delimiter=;")
    assert message == "--delimiter is for CSV, but the data is parquet"
