"""Data sets and documents of strangers: none of their signs steers a terminal, no name is a path."""

import io
import json
import re
import shutil

import pandas as pd
import pytest
from rich.console import Console
from rich.table import Table

from slicebeam.pipelines.attribution.asking import _shown as shown_item
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.show.terminal_text import guarded, harmless, json_line

# A title of the window, colours, a C1 control, a change of direction, a line that is none.
ESCAPES = "\x1b]0;owned\x07\x1b[31m\x9b31m\u202e\r\u2028"
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
ROWS = 600
ABOVE = "../../../above"


def assert_harmless(found):
    for text in (found.out, found.err):
        steering = STEERING.search(text)
        assert steering is None, repr(text[max(0, steering.start() - 80) :][:160])


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture
def data(tmp_path):
    label = f"y{ESCAPES}"
    columns = {
        f"c{ESCAPES}": [f"v{n % 5}{ESCAPES}" for n in range(ROWS)],
        ABOVE: [f"/above/{n % 3}" for n in range(ROWS)],
        "=cmd|' /C calc'!A0": ["=1+1" if n % 2 else "@x" for n in range(ROWS)],
        "[bold]m[/]": ["[link=http://there]x[/link]" if n % 2 else "[/]" for n in range(ROWS)],
        "big": [2**62 + 10**18 * (n % 3) for n in range(ROWS)],
        label: [f"l{n % 2}{ESCAPES}" for n in range(ROWS)],
        "p": [f"l{(n + (n % 5 == 1 or n % 7 == 2)) % 2}{ESCAPES}" for n in range(ROWS)],
    }
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / f"d{ESCAPES}.parquet"
    pd.DataFrame(columns).to_parquet(path)
    return path


@pytest.fixture
def found(data, tmp_path, capfd):
    assert run([*search(data), "--output", str(tmp_path / "out")]) == 0
    assert_harmless(capfd.readouterr())
    return tmp_path / "out" / "changelist.json"


def search(data):
    return ["search", "--data", str(data), "--label", f"y{ESCAPES}", "--prediction", "p"]


def test_names_and_values_of_a_data_set(found, data, tmp_path, capfd):
    slice_id = json.loads(found.read_text())["slices"][0]["slice_id"]
    output = ["--output", str(tmp_path / "next")]
    for more, code in (
        (["--json"], 0),
        (["--log-format", "json"], 0),
        (["--dry-run"], 0),
        (["--since", str(found), "--explain", slice_id, "--fail-on", "worse"], 1),
        (["--features", f"nope{ESCAPES}"], 2),
    ):
        assert run([*search(data), *output, *more]) == code
        assert_harmless(capfd.readouterr())
    # Nothing is written but where the user said.
    told = [json.loads((tmp_path / one / "changelist.json").read_text()) for one in ("out", "next")]
    names = [one["files"]["slices"]["name"] for one in told]
    assert all(re.fullmatch(r"slices\.[0-9a-f]{12}\.parquet", name) for name in names)
    assert files_in(tmp_path) == {
        "in",
        f"in/{data.name}",
        *(name for one in ("out", "next") for name in (one, f"{one}/changelist.json")),
        *(f"{one}/slices.parquet" for one in ("out", "next")),
        *map("/".join, zip(("out", "next"), names, strict=True)),
    }
    assert not (tmp_path.parent.parent / "above").exists()


@pytest.mark.slow
def test_words_of_a_document(found, data, tmp_path, capfd):
    content = json.loads(found.read_text())
    for number, one in enumerate(content["slices"]):
        one["name"] = f"{number}{ESCAPES}"
    content["summary"] += ESCAPES
    content["dataset"]["name"] = ESCAPES
    content["testing"]["warnings"] = [ESCAPES]
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    shutil.copy(found.parent / "slices.parquet", theirs)
    document = theirs / "changelist.json"
    document.write_text(json.dumps(content))
    slice_id, output = content["slices"][0]["slice_id"], ["--output", str(tmp_path / "next")]
    for command in (
        ["check", "--data", str(data), "--changelist", str(document), *output],
        [*search(data), "--since", str(document), *output],
        ["edit", "annotate", "--changelist", str(document), "--slice", slice_id, "--note", "n"],
        ["edit", "log", "--changelist", str(theirs)],
        ["edit", "log", "--changelist", str(theirs), "--json"],
        ["edit", "remove", "--changelist", str(document), "--slice", slice_id],
        ["edit", "merge", "--changelist", str(document), "--slice", "nobody", "--name", "m"],
        ["run", str(document), *output],
    ):
        assert run(command) in (0, 2), capfd.readouterr().err
        assert_harmless(capfd.readouterr())


@pytest.mark.slow
def test_an_id_is_no_path(found, tmp_path, capfd, data):
    content = json.loads(found.read_text())
    content["slices"][0]["slice_id"] = ABOVE
    content["changelist_id"] = ABOVE
    theirs = tmp_path / "a" / "b" / "c" / "theirs"
    theirs.mkdir(parents=True)
    document = theirs / "changelist.json"
    document.write_text(json.dumps(content))
    before, words = files_in(tmp_path), ["--text", "words", "--budget", "3"]
    output = ["--output", str(theirs / "next")]
    for command in (
        ["edit", "annotate", "--changelist", str(document), "--slice", ABOVE, "--note", "n"],
        ["attribute", "sample", "--changelist", str(document), "--slice", ABOVE, *words],
        ["check", "--data", str(data), "--changelist", str(document), *output],
    ):
        run(command)
    new = files_in(tmp_path) - before
    assert all(name.startswith("a/b/c/theirs/") for name in new), new


def test_a_document_and_its_table_may_be_links(found, data, tmp_path, capfd):
    """What is published replaces a link, and never what it points to."""
    treasure = tmp_path / "treasure"
    treasure.write_text("gold")
    output = tmp_path / "linked"
    output.mkdir()
    for name in ("changelist.json", "slices.parquet"):
        (output / name).symlink_to(treasure)
    assert run([*search(data), "--quiet", "--output", str(output)]) == 0
    assert treasure.read_text() == "gold"
    assert not (output / "changelist.json").is_symlink()


@pytest.mark.slow
def test_names_of_a_paths_folder_are_not_expanded_into_options(tmp_path, capfd):
    """A file named like a flag is data, since paths are values of flags."""
    folder = tmp_path / "in"
    folder.mkdir()
    frame = pd.DataFrame({"x": [n % 5 for n in range(200)], "y": [0, 1] * 100})
    frame["p"] = frame.y
    frame.to_parquet(folder / "--resume=x.parquet")
    command = ["search", "--data", f"{folder}/*.parquet", "--label", "y", "--prediction", "p"]
    assert run([*command, "--quiet", "--output", str(tmp_path / "out")]) == 0


def test_an_item_that_is_labelled():
    assert STEERING.search(shown_item({f"name{ESCAPES}": f"text{ESCAPES}"})) is None


def test_a_console_keeps_its_own_colours():
    stream = io.StringIO()
    how = {"force_terminal": True, "color_system": "standard", "highlight": False}
    console, table = guarded(Console(file=stream, **how)), Table("name")
    table.add_row(f"a{ESCAPES}b")
    console.print(table)
    console.print(f"[{ESCAPES}", markup=False, style="red")
    said = stream.getvalue()
    assert "\x1b[31m[" in said
    own = re.sub(r"\x1b\[[0-9;]*m", "", said)
    assert STEERING.search(own) is None
    assert "a\ufffd" in own


def test_harmless_texts():
    assert harmless("a\nb é") == "a\nb é"
    assert harmless(f"a{ESCAPES}") == ("a\\x1b]0;owned\\x07\\x1b[31m\\x9b31m\\u202e\\r\\u2028")
    line = json_line({ESCAPES: [ESCAPES, "é"]})
    assert STEERING.search(line) is None
    assert json.loads(line) == {ESCAPES: [ESCAPES, "é"]}
    assert "é" in line
