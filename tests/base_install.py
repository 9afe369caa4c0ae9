"""Runs commands where what only the extras bring cannot be imported, as after ``pip install .``.

``python tests/base_install.py ABSENT.json COMMANDS.json`` runs lists of arguments one after another and
writes their exit codes beside them; ``… ABSENT.json serve OUTPUT`` runs one command as it stands.
"""

import json
import sys
from importlib.metadata import distributions
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib
ROOT = Path(__file__).parent.parent


def project():
    """What pyproject.toml says of the package."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def required():
    """The distributions that ``pip install .`` brings, without those of the extras."""
    installed = {canonicalize_name(one.name): one for one in distributions()}
    found = set()
    waiting = [Requirement(one) for one in project()["dependencies"]]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        environments = [{"extra": extra} for extra in ("", *requirement.extras)]
        further = installed[name].requires if name in installed else None
        if name not in found:
            found.add(name)
            every = map(Requirement, further or ())
            waiting += [
                one
                for one in every
                if not one.marker or any(map(one.marker.evaluate, environments))
            ]
    return found


def absent_modules():
    """The modules of this environment that ``pip install .`` does not bring."""
    kept = {*required(), canonicalize_name(project()["name"])}
    there, others = set(), []
    for one in distributions():
        names = list(_modules(map(str, one.files or ())))
        if canonicalize_name(one.name) in kept:
            there.update(part for name in names for part in _prefixes(name))
        else:
            others += names
    # Of a package that both have, such as `google`, only the parts are absent.
    others = [name for name in others if name not in there]
    return sorted({next(one for one in _prefixes(name) if one not in there) for name in others})


def _modules(files):
    for file in files:
        path = PurePosixPath(file)
        if path.suffix in (".py", ".so") and ".." not in path.parts:
            parts = [*path.parent.parts, path.name.partition(".")[0]]
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _prefixes(name):
    parts = name.split(".")
    return [".".join(parts[: at + 1]) for at in range(len(parts))]


class _Finder:
    """A finder of Python's that does not find some modules."""

    def __init__(self, finder, absent):
        self._finder, self._absent = finder, absent

    def __getattr__(self, name):
        return getattr(self._finder, name)

    def find_spec(self, name, path=None, target=None):
        if not self._absent.isdisjoint(_prefixes(name)):
            return None
        return self._finder.find_spec(name, path, target)


def hide(absent):
    hidden = frozenset(absent)
    sys.meta_path[:] = [_Finder(one, hidden) for one in sys.meta_path]  # type: ignore[misc]
    for name in list(sys.modules):
        if not hidden.isdisjoint(_prefixes(name)):
            del sys.modules[name]


if __name__ == "__main__":
    hide(json.loads(Path(sys.argv[1]).read_text("utf-8")))
    from slicebeam.pipelines.commands.cli import run

    if sys.argv[2].endswith(".json"):
        codes = [run(one) for one in json.loads(Path(sys.argv[2]).read_text("utf-8"))]
        Path(sys.argv[2]).with_suffix(".codes").write_text(json.dumps(codes))
    else:
        sys.exit(run(sys.argv[2:]))
