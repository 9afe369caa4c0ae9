"""The commands as a user gives them, from the items to the revision."""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from types import ModuleType, SimpleNamespace

import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.attribution.asking import TerminalLabeler
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.commands import attribute as module
from slicebeam.pipelines.commands.flags import program
from slicebeam.pipelines.commands.launch import Invocation
from tests import attribute_runs as runs
from tests.attribute_runs import SLICE, TEXT
from tests.refusals import refuses

POPULATION = "slicebeam.pipelines.define.document_data"


class Commands:
    def __init__(self, folder, people):
        self.people, self.document = people, runs.published(folder, people)
        self.folder, self.data = folder, []

    def open_population(self, uri, name, *, data, confirmed):
        self.data.append(data)
        document = read_search(uri, "--changelist")
        [one] = [each for each in document.slices if each.slice_id.startswith(name)]
        return self.people, document, one

    def __call__(self, command, *more, of=None):
        which = ("--changelist", of or str(self.folder), "--slice", SLICE[:3], "--text", TEXT)
        stdout, stderr = io.StringIO(), io.StringIO()
        with redirect_stdout(stdout), redirect_stderr(stderr):
            words = ["attribute", command, *which, *more]
            code = program().main(words, standalone_mode=False, obj=Invocation())
        out, err = stdout.getvalue(), stderr.getvalue()
        return SimpleNamespace(stdout=out, stderr=err, output=out + err, exit_code=code or 0)


@pytest.fixture
def commands(tmp_path, monkeypatch):
    found = Commands(tmp_path, runs.population(precision=0.85, recall=0.8))
    module = ModuleType(POPULATION)
    module.open_population = found.open_population
    monkeypatch.setitem(sys.modules, POPULATION, module)
    return found


def test_items_labels_and_a_revision(commands):
    said = commands("sample", "--budget", "100", "--query", "a film", "--looks", "2").output
    sheet = runs.labels_folder(commands.folder) / "round-001.csv"
    assert str(sheet) in said.splitlines()[2]
    assert "items to label" in said
    assert f"slicebeam attribute estimate --changelist {commands.folder} --slice 3f2" in said
    assert "still to label" in commands("sample", "--budget", "100").output
    runs.fill(sheet, runs.truthful(commands.people))
    result = commands("estimate")
    lines = [line.strip() for line in result.output.splitlines()]
    # The intervals come first; recall's estimate, which is too high, in brackets.
    begins = ("precision", "recall")
    precision, recall = (next(line for line in lines if line.startswith(one)) for one in begins)
    told = runs.attribution_in(commands.folder / "changelist.r1.json")
    assert f"{told['precision']['lo']:.4f} … {told['precision']['hi']:.4f}" in precision
    assert f"({told['recall']['value']:.4f})" in recall
    assert "97.5% interval" in result.output
    assert (told["queries"], told["looks"]) == (["a film"], 2)
    assert lines[-1] == str(commands.folder / "changelist.r1.json")
    assert "Label more: it is not yet known" in result.output
    assert "slicebeam attribute sample" in result.output
    # The folder now stands for that revision, which says it all.
    assert "changelist.r2.json" not in commands("estimate").output
    assert not (commands.folder / "changelist.r2.json").exists()
    assert json.loads(commands("estimate", "--json").stdout) == told


def test_a_run_with_recorded_labels(commands):
    options = ("--budget", "400", "--rounds", "2", "--labels", "truth", "--data", "a.parquet")
    assert commands("run", *options).exit_code == 0
    told = runs.attribution_in(commands.folder / "changelist.r1.json")
    assert (told["state"], told["looks"]) == ("estimated", 2)
    assert commands.data == [("a.parquet",)]
    assert "column truth" in json.dumps(told)
    assert commands("run", *options, "--quiet").output == ""


def test_a_run_that_proposes_another_slice(commands):
    commands.people = runs.population(precision=0.5, recall=0.5)
    options = ("--budget", "150", "--labels", "truth", "--positive", "true", "--train", "80")
    said = commands("run", *options).output
    assert "Update the slice or its words: precision is at most 0." in said
    assert "Proposed: slice c1a55 of" in said
    r1 = commands.folder / "changelist.r1.json"
    assert f"slicebeam attribute sample --changelist {r1} --slice c1a55 --text '{TEXT}'" in said


def test_a_sample_to_train_by(commands):
    told = json.loads(commands("sample", "--budget", "30", "--train", "--json").stdout)
    assert (told["round"], told["new"], told["items"], told["left"]) == (1, True, 30, 30)


def test_another_folder_of_labels(commands, tmp_path):
    other = tmp_path / "my labels"
    said = commands("sample", "--budget", "20", "--labels-dir", str(other)).output
    [folder], [words] = other.glob(f"{SLICE}-*"), other.glob("words-*")
    assert f"--labels-dir '{other}'" in said
    runs.fill(folder / "round-001.csv", runs.truthful(commands.people))
    commands("estimate", "--labels-dir", str(other))
    told = runs.attribution_in(commands.folder / "changelist.r1.json")
    # Never the path of a machine.
    assert told["labels_uri"] == f"my labels/{words.name}/labels.jsonl"


@pytest.mark.parametrize(("options", "words"), [
    (("--labels", "truth", "--llm", "x.yaml"), "both give labels; choose one"),
    (("--positive", "1"), "--positive '1' names a value of a column that means yes"),
    (("--ledger", "x", "--labels", "truth"), "--ledger x stores the answers of a language model"),
    ((), "standard input is not a terminal"),
    (("--labels", "truth", "--looks", "0"), "--looks 0"),
])  # fmt: skip
def test_options_that_contradict(options, words, commands):
    refuses(InputError, words, commands, "run", "--budget", "20", *options)


def test_what_is_asked_of_a_person_goes_to_stderr(commands, monkeypatch):
    keys = iter("y" * 100)
    labeler = TerminalLabeler(lambda _: next(keys), lambda _: None)
    monkeypatch.setattr(module, "_labeler", lambda *_, **__: labeler)
    least = ("--least-precision", "0.95", "--least-recall", "0.01")
    result = commands("run", "--budget", "20", *least, "--json")
    assert {one["labeler"] for one in json.loads(result.stdout)["rounds"]} == {"terminal"}
    keys = iter("yq")
    result = commands("run", "--budget", "60")
    assert result.stdout == ""
    assert "items have no label yet; run the same command to continue" in result.stderr
