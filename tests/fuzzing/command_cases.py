"""Command lines: flags in odd combinations with odd values, on data that is as it should be."""

from __future__ import annotations

import random
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from slicebeam.pipelines.commands.table import COMMANDS
from tests.fuzzing import parquet_cases
from tests.fuzzing.case import Case, Reading

if TYPE_CHECKING:
    from pathlib import Path

NUMBERS = (
    *(
        "0",
        "1",
        "2",
        "3",
        "5",
        "10",
        "-1",
        "007",
        "1.0",
        "1e3",
        "0x1",
        "٣",
        "1_0",
        " 1",
        "",
        "x",
        "nan",
    ),
    *(
        "inf",
        "-inf",
        "0.5",
        "1e-300",
        "1e308",
        "9" * 30,
        str(2**63),
        str(2**63 - 1),
        "-0",
        "+1",
        "True",
    ),
)
TEXTS = (
    "",
    " ",
    "x",
    "-",
    "--",
    "é",
    "\udcff",
    "a,b",
    '"',
    '"a',
    "a" * 5000,
    "\n",
    "\x1b[2J",
    "%s",
    "{0}",
)
COLUMNS = (
    "age",
    "hours",
    "job",
    "night",
    "day",
    "tags",
    "label",
    "pred",
    "agee",
    "Age",
    "score",
    "old",
)
PATHS = (
    *(
        "",
        " ",
        ".",
        "..",
        "~nobody-of-that-name/x",
        "~",
        "{folder}/data.parquet",
        "{folder}/data.parquet/x",
    ),
    *(
        "{folder}/missing/x",
        "{folder}/é",
        "{folder}/" + "x" * 300,
        "{folder}/[",
        "{folder}/*",
        "{folder}/**",
    ),
    *(
        "{folder}/{date}",
        "/dev/null",
        "/dev/null/x",
        "/proc/x",
        "file://{folder}/out",
        "ftp://host/x",
    ),
    *(
        "s3://",
        "gs://",
        "s3:///x",
        "http://x/y.csv",
        "file://",
        "{folder}/a\nb",
        "-",
        "\udcff",
        "{folder}",
    ),
)
CHOICES = {
    "--metric": (
        *("accuracy", "error_rate", "precision", "recall", "f1", "fbeta:2", "fbeta:0", "fbeta:-1"),
        *("fbeta:x", "fbeta:1e400", "fpr", "fnr", "specificity", "balanced_accuracy", "mcc", "auc"),
        *("log_loss", "brier", "mse", "mae", "bias", "prediction_rate", "label_rate", "mean:hours"),
        *(
            "mean:",
            "mean:job",
            "mean:agee",
            "f1_macro",
            "recall_micro",
            "acuracy",
            "accuracy,f1",
            ",",
        ),
    ),
    "--positive-class": ("yes", "no", "1", "0", "true", "TRUE", "1.0", "x", "", "é"),
    "--format": ("parquet", "csv", "jsonl", "tfrecord", "Parquet", ""),
    "--compare": ("overall", "baseline", "Overall", ""),
    "--alternative": ("worse", "better", "both", "two"),
    "--test": (
        *(
            "auto",
            "bootstrap-rows",
            "bootstrap-cells",
            "permutation",
            "paper",
            "paper-cells",
            "t",
            "",
        ),
    ),
    "--correction": ("fdr-level", "fwer-level", "fwer-tarone", "bh", "by", "none", "holm"),
    "--strategy": ("batch", "iterative", "priority", "prio"),
    "--save-slices": ("tested", "significant", "all"),
    "--fail-on": ("worse", "better", ""),
    "--runner-config": (
        "direct",
        "direct",
        "drect",
        "",
        "{folder}/data.parquet",
        "{folder}",
        "\udcff",
    ),
    "--runner-option": (
        "workers=1",
        "workers=0",
        "workers",
        "=1",
        "workers=",
        "wokers=1",
        "",
        "workers=x",
    ),
    "--memory-budget": (
        "512MB",
        "16MB",
        "15MB",
        "1GB",
        "9" * 400 + "GB",
        "1e9",
        "0",
        "",
        "-1MB",
        "1 XB",
    ),
    "--explain": (
        "age",
        "job = nurse",
        "deadbeefdeadbeef",
        "",
        "é",
        "age < 30 & job = x",
        "\udcff",
    ),
}
DATES = (
    "2024-02-29",
    "2023-02-29",
    "today",
    "",
    "9999-12-31",
    "0001-01-01",
    "20240101",
    "2024-W01-1",
)
SLICES = b"- age < 40\n- job = nurse\n- hours is missing\n- tags contains red\n"
RUN = b"""command: search
data: '{here}/data.parquet'
label: label
prediction: pred
output: 'out/{date-1:%Y/%m}'
max_cross_size: 1
"""
PATH_FLAGS = (
    "--slices",
    "--changelist",
    "--since-if-exists",
    "--data",
    "--output",
    "--work-dir",
    "--domains",
    "--model",
    "--baseline-model",
    "--since",
)
COLUMN_FLAGS = (
    *(
        "--label",
        "--prediction",
        "--score",
        "--baseline-prediction",
        "--baseline-score",
        "--features",
    ),
    *("--exclude-features", "--example-id", "--weight", "--group", "--column-names"),
)


@cache
def flags(command: str) -> dict[str, bool]:
    """Return the flags of a command and whether each takes a value."""
    return {
        max(field.flags, key=len): field.kind is not bool
        for field in COMMANDS[command].fields()
        if not field.option.is_argument
    }


@cache
def _data(number: int) -> tuple[bytes, pa.Table]:
    rng = random.Random(f"command/{number}")
    table = parquet_cases.table(rng)
    while table.num_rows < 100:
        table = parquet_cases.table(rng)
    rows = table.num_rows
    scores = pa.array([rng.random() for _ in range(rows)])
    table = table.append_column("score", scores).append_column(
        "old", table["pred"].take(pa.array([rng.randrange(rows) for _ in range(rows)]))
    )
    return parquet_cases.written(rng, table, checksums=False), table


def _value(rng: random.Random, name: str) -> str:
    if rng.random() < 0.06:
        return rng.choice(rng.choice((NUMBERS, TEXTS, COLUMNS, PATHS)))
    if name in CHOICES:
        return rng.choice(CHOICES[name])
    if name in PATH_FLAGS:
        return rng.choice(PATHS)
    if name in COLUMN_FLAGS:
        chosen = rng.sample(COLUMNS, rng.choice((1, 1, 1, 2, 3)))
        return ",".join(chosen) if rng.random() < 0.9 else rng.choice(TEXTS)
    return rng.choice(NUMBERS)


def make(rng: random.Random) -> Case:
    """Return a case: a command whose line has some more flags, and some fewer."""
    content, _ = _data(rng.randrange(4))
    command = rng.choice(("search",) * 8 + ("check", "check", "run"))
    given = {"--data": "{folder}/data.parquet", "--label": "label", "--prediction": "pred"}
    if command == "search":
        given["--max-cross-size"] = rng.choice(("1", "1", "1", "2"))
    elif command == "check":
        given["--slices"] = "{folder}/slices.yaml"
    else:
        given = {"--date": rng.choice(DATES)}
    others = [name for name in flags(command) if name != "--help"]
    chosen = rng.sample(others, min(len(others), rng.choice((0, 1, 1, 2, 2, 3, 4, 6))))
    for name in chosen:
        given[name] = _value(rng, name)
    if rng.random() < 0.1:
        given.pop(rng.choice(list(given)))
    arguments = [command]
    if command == "run":
        arguments.append("{folder}/run.yaml" if rng.random() < 0.8 else rng.choice(PATHS))
    mutations = [command]
    for name, value in given.items():
        spelled = name
        if rng.random() < 0.01:
            spelled = rng.choice((name[:-1], name.upper(), name.replace("-", "_"), name[1:]))
        if not flags(command).get(name, True):
            arguments.append(spelled)
        elif rng.random() < 0.2:
            arguments.append(f"{spelled}={value}")
        else:
            arguments += [spelled, value]
        if name in chosen:
            mutations.append(f"{name} {value}"[:80])
    if rng.random() < 0.03:
        arguments.insert(
            rng.randrange(len(arguments) + 1), rng.choice((*TEXTS, "--quiet", "schema", "-h"))
        )

    def reading(folder: Path) -> Reading:
        return parquet_cases.read(folder / "data.parquet")

    return Case(
        arguments,
        {"data.parquet": content, "slices.yaml": SLICES, "run.yaml": RUN},
        "",
        mutations,
        reading,
        storage_may_fail=True,
    )
