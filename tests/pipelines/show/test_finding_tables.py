"""What a reader sees of findings: a line each, whatever the width of the terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slicebeam.pipelines.cli import run
from tests.running import read

ADULT = ("--label=income", "--prediction=prediction", "--max-cross-size=2")
FEATURES = "--features=age,education,marital-status,occupation,relationship,capital-gain"


def lines_of(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if re.match(r"^ *[0-9]+ +[0-9,]+ ", line)]


@pytest.mark.parametrize("width", [80, 100, 120, None])
def test_a_line_each(
    width: int | None,
    adult_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    command = ["search", f"--data={adult_path}", f"--output={tmp_path / 'out'}", *ADULT, FEATURES]
    assert run(command) == 0
    printed = capsys.readouterr().out
    document = read(tmp_path / "out").document
    findings = document["findings"]
    names = {one["slice_id"]: one["name"] for one in document["slices"]}
    lines = lines_of(printed)
    assert len(lines) == len(findings) > 5
    for line, one in zip(lines, findings, strict=True):
        assert len(line) <= (width or 10_000)
        rank, n, value, expected, *rest = line.split()
        assert (int(rank), int(n.replace(",", ""))) == (one["rank"], one["n"])
        assert (value, expected) == (f"{one['value']:.3f}", f"{one['expected']:.3f}")
        has_interval = width is None or width >= 100
        assert (rest[1] == "…") == has_interval
        if has_interval:
            low, high = one["interval"]
            assert (rest[0], rest[2]) == (f"{low:+.3f}", f"{high:+.3f}")
        assert rest[3 if has_interval else 0] == f"{one['held_share']:.0%}"
        text = " ".join(rest[4 if has_interval else 1 :])
        name = names[one["slice_id"]]
        if width is None:
            assert text == name
        else:
            assert name.startswith(text.removesuffix("…"))
    assert "Where Accuracy is worse than the lines above let one expect:" in printed
    last = printed.splitlines()[-2:]
    assert last == [str(tmp_path / "out" / name) for name in ("changelist.json", "slices.parquet")]
    said = " ".join(printed.split())
    significant = document["testing"]["significant"]
    assert f"All {significant:,} significant slices are in slices.parquet" in said
    assert "Benjamini-Hochberg" in said


def test_the_table_of_all(
    adult_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["search", f"--data={adult_path}", f"--output={tmp_path / 'out'}", *ADULT, FEATURES]
    assert run([*command, "--report=all"]) == 0
    printed = capsys.readouterr().out
    assert "let one expect" not in printed
    assert re.search(r"^ *n +accuracy +delta +95% interval +q +slice", printed, re.MULTILINE)
    assert run([*command, "--report=some"]) == 2
    assert "findings" in capsys.readouterr().err


def test_more_findings_than_lines(
    adult_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slicebeam.pipelines.show.slice_tables.MOST_LINES", 6)
    command = ["search", f"--data={adult_path}", f"--output={tmp_path / 'out'}", *ADULT, FEATURES]
    assert run(command) == 0
    printed = capsys.readouterr().out
    findings = read(tmp_path / "out").document["findings"]
    assert len(lines_of(printed)) == 6
    assert f"and {len(findings) - 6} more findings" in printed


def test_metrics_without_findings_say_why(
    adult_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["search", f"--data={adult_path}", f"--output={tmp_path / 'out'}", *ADULT, FEATURES]
    command += ["--score=score", "--metric=auc,precision", "--max-cross-size=1"]
    old = ["--baseline-prediction=prediction_old", "--baseline-score=score_old"]
    assert run(command) == 0
    printed = capsys.readouterr().out
    assert "auc has no findings: its examples have no share of their own in it." in printed
    # Its table is shown in any case.
    assert re.search(r"^ *n +auc +delta", printed, re.MULTILINE)
    assert "precision has no findings" not in printed
    assert run([*command, *old]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "precision has no findings: the difference of two ratios" in printed
    models = {one["metric"]: one for one in read(tmp_path / "out").document["finding_models"]}
    assert {name: one["stop"] for name, one in models.items()} == {
        "auc": "not possible",
        "precision": "not possible",
    }
