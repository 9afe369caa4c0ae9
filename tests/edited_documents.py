"""Documents to be edited, and stand-ins for what counts slices and reads examples."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.changelist.changes import Change
from slicebeam.pipelines.changelist.discovered import Discovery, PredicateDefinition
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.parts import Condition, Estimate, Predicate
from slicebeam.pipelines.changelist.rules import rule_of, slice_id_of
from slicebeam.pipelines.changelist.slices import Size, Slice
from slicebeam.transforms.encode.definitions import members, queries_of, similarities
from tests.running import search

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

ROWS = 600
WORDS = ("food", "service", "weather", "music")


def examples() -> pd.DataFrame:
    """Examples with errors where the topic is food, and where someone is young."""
    random = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "id": [f"n{row}" for row in range(ROWS)],
            "age": random.integers(17, 90, ROWS),
            "topic": random.choice(WORDS, ROWS),
            "sex": random.choice(["Female", "Male"], ROWS),
            "label": random.integers(0, 2, ROWS),
        }
    )
    chance = 0.1 + 0.6 * (frame["topic"] == "food") + 0.5 * (frame["age"] < 30)
    wrong = random.random(ROWS) < chance
    frame["prediction"] = np.where(wrong, 1 - frame["label"], frame["label"])
    # Two texts of a topic, so that many examples share one.
    frame["text"] = frame["topic"] + " is " + np.where(frame["label"] == 1, "good", "bad")
    return frame


def embeddings(frame: pd.DataFrame) -> np.ndarray:
    """float32 [n, 4], near the axis of the topic."""
    random = np.random.default_rng(6)
    noise = random.normal(scale=0.2, size=(len(frame), len(WORDS)))
    axes = np.array([WORDS.index(topic) for topic in frame["topic"]])
    return (np.eye(len(WORDS))[axes] + noise).astype(np.float32)


def embedded(text: str) -> np.ndarray:
    """The embedding of a query: the axes of the topics in it."""
    return np.array([word in text for word in WORDS], np.float32)


def searched(folder: Path, frame: pd.DataFrame | None = None, suffix: str = "parquet") -> Path:
    """Search the examples, and return the path of the document."""
    frame = examples() if frame is None else frame
    data = folder / f"examples.{suffix}"
    if suffix == "csv":
        frame.to_csv(data, index=False)
    else:
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), data)
    search(
        folder / "out",
        data=(str(data),),
        label="label",
        prediction="prediction",
        example_id="id",
        exclude_features=("text",),
        max_cross_size=1,
        exact_edges=True,
    )
    return folder / "out" / "changelist.json"


def discovered(path: Path) -> SearchChangeList:
    """Let a document tell of embeddings, and return it."""
    document = SearchChangeList.model_validate_json(path.read_text())
    discovery = Discovery(
        encoder="axes",
        encoder_fingerprint="e1",
        text_field="text",
        dimensions=len(WORDS),
        kept_dimensions=len(WORDS),
        kept_variance=1.0,
        loss_weight=0.0,
        discovery_examples=ROWS,
        evaluation_examples=ROWS,
        mixture_fingerprint="m1",
        resolutions=(),
        described=0,
    )
    document = document.model_copy(update={"discovery": discovery})
    path.write_text(document.to_json())
    return document


def counted(document: SearchChangeList, name: str, definition: Any, frame: pd.DataFrame) -> Slice:
    """A slice as it is counted, by pandas."""
    rule = rule_of(definition)
    queries = {text: embedded(text) for text in queries_of(rule)}
    table = pa.table(
        {column: pa.array(frame[column].tolist(), from_pandas=True) for column in frame.columns}
    )
    held = members(rule, table, embeddings(frame), queries, "id")
    right = (frame["label"] == frame["prediction"])[held]
    value = float(right.mean()) if held.any() else None
    change = Change(
        metric=document.metrics[0].key,
        n=int(held.sum()),
        after=Estimate(value=value),
        direction="none",
    )
    return Slice(
        slice_id="0" * 16,
        name=name,
        definition=definition,
        cross_size=1,
        size=Size(n=int(held.sum()), share=float(held.mean())),
        changes=(change,),
    )


class Measured:
    """Stands in for what counts slices on the data.

    Attributes
    ----------
    calls : what it was asked
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame, self.calls = frame, []

    def __call__(
        self, document: SearchChangeList, definitions: Sequence[Any], **told: Any
    ) -> list[Slice]:
        self.calls.append((definitions, told))
        return [counted(document, *one, self.frame) for one in definitions]


class Examples:
    """Stands in for the population of the examples."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame, self.vectors = frame, embeddings(frame)

    @property
    def ids(self) -> pa.Array:
        kind = pa.int64() if self.frame["id"].dtype.kind == "i" else pa.string()
        return pa.array(self.frame["id"].tolist(), kind)

    def similarity(self, queries: Sequence[str]) -> np.ndarray:
        found = [similarities(self.vectors, embedded(one)) for one in queries]
        return np.array(found, np.float32)

    def embeddings(self, positions: np.ndarray) -> np.ndarray:
        return self.vectors[positions]

    def column(self, name: str) -> pa.Array:
        if name not in self.frame:
            raise InputError(f"unknown column {name!r}")
        return pa.array(self.frame[name].tolist(), from_pandas=True)


def stand_in(monkeypatch: pytest.MonkeyPatch, frame: pd.DataFrame) -> Measured:
    """Let the commands count and read by the stand-ins."""
    measuring = ModuleType("slicebeam.pipelines.define.measuring")
    measuring.measured = Measured(frame)  # type: ignore[attr-defined]
    population = ModuleType("slicebeam.pipelines.define.examples")
    population.open_examples = lambda *_: Examples(frame)  # type: ignore[attr-defined]
    for module in (measuring, population):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return measuring.measured


def predicate(field: str, op: Any, value: Any) -> PredicateDefinition:
    """A definition by one condition."""
    condition = Condition(field=field, op=op, value=value)
    return PredicateDefinition(predicate=Predicate(all=(condition,)))


def made(document: SearchChangeList, name: str, definition: Any) -> Slice:
    """A slice of a definition, as if it were counted."""
    told = {"slice_id": slice_id_of(definition), "name": name, "definition": definition}
    return document.slices[0].model_copy(update=told)
