"""The tests of a slice: which of its examples they are of, and what they expect.

Those come first that the model gets wrong, or that the update broke; of them the ones by which a discovery
described the slice. A test expects the label of its example.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.adaptive.expectations import NO_OUTPUT, OUTPUTS
from slicebeam.pipelines.adaptive.from_slices.slice_topics import origin_text, slice_text
from slicebeam.pipelines.adaptive.tree import PASS, Test
from slicebeam.pipelines.define.document_data import FAILING
from slicebeam.transforms.encode.column import python_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.pipelines.adaptive.class_names import ClassNames
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.define.document_data import DocumentData

_LABELER = "data"
_IDS = uuid.UUID("b2b9a6f4-6a5d-5d0f-9c37-5f5c0e6d7a41")
# Examples that are read together, for each test: some have the same text, or no label.
_AT_ONCE = 4


@dataclass(frozen=True)
class _Candidate:
    """An example that may become a test: its texts, the values that the test needs, its position."""

    inputs: tuple[str, ...]
    values: dict[str, Any]
    place: int


@dataclass(frozen=True)
class TestMaker:
    """Makes the tests of slices, one slice after another."""

    __test__ = False

    document: SearchChangeList
    data: DocumentData
    texts: Sequence[str]  # Columns of the inputs.
    most: int  # Of a slice.
    # How the tree names the labels of the run.
    names: ClassNames
    # The inputs that earlier slices have tests of.
    _taken: set[tuple[str, ...]] = field(default_factory=set)

    @cached_property
    def _columns(self) -> dict[str, str | None]:
        """The columns of the label, of the prediction and of the ids."""
        after = next(one for one in self.document.models if one.role == "after")
        dataset = self.document.dataset
        return {
            "label": dataset.label_field,
            "prediction": after.prediction_field,
            "id": dataset.id_field,
        }

    def tests(self, one: Slice, topic: str) -> list[tuple[Test, bool | None]]:
        """Return the tests of a slice, with whether the model fails each; None if that is not known.

        Of examples that are as much worth a look, those come first that no earlier slice has.
        """
        typical = self._typical(one)
        chosen: list[_Candidate] = []
        seen: set[tuple[str, ...]] = set()
        for tier in self.data.tiers(one, FAILING, "--data"):
            first = typical[np.isin(typical, tier)]
            rest = tier[~np.isin(tier, first)]
            spare: list[_Candidate] = []
            for each in self._candidates(np.concatenate([first, rest])):
                if len(chosen) == self.most:
                    break
                if each.inputs not in seen:
                    seen.add(each.inputs)
                    (spare if each.inputs in self._taken else chosen).append(each)
            chosen += spare[: self.most - len(chosen)]
        self._taken.update(each.inputs for each in chosen)
        about = slice_text(self.document, one)
        return [self._test(topic, about, each) for each in chosen]

    def _typical(self, one: Slice) -> IntArray:
        """Return the positions of the examples by which a discovery described a slice, each once."""
        shown = {each.row: each for each in (one.found.examples if one.found is not None else ())}
        places = np.array(list(shown), dtype=np.int64)
        name = self._columns["id"]
        if name is not None and shown:
            ids = pa.array([str(each.id) for each in shown.values()])
            found = pc.index_in(ids, self.data.ids.cast(pa.string()))
            places = found.fill_null(-1).to_numpy().astype(np.int64)
        is_there = bool(((places >= 0) & (places < self.data.source.rows)).all())
        if is_there and places.size and len(self.texts) == 1:
            texts = self._read(places, list(self.texts))[self.texts[0]]
            is_there = all(
                str(text).startswith(str(each.display.get(self.texts[0], text)).removesuffix("…"))
                for text, each in zip(texts, shown.values(), strict=True)
            )
        if not is_there:
            raise InputError(
                f"--data: the examples of {one.name} in the document are not in this data; name the data "
                "that the document is about with --data"
            )
        return places

    def _candidates(self, places: IntArray) -> Iterator[_Candidate]:
        """Yield the examples at some positions, in this order, that have a label and all texts."""
        outcome = [name for name in self._columns.values() if name is not None]
        label = str(self._columns["label"])
        start, number = 0, _AT_ONCE * self.most
        while start < len(places):
            some = places[start : start + number]
            # Where few have all that a test needs, the data is not read over and over.
            start, number = start + number, number * _AT_ONCE
            values = self._read(some, list(dict.fromkeys([*self.texts, *outcome])))
            for at, place in enumerate(some.tolist()):
                row = {name: column[at] for name, column in values.items()}
                inputs = tuple(row[name] for name in self.texts)
                if row[label] is not None and None not in inputs:
                    yield _Candidate(inputs, row, place)

    def _read(self, places: IntArray, columns: list[str]) -> dict[str, list[Any]]:
        table = self.data.read(places, columns)
        return {name: python_values(table.column(name)) for name in columns}

    def _test(self, topic: str, about: str, one: _Candidate) -> tuple[Test, bool | None]:
        label, prediction, own_id = (
            None if name is None else one.values[name] for name in self._columns.values()
        )
        roles = self.data.roles
        role = None if roles is None else str(roles[one.place])
        which = f"row {one.place}" if own_id is None else f"{self._columns['id']} {own_id}"
        said = "" if role is None else f": predicted {prediction} ({role})"
        output = self.names.in_tree(str(label))
        # An output that looks like none has to be said in another way.
        expected: dict[str, Any] = (
            {"expectation": OUTPUTS, "value": output}
            if output in NO_OUTPUT
            else {"output": output, "label": PASS}
        )
        first, second = (*one.inputs, "")[:2]
        test = Test(
            topic,
            first,
            second_input=second,
            labeler=_LABELER,
            description=f"{about}; {which}{said}; {origin_text(self.document)}",
            id=uuid.uuid5(_IDS, json.dumps([topic, *one.inputs])).hex,
            **expected,
        )
        return test, None if role is None else role in FAILING
