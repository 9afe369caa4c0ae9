"""A ChangeList of a stranger runs no code, starts no program and sends nothing anywhere, in any command.

What it names is refused with the flag that confirms it, or has no effect at all. Traps lie where a
document points to: a pickle, a module, a program, an endpoint. None may spring.
"""

import json
import pickle
import shutil
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sklearn.tree import DecisionTreeClassifier

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.commands import table
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.commands.run_file import read_run
from slicebeam.pipelines.config.check import check_config
from slicebeam.pipelines.config.confirmation import refuse_unconfirmed
from slicebeam.pipelines.run.work_folder import RunMarker
from tests.conftest import slow
from tests.discovered import COLUMNS, discovery, planted_file
from tests.python_models import Trap
from tests.refusals import refuses
from tests.running import importable, small_search


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    z = [one // 5 % 2 for one in range(400)]
    return small_search(tmp_path_factory.mktemp("made"), (1, 3), z=z)


@pytest.fixture(scope="module")
def discovered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("discovered")
    path = planted_file(folder / "data.parquet")
    discovery(folder / "out", data=[path], components=[6], **COLUMNS)
    return folder


@pytest.fixture
def data(made):
    return str(made / "data.parquet")


@pytest.fixture
def document(made, tmp_path):
    shutil.copytree(made / "out", tmp_path / "out")
    return tmp_path / "out" / "changelist.json"


def forged(document, *without, **config):
    content = json.loads(document.read_text())
    kept = {k: v for k, v in content["provenance"]["config"].items() if k not in without}
    content["provenance"]["config"] = kept | config
    path = document.parent / "forged.json"
    path.write_text(json.dumps(content))
    return str(path)


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
    ({"beam": ["prism_location=/bin/sh"]}, "--beam prism_location=/bin/sh", "programs"),
    ({"runner_option": ["workers=9"]}, "--runner-option workers=9", "programs"),
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
    harmless = {
        "runner_config": "direct_multi",
        "runner_option": (),
        "beam": (),
        "phrases": "words.txt",
    }
    for encoder in ("lsa", "minilm", "none", None):
        refuse_unconfirmed("a.json", {**harmless, "encoder": encoder, "model": None}, {})


@pytest.mark.parametrize(("name", "value"), [
    ("beam", ["prism_location=/bin/sh"]),
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


def test_python_refuses_as_the_command_does(document, traps):
    path = forged(document, "prediction", model=traps.options["model"])
    with pytest.raises(InputError, match="if you trust it"):
        check_config({"data": ("d",), "output": "o", "changelist": path})
    assert traps.sprung() == []


ROLES = ["--data", "DATA", "--label", "y", "--prediction", "p"]
REPLAYED = ["--replay-prediction", "p", "--budget", "40"]
LABELS = ["--labels", "loss_new", "--positive", "1.0"]
MERGED = ["--slice", "SLICE", "--slice", "OTHER"]
WORDS = ["--slice", "SLICE", "--text", "words"]
# Of each command, the options of a document that it would use, and so refuses; by its arguments.
COMMANDS = {
    "run": (["run", "DOCUMENT", "--output", "OUT"], {"model", "baseline_model", "metric"} | {"runner_config"} | {"runner_option"} | {"beam"}),
    "check": (["check", "--changelist", "DOCUMENT", "--data", "DATA", "--output", "OUT"], {"model", "baseline_model", "metric"}),
    "check --since": (["check", *ROLES, "--slices", "SLICES", "--since", "DOCUMENT", "--output", "OUT"], set()),
    "search": (["search", *ROLES, "--since", "DOCUMENT", "--output", "OUT"], set()),
    "shift": (["shift", *ROLES[:4], "--old-prediction", "p", *REPLAYED, "--changelist", "DOCUMENT", "--output", "OUT"], set()),
    "define": (["define", "--changelist", "DOCUMENT", "--name", "a", "--where", "x = 1 & z = 1"], {"model", "baseline_model", "metric"}),
    "report": (["report", "DOCUMENT"], set()),
    "show": (["show", "DOCUMENT", "--slice", "SLICE"], set()),
    "edit rename": (["edit", "rename", "--changelist", "DOCUMENT", "--slice", "SLICE", "--name", "b"], set()),
    "edit describe": (["edit", "describe", "--changelist", "DOCUMENT", "--slice", "SLICE", "--text", "b"], set()),
    "edit annotate": (["edit", "annotate", "--changelist", "DOCUMENT", "--slice", "SLICE", "--note", "b"], set()),
    "edit remove": (["edit", "remove", "--changelist", "DOCUMENT", "--slice", "SLICE"], set()),
    "edit merge": (["edit", "merge", "--changelist", "DOCUMENT", *MERGED, "--name", "m"], {"model", "baseline_model", "metric"}),
    "edit split": (["edit", "split", "--changelist", "DOCUMENT", "--slice", "SLICE", "--where", "z = 1"], {"model", "baseline_model", "metric"}),
    "edit undo": (["edit", "undo", "--changelist", "DOCUMENT"], set()),
    "edit log": (["edit", "log", "--changelist", "DOCUMENT"], set()),
    "attribute sample": (["attribute", "sample", "--changelist", "DOCUMENT", *WORDS, "--budget", "10"], set()),
    "attribute estimate": (["attribute", "estimate", "--changelist", "DOCUMENT", *WORDS], set()),
    "attribute run": (["attribute", "run", "--changelist", "DOCUMENT", *WORDS, "--budget", "10", *LABELS], set()),
}  # fmt: skip
# Of each kind of reading a document one is in the quick run.
QUICK = {"run", "check", "define by words", "edit merge"}
# These read no document, or use nothing that it names.
_OTHERS = {
    *("discover", "schema", "demo", "export tfma"),
    *("adapt run", "adapt suggest", "adapt import-checklist"),
    "serve",  # What it does with a document is done by the commands.
    "adapt from",  # Goes on without a model, which it would only load to check the data: see its own tests.
    "adapt export-training",  # Of a document it reads the table of tests beside it.
}


@dataclass
class Traps:
    """Hostile values of the options of a document, and what tells that one was used."""

    options: dict[str, Any]
    module: str
    url: str
    marks: Path
    listener: socket.socket

    def sprung(self):
        found = [path.name for path in self.marks.iterdir()]
        try:
            self.listener.accept()[0].close()
        except BlockingIOError:
            return found
        return [*found, "endpoint"]


@pytest.fixture
def traps(tmp_path, monkeypatch):
    folder, marks = tmp_path / "traps", tmp_path / "marks"
    folder.mkdir()
    marks.mkdir()
    (folder / "model.pkl").write_bytes(pickle.dumps(Trap(marks / "pickle")))
    mark = str(marks / "module")
    importable(monkeypatch, folder, "theirs_module", f"open({mark!r}, 'w').close()\n")
    program = folder / "program"
    program.write_text(f"#!/bin/sh\ntouch {marks}/program\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (folder / "engine.yaml").write_text(
        f"runner: PrismRunner\nbeam: {{prism_location: {program}}}\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        (folder / "api.yaml").write_text(f"url: {url}\njson: {{q: '{{prompt}}'}}\nanswer: a\n")
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        yield Traps(
            dict.fromkeys(("model", "baseline_model"), str(folder / "model.pkl"))
            | dict.fromkeys(("api", "phrases"), str(folder / "api.yaml"))
            | {
                "runner_config": str(folder / "engine.yaml"),
                "runner_option": ["workers=1"],
                "beam": [f"prism_location={program}"],
            }
            | {"encoder": "theirs_module:encoder", "metric": ["theirs_module:Metric"]},
            "theirs_module:encoder",
            f"openai:{url}",
            marks,
            listener,
        )


def arguments(command, document, made, content):
    slices = [one["slice_id"] for one in content["slices"]]
    (document.parent / "slices.yaml").write_text("- x = 1\n")
    values = (
        {"DOCUMENT": str(document), "DATA": str(made / "data.parquet")}
        | {"OUT": str(document.parent / "next"), "SLICES": str(document.parent / "slices.yaml")}
        | {"SLICE": slices[0], "OTHER": slices[1]}
    )
    return [values.get(one, one) for one in COMMANDS[command][0]]


def hostile(made, folder, named):
    shutil.copytree(made / "out", folder)
    document = folder / "changelist.json"
    content = json.loads(document.read_text())
    config = content["provenance"]["config"]
    if "model" in named:
        config.pop("prediction", None)
    content["provenance"]["config"] = config | named
    document.write_text(json.dumps(content))
    return document, content


@pytest.mark.parametrize("command", [one if one in QUICK else slow(one) for one in COMMANDS])
def test_what_a_command_would_use_is_refused_and_the_rest_has_no_effect(
    command, request, traps, tmp_path, capfd
):
    refuses = COMMANDS[command][1]
    # Words need a discovery; that one has no encoder, and the documents below have a hostile one.
    of = "discovered" if command.startswith("attribute") else "made"
    made = request.getfixturevalue(of)
    for name in sorted(refuses):
        value = traps.options[name]
        document, content = hostile(made, tmp_path / name, {name: value})
        assert run(arguments(command, document, made, content)) == 2
        (said,) = capfd.readouterr().err.splitlines()
        written = " ".join(value) if isinstance(value, list) else value
        flag = f"--{name.replace('_', '-')} {written}"
        assert f"{document} names {flag}, and" in said
        assert f"if you trust it, confirm it with {flag}" in said
        assert not (tmp_path / name / "next" / "changelist.json").exists()
    rest = {name: value for name, value in traps.options.items() if name not in refuses}
    if command == "run":
        # What a search has not is an unknown option of it.
        rest = {}
    document, content = hostile(made, tmp_path / "rest", rest)
    code = run(arguments(command, document, made, content))
    said = capfd.readouterr().err
    assert "if you trust it" not in said
    # Where it goes on, it does so without what the document names.
    assert code == (2 if command == "edit undo" or command.startswith("attribute") else 0), said
    assert traps.sprung() == []


def test_every_command_is_here():
    known = {name: one for name, one in table.COMMANDS.items() if name not in table.GROUPS}
    assert set(known) - _OTHERS == {one.partition(" --")[0] for one in COMMANDS}
    for name in _OTHERS & set(known):
        options = {option for one in known[name].fields() for option in one.flags}
        # What is compared with an earlier run is done by a check, which is tried above.
        allowed = {"adapt run": {"--since"}, "adapt export-training": {"--changelist"}}
        assert options & {"--changelist", "--since"} <= allowed.get(name, set())


OF_SHIFTS = {"api": "--api", "model": "--model"}


@pytest.mark.parametrize("name", OF_SHIFTS)
def test_the_document_of_a_shift_that_is_run(name, made, traps, tmp_path, capfd):
    options = ["--data", str(made / "data.parquet"), "--label", "y", "--old-prediction", "p"]
    assert run(["shift", *options, *REPLAYED, "--quiet", "--output", str(tmp_path / "out")]) == 0
    document = tmp_path / "out" / "changelist.json"
    content = json.loads(document.read_text())
    del content["provenance"]["config"]["replay_prediction"]
    value = traps.module if name == "model" else traps.options[name]
    content["provenance"]["config"][name] = value
    document.write_text(json.dumps(content))
    assert run(["run", str(document), "--output", str(tmp_path / "next")]) == 2
    flag = f"{OF_SHIFTS[name]} {value}"
    assert f"if you trust it, confirm it with {flag}" in capfd.readouterr().err
    assert traps.sprung() == []


OF_DISCOVERIES = {
    "check": ["check", "--data", "DATA", "--output", "OUT"],
    "define by words": ["define", "--name", "a", "--text-filter", "words"],
    "define by labels": ["define", "--name", "a", "--classifier", "LABELS"],
    "edit merge": ["edit", "merge", *MERGED, "--name", "m"],
    "edit split": ["edit", "split", "--slice", "SLICE", "--where", "id < 300"],
    "attribute sample": ["attribute", "sample", *WORDS, "--budget", "10"],
    "attribute run": ["attribute", "run", *WORDS, "--budget", "10", *LABELS],
}  # fmt: skip
# A member is found by its components, which embeddings tell: all ask the encoder.


@pytest.mark.parametrize("command", [one if one in QUICK else slow(one) for one in OF_DISCOVERIES])
@pytest.mark.parametrize("kind", ["module", "url"])
def test_the_encoder_of_a_discovery(command, kind, discovered, traps, tmp_path, capfd):
    encoder = traps.module if kind == "module" else traps.url
    shutil.copytree(discovered / "out", tmp_path / "theirs")
    document = tmp_path / "theirs" / "changelist.json"
    content = json.loads(document.read_text())
    content["discovery"]["encoder"] = encoder
    document.write_text(json.dumps(content))
    (tmp_path / "labels.csv").write_text("id,label\n1,yes\n2,no\n3,yes\n4,no\n")
    slices = [one["slice_id"] for one in content["slices"]]
    values = {"DATA": content["dataset"]["uri"][0], "OUT": str(tmp_path / "next")}
    values |= {"LABELS": str(tmp_path / "labels.csv"), "SLICE": slices[0], "OTHER": slices[-1]}
    given = [values.get(one, one) for one in OF_DISCOVERIES[command]]
    assert run([*given, "--changelist", str(document)]) == 2
    said = capfd.readouterr().err.splitlines()[-1]
    assert f"{document} names --encoder {encoder}, and" in said
    assert f"if you trust it, confirm it with --encoder {encoder}" in said
    assert traps.sprung() == []
    # The user's word is heard: what comes next is an error of the encoder itself.
    run([*given, "--changelist", str(document), "--encoder", encoder])
    assert "if you trust it" not in capfd.readouterr().err
    assert traps.sprung() == (["module"] if kind == "module" else [])


def test_a_run_that_is_resumed_takes_nothing_from_its_work_folder(made, traps, tmp_path, capfd):
    """Options of the folder are compared with the user's, never used."""
    work = tmp_path / "work"
    base = ["search", "--data", str(made / "data.parquet"), "--label", "y", "--prediction", "p"]
    base += ["--output", str(tmp_path / "out"), "--work-dir", str(work), "--quiet"]
    work.mkdir()
    config = {"model": traps.options["model"], "runner_config": traps.options["runner_config"]}
    RunMarker(config, run_id="x").write(work / "run.json")
    assert run([*base, "--resume"]) == 2
    assert "use the same options, or leave --resume out" in capfd.readouterr().err
    assert traps.sprung() == []
