"""Terminal output of an attribution: the intervals, the decision, and what to do next."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import counted, printable
from slicebeam.pipelines.attribution.estimating import Assessed
from slicebeam.pipelines.attribution.session import Finished, Sampled, Stopped
from slicebeam.pipelines.changelist.discovered import Attribution
from slicebeam.pipelines.config.document import AttributionConfig
from slicebeam.pipelines.show.terminal_text import console_of_stdout, table_of

if TYPE_CHECKING:
    from rich.table import Table


_PHASES = {"precision": "in the slice", "recall": "outside it", "train": "for training"}


def _command(
    name: str, *more: str, config: AttributionConfig, changelist: str = "", slice_id: str = ""
) -> str:
    """Return a command line with the user's options, of another slice and document where they are named."""
    words = ["--changelist", changelist or config.changelist, "--slice", slice_id or config.slice]
    words += ["--text", config.text]
    words += ["--labels-dir", config.labels_dir] if config.labels_dir is not None else []
    words += [word for path in config.data for word in ("--data", path)]
    return f"  {shlex.join(('slicebeam', 'attribute', name, *words, *more))}"


def sampled_json(sampled: Sampled) -> dict[str, Any]:
    """Return what ``--json`` prints of a round."""
    drawn = sampled.drawn
    return {
        "round": drawn.number,
        "new": sampled.is_new,
        "items": len(drawn.asked),
        "left": sampled.left,
        "csv": str(sampled.sheet),
    }


def show_sampled(sampled: Sampled, config: AttributionConfig) -> None:
    """Print where the items to label are."""
    number, drawn = sampled.drawn.number, len(sampled.drawn.asked)
    lines = [
        f"Round {number} has no item to label: the labels of all drawn items are known.",
        "Next:",
    ]
    if sampled.left:
        more = len(sampled.drawn.items) - drawn
        labelled_before = f" ({more:,} more were drawn whose label is known)" if more else ""
        what = "to label" if sampled.is_new else f"of {drawn:,} still to label"
        lines = [
            f"Round {number}: {sampled.left:,} items {what}{labelled_before}.",
            "Write yes, no or unsure into the column label of:",
            f"  {sampled.sheet}",
            "Then:",
        ]
    console = console_of_stdout()
    for line in (*lines, _command("estimate", config=config)):
        console.out(line, highlight=False)


def finished_json(result: Finished | Stopped) -> tuple[Attribution, ...]:
    """Return what ``--json`` prints of an estimate; nothing where labels are missing."""
    return () if isinstance(result, Stopped) else (result.assessed.attribution,)


def show_finished(finished: Finished | Stopped, config: AttributionConfig) -> None:
    """Print the estimates, the decision and what to do next."""
    if isinstance(finished, Stopped):
        return
    attribution = finished.assessed.attribution
    console = console_of_stdout()
    console.print()
    console.print(printable(f"{attribution.text!r} of slice {finished.slice.name}"))
    console.print(_table(attribution))
    for line in (_labels(attribution), *finished.assessed.notes):
        console.print(line, style="dim")
    console.print(decided(finished.assessed))
    for line in _next(finished, config):
        console.out(line, highlight=False)
    if finished.document is not None:
        sys.stdout.write(f"{finished.document}\n")


def _table(attribution: Attribution) -> Table:
    confidence = attribution.precision.confidence or 0
    table = table_of("", f"{100 * confidence:.4g}% interval", "estimate", "wanted")
    table.columns[0].justify = "left"
    for name, estimate, wanted in (
        ("precision", attribution.precision, f"{attribution.least_precision:g}"),
        ("recall", attribution.recall, f"{attribution.least_recall:g}"),
        ("missed outside", attribution.missed, ""),
    ):
        value = "" if estimate.value is None else f"{estimate.value:.4f}"
        if value and name != "precision":
            # Few labels make it too high: the interval counts.
            value = f"({value})"
        table.add_row(name, f"{estimate.lo:.4f} … {estimate.hi:.4f}", value, wanted)
    return table


def _labels(attribution: Attribution) -> str:
    parts = []
    for phase, where in _PHASES.items():
        rounds = [round_ for round_ in attribution.rounds if round_.phase == phase]
        unsure = sum(round_.unsure for round_ in rounds)
        among = f"{sum(round_.positive for round_ in rounds):,} yes"
        among += f", {unsure:,} unsure" if unsure else ""
        if rounds:
            parts.append(f"{sum(round_.labelled for round_ in rounds):,} {where} ({among})")
    number = max((round_.round for round_ in attribution.rounds), default=0)
    return f"Labels of {counted(number, 'round')}: {'; '.join(parts)}."


def decided(assessed: Assessed) -> str:
    """Return the decision in a sentence."""
    attribution, intervals = assessed.attribution, assessed.found
    wanted = f"{attribution.least_precision:g} and {attribution.least_recall:g}"
    if assessed.decision == "accept":
        return (
            f"Accept: precision is at least {intervals.precision.low:.2f} and recall at least "
            f"{intervals.recall.low:.2f} ({wanted} were wanted)."
        )
    if assessed.decision == "update":
        low = [
            f"{name} is at most {interval.high:.2f} ({least:g} was wanted)"
            for name, interval, least in (
                ("precision", intervals.precision, attribution.least_precision),
                ("recall", intervals.recall, attribution.least_recall),
            )
            if interval.high < least
        ]
        return f"Update the slice or its words: {' and '.join(low)}; more labels would not help."
    return f"Label more: it is not yet known whether precision and recall reach {wanted}."


def _next(finished: Finished, config: AttributionConfig) -> list[str]:
    decision, proposed = finished.assessed.decision, finished.proposed
    draw = partial(_command, "sample", config=config)
    if proposed is not None:
        new = draw("--budget", "100", changelist=str(finished.document), slice_id=proposed.slice_id)
        of = f"{proposed.slice_id} of {proposed.size.n:,} examples"
        return [
            f"Proposed: slice {of}, by a trained classifier.",
            # A sample of the old slice is none of the new one.
            "It is a new slice and needs its own draws to be estimated; known labels are reused:",
            new,
        ]
    if decision == "label more":
        return ["Next:", draw("--budget", "100")]
    if decision == "update":
        return [
            "Try other words, or label items to train a classifier:",
            draw("--train", "--budget", "100"),
        ]
    return []
