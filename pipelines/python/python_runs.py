"""Commands from Python: on tables in memory or on files, with the result in memory."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from slicebeam.metrics.errors import EngineError, OptionError, SlicebeamError, unknown_name
from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.changelist.reading import opened_table
from slicebeam.pipelines.commands.launch import configuration
from slicebeam.pipelines.commands.table import COMMANDS, command_spec
from slicebeam.pipelines.config.coercion import as_flag
from slicebeam.pipelines.config.common import validated
from slicebeam.pipelines.config.option_fields import declared, first_argument, with_keywords
from slicebeam.pipelines.config.run_options import RunOptions
from slicebeam.pipelines.python.memory_tables import files_of
from slicebeam.pipelines.run.engine import start_engine
from slicebeam.pipelines.show.terminal import Terminal
from slicebeam.pipelines.show.terminal_text import harmless
from slicebeam.transforms.secrets.plain_http import allow
from slicebeam.transforms.secrets.variables import redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from slicebeam.pipelines.changelist.document import SearchChangeList, ShiftChangeList
    from slicebeam.pipelines.changelist.slices import Finding
    from slicebeam.pipelines.config.common import Command
    from slicebeam.pipelines.config.option_fields import Options
    from slicebeam.pipelines.config.shift import ShiftConfig
    from slicebeam.pipelines.run.engine import Engine

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


_FINDINGS = pa.schema(
    [
        *((name, pa.string()) for name in ("metric", "direction")),
        ("rank", pa.int64()),
        *((name, pa.string()) for name in ("slice_id", "slice")),
        ("n", pa.int64()),
        *((name, pa.float64()) for name in ("value", "expected", "corrected")),
        *((name, pa.float64()) for name in ("corrected_low", "corrected_high", "difference")),
        *((name, pa.float64()) for name in ("ci_low", "ci_high", "p_value")),
        *((name, pa.float64()) for name in ("held_share", "rate_outside", "confirmed")),
        *((name, pa.float64()) for name in ("confirmed_low", "confirmed_high", "confirmed_p")),
        ("confirmed_n", pa.int64()),
    ]
)


def _confirmed(one: Finding) -> dict[str, float | None]:
    again = one.confirmed
    if again is None:
        return {"confirmed": None}
    ends = {"confirmed_low": again.low, "confirmed_high": again.high}
    numbers = {"confirmed": again.difference, "confirmed_p": again.p_value}
    return {**numbers, **ends, "confirmed_n": again.examples}


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
        names = {one.slice_id: one.name for one in self.changelist.slices}
        rows = [
            {
                **one.model_dump(exclude={"interval"}),
                "slice": names[one.slice_id],
                "corrected": one.corrected.difference,
                "corrected_low": one.corrected.low,
                "corrected_high": one.corrected.high,
                "ci_low": one.interval[0],
                "ci_high": one.interval[1],
                **_confirmed(one),
            }
            for one in self.changelist.findings
        ]
        return pa.Table.from_pylist(rows, schema=_FINDINGS)

    @property
    def parity(self) -> pa.Table:
        """The largest gaps of ``parity=``, as the document has them: a row for each column, model and measure."""
        return pa.Table.from_pylist([one.model_dump() for one in self.changelist.parity])

    def show(self, report: Literal["findings", "all"] = "findings") -> None:
        """Print it as the command does; in a notebook show its page in a frame.

        Parameters
        ----------
        report : ``all`` for the table of the worst slices in place of the findings; the page has both
        """
        if Console().is_jupyter:
            from IPython.display import HTML, display

            from slicebeam.pipelines.page.content import page_in_memory
            from slicebeam.pipelines.page.single_file import framed

            display(HTML(framed(page_in_memory(self.changelist, self.slices))))
            return
        from slicebeam.pipelines.changelist.document import ShiftChangeList
        from slicebeam.pipelines.show.shift import show_shift
        from slicebeam.pipelines.show.slice_tables import show_slices
        from slicebeam.pipelines.show.terminal_text import ATTRIBUTES, FILES

        if isinstance(self.changelist, ShiftChangeList):
            show_shift(self.changelist)
        else:
            in_python = self.path is None
            places = ATTRIBUTES if in_python else FILES
            show_slices(self.changelist, self.explanation, report, places)
            where = ".findings, .changelist; all slices: .slices" if in_python else self.path
            sys.stdout.write(f"Ids and all numbers: {where}\n")

    def _repr_html_(self) -> str:
        """Return the verdict and the findings, which notebooks show."""
        from slicebeam.pipelines.show.notebook import notebook_html

        return notebook_html(self.changelist)

    def __repr__(self) -> str:
        where = "" if self.path is None else f" in {self.path}"
        return f"<Report of {self.slices.num_rows:,} slices{where}: {self.changelist.summary}>"


def run(name: str, data: Any, options: Mapping[str, Any]) -> Report:
    """Run a command on data.

    Parameters
    ----------
    options : by the names of the flags with ``_`` for ``-``; None for those that are left out;
        ``progress`` prints on stderr how far it is

    Raises
    ------
    InputError
        The options or the data are wrong.
    EngineError
        The engine or the storage failed.
    """
    with _errors_in(_words_of_python):
        return _run(name, data, _given(options))


def run_document(name: str, first: Any, options: Mapping[str, Any]) -> Any:
    """Run a command on a ChangeList or another file, and return what it returns.

    Parameters
    ----------
    name : of the command, such as ``edit rename``
    first : path of a document, or of its folder for the last revision; of some commands another file
    options : as for `run`

    Raises
    ------
    InputError
        The options, the document or the data are wrong.
    EngineError
        The engine, an API or the storage failed.
    """
    with _errors_in(_words_of_python):
        spec = command_spec(name)
        model = spec.options[0]
        given = _given({first_argument(model): first, **options})
        prints = bool(given.pop("progress", False))
        typed = typed_options(model, given)
        config = validated(model, typed)
        allow(bool(typed.get("allow_http", False)))

        def note(text: str) -> None:
            if prints:
                sys.stderr.write(f"{harmless(text)}\n")

        return spec.run(config, note)


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


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _run(name: str, data: Any, given: dict[str, Any]) -> Report:
    config, options_type = COMMANDS[name].options
    prints = bool(given.pop("progress", False))
    beside = [key for key, one in declared(options_type).items() if one.is_keyword]
    run_options = validated(RunOptions, {key: given.pop(key) for key in beside if key in given})
    allow(run_options.allow_http)
    typed = typed_options(config, given)
    if "output" not in typed:
        _check_nothing_is_lost(typed, resume=run_options.resume)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slicebeam-")))
        # A table in memory is not a file to the user.
        written = re.compile(rf"(--data )?\S*{re.escape(str(folder))}/data\.parquet")
        stack.enter_context(_errors_in(partial(written.sub, "the data")))
        typed["data"] = files_of(data, folder)
        is_kept = "output" in typed
        typed.setdefault("output", str(folder / "out"))
        engine = stack.enter_context(
            start_engine(typed.get("runner_config", "direct"), typed.get("runner_option", ()))
        )
        terminal = Terminal(quiet=not prints)
        stack.callback(terminal.stop)
        if name == "shift":
            report = _shift(typed, engine, terminal, run_options)
        else:
            report = _find(config.command, typed, engine, terminal, run_options)
    if is_kept:
        return report
    return Report(report.changelist, report.slices, None, report.explanation)


def typed_options(model: type[Options], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as the command line would have them."""
    fields, first = declared(model), first_argument(model)
    typed = {}
    for name, value in given.items():
        if name not in fields:
            raise unknown_name("option", name, [one for one in fields if one != first])
        if name == first == "data":
            raise OptionError("the data is the first argument; leave the option 'data' out")
        several = isinstance(value, (list, tuple))
        plain = [_plain(one) for one in value] if several else _plain(value)
        typed[name] = as_flag(name, fields[name], plain)
    return typed


def _plain(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _check_nothing_is_lost(typed: Mapping[str, Any], *, resume: bool) -> None:
    """Raise if lasting results would be in a temporary folder."""
    if resume:
        raise OptionError("a run continues in the output where it began; give it as output=")
    if "api" in typed and "ledger" not in typed:
        raise OptionError("paid answers are stored in the ledger; give output= or ledger=")


def _shift(
    options: dict[str, Any], engine: Engine, terminal: Terminal, run_options: RunOptions
) -> Report:
    command = COMMANDS["shift"]
    config: ShiftConfig = command.configured(options)
    if config.simulates:
        raise OptionError("plan and repeat publish nothing; use them on the command line")
    assessed = command.run(config, engine, terminal, resume=run_options.resume)
    return Report(
        assessed.changelist, shifted_slices(assessed.changelist), str(assessed.changelist_path)
    )


def _find(
    command: Command,
    options: dict[str, Any],
    engine: Engine,
    terminal: Terminal,
    run_options: RunOptions,
) -> Report:
    config = configuration(command, options)
    published = COMMANDS[command].run(
        config, engine, terminal, resume=run_options.resume, explained_slice=run_options.explain
    )
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
