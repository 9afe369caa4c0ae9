"""Options are declared once: flags, help, keys, keywords and pages come of the fields; docs/develop.md works."""

import inspect
import json
import pickle
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from slicebeam.metrics.measures.count_metrics import Share
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric, metrics, statistic_space
from slicebeam.pipelines.commands import api
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.commands.command import CommandSpec, named
from slicebeam.pipelines.commands.table import COMMANDS, GROUPS
from slicebeam.pipelines.config.option_fields import declared
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.config.slices import RunConfig
from slicebeam.pipelines.define.new_slices import EditSession
from slicebeam.runner_configs import options
from slicebeam.transforms.discovery import encoders as registry

ROOT = Path(__file__).parents[3]
NAMES = [name for name in COMMANDS if name not in GROUPS]
# The functions of Python by their commands.
FUNCTIONS = {
    name: ".".join([*name.split()[:-1], api.function_name(name)])
    for name in NAMES
    if COMMANDS[name].shows
}
# What a command has not of the options of its base.
NOT_ITS = {
    "DiscoverConfig": "exclude_features domains since since_if_exists tfma_module keep_outputs confirm parity baseline_data",
    "SearchRunOptions": "allow_http",
    "DiscoverRunOptions": "dry_run tolerance known",
    "ShiftRunOptions": "explain dry_run tolerance known",
    "FileRunOptions": "explain fail_on tolerance known",
}
MODELS = {model for name in NAMES for model in COMMANDS[name].models}


def fields():
    pairs = [(model.__name__, one) for model in MODELS for one in declared(model).values()]
    return [(f"{name}.{one.name}", one) for name, one in pairs]


def shown(capsys, *words):
    assert run([*words, "--help"]) == 0
    return capsys.readouterr().out


def test_every_field_says_what_it_is():
    for model in MODELS:
        hidden = NOT_ITS.get(model.__name__, "").split()
        # What `metric` is split into is no option of its own.
        assert set(declared(model)) == set(model.model_fields) - {"tfma_metric", *hidden}, model
    for where, field in fields():
        text = field.help
        assert text.endswith("."), where
        assert not re.search(r"\b(told|asked|asks)\b", text), where
        # A sentence begins with a capital, or with the word that it explains.
        assert text[0].isupper() or re.match(r"[\w-]+: |scikit-learn ", text), (where, text)


def test_rules_are_about_options():
    rules = {
        (model, rule)
        for model in MODELS
        for kind in model.__mro__
        for rule in vars(kind).get("rules", ())
    }
    assert rules
    for model, rule in rules:
        words = f"{rule.names} {rule.others}".split()
        assert {one.partition("=")[0] for one in words} <= set(model.model_fields), rule


@pytest.mark.parametrize("name", NAMES)
def test_help_names_only_flags_of_its_command(name):
    spec = COMMANDS[name]
    known = {flag for one in spec.fields() for flag in one.flags}
    for text in (spec.help, *(one.help for one in spec.fields())):
        # The file of an API is one for several commands.
        named = set(re.findall(r"--[a-z][a-z-]*[a-z]", text.replace("shift --api", "")))
        assert named <= known, (name, text)


def test_an_earlier_run_that_may_be_missing_is_since_where_it_is_there(tmp_path):
    path = tmp_path / "changelist.json"
    options = {"data": ("x.csv",), "output": "out", "label": "y", "prediction": "p"}
    options["since_if_exists"] = str(path)
    assert search_config(options).since is None
    path.write_text("{}")
    config = search_config(options)
    # What is validated again, such as with data of the earlier run in place of `since`, does not get it back.
    assert (config.since, config.since_if_exists) == (str(path), None)


def test_what_an_entry_refers_to_is_there():
    for name in NAMES:
        spec = COMMANDS[name]
        configures = getattr(spec, "configures", "")
        for reference in (spec.runs, spec.shows, spec.json, configures):
            assert not reference or callable(named(reference)), (name, reference)
        assert spec.runs or name == "run"


def test_commands_are_grouped(capsys):
    groups = re.findall(r"^(\w+):\n((?:  .+\n)+)", shown(capsys), re.MULTILINE)
    found = {title: re.findall(r"^  (\w+)", rows, re.MULTILINE) for title, rows in groups}
    assert {title: found[title] for title in ("Find", "Describe", "Test", "APIs", "Run")} == {
        "Find": ["search", "discover", "check"],
        "Describe": ["define", "edit", "attribute", "show", "report", "serve", "export"],
        "Test": ["adapt"],
        "APIs": ["shift"],
        "Run": ["run", "schema", "demo"],
    }


@pytest.mark.parametrize("name", ["", *GROUPS, *NAMES])
def test_help_is_plain_grouped_and_ends_with_an_example(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = shown(capsys, *name.split())
    # The example's words are not broken where a line would be too long.
    assert max(map(len, text.partition("\nExample:")[0].splitlines())) <= 80
    assert text.isascii()
    assert "\x1b" not in text
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(capsys, *name.split()) == text
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert shown(capsys, *name.split()) == text
    example = text.partition("\nExample:\n")[2]
    if not name or name in GROUPS:
        assert "slicebeam " in example
        return
    program, *words = shlex.split(example.replace("\\\n", " "))
    assert [program, *words[: len(name.split())]] == ["slicebeam", *name.split()]
    known = {flag for one in COMMANDS[name].fields() for flag in one.flags}
    assert {word for word in words if word.startswith("--")} <= known
    required = [one for one in COMMANDS[name].fields() if one.is_required]
    missing = {one.flags[0] for one in required if not one.option.is_argument} - set(words)
    assert not missing


def test_help_of_a_search_begins_with_what_is_needed(capsys):
    text = shown(capsys, "search")
    assert len(re.findall("^  --(?!help)", text, re.MULTILINE)) == 20
    assert "--help-all  Show all 70 options and exit." in text
    assert run(["search", "--help-all"]) == 0
    text = capsys.readouterr().out
    titles = re.findall(r"^([A-Z][\w ]+):$", text, re.MULTILINE)
    assert titles == [
        *("Arguments", "Data", "Models", "Features", "Statistics", "Search", "Output", "Engine"),
        *("Help", "Example"),
    ]


def test_help_imports_nothing_heavy():
    code = """
import sys
from slicebeam.pipelines.commands.cli import run
run([%s"--help"])
heavy = {"numpy", "scipy", "pyarrow", "pandas", "apache_beam", "rich.console"} & set(sys.modules)
assert not heavy, heavy
assert %r or "pydantic" not in sys.modules
"""
    for words, may in (("", False), ('"search", ', True), ('"shift", ', True)):
        subprocess.run([sys.executable, "-c", code % (words, may)], check=True, capture_output=True)


def test_the_reference_page_is_up_to_date():
    made = runpy.run_path(str(ROOT / "docs" / "options_page.py"))
    assert made["page"]() == made["PAGE"].read_text("utf-8"), "run: python docs/options_page.py"


def test_functions_have_the_signatures_of_their_commands():
    found = inspect.signature(api.search)
    assert next(iter(found.parameters)) == "data"
    assert found.parameters["bins"].default == 10
    assert found.parameters["label"].annotation == "str"
    assert set(declared(*COMMANDS["search"].models[:1])) - {"data"} <= set(found.parameters)
    assert "fail_on" not in found.parameters
    parameters = inspect.signature(api.edit.rename).parameters
    assert list(parameters) == ["changelist", "slice", "name", "progress"]
    assert "slice : Slice, given by its slice_id" in (api.edit.rename.__doc__ or "")


def test_each_function_has_the_keywords_and_the_result_of_its_command():
    source = Path(api.__file__).read_text("utf-8")
    made = re.findall(r'(_\w+)\("([a-z -]+)", ([\w.]+)\)$', source, re.MULTILINE)
    assert {name for _, name, _ in made} == FUNCTIONS.keys()
    for result, name, keywords in made:
        spec = COMMANDS[name]
        assert all(issubclass(eval(keywords, vars(api)), one) for one in spec.models), name
        returned = named(spec.runs).__annotations__["return"]
        assert spec.run_options or api.__annotations__[result] == f"_Document[{returned}]", name
        assert eval(FUNCTIONS[name], vars(api)).__doc__ == api.docstring(name)


# What declares the keywords; the rest of the package takes mypy a minute.
MYPY = """
[mypy]
follow_imports = skip
namespace_packages = True
explicit_package_bases = True
[mypy-pydantic.*,slicebeam.pipelines.commands.api,slicebeam.pipelines.config.*,slicebeam.pipelines.commands.python_runs]
follow_imports = silent
[mypy-slicebeam.pipelines.commands.export,slicebeam.pipelines.define.new_slices,slicebeam.metrics.kinds]
follow_imports = silent
[mypy-slicebeam.transforms.storage.file_formats]
follow_imports = silent
"""


def mypys_words(folder, lines, plugins=""):
    (folder / "used.py").write_text("\n".join(lines) + "\n")
    (folder / "mypy.ini").write_text(MYPY.replace("[mypy]\n", f"[mypy]\n{plugins}\n"))
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "used.py"]
    how = {"env": {"MYPYPATH": str(ROOT / ".typing"), "PATH": ""}, "cwd": folder}
    done = subprocess.run(command, **how, capture_output=True, text=True, check=False)
    words = re.findall(r"^used.py:(\d+): (?:error|note): (.*)$", done.stdout, re.MULTILINE)
    assert words, (done.stdout, done.stderr)
    return {lines[int(line) - 1]: text for line, text in words}


USES = (
    "from pathlib import Path",
    "from slicebeam.pipelines.commands.api import Report, attribute, define, edit, search",
    "found: Report = search('x.parquet', label='y', metric=['recall'], bins=5, resume=True)",
    "search('x', metric='recall', features=('a', 'b'), output=Path('out'), since=Path('a'))",
    "edit.rename('out', slice='a', name='b').path",
)
MISUSES = {
    "search('x', lable='y')": 'Unexpected keyword argument "lable"; did you mean "label"?',
    "define('out')": 'Missing named argument "name"',
    "search('x', test='t')": 'Argument "test" has incompatible type "Literal[\'t\']"; expected',
    "attribute.run('out', slice='a', text='b', budget='c')": 'Argument "budget" has incompatible',
    "search('x', data='x')": 'Unexpected keyword argument "data"',
    "search('x').paths": '"Report" has no attribute "paths"',
}


@pytest.mark.slow
def test_mypy_knows_the_keywords(tmp_path):
    functions = {f"reveal_type(api.{one})": eval(one, vars(api)) for one in FUNCTIONS.values()}
    lines = ["from slicebeam.pipelines.commands import api", *functions, *USES, *MISUSES]
    words = mypys_words(tmp_path, lines)
    assert words.keys() == {*functions, *MISUSES}
    for line, start in MISUSES.items():
        assert words[line].startswith(start), words[line]
    for line, function in functions.items():
        _, *keywords = inspect.signature(function).parameters
        assert sorted(re.findall(r", (\w+): ", words[line])) == sorted(keywords), line


@pytest.mark.slow
def test_mypy_with_the_plugin_of_pydantic_refuses_nothing_that_is_right(tmp_path):
    wrong = [*MISUSES][:2]
    words = mypys_words(tmp_path, [*USES, *wrong], "plugins = pydantic.mypy")
    assert words.keys() == {*wrong}


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
    assert list(api.signature("summary").parameters) == ["changelist", "progress"]


def test_the_engine_works(module, adult_path, tmp_path, monkeypatch):
    # A runner that Beam has.
    monkeypatch.setitem(
        options._BACKENDS, "BundleBasedDirectRunner", "slicebeam.runner_configs.example:Example"
    )
    module("slicebeam.runner_configs.example", block("class Example(BeamRunner)"))
    text = block("runner: ExampleRunner", "yaml")
    file = tmp_path / "example.yaml"
    file.write_text(text.replace("ExampleRunner", "BundleBasedDirectRunner"))
    search = ["search", "--data", str(adult_path), "--label", "income"]
    search += ["--prediction", "prediction", "--runner-option", "shared_folder=true"]
    search += ["--features", "workclass,sex", "--max-cross-size", "1", "--quiet"]
    search += ["--runner-config", str(file), "--output", str(tmp_path / "out")]
    search += ["--runner-option", "smallest_job_seconds=0"]
    assert run(search) == 3
    monkeypatch.setenv("EXAMPLE_KEY", "a")
    assert run(search) == 0
    document = json.loads((tmp_path / "out" / "changelist.json").read_text())
    assert document["provenance"]["runner"] == "BundleBasedDirectRunner"


def test_the_encoder_works(module, monkeypatch):
    made = module("slicebeam.transforms.discovery.hashing", block("class HashEncoder"))
    (entry,) = re.findall(r'`("hash": .*?)`', PAGE)
    monkeypatch.setattr(registry, "_NAMED", eval(f"{{{entry}}}", {**vars(made)}))
    encoder = pickle.loads(pickle.dumps(registry.encoder("hash", cache=None)))
    assert encoder.name == "hash"
    vectors = encoder.encode(["a word", "A WORD", "another word"])
    assert vectors.shape == (3, 256)
    assert vectors[0].tolist() == vectors[1].tolist() != vectors[2].tolist()
    assert encoder.encode([]).shape == (0, 256)
