"""Populations whose every label is known, and the document of a slice of them."""

import csv
import io
import json

import numpy as np
import pyarrow as pa

from slicebeam.metrics.errors import InputError
from slicebeam.metrics.randomness import hash64
from slicebeam.pipelines.attribution.session import LabelPaths, session
from slicebeam.pipelines.attribution.state import Plan
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.slices import Slice
from tests.publications import DATASET, METRIC, minimal

TEXT = "it is about films"
SLICE = "3f2a9c01"


class InMemory:
    """Examples of which it is known whether the words are true (`truth`, as `member` bool [n])."""

    def __init__(
        self, truth, member, *, strength=3.0, dimensions=8, textual=False, seed=0, columns=None
    ):
        n, rng = truth.size, np.random.default_rng(seed)
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
    def precision(self):
        return float(self.truth[self.member].mean())

    @property
    def missed(self):
        return float(self.truth[~self.member].mean())

    @property
    def recall(self):
        return float(self.member[self.truth].mean())

    def similarity(self, queries):
        cosine = self.z @ self.direction / np.linalg.norm(self.z, axis=1)
        return np.tile(cosine.astype(np.float32), (len(queries), 1))

    def rows(self, positions):
        self.shown += len(positions)
        ids = self.ids.take(pa.array(positions)).to_pylist()
        texts = [f'=said, "quoted" of {one}\nline two; ünï' for one in ids]
        return pa.table({"text": texts, "label": [f"class {one}" for one in ids]})

    def embeddings(self, positions):
        return self.raw[positions]

    def scores(self, coefficients, intercept):
        return 1 / (1 + np.exp(-(self.raw @ coefficients + intercept)))

    def column(self, name):
        if name not in self.columns:
            raise InputError(f"--labels {name!r}: there is no such column")
        return self.columns[name]

    def classified(self, definition):
        weights = np.array(definition.coefficients)
        return self.scores(weights, definition.intercept) >= definition.threshold

    def defined(self, name, definition):
        member = self.classified(definition)
        return a_slice("c1a55", name, int(member.sum()), member.size, definition.model_dump())

    @property
    def data(self):
        return self

    def members_of(self, definition):
        return self.member

    def truth_of(self, item):
        return bool(self.truth[self.ids.index(item).as_py()])


def population(size=300, outside=3700, precision=0.8, recall=0.8, **how):
    """Return a population of this precision and recall, as exactly as whole numbers allow."""
    inside = round(size * precision)
    missed = round(inside * (1 - recall) / recall) if recall else 0
    member, truth = np.arange(size + outside) < size, np.arange(size + outside) < inside
    truth[size : size + missed] = True
    shuffled = np.random.default_rng(5).permutation(size + outside)
    return InMemory(truth[shuffled], member[shuffled], **how)


def a_slice(slice_id, name, n, of, definition):
    change = {"metric": METRIC, "n": n, "after": {"value": 0.5}, "direction": "none"}
    told = {"slice_id": slice_id, "name": name, "definition": definition, "cross_size": 1}
    return Slice.model_validate({**told, "size": {"n": n, "share": n / of}, "changes": [change]})


def document(people):
    n, inside = people.member.size, int(people.member.sum())
    predicate = {"all": [{"field": "cluster@25", "op": "==", "value": 3}]}
    definition = {"kind": "predicate", "predicate": predicate}
    slices = [a_slice(SLICE, "cluster@25 = 3", inside, n, definition).model_dump()]
    return minimal(dataset={**DATASET, "uri": ["d.parquet"], "n": n}, slices=slices)


def published(folder, people):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "changelist.json"
    path.write_text(document(people).to_json())
    return path


def opened(folder, people, *, text=TEXT, begins=True, **plan):
    path = folder / "changelist.json"
    if not path.exists():
        published(folder, people)
    told = SearchChangeList.model_validate_json(path.read_text())
    place = LabelPaths.of(str(path), None)
    return session(people, told, told.slices[0], Plan(text, **plan), place, begins=begins)


def labels_folder(folder):
    [found] = (folder / "attribution").glob(f"{SLICE}-*")
    return found


def labels_file(folder):
    [path] = (folder / "attribution").glob("words-*")
    return path / "labels.jsonl"


def fill(sheet, answer, change=lambda rows: rows, *, encoding="utf-8-sig", **dialect):
    """Fill a CSV as a spreadsheet does: read, answer, write in a dialect of its own."""
    header, *rows = csv.reader(io.StringIO(sheet.read_bytes().decode("utf-8-sig"), newline=""))
    at, item = header.index("label"), header.index("item")
    for row in rows:
        row[at] = answer(row[item])
    out = io.StringIO(newline="")
    csv.writer(out, **dialect).writerows(change([header, *rows]))
    sheet.write_bytes(out.getvalue().encode(encoding))


def truthful(people, words=("no", "yes")):
    """Return what answers the truth of an item that is written in a sheet."""
    by_id = dict(zip(map(str, people.ids.to_pylist()), people.truth.tolist(), strict=True))
    return lambda item: words[by_id[item]]


def asked_in(sheet):
    text = sheet.read_bytes().decode("utf-8-sig")
    return [row["item"] for row in csv.DictReader(io.StringIO(text, newline=""))]


def attribution_in(path):
    return json.loads(path.read_text())["slices"][0]["attribution"]
