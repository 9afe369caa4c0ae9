"""The commands as functions of Python, and the search as a transform of Beam.

Their keywords are the options of the commands, with ``_`` for ``-``; a command that is a word of
Python has ``_`` behind its name. Editors and mypy know the keywords from the fields of the
configurations; `help` and notebooks from the signatures that are made of them here.
"""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, get_args

from slicebeam.pipelines.changelist.discovered import Edit
from slicebeam.pipelines.commands.export import ExportTfmaConfig
from slicebeam.pipelines.commands.python_runs import Report, run, run_document
from slicebeam.pipelines.commands.table import COMMANDS
from slicebeam.pipelines.config import adapt as adapt_options
from slicebeam.pipelines.config import document, run_options
from slicebeam.pipelines.config.check import CheckConfig
from slicebeam.pipelines.config.discover import DiscoverConfig
from slicebeam.pipelines.config.option_fields import (
    FILE,
    FOLDER,
    PATH,
    OptionField,
    by_panel,
    declared,
    first_argument,
    with_keywords,
)
from slicebeam.pipelines.config.search import SearchConfig
from slicebeam.pipelines.config.shift import ShiftConfig
from slicebeam.pipelines.run.open_run import Published
from slicebeam.pipelines.tfma.export import Exported

if TYPE_CHECKING:
    from slicebeam.pipelines.adaptive.checklist import ImportedSuite
    from slicebeam.pipelines.adaptive.from_slices.make_tests import SliceTests
    from slicebeam.pipelines.adaptive.suggestions.suggest import Suggestions
    from slicebeam.pipelines.adaptive.training import TrainingExport
    from slicebeam.pipelines.attribution.session import Finished, Sampled, Stopped
    from slicebeam.pipelines.commands.find_slices import FindSlices
    from slicebeam.pipelines.config.option_fields import StrPath
    from slicebeam.pipelines.define.new_slices import Revision

__all__ = [
    "FindSlices",
    "Report",
    "adapt",
    "attribute",
    "check",
    "define",
    "discover",
    "edit",
    "export",
    "report",
    "search",
    "shift",
    "show",
]
Keywords = ParamSpec("Keywords")
Result = TypeVar("Result")
# How a flag is given several times.
_REPEATED = re.compile("Repeatable(, or separated by commas)?")
_NONE = inspect.Parameter.empty
_PROGRESS = "print progress and notes on stderr"
_DATA = "a table of pandas, polars or Arrow, or paths or globs of files"


def __getattr__(name: str) -> Any:
    """Import Beam only for a pipeline."""
    if name == "FindSlices":
        from slicebeam.pipelines.commands.find_slices import FindSlices

        return FindSlices
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def function_name(name: str) -> str:
    """Return what the function of a command is called, of one within a command in its class.

    >>> function_name("adapt import-checklist"), function_name("adapt from")
    ('import_checklist', 'from_')
    """
    word = name.rsplit(maxsplit=1)[-1].replace("-", "_")
    return f"{word}_" if keyword.iskeyword(word) else word


def keywords(name: str) -> list[OptionField]:
    """Return the options of a command that are keywords of its function, required ones first."""
    fields = [field for model in COMMANDS[name].models for field in declared(model).values()]
    panels = by_panel([field for field in fields if field.is_keyword])
    ordered = list(chain.from_iterable(panels.values()))
    return sorted(ordered, key=lambda field: _default(field) is not _NONE)


def signature(name: str) -> inspect.Signature:
    """Return the signature of a command's function, for `help` and notebooks."""
    first = first_argument(COMMANDS[name].models[0])
    positional = inspect.Parameter(first, inspect.Parameter.POSITIONAL_ONLY)
    chosen = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(field),
            annotation=annotation(field),
        )
        for field in keywords(name)
    ]
    progress = inspect.Parameter(
        "progress", inspect.Parameter.KEYWORD_ONLY, default=False, annotation="bool"
    )
    return inspect.Signature([positional, *chosen, progress])


def docstring(name: str) -> str:
    """Return the docstring of a command's function, with its keywords."""
    spec = COMMANDS[name]
    first = first_argument(spec.models[0])
    about = _DATA if first == "data" else "a ChangeList, or its folder for the last revision"
    if first not in ("data", "changelist"):
        about = declared(spec.models[0])[first].help
    lines = [_worded(spec.help), "", "Parameters", "----------", f"{first} : {about}"]
    for field in keywords(name):
        help_ = field.help
        if field.default_words:
            help_ += f" By default {field.default_words}."
        lines.append(f"{field.name} : {_worded(help_)}")
    lines += [
        f"progress : {_PROGRESS}",
        "",
        "Raises",
        "------",
        "InputError",
        "    An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.",
        "EngineError",
        "    The engine, an API or the storage (`StorageError`) failed.",
    ]
    return "\n".join(lines)


def annotation(field: OptionField) -> str:
    """Return the type of a keyword, as Python source."""
    plain = "StrPath" if field.option.metavar in (FILE, FOLDER, PATH) else "str"
    if field.is_list:
        plain = "int" if int in get_args(field.kind) else plain
        kinds = [plain, f"Sequence[{plain}]"]
        if plain == "int":
            kinds.append("str")
        if field.takes_mapping:
            kinds.append("Mapping[str, object]")
    elif field.choices:
        words = ", ".join(f'"{word}"' for word in field.choices)
        kinds = [f"Literal[{words}]"]
    elif field.kind in (int, float, bool):
        kinds = [field.kind.__name__]
    else:
        kinds = [plain, *(["float"] if field.option.takes_numbers else [])]
    may_be_none = field.is_nullable or field.name == "output"
    return " | ".join([*kinds, *(["None"] if may_be_none else [])])


def _default(field: OptionField) -> Any:
    """Return the default of a keyword; without an output nothing is published."""
    if field.name == "output":
        return None
    return _NONE if field.is_required else field.default


def _worded(text: str) -> str:
    text = _REPEATED.sub("One or several", text)
    return with_keywords(text, "`")


def _function(name: str, run_it: Callable[..., Any]) -> Any:

    def function(first: Any, /, *, progress: bool = False, **options: Any) -> Any:
        chosen = {option: value for option, value in options.items() if value is not None}
        return run_it(name, first, chosen, progress=progress)

    function.__name__ = function.__qualname__ = function_name(name)
    function.__doc__ = docstring(name)
    function.__signature__ = signature(name)  # type: ignore[attr-defined]
    return function


def _on_data(
    name: str, _: Callable[Keywords, object]
) -> Callable[Concatenate[Any, Keywords], Report]:
    """Return the function of a command on data; type checkers have the keywords from the class."""
    return _function(name, run)


class _Document(Generic[Result]):
    """Makes the functions of commands on a ChangeList or another file, which return a ``Result``."""

    def __call__(
        self, name: str, _: Callable[Keywords, object]
    ) -> Callable[Concatenate[StrPath, Keywords], Result]:
        return _function(name, run_document)


class _Search(SearchConfig, run_options.SearchRunOptions): ...


class _Check(CheckConfig, run_options.RunOptions): ...


class _Discover(DiscoverConfig, run_options.DiscoverRunOptions): ...


class _Shift(ShiftConfig, run_options.ShiftRunOptions): ...


_revision: _Document[Revision] = _Document()
_rows: _Document[list[dict[str, Any]]] = _Document()
_path: _Document[str] = _Document()
_edits: _Document[tuple[Edit, ...]] = _Document()
_exported: _Document[Exported] = _Document()
_published: _Document[Published] = _Document()
_suggestions: _Document[Suggestions] = _Document()
_training: _Document[TrainingExport] = _Document()
_tests: _Document[SliceTests] = _Document()
_suite: _Document[ImportedSuite] = _Document()
_sampled: _Document[Sampled] = _Document()
_finished: _Document[Finished] = _Document()
_rounds: _Document[Finished | Stopped] = _Document()

search = _on_data("search", _Search)
check = _on_data("check", _Check)
discover = _on_data("discover", _Discover)
shift = _on_data("shift", _Shift)
define = _revision("define", document.DefineConfig)
show = _rows("show", document.ShowConfig)
report = _path("report", document.ReportConfig)


class edit:
    """Change the slices of a ChangeList. Every edit can be undone."""

    rename = _revision("edit rename", document.RenameConfig)
    describe = _revision("edit describe", document.DescribeConfig)
    annotate = _revision("edit annotate", document.AnnotateConfig)
    remove = _revision("edit remove", document.SliceConfig)
    merge = _revision("edit merge", document.MergeConfig)
    split = _revision("edit split", document.SplitConfig)
    undo = _revision("edit undo", document.DocumentConfig)
    log = _edits("edit log", document.DocumentConfig)


class export:
    """Write a ChangeList in the format of another tool."""

    tfma = _exported("export tfma", ExportTfmaConfig)


class adapt:
    """Grow tests of a model, and see which topics an update fixed and broke."""

    run = _published("adapt run", adapt_options.AdaptRunConfig)
    suggest = _suggestions("adapt suggest", adapt_options.AdaptSuggestConfig)
    export_training = _training("adapt export-training", adapt_options.ExportTrainingConfig)
    from_ = _tests("adapt from", adapt_options.AdaptFromConfig)
    import_checklist = _suite("adapt import-checklist", adapt_options.ImportChecklistConfig)


class attribute:
    """Test with a few labels whether words describe a slice."""

    sample = _sampled("attribute sample", document.SampleConfig)
    estimate = _finished("attribute estimate", document.AttributionConfig)
    run = _rounds("attribute run", document.RoundsConfig)
