"""A test tree: tests in topics, as columns of text.

A tree of a million tests is a table of ten columns, not a million objects. A tree never changes:
what changes one returns another, which shares the columns that stay.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.adaptive.topics import SUGGESTIONS, is_topic, is_within, with_ancestors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

ID = "id"
# The columns of AdaTest.
ADATEST = ("topic", "input", "output", "label", "labeler", "description")
# What AdaTest has no column for: they are in a file only where a test needs them.
EXTRA = ("expectation", "value", "second_input", "other_inputs")
COLUMNS = (ID, *ADATEST, *EXTRA)
# The column of a file that says whether a test was exported as training data.
TRAINED = "training"

TOPIC_MARKER = "topic_marker"
PASS, FAIL, OFF_TOPIC = "pass", "fail", "off_topic"
# Who labelled where no person did.
IMPUTED = "imputed"
_MARKERS = uuid.UUID("0d5f7f3a-5c0b-5b8e-9f0e-6d0a7c2f4b11")


def new_id() -> str:
    """Return the id of a new test, as AdaTest makes them."""
    return uuid.uuid4().hex


@dataclass(frozen=True)
class Test:
    """One test."""

    __test__ = False

    topic: str  # Such as ``/Facilities/Restaurant``; "" is the root.
    input: str  # What the model reads.
    # Expected where `expectation` is empty, by the label; else the last output.
    output: str = ""
    # pass (the output is right), fail, off_topic, "" (nobody has said), or another.
    label: str = ""
    labeler: str = ""  # Who gave the label; ``imputed`` is no person.
    description: str = ""
    # Kind of expectation, by name; "" has `output` and `label` say what is expected.
    expectation: str = ""
    value: str = ""  # What the expectation is about: a class, a text, or another input.
    second_input: str = ""  # The second text of a pair.
    # Further inputs that should have the output too: a text, or a JSON list of texts or pairs.
    other_inputs: str = ""
    id: str = field(default_factory=new_id)  # Unique in a tree.
    # Further columns of the file, by name.
    other: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_guess(self) -> bool:
        """Whether what it expects is a proposer's guess, which nobody has judged."""
        return self.labeler == IMPUTED and not self.label


@dataclass(frozen=True, eq=False)
class TestTree:
    """Tests in topics."""

    __test__ = False

    # Columns of strings without nulls, a row each test or topic marker: the `COLUMNS` first,
    # then those that only the file knows; ids are unique.
    table: pa.Table
    # The columns of its file after the ids, in their order; empty for no file.
    header: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # What a user should know about the file.

    @classmethod
    def of(
        cls,
        table: pa.Table,
        header: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
        where: str = "the test tree",
    ) -> TestTree:
        """Return the tree of a table, which may lack columns."""
        table = _complete(table)
        ids = table[ID]
        if len(pc.unique(ids)) < table.num_rows:
            counts = pc.value_counts(ids.combine_chunks())
            twice = counts.filter(pc.greater(counts.field("counts"), 1))[0]["values"]
            raise InputError(
                f"{where}: the id {str(twice)!r} occurs twice; give each test an id of its own"
            )
        for topic in pc.unique(table["topic"]).to_pylist():
            if not is_topic(topic):
                raise InputError(
                    f"{where}: {topic!r} is not a topic; a topic is empty, or names after slashes such as "
                    "/Price/Taxes"
                )
        return cls(table, header, notes)

    @classmethod
    def of_tests(cls, tests: Iterable[Test]) -> TestTree:
        """Return the tree of tests."""
        return cls.of(_rows(list(tests)))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> NDArray[np.object_]:
        """Return a column as strings, object array [rows]."""
        values: NDArray[np.object_] = self.table[name].to_numpy()
        return values

    @cached_property
    def is_test(self) -> NDArray[np.bool_]:
        """Which rows are tests, neither topic markers nor suggestions; [rows]."""
        marker = pc.equal(self.table["label"], TOPIC_MARKER)
        return ~_flags(pc.or_(marker, _is_suggestion(self.table)))

    @cached_property
    def _topic_codes(self) -> tuple[list[str], NDArray[np.int64]]:
        """The distinct topics of the rows, and which of them each row has."""
        encoded = self.table["topic"].combine_chunks().dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)

    def topics(self) -> list[str]:
        """Return all topics with those above them, sorted; without suggestions."""
        found = {one for topic in self._topic_codes[0] for one in with_ancestors(topic)}
        return sorted(topic for topic in found if SUGGESTIONS not in topic)

    def within(self, topic: str) -> NDArray[np.bool_]:
        """Return which rows are in a topic or below it; [rows]."""
        names, codes = self._topic_codes
        known = np.array([is_within(name, topic) for name in names], dtype=bool)
        return known[codes] if known.size else np.zeros(len(self), bool)

    def directly_in(self, topic: str) -> NDArray[np.bool_]:
        """Return which rows are in a topic itself; [rows]."""
        return _flags(pc.equal(self.table["topic"], topic))

    def rows(self, which: NDArray[Any] | None = None) -> Iterator[Test]:
        """Yield tests as objects, for the few that are shown or edited."""
        if which is not None:
            places = np.flatnonzero(which) if which.dtype == bool else which
        table = self.table if which is None else self.table.take(places)
        known = [one.name for one in fields(Test) if one.name != "other"]
        for row in table.to_pylist():
            yield Test(**{name: row.pop(name) for name in known}, other=row)

    def known(self, ids: Iterable[str]) -> set[str]:
        """Return those of some ids that tests, or topic markers, have."""
        wanted = pa.array(list(ids), pa.string())
        return set(self.table[ID].filter(pc.is_in(self.table[ID], wanted)).to_pylist())

    def test(self, id_: str) -> Test:
        """Return the test of an id."""
        place = pc.index(self.table[ID], id_).as_py()
        if place < 0:
            raise KeyError(id_)
        return next(self.rows(np.array([place])))

    def add(self, tests: Iterable[Test] | TestTree) -> TestTree:
        """Return the tree with further tests at its end."""
        new = tests.table if isinstance(tests, TestTree) else _rows(list(tests))
        return TestTree.of(_joined(self.table, new), self.header, self.notes)

    def change(self, ids: Sequence[str], **columns: str | Sequence[str]) -> TestTree:
        """Return the tree with other values in columns of some tests: one for all, or one each."""
        places = self._places(ids)
        table = self.table
        for name, given in columns.items():
            values = table[name].to_numpy().copy()
            values[places] = given if isinstance(given, str) else np.array(given, dtype=object)
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, pa.chunked_array([pa.array(values, pa.string())]))
        return TestTree.of(table, self.header, self.notes)

    def remove(self, ids: Iterable[str]) -> TestTree:
        """Return the tree without some tests."""
        keep = np.ones(len(self), bool)
        keep[self._places(list(ids))] = False
        return replace(self, table=self.table.filter(pa.array(keep)))

    def with_column(self, name: str, values: Sequence[str] | pa.Array) -> TestTree:
        """Return the tree with a column of its file, such as ``model score``; [rows] of strings."""
        column = pa.array(values, pa.string()) if not isinstance(values, pa.Array) else values
        at = self.table.schema.get_field_index(name)
        if at < 0:
            return replace(self, table=self.table.append_column(name, column))
        return replace(self, table=self.table.set_column(at, name, column))

    def with_markers(self) -> TestTree:
        """Return the tree with a marker of each topic; the missing ones are labelled ``imputed``.

        The id of such a marker depends on the topic only, so that it is the same in every run.
        """
        marked = set(
            self.table.filter(pc.equal(self.table["label"], TOPIC_MARKER))["topic"].to_pylist()
        )
        missing = [topic for topic in self.topics() if topic not in marked]
        return self.add(
            Test(topic, "", label=TOPIC_MARKER, labeler=IMPUTED, id=uuid.uuid5(_MARKERS, topic).hex)
            for topic in missing
        )

    def without_suggestions(self) -> TestTree:
        """Return the tree without what nobody has accepted."""
        return replace(self, table=self.table.filter(pc.invert(_is_suggestion(self.table))))

    def totals(self, which: NDArray[np.bool_]) -> dict[str, int]:
        """Return how many of the marked rows [rows] are in and below each topic."""
        names, codes = self._topic_codes
        totals = dict.fromkeys(self.topics(), 0)
        counts = np.bincount(codes[which], minlength=len(names)).tolist()
        for name, number in zip(names, counts, strict=True):
            for topic in with_ancestors(name):
                if topic in totals:
                    totals[topic] += number
        return totals

    def _places(self, ids: Sequence[str]) -> NDArray[np.int64]:
        found = pc.index_in(pa.array(ids, pa.string()), self.table[ID].combine_chunks())
        if found.null_count:
            raise KeyError(ids[found.is_null().to_pylist().index(True)])
        places: NDArray[np.int64] = found.to_numpy().astype(np.int64)
        return places


def _rows(tests: Sequence[Test]) -> pa.Table:
    """Return the table of tests."""
    columns = {name: [getattr(test, name) for test in tests] for name in COLUMNS}
    for name in dict.fromkeys(name for test in tests for name in test.other):
        columns[name] = [test.other.get(name, "") for test in tests]
    return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})


def _complete(table: pa.Table) -> pa.Table:
    """Return a table with all columns, the own ones first, as strings without nulls."""
    names = (*COLUMNS, *(name for name in table.column_names if name not in COLUMNS))
    empty = pa.repeat(pa.scalar("", pa.string()), table.num_rows)
    found = {}
    for name in names:
        column = table[name] if name in table.column_names else empty
        if column.type != pa.string():
            column = column.cast(pa.string())
        found[name] = column.fill_null("") if column.null_count else column
    return pa.table(found)


def _joined(first: pa.Table, second: pa.Table) -> pa.Table:
    """Return the rows of two tables; a column that one of them lacks is empty there."""
    joined = pa.concat_tables(
        [_complete(first), _complete(second)], promote_options="default"
    ).combine_chunks()
    return _complete(joined)


def _is_suggestion(table: pa.Table) -> Any:
    return pc.match_substring(table["topic"], SUGGESTIONS)


def _flags(values: Any) -> NDArray[np.bool_]:
    flags: NDArray[np.bool_] = (
        values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy()
    )
    return flags.astype(bool)
