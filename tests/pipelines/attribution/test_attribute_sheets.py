"""Sheets, the commands that write and read them, and that no spreadsheet runs what strangers wrote."""

import csv
import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from types import ModuleType, SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slicebeam.metrics.attribution.estimates import NO, UNSURE, YES
from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.attribution.asking import TerminalLabeler
from slicebeam.pipelines.attribution.labels import NAME, label_of
from slicebeam.pipelines.attribution.session import LabelPaths, estimate, session
from slicebeam.pipelines.attribution.sheets import read_sheet
from slicebeam.pipelines.attribution.spreadsheet_cells import quoted, unquoted
from slicebeam.pipelines.attribution.state import Plan
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.commands import attribute as module
from slicebeam.pipelines.commands.command import Invocation
from slicebeam.pipelines.commands.flags import program
from tests import attribute_runs as runs
from tests.attribute_runs import (
    TEXT,
    InMemory,
    asked_in,
    document,
    fill,
    opened,
    population,
    truthful,
)
from tests.conftest import google_first
from tests.refusals import refuses


def drawn_in(folder, people, budget=40):
    with opened(folder, people) as session:
        return session.sample(budget), session.folder


def the_truth(people, drawn):
    return {item: YES if people.truth_of(item) else NO for item in drawn.asked}


@pytest.mark.parametrize(("written", "label"), [
    *((word, YES) for word in ("yes", "YES ", "y", "true", "TRUE", "1", "1.0", "case", True, 1)),
    *((word, NO) for word in ("no", "N", "false", "0", False, 0, 0.0)),
    *((word, UNSURE) for word in ("unsure", "u", "?")),
    *((word, None) for word in ("", "2", "perhaps not", "ja", None)),
])  # fmt: skip
def test_words_for_labels(written, label):
    assert label_of(written) == label


def test_what_is_written(tmp_path):
    sampled, _ = drawn_in(tmp_path, population())
    content = sampled.sheet.read_bytes()
    # Excel reads UTF-8 only where it is told so.
    assert content.startswith(b"\xef\xbb\xbf" + b'"item","label","text","data.label"\r\n')
    rows = list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    assert [row["item"] for row in rows] == [str(item) for item in sampled.drawn.asked]
    assert len(rows) == len(set(sampled.drawn.asked)) <= 40
    assert {row["label"] for row in rows} == {""}
    # No spreadsheet takes it for a formula.
    assert all(row["text"].startswith('\'=said, "quoted" of ') for row in rows)


def _turned(rows):
    """Columns in another order, a column more, and rows sorted."""
    rows = [rows[0], *sorted(rows[1:], key=lambda row: row[2])]
    return [[*(row[at] for at in (3, 1, 0, 2)), "my note"] for row in rows]


@pytest.mark.parametrize(("change", "how"), [
    (list, {"lineterminator": "\n"}),
    (list, {"lineterminator": "\r\n", "quoting": csv.QUOTE_ALL}),
    (list, {"lineterminator": "\r"}),
    (list, {"encoding": "utf-8"}),
    (list, {"delimiter": "\t", "encoding": "utf-16"}),
    (list, {"delimiter": ";"}),
    (list, {"delimiter": ";", "lineterminator": "\r"}),
    # Trailing columns are dropped, and blank rows added.
    (lambda rows: [row[:3] for row in rows] + [["", "", ""], []], {}),
    (_turned, {}),
])  # fmt: skip
@pytest.mark.parametrize("textual", [False, True])
def test_a_spreadsheet_writes_as_it_likes(change, how, textual, tmp_path):
    people = population(textual=textual)
    sampled, folder = drawn_in(tmp_path, people)
    fill(sampled.sheet, truthful(people, ("FALSE", "TRUE")), change, **how)
    assert read_sheet(folder, sampled.drawn) == the_truth(people, sampled.drawn)


def test_a_line_that_names_the_delimiter_and_floats_for_ids(tmp_path):
    people = population()
    sampled, folder = drawn_in(tmp_path, people)

    def floats(rows):
        return [rows[0], *([f"{row[0]}.0", *row[1:]] for row in rows[1:])]

    fill(sampled.sheet, truthful(people), floats, delimiter=";")
    sampled.sheet.write_text("sep=;\n" + sampled.sheet.read_text("utf-8-sig"), "utf-8")
    assert read_sheet(folder, sampled.drawn) == the_truth(people, sampled.drawn)


def change_row(at, **cells):
    def change(rows):
        for name, value in cells.items():
            rows[at][rows[0].index(name)] = value
        return rows

    return change


@pytest.mark.parametrize(("change", "words"), [
    (change_row(2, label="perhaps"), "line 5: label 'perhaps' of item .*; write yes, no"),
    (change_row(2, item="1,23E+17"), "line 5: item '1,23E\\+17' does not belong to this round; keep"),
    (lambda rows: rows[:-1], "item .* is missing; restore the row"),
    (lambda rows: rows[:-3], "item .* is missing, and 2 more; restore"),
    (lambda rows: [*rows, rows[3]], "item .* is already in line 7; keep one"),
    (lambda rows: [row[1:] for row in rows], "line 1: column 'item' is missing in the header"),
    (lambda rows: [[*row, row[1]] for row in rows], "column 'label' occurs twice"),
    (lambda rows: [], "is empty; restore it"),
])  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(change, words, tmp_path):
    people = population()
    sampled, folder = drawn_in(tmp_path, people)
    fill(sampled.sheet, truthful(people), change)
    refuses(InputError, rf"^round-001\.csv.*{words}", read_sheet, folder, sampled.drawn)


@pytest.mark.parametrize(("content", "words"), [
    (b'item,label\n\xff\xfe"', "line 2 is not UTF-8 text; save it as CSV UTF-8"),
    (b"item,label\r\n1\x00,yes", "item '1\\\\x00' does not belong|line 2"),
])  # fmt: skip
def test_files_that_are_no_labels(content, words, tmp_path):
    sampled, folder = drawn_in(tmp_path, population())
    sampled.sheet.write_bytes(content)
    refuses(InputError, words, read_sheet, folder, sampled.drawn)


def test_labels_add_up_over_rounds_and_corrections_are_said(tmp_path):
    people = population()
    with opened(tmp_path, people, looks=3) as session:
        first = session.sample(40)
        fill(first.sheet, truthful(people))
        one, second = estimate(session).assessed, session.sample(40)
        # A sheet that is not yet labelled is not drawn again.
        assert session.sample(40).drawn == second.drawn
        assert not set(asked_in(first.sheet)) & set(asked_in(second.sheet))
        fill(second.sheet, truthful(people))
        two = estimate(session).assessed
        counted = [sum(x.labelled for x in y.attribution.rounds) for y in (one, two)]
        assert counted == [len(asked_in(first.sheet)), counted[0] + len(asked_in(second.sheet))]
        assert not session.notes
        item, told = asked_in(first.sheet)[0], truthful(people)
        fill(first.sheet, lambda one: "unsure" if one == item else told(one))
        estimate(session)
        assert session.notes == ["1 labels have changed since they were last read."]
        assert len(session.state.looked) == 3


@google_first
def test_labels_in_object_storage(bucket, tmp_path):
    people = population()
    told = document(people)
    bucket.write("run/changelist.json", told.to_json().encode())
    place = LabelPaths.of(f"{bucket.uri}/run/changelist.json", None)

    def opened_there():
        return session(people, told, told.slices[0], Plan(TEXT), place, begins=True)

    with opened_there() as one:
        sampled = one.sample(40)
    key = str(sampled.sheet).removeprefix(f"{bucket.uri}/")
    local = tmp_path / "sheet.csv"
    local.write_bytes(bucket.read(key))
    fill(local, truthful(people))
    bucket.write(key, local.read_bytes())
    with opened_there() as one:
        finished = estimate(one)
    assert str(finished.document) == f"{bucket.uri}/run/changelist.r1.json"
    attribution = json.loads(bucket.read("run/changelist.r1.json"))["slices"][0]["attribution"]
    assert attribution["labels_uri"].endswith(f"/{NAME}")
    assert f"run/{attribution['labels_uri']}" in bucket.keys("run/")


SIGNS = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\u2212")
SEPARATORS = (",", ";", "\t", "|", "\n", "\r", '"')


def cells(text, delimiter):
    """Return the cells that a program finds that splits at a delimiter and skips leading blanks."""
    lines = text.replace("\r", "\n").split("\n")
    found = [cell for line in lines for cell in line.split(delimiter)]
    return [cell.strip(' "') for cell in found]


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("before", ["", " ", "\u00a0", "a;", "a, ", "a|", "a\n", "a\r\n", '"'])
def test_no_cell_begins_with_a_sign(sign, before):
    text = f"{before}{sign}HYPERLINK(1)"
    assert quoted(text) != text
    assert unquoted(quoted(text)) == text
    for delimiter in SEPARATORS:
        assert not any(cell.startswith(SIGNS) for cell in cells(quoted(text), delimiter) if cell)


@given(st.text(alphabet="'=+-@ \t\r\n,;|\"ab\uff1d"))
@example("''=1")
@example("'=1;'")
def test_unquoting_gives_the_original(text):
    assert unquoted(quoted(text)) == text


@given(st.text())
def test_ordinary_text_stays_as_it_is(text):
    harmless = "".join(one for one in text if one not in {*SIGNS, *SEPARATORS})
    assert quoted(harmless) == harmless


def test_ids_headers_and_texts_of_strangers(tmp_path):
    n = 60
    truth = np.arange(n) % 3 == 0
    columns = {
        "=cmd|' /C calc'!A0": pa.array([f"x;=HYPERLINK({one})" for one in range(n)]),
        "text": pa.array([f"\uff1dSUM({one})" for one in range(n)]),
    }
    people = InMemory(truth, np.arange(n) < 30, columns=columns)
    heads = ("=", "+", "-", "@", "'=", "a;=", "\uff1d")
    people.ids = pa.array([f"{heads[one % len(heads)]}{one}" for one in range(n)])
    with opened(tmp_path, people) as session:
        sampled = session.sample(20)
        content = sampled.sheet.read_bytes().decode("utf-8-sig")
        for row in csv.reader(io.StringIO(content, newline="")):
            for cell in row:
                for delimiter in SEPARATORS:
                    assert not any(one.startswith(SIGNS) for one in cells(cell, delimiter) if one)
        fill(sampled.sheet, lambda row: "yes")
        labels = read_sheet(session.folder, sampled.drawn)
    assert labels == dict.fromkeys(sampled.drawn.asked, YES)


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
        which = ("--changelist", of or str(self.folder), "--slice", runs.SLICE[:3], "--text", TEXT)
        stdout, stderr = io.StringIO(), io.StringIO()
        with redirect_stdout(stdout), redirect_stderr(stderr):
            words = ["attribute", command, *which, *more]
            code = program().main(words, standalone_mode=False, obj=Invocation())
        out, err = stdout.getvalue(), stderr.getvalue()
        return SimpleNamespace(stdout=out, stderr=err, output=out + err, exit_code=code or 0)


@pytest.fixture
def commands(tmp_path, monkeypatch):
    found = Commands(tmp_path, population(precision=0.85, recall=0.8))
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
    fill(sheet, truthful(commands.people))
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
    commands.people = population(precision=0.5, recall=0.5)
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
    [folder], [words] = other.glob(f"{runs.SLICE}-*"), other.glob("words-*")
    assert f"--labels-dir '{other}'" in said
    fill(folder / "round-001.csv", truthful(commands.people))
    commands("estimate", "--labels-dir", str(other))
    told = runs.attribution_in(commands.folder / "changelist.r1.json")
    # Never the path of a machine.
    assert told["labels_uri"] == f"my labels/{words.name}/labels.jsonl"


@pytest.mark.parametrize(("options", "words"), [
    (("--labels", "truth", "--llm", "x.yaml"), "both give labels; choose one"),
    (("--positive", "1"), "--positive needs --labels: it names values of that column"),
    (("--ledger", "x", "--labels", "truth"), "--ledger needs --llm: it stores the answers of a language model"),
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
