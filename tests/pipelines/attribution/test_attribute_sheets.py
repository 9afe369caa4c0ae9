"""Sheets come back of spreadsheets as they like to write them, and what is wrong is told."""

import csv
import io
import json

import pytest

from slicebeam.metrics.attribution.estimates import NO, UNSURE, YES
from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.attribution.labels import NAME, label_of
from slicebeam.pipelines.attribution.session import LabelPaths, Plan, estimate, session
from slicebeam.pipelines.attribution.sheets import read_sheet
from tests.attribute_runs import TEXT, asked_in, document, fill, opened, population, truthful
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
