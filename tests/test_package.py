"""The package as a user imports it, and the examples in its docstrings, which run."""

import doctest
import json
import logging
import pydoc
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import slicebeam
import slicebeam.metrics
import slicebeam.pipelines
import slicebeam.runner_configs
import slicebeam.transforms
from slicebeam.pipelines.commands import api
from slicebeam.runner_configs.job_log import importing_beam
from tests.base_install import ROOT, tomllib


def test_the_package_has_the_commands_as_functions():
    assert sorted(slicebeam.__all__) == sorted(api.__all__)
    assert all(getattr(slicebeam, name) is getattr(api, name) for name in api.__all__)
    assert {*api.__all__, "__version__"} <= {*dir(slicebeam)}
    assert slicebeam.__version__ == version("slicebeam")


def test_help_shows_the_way():
    text = pydoc.plain(pydoc.render_doc(slicebeam))
    assert 'slicebeam.search(frame, label="income", prediction="prediction")' in text
    assert "search(data" in "".join(text.split())


def test_what_is_not_there_is_named():
    with pytest.raises(AttributeError, match="module 'slicebeam' has no attribute 'serch'"):
        slicebeam.serch  # noqa: B018


def test_the_package_alone_imports_nothing():
    code = (
        "import sys; import slicebeam; from slicebeam.metrics import errors;"
        "print(sorted({one.partition('.')[0] for one in sys.modules} & {'apache_beam', 'numpy', 'pyarrow'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_beams_warning_of_missing_clients_is_dropped(caplog):
    root = logging.getLogger()
    before = root.handlers[:], root.filters[:]
    with importing_beam():
        root.warning("apitools not found, and bigquery client libraries are not available")
        root.error("another")
        logging.basicConfig(force=True)
    assert caplog.messages == ["another"]
    assert (root.handlers, root.filters) == before


@pytest.mark.slow
def test_a_function_says_nothing_where_clients_are_missing():
    code = (
        "import logging, sys; sys.modules['apitools'] = None; import slicebeam; slicebeam.search;"
        "print('apache_beam' in sys.modules, logging.getLogger().handlers)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True []\n", "")


RULES = ("C901", "PLR0911", "PLR0912", "PLR0913", "PLR0915")


def test_every_exception_from_the_complexity_rules_is_needed():
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["ruff"]["lint"]
    assert not set(RULES) & set(lint["ignore"])
    files = {name: codes for name, codes in lint["per-file-ignores"].items() if "*" not in name}
    listed = {(name, code) for name in files for code in set(files[name]) & set(RULES)}
    command = ["ruff", "check", "--isolated", "--exit-zero", "--output-format", "json"]
    command += ["--select", ",".join(RULES)]
    command += ["--config", f"lint.pylint.max-args={lint['pylint']['max-args']}"]
    command += {name for name, _ in listed}
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    records = [(one["filename"], one["code"]) for one in json.loads(listing)]
    assert listed <= {(name.removeprefix(f"{ROOT}/"), code) for name, code in records}


PACKAGES = (slicebeam.metrics, slicebeam.transforms, slicebeam.pipelines, slicebeam.runner_configs)
# By their last names, wherever they are defined.
NEED_AN_EXAMPLE = (
    *("Lattice", "Singleton", "StatisticSpace", "Metric", "metric", "SliceTest", "mid_p", "Tables"),
    *("joint_tables", "bh_adjusted", "adjusted"),
)


def modules_with_examples():
    """Return the names of the modules whose source has an example, without importing the others."""
    found = []
    for package in PACKAGES:
        for path in package.__path__:
            for source in sorted(Path(path).rglob("*.py")):
                if ">>>" in source.read_text(encoding="utf-8"):
                    parts = source.relative_to(path).with_suffix("").parts
                    names = parts[:-1] if parts[-1] == "__init__" else parts
                    found.append(".".join((package.__name__, *names)))
    return found


def examples_of(name):
    tests = doctest.DocTestFinder().find(import_module(name), name)
    return [test for test in tests if test.examples]


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_module_run(name):
    examples = examples_of(name)
    assert examples, f"{name} has '>>>' where doctest does not find it: is it in a docstring?"
    report = []
    runner = doctest.DocTestRunner()
    for example in examples:
        runner.run(example, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def test_every_package_has_examples():
    modules = modules_with_examples()
    for package in PACKAGES:
        assert any(name.startswith(f"{package.__name__}.") for name in modules), package.__name__


def test_the_types_that_a_newcomer_meets_first_have_an_example():
    examples = [one for name in modules_with_examples() for one in examples_of(name)]
    shown = {example.name.rpartition(".")[2] for example in examples}
    missing = [name for name in NEED_AN_EXAMPLE if name not in shown]
    assert not missing, f"these have no example in their docstring: {', '.join(missing)}"
