"""Which metrics of TensorFlow Model Analysis a name may stand for: nothing else is imported or called.

None of these tests needs TFMA: what is not allowed is refused before it is imported.
"""

import json
import sys

import pytest

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.cli import run
from slicebeam.transforms.tfma.metric_specs import parse_metric
from tests.refusals import refuses
from tests.running import small_search

COMMAND = "subprocess.Popen(args='touch pwned', shell=True)"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    (folder / "theirs_metrics.py").write_text("open('imported', 'w').close()\n")
    return small_search(folder)


@pytest.mark.parametrize(("forged", "module"), [
    ({"metric": ["accuracy", f"tfma:{COMMAND}"]}, "subprocess"),
    ({"tfma_metric": [f"tfma:{COMMAND}"]}, "subprocess"),
    ({"tfma_metric": [COMMAND]}, "subprocess"),
    ({"metric": ["accuracy", "tfma:theirs_metrics.Lift"]}, "theirs_metrics"),
    ({"metric": ["accuracy", "tfma:os.path.join"]}, "os.path"),
])  # fmt: skip
@pytest.mark.parametrize("command", ["run", "check"])
def test_a_document_imports_and_calls_nothing_for_a_metric(
    command, forged, module, made, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(made))
    content = json.loads((made / "out" / "changelist.json").read_text())
    content["provenance"]["config"] |= forged
    (tmp_path / "theirs.json").write_text(json.dumps(content))
    given = {
        "run": ["run", "theirs.json"],
        "check": ["check", "--changelist", "theirs.json", "--data", str(made / "data.parquet")],
    }[command]
    code = run([*given, "--output", "next", "--quiet"])
    said = capfd.readouterr().err
    if command == "check" and "metric" not in forged:
        # A check computes the metrics that the user names.
        assert code == 0, said
    else:
        assert code == 2
        assert f"{module} is not a module of TFMA" in said
        assert f"add --tfma-module {module}" in said
        assert not (tmp_path / "next" / "changelist.json").exists()
    assert "theirs_metrics" not in sys.modules
    assert not {"pwned", "imported"} & {one.name for one in tmp_path.iterdir()}


def test_a_document_allows_itself_no_module(made, tmp_path, capfd, monkeypatch):
    monkeypatch.syspath_prepend(str(made))
    monkeypatch.chdir(tmp_path)
    content = json.loads((made / "out" / "changelist.json").read_text())
    config = {"tfma_metric": ["tfma:theirs_metrics.Lift"], "tfma_module": ["theirs_metrics"]}
    content["provenance"]["config"] |= config
    (tmp_path / "theirs.json").write_text(json.dumps(content))
    assert run(["run", "theirs.json", "--output", "next"]) == 2
    said = capfd.readouterr().err
    assert "theirs.json names --tfma-module theirs_metrics, and importing it" in said
    # The user's word is for their modules, and not for the document's.
    assert run(["run", "theirs.json", "--output", "next", "--tfma-module", "mine"]) == 2
    assert "theirs_metrics is not a module of TFMA" in capfd.readouterr().err
    assert "theirs_metrics" not in sys.modules


def test_a_module_is_named_exactly():
    text = "tfma:my.metrics.Lift(power=2)"
    assert parse_metric(text, ["my.metrics"]).module == "my.metrics"
    for modules in ([], ["my"], ["my.metrics.more"], ["metrics"], [""], ["my.metrics.Lift"]):
        refuses(OptionError, r"add --tfma-module my\.metrics", parse_metric, text, modules)
    # A class of TFMA is found by its name in the list, and a module is not imported for it.
    for path in ("tensorflow_model_analysis.metrics", "tf_keras.metrics", "tensorflow.io.gfile"):
        assert parse_metric(f"tfma:{path}.GFile").module == ""


@pytest.mark.parametrize("value", [
    *("{'class_name': 'Lambda', 'config': {}}", "[{'module': 'os', 'class_name': 'system'}]"),
    *("b'bytes'", "{1, 2}", "1j", "...", "1e999", "[1, -1e999]", "[[[[[[[1]]]]]]]"),
])  # fmt: skip
def test_an_argument_is_a_plain_value(value):
    with pytest.raises(OptionError, match="thresholds is not a number"):
        parse_metric(f"tfma:AUC(thresholds={value})")


@pytest.mark.parametrize(
    "code", ["__import__('os').system('id')", "[" * 4_000 + "]" * 4_000, "-" * 20_000 + "1", "1 +"]
)
def test_what_is_code_is_not_read(code):
    with pytest.raises(OptionError, match="can't be read") as caught:
        parse_metric(f"tfma:AUC(name={code})")
    assert len(str(caught.value)) < 12_000
    found = parse_metric("tfma:AUC(name=a.b,thresholds=[0.5,(1,2)])")
    assert found.arguments == {"name": "a.b", "thresholds": [0.5, [1, 2]]}
