"""A user's own metric, and those of TensorFlow Model Analysis: what a name may have imported and called."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.metrics.measures import user_metrics
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric, statistic_space, user_named
from slicebeam.pipelines.commands.cli import run
from tests.refusals import refuses
from tests.running import small_search

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "own-metric.md"
MORE = """
import numpy as np
from slicebeam.metrics.measures.metric import Needs
from slicebeam.metrics.measures.count_metrics import Share
open(__file__ + ".imported", "a").close()
ACCURACY = Share("acc", "Accuracy", "~wrong", "", higher_is_better=True)
NUMBER = 3
class Shape(NetBenefit):
    def value(self, slices):
        return np.zeros(1)
class Infinite(NetBenefit):
    def value(self, slices):
        return np.full(len(slices), np.inf)
class Raises(NetBenefit):
    def value(self, slices):
        raise KeyError("no such cell")
class Ranked(NetBenefit):
    needs = Needs(ranked=True)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The page's example in a module, with faulty metrics beside it."""
    (source,) = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "their_metrics.py").write_text(source + MORE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(user_metrics, "_loaded", {})
    yield tmp_path
    sys.modules.pop("their_metrics", None)


@pytest.mark.parametrize(("name", "said"), [
    ("absent_module:A", "No module named 'absent_module'"),
    ("their_metrics:Absent", "no attribute 'Absent'"),
    ("their_metrics:NUMBER", "is not a metric but of the type int"),
    ("their_metrics:Ranked", "its needs is"),
])  # fmt: skip
def test_what_is_not_a_metric(name, said, module):
    refuses(OptionError, re.escape(said), user_named, name)


@pytest.mark.parametrize(("name", "said"), [
    ("Shape", "value returned float64 of shape (1,); return an array of float64 [slices], here of shape (2,)"),
    ("Infinite", "value returned inf for a slice with the counts"),
    ("Raises", "value failed on 2 slices: KeyError: 'no such cell'"),
])  # fmt: skip
def test_results_that_are_not_valid(name, said, module):
    full = user_named(f"their_metrics:{name}")
    space = statistic_space([full], "overall")
    refuses(
        OptionError,
        re.escape(said),
        metric(full).value,
        Slices(np.full((2, space.columns), 5), space),
    )


def test_it_steers_a_search_and_a_document_imports_nothing(module, capfd):
    frame = pd.DataFrame({"x": [one % 7 for one in range(700)], "y": [0, 1] * 350})
    frame["p"] = frame.y.where(frame.x != 3, 1 - frame.y)
    frame.to_parquet(module / "data.parquet")
    names = "their_metrics:NetBenefit,their_metrics:ACCURACY,accuracy"
    given = ["--data", str(module / "data.parquet"), "--label", "y", "--prediction", "p"]
    given += ["--positive-class", "1", "--quiet", "--metric", names]
    assert run(["search", *given, "--output", str(module / "out")]) == 0
    document = module / "out" / "changelist.json"
    content = json.loads(document.read_text())
    found = pd.read_parquet(module / "out" / "slices.parquet").set_index(["metric", "slice"])
    first, own, built_in = names.split(",")
    numbers = ["value", "delta", "p_value", "q_value", "finding"]
    pd.testing.assert_frame_equal(found.loc[own][numbers], found.loc[built_in][numbers])
    gain = frame.p * np.where(frame.y == 1, 1.0, -0.25)
    for value, expected in gain.groupby(frame.x).mean().items():
        assert found.loc[(first, f"x = {value}"), "value"] == pytest.approx(expected)
    mark = module / "their_metrics.py.imported"
    mark.unlink()
    del sys.modules["their_metrics"]
    user_metrics._loaded.clear()
    for hostile in (content["provenance"]["config"]["metric"], [first], first):
        content["provenance"]["config"]["metric"] = hostile
        document.write_text(json.dumps(content))
        for command in (
            ["run", str(document)],
            ["check", "--changelist", str(document), *given[:2]],
        ):
            assert run([*command, "--output", str(module / "next")]) == 2
            assert f"names --metric {first}, and importing it" in capfd.readouterr().err
    assert not mark.exists()
    again = ["run", str(document), "--quiet", "--output", str(module / "next"), "--metric", names]
    assert run(again) == 0


def test_an_installed_package_names_its_metrics(module):
    for number, value in enumerate(("their_metrics:NetBenefit", "their_metrics:ACCURACY")):
        folder = module / f"theirs{number}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: theirs{number}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[slicebeam.metrics]\nnet_benefit = {value}\n")
        if number == 0:
            assert metric(user_named("net_benefit")).title == "Net benefit"
            refuses(InputError, "did you mean 'net_benefit'", user_named, "net_benefits")
    with pytest.raises(OptionError, match="several packages have it: their_metrics:ACCURACY and"):
        user_named("net_benefit")


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
