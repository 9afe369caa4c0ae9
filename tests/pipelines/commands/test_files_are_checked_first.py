"""What is wrong with a file that an option names is said before any job reads the data."""

import pytest

from slicebeam.pipelines.cli import run
from slicebeam.pipelines.run.engine import Engine
from tests.discover_runs import examples

MODELS = ["--label=label", "--prediction=new"]
COMMANDS = {
    "search": ["search", *MODELS, "--features=source"],
    "check": ["check", *MODELS],
    "discover": ["discover", *MODELS, "--baseline-prediction=old", "--text=source", "--example-id=id"],
    "shift": ["shift", "--label=label", "--budget=10"],
}  # fmt: skip
OLD, REPLAY = "--old-prediction=old", "--replay-prediction=new"
WRONG = "url: [not, an, api]\n"
CASES = {
    "--phrases, an API": ("discover", ["--phrases=DIR/wrong.yaml"]),
    "--phrases, no prompt": ("discover", ["--phrases=DIR/no_prompt.yaml"]),
    "--phrases, a list": ("discover", ["--phrases=DIR/empty.txt"]),
    "--phrases": ("discover", ["--phrases=DIR/none.yaml"]),
    "--domains": ("search", ["--domains=DIR/wrong.json"]),
    "--domains, none": ("search", ["--domains=DIR/none.json"]),
    "--since": ("search", ["--since=DIR/wrong.json"]),
    "--eval-config": ("search", ["--eval-config=DIR/wrong.json"]),
    "--slices": ("check", ["--slices=DIR/wrong.yaml"]),
    "--changelist": ("check", ["--changelist=DIR/wrong.json"]),
    "check --since": ("check", ["--slices=DIR/slices.yaml", "--since=DIR/wrong.json"]),
    "--api": ("shift", ["--api=DIR/wrong.yaml", OLD]),
    "--old-matrix": ("shift", ["--old-matrix=DIR/wrong.json", REPLAY]),
    "shift --changelist": ("shift", ["--changelist=DIR/wrong.json", OLD, REPLAY]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrong")
    examples(1, n=60).drop_columns(["z"]).to_pandas().to_csv(folder / "data.csv", index=False)
    (folder / "wrong.yaml").write_text(WRONG)
    (folder / "wrong.json").write_text('{"no": "document"}')
    (folder / "empty.txt").write_text("\n")
    (folder / "slices.yaml").write_text("- source = web\n")
    (folder / "no_prompt.yaml").write_text(
        "url: https://api.example.com\njson: {text: '{text}'}\nanswer: label\n"
    )
    return folder


@pytest.mark.parametrize("case", CASES)
def test_it_is_said_before_any_job(case, folder, tmp_path, monkeypatch, capsys):
    def refuse(*_, **told):
        pytest.fail("a job ran")

    monkeypatch.setattr(Engine, "run", refuse)
    command, flags = CASES[case]
    flags = [one.replace("DIR", str(folder)) for one in flags]
    data = [f"--data={folder}/data.csv", f"--output={tmp_path}/out"]
    assert run([*COMMANDS[command], *data, *flags]) == 2
    said = capsys.readouterr().err
    assert next(one for one in reversed(flags) if str(folder) in one).partition("=")[2] in said
    assert not (tmp_path / "out").exists()
