"""The small tables that are mutated."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

JOBS = ("nurse", "clerk, senior", 'the "boss"', "ärztin", "NA", "x")
FLAGS = ["--label", "label", "--prediction", "pred", "--max-cross-size", "1"]


def rows(rng: random.Random, *, most: int = 120) -> list[dict[str, Any]]:
    """Return examples: two to ``most`` rows of numbers, texts, dates, booleans, and classes.

    The classes are texts, whole numbers or booleans; predictions are right four times in five.
    """
    count = rng.choice((2, 5, 20, most, most))
    classes: tuple[Any, ...] = rng.choice((("no", "yes"), (0, 1), (False, True), ("a", "b", "c")))
    first = dt.date(2024, 1, 1)
    made = []
    for at in range(count):
        label = classes[at % len(classes)]
        made.append(
            {
                "age": rng.randint(18, 80),
                "hours": None if rng.random() < 0.1 else round(rng.gauss(40, 10), 2),
                "job": rng.choice(JOBS),
                "night": rng.random() < 0.3,
                "day": first + dt.timedelta(rng.randrange(9)),
                "tags": rng.sample(("red", "green", "blue"), rng.randrange(3)),
                "label": label,
                "pred": label if rng.random() < 0.8 else rng.choice(classes),
            }
        )
    # Else no prediction might be a label, which is refused.
    made[0]["pred"] = made[0]["label"]
    return made


def text(value: Any) -> str:
    """Return a value as a CSV file holds it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "|".join(value)
    return str(value)


def flags(rng: random.Random) -> list[str]:
    """Return the options of a search that tests every slice and prints in one of the three ways."""
    printing = rng.choice((["--quiet"], ["--quiet"], ["--json"], []))
    return [*FLAGS, "--min-slice-size", "1", *printing]
