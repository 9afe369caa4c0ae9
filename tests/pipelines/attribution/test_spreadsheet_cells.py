"""Nothing that a stranger wrote is run by the spreadsheet of who opens a sheet."""

import csv
import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slicebeam.metrics.attribution.estimates import YES
from slicebeam.pipelines.attribution.sheets import read_sheet
from slicebeam.pipelines.attribution.spreadsheet_cells import quoted, unquoted
from tests.attribute_runs import InMemory, fill, opened

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
