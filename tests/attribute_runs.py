"""Populations whose every label is known, and the document of a slice of them."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from slicebeam.metrics.errors import InputError
from slicebeam.metrics.randomness import hash64
from slicebeam.pipelines.attribution.session import LabelPaths, Plan, session
from slicebeam.pipelines.changelist.discovered import ClassifierDefinition
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.slices import Slice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TEXT = "it is about films"
SLICE = "3f2a9c01"


class InMemory:
    """Examples of which it is known whether the words are true.

    Parameters
    ----------
    truth, member : bool [n]
    strength : how much more the examples of which the words are true are like them
    textual : whether ids are text
    """

    def __init__(
        self,
        truth: np.ndarray,
        member: np.ndarray,
        *,
        strength: float = 3.0,
        dimensions: int = 8,
        textual: bool = False,
        seed: int = 0,
        columns: dict[str, Any] | None = None,
    ) -> None:
        n = truth.size
        rng = np.random.default_rng(seed)
        self.truth, self.member = truth, member
        numbers = np.arange(n) * 7 + 1000
        self.ids = pa.array([f"é {one}" for one in numbers]) if textual else pa.array(numbers)
        self.hashes = hash64(99, 0, np.arange(n, dtype=np.uint64))
        self.direction = np.eye(dimensions)[0]
        self.z = rng.standard_normal((n, dimensions)).astype(np.float32)
        self.z[truth, 0] += strength
        # Dimensions of different sizes, away from 0, as embeddings have them.
        self.raw = (self.z * np.linspace(0.1, 3, dimensions) + 2).astype(np.float32)
        self.columns = {"truth": pa.array(truth), **(columns or {})}
        self.shown = 0

    @property
    def precision(self) -> float:
        return float(self.truth[self.member].mean())

    @property
    def missed(self) -> float:
        return float(self.truth[~self.member].mean())

    @property
    def recall(self) -> float:
        return float(self.member[self.truth].mean())

    def similarity(self, queries: Any) -> np.ndarray:
        cosine = self.z @ self.direction / np.linalg.norm(self.z, axis=1)
        return np.tile(cosine.astype(np.float32), (len(queries), 1))

    def rows(self, positions: np.ndarray) -> pa.Table:
        self.shown += len(positions)
        ids = self.ids.take(pa.array(positions)).to_pylist()
        texts = [f'=said, "quoted" of {one}\nline two; ünï' for one in ids]
        return pa.table({"text": texts, "label": [f"class {one}" for one in ids]})

    def embeddings(self, positions: np.ndarray) -> np.ndarray:
        return self.raw[positions]

    def scores(self, coefficients: np.ndarray, intercept: float) -> np.ndarray:
        return 1 / (1 + np.exp(-(self.raw @ coefficients + intercept)))

    def column(self, name: str) -> pa.Array:
        if name not in self.columns:
            raise InputError(f"--labels {name!r}: there is no such column")
        return self.columns[name]

    def defined(self, name: str, definition: ClassifierDefinition, member: np.ndarray) -> Slice:
        return a_slice("c1a55", name, int(member.sum()), member.size, definition.model_dump())

    def truth_of(self, item: Any) -> bool:
        return bool(self.truth[self.ids.index(item).as_py()])


def population(
    size: int = 300, outside: int = 3700, precision: float = 0.8, recall: float = 0.8, **how: Any
) -> InMemory:
    """Return a population of this precision and recall, as exactly as whole numbers allow."""
    inside = round(size * precision)
    missed = round(inside * (1 - recall) / recall) if recall else 0
    member = np.arange(size + outside) < size
    truth = np.arange(size + outside) < inside
    truth[size : size + missed] = True
    shuffled = np.random.default_rng(5).permutation(size + outside)
    return InMemory(truth[shuffled], member[shuffled], **how)


def a_slice(slice_id: str, name: str, n: int, of: int, definition: dict[str, Any]) -> Slice:
    change = {"metric": "m", "n": n, "after": {"value": 0.5}, "direction": "none"}
    return Slice.model_validate(
        {
            "slice_id": slice_id,
            "name": name,
            "definition": definition,
            "cross_size": 1,
            "size": {"n": n, "share": n / of},
            "changes": [change],
        }
    )


def document(people: InMemory) -> SearchChangeList:
    """Return a document of one slice."""
    n = people.member.size
    sha = "sha256:" + "0" * 64
    predicate = {"all": [{"field": "cluster@25", "op": "==", "value": 3}]}
    one = a_slice(
        SLICE,
        "cluster@25 = 3",
        int(people.member.sum()),
        n,
        {"kind": "predicate", "predicate": predicate},
    )
    told = {
        "changelist_id": "test",
        "title": "t",
        "summary": "s",
        "created_at": datetime(2026, 1, 1, tzinfo=timezone.utc),
        "dataset": {
            "name": "d",
            "uri": ["d.parquet"],
            "fingerprint": sha,
            "n": n,
            "label_field": "y",
            "classes": [0, 1],
            "domains": [],
            "left_out": [],
        },
        "models": [{"key": "new", "role": "after", "name": "new"}],
        "comparison": {"kind": "overall", "after": "new"},
        "metrics": [
            {
                "key": "m",
                "name": "m",
                "kind": "pointwise",
                "range": [0, 1],
                "higher_is_better": True,
                "primary": True,
            }
        ],
        "global": [{"metric": "m", "n": n, "after": {"value": 0.5}, "direction": "none"}],
        "testing": {
            "test": "t",
            "alternative": "both",
            "alpha": 0.05,
            "correction": "none",
            "corrected_for": "nothing",
            "confidence": 0.95,
            "min_slice_size": 1,
            "family_size": 1,
            "family_per_level": [1],
            "tested_per_level": [1],
            "significant": 0,
            "degraded": 0,
        },
        "search": {
            "strategy": "batch",
            "max_cross_size": 1,
            "stopped": "exhausted",
            "iterations": [],
            "reported": 1,
            "inherited": 0,
            "duplicates": 0,
            "saved_slices": "tested",
            "slices_fingerprint": sha,
        },
        "slices": [one.model_dump()],
        "provenance": {"tool_version": "0", "runner": "direct", "seed": 0, "config": {}},
    }
    return SearchChangeList.model_validate(told)


def published(folder: Path, people: InMemory) -> Path:
    """Write the document of a population, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "changelist.json"
    path.write_text(document(people).to_json())
    return path


def opened(folder: Path, people: InMemory, *, text: str = TEXT, begins: bool = True, **plan: Any):
    """Return the context of a session of the one slice, whose document is in a folder."""
    path = folder / "changelist.json"
    if not path.exists():
        published(folder, people)
    told = SearchChangeList.model_validate_json(path.read_text())
    place = LabelPaths.of(str(path), None)
    return session(people, told, told.slices[0], Plan(text, **plan), place, begins=begins)


def labels_folder(folder: Path) -> Path:
    """Return the folder of the labels of the one text."""
    [found] = (folder / "attribution").glob(f"{SLICE}-*")
    return found


def fill(
    sheet: Path,
    answer: Callable[[str], Any],
    change: Callable[[list[list[str]]], Iterable[list[str]]] = lambda rows: rows,
    *,
    encoding: str = "utf-8-sig",
    **dialect: Any,
) -> None:
    """Fill a CSV as a spreadsheet does: read, answer, write in a dialect of its own."""
    text = sheet.read_bytes().decode("utf-8-sig")
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    at, item = header.index("label"), header.index("item")
    for row in rows:
        row[at] = answer(row[item])
    out = io.StringIO(newline="")
    csv.writer(out, **dialect).writerows(change([header, *rows]))
    sheet.write_bytes(out.getvalue().encode(encoding))


def truthful(people: InMemory, words: tuple[str, str] = ("no", "yes")) -> Callable[[str], str]:
    """Return what answers the truth of an item that is written in a sheet."""
    by_id = dict(zip(map(str, people.ids.to_pylist()), people.truth.tolist(), strict=True))
    return lambda item: words[by_id[item]]


def asked_in(sheet: Path) -> list[str]:
    """Return the items of a sheet."""
    text = sheet.read_bytes().decode("utf-8-sig")
    return [row["item"] for row in csv.DictReader(io.StringIO(text, newline=""))]


def attribution_in(path: Path) -> dict[str, Any]:
    """Return the attribution of the one slice in a document."""
    return json.loads(path.read_text())["slices"][0]["attribution"]
