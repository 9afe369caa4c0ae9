"""The examples in docstrings run, and the types that a newcomer meets first have one."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import slicebeam.metrics
import slicebeam.pipelines
import slicebeam.runner_configs
import slicebeam.transforms

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
