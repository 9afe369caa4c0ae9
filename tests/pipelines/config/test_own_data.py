"""Own data in one line: the argument, the output and the columns that no option names."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import ColumnError, InputError
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.config.own_data import NAMES, check_columns, with_guesses
from slicebeam.pipelines.config.search import SearchConfig
from slicebeam.pipelines.prepare.features import is_named_output
from tests.refusals import refuses
from tests.running import refused

DRAW = np.random.default_rng(3)
CLASSES = DRAW.integers(0, 2, 300)
WORDS = DRAW.choice(["a", "b"], 300)
PROBABILITIES = DRAW.random(300)
PAIR = "guessed by the names of columns: --label Y, --prediction y_pred"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def table(*names, file="own.parquet"):
    of = {name: PROBABILITIES if "score" in name else CLASSES for name in names}
    pq.write_table(pa.table({"kind": WORDS, **of}), file)
    return file


def searched(capsys, *words, output="slicebeam-out/own"):
    assert run(["search", *words, "--max-cross-size=1"]) == 0
    printed = capsys.readouterr()
    assert f"{output}/changelist.json" in printed.out.splitlines()[-1]
    return read_search(f"{output}/changelist.json", "test"), printed.err.splitlines()[0]


@pytest.mark.parametrize(("names", "options", "line"), [
    ("Y y_pred", {}, PAIR),
    ("Y y_pred score", {}, PAIR),
    ("Y y_pred y_pred_old", {}, f"{PAIR}, --baseline-prediction y_pred_old"),
    ("Y y_pred y_pred_old old_pred", {}, PAIR),
    ("Y y_pred y_pred_old", {"compare": "overall"}, PAIR),
    ("Y y_pred target", {"weight": "target"}, PAIR),
    ("Y y_pred target", {"label": "target"}, PAIR.replace("--label Y, ", "")),
    ("Y y_pred y_pred_old", {"prediction": "y_pred"}, PAIR.partition(",")[0]),
    ("Y score score_old", {}, PAIR.replace("--prediction y_pred", "--score score, --baseline-score score_old")),
    ("Y y_pred score", {"metric": ("auc",)}, PAIR.replace("y_pred", "y_pred, --score score")),
    ("Y y_pred", {"loss": "a"}, None),
    ("Y y_pred", {"changelist": "a"}, None),
    ("Y y_pred", {"eval_config": "a"}, None),
    ("Y y_pred y_pred_old", {"label": "Y", "prediction": "y_pred"}, None),
])  # fmt: skip
def test_columns_are_guessed_by_their_names(names, options, line):
    given = {"output": "out", "data": (table(*names.split()),), **options}
    found, first = with_guesses(SearchConfig, given)
    pairs = [pair.split() for pair in (line or ": ").partition(": ")[2].split(", ") if pair]
    assert first == line
    assert found == given | {flag[2:].replace("-", "_"): name for flag, name in pairs}


@pytest.mark.parametrize(("names", "options", "message"), [
    ("a b", {}, "--label and --prediction (or --score, or --model) are missing; columns: kind, a, b"),
    ("Y a", {}, "--prediction (or --score, or --model) is missing; columns: kind, Y, a"),
    ("y target pred", {}, "--label is missing; each of y, target could be the label; columns: kind, y,"),
    ("y pred yhat score", {}, "is missing; each of pred, yhat could be the prediction; columns: "),
    ("y pred", {"metric": ("auc",)}, "--score is missing; columns: kind, y, pred"),
    ("y pred", {"data": ("other.parquet",)}, "--data other.parquet: no such file"),
])  # fmt: skip
def test_what_is_missing_is_said_at_once(names, options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        with_guesses(SearchConfig, {"output": "out", "data": (table(*names.split()),), **options})


@pytest.mark.parametrize(("flag", "message"), [
    ("--label=Y", "--label: unknown column 'Y'; did you mean 'y'? columns: "),
    ("--metric=loss", "--metric loss needs --loss"),
])  # fmt: skip
def test_what_is_wrong_is_said_beside_guesses(flag, message, capsys, tmp_path):
    assert message in refused(["search", table("y", "pred"), flag], capsys, folder=tmp_path)


def test_files_are_joined_with_those_of_the_flag(capsys):
    data = [table("y", "pred", file=f"part-{at}.parquet") for at in range(3)]
    # As a shell expands `--data part-*.parquet`.
    document, first = searched(capsys, "--data", *data, output="slicebeam-out/part-0")
    assert first.endswith("] guessed by the names of columns: --label y, --prediction pred")
    assert (document.dataset.n, len(document.provenance.config["data"])) == (900, 3)


@pytest.mark.parametrize(("file", "text"), [
    ("own.csv", "kind;y;pred\na;1;1\n"),
    ("own.jsonl", '{"kind": "a", "y": 1, "pred": 1}\n'),
])  # fmt: skip
def test_columns_of_text_files_are_guessed(file, text):
    Path(file).write_text(text)
    found, _ = with_guesses(SearchConfig, {"output": "out", "data": (file,), "delimiter": ";"})
    assert (found["label"], found["prediction"]) == ("y", "pred")


def test_columns_are_looked_for_where_all_of_them_are_known():
    Path("own.jsonl").write_text('{"x": 1}\n')
    files = tuple(table("y", file=f"{at}.parquet") for at in range(11))
    for data in (("own.jsonl",), files):
        check_columns(SearchConfig, {"data": data, "label": "late"})
    few = {"data": files[:10], "label": "late"}
    refuses(
        ColumnError, "--label: unknown column 'late'; columns", check_columns, SearchConfig, few
    )


def test_columns_named_like_outputs_are_left_out(capsys):
    data = table("y", "pred", "score_old", "credit_score", "prediction_2")
    flags = ["--label=y", "--prediction=pred"]
    document, _ = searched(capsys, data, *flags)
    left_out = {one.name: one.reason for one in document.dataset.left_out}
    reason = "named like a model's output; --keep-outputs makes features of such"
    assert left_out == {"score_old": reason, "prediction_2": reason}
    assert {one.name for one in document.dataset.domains} == {"kind", "credit_score"}
    for more in ("--keep-outputs", "--features=kind,score_old,credit_score,prediction_2"):
        document, _ = searched(capsys, data, *flags, more)
        assert {one.name for one in document.dataset.domains} > {"score_old", "prediction_2"}
    data = table("returned", "pred", "score_return", "y_pred_v1", "score_other")
    document, _ = searched(capsys, data, "--label=returned", "--prediction=pred")
    assert {one.name for one in document.dataset.left_out} == {"score_return", "y_pred_v1"}


def test_names_are_documented_and_outputs():
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "data.md").read_text("utf-8")
    words = set(re.findall(r"`([a-z_]+)`", page.partition("## Columns that no option names")[2]))
    for role, names in NAMES.items():
        assert role.startswith("baseline") or set(names) <= words, role
        assert role == "label" or all(map(is_named_output, names)), role
