"""Changes somewhere in a JSON document, by what it means rather than by its bytes."""

from __future__ import annotations

import copy
import json
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Verbatim:
    """A JSON text that no value stands for, such as a key that occurs twice."""

    def __init__(self, text: str) -> None:
        self.text = text


def nested(depth: int, *, in_objects: bool = False) -> Verbatim:
    """Return arrays, or objects, in each other."""
    begin, end = ('{"a":', "}") if in_objects else ("[", "]")
    return Verbatim(begin * depth + "1" + end * depth)


ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, 10**400, -(2**64), 0.5, 1e308, -0.0),
    *("", "x", " ", "0", "1", "NaN", "Infinity", "-Infinity", "2024-01-01", "2024-01-01T00:00:00"),
    *("\u0000", "\ud800", "é", "x" * 5000, "int64", "double", "list<item: int64>", "timestamp[us]"),
    *("decimal128(9, 2)", "decimal128(99, 2)", "decimal(x)", "time64[s]", "dictionary", "float"),
    *("uint8", "bool", "string", "binary", "timestamp[us, tz=Nowhere/No]", "null", "date32[day]"),
    *([], [None], [1], [1, 2], [2, 1], ["a", "b"], ["a", "a"], [[1]], {}, {"a": 1}, [{}]),
    *(Verbatim("NaN"), Verbatim("Infinity"), Verbatim("1e400"), Verbatim("9" * 5000), Verbatim("")),
    *(nested(100), nested(100_000), nested(50_000, in_objects=True)),
)


def text(tree: Any) -> str:
    """Return the JSON text of a tree."""
    if isinstance(tree, Verbatim):
        return tree.text
    if isinstance(tree, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(key)}: {text(value)}" for key, value in tree.items())
            + "}"
        )
    if isinstance(tree, list):
        return "[" + ", ".join(map(text, tree)) + "]"
    return json.dumps(tree)


Place = tuple[Any, Any]


def places(tree: Any) -> list[Place]:
    """Return every (container, key) of a tree."""
    found: list[Place] = []
    keys = (
        tree.keys()
        if isinstance(tree, dict)
        else range(len(tree))
        if isinstance(tree, list)
        else ()
    )
    for key in keys:
        found.append((tree, key))
        found += places(tree[key])
    return found


def _replace(rng: random.Random, container: Any, key: Any) -> None:
    container[key] = copy.deepcopy(rng.choice(ODD_VALUES))


def _nudge(rng: random.Random, container: Any, key: Any) -> None:
    """Change a value into one of its own type."""
    value = container[key]
    if isinstance(value, bool):
        container[key] = not value
    elif isinstance(value, int | float):
        container[key] = rng.choice(
            (value + 1, value - 1, -value, value * 2, value + 0.5, float(value))
        )
    elif isinstance(value, str):
        container[key] = rng.choice(
            (value + "x", value[1:], value.upper(), value[::-1], f" {value}")
        )
    elif isinstance(value, list):
        rng.shuffle(value)
    elif isinstance(value, dict):
        value["surplus"] = 1


def _delete(rng: random.Random, container: Any, key: Any) -> None:
    del container[key]


def _double(rng: random.Random, container: Any, key: Any) -> None:
    """Repeat an element of an array, or a key with another value."""
    if isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))
    else:
        other = text(rng.choice(ODD_VALUES[:14]))
        container[key] = Verbatim(f"{text(container[key])}, {json.dumps(key)}: {other}")


def _rename(rng: random.Random, container: Any, key: Any) -> None:
    if isinstance(container, dict):
        container[rng.choice(("surplus", "", key + " ", key.upper(), "x_note"))] = container.pop(
            key
        )


def _swap(rng: random.Random, container: Any, key: Any) -> None:
    other = rng.choice(list(container) if isinstance(container, dict) else range(len(container)))
    container[key], container[other] = container[other], container[key]


MUTATIONS: tuple[Callable[[random.Random, Any, Any], None], ...] = (
    *(_replace, _replace, _replace, _nudge, _nudge, _nudge),
    *(_delete, _double, _rename, _swap, _swap),
)


def mutate(rng: random.Random, tree: Any) -> str:
    """Change one place of a tree, and return what was done."""
    found = [place for place in places(tree) if not isinstance(place[0], Verbatim)]
    if not found:
        return "nothing"
    container, key = rng.choice(found)
    mutation = rng.choice(MUTATIONS)
    mutation(rng, container, key)
    return f"{mutation.__name__.strip('_')} {key}"[:60]
