"""What reads the document of a discovery within findings keeps to its examples."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines.cli import run
from tests.pipelines.serve.asking import asks, served_page
from tests.running import read

OUTCOME = ["--label=label", "--prediction=prediction"]
WORDS = {"red": ["apple", "rose"], "blue": ["sky", "sea"], "green": ["leaf", "grass"]}


@pytest.fixture(scope="module")
def frame():
    """Examples of which those of shop B are bad, and those of its red things worse."""
    rng = np.random.default_rng(3)
    n = 3000
    color, shop = rng.choice(list(WORDS), n), rng.choice(list("ABCD"), n)
    text = [f"{one} {rng.choice(WORDS[one])} thing" for one in color]
    label = rng.integers(0, 2, n)
    wrong = rng.random(n) < np.where(shop == "B", np.where(color == "red", 0.9, 0.4), 0.05)
    size = rng.integers(1, 100, n)
    prediction = np.where(wrong, 1 - label, label)
    columns = {"shop": shop, "size": size, "text": text, "label": label, "prediction": prediction}
    return pd.DataFrame({"id": np.arange(n) + 10_000, **columns})


@pytest.fixture(scope="module")
def found(frame, tmp_path_factory):
    """The folder of the data, in two files, with the results of a search and of a discovery."""
    folder = tmp_path_factory.mktemp("within")
    frame[:1000].to_parquet(folder / "part-0.parquet", row_group_size=300)
    frame[1000:].to_parquet(folder / "part-1.parquet", row_group_size=700)
    data = [f"--data={folder}/part-*.parquet", "--example-id=id", *OUTCOME, "--quiet"]
    search = ["search", *data, "--features=shop", f"--output={folder / 'search'}"]
    assert run(search) == 0
    within = f"--within-findings={folder / 'search' / 'changelist.json'}"
    discover = ["discover", *data, "--text=text", "--components=3", within]
    assert run([*discover, f"--output={folder / 'discover'}"]) == 0
    return folder


@pytest.fixture(scope="module")
def kept(frame, found):
    kept = frame[frame["shop"] == "B"]
    document = read(found / "discover").document
    within = document["dataset"]["within"]
    assert (document["dataset"]["n"], within["n"], within["of"]) == (len(kept), len(kept), 3000)
    return kept


def test_a_check_of_the_groups(found, kept, tmp_path):
    command = ["check", f"--changelist={found / 'discover'}", "--data", f"{found}/part-*.parquet"]
    assert run([*command, *OUTCOME, "--quiet", f"--output={tmp_path}"]) == 0
    before, after = read(found / "discover").document, read(tmp_path).document
    sizes = [
        {one["slice_id"]: one["size"]["n"] for one in each["slices"]} for each in (before, after)
    ]
    assert sizes[0] == sizes[1]
    assert sum(sizes[1].values()) == len(kept) == after["dataset"]["n"]
    assert after["dataset"]["within"] == before["dataset"]["within"]


def test_slices_by_hand_are_of_the_same_examples(found, kept, tmp_path):
    """Defined by `define`, shown by the page of `serve`: neither counts an example of another shop."""
    out, ids = tmp_path / "out", tmp_path / "ids.txt"
    shutil.copytree(found / "discover", out)
    red = kept[kept["text"].str.contains("red")]
    ids.write_text("\n".join(map(str, red["id"])))
    for name, rule in (("small", "--where=size < 50"), ("listed", f"--ids={ids}")):
        command = ["define", f"--changelist={out}", f"--name={name}", rule, "--quiet"]
        assert run(command) == 0
    document = json.loads((out / "changelist.r2.json").read_text())
    small = kept[kept["size"] < 50]
    sizes = {one["name"]: one["size"]["n"] for one in document["slices"]}
    assert (sizes["small"], sizes["listed"]) == (len(small), len(red))
    page = asks(served_page(out))
    for one in document["slices"]:
        answer = page("examples", slice_id=one["slice_id"])
        assert (answer["n"], answer["held"]) == (one["size"]["n"],) * 2, one["name"]
        ids_of = {"small": small, "listed": red}.get(one["name"], kept)["id"]
        assert {int(each["id"]) for each in answer["examples"]} <= set(ids_of)


def test_data_without_an_example_in_the_findings(frame, found, tmp_path, capsys):
    """Both a discovery and a check of its slices say so, in a line."""
    frame[frame["shop"] != "B"].to_parquet(tmp_path / "others.parquet")
    data = [f"--data={tmp_path}/others.parquet", *OUTCOME, f"--output={tmp_path / 'out'}"]
    within = f"--within-findings={found / 'search' / 'changelist.json'}"
    for command in (
        ["discover", "--text=text", within],
        ["check", f"--changelist={found / 'discover'}"],
    ):
        assert run([*command, *data, "--quiet"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "none of the 2,246 examples is in one of its 1 findings" in line
    assert not (tmp_path / "out" / "changelist.json").exists()


def test_a_document_without_findings(frame, tmp_path, capsys):
    """Outside steps, where such a step is skipped, it is an error."""
    perfect = frame.assign(prediction=frame["label"])
    perfect.to_parquet(tmp_path / "perfect.parquet")
    data = [f"--data={tmp_path}/perfect.parquet", *OUTCOME, "--quiet"]
    assert run(["search", *data, "--features=shop", f"--output={tmp_path / 'search'}"]) == 0
    capsys.readouterr()
    within = f"--within-findings={tmp_path / 'search' / 'changelist.json'}"
    discover = ["discover", *data, "--text=text", within, f"--output={tmp_path / 'out'}"]
    assert run(discover) == 2
    assert "has no findings, so there is nothing to examine" in capsys.readouterr().err
