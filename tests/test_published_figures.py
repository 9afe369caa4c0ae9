"""Where a published figure misses its bar, the page says so in red."""

import re
from pathlib import Path

import pytest

from benchmarks import whole_runs

ROOT = Path(__file__).parents[1]
PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
NUMBER = re.compile(r"[\d,]+(\.\d+)?")


def wrong_figures(text):
    """Return the figures before a column "bar" that miss it unmarked, or are marked and meet it."""
    wrong, bars = [], []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        if "bar" in cells:
            bars = [at for at, name in enumerate(cells) if name == "bar"]
        bars = bars if cells else []
        for at in bars:
            figure = cells[at - 1].removeprefix(whole_runs.MISSED).removesuffix("</span>")
            if NUMBER.fullmatch(figure) and NUMBER.fullmatch(cells[at]):
                is_missed = float(figure.replace(",", "")) > float(cells[at].replace(",", ""))
                if is_missed != (whole_runs.MISSED in cells[at - 1]):
                    wrong.append(line)
    return wrong


def test_no_page_has_a_missed_bar_that_is_not_red():
    wrong = {str(page): wrong_figures(page.read_text("utf-8")) for page in PAGES}
    assert {page: figures for page, figures in wrong.items() if figures} == {}


@pytest.mark.parametrize(("wall", "is_red"), [(0.29, False), (0.31, True)])
def test_a_table_marks_what_misses_its_bar(wall, is_red):
    table = whole_runs.table([], wall)
    assert (whole_runs.MISSED in table) == is_red
    assert wrong_figures(table) == []
    unmarked = table.replace(whole_runs.MISSED, "").replace("</span>", "")
    assert bool(wrong_figures(unmarked)) == is_red


@pytest.mark.slow
def test_the_small_table_of_the_paper_comes_out_again(tmp_path, monkeypatch):
    """Candidates and significant slices of Electricity, by ten seeds."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import paper_tables as paper

    page = (ROOT / "docs" / "explanation" / "benchmarks.md").read_text("utf-8")
    lines = page.partition("### electricity")[2].partition("\n\n| ")[2].partition("\n\n")[0]
    rows = {cells[1]: cells[2:5] for cells in map(_cells, lines.splitlines()[2:])}
    most = [int(shown[0].replace(",", "")) for shown in rows.values() if shown[0]]
    seeds = range(paper.SEEDS)
    found = [paper.counts(paper.batch("electricity", tmp_path, one), most) for one in seeds]
    for run, (_, candidates, significant) in rows.items():
        numbers = zip(*(one[run] for one in found), strict=True)
        assert [candidates, significant] == [paper.spread(some) for some in numbers], run


@pytest.mark.slow
def test_the_rows_of_a_prediction_api_come_out_again(monkeypatch):
    """Errors and calls of the digits, the smallest pool."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import shift_paper as paper

    name = "digits, IBM"
    found = paper.errors(name, paper.RUNS)
    calls = {name: paper.calls_to_target(name, paper.RUNS)}
    page = (ROOT / "docs" / "explanation" / "benchmarks.md").read_text("utf-8")
    published = [_cells(line)[1:-1] for line in page.splitlines() if line.startswith(f"| {name} ")]
    assert published == [*paper.error_rows(name, found), *paper.calls_rows(calls)]
    saved = [int(cells[-3].rstrip("%")) for cells in published_calls(page)]
    assert f"give {min(saved)}% (" in page
    assert f"to {max(saved)}% (" in page


def published_calls(page):
    rows = page.partition("| labels alone |")[2].partition("\n\n")[0].splitlines()[2:]
    return [_cells(row)[1:-1] for row in rows]


def _cells(line):
    return [cell.strip() for cell in line.split("|")]
