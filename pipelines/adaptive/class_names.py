"""Names of classes: those that the tests of a tree use, and those that a model uses.

A test that expects a class which the model calls by another name fails whatever the model does, and a test
that rules it out passes. Such tests are refused where the names are known to differ; where the model may
know the name and did not use it, they are counted.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import InputError, OptionError, nearest_hint
from slicebeam.pipelines.adaptive.expectations import (
    CLASSIFIED_NOT,
    OUTPUTS,
    OUTPUTS_NOT,
    parse_expectation,
)
from slicebeam.pipelines.config.adapt import class_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# The output of the model, a class in the parentheses of an expectation, and what the classifier of outputs says.
Role = Literal["output", "parameter", "classifier"]
Mentions = dict[Role, Counter[str]]
_ROLES: dict[str, Role] = {OUTPUTS: "output", OUTPUTS_NOT: "output", CLASSIFIED_NOT: "classifier"}
# Bought answers that are looked at before the others are bought.
PROBED = 24
_MOST_SHOWN = 12
_PARAMETER = re.compile(r"\b(class|unless)\s*=\s*(.*?)(?=\s*(?:,|\)\s*$))")
_MINUS = " - "


@dataclass(frozen=True)
class ClassNames:
    """Which class of the models a name in the tree means; a name that is not mapped means itself."""

    # Classes of the models, by the names in the tree without spaces around them.
    by_tree: Mapping[str, str]

    @classmethod
    def of(cls, classes: Sequence[str]) -> ClassNames:
        """Return the names of ``--classes``."""
        return cls(class_pairs(classes))

    def in_model(self, name: str) -> str:
        """Return the class of the models that a name in the tree means.

        >>> ClassNames({"pos": "positive"}).in_model(" pos")
        'positive'
        """
        return self.by_tree.get(name.strip(), name)

    def in_tree(self, name: str) -> str:
        """Return the name in the tree that means a class of the models.

        >>> ClassNames({"pos": "positive"}).in_tree("positive")
        'pos'
        """
        return next((tree for tree, model in self.by_tree.items() if model == name), name)

    def is_declared(self, name: str) -> bool:
        """Whether the user says that a name stays as it is: ``--classes pos=pos``."""
        return self.by_tree.get(name.strip()) == name.strip()

    def applied(self, tests: pa.Table) -> pa.Table:
        """Return tests that name the classes as the models do."""
        if not self.by_tree:
            return tests
        written = pc.unique(tests["expectation"]).to_pylist()
        of_class = [one for one in written if parse_expectation(one).kind.name in _ROLES]
        values = _changed(tests["value"], self.in_model)
        has_class = pc.is_in(tests["expectation"], pa.array(of_class, pa.string()))
        for name, column in (
            ("value", pc.if_else(has_class, values, tests["value"])),
            ("expectation", _changed(tests["expectation"], self._expectation)),
        ):
            tests = tests.set_column(tests.schema.get_field_index(name), name, column)
        return tests

    def _expectation(self, written: str) -> str:
        return _PARAMETER.sub(lambda found: f"{found[1]}={self._parameter(found[2])}", written)

    def _parameter(self, name: str) -> str:
        if name in self.by_tree:
            return self.by_tree[name]
        return _MINUS.join(map(self.in_model, name.split(_MINUS)))

    def refuse_unused(self, *mentions: Mentions) -> None:
        """Refuse names that no test uses."""
        used = {part.strip() for one in mentions for part in _parts(one)}
        for name in self.by_tree if used else ():
            if name not in used:
                raise OptionError(
                    f"--classes {name}={self.by_tree[name]}: no test names the class {name!r}"
                    f"{nearest_hint(name, used)} classes of the tests: {_listed(used)}"
                )


def _changed(column: pa.ChunkedArray, change: Callable[[str], str]) -> pa.Array:
    encoded = column.combine_chunks().dictionary_encode()
    changed = [change(one) for one in encoded.dictionary.to_pylist()]
    return pa.array(changed, pa.string()).take(encoded.indices)


def mentioned(tests: pa.Table) -> Mentions:
    """Return the classes that scorable tests name, with the number of these tests."""
    found: Mentions = {"output": Counter(), "parameter": Counter(), "classifier": Counter()}
    for written, number in _counts(tests["expectation"]):
        parsed = parse_expectation(written)
        for name in (parsed.parameters.of_class, parsed.parameters.unless):
            if name:
                found["parameter"][name] += number
        if role := _ROLES.get(parsed.kind.name):
            values = tests["value"].filter(pc.equal(tests["expectation"], written))
            found[role].update(dict(_counts(values)))
    return found


def _counts(column: pa.ChunkedArray) -> list[tuple[str, int]]:
    counts = pc.value_counts(column).to_pylist()
    return [(one["values"], one["counts"]) for one in counts]


def _parts(mentions: Mentions) -> set[str]:
    """Return the classes that are named, and those of which a difference is named."""
    names = {name for counter in mentions.values() for name in counter}
    return names | {part for name in mentions["parameter"] for part in name.split(_MINUS)}


@dataclass(frozen=True)
class Vocabulary:
    """What a model says."""

    model: str
    known: frozenset[str]  # The classes that it has; empty if nobody knows.
    seen: frozenset[str] = frozenset()  # Outputs so far.
    inputs: int = 0  # Number of different inputs.

    @classmethod
    def of(cls, model: str, known: Iterable[str], answers: Mapping[Any, str | None]) -> Vocabulary:
        """Return that of a model by its outputs, None for no output, for different inputs."""
        said = [one for one in answers.values() if one is not None]
        return cls(model, frozenset(known), frozenset(said), len(said))

    @property
    def repeats(self) -> bool:
        """Whether half of the outputs or more occurred before, as classes do and free texts do not."""
        return 2 * len(self.seen) <= self.inputs + 1

    @property
    def may_be_classes(self) -> bool:
        """Whether the outputs are not free texts, nor numbers on a scale."""
        return self.repeats or not any(
            re.search(r"\s", one) or (_number(one) % 1 != 0 and not math.isnan(_number(one)))
            for one in self.seen
        )


def check_classes(
    names: ClassNames,
    mentions: Mentions,
    vocabulary: Vocabulary,
    others: Iterable[Vocabulary] = (),
    role: Role = "output",
) -> Counter[str]:
    """Refuse tests whose classes a model does not have; return classes that it may have, and never gave.

    Where the classes of the model are not known, tests are refused if none of their classes is among the
    outputs.
    """
    named = mentions[role]
    if vocabulary.known:
        allowed = vocabulary.known | vocabulary.seen
        parameters = (
            _unknown_parameters(names, mentions, allowed) if role == "output" else Counter()
        )
        missing = _missing(names, named, allowed) + parameters
        if missing:
            raise _refusal(names, missing, named + parameters, vocabulary)
        return missing
    seen = vocabulary.seen.union(
        *(one.known | one.seen for one in others if one.seen & vocabulary.seen)
    )
    missing = _missing(names, named, seen)
    if (
        missing
        and len(missing) == len(named)
        and vocabulary.inputs > 1
        and vocabulary.may_be_classes
    ):
        raise _refusal(names, missing, named, vocabulary)
    return missing if vocabulary.repeats and vocabulary.seen else Counter()


def _missing(names: ClassNames, named: Counter[str], allowed: frozenset[str]) -> Counter[str]:
    return Counter(
        {
            name: number
            for name, number in named.items()
            if not names.is_declared(name) and names.in_model(name) not in allowed
        }
    )


def _unknown_parameters(
    names: ClassNames, mentions: Mentions, allowed: frozenset[str]
) -> Counter[str]:
    found: Counter[str] = Counter()
    for name, number in mentions["parameter"].items():
        whole = _missing(names, Counter({name: number}), allowed)
        if whole:
            found.update(
                _missing(names, Counter(dict.fromkeys(name.split(_MINUS), number)), allowed)
            )
    return found


def _refusal(
    names: ClassNames, missing: Counter[str], named: Counter[str], vocabulary: Vocabulary
) -> InputError:
    classes = vocabulary.known or vocabulary.seen
    has = f"has {_listed(classes)}" if vocabulary.known else f"only gave {_listed(classes)}"
    for name in missing:
        if name.strip() in names.by_tree:
            target = names.in_model(name)
            return OptionError(
                f"--classes {name.strip()}={target}: {vocabulary.model} has no class {target!r}"
                f"{nearest_hint(target, classes)} it {has}"
            )
    number, plural = sum(missing.values()), "es" if len(missing) > 1 else ""
    beside = "" if len(missing) == len(named) else f" (all tests: {_listed(named)})"
    guesses = {name: _guess(name, classes) for name in sorted(missing)}
    pairs = [(name, guess or "<class of the model>") for name, guess in guesses.items()]
    same = [(name, name.strip()) for name in guesses]
    if vocabulary.known:
        otherwise = "" if all(guesses.values()) else ", or to keep tests of classes that it lacks: "
    else:
        otherwise = ", or if the model has these classes: "
    return InputError(
        f"{number:,} tests name the class{plural} {_listed(missing)}{beside}, but {vocabulary.model} {has}; "
        f"say what they mean: --classes {_option(pairs)}"
        + (f"{otherwise}--classes {_option(same)}" if otherwise else "")
    )


def _guess(name: str, classes: Iterable[str]) -> str | None:
    """Return the class that a name most likely means, None if several are as likely.

    >>> _guess("pos", ["negative", "positive"]), _guess("1", ["0.0", "1.0"]), _guess("ne", ["neg", "neu"])
    ('positive', '1.0', None)
    """
    short, number = name.strip().casefold(), _number(name)
    known = {one: one.strip().casefold() for one in classes if one.strip() and short}
    for found in (
        [one for one, other in known.items() if other == short],
        [one for one in known if _number(one) == number],
        [
            one
            for one, other in known.items()
            if math.isnan(_number(one)) and (other.startswith(short) or short.startswith(other))
        ],
    ):
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _listed(names: Iterable[str]) -> str:
    found = sorted(names)
    more = ", …" if len(found) > _MOST_SHOWN else ""
    return ", ".join(map(repr, found[:_MOST_SHOWN])) + more


def _option(pairs: Sequence[tuple[str, str]]) -> str:
    parts = [f"{name.strip()}={to}" for name, to in pairs[:_MOST_SHOWN]]
    return shlex.quote(",".join(f'"{one}"' if "," in one else one for one in parts))
