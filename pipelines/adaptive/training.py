"""``slicebeam adapt export-training``: failing tests with the label that is right, to train a model further.

A test gives a label where it says which one is right: it expects that output, or it rules out one of two.
Passing tests of the same topics keep the model from learning that everything there has the label of the
failing ones.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv

from slicebeam.metrics.errors import ColumnError, FileError, InputError, OptionError, unknown_name
from slicebeam.pipelines.adaptive.class_names import ClassNames, mentioned
from slicebeam.pipelines.adaptive.expectations import (
    OUTPUTS,
    OUTPUTS_NOT,
    inputs_of,
    parse_expectation,
)
from slicebeam.pipelines.adaptive.scored_tree import PASSED
from slicebeam.pipelines.adaptive.scoring import NEEDED, scorable_tests
from slicebeam.pipelines.adaptive.topic_outcomes import TESTS
from slicebeam.pipelines.adaptive.topics import displayed, encoded, is_within
from slicebeam.pipelines.adaptive.tree import ID, IMPUTED, TRAINED, TestTree
from slicebeam.pipelines.adaptive.tree_files import read_tree, write_tree
from slicebeam.pipelines.changelist.reading import file_of, read_search
from slicebeam.pipelines.changelist.revisions import base_of
from slicebeam.transforms.encode.column import plain_type
from slicebeam.transforms.encode.sources import parquet_errors
from slicebeam.transforms.formats.csv_columns import read_csv_blocks
from slicebeam.transforms.storage.files import expand_paths
from slicebeam.transforms.storage.storage import open_input, storage_path, written_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.pipelines.config.adapt import ExportTrainingConfig

# What the column `TRAINED` says of a test.
_EXPORTED = "exported"
_MOST_LABELS, _MOST_WEIGHT = 12, 10.0
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
_LABELS = (*_TEXTS, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
_GONE = "no longer in the tree, or nothing is expected there"
_CHANGED = "changed in the tree since the run"
_GUESS = "what is expected is a guess (labeler imputed)"
_TWO_LABELS = "tests of the same input expect different labels"


@dataclass(frozen=True)
class TrainingExport:
    """What was exported."""

    path: str
    tests: int  # Failing tests.
    anchors: int  # Passing tests of the same topics.
    mixed: int  # Rows of the training data.
    left_out: dict[str, int]  # How many failing tests were not exported, by the reason.
    tree: str  # The file in which the tests are marked.
    topics: tuple[str, ...]  # Of the exported tests, as the tree writes them.


@dataclass(frozen=True, eq=False)
class _Labelled:
    """The tests of a run with the labels that they say are right."""

    tests: pa.Table  # As the run scored them.
    labels: NDArray[np.object_]  # [tests], None where a test says none.
    reasons: NDArray[np.object_]  # Why a test is not exported; None where it is; [tests].


def export_training(config: ExportTrainingConfig, note: Callable[[str], None]) -> TrainingExport:
    """Write failing tests with text, label, topic and weight to a file, and mark them in the tree.

    The tree is marked after the file is written: who is stopped between the two runs the command
    again, which writes the same file.
    """
    for what, path in (("--mix", config.mix), ("the tree", config.tree)):
        if path is not None and _is_same_file(config.to, path):
            raise OptionError(f"--to {config.to} is {what} itself; name another file")
    tree = read_tree(config.tree)
    for line in tree.notes:
        note(line)
    tests, names = _tests_of_run(config)
    if config.classes:
        names = ClassNames.of(config.classes)
        names.refuse_unused(mentioned(scorable_tests(tree).table))
    failing = ~tests[PASSED].to_numpy() & _is_chosen(config, tree, tests["topic"])
    if not failing.any():
        where = f" in {', '.join(map(displayed, config.topic))}" if config.topic else ""
        raise InputError(
            f"nothing to export: no test{where} fails by --changelist {config.changelist}"
        )
    data = None if config.mix is None else _training_data(config, config.mix)
    labels = {} if data is None else _by_name(data[config.label])
    labelled = _labelled(config, tree, tests, names, labels, failing)
    left_out = Counter(reason for reason in labelled.reasons[failing] if reason is not None)
    exported = failing & (labelled.reasons == None)  # noqa: E711  (of an array of objects)
    if not exported.any():
        why = "; ".join(f"{number:,}: {reason}" for reason, number in left_out.items())
        raise InputError(f"no failing test of {config.tree} says which label is right ({why})")
    anchors = _anchors(labelled, exported, config.seed)
    rows = np.concatenate([np.flatnonzero(exported), anchors])
    table = _rows(config, labelled, rows, labels)
    mixed = 0
    if data is not None:
        drawn = _drawn(data, config.label, len(table), config.seed)
        mixed = len(drawn)
        weights = {"topic": [""] * mixed, "weight": [1.0] * mixed}
        columns = {
            name: drawn[name].cast(table.schema.field(name).type) for name in drawn.column_names
        }
        table = pa.concat_tables([table, pa.table({**columns, **weights})])
    with written_whole(storage_path(config.to, "--to")) as stream:
        write = arrow_csv.write_csv if config.to.endswith(".csv") else pq.write_table
        write(table, stream)
    ids, topics = (tests[name].take(pa.array(rows)) for name in (ID, "topic"))
    _mark(config.tree, ids)
    return TrainingExport(
        config.to,
        int(exported.sum()),
        len(anchors),
        mixed,
        dict(left_out),
        config.tree,
        tuple(sorted(pc.unique(topics).to_pylist())),
    )


def _is_same_file(to: str, other: str) -> bool:
    written, known = storage_path(to, "--to"), storage_path(other)
    if isinstance(written, Path) and isinstance(known, Path):
        return written.resolve() == known.resolve()
    return written == known


def _tests_of_run(config: ExportTrainingConfig) -> tuple[pa.Table, ClassNames]:
    """Return the tests that a run scored: id, topic, what they expect, passed; and its names of classes."""
    uri = base_of(config.changelist)
    document = read_search(uri, "--changelist", with_slices=False)
    if document.adaptive is None:
        raise InputError(
            f"--changelist {config.changelist} is not a result of a test tree; name that of slicebeam adapt run"
        )
    path = file_of(uri, document, TESTS)
    for file in (path, path.parent / TESTS):
        if _is_same_file(config.to, str(file)):
            raise OptionError(f"--to {config.to} belongs to --changelist; name another file")
    try:
        with open_input(path) as stream:
            table = pq.read_table(stream, columns=[ID, "topic", *NEEDED, PASSED])
    except FileNotFoundError as error:
        raise FileError(
            f"--changelist {config.changelist}: {path} is not beside it; run slicebeam adapt run again"
        ) from error
    return table, ClassNames(document.adaptive.classes)


def _is_chosen(config: ExportTrainingConfig, tree: TestTree, topics: pa.ChunkedArray) -> BoolArray:
    """Return which tests are in the topics that the user names; [tests]."""
    if not config.topic:
        return np.ones(len(topics), bool)
    known = tree.topics()
    wanted = [encoded(name, known, "--topic") for name in config.topic]
    for name, topic in zip(config.topic, wanted, strict=True):
        if topic not in known:
            shown = list(map(displayed, known))
            raise OptionError(f"--topic {name}: {unknown_name('topic', name, shown)}")
    inside = [
        topic
        for topic in pc.unique(topics).to_pylist()
        if any(is_within(topic, name) for name in wanted)
    ]
    return pc.is_in(topics, pa.array(inside, pa.string())).to_numpy()


def _labelled(
    config: ExportTrainingConfig,
    tree: TestTree,
    tests: pa.Table,
    names: ClassNames,
    known: Mapping[str, Any],
    failing: BoolArray,
) -> _Labelled:
    """Return the labels of tests; ``known`` are those of the training data, empty without any."""
    now = scorable_tests(tree, with_guesses=True).table
    places = pc.index_in(tests[ID], now[ID].combine_chunks())
    is_gone = pc.is_null(places).to_numpy()
    now = now.take(pc.fill_null(places, 0))
    has_changed = np.zeros(len(tests), bool)
    for name in NEEDED:
        has_changed |= pc.not_equal(now[name], tests[name]).to_numpy()
    guesses = tree.table.filter(pc.equal(tree.table["labeler"], IMPUTED))[ID]
    is_guess = pc.is_in(tests[ID], guesses.combine_chunks()).to_numpy()
    labels, named, reasons = _labels(names.applied(tests), known)
    is_other = (named != None) & ~np.isin(named.astype(str), list(known))  # noqa: E711
    if known:
        reasons[is_other] = "its label is not in --mix"
        is_usable = ~(is_guess | has_changed | is_gone)
        _refuse_other_labels(config, named[is_other & failing & is_usable], known)
    for reason, holds in ((_GUESS, is_guess), (_CHANGED, has_changed), (_GONE, is_gone)):
        reasons[holds] = reason
    labelled = _Labelled(tests, labels, reasons)
    reasons[_contradicts(labelled)] = _TWO_LABELS
    return labelled


def _labels(
    tests: pa.Table, known: Mapping[str, Any]
) -> tuple[NDArray[np.object_], NDArray[np.object_], NDArray[np.object_]]:
    """Return the label that each test says is right, the one that it names, and why it says none."""
    values = tests["value"].to_numpy()
    labels, named, reasons = (np.full(len(tests), None, object) for _ in range(3))
    for written in pc.unique(tests["expectation"]).to_pylist():
        same = pc.equal(tests["expectation"], written).to_numpy()
        kind = parse_expectation(written).kind.name
        if kind in (OUTPUTS, OUTPUTS_NOT):
            named[same] = values[same]
        if kind == OUTPUTS:
            labels[same] = values[same]
        elif kind == OUTPUTS_NOT and len(known) == 2:
            first, second = known
            labels[same & (values == first)] = second
            labels[same & (values == second)] = first
        elif kind == OUTPUTS_NOT:
            more = "there are more than two" if known else "only --mix says how many there are"
            reasons[same] = f"it rules one label out, and {more}"
        else:
            reasons[same] = f"{kind!r} says no label"
    return labels, named, reasons


def _refuse_other_labels(
    config: ExportTrainingConfig, others: NDArray[np.object_], known: Mapping[str, Any]
) -> None:
    """Refuse failing tests that name labels which the training data does not have."""
    for label, number in Counter(others.tolist()).most_common(1):
        shown = ", ".join(map(repr, sorted(known)[:_MOST_LABELS]))
        more = ", …" if len(known) > _MOST_LABELS else ""
        raise InputError(
            f"{number:,} failing tests name the class {label!r}, which is not a label in --mix {config.mix}, "
            f"--label {config.label} ({shown}{more}); say which label it is with --classes, or choose other "
            "topics by --topic"
        )


def _inputs(tests: pa.Table, rows: IntArray) -> tuple[IntArray, list[tuple[str, str]]]:
    """Return the inputs of some tests, with the row of each: of a case of several all."""
    chosen = tests.take(pa.array(rows))
    inputs = list(zip(chosen["input"].to_pylist(), chosen["second_input"].to_pylist(), strict=True))
    others = chosen["other_inputs"].to_numpy()
    at = np.flatnonzero(others != "")
    further = [
        (row, text if isinstance(text, tuple) else (text, ""))
        for row in at.tolist()
        for text in inputs_of(others[row])
    ]
    of = np.array([row for row, _ in further], np.int64)
    return np.append(rows, rows[of]), inputs + [text for _, text in further]


def _contradicts(labelled: _Labelled) -> BoolArray:
    """Return the tests with an input for which another test says another label; [tests]."""
    contradicts = np.zeros(len(labelled.labels), bool)
    rows, inputs = _inputs(
        labelled.tests,
        np.flatnonzero(labelled.reasons == None),  # noqa: E711
    )
    codes, labels = (
        pa.array(values, pa.string()).dictionary_encode().indices.to_numpy()
        for values in (["\0".join(texts) for texts in inputs], labelled.labels[rows])
    )
    pairs = np.unique(np.stack([codes, labels]), axis=1)
    contradicts[rows[np.bincount(pairs[0], minlength=len(codes))[codes] > 1]] = True
    return contradicts


def _anchors(labelled: _Labelled, exported: BoolArray, seed: int) -> IntArray:
    """Return passing tests of the topics of the exported ones, as many of each topic at most."""
    topics = labelled.tests["topic"].combine_chunks().dictionary_encode().indices.to_numpy()
    most = np.bincount(topics[exported], minlength=topics.max() + 1)
    passing = labelled.tests[PASSED].to_numpy() & (labelled.reasons == None)  # noqa: E711
    rows = np.flatnonzero(passing & (most[topics] > 0))
    rows = rows[np.lexsort((np.random.default_rng(seed).random(len(rows)), topics[rows]))]
    first = np.searchsorted(topics[rows], topics[rows])
    return np.sort(rows[np.arange(len(rows)) - first < most[topics[rows]]])


def _rows(
    config: ExportTrainingConfig, labelled: _Labelled, rows: IntArray, known: Mapping[str, Any]
) -> pa.Table:
    """Return the rows of training data of tests: text or texts, label, topic and weight."""
    of, inputs = _inputs(labelled.tests, rows)
    is_pair = len(config.text) == 2
    if any(second for _, second in inputs) != is_pair:
        names, kind = ",".join(config.text), "single texts" if is_pair else "pairs of texts"
        remedy = "name one column" if is_pair else "name both columns"
        raise OptionError(f"--text {names}: inputs of {config.tree} are {kind}; {remedy}")
    # Tests of one text are one row.
    first = dict(reversed([(texts, place) for place, texts in enumerate(inputs)]))
    kept = np.array(sorted(first.values()), np.int64)
    columns: dict[str, Any] = {
        name: [inputs[place][at] for place in kept.tolist()] for at, name in enumerate(config.text)
    }
    labels = labelled.labels[of[kept]]
    columns[config.label] = [known.get(label, label) for label in labels.tolist()]
    topics = labelled.tests["topic"].take(pa.array(of[kept])).combine_chunks()
    return pa.table({**columns, "topic": topics, "weight": _weights(labels, topics)})


def _weights(labels: NDArray[np.object_], topics: pa.Array) -> FloatArray:
    """Return weights by which labels count alike in all, and the topics of a label within it."""
    codes = [
        values.dictionary_encode().indices.to_numpy()
        for values in (pa.array(labels, pa.string()), topics)
    ]
    _, cell, sizes = np.unique(np.stack(codes), axis=1, return_inverse=True, return_counts=True)
    of_label = np.unique(np.stack(codes), axis=1)[0]
    topics_of_label = np.bincount(of_label)
    share = len(labels) / len(topics_of_label) / topics_of_label[codes[0]]
    return np.minimum(share / sizes[cell.ravel()], _MOST_WEIGHT)


def _training_data(config: ExportTrainingConfig, path: str) -> pa.Table:
    """Return the texts and labels of training data; rows that lack one do not count."""
    columns = (*config.text, config.label)
    tables = []
    for file in expand_paths([path], "--mix"):
        for table in _blocks(file, columns):
            for name in columns:
                option = "--label" if name == config.label else "--text"
                if name not in table.column_names:
                    error = unknown_name("column", name, table.column_names)
                    raise ColumnError(f"{option} {name}: {file}: {error}")
                _check_column(
                    f"{option} {name}: {file}", table[name].type, is_text=name != config.label
                )
            usable = pa.array(_is_usable(table, columns))
            tables.append(table.select(list(columns)).filter(usable))
    data = pa.concat_tables(tables, promote_options="permissive")
    if not len(data):
        raise FileError(f"--mix {path}: no row has both a text and a label")
    return data


def _blocks(path: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    if path.endswith((".csv", ".csv.gz")):
        yield from read_csv_blocks(path)
        return
    with (
        parquet_errors(path),
        open_input(storage_path(path)) as stream,
        pq.ParquetFile(stream) as file,
    ):
        known = [name for name in columns if name in file.schema_arrow.names]
        if len(known) < len(columns):
            yield file.schema_arrow.empty_table()
        for batch in file.iter_batches(columns=known):
            yield pa.Table.from_batches([batch])


def _check_column(where: str, kind: pa.DataType, *, is_text: bool) -> None:
    plain = plain_type(kind)
    if not any(is_kind(plain) for is_kind in (_TEXTS if is_text else _LABELS)):
        what = "texts" if is_text else "labels"
        raise ColumnError(
            f"{where}: the column has {plain} values, which are no {what}; name another column"
        )


def _is_usable(table: pa.Table, columns: Sequence[str]) -> BoolArray:
    """Return which rows have a value in each column; [rows]."""
    usable = np.ones(len(table), bool)
    for name in columns:
        is_float = pa.types.is_floating(table[name].type)
        usable &= ~np.asarray(pc.is_null(table[name], nan_is_null=is_float)).astype(bool)
    return usable


def _by_name(labels: pa.ChunkedArray) -> dict[str, Any]:
    """Return labels by how a model puts them out, sorted."""
    return dict(sorted((str(label), label) for label in pc.unique(labels).to_pylist()))


def _drawn(data: pa.Table, label: str, number: int, seed: int) -> pa.Table:
    """Return rows of training data, as many of each label if it has them."""
    codes = data[label].combine_chunks()
    if not pa.types.is_dictionary(codes.type):
        codes = codes.dictionary_encode()
    codes = codes.indices.to_numpy()
    rows = np.random.default_rng(seed).permutation(len(codes))
    rows = rows[np.argsort(codes[rows], kind="stable")]
    rank = np.arange(len(rows)) - np.searchsorted(codes[rows], codes[rows])
    chosen = rows[np.argsort(rank, kind="stable")][:number]
    return data.take(pa.array(np.sort(chosen)))


def _mark(path: str, ids: pa.ChunkedArray) -> None:
    """Mark tests of a tree as exported, unless they are; in its file, which another may have changed."""
    tree = read_tree(path)
    if TRAINED not in tree.table.column_names:
        tree = tree.with_column(TRAINED, [""] * len(tree))
    wanted = pc.is_in(tree.table[ID], ids.combine_chunks())
    new = tree.table.filter(pc.and_(wanted, pc.equal(tree.table[TRAINED], "")))[ID].to_pylist()
    if new:
        write_tree(tree.change(new, **{TRAINED: _EXPORTED}), path)
