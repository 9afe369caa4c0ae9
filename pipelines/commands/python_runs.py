"""Commands from Python: on tables in memory or on files, with the result in memory."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from slicebeam.metrics.errors import (
    ColumnError,
    EngineError,
    InputError,
    OptionError,
    SlicebeamError,
    unknown_name,
)
from slicebeam.pipelines.changelist.document import SearchChangeList, ShiftChangeList
from slicebeam.pipelines.changelist.reading import opened_table
from slicebeam.pipelines.commands.command import engine_of
from slicebeam.pipelines.commands.table import COMMANDS, data_command
from slicebeam.pipelines.config.common import validated
from slicebeam.pipelines.config.option_fields import (
    Options,
    as_flag,
    declared,
    first_argument,
    with_keywords,
)
from slicebeam.pipelines.config.run_options import RunOptions
from slicebeam.pipelines.run.open_run import Published
from slicebeam.pipelines.show.terminal import Terminal
from slicebeam.transforms.formats.schemas import storable
from slicebeam.transforms.storage.secrets import allow_http, redacted


def _schema(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([(name, kind) for names, kind in columns for name in names.split()])


_TEXT, _WHOLE, _NUMBER = pa.string(), pa.int64(), pa.float64()
_SHIFTED = _schema(
    ("slice_id slice", _TEXT),
    ("n calls", _WHOLE),
    ("value reference delta ci_low ci_high p_value q_value", _NUMBER),
    ("significant", pa.bool_()),
    ("direction", _TEXT),
)
_FINDINGS = _schema(
    ("metric direction", _TEXT),
    ("rank", _WHOLE),
    ("slice_id slice", _TEXT),
    ("n", _WHOLE),
    ("value expected corrected corrected_low corrected_high difference ci_low ci_high", _NUMBER),
    ("p_value held_share rate_outside", _NUMBER),
    ("confirmed confirmed_low confirmed_high confirmed_p", _NUMBER),
    ("confirmed_n", _WHOLE),
)
# Columns of a finding and what they are of its difference: without what its selection adds, and again.
_CORRECTED = {"corrected": "difference", "corrected_low": "low", "corrected_high": "high"}
_CONFIRMED = {
    "confirmed": "difference",
    "confirmed_low": "low",
    "confirmed_high": "high",
    "confirmed_p": "p_value",
    "confirmed_n": "examples",
}


def _columns(part: Any, names: dict[str, str]) -> dict[str, Any]:
    """Return the columns of a part of a document; without values where there is none."""
    return {column: getattr(part, name, None) for column, name in names.items()}


@dataclass(frozen=True, repr=False)
class Report:
    """What a command found.

    Attributes
    ----------
    slices : a row for each slice; of a search or a check those of ``slices.parquet``, of a shift how
        the accuracy of each changed (`shifted_slices`)
    path : where the document is; None if no output was named
    explanation : how the slice that the user named got its p-value, line by line
    """

    changelist: SearchChangeList | ShiftChangeList
    slices: pa.Table
    path: str | None
    explanation: tuple[str, ...] = ()

    @property
    def findings(self) -> pa.Table:
        """The findings, metric by metric and by rank, as the document has them; none of a shift.

        metric, direction : text; rank : int64; slice_id, slice : text; n : int64; value, expected :
        double; corrected, corrected_low, corrected_high : double, the difference without what its
        selection adds, and its interval; difference, ci_low, ci_high : double, as observed; p_value,
        held_share, rate_outside : double; confirmed, confirmed_low, confirmed_high, confirmed_p :
        double, the difference on the reserved examples, confirmed_n : int64, null without ``confirm``.
        """
        names = {slice_.slice_id: slice_.name for slice_ in self.changelist.slices}
        rows = [
            {
                **finding.model_dump(exclude={"interval", "corrected", "confirmed"}),
                **_columns(finding.corrected, _CORRECTED),
                **_columns(finding.confirmed, _CONFIRMED),
                "slice": names[finding.slice_id],
                "ci_low": finding.interval[0],
                "ci_high": finding.interval[1],
            }
            for finding in self.changelist.findings
        ]
        return pa.Table.from_pylist(rows, schema=_FINDINGS)

    @property
    def parity(self) -> pa.Table:
        """The largest gaps of ``parity=``, as the document has them: a row for each column, model and measure."""
        return pa.Table.from_pylist([gap.model_dump() for gap in self.changelist.parity])

    def show(self, report: Literal["findings", "all"] = "findings") -> None:
        """Print it as the command does; in a notebook show its page in a frame.

        Parameters
        ----------
        report : ``all`` for the table of the worst slices in place of the findings; the page has both
        """
        if Console().is_jupyter:
            from IPython.display import HTML, display

            from slicebeam.pipelines.page.content import framed, page_in_memory

            display(HTML(framed(page_in_memory(self.changelist, self.slices))))
            return
        from slicebeam.pipelines.changelist.document import ShiftChangeList
        from slicebeam.pipelines.show.result import show_slices
        from slicebeam.pipelines.show.shift import show_shift

        if isinstance(self.changelist, ShiftChangeList):
            show_shift(self.changelist)
        else:
            show_slices(self.changelist, self.explanation, report)
            where = self.path or ".findings, .changelist; all slices: .slices"
            sys.stdout.write(f"Ids and all numbers: {where}\n")

    def _repr_html_(self) -> str:
        """Return the verdict and the findings, which notebooks show."""
        from slicebeam.pipelines.show.result import notebook_html

        return notebook_html(self.changelist)

    def __repr__(self) -> str:
        where = "" if self.path is None else f" in {self.path}"
        return f"<Report of {self.slices.num_rows:,} slices{where}: {self.changelist.summary}>"


def _words_of_python(message: str) -> str:
    """Return a message with keywords in place of flags, and without the secrets of engines and endpoints."""
    return redacted(with_keywords(message))


@contextmanager
def _errors_in(words: Callable[[str], str]) -> Iterator[None]:
    """Let errors say it in other words."""
    try:
        yield
    except SlicebeamError as error:
        message = words(str(error))
        if message == str(error):
            raise
        raise type(error)(message) from None


@_errors_in(_words_of_python)
def run_document(name: str, first: Any, options: dict[str, Any], *, progress: bool) -> Any:
    """Run a command on a ChangeList or another file, the first argument, and return what it returns."""
    command = COMMANDS[name]
    model = command.models[0]
    named = {} if first is None else {first_argument(model): first}
    config = validated(model, typed_options(model, {**named, **options}))
    return command.run(config, quiet=not progress)


@_errors_in(_words_of_python)
def run(name: str, data: Any, options: dict[str, Any], *, progress: bool) -> Report:
    """Run a command on data, with options by the names of the flags, ``_`` for ``-``."""
    command = data_command(name)
    model, options_type = command.models
    keywords = [field.name for field in declared(options_type).values() if field.is_keyword]
    chosen = {name: options.pop(name) for name in keywords if name in options}
    run_options = validated(RunOptions, chosen)
    allow_http(run_options.allow_http)
    earlier = options.pop("baseline_data", None)
    typed = typed_options(model, options)
    is_kept = "output" in typed
    # Lasting results are not in a temporary folder.
    if run_options.resume and not is_kept:
        raise OptionError("a run continues in the output where it began; give it as output=")
    if "api" in typed and "ledger" not in typed and not is_kept:
        raise OptionError("paid answers are stored in the ledger; give output= or ledger=")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slicebeam-")))
        # A table in memory is not a file to the user.
        written = re.compile(rf"(--data )?\S*{re.escape(str(folder))}/(data|earlier)\.parquet")
        stack.enter_context(_errors_in(partial(written.sub, "the data")))
        typed["data"] = files_of(data, folder / "data.parquet")
        if earlier is not None:
            typed["baseline_data"] = files_of(earlier, folder / "earlier.parquet")
        typed.setdefault("output", str(folder / "out"))
        engine = stack.enter_context(engine_of(typed))
        config = command.configured(typed)
        if name == "shift" and config.simulates:
            raise OptionError("plan and repeat publish nothing; use them on the command line")
        published = command.publish(config, engine, Terminal(quiet=not progress), run_options)
        place = str(published.changelist_path) if is_kept else None
        if not isinstance(published, Published):
            return Report(published.changelist, shifted_slices(published.changelist), place)
        with opened_slices(published) as stream:
            slices = pq.read_table(stream)
        return Report(published.changelist, slices, place, published.explanation)


@contextmanager
def opened_slices(published: Published) -> Iterator[IO[bytes]]:
    """Open the table of the slices that were published."""
    path = str(published.changelist_path)
    with opened_table(path, published.changelist) as stream:
        if stream is None:
            raise EngineError(f"{path} was replaced by another run before it could be read")
        yield stream


def typed_options(model: type[Options], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as the command line would have them."""
    fields, first = declared(model), first_argument(model)
    typed = {}
    for name, value in options.items():
        if name not in fields:
            raise unknown_name("option", name, [field for field in fields if field != first])
        if name == first == "data":
            raise OptionError("the data is the first argument; leave the option 'data' out")
        several = value if isinstance(value, (list, tuple)) else [value]
        plain = [os.fspath(part) if isinstance(part, os.PathLike) else part for part in several]
        typed[name] = as_flag(name, fields[name], plain if several is value else plain[0])
    return typed


def shifted_slices(document: ShiftChangeList) -> pa.Table:
    """Return the slices of a shift: how the accuracy of each changed.

    Returns
    -------
    pa.Table
        slice_id, slice : text; n, calls : int64; value, reference, delta, ci_low, ci_high : double,
        the accuracy now and before, and their difference with its interval; p_value, q_value : double;
        significant : bool; direction : text.
    """
    calls = {slice_.slice_id: slice_.calls for slice_ in document.shift.slices}
    rows = []
    for slice_ in document.slices:
        change = slice_.changes[0]
        row = {
            **change.model_dump(include={"p_value", "significant", "direction"}),
            "slice_id": slice_.slice_id,
            "slice": slice_.name,
            "n": slice_.size.n,
            "calls": calls[slice_.slice_id],
            "value": change.after.value,
            **_columns(change.before, {"reference": "value"}),
            **_columns(change.delta, {"delta": "value", "ci_low": "lo", "ci_high": "hi"}),
            "q_value": change.p_adjusted,
        }
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=_SHIFTED)


def files_of(data: Any, path: Path) -> tuple[str, ...]:
    """Return the files of the data, which are written where it is a table."""
    paths = [data] if isinstance(data, (str, os.PathLike)) else data
    if isinstance(paths, (list, tuple)) and all(
        isinstance(path, (str, os.PathLike)) for path in paths
    ):
        return tuple(map(os.fspath, paths))
    table = storable(arrow_table(data))
    try:
        pq.write_table(table, path)
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"the table can't be read ({reason}); write it as Parquet, and give the path"
        ) from error
    return (str(path),)


def arrow_table(data: Any) -> pa.Table:
    """Return a table from pandas, polars, Arrow or any other source of an Arrow stream."""
    try:
        if isinstance(data, pa.Table):
            return _without_views(data)
        if type(data).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(_plain(data), preserve_index=False)
        # By its method ``__arrow_c_stream__``, where it is not a batch of Arrow's.
        return _without_views(pa.table(data))
    except (TypeError, ValueError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"a {type(data).__name__} cannot be read as data ({reason}); give a table of pandas, "
            "polars or Arrow, or paths"
        ) from error


def _plain(data: Any) -> Any:
    """Return a pandas frame whose named index levels are columns, and whose intervals are text.

    An index without a name is not a column: it would be searched as a feature.
    """
    import pandas as pd

    if not isinstance(data, pd.DataFrame):
        return data
    frame = data.copy(deep=False)
    for level, name in enumerate(frame.index.names):
        if name is None:
            continue
        if name in frame.columns:
            raise ColumnError(
                f"the index is named {name!r}, as a column is; rename one, or reset_index(drop=True)"
            )
        frame[name] = frame.index.get_level_values(level)
    for place, kind in enumerate(frame.dtypes):
        if isinstance(kind, pd.IntervalDtype):
            column = frame.iloc[:, place].astype("category")
        elif isinstance(kind, pd.CategoricalDtype):
            column = frame.iloc[:, place]
        else:
            continue
        if isinstance(column.cat.categories.dtype, pd.IntervalDtype):
            frame.isetitem(place, column.cat.rename_categories(str).array)
    return frame


def _without_views(table: pa.Table) -> pa.Table:
    """Return a table whose texts are no views, which Parquet can't hold."""
    fields = [field.with_type(_without_view(field.type)) for field in table.schema]
    return table if fields == list(table.schema) else table.cast(pa.schema(fields))


def _without_view(kind: pa.DataType) -> pa.DataType:
    if kind in (pa.string_view(), pa.binary_view()):
        return pa.large_string() if kind == pa.string_view() else pa.large_binary()
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if is_list or pa.types.is_dictionary(kind):
        values = _without_view(kind.value_type)
        if values != kind.value_type:
            if is_list:
                return pa.large_list(values)
            return pa.dictionary(kind.index_type, values, kind.ordered)
    return kind
