"""The pool of `slicebeam shift`: labelled data as strata, counts and candidates."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.counting.counting import Ragged
from slicebeam.metrics.errors import EngineError, InputError, OptionError
from slicebeam.pipelines.run.run_stage import run_stage
from slicebeam.transforms.encode.column_values import missing_mask
from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.encode.extract_predictions import MOST_CLASSES
from slicebeam.transforms.encode.predicates import Singleton, json_values, shortened
from slicebeam.transforms.encode.sources import read_split
from slicebeam.transforms.encode.value_counts import unsupported
from slicebeam.transforms.shift.difficulty_bins import quantile_edges
from slicebeam.transforms.shift.learn_pool import LearnPool, PoolColumns, PoolValues
from slicebeam.transforms.shift.pool_candidates import narrow, ordered
from slicebeam.transforms.shift.stratify_pool import FIELD, PoolCounts, Stratification, StratifyPool
from slicebeam.transforms.storage.arrow_files import open_arrow
from slicebeam.transforms.storage.storage import matching

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.pipelines.run.engine import Cost, Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.encode.sources import Source

__all__ = ["LabelledPool", "PoolColumns", "PoolItems", "PoolSlices", "by_values", "read_pool"]

VALUES, ITEMS = "pool-values", "pool-items"
# CPU time of reading a value and of counting or coding it, measured on ten million examples.
_SECONDS_PER_VALUE = 6e-8
# A group of splits is what a worker takes at a time, and leaves candidates of each stratum.
_GROUPS_PER_WORKER = 4
_MOST_SPLITS = 64
# Entries of the confusion matrices of all slices together.
_MOST_ENTRIES = 1 << 24
_SHOWN = 5


@dataclass(frozen=True)
class PoolItems:
    """The candidates of all strata, ordered by stratum and then by the hash of their identity.

    Attributes
    ----------
    stratum : int32 [n]
    identity : uint64 [n] what identifies the example: a hash of its id, or its position
    keys : string [n] the id, or ``#17`` for the example at position 17, counted from 0
    old : int32 [n] code of the old API's prediction, None if unknown
    recorded : int32 [n] code of the recorded answer, −1 for "no result", None without such a column
    fields : the columns that requests are made of, in the types of the source
    slices : codes of the slices that each is in, None if no slices were given
    """

    stratum: NDArray[np.int32]
    identity: NDArray[np.uint64]
    keys: pa.StringArray
    old: NDArray[np.int32] | None
    recorded: NDArray[np.int32] | None
    fields: pa.Table
    slices: Ragged | None


@dataclass(frozen=True)
class PoolSlices:
    """Counts of slices.

    Attributes
    ----------
    sizes : int64 [G] examples of each slice
    labels : int64 [G, L] of them those of each label, as in `LabelledPool.labels`
    old : int64 [G, L, P] of these those of each old prediction, None if that is not known
    """

    sizes: IntArray
    labels: IntArray
    old: IntArray | None


@dataclass(frozen=True)
class LabelledPool:
    """A labelled pool, divided into strata.

    Attributes
    ----------
    classes : all classes [P] as JSON values, sorted; the position of one is its code
    labels : int64 [L] codes of the classes that occur as labels, ascending: rows of the matrices
    stratum_row : int64 [S] position in ``labels`` of each stratum's label; strata are ordered by
        label and bin, and each has examples
    stratum_bin : int64 [S] bin of the difficulty, −1 where it is missing
    edges : float64 [at most bins − 1] a difficulty of at least ``edges[k]`` is in bin k + 1 or above
    sizes : int64 [S] examples
    old : int64 [S, P] of these those of each old prediction, None if that is not known
    starts : int64 [S + 1] where the candidates of each stratum begin
    fingerprint : 64 bits of all examples' identities, labels and old predictions, in any order
    """

    rows: int
    classes: tuple[Any, ...]
    labels: IntArray
    stratum_row: IntArray
    stratum_bin: IntArray
    edges: FloatArray
    sizes: IntArray
    old: IntArray | None
    items: PoolItems
    starts: IntArray
    fingerprint: int
    slices: PoolSlices | None


def read_pool(
    columns: PoolColumns,
    source: Source,
    *,
    bins: int,
    signed: bool,
    seed: int,
    most: int | None,
    work: WorkFolder,
    engine: Engine,
    extra_classes: Sequence[Any] = (),
) -> LabelledPool:
    """Read a pool in two passes; one that an earlier process of the run finished is not repeated.

    Parameters
    ----------
    columns : what is read; they must exist
    signed : whether a difficulty counts as negative where the old prediction is wrong
    most : candidates of a stratum; None for all examples
    work : gets the folders ``pool-values`` and ``pool-items``
    engine : runs the passes
    extra_classes : classes that an answer may have although no column of the pool does

    Raises
    ------
    InputError
        The pool is empty, a label or an old prediction is missing, a column has too many classes or
        is none of its kind, predictions never equal a label, or two candidates have the same id.
    EngineError
        The engine or the storage failed.
    """
    if source.rows == 0:
        raise InputError("the pool has no examples; give --data with labelled examples")
    if bins < 1:
        raise InputError(f"{bins} bins of the difficulty: give at least 1")
    if signed and columns.old_prediction is None:
        raise InputError(
            "a signed difficulty separates right from wrong old predictions, but there is no "
            "column of old predictions; name one, or leave the sign out"
        )
    digest = hashlib.sha256(
        repr((asdict(columns), bins, signed, seed, most, tuple(extra_classes))).encode()
    ).hexdigest()
    reading = _PoolPasses(source, work, engine, digest)
    plan = reading.learned(columns, bins, signed, seed, most, extra_classes)
    return reading.stratified(plan)


@dataclass(frozen=True)
class _PoolPasses:
    """The two passes of a run.

    Attributes
    ----------
    digest : of the options; findings of an earlier process are used where it is the same
    """

    source: Source
    work: WorkFolder
    engine: Engine
    digest: str

    @property
    def _groups(self) -> int:
        splits = len(self.source.splits)
        return max(_GROUPS_PER_WORKER * self.engine.workers, -(-splits // _MOST_SPLITS))

    def learned(
        self,
        columns: PoolColumns,
        bins: int,
        signed: bool,
        seed: int,
        most: int | None,
        extra_classes: Sequence[Any],
    ) -> Stratification:
        """Return how the pool is divided, from the first pass."""
        is_signed = signed and columns.difficulty is not None
        folder = self.work.folder(VALUES)

        def found(_: Cost) -> dict[str, Any]:
            values = PoolValues(columns, signed=is_signed)
            for path in matching(folder, "*.arrow"):
                values.merge(open_arrow(path).read_all())
            self._check_rows(values.rows, VALUES)
            edges = quantile_edges(*values.difficulties.counted(), bins)
            return {"classes": all_classes(values, extra_classes), "edges": edges.tolist()}

        passing = LearnPool(self.source, columns, is_signed, self._groups, folder)
        facts = self._run(VALUES, passing, len(columns.learned()), found)
        return Stratification(
            columns, tuple(facts["classes"]), tuple(facts["edges"]), is_signed, seed, most
        )

    def stratified(self, plan: Stratification) -> LabelledPool:
        """Return the pool."""
        folder = self.work.folder(ITEMS)
        passing = StratifyPool(self.source, plan, self._groups, folder)
        self._run(ITEMS, passing, len(plan.columns.read()), lambda _: {})
        counts = PoolCounts()
        for path in matching(folder, "*-counts.arrow"):
            counts.merge(open_arrow(path).read_all())
        self._check_rows(counts.rows, ITEMS)
        tables = [open_arrow(path).read_all() for path in matching(folder, "*-items.arrow")]
        candidates = ordered(pa.concat_tables(tables), plan.most)
        return pool_of(plan, counts, candidates, self.source.schema)

    def _run(
        self,
        name: str,
        passing: LearnPool | StratifyPool,
        columns: int,
        facts: Callable[[Cost], dict[str, Any]],
    ) -> dict[str, Any]:
        return run_stage(
            self.work,
            self.engine,
            name,
            lambda pipeline: pipeline | name >> passing,
            passing.is_written,
            seconds=self.source.rows * columns * _SECONDS_PER_VALUE,
            plan=self.digest,
            reads_data=True,
            facts=facts,
        )

    def _check_rows(self, rows: int, name: str) -> None:
        if rows != self.source.rows:
            raise EngineError(
                f"{self.work.path_of(name)} covers {rows:,} of {self.source.rows:,} examples: a file is "
                "missing; run again without --resume"
            )


def all_classes(values: PoolValues, extra_classes: Sequence[Any]) -> list[Any]:
    """Return all classes, sorted, after checking that predictions speak of those of the label.

    Raises
    ------
    InputError
        Predictions never equal a label, the classes are too many together, or an extra one is of
        another kind.
    """
    columns = values.columns
    found = {role: set(array.to_pylist()) for role, array in values.classes.items()}
    labels = found["label"]
    for role, name in columns.class_columns.items():
        if found[role] and not found[role] & labels:
            raise InputError(
                f"prediction {name!r} never equals label {columns.label!r}: labels are "
                f"{_some(labels)}, predictions are {_some(found[role])}; use the same spelling"
            )
    extra = {_as_class(value, columns) for value in extra_classes}
    together = set().union(extra, *found.values())
    if len(together) > MOST_CLASSES:
        raise InputError(
            f"label {columns.label!r} and the predictions have {len(together):,} classes in all, "
            f"and at most {MOST_CLASSES:,} are possible; merge rare ones"
        )
    matrices = len(labels) * (len(together) if columns.old_prediction is not None else 1)
    if columns.by is not None and columns.by.size * matrices > _MOST_ENTRIES:
        raise OptionError(
            f"--by: {columns.by.size:,} slices of confusion matrices of {len(labels):,} × "
            f"{len(together):,} classes are too many; name fewer slices"
        )
    return sorted(together)


def _some(values: set[Any]) -> str:
    shown = sorted(values)[:_SHOWN]
    return ", ".join(map(repr, shown)) + (", …" if len(values) > len(shown) else "")


def _as_class(value: Any, columns: PoolColumns) -> Any:
    """Return a class in the common type."""
    if columns.class_type == "string":
        if isinstance(value, str):
            return value
    elif isinstance(value, (bool, int, float)) and float(value).is_integer():
        if columns.class_type == "double":
            return float(value)
        # A column of integers holds none beyond.
        if -(2**63) <= value < 2**63:
            return int(value)
    kind = "text" if columns.class_type == "string" else "whole numbers"
    raise InputError(
        f"class {shortened(repr(value))} is not a class of label {columns.label!r}, whose classes "
        f"are {kind}; write it like the label"
    )


def pool_of(
    plan: Stratification, counts: PoolCounts, table: pa.Table, schema: pa.Schema
) -> LabelledPool:
    """Return the pool from the results of the second pass.

    Parameters
    ----------
    table : the candidates as `slicebeam.transforms.shift.stratify_pool.stratify_chunk` has them, ordered
    schema : of the source, in whose types the fields are returned

    Raises
    ------
    InputError
        Two candidates have the same id.
    """
    columns, classes = plan.columns, len(plan.classes)
    packed, number = _counted(counts.strata)
    cell, old = np.divmod(packed, plan.old_classes)
    cells, at = np.unique(cell, return_inverse=True)
    by_old = np.zeros((cells.size, plan.old_classes), np.int64)
    by_old[at, old] = number
    label, slot = np.divmod(cells, plan.width)
    labels = np.unique(label)
    known = columns.old_prediction is not None
    stratum = np.searchsorted(cells, table.column("cell").to_numpy())
    slices = None
    if columns.by is not None:
        packed, number = _counted(counts.slices)
        of_slices = np.zeros(columns.by.size * classes * plan.old_classes, np.int64)
        of_slices[packed] = number
        of_slices = of_slices.reshape(columns.by.size, classes, plan.old_classes)[:, labels]
        by_label = of_slices.sum(axis=2)
        slices = PoolSlices(by_label.sum(axis=1), by_label, of_slices if known else None)
    return LabelledPool(
        counts.rows,
        plan.classes,
        labels,
        np.searchsorted(labels, label),
        slot - 1,
        np.array(plan.edges, np.float64),
        by_old.sum(axis=1),
        by_old if known else None,
        _items(columns, stratum, table, schema),
        np.searchsorted(stratum, np.arange(cells.size + 1)),
        counts.fingerprint,
        slices,
    )


def _counted(counts: Any) -> tuple[IntArray, IntArray]:
    counts.compact()
    packed, number = counts.counted()
    return packed.to_numpy(), number


def _items(
    columns: PoolColumns, stratum: IntArray, table: pa.Table, schema: pa.Schema
) -> PoolItems:
    row = table.column("row").to_numpy()
    identity = table.column("identity").to_numpy()
    if columns.example_id is None:
        texts = pa.array(row).cast(pa.string())
        keys = pc.binary_join_element_wise(pa.scalar("#"), texts, pa.scalar(""))
    else:
        keys = pc.cast(table.column("key"), pa.string()).combine_chunks()
        _refuse_repeated(columns.example_id, keys, identity, row)

    def codes(name: str) -> NDArray[np.int32] | None:
        return table.column(name).to_numpy() if name in table.column_names else None

    slices = None
    if "slices" in table.column_names:
        lists = table.column("slices").combine_chunks()
        lengths = pc.list_value_length(lists).to_numpy().astype(np.int64)
        flat = pc.list_flatten(lists).to_numpy().astype(np.int64)
        slices = Ragged(np.concatenate([[0], np.cumsum(lengths)]), flat)
    fields = {
        name: narrow(table.column(FIELD + name), schema.field(name).type) for name in columns.fields
    }
    return PoolItems(
        stratum.astype(np.int32),
        identity,
        keys,
        codes("old"),
        codes("recorded"),
        pa.table(fields),
        slices,
    )


def _refuse_repeated(
    example_id: str, keys: pa.StringArray, identity: NDArray[np.uint64], row: IntArray
) -> None:
    """Raise an InputError where two candidates have the same id."""
    order = np.lexsort((row, identity))
    again = np.flatnonzero(identity[order][1:] == identity[order][:-1])
    # Different texts may have the same hash, if hardly ever.
    for at in again.tolist():
        one, other = order[at], order[at + 1]
        if keys[one] == keys[other]:
            raise OptionError(
                f"--example-id: column {example_id!r} holds {shortened(repr(keys[one].as_py()))} "
                f"more than once (examples {row[one] + 1:,} and {row[other] + 1:,} of the data); "
                "an id must be unique"
            )


def by_values(source: Source, column: str, most: int = MOST_CLASSES) -> SliceMembership:
    """Return the values of a column as slices: a predicate each, sorted, and one for missing ones.

    Parameters
    ----------
    source : the examples with this column
    column : of text, booleans, numbers, dates or times; of a list each element is a value

    Raises
    ------
    InputError
        There is no such column, its values cannot be compared, or they are too many.
    """
    kind = source.column_type(column, "--by")
    if reason := unsupported(kind):
        raise OptionError(f"--by {column}: {reason}; name a column with few values")
    is_list = pa.types.is_list(kind)
    value_type = kind.value_type if is_list else kind
    known = pa.array([], value_type)
    is_missing = False
    for split in source.splits:
        for chunk in read_split(source, split, [column]):
            array = chunk.table.column(column).combine_chunks()
            if is_list:
                is_missing = is_missing or array.null_count > 0
                array = pc.list_flatten(array)
            distinct, has_missing = _distinct(array, value_type)
            is_missing = is_missing or (has_missing and not is_list)
            known = pa.concat_arrays([known, distinct]).unique()
            if len(known) > most:
                raise OptionError(
                    f"--by {column}: it has more than {most:,} different values, each of which "
                    "would be a slice; name a column with few values"
                )
    if pa.types.is_null(value_type):
        values = []
    else:
        values = json_values(known.take(pc.array_sort_indices(known)))
    op = "contains" if is_list else "=="
    slices = [(Singleton(column, op, value),) for value in values]
    if is_missing:
        slices.append((Singleton(column, "is_null"),))
    return SliceMembership(tuple(slices))


def _distinct(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, bool]:
    """Return the distinct values of an array that are not missing, and whether some are."""
    distinct = array.unique()
    if pa.types.is_dictionary(distinct.type):
        distinct = distinct.cast(kind)
    if pa.types.is_floating(kind):
        # Adding zero makes -0.0 the 0.0 that it equals.
        distinct = pc.add(distinct, pa.scalar(0.0, kind))
    missing = missing_mask(distinct)
    if missing is None:
        return distinct, False
    return distinct.filter(pa.array(~missing)), True
