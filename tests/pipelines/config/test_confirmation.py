"""A ChangeList of a stranger runs no code, starts no program and sends nothing anywhere."""

import json
import pickle
import shutil

import pandas as pd
import pytest
from sklearn.tree import DecisionTreeClassifier

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.commands.run_file import read_run
from slicebeam.pipelines.config.check import check_config
from slicebeam.pipelines.config.confirmation import refuse_unconfirmed
from tests.discovered import COLUMNS, discovery, planted_file
from tests.python_models import Trap
from tests.refusals import refuses
from tests.running import importable


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    frame = pd.DataFrame({"x": [one % 7 for one in range(400)], "y": [0, 1] * 200})
    frame["p"] = frame.y.where(frame.x != 3, 1 - frame.y)
    path = tmp_path_factory.mktemp("data") / "data.parquet"
    frame.to_parquet(path)
    return str(path)


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("made")
    options = ["--data", data, "--label", "y", "--prediction", "p", "--quiet"]
    assert run(["search", *options, "--output", str(output)]) == 0
    return output


@pytest.fixture
def document(made, tmp_path):
    shutil.copytree(made, tmp_path / "out")
    return tmp_path / "out" / "changelist.json"


def forged(document, *without, **config):
    content = json.loads(document.read_text())
    kept = {k: v for k, v in content["provenance"]["config"].items() if k not in without}
    content["provenance"]["config"] = kept | config
    path = document.parent / "forged.json"
    path.write_text(json.dumps(content))
    return str(path)


@pytest.fixture
def trap(tmp_path):
    """A model that is one no more than a picture is, and what it leaves behind when it is loaded."""
    mark, model = tmp_path / "code-ran", tmp_path / "model.pkl"
    model.write_bytes(pickle.dumps(Trap(mark)))
    return model, mark


def test_a_check_loads_no_model_that_only_the_document_names(document, data, trap, capfd):
    model, mark = trap
    for option in ("model", "baseline_model"):
        without = ["prediction"] if option == "model" else []
        path = forged(document, *without, **{option: str(model)})
        for command in (["check", "--changelist", path], ["run", path]):
            more = ["--data", data] if command[0] == "check" else []
            code = run([*command, *more, "--output", str(document.parent / "again")])
            said = capfd.readouterr().err
            assert code == 2
            flag = f"--{option.replace('_', '-')} {model}"
            assert f"{path} names {flag}" in said
            assert f"confirm it with {flag}" in said
            assert len(said.splitlines()) == 1
    assert not mark.exists()
    assert not (document.parent / "again" / "changelist.json").exists()


def test_a_model_that_is_named_again_is_used(document, data, tmp_path, capfd):
    frame = pd.read_parquet(data)
    model = tmp_path / "tree.pkl"
    model.write_bytes(pickle.dumps(DecisionTreeClassifier(max_depth=2).fit(frame[["x"]], frame.y)))
    path = forged(document, "prediction", model=str(model), features=["x"])
    options = ["--data", data, "--model", str(model), "--features", "x", "--quiet"]
    assert run(["check", "--changelist", path, *options, "--output", str(tmp_path / "c")]) == 0
    options = ["--model", str(model), "--quiet", "--output", str(tmp_path / "r")]
    assert run(["run", path, *options]) == 0, capfd.readouterr().err
    other = tmp_path / "other.pkl"
    shutil.copy(model, other)
    # What the user names goes before what the document names.
    options = ["--model", str(other), "--quiet", "--output", str(tmp_path / "o")]
    assert run(["run", path, *options]) == 0, capfd.readouterr().err
    made = json.loads((tmp_path / "o" / "changelist.json").read_text())
    assert made["provenance"]["config"]["model"] == str(other)


@pytest.mark.parametrize(("named", "flag", "reason"), [
    ({"runner_option": ["binary=/bin/sh"]}, "--runner-option binary=/bin/sh", "programs"),
    ({"runner_config": "theirs.yaml"}, "--runner-config theirs.yaml", "programs"),
    ({"model": "theirs:model"}, "--model theirs:model", "code"),
    ({"baseline_model": "old.pkl"}, "--baseline-model old.pkl", "code"),
    ({"encoder": "theirs:encoder"}, "--encoder theirs:encoder", "code"),
    ({"encoder": "openai:https://theirs/v1"}, "--encoder openai:https://theirs/v1", "sent"),
    ({"api": "theirs.yaml"}, "--api theirs.yaml", "sent"),
    ({"phrases": "theirs.YAML"}, "--phrases theirs.YAML", "sent"),
])  # fmt: skip
def test_what_runs_code_or_sends_data(named, flag, reason):
    with pytest.raises(InputError, match="if you trust it") as caught:
        refuse_unconfirmed("a.json", named, {})
    assert f"a.json names {flag}, and" in str(caught.value)
    assert reason in str(caught.value)
    refuse_unconfirmed("a.json", named, named)
    with pytest.raises(InputError, match="if you trust it"):
        refuse_unconfirmed("a.json", named, dict.fromkeys(named, "something else"))


def test_what_is_harmless_needs_no_word():
    harmless = {"runner_config": "direct_multi", "runner_option": (), "phrases": "words.txt"}
    for encoder in ("lsa", "minilm", "none", None):
        refuse_unconfirmed("a.json", {**harmless, "encoder": encoder, "model": None}, {})


@pytest.mark.parametrize(("name", "value"), [
    ("runner_option", ["binary=/bin/sh"]),
    ("runner_config", "theirs.yaml"),
    ("model", "theirs.pkl"),
])  # fmt: skip
def test_a_document_that_is_run(document, name, value):
    named = {name: value}
    path = forged(document, **named)
    refuses(InputError, "if you trust it", read_run, path, None, {})
    assert read_run(path, None, {}, named).options.items() >= named.items()
    # A file of the user's own is the user's word.
    own = document.parent / "own.yaml"
    own.write_text(json.dumps({"command": "search", "data": "d", "output": "o", **named}))
    told = read_run(str(own), None, {}).options
    assert {name: told[name] for name in named}.keys() == named.keys()


def test_python_refuses_as_the_command_does(document, trap):
    model, mark = trap
    path = forged(document, "prediction", model=str(model))
    with pytest.raises(InputError, match="if you trust it"):
        check_config({"data": ("d",), "output": "o", "changelist": path})
    assert not mark.exists()


@pytest.fixture(scope="module")
def discovered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("discovered")
    path = planted_file(folder / "data.parquet")
    return discovery(folder / "out", data=[path], components=[6], **COLUMNS)


@pytest.mark.parametrize("command", [
    ["check", "--data", "DATA", "--output", "OUT"],
    ["define", "--name", "a", "--text-filter", "words"],
    ["attribute", "sample", "--slice", "SLICE", "--text", "words", "--budget", "10"],
])  # fmt: skip
@pytest.mark.parametrize("encoder", ["theirs_module:encoder", "openai:http://127.0.0.1:9/v1"])
def test_no_encoder_is_loaded_or_asked(command, encoder, discovered, tmp_path, monkeypatch, capfd):
    mark = tmp_path / "code-ran"
    importable(monkeypatch, tmp_path, "theirs_module", f"open({str(mark)!r}, 'w').close()")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    folder = tmp_path / "theirs"
    shutil.copytree(discovered.folder, folder)
    content = json.loads((folder / "changelist.json").read_text())
    content["discovery"] |= {"encoder": encoder}
    (folder / "changelist.json").write_text(json.dumps(content))
    path = str(folder / "changelist.json")
    values = {
        "DATA": content["dataset"]["uri"][0],
        "OUT": str(tmp_path / "checked"),
        "SLICE": content["slices"][0]["slice_id"],
    }
    given = [values.get(one, one) for one in command]
    assert run([*given, "--changelist", path]) == 2
    said = capfd.readouterr().err.splitlines()[-1]
    assert f"{path} names --encoder {encoder}, and" in said
    assert f"confirm it with --encoder {encoder}" in said
    assert not mark.exists()
    # The user's word is heard: what comes next is an error of the encoder itself.
    run([*given, "--changelist", path, "--encoder", encoder])
    assert "if you trust it" not in capfd.readouterr().err
    assert mark.exists() == encoder.startswith("theirs")
