"""Commands from Python: on tables in memory or on files, with what they found at hand."""

from __future__ import annotations

import io
import os
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.metrics.errors import EngineError, InputError, SlicebeamError, unknown_name
from slicebeam.pipelines.changelist_files import opened_table
from slicebeam.pipelines.changelist_parts import Estimate
from slicebeam.pipelines.check_config import CheckConfig
from slicebeam.pipelines.config import SearchConfig
from slicebeam.pipelines.discover_config import DiscoverConfig
from slicebeam.pipelines.launch import configuration, start_engine
from slicebeam.pipelines.option_fields import declared
from slicebeam.pipelines.option_values import CONFIGS, as_flag
from slicebeam.pipelines.shift.config import shift_config
from slicebeam.pipelines.terminal import Terminal
from slicebeam.pipelines.variables import redacted
from slicebeam.transforms.plain_http import allow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicebeam.pipelines.changelist import SearchChangeList, ShiftChangeList
    from slicebeam.pipelines.data_config import Command
    from slicebeam.pipelines.runner import Engine

_SHIFTED = pa.schema(
    [
        *((name, pa.string()) for name in ("slice_id", "slice")),
        *((name, pa.int64()) for name in ("n", "calls")),
        *((name, pa.float64()) for name in ("value", "reference", "delta", "ci_low", "ci_high")),
        *((name, pa.float64()) for name in ("p_value", "q_value")),
        ("significant", pa.bool_()),
        ("direction", pa.string()),
    ]
)


@dataclass(frozen=True, repr=False)
class Report:
    """What a command found.

    Attributes
    ----------
    changelist : the document
    slices : a row for each slice; of a search or a check those of ``slices.parquet``, of a shift how
        the accuracy of each changed (`shifted_slices`)
    path : where the document is; None where no output was named
    explanation : how the slice that was asked for got its p-value, line by line
    """

    changelist: SearchChangeList | ShiftChangeList
    slices: pa.Table
    path: str | None
    explanation: tuple[str, ...] = ()

    def show(self) -> None:
        """Print it as the command does, in a notebook as HTML."""
        from slicebeam.pipelines.changelist import ShiftChangeList
        from slicebeam.pipelines.shift.terminal import show_shift
        from slicebeam.pipelines.terminal import show_slices

        if isinstance(self.changelist, ShiftChangeList):
            show_shift(self.changelist)
        else:
            show_slices(self.changelist, self.explanation)

    def __repr__(self) -> str:
        where = "" if self.path is None else f" in {self.path}"
        return f"<Report of {self.slices.num_rows:,} slices{where}: {self.changelist.summary}>"


def reported(
    command: Command, data: Any, options: Mapping[str, Any], *, resume: bool, progress: bool
) -> Report:
    """Run a command.

    Parameters
    ----------
    command : which one
    data : a table, or the paths or globs of files
    options : of its configuration, by the names of the flags with ``_`` for ``-``; None for those that
        are left out; ``explain`` of a search or a check; ``allow_http`` where endpoints are asked
    resume : go on where a stopped run was; begin where there is none, do nothing where it published
    progress : tell on stderr how far it is

    Raises
    ------
    InputError
        The options or the data are wrong.
    EngineError
        The engine or the storage failed.
    """
    try:
        return _reported(command, data, options, resume=resume, progress=progress)
    except SlicebeamError as error:
        message = redacted(str(error))
        if message == str(error):
            raise
        # What an engine or an endpoint says may have a secret in it.
        raise type(error)(message) from None


def _reported(
    command: Command, data: Any, options: Mapping[str, Any], *, resume: bool, progress: bool
) -> Report:
    given = {name: value for name, value in options.items() if value is not None}
    explain = given.pop("explain", None) if command != "shift" else None
    allow(command != "search" and bool(given.pop("allow_http", False)))
    typed = _typed(command, given)
    if "output" not in typed:
        _check_nothing_is_lost(typed, resume=resume)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slicebeam-")))
        typed["data"] = _files(data, folder)
        is_kept = "output" in typed
        typed.setdefault("output", str(folder / "out"))
        engine = stack.enter_context(
            start_engine(typed.get("runner_config", "direct"), typed.get("runner_option", ()))
        )
        terminal = Terminal(quiet=not progress)
        stack.callback(terminal.stop)
        report = _run(command, typed, engine, terminal, resume=resume, explain=explain)
    if is_kept:
        return report
    return Report(report.changelist, report.slices, None, report.explanation)


def _typed(command: Command, given: Mapping[str, Any]) -> dict[str, Any]:
    fields = declared(CONFIGS[command])
    typed = {}
    for name, value in given.items():
        if name not in fields:
            raise unknown_name("option", name, [one for one in fields if one != "data"])
        if name == "data":
            raise InputError("the data is the first argument; leave the option 'data' out")
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
        typed[name] = as_flag(name, fields[name], text)
    return typed


def _check_nothing_is_lost(typed: Mapping[str, Any], *, resume: bool) -> None:
    """Raise where what has to last would go with a temporary folder."""
    if resume:
        raise InputError("a run goes on in the output that it began with; name it as output=")
    if "api" in typed and "ledger" not in typed:
        raise InputError(
            "what is bought is kept in the ledger; name an output= or a ledger= for it"
        )


def _files(data: Any, folder: Path) -> tuple[str, ...]:
    """Return the files of the data, which are written where it is a table."""
    if isinstance(data, (str, os.PathLike)):
        return (os.fspath(data),)
    if isinstance(data, (list, tuple)) and all(isinstance(one, (str, os.PathLike)) for one in data):
        return tuple(os.fspath(one) for one in data)
    path = folder / "data.parquet"
    table = _table(data)
    try:
        pq.write_table(table, path)
    except pa.ArrowException as error:
        raise InputError(_unwritable(table, str(error).splitlines()[0])) from error
    return (str(path),)


def _unwritable(table: pa.Table, reason: str) -> str:
    """Return what to say of a table that has a column which Parquet can't hold."""
    for place, field in enumerate(table.schema):
        if _is_writable(table.select([place])):
            continue
        return (
            f"column {field.name!r} is {field.type}, which can't be read; convert it, such as by "
            ".astype(str), or drop it"
        )
    return f"the table can't be read ({reason}); write it as Parquet, and give the path"


def _is_writable(table: pa.Table) -> bool:
    try:
        pq.write_table(table, io.BytesIO())
    except pa.ArrowException:
        return False
    return True


def _table(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    try:
        if type(data).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(_plain(data), preserve_index=False)
        return pa.table(data)
    except (TypeError, ValueError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"a {type(data).__name__} is no data that can be read ({reason}); give a pandas or Arrow "
            "table, or paths"
        ) from error


def _plain(data: Any) -> Any:
    """Return a pandas frame whose named index levels are columns, and whose intervals are text.

    An index without a name is no column: it would be searched as a feature.
    """
    import pandas as pd

    if not isinstance(data, pd.DataFrame):
        return data
    frame = data.copy(deep=False)
    for level, name in enumerate(frame.index.names):
        if name is None:
            continue
        if name in frame.columns:
            raise InputError(
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


def _run(
    command: Command,
    options: dict[str, Any],
    engine: Engine,
    terminal: Terminal,
    *,
    resume: bool,
    explain: str | None,
) -> Report:
    from slicebeam.pipelines.check import run_check
    from slicebeam.pipelines.discover import run_discovery
    from slicebeam.pipelines.search import run_search
    from slicebeam.pipelines.shift.run import run_shift

    if command == "shift":
        config = shift_config(options)
        if config.simulates:
            raise InputError("plan and repeat publish nothing; they are for the command line")
        assessed = run_shift(config, engine, terminal, resume=resume)
        return Report(
            assessed.changelist,
            shifted_slices(assessed.changelist),
            str(assessed.changelist_path),
        )
    chosen = configuration(command, options)
    if isinstance(chosen, DiscoverConfig):
        published = run_discovery(chosen, engine, terminal, resume=resume, asked=explain)
    elif isinstance(chosen, SearchConfig):
        published = run_search(chosen, engine, terminal, resume=resume, asked=explain)
    elif isinstance(chosen, CheckConfig):
        published = run_check(chosen, engine, terminal, resume=resume, asked=explain)
    else:
        raise TypeError(f"no function runs {command}")
    path = str(published.changelist_path)
    with opened_table(path, published.changelist) as stream:
        if stream is None:
            raise EngineError(f"{path} was replaced by another run before it could be read")
        slices = pq.read_table(stream)
    return Report(published.changelist, slices, path, published.explanation)


def shifted_slices(document: ShiftChangeList) -> pa.Table:
    """Return the slices of a shift.

    Returns
    -------
    pa.Table
        slice_id, slice : text; n, calls : int64; value, reference, delta, ci_low, ci_high : double,
        the accuracy now and before, and their difference with its interval; p_value, q_value : double;
        significant : bool; direction : text.
    """
    calls = {one.slice_id: one.calls for one in document.shift.slices}
    rows = []
    for one in document.slices:
        change = one.changes[0]
        delta = change.delta or Estimate()
        rows.append(
            {
                "slice_id": one.slice_id,
                "slice": one.name,
                "n": one.size.n,
                "calls": calls[one.slice_id],
                "value": change.after.value,
                "reference": None if change.before is None else change.before.value,
                "delta": delta.value,
                "ci_low": delta.lo,
                "ci_high": delta.hi,
                "p_value": change.p_value,
                "q_value": change.p_adjusted,
                "significant": change.significant,
                "direction": change.direction,
            }
        )
    return pa.Table.from_pylist(rows, schema=_SHIFTED)
