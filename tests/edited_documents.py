"""Documents to be edited, and stand-ins for what counts slices and reads examples."""

import sys
from types import ModuleType

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.changelist.changes import Change
from slicebeam.pipelines.changelist.discovered import Discovery
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.changelist.slices import Size, Slice
from slicebeam.transforms.encode.conditions import members, queries_of, similarities
from slicebeam.transforms.encode.definitions import (
    Condition,
    Predicate,
    PredicateDefinition,
    slice_id_of,
)
from tests.running import search

ROWS = 600
WORDS = ("food", "service", "weather", "music")


def examples():
    """Examples with errors where the topic is food, and where someone is young."""
    random = np.random.default_rng(5)
    frame = pd.DataFrame({"id": [f"n{row}" for row in range(ROWS)]})
    frame["age"] = random.integers(17, 90, ROWS)
    frame["topic"] = random.choice(WORDS, ROWS)
    frame["sex"] = random.choice(["Female", "Male"], ROWS)
    frame["label"] = random.integers(0, 2, ROWS)
    chance = 0.1 + 0.6 * (frame["topic"] == "food") + 0.5 * (frame["age"] < 30)
    wrong = random.random(ROWS) < chance
    frame["prediction"] = np.where(wrong, 1 - frame["label"], frame["label"])
    # Two texts of a topic, so that many examples share one.
    frame["text"] = frame["topic"] + " is " + np.where(frame["label"] == 1, "good", "bad")
    return frame


def embeddings(frame):
    """float32 [n, 4], near the axis of the topic."""
    noise = np.random.default_rng(6).normal(scale=0.2, size=(len(frame), len(WORDS)))
    axes = np.array([WORDS.index(topic) for topic in frame["topic"]])
    return (np.eye(len(WORDS))[axes] + noise).astype(np.float32)


def embedded(text):
    """The embedding of a query: the axes of the topics in it."""
    return np.array([word in text for word in WORDS], np.float32)


def searched(folder, frame=None, suffix="parquet"):
    """Search the examples, and return the path of the document."""
    frame = examples() if frame is None else frame
    data = folder / f"examples.{suffix}"
    if suffix == "csv":
        frame.to_csv(data, index=False)
    else:
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), data)
    roles = {"label": "label", "prediction": "prediction", "example_id": "id"}
    how = {"exclude_features": ("text",), "max_cross_size": 1, "exact_edges": True}
    search(folder / "out", data=(str(data),), **roles, **how)
    return folder / "out" / "changelist.json"


def discovered(path):
    """Let a document tell of embeddings, and return it."""
    document = SearchChangeList.model_validate_json(path.read_text())
    encoder = {"encoder": "axes", "encoder_fingerprint": "e1", "text_field": "text"}
    kept = {"dimensions": len(WORDS), "kept_dimensions": len(WORDS), "kept_variance": 1.0}
    used = {"discovery_examples": ROWS, "evaluation_examples": ROWS, "mixture_fingerprint": "m1"}
    found = {"loss_weight": 0.0, "resolutions": (), "described": 0}
    discovery = Discovery(**encoder, **kept, **used, **found)
    document = document.model_copy(update={"discovery": discovery})
    path.write_text(document.to_json())
    return document


def counted(document, name, definition, frame):
    """A slice as it is counted, by pandas."""
    queries = {text: embedded(text) for text in queries_of(definition)}
    columns = {name: pa.array(values.tolist(), from_pandas=True) for name, values in frame.items()}
    held = members(definition, pa.table(columns), embeddings(frame), queries, "id")
    right = (frame["label"] == frame["prediction"])[held]
    value = float(right.mean()) if held.any() else None
    metric, n = document.metrics[0].key, int(held.sum())
    change = Change(metric=metric, n=n, after=Estimate(value=value), direction="none")
    told = {"slice_id": "0" * 16, "name": name, "definition": definition, "cross_size": 1}
    return Slice(**told, size=Size(n=n, share=float(held.mean())), changes=(change,))


class Measured:
    """Stands in for what counts slices on the data, and notes what it was asked."""

    def __init__(self, frame):
        self.frame, self.calls = frame, []

    def __call__(self, uri, document, wanted, counting):
        self.calls.append((uri, counting))
        return [counted(document, new.name, new.definition, self.frame) for new in wanted]


class Examples:
    """Stands in for the population of the examples."""

    def __init__(self, frame):
        self.frame, self.vectors = frame, embeddings(frame)

    @property
    def ids(self):
        kind = pa.int64() if self.frame["id"].dtype.kind == "i" else pa.string()
        return pa.array(self.frame["id"].tolist(), kind)

    def similarity(self, queries):
        return np.array([similarities(self.vectors, embedded(one)) for one in queries], np.float32)

    def embeddings(self, positions):
        return self.vectors[positions]

    def column(self, name):
        if name not in self.frame:
            raise InputError(f"unknown column {name!r}")
        return pa.array(self.frame[name].tolist(), from_pandas=True)


def stand_in(monkeypatch, frame):
    """Let the commands count and read by the stand-ins."""
    measuring = ModuleType("slicebeam.pipelines.define.measuring")
    measuring.measured = Measured(frame)
    measuring.coverage_of = lambda *_, **__: ()
    population = ModuleType("slicebeam.pipelines.define.document_data")
    population.open_data = lambda *_: Examples(frame)
    for module in (measuring, population):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return measuring.measured


def predicate(field, op, value):
    """A definition by one condition."""
    condition = Condition(field=field, op=op, value=value)
    return PredicateDefinition(predicate=Predicate(all=(condition,)))


def made(document, name, definition):
    """A slice of a definition, as if it were counted."""
    told = {"slice_id": slice_id_of(definition), "name": name, "definition": definition}
    return document.slices[0].model_copy(update=told)
