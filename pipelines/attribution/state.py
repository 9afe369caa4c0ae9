"""The drawn items and the number of looks: the record next to the sheets."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slicebeam.metrics.errors import EngineError, InputError, OptionError
from slicebeam.transforms.encode.definitions import Id
from slicebeam.transforms.storage.storage import storage_errors, written_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.attribution.population import SlicePopulation
    from slicebeam.transforms.storage.storage import StoragePath

NAME = "state.json"
# How slicebeam names slices; a document may name them otherwise.
_SLICE_ID = re.compile(r"[0-9a-f]{1,64}")


@dataclass(frozen=True)
class Plan:
    """The user's options for a slice; None means the value of an earlier round, or the default.

    ``queries``: texts similar to examples for which the words are true; none for the text itself.
    ``exponent``, ``uniform_share``: of the proposal of the rounds to come.
    """

    text: str
    queries: Sequence[str] = ()
    looks: int | None = None
    seed: int | None = None
    least_precision: float | None = None
    least_recall: float | None = None
    exponent: float = 4.0
    uniform_share: float = 0.2

    def __post_init__(self) -> None:
        """Refuse an empty text."""
        if not self.text.strip():
            raise OptionError("--text is empty; write a description of the slice")


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Drawn(_Record):
    """The items of a round.

    ``number``: of the round, from 1. ``precision``: of the slice, a simple random sample, in the
    order in which they were drawn. ``recall``: of the others, each draw, the same item possibly
    several times. ``least_weight``: the smallest w of any item that could be drawn; None without a
    draw. ``train``: of both, to train a classifier by. ``asked``: items without a known label, in
    the order of the sheet.
    """

    number: int
    budget: int
    queries: tuple[str, ...]
    exponent: float | None = None
    uniform_share: float | None = None
    precision: tuple[Id, ...] = ()
    recall: tuple[Id, ...] = ()
    weights: tuple[float, ...] = ()
    least_weight: float | None = None
    train: tuple[Id, ...] = ()
    asked: tuple[Id, ...] = ()

    @property
    def items(self) -> tuple[Id, ...]:
        """All items, each once."""
        return tuple(dict.fromkeys((*self.precision, *self.recall, *self.train)))


class State(_Record):
    """All that estimates from the labels of a slice and a text need.

    ``slice_fingerprint``: of the ids inside the slice and outside it. ``looks``: how often it may
    be looked whether the labels suffice, as planned before the first one.
    """

    version: Literal[1] = 1
    slice_id: str
    text: str
    slice_fingerprint: str
    size: int
    size_outside: int
    seed: int
    confidence: float
    looks: Annotated[int, Field(ge=1)]
    least_precision: float
    least_recall: float
    rounds: tuple[Drawn, ...] = ()
    looked: tuple[str, ...] = ()

    @property
    def sampling_seed(self) -> int:
        """The seed of all draws.

        That of another slice is another one, even if the user's is the same: a slice that was made
        by labels of a sample must be judged by one that is independent of them.
        """
        identity = f"{self.seed}\n{self.slice_fingerprint}\n{self.text}"
        return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8], "big")

    @property
    def labelled(self) -> int:
        """Examples of the slice that were drawn."""
        return sum(len(round_.precision) for round_ in self.rounds)

    @property
    def drawn(self) -> int:
        """Draws outside the slice."""
        return sum(len(round_.recall) for round_ in self.rounds)

    @property
    def spent(self) -> int:
        """The budgets of all rounds but those for training."""
        return sum(round_.budget for round_ in self.rounds if not round_.train)


def folder_name(slice_id: str, text: str) -> str:
    """Return the name of the folder of a slice and a text, whatever the document calls the slice."""
    name = slice_id if _SLICE_ID.fullmatch(slice_id) else text_hash(slice_id)
    return f"{name}-{text_hash(text)}"


def text_hash(text: str) -> str:
    """Return a short hash that identifies a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def slice_fingerprint(population: SlicePopulation) -> str:
    """Return a hash of the examples and of those in the slice, independent of their order."""
    digest = hashlib.sha256()
    for part in (population.member, ~population.member):
        hashes = np.sort(population.data.hashes[part])
        digest.update(np.int64(hashes.size).tobytes())
        digest.update(hashes.astype("<u8").tobytes())
    return f"sha256:{digest.hexdigest()}"


def read_state(folder: StoragePath) -> State | None:
    """Return the record in a folder, None if there is none."""
    path = folder / NAME
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except OSError:
        with storage_errors(path, "read"):
            raise
    try:
        return State.model_validate_json(text)
    except (ValidationError, ValueError) as error:
        raise EngineError(
            f"{folder.name}/{NAME} is damaged, or from another version; restore it, or choose "
            "another --labels-dir"
        ) from error


def write_state(folder: StoragePath, state: State) -> None:
    """Write the record."""
    with written_whole(folder / NAME) as stream:
        stream.write(state.model_dump_json(indent=1).encode("utf-8") + b"\n")


def check_same(state: State, population: SlicePopulation) -> None:
    """Refuse draws that were made of other examples."""
    if state.slice_fingerprint != slice_fingerprint(population):
        now = int(population.member.sum())
        raise InputError(
            f"slice {state.slice_id} or the data has changed since items were drawn ({now:,} of "
            f"{population.member.size:,} now, {state.size:,} of "
            f"{state.size + state.size_outside:,} then); give the same --data, or start over in "
            "another --labels-dir"
        )
