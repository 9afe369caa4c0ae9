"""What a user sees of suggestions: the failing tests first, and what each proposer came to."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.adaptive.proposers.families import ORIGIN
from slicebeam.pipelines.adaptive.topics import displayed
from slicebeam.pipelines.show.terminal_text import console_of_stdout

if TYPE_CHECKING:
    from slicebeam.pipelines.adaptive.suggestions.rounds import Suggestion
    from slicebeam.pipelines.adaptive.suggestions.suggest import Suggestions
    from slicebeam.pipelines.config.adapt import AdaptSuggestConfig

_MOST_SHOWN = 25


def suggestions_json(found: Suggestions) -> dict[str, Any]:
    """Return what ``--json`` prints of suggestions."""
    return {
        "topic": found.topic,
        "model": found.model,
        "suggestions": [
            {
                "topic": one.test.topic,
                "input": one.test.input,
                **({"second_input": one.test.second_input} if one.test.second_input else {}),
                "expectation": one.test.expectation,
                "value": one.test.value,
                "output": one.test.output,
                "score": None if math.isnan(one.score) else one.score,
                "fails": one.fails,
                "to_judge": one.test.is_guess,
                "origin": one.test.other[ORIGIN],
            }
            for one in found.tests
        ],
        "topics": [{"topic": topic, "proposer": name} for topic, name in found.topics],
        "yields": [
            {
                "proposer": one.proposer,
                "proposals": one.proposals,
                "failing": one.failing,
                "to_judge": one.guesses,
                "failing_per_100": round(one.per_hundred, 1),
            }
            for one in found.yields
        ],
        "file": found.path,
    }


def show_suggestions(found: Suggestions, _: AdaptSuggestConfig) -> None:
    """Print suggestions, and where they are."""
    from rich.table import Table

    console = console_of_stdout()
    if found.topics:
        console.print(f"Topics below {displayed(found.topic)}", markup=False)
        for topic, name in found.topics:
            console.print(f"  {displayed(topic)}  ({name})", markup=False)
    else:
        failing = sum(one.fails for one in found.tests)
        console.print(
            f"{failing:,} of {len(found.tests):,} proposals fail {found.model}", markup=False
        )
        table = Table(box=None, pad_edge=False)
        table.add_column("Fails", justify="right")
        for name in ("Input", "Expected", "Output", "Proposer"):
            table.add_column(name, overflow="fold")
        for one in found.tests[:_MOST_SHOWN]:
            table.add_row(*map(_plain, _row(one)))
        console.print(table)
        if len(found.tests) > _MOST_SHOWN:
            console.print(f"and {len(found.tests) - _MOST_SHOWN:,} more in the file", markup=False)
        _show_yields(found)
    # Paths are printed raw, so that no terminal width breaks them.
    sys.stdout.write(f"Suggestions: {found.path}\n")


def _row(one: Suggestion) -> tuple[str, ...]:
    test = one.test
    inputs = test.input if not test.second_input else f"{test.input} / {test.second_input}"
    score = "-" if math.isnan(one.score) else f"{one.score:.2f}"
    # What is expected is a guess, until a person says it.
    guess = "?" if test.is_guess and score != "-" else ""
    expected = f"{test.expectation} {test.value}".strip() or "(to judge)"
    return f"{score}{guess}", inputs, expected, test.output, one.family.proposer


def _plain(text: str) -> Any:
    from rich.text import Text

    return Text(text)


def _show_yields(found: Suggestions) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("Proposer")
    for name in ("Proposals", "Failing", "To judge", "Failing per 100"):
        table.add_column(name, justify="right")
    for one in found.yields:
        numbers = (one.proposals, one.failing, one.guesses)
        table.add_row(
            one.proposer, *(f"{number:,}" for number in numbers), f"{one.per_hundred:.0f}"
        )
    console = console_of_stdout()
    console.print()
    console.print(table)
