"""The folders have an order: each imports only from those before it, and nothing in a circle.

Imports within functions and those for types count as well: they too say what must be known to
understand a module.
"""

from __future__ import annotations

import ast
import importlib
import re
import runpy
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "slicebeam"
ARCHITECTURE = runpy.run_path(str(ROOT / "docs" / "architecture_page.py"))
ORDER = ARCHITECTURE["ORDER"]


@dataclass(frozen=True)
class Arrow:
    """An import: the file and line that it stands in, and the file that it imports from."""

    source: str
    line: int
    target: str

    def __str__(self):
        return f"{self.source}:{self.line} -> {self.target}"


def modules(root, folders):
    found = {}
    for folder in sorted(folders):
        for path in sorted((root / folder).rglob("*.py")):
            file = path.relative_to(root)
            parts = file.parent.parts if file.name == "__init__.py" else file.with_suffix("").parts
            found[".".join([PACKAGE, *parts])] = file.as_posix()
    return found


def arrows(root, folders):
    """All imports of one module of the package by another."""
    files, found = modules(root, folders), set()
    for file in files.values():
        for node in ast.walk(ast.parse((root / file).read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file}:{node.lineno}: write the import from {PACKAGE} on"
                # What is imported is a module of a folder, or something in a module.
                names = [
                    inner if (inner := f"{node.module}.{alias.name}") in files else str(node.module)
                    for alias in node.names
                ]
            else:
                continue
            reached = [files[name] for name in names if name in files]
            found |= {Arrow(file, node.lineno, one) for one in reached if one != file}
    return sorted(found, key=str)


def room(file, order):
    """The entry of the order that a file belongs to."""
    return file if file in order else file.rpartition("/")[0]


def upward(found, order):
    """What is wrong with arrows between folders."""
    rank = {name: place for place, name in enumerate(order)}
    wrong = []
    for arrow in found:
        source, target = room(arrow.source, order), room(arrow.target, order)
        homeless = [name for name in (source, target) if name not in rank]
        wrong += [f"{arrow}: {name} has no place in ORDER; give it one" for name in homeless]
        if source in rank and target in rank and rank[target] > rank[source]:
            said = f"{source} lies below {target} and must not know it; move what it needs to"
            wrong.append(f"{arrow}: {said} {source} or below, or {arrow.source} to {target}")
    return wrong


def circles(found):
    """The shortest circle through each arrow that is in one, each circle once."""
    onward = {}
    for arrow in found:
        onward.setdefault(arrow.source, []).append(arrow)
    told = {}
    for first in found:
        came, waiting = {first.target: first}, [first.target]
        while waiting and first.source not in came:
            for arrow in onward.get(waiting.pop(0), []):
                if arrow.target not in came:
                    came[arrow.target] = arrow
                    waiting.append(arrow.target)
        if first.source in came:
            way = [came[first.source]]
            while way[-1] is not first:
                way.append(came[way[-1].source])
            remedy = "a circle; move what both need to a module that imports neither"
            key = frozenset(arrow.source for arrow in way)
            told.setdefault(key, f"{', '.join(map(str, reversed(way)))}: {remedy}")
    return list(told.values())


FOLDERS = {name.split("/")[0] for name in ORDER}


def test_each_folder_imports_only_from_those_before_it_and_nothing_in_a_circle():
    found = arrows(ROOT, FOLDERS)
    assert len(found) > 1000
    assert (upward(found, ORDER), circles(found)) == ([], [])


def rooms_of(found):
    """Which folders know which: those directly in a package, and the package's modules together."""
    pairs = [
        ["/".join(file.split("/")[:-1][:2]) for file in (arrow.source, arrow.target)]
        for arrow in found
        if not arrow.target.endswith("__init__.py")
    ]
    return {(one, other) for one, other in pairs if one != other}


def floors_of(known):
    """How many folders stand on one another; graphlib raises where they do so in a circle."""
    below = {}
    for one, other in known:
        below.setdefault(one, set()).add(other)
    height = {}
    for one in TopologicalSorter(below).static_order():
        height[one] = 1 + max((height[other] for other in below.get(one, ())), default=0)
    return max(height.values())


def test_the_folders_fit_on_a_drawing():
    """Whoever adds a room finds what knows too much, and does not raise the figures."""
    known = rooms_of(arrows(ROOT, FOLDERS))
    assert len({one for pair in known for one in pair}) <= 34
    assert floors_of(known) <= 15
    assert len(known) <= 200
    with pytest.raises(CycleError):
        floors_of({*known, ("metrics", "pipelines/commands")})


def test_benchmarks_and_pictures_import_what_there_is():
    for path in [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("docs/pictures/*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slicebeam."):
                module = importlib.import_module(node.module)
                for each in node.names:
                    known = hasattr(module, each.name) or find_spec(f"{node.module}.{each.name}")
                    assert known, f"{path.name}: {node.module} has no {each.name}"


def test_the_order_names_what_there_is():
    assert [name for name in ORDER if not (ROOT / name).exists()] == []
    assert len(set(ORDER)) == len(ORDER)


def test_each_folder_says_what_may_be_in_it():
    """Only the folder whose extractor users import by its name has something to say besides."""
    for folder in {(ROOT / file).parent for file in modules(ROOT, FOLDERS).values()}:
        first = folder / "__init__.py"
        assert first.is_file(), f"{folder}: add an __init__.py that says what may be in the folder"
        tree = ast.parse(first.read_text("utf-8"))
        assert ast.get_docstring(tree), f"{first}: say in a docstring what may be in the folder"
        if folder != ROOT / "transforms" / "tfma":
            assert len(tree.body) == 1, f"{first}: leave what runs to a module"


def test_only_folders_lie_in_pipelines_and_transforms():
    for package in ("pipelines", "transforms"):
        beside = {path.name for path in (ROOT / package).iterdir() if not path.is_dir()}
        assert beside == {"__init__.py", "py.typed"}


def test_wrong_arrows_are_named_with_file_and_line(tmp_path):
    (tmp_path / "low").mkdir()
    (tmp_path / "high").mkdir()
    text = "def f() -> None:\n    from slicebeam.high import b\n\n    b.g()\n"
    (tmp_path / "low" / "a.py").write_text(text)
    text = "import typing\n\nif typing.TYPE_CHECKING:\n    from slicebeam.low.a import f\n"
    (tmp_path / "high" / "b.py").write_text(text)
    found = arrows(tmp_path, {"low", "high"})
    assert list(map(str, found)) == ["high/b.py:4 -> low/a.py", "low/a.py:2 -> high/b.py"]
    (wrong,) = upward(found, ("low", "high"))
    assert wrong.startswith("low/a.py:2 -> high/b.py: low lies below high and must not know it")
    (circle,) = circles(found)
    assert circle.startswith("high/b.py:4 -> low/a.py, low/a.py:2 -> high/b.py: a circle")
    (unplaced,) = upward(found[:1], ("low",))
    assert "high has no place in ORDER" in unplaced


def test_no_two_classes_have_the_same_name():
    places = {}
    for file in modules(ROOT, {one.partition("/")[0] for one in ORDER}).values():
        for node in ast.parse((ROOT / file).read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(file)
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert twice == {}, "name one of them after what only it is"


def test_a_module_gives_each_name_once():
    """What is defined again further down replaces the first for all that comes before it, too."""
    twice = []
    for file in modules(ROOT, FOLDERS).values():
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        targets = [
            one for node in tree.body if isinstance(node, ast.Assign) for one in node.targets
        ]
        names = [one.id for one in targets if isinstance(one, ast.Name)]
        twice += [f"{file}: {name}" for name in set(names) if names.count(name) > 1]
    assert twice == []


def annotated(source):
    """Return the lines of a module that have annotations besides those of classes' fields."""
    nodes = list(ast.walk(ast.parse(source)))
    fields = {part for node in nodes if isinstance(node, ast.ClassDef) for part in node.body}
    return [
        node.lineno
        for node in nodes
        if (isinstance(node, ast.arg) and node.annotation)
        or (isinstance(node, ast.AnnAssign) and node not in fields)
        or (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns)
    ]


def test_tests_have_no_annotations_because_nothing_checks_them():
    source = "def f(a: int, b) -> int:\n    c: int = 2\n\nclass A:\n    d: int = 1\n"
    assert sorted(annotated(source)) == [1, 1, 2]
    found = {str(path): annotated(path.read_text("utf-8")) for path in ROOT.glob("tests/**/*.py")}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_the_page_of_the_architecture_names_what_there_is():
    page = ARCHITECTURE["PAGE"].read_text("utf-8")
    assert page == ARCHITECTURE["page"](), "run: python docs/architecture_page.py"
    figure = page.split("```")[1]
    named = re.findall(r"(?:metrics|transforms|pipelines)/[\w/]+(?:\.py)?", figure)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def has_logic(path):
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return any(isinstance(node, ast.FunctionDef) for node in nodes)


def test_a_module_with_logic_has_tests_of_its_name():
    """Of what others stand on; commands are tested by what they do."""
    paths = [path for layer in ("metrics", "transforms") for path in (ROOT / layer).rglob("*.py")]
    modules_with_logic = [
        path.relative_to(ROOT) for path in paths if path.name != "__init__.py" and has_logic(path)
    ]
    assert len(modules_with_logic) > 80
    missing = [
        path.as_posix()
        for path in modules_with_logic
        if not (ROOT / "tests" / path.parent / f"test_{path.name}").is_file()
    ]
    assert missing == [], "name the module of tests after the module that it tests"
