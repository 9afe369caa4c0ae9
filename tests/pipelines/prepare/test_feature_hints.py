"""Features that look like a model's output, the label or an id are noted, and can be left out."""

import json
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.api import search
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.prepare.feature_hints import looks_like_output

ROWS = 2000
OPTIONS = {"label": "label", "prediction": "prediction", "max_cross_size": 1}
FLAGS = ["--label=label", "--prediction=prediction", "--max-cross-size=1"]


def examples():
    draw = np.random.default_rng(5)
    label = (draw.random(ROWS) < 0.3).astype(int)
    return pa.table(
        {
            "label": label,
            "prediction": np.where(draw.random(ROWS) < 0.2, 1 - label, label),
            "group": draw.choice(list("pqrs"), ROWS),
            # The best honest feature: it leaves one in four of the errors.
            "strong": np.where(draw.random(ROWS) < 0.08, 1 - label, label),
            "amount": draw.normal(0, 1, ROWS),
            "problem": draw.choice(list("xy"), ROWS),
            "scoreOld, raw": draw.random(ROWS),
            "outcome": np.where(draw.random(ROWS) < 0.02, "new", np.where(label, "sold", "kept")),
            "margin": label + draw.normal(0, 0.05, ROWS),
            "account": np.append(np.arange(ROWS - 10), np.arange(10)),
            "user_id": draw.integers(0, ROWS, ROWS) + draw.permutation(ROWS),
        }
    )


NOTED = {"scoreOld, raw": "output", "outcome": "label", "margin": "label"}
NOTED |= {"account": "id", "user_id": "id"}
LOOK_LIKE_OUTPUTS = """
    score SCORE_OLD model-score baselineScore2 modelscore y_pred prob P(PROBA) class_probability
    predictions predicted_class scores pred_1 y_hat logits
"""
LOOK_OTHERWISE = """
    problem probation predecessor predator scotland improbable predicate spread hat capital.gain
"""


@pytest.mark.parametrize(
    ("name", "looks"),
    [(name, True) for name in LOOK_LIKE_OUTPUTS.split()]
    + [(name, False) for name in LOOK_OTHERWISE.split()],
)
def test_names_of_outputs(name, looks):
    assert looks_like_output(name) is looks


def test_columns_of_each_kind_are_noted_and_stay_features():
    dataset = search(examples(), **OPTIONS).changelist.dataset
    assert {hint.name: hint.looks_like for hint in dataset.hints} == NOTED
    assert set(NOTED) < {domain.name for domain in dataset.domains}
    table = examples().to_pandas()
    reasons = {hint.name: hint.reason for hint in dataset.hints}
    distinct = table["account"].nunique()
    assert reasons["account"] == f"{distinct:,} distinct values in {ROWS:,}"
    # Each value of the outcome predicts its own most frequent class.
    most = table.groupby("outcome")["label"].agg(lambda own: own.value_counts().max()).sum()
    constant = table["label"].value_counts(normalize=True).max()
    assert reasons["outcome"] == (
        f"predicts {most / ROWS:.1%} of the labels; {constant:.1%} are the most frequent one"
    )


def test_the_flag_of_the_line_leaves_them_out(tmp_path, capsys):
    pq.write_table(examples(), tmp_path / "data.parquet")
    command = ["search", f"--data={tmp_path}/data.parquet", f"--output={tmp_path}/out", *FLAGS]
    assert run(command) == 0
    text = " ".join(capsys.readouterr().out.split())
    (line,) = [f"--exclude-features={rest}" for rest in text.split("--exclude-features=")[1:]]
    assert "a model's output (scoreOld, raw); the label (outcome: predicts" in line
    flag = shlex.split(line[: line.index(" leaves out")])
    assert run([*command, *flag]) == 0
    assert "--exclude-features" not in capsys.readouterr().out
    document = json.loads((tmp_path / "out" / "changelist.json").read_text())
    assert document["dataset"]["hints"] == []
    domains = {one["name"] for one in document["dataset"]["domains"]}
    assert domains == {*examples().column_names} - {*NOTED, "label", "prediction"}


def test_json_and_the_log_have_them(tmp_path, capsys):
    pq.write_table(examples(), tmp_path / "data.parquet")
    command = ["search", f"--data={tmp_path}/data.parquet", f"--output={tmp_path}/out", *FLAGS]
    assert run([*command, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["hints"]) == set(NOTED)
    assert run([*command, "--log-format=json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (line,) = [one["text"] for one in events if one["event"] == "warning"]
    assert line.startswith("--exclude-features=")


@pytest.mark.slow
def test_order_and_chunks_of_the_examples_do_not_matter(tmp_path):
    sections = []
    for order in (np.arange(ROWS), np.lexsort([examples()["label"].to_numpy()])):
        pq.write_table(examples().take(order), tmp_path / "data.parquet", row_group_size=150)
        for chunk_rows in (150, 10_000):
            report = search(tmp_path / "data.parquet", chunk_rows=chunk_rows, **OPTIONS)
            sections.append(report.changelist.dataset.model_copy(update={"uri": (), "name": ""}))
    assert all(one == sections[0] for one in sections)


def test_nothing_is_said_of_columns_that_the_user_named():
    found = search(examples(), features=["group", "outcome", "user_id"], **OPTIONS)
    assert found.changelist.dataset.hints == ()


def test_where_nothing_would_be_left_no_flag_is_given(capsys):
    table = examples().select(["label", "prediction", "scoreOld, raw"])
    search(table, **OPTIONS).show()
    printed = " ".join(capsys.readouterr().out.split())
    assert "All features look like a model's output (scoreOld, raw)." in printed
    assert "--exclude-features" not in printed
