"""Command lines: flags in odd combinations with odd values, on data that is as it should be."""

import random
from functools import cache

import pyarrow as pa
from hypothesis import strategies as st

from slicebeam.pipelines.commands.table import COMMANDS
from tests.fuzzing import parquet_cases
from tests.fuzzing.case import Case
from tests.fuzzing.strategies import chance, pick, words

NUMBERS = (
    *words("0 1 2 3 5 10 -1 007 1.0 1e3 0x1 ٣ 1_0 x nan inf -inf 0.5 1e-300 1e308 -0 +1 True"),
    *(" 1", "", "9" * 30, str(2**63), str(2**63 - 1)),
)
TEXTS = (*words('x - -- é \udcff a,b " "a %s {0} \x1b[2J'), "", " ", "\n", "a" * 5000)
COLUMNS = words("age hours job night day tags label pred agee Age score old")
PATHS = (
    *words(". .. ~nobody-of-that-name/x ~ {folder}/data.parquet {folder}/data.parquet/x - \udcff"),
    *words("{folder}/missing/x {folder}/é {folder}/[ {folder}/* {folder}/** {folder}/{date} {folder}"),
    *words("/dev/null /dev/null/x /proc/x file://{folder}/out ftp://host/x s3:// gs:// s3:///x"),
    *("http://x/y.csv", "file://", "{folder}/a\nb", "", " ", "{folder}/" + "x" * 300),
)  # fmt: skip
_METRICS = (
    "precision recall f1 fpr fnr specificity balanced_accuracy mcc auc log_loss brier mse mae"
)
CHOICES = {
    "--metric": (
        *words(f"accuracy error_rate {_METRICS} bias prediction_rate label_rate"),
        *words("mean:hours mean: ,"),
        *words("fbeta:2 fbeta:0 fbeta:-1 fbeta:x fbeta:1e400 mean:job mean:agee f1_macro"),
        *words("recall_micro acuracy accuracy,f1"),
    ),
    "--positive-class": (*words("yes no 1 0 true TRUE 1.0 x é"), ""),
    "--format": (*words("parquet csv jsonl tfrecord Parquet"), ""),
    "--compare": (*words("overall baseline Overall"), ""),
    "--alternative": words("worse better both two"),
    "--test": (*words("auto bootstrap-rows paper t"), ""),
    "--correction": words("fdr-level fwer-level bh by none holm"),
    "--strategy": words("batch iterative priority prio"),
    "--save-slices": words("tested significant all"),
    "--fail-on": ("worse", "better", ""),
    "--runner-config": (*words("direct direct drect {folder}/data.parquet {folder} \udcff"), ""),
    "--runner-option": (*words("workers=1 workers=0 workers =1 workers= wokers=1 workers=x"), ""),
    "--memory-budget": (*words("512MB 16MB 15MB 1GB 1e9 0 -1MB"), "9" * 400 + "GB", "", "1 XB"),
    "--explain": (*words("age deadbeefdeadbeef é \udcff"), "", "job = nurse", "age < 30 & job = x"),
}
DATES = (*words("2024-02-29 2023-02-29 today 9999-12-31 0001-01-01 20240101 2024-W01-1"), "")
SLICES = b"- age < 40\n- job = nurse\n- hours is missing\n- tags contains red\n"
RUN = b"""command: search
data: '{here}/data.parquet'
label: label
prediction: pred
output: 'out/{date-1:%Y/%m}'
max_cross_size: 1
"""
PATH_FLAGS = words(
    "--slices --changelist --since-if-exists --data --output --work-dir --domains --model"
    " --baseline-model --since"
)
COLUMN_FLAGS = words(
    "--label --prediction --score --baseline-prediction --baseline-score --features"
    " --exclude-features --example-id --weight --group --column-names"
)


@cache
def flags(command):
    fields = [one for one in COMMANDS[command].fields() if not one.option.is_argument]
    return {max(field.flags, key=len): field.kind is not bool for field in fields}


@st.composite
def _data(draw):
    table = draw(parquet_cases.tables(least=100))
    rows, rng = table.num_rows, random.Random(1)
    old = table["pred"].take(pa.array([rng.randrange(rows) for _ in range(rows)]))
    table = table.append_column("score", pa.array([rng.random() for _ in range(rows)]))
    return draw(parquet_cases.written(table.append_column("old", old)))


def _value(name):
    odd = st.one_of(*(pick(*values) for values in (NUMBERS, TEXTS, COLUMNS, PATHS)))
    usual = pick(*CHOICES.get(name, PATHS if name in PATH_FLAGS else NUMBERS))
    if name in COLUMN_FLAGS:
        usual = st.lists(pick(*COLUMNS), min_size=1, max_size=3, unique=True).map(",".join)
    return chance(8).flatmap(lambda is_odd: odd if is_odd else usual)


@st.composite
def cases(draw):
    command = draw(pick(*("search",) * 8, "check", "check", "run"))
    given = {"--data": "{folder}/data.parquet", "--label": "label", "--prediction": "pred"}
    if command == "search":
        given["--max-cross-size"] = draw(pick("1", "1", "1", "2"))
    elif command == "check":
        given["--slices"] = "{folder}/slices.yaml"
    else:
        given = {"--date": draw(pick(*DATES))}
    others, times = sorted({*flags(command)} - {"--help"}), draw(pick(0, 1, 1, 2, 2, 3, 4, 6))
    chosen = st.lists(pick(*others), min_size=min(times, len(others)), max_size=times, unique=True)
    for name in draw(chosen):
        given[name] = draw(_value(name))
    if draw(chance(10)):
        del given[draw(st.sampled_from(sorted(given)))]
    arguments = [command]
    if command == "run":
        arguments.append(draw(pick(*PATHS)) if draw(chance(20)) else "{folder}/run.yaml")
    for name, value in given.items():
        spelled = name
        if draw(chance(1)):
            spelled = draw(pick(name[:-1], name.upper(), name.replace("-", "_"), name[1:]))
        if not flags(command).get(name, True):
            arguments.append(spelled)
        else:
            arguments += [f"{spelled}={value}"] if draw(chance(20)) else [spelled, value]
    if draw(chance(3)):
        at = draw(st.integers(0, len(arguments)))
        arguments.insert(at, draw(pick(*TEXTS, "--quiet", "schema", "-h")))

    def reading(folder):
        return parquet_cases.read(folder / "data.parquet")

    files = {"data.parquet": draw(_data()), "slices.yaml": SLICES, "run.yaml": RUN}
    return Case(arguments, files, reading, storage_may_fail=True)
