"""``slicebeam adapt export-training``: failing tests with the label that is right, to train a model further.

Only what a test truly says is a label.
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
from slicebeam.pipelines.adaptive.expectations import OUTPUTS, OUTPUTS_NOT, parse_expectation
from slicebeam.pipelines.adaptive.scored_tree import PASSED
from slicebeam.pipelines.adaptive.scoring import NEEDED, scorable_tests
from slicebeam.pipelines.adaptive.topic_outcomes import TESTS
from slicebeam.pipelines.adaptive.topics import as_written, displayed, is_within
from slicebeam.pipelines.adaptive.training_labels import (
    FailingTest,
    compared_inputs,
    labelled,
    said_in_tree,
)
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
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from slicebeam.metrics.arrays import BoolArray
    from slicebeam.pipelines.adaptive.text_models import Text
    from slicebeam.pipelines.config.adapt import ExportTrainingConfig

# What the column `TRAINED` says of a test.
_EXPORTED = "exported"
_MOST_LABELS = 12
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
_LABELS = (*_TEXTS, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)


@dataclass(frozen=True)
class TrainingExport:
    """What was exported."""

    path: str
    tests: int
    left_out: dict[str, int]  # How many failing tests were not exported, by the reason.
    tree: str  # The file in which the tests are marked.
    topics: tuple[str, ...]  # Of the exported tests, as the tree writes them.


def export_training(config: ExportTrainingConfig, note: Callable[[str], None]) -> TrainingExport:
    """Write failing tests with text, label, topic and weight to a file, and mark them in the tree.

    The tree is marked after the file is written: who is stopped between the two runs the command
    again, which writes the same file.
    """
    for what, path in (("--data", config.data), ("the tree", config.tree)):
        if _is_same_file(config.to, path):
            raise OptionError(f"--to {config.to} is {what} itself; name another file")
    tree = read_tree(config.tree)
    for line in tree.notes:
        note(line)
    left_out: Counter[str] = Counter()
    failed, names = _failing_in_run(config)
    if config.classes:
        names = ClassNames.of(config.classes)
        names.refuse_unused(mentioned(scorable_tests(tree).table))
    failing = _failing_tests(config, tree, failed, names, left_out)
    others = {text for test in failing for text in compared_inputs(test)}
    labels, in_data = read_labels(config.data, config.text, config.label, others)
    _refuse_unknown_labels(config, failing, labels, names)
    in_tree = said_in_tree(tree, {test.text for test in failing} | others, names)
    chosen = labelled(failing, tuple(labels), in_tree, in_data, left_out)
    if not chosen:
        raise InputError(
            f"no failing test of {config.tree} says which label is right ({reasons(left_out)})"
        )
    _write(config, chosen, labels)
    _mark(config.tree, [test.id for test, _ in chosen])
    topics = tuple(sorted({test.topic for test, _ in chosen}))
    return TrainingExport(config.to, len(chosen), dict(left_out), config.tree, topics)


def reasons(left_out: Mapping[str, int]) -> str:
    """Return why tests were left out, in a line."""
    return "; ".join(f"{number:,}: {reason}" for reason, number in left_out.items())


def _is_same_file(to: str, other: str) -> bool:
    written, known = storage_path(to, "--to"), storage_path(other)
    if isinstance(written, Path) and isinstance(known, Path):
        return written.resolve() == known.resolve()
    return written == known


def _write(
    config: ExportTrainingConfig, chosen: Sequence[tuple[FailingTest, str]], labels: dict[str, Any]
) -> None:
    """Write the tests: of tests with the same text each has its part of the weight 1."""
    texts = [test.text if isinstance(test.text, tuple) else (test.text,) for test, _ in chosen]
    times = Counter(texts)
    columns: dict[str, Any] = dict(
        zip(config.text, map(list, zip(*texts, strict=True)), strict=True)
    )
    columns[config.label] = [labels[label] for _, label in chosen]
    columns["topic"] = [test.topic for test, _ in chosen]
    columns["weight"] = [1 / times[text] for text in texts]
    with written_whole(storage_path(config.to, "--to")) as stream:
        write = arrow_csv.write_csv if config.to.endswith(".csv") else pq.write_table
        write(pa.table(columns), stream)


def read_labels(
    data: str, texts: Sequence[str], label: str, looked_up: Collection[Text]
) -> tuple[dict[str, Any], dict[Text, set[str]]]:
    """Return the labels of training data by how a model puts them out, and those of some texts there.

    Rows without a text or a label do not count.
    """
    columns = (*texts, label)
    labels: dict[str, Any] = {}
    labels_of: dict[Text, set[str]] = {}
    firsts = pa.array(sorted({text if isinstance(text, str) else text[0] for text in looked_up}))
    for path in expand_paths([data]):
        for table in _blocks(path, columns):
            for name in columns:
                option = "--label" if name == label else "--text"
                if name not in table.column_names:
                    error = unknown_name("column", name, table.column_names)
                    raise ColumnError(f"{option} {name}: {path}: {error}")
                _check(f"{option} {name}: {path}", table[name].type, is_text=name != label)
            usable = table.select(list(columns)).filter(pa.array(_usable(table, columns)))
            labels.update((str(value), value) for value in pc.unique(usable[label]).to_pylist())
            if looked_up:
                first = usable[columns[0]].cast(pa.string())
                usable = usable.filter(pc.is_in(first, firsts.cast(pa.string())))
                *inputs, values = (column.to_pylist() for column in usable.columns)
                keys = inputs[0] if len(inputs) == 1 else list(zip(*inputs, strict=True))
                for key, value in zip(keys, values, strict=True):
                    labels_of.setdefault(key, set()).add(str(value))
    if not labels:
        raise FileError(f"--data {data}: no row has both a text and a label")
    return labels, labels_of


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


def _check(where: str, kind: pa.DataType, *, is_text: bool) -> None:
    plain = plain_type(kind)
    if not any(is_kind(plain) for is_kind in (_TEXTS if is_text else _LABELS)):
        what = "texts" if is_text else "labels"
        raise ColumnError(
            f"{where}: the column has {plain} values, which are no {what}; name another column"
        )


def _usable(table: pa.Table, columns: Sequence[str]) -> BoolArray:
    """Return which rows have a value in each of some columns; [rows]."""
    usable = np.ones(len(table), bool)
    for name in columns:
        is_float = pa.types.is_floating(table[name].type)
        usable &= ~np.asarray(pc.is_null(table[name], nan_is_null=is_float)).astype(bool)
    return usable


def _failing_tests(
    config: ExportTrainingConfig,
    tree: TestTree,
    failed: pa.Table,
    names: ClassNames,
    left_out: Counter[str],
) -> list[FailingTest]:
    """Return the tests that fail by the ChangeList, and are in the tree as they were then.

    They name the classes as the data does.
    """
    failed = failed.filter(pa.array(_chosen(config, tree, failed["topic"].to_pylist())))
    if not len(failed):
        where = f" in {', '.join(map(displayed, config.topic))}" if config.topic else ""
        raise InputError(
            f"nothing to export: no test{where} fails by --changelist {config.changelist}"
        )
    table = scorable_tests(tree).table
    guesses = tree.table.filter(pc.equal(tree.table["labeler"], IMPUTED))[ID]
    table = table.append_column("is_guess", pc.is_in(table[ID], guesses.combine_chunks()))
    table = table.append_column("label_value", names.applied(table)["value"])
    wanted = table.filter(pc.is_in(table[ID], failed[ID].combine_chunks()))
    now = {row[ID]: row for row in wanted.to_pylist()}
    is_pair = len(config.text) == 2
    tests = []
    for then in failed.to_pylist():
        row = now.get(then[ID])
        if row is None:
            left_out["no longer in the tree, or nothing is expected there"] += 1
        elif any(row[name] != then[name] for name in NEEDED):
            left_out["changed in the tree since the run"] += 1
        else:
            if bool(row["second_input"]) and not is_pair:
                raise OptionError(
                    f"--text {config.text[0]} is one column, and inputs of {config.tree} are pairs of texts; "
                    "name both columns"
                )
            text = (row["input"], row["second_input"]) if is_pair else row["input"]
            said = row["expectation"], row["label_value"], row["is_guess"]
            tests.append(FailingTest(row[ID], row["topic"], text, *said))
    if is_pair and not any(test.text[1] for test in tests):
        raise OptionError(
            f"--text {','.join(config.text)} are two columns, and inputs of {config.tree} are single texts; "
            "name one column"
        )
    return tests


def _failing_in_run(config: ExportTrainingConfig) -> tuple[pa.Table, ClassNames]:
    """Return the tests that a run says fail: id, topic, and what they expect; and its names of classes."""
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
    return table.filter(pc.invert(table[PASSED])), ClassNames(document.adaptive.classes)


def _chosen(config: ExportTrainingConfig, tree: TestTree, topics: list[str]) -> BoolArray:
    """Return which of some tests are in the topics that the user named; [tests]."""
    if not config.topic:
        return np.ones(len(topics), bool)
    known = tree.topics()
    wanted = [as_written(name, known) for name in config.topic]
    for name, topic in zip(config.topic, wanted, strict=True):
        if topic not in known:
            shown = list(map(displayed, known))
            raise OptionError(f"--topic {name}: {unknown_name('topic', name, shown)}")
    return np.array(
        [any(is_within(topic, name) for name in wanted) for topic in topics], dtype=bool
    )


def _refuse_unknown_labels(
    config: ExportTrainingConfig,
    failing: Sequence[FailingTest],
    labels: Mapping[str, Any],
    names: ClassNames,
) -> None:
    unknown = Counter(
        test.value
        for test in failing
        if not test.is_guess
        and parse_expectation(test.expectation).kind.name in (OUTPUTS, OUTPUTS_NOT)
        and test.value not in labels
        and not names.is_declared(test.value)
    )
    for label, number in unknown.most_common(1):
        shown = ", ".join(map(repr, sorted(labels)[:_MOST_LABELS]))
        more = ", …" if len(labels) > _MOST_LABELS else ""
        raise InputError(
            f"{number:,} failing tests name the class {label!r}, which is not a label in --data {config.data}, "
            f"--label {config.label} ({shown}{more}); say which label it is with --classes, or choose other "
            "topics by --topic"
        )


def _mark(path: str, ids: Sequence[str]) -> None:
    """Mark tests of a tree as exported, unless they are; in its file, which another may have changed."""
    tree = read_tree(path)
    if TRAINED not in tree.table.column_names:
        tree = tree.with_column(TRAINED, [""] * len(tree))
    wanted = pc.is_in(tree.table[ID], pa.array(ids, pa.string()))
    new = tree.table.filter(pc.and_(wanted, pc.equal(tree.table[TRAINED], "")))[ID].to_pylist()
    if new:
        write_tree(tree.change(new, **{TRAINED: _EXPORTED}), path)
