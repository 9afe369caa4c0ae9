"""One table of wrong options: what each command says of them, before anything is published."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.end_to_end import test_losses, test_search_adult, test_silent_input
from tests.end_to_end.test_wrong_input import examples
from tests.pipelines.discovery.test_discover_wrong_input import LOSSES, TABLE
from tests.running import refused
from tests.shift_runs import made

OLD = '{"old": "document"}'
# What each part of the table is about: a command, its data, and the options that it has by default.
SUBJECTS = {
    "search": ("search", examples, {"label": "label", "prediction": "pred"}),
    "statistics": ("search", test_search_adult.examples, {"label": "label", "prediction": "pred"}),
    "losses": ("search", test_losses.examples, {"features": "sex"}),
    "two models": ("search", test_silent_input.examples, {}),
    "check": ("check", examples, {"label": "label", "prediction": "pred"}),
    "discover": ("discover", lambda: TABLE, {"embedding": "z", "components": 3, **LOSSES}),
    "shift": ("shift", lambda: made(120), {"label": "label", "old_prediction": "old", "replay_prediction": "new", "budget": 60}),
}  # fmt: skip
# Name of a wrong use: its options, and how what the command says of them begins.
TABLE_OF = yaml.safe_load(Path(__file__).with_name("wrong_options.yaml").read_text("utf-8"))
# Beside the data, for a check.
FILES = {"s.yaml": "- age < 25\n", "empty.json": "{}", "like.json": '{"schema_version": "1.0"}'}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    found = {}
    for subject, (_, data, _) in SUBJECTS.items():
        found[subject] = tmp_path_factory.mktemp(subject.replace(" ", "-"))
        made_of = data()
        table = made_of if isinstance(made_of, pa.Table) else pa.Table.from_pandas(made_of)
        pq.write_table(table, found[subject] / "eval.parquet")
        for name, text in FILES.items():
            (found[subject] / name).write_text(text)
    return found


@pytest.mark.parametrize(
    ("subject", "name"), [(subject, name) for subject in TABLE_OF for name in TABLE_OF[subject]]
)
def test_wrong_options(subject, name, folders, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(folders[subject])
    options, message = TABLE_OF[subject][name]
    assert refuse(subject, options, folders[subject], tmp_path, capsys).startswith(message)


def refuse(subject, options, folder, output, capsys):
    command, _, defaults = SUBJECTS[subject]
    (output / "changelist.json").write_text(OLD)
    arguments = [command]
    named = {"data": str(folder / "eval.parquet"), "output": str(output), **defaults, **options}
    for option, value in named.items():
        if value is not None:
            flag = "--" + option.replace("_", "-")
            arguments.append(flag if value is True else f"{flag}={value}")
    said = refused(arguments, capsys, folder=folder)
    assert (output / "changelist.json").read_text() == OLD
    # Not even a ledger of paid answers is begun.
    assert {path.name for path in output.iterdir()} <= {"changelist.json", "_work"}
    return said
