"""What docs/develop.md shows to who extends slicebeam works as it is written there."""

import json
import pickle
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from slicebeam.metrics.measures.count_metrics import Share
from slicebeam.metrics.metric import Slices
from slicebeam.metrics.registry import metric, metrics, statistic_space
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.commands.table import COMMANDS, CommandSpec
from slicebeam.pipelines.config.option_fields import declared
from slicebeam.pipelines.config.slices import RunConfig
from slicebeam.pipelines.define.new_slices import EditSession
from slicebeam.pipelines.python import signatures
from slicebeam.runner_configs import options
from slicebeam.transforms.encoders import registry

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "develop.md").read_text("utf-8")


def block(word, language="python"):
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = [one for one in blocks if word in one]
    return str(found)


@pytest.fixture
def module(monkeypatch):
    def made(name, source):
        new = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, new)
        parent, _, own = name.rpartition(".")
        monkeypatch.setattr(sys.modules[parent], own, new, raising=False)
        exec(source, new.__dict__)
        return new

    return made


def test_the_metric_works():
    (row,) = re.findall(r"^Share\(.*\)$", PAGE, re.MULTILINE)
    made = eval(row, {"Share": Share})
    space = statistic_space(["precision"], "overall")
    cells = np.arange(1, space.cells + 1)[None]
    precision = metric("precision").value(Slices(cells, space))
    assert made.value(Slices(cells, space)) == pytest.approx(1 - precision)


def test_every_metric_is_named_where_users_look():
    of_help = declared(RunConfig)["metric"].help
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    # Of the micro averages, the rule is told.
    names = {name for name in metrics() if not name.endswith("_micro")}
    assert {name for name in names if name not in re.findall(r"\w+", of_help)} == set()
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_the_command_works(module, monkeypatch, capsys):
    """Its entry alone makes the command: flags, help, and what it prints."""
    module("slicebeam.pipelines.commands.summary", block("class SummaryConfig"))
    (entry,) = eval(f"{{{block('CommandSpec(')}}}", {"CommandSpec": CommandSpec}).items()
    monkeypatch.setitem(COMMANDS, *entry)
    read = SimpleNamespace(document=SimpleNamespace(summary="What was found."))
    monkeypatch.setattr(EditSession, "read", lambda _: read)
    assert run(["summary", "--help"]) == 0
    assert "--changelist <path>" in capsys.readouterr().out
    assert run(["summary", "--changelist", "out"]) == 0
    assert capsys.readouterr().out == "What was found.\n"
    assert run(["summary", "--changelist", "out", "--json"]) == 0
    assert capsys.readouterr().out == '"What was found."\n'
    # It is a function of Python, too.
    assert ") -> str:" in signatures._function("summary", "")


def test_the_engine_works(module, adult_path, tmp_path, monkeypatch):
    names = {**vars(options)}
    exec(block("class ExampleOptions"), names)
    monkeypatch.setitem(options.MODELS, "example", names["ExampleOptions"])
    # A runner that Beam has.
    source = block("class Example(Backend)").replace("ExampleRunner", "BundleBasedDirectRunner")
    module("slicebeam.runner_configs.example", source)
    file = tmp_path / "example.yaml"
    file.write_text(block("runner: example", "yaml"))
    search = ["search", "--data", str(adult_path), "--label", "income"]
    search += ["--prediction", "prediction"]
    search += ["--features", "workclass,sex", "--max-cross-size", "1", "--quiet"]
    search += ["--runner-config", str(file), "--output", str(tmp_path / "out")]
    assert run([*search, "--runner-option", "address=localhost"]) == 2
    assert run([*search, "--runner-option", "address=localhost:80"]) == 0
    document = json.loads((tmp_path / "out" / "changelist.json").read_text())
    assert document["provenance"]["runner"] == "example"


def test_the_encoder_works(module, monkeypatch):
    made = module("slicebeam.transforms.encoders.hashing", block("class HashEncoder"))
    (entry,) = re.findall(r'`("hash": .*?)`', PAGE)
    monkeypatch.setattr(registry, "_NAMED", eval(f"{{{entry}}}", {**vars(made)}))
    encoder = pickle.loads(pickle.dumps(registry.encoder("hash", cache=None)))
    assert encoder.name == "hash"
    vectors = encoder.encode(["a word", "A WORD", "another word"])
    assert vectors.shape == (3, 256)
    assert vectors[0].tolist() == vectors[1].tolist() != vectors[2].tolist()
    assert encoder.encode([]).shape == (0, 256)
