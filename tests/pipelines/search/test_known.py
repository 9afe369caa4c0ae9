"""``--known``: slices that are known to be worse fail no gate, and are listed."""

import json
from datetime import date

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.changelist.known import known_in_run, read_known, write_known
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.changelist.testing import KnownSlice
from slicebeam.pipelines.commands.api import search as search_from_python
from slicebeam.pipelines.commands.cli import run
from tests.refusals import refuses
from tests.trust_frames import only_recall_is_worse

FLAGS = ("--label=y", "--prediction=p", "--metric=accuracy", "--fail-on=worse")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two groups are right half of the time, all others nine times of ten."""
    rng = np.random.default_rng(3)
    columns = {name: rng.choice(list("abcde"), 8000) for name in ("f", "k")}
    is_bad = (columns["f"] == "a") | ((columns["f"] != "a") & (columns["k"] == "b"))
    right = rng.random(8000) < np.where(is_bad, 0.5, 0.9)
    label = rng.integers(0, 2, 8000)
    path = tmp_path_factory.mktemp("known") / "data.parquet"
    frame = pd.DataFrame({**columns, "y": label, "p": np.where(right, label, 1 - label)})
    frame.to_parquet(path)
    return str(path)


@pytest.fixture
def judged(data, tmp_path, capsys):
    """Runs a command with a file of known slices; returns exit code, document and what was printed."""

    def judge(command, text, *more):
        (tmp_path / "known.yaml").write_text(text)
        arguments = [command, f"--data={data}", f"--output={tmp_path / 'out'}", *FLAGS, *more]
        code = run([*arguments, f"--known={tmp_path / 'known.yaml'}"])
        document = json.loads((tmp_path / "out" / "changelist.json").read_text())
        return code, document, " ".join("".join(capsys.readouterr()).split())

    return judge


BOTH = "- f = a\n- {slice: k = b, note: ticket 41, until: 2999-12-31}\n"


def test_a_search_whose_findings_are_all_known_passes(judged):
    code, document, printed = judged("search", BOTH)
    assert {finding["slice_id"] for finding in document["findings"]} <= {
        slice_id for entry in document["known"] for slice_id in entry["slices"]
    }
    assert code == 0
    first, second = document["known"]
    assert (first["state"], second["state"], second["note"]) == ("worse", "worse", "ticket 41")
    # Those within a known slice are known, those beside it are not.
    names = {each["slice_id"]: each["name"] for each in document["slices"]}
    assert all("f = a" in names[slice_id] for slice_id in first["slices"])
    count = len({slice_id for entry in document["known"] for slice_id in entry["slices"]})
    assert document["gate"]["known"] == count
    assert f"PASS: nothing is significantly worse, besides {count} known slices." in printed
    assert "Known: k = b: significantly worse on " in printed
    assert "; ticket 41" in printed


def test_one_finding_that_is_not_known_fails(judged):
    code, document, printed = judged("search", "- f = a\n")
    assert code == 1
    assert document["gate"]["reasons"] == [
        "accuracy is significantly worse on 1 slice not known"
    ], document["findings"]
    assert "FAIL: accuracy is significantly worse on 1 slice not known" in printed


@pytest.mark.parametrize(
    ("entries", "state", "said"),
    [
        ("- {slice: k = b, until: 2001-01-31}", "expired", "expired after 2001-01-31"),
        ("- {slice: k = b, metric: recall}", "absent", "k = b (recall): matches no slice"),
        ("- k = nowhere", "absent", "Known: k = nowhere: matches no slice of this result"),
    ],
)
def test_an_entry_that_covers_nothing_is_said(judged, entries, state, said):
    code, document, printed = judged("search", f"- f = a\n{entries}\n")
    assert code == 1
    assert document["known"][1]["state"] == state
    assert not document["known"][1].get("slices")
    assert said in printed


def test_a_check_counts_each_slice(judged, tmp_path):
    (tmp_path / "slices.yaml").write_text(
        "- f = a\n- k = b\n- f = c\n- k = b & f = d\n- k = b & f not in {a}\n"
    )
    more = f"--slices={tmp_path / 'slices.yaml'}"
    code, document, _ = judged("check", "- f = a\n", more)
    degraded = document["testing"]["degraded"]
    assert degraded == 4
    assert code == 1
    assert document["gate"]["reasons"] == ["accuracy is significantly worse on 3 slices not known"]
    code, document, printed = judged("check", BOTH + "- f = c\n- {slice: f = d & k = b}\n", more)
    assert code == 0
    assert document["gate"]["known"] == 4
    assert "Known: f = c: not significantly worse; remove it from the file" in printed
    # The order of conditions says nothing.
    assert document["known"][3]["state"] == "worse", (document["known"], document["slices"][3])


@pytest.mark.parametrize(
    ("metric", "code", "state"), [("recall", 0, "worse"), ("accuracy", 1, "not worse")]
)
def test_an_entry_of_a_metric_counts_for_that_alone(tmp_path, metric, code, state):
    only_recall_is_worse().to_parquet(tmp_path / "data.parquet")
    (tmp_path / "known.yaml").write_text(f"- {{slice: f = a, metric: {metric}}}\n")
    arguments = ["search", f"--data={tmp_path / 'data.parquet'}", f"--output={tmp_path / 'out'}"]
    arguments += [*FLAGS, "--metric=recall", f"--known={tmp_path / 'known.yaml'}"]
    assert run(arguments) == code
    document = read_search(str(tmp_path / "out" / "changelist.json"), "test")
    assert document.known[0].state == state


def test_an_overall_fall_still_fails(data, tmp_path, capsys):
    frame = pd.read_parquet(data).assign(old=lambda rows: rows["y"])
    frame.to_parquet(tmp_path / "two.parquet")
    (tmp_path / "slices.yaml").write_text("- f = a\n- k = b\n")
    (tmp_path / "known.yaml").write_text(BOTH)
    arguments = ["check", f"--data={tmp_path / 'two.parquet'}", f"--output={tmp_path / 'out'}"]
    arguments += [*FLAGS, "--baseline-prediction=old", f"--slices={tmp_path / 'slices.yaml'}"]
    assert run([*arguments, f"--known={tmp_path / 'known.yaml'}"]) == 1
    (reason,) = read_search(str(tmp_path / "out" / "changelist.json"), "test").gate.reasons
    assert reason.startswith("Accuracy over all examples 100.0% → ")


def test_a_published_result_is_judged_by_the_file_of_this_command(judged, data, tmp_path):
    assert judged("search", "- f = a\n")[0] == 1
    assert judged("search", BOTH, "--resume")[0] == 0
    arguments = ["search", f"--data={data}", f"--output={tmp_path / 'out'}", *FLAGS]
    assert run([*arguments, "--resume"]) == 1
    assert not read_search(str(tmp_path / "out" / "changelist.json"), "test").known


def test_python_lists_known_slices(data, tmp_path):
    (tmp_path / "known.yaml").write_text(BOTH)
    known = str(tmp_path / "known.yaml")
    report = search_from_python(data, label="y", prediction="p", metric="accuracy", known=known)
    assert [entry.state for entry in report.changelist.known] == ["worse", "worse"]
    assert report.changelist.gate is None


def test_a_run_file_names_it(data, tmp_path):
    (tmp_path / "known.yaml").write_text(BOTH)
    text = f"command: search\ndata: {data}\nlabel: y\nprediction: p\nmetric: accuracy\n"
    text += f"output: {tmp_path / 'out'}\nfail_on: worse\n"
    (tmp_path / "run.yaml").write_text(text)
    assert run(["run", str(tmp_path / "run.yaml")]) == 1
    (tmp_path / "run.yaml").write_text(f"{text}known: {tmp_path / 'known.yaml'}\n")
    assert run(["run", str(tmp_path / "run.yaml")]) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slice: f = a", "is not a list of slices"),
        ("- 7", "entry 1: 7 is not an entry"),
        ("- {slice: f = a, untill: 2026-01-01}", "entry 1: 'untill' is not a valid key"),
        ("- f = b\n- {note: x}", "entry 2: the key 'slice' is missing"),
        ("- {slice: f = a, until: tomorrow}", "'tomorrow' is not a valid until"),
        ("- {slice: f = a, slice: f = b}", "not readable as YAML or JSON"),
    ],
)
def test_wrong_files(tmp_path, text, said):
    (tmp_path / "known.yaml").write_text(text)
    refuses(OptionError, said, read_known, str(tmp_path / "known.yaml"))


@pytest.mark.parametrize("name", ["known.yaml", "known.json"])
def test_what_is_written_is_read(tmp_path, name):
    path = str(tmp_path / name)
    entries = (
        KnownSlice(slice='f = "ä,b"', note="two\nlines: #1", until=date(2030, 2, 1)),
        KnownSlice(slice="k = b", metric="recall"),
    )
    write_known(path, entries)
    assert read_known(path) == entries


def test_the_last_day_counts(judged, tmp_path):
    judged("search", BOTH)
    document = read_search(str(tmp_path / "out" / "changelist.json"), "test")
    entry = KnownSlice(slice="f = a", until=date(2026, 5, 31))
    (last,) = known_in_run(document, [entry], date(2026, 5, 31))
    (later,) = known_in_run(document, [entry], date(2026, 6, 1))
    assert (last.state, later.state) == ("worse", "expired")
