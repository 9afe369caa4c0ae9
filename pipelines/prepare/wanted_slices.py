"""The slices of a check: those of a ChangeList, a YAML file or an EvalConfig, and their conditions on the columns."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import (
    ColumnError,
    FileError,
    InputError,
    OptionError,
    shortened,
    unknown_name,
)
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.prepare.source import SECONDS_PER_VALUE
from slicebeam.transforms.discovery.derive_columns import is_cluster_field
from slicebeam.transforms.encode.conditions import SliceMembership, check_condition
from slicebeam.transforms.encode.definitions import AnyDefinition, PredicateDefinition
from slicebeam.transforms.encode.passes import distinct, distinct_rows
from slicebeam.transforms.encode.predicates import (
    OPS,
    Singleton,
    arrow_values,
    json_values,
    parse_predicate,
    slice_hashes,
)
from slicebeam.transforms.storage.storage import storage_path
from slicebeam.transforms.storage.strict_text import parse_yaml
from slicebeam.transforms.tfma.eval_config import eval_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicebeam.pipelines.run.stage import Workspace
    from slicebeam.transforms.encode.sources import Source

Conditions = tuple[Singleton, ...]
_OPTIONS = {"changelist": "--changelist", "file": "--slices", "eval_config": "--eval-config"}


@dataclass(frozen=True)
class SliceRequest:
    """A slice as it was written."""

    place: str
    # Of a slice that no predicate describes, a condition on the column that is derived for it.
    predicate: str | Conditions
    name: str | None = None  # the user's name for it; None for its predicate
    definition: AnyDefinition | None = None
    slice_id: str | None = None

    @property
    def column(self) -> str:
        """The column of the members of a slice that no predicate describes."""
        return f"member of {self.slice_id}"


@dataclass(frozen=True)
class WantedSlices:
    """The slices given to a check, before the columns are known."""

    source: Literal["changelist", "file", "eval_config"]
    uri: str
    slices: tuple[SliceRequest, ...]
    changelist_id: str | None = None  # of the document; None for a file
    data: tuple[str, ...] = ()  # of the document, in which its slices were found; empty for a file


@dataclass(frozen=True)
class GivenSlices:
    """The slices of a check."""

    wanted: WantedSlices
    membership: SliceMembership  # their conditions; a slice's position is its code

    @property
    def texts(self) -> tuple[str, ...]:
        """The slices as text: their predicates, or the names of those that no predicate describes."""
        return tuple(
            " & ".join(map(str, conditions))
            if slice_.definition is None
            else slice_.name or slice_.column
            for slice_, conditions in zip(
                self.wanted.slices, self.membership.predicates, strict=True
            )
        )

    @property
    def names(self) -> tuple[str | None, ...]:
        """What the user calls the slices."""
        return tuple(slice_.name for slice_ in self.wanted.slices)


def wanted_slice(name: str, definition: AnyDefinition, slice_id: str) -> SliceRequest:
    """Return a slice of a document as a check looks for it."""
    place = f"slice {shortened(name)!r}"
    if not isinstance(definition, PredicateDefinition):
        wanted = SliceRequest(place, (), name, definition, slice_id)
        return replace(wanted, predicate=(Singleton(wanted.column, "==", True),))
    conditions = definition.predicate.singletons
    is_text = name == " & ".join(map(str, conditions))
    return SliceRequest(place, conditions, None if is_text else name)


def read_given(changelist: str | None, slices: str | None) -> WantedSlices:
    """Return the slices of a ChangeList or of a YAML file, whichever is given."""
    if changelist is not None:
        document = read_search(changelist, "--changelist")
        wanted = [
            wanted_slice(slice_.name, slice_.definition, slice_.slice_id)
            for slice_ in document.slices
        ]
        found_in = document.dataset.uri if document.provenance.command != "check" else ()
        return WantedSlices(
            "changelist", changelist, tuple(wanted), document.changelist_id, found_in
        )
    if slices is None:
        raise TypeError("a check without slices")
    return read_slices(slices)


def read_slices(uri: str) -> WantedSlices:
    """Return the slices of a YAML file: a list of predicates, as text or as conditions, or of ``name`` and ``predicate``."""
    where = f"--slices {uri}"
    try:
        content, _ = parse_yaml(storage_path(uri, "--slices").read_text("utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"{where}: no such file") from error
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise OptionError(f"{where}: not readable as YAML ({reason})") from error
    if isinstance(content, dict) and "schema_version" in content:
        raise OptionError(f"{where} is a ChangeList; use --changelist")
    place, wanted = where, []
    try:
        if isinstance(content, dict):
            _check_keys(content, "slices")
            content = content.get("slices")
        for number, written in enumerate(content if isinstance(content, list) else (), start=1):
            place = f"{where}, slice {number}"
            wanted.append(SliceRequest(f"slice {number}", *_predicate_and_name(written)))
    except InputError as error:
        raise OptionError(f"{place}: {error}") from error
    if not wanted:
        raise OptionError(f"{where}: a list of slices is expected, such as '- age < 25'")
    return WantedSlices("file", uri, tuple(wanted))


def _predicate_and_name(written: Any) -> tuple[str | Conditions, str | None]:
    name, predicate = None, written
    if isinstance(written, dict) and ("predicate" in written or "name" in written):
        _check_keys(written, "name", "predicate")
        name, predicate = written.get("name"), written.get("predicate")
        if name is not None and not (isinstance(name, str) and name.strip()):
            raise InputError(f"name {name!r} is not text; put it in quotes")
        if "predicate" not in written:
            raise InputError("key 'predicate' is missing next to 'name'")
    if isinstance(predicate, str) and predicate.strip():
        return predicate, name
    # A single condition needs no list.
    conditions = [predicate]
    if isinstance(predicate, dict) and "all" in predicate:
        _check_keys(predicate, "all")
        conditions = predicate["all"]
    if not (conditions and isinstance(conditions, list)) or not all(
        isinstance(condition, dict) for condition in conditions
    ):
        raise InputError(
            f"{shortened(repr(predicate))} is not a predicate; write text such as 'age < 25', "
            "or all: [{field: age, op: '<', value: 25}]"
        )
    return tuple(map(_condition, conditions)), name


def _condition(written: Mapping[Any, Any]) -> Singleton:
    _check_keys(written, "field", "op", "value")
    field, op, value = (written.get(key) for key in ("field", "op", "value"))
    for key in ("field", "op"):
        if not isinstance(written.get(key), str):
            raise InputError(f"{key} {written.get(key)!r} is not text")
    if op not in OPS:
        raise unknown_name("op", str(op), OPS)
    if op == "is_null" and value is not None:
        raise InputError(f"op 'is_null' takes no value, not {value!r}")
    if op != "is_null" and "value" not in written:
        raise InputError(f"op {op!r} of {field!r} has no value")
    return Singleton(str(field), str(op), _json_value(value))


def _check_keys(written: Mapping[Any, Any], *allowed: str) -> None:
    for key in written:
        if key not in allowed:
            raise unknown_name("key", str(key), allowed)


def _json_value(value: Any) -> Any:
    """Return a value of YAML as JSON has it: dates and times as ISO text, infinities as text."""
    if isinstance(value, list):
        return list(map(_json_value, value))
    if isinstance(value, (dt.date, dt.datetime)):
        return value.isoformat()
    is_infinite = isinstance(value, float) and abs(value) == float("inf")
    return ("Infinity" if value > 0 else "-Infinity") if is_infinite else value


def given_slices(wanted: WantedSlices, schema: pa.Schema) -> GivenSlices:
    """Return the slices with their conditions, after checking that the columns fit them."""
    columns = dict(zip(schema.names, schema.types, strict=True))
    places: dict[int, str] = {}
    predicates: list[Conditions] = []
    for slice_ in wanted.slices:
        where = f"{_OPTIONS[wanted.source]} {wanted.uri}, {slice_.place}"
        try:
            conditions = _checked(slice_, columns, wanted.source)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        place = places.setdefault(int(slice_hashes([conditions])[0]), slice_.place)
        if len(places) == len(predicates):
            raise InputError(f"{where}: the same predicate as {place}; leave one out")
        predicates.append(conditions)
    return GivenSlices(wanted, SliceMembership(tuple(predicates)))


def _checked(wanted: SliceRequest, columns: Mapping[str, pa.DataType], source: str) -> Conditions:
    """Return each condition once, after holding it against an empty column."""
    conditions = wanted.predicate
    if isinstance(conditions, str):
        conditions = parse_predicate(conditions, columns)
    checked: dict[str, Singleton] = {}
    for condition in conditions:
        if condition.field not in columns:
            if wanted.definition is None and not is_cluster_field(condition.field):
                raise unknown_name("column", condition.field, columns)
            raise InputError(
                "it is defined by embeddings, ids or other slices, which only slicebeam check "
                "--changelist supports"
            )
        kind = columns[condition.field]
        try:
            check_condition(condition, kind)
        except InputError as error:
            raise ColumnError(f"column {condition.field!r}: {error}") from error
        # A document's predicates keep their form, and so the ids by which runs are compared.
        canonical = condition if source == "changelist" else _canonical(condition, kind)
        checked.setdefault(canonical.json_text(), canonical)
    return tuple(checked.values())


def _canonical(condition: Singleton, kind: pa.DataType) -> Singleton:
    """Return a condition as a search would write it: its values of the column's own JSON type."""
    types = pa.types
    kind = kind.value_type if types.is_list(kind) or types.is_dictionary(kind) else kind
    if condition.op == "is_null" or types.is_null(kind):
        return condition
    is_list = isinstance(condition.value, list)
    listed = condition.value if is_list else [condition.value]
    if types.is_integer(kind):
        listed = [int(x) if isinstance(x, float) and x.is_integer() else x for x in listed]
    try:
        # A rounded edge is a double, and its column may be narrower.
        array = arrow_values(listed, pa.float64() if types.is_floating(kind) else kind)
    except InputError:
        # A fraction that a column of integers is compared with.
        return condition
    if condition.op in ("in", "not_in"):
        array = array.unique().take(pc.sort_indices(array.unique()))
    values = json_values(array)
    return Singleton(condition.field, condition.op, values if is_list else values[0])


# More given slices than this are a search: each takes memory of every chunk.
MOST_SLICES = 10_000


def value_slices(uri: str, source: Source, run: Workspace) -> WantedSlices:
    """Return the slices of an EvalConfig that have examples, in the order of its specs."""
    requests: dict[str, SliceRequest] = {}
    for number, spec in enumerate(eval_plan(uri).specs):
        columns = tuple(sorted({*spec.keys, *(name for name, _ in spec.values)}))
        ops = {
            name: "contains"
            if pa.types.is_list(source.column_type(name, f"--eval-config {uri}, slicing_specs"))
            else "=="
            for name in columns
        }
        stage = f"values-{number}"
        transform = distinct_rows(source, columns, run.work.folder(stage))
        seconds = source.rows * len(columns) * SECONDS_PER_VALUE
        table = distinct(run.parts(stage, transform, seconds=seconds, reads_data=True))
        arrays = [json_values(table.column(name).combine_chunks()) for name in table.column_names]
        is_empty = True
        for row in zip(*arrays, strict=True):
            values = dict(zip(table.column_names, row, strict=True))
            # The numbers of a spec are texts as well.
            if all(
                values[name] == (str(value) if isinstance(values[name], str) else value)
                for name, value in spec.values
            ):
                conditions = tuple(Singleton(name, ops[name], values[name]) for name in values)
                key = str(sorted(condition.json_text() for condition in conditions))
                requests.setdefault(key, SliceRequest(f"slicing_specs {spec}", conditions))
                is_empty = False
        if is_empty:
            run.observer.note(
                f"--eval-config {uri}: no example is in slicing_specs {spec}; nothing is checked there"
            )
        if len(requests) > MOST_SLICES:
            raise OptionError(
                f"--eval-config {uri}: slicing_specs {spec} has {len(requests):,} slices so far, "
                f"more than {MOST_SLICES:,}; name fewer values, or use slicebeam search"
            )
    return WantedSlices("eval_config", uri, tuple(requests.values()))
