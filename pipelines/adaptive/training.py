"""``slicebeam adapt export-training``: failing tests, mixed with training data, to train a model further.

Only what a test truly says is a label. Failing tests are mixed one to one with rows of the training
data, so that what is trained on them does not forget the rest (Ribeiro and Lundberg, ACL 2022).
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

from slicebeam.metrics.errors import FileError, InputError, OptionError, unknown_name
from slicebeam.pipelines.adaptive.class_names import ClassNames, mentioned
from slicebeam.pipelines.adaptive.expectations import OUTPUTS, OUTPUTS_NOT, parse_expectation
from slicebeam.pipelines.adaptive.scored_tree import PASSED
from slicebeam.pipelines.adaptive.scoring import NEEDED, scorable_tests
from slicebeam.pipelines.adaptive.topic_outcomes import TESTS
from slicebeam.pipelines.adaptive.topics import as_written, displayed, is_within
from slicebeam.pipelines.adaptive.training_files import training_file, write_mixed
from slicebeam.pipelines.adaptive.training_labels import (
    FailingTest,
    compared_inputs,
    labelled,
    said_in_tree,
)
from slicebeam.pipelines.adaptive.training_rows import mixed_order, read_rows
from slicebeam.pipelines.adaptive.tree import ID, IMPUTED, TRAINED, TestTree
from slicebeam.pipelines.adaptive.tree_files import TreeSource, read_tree, write_tree
from slicebeam.pipelines.changelist.reading import file_of, read_search
from slicebeam.pipelines.changelist.revisions import base_of
from slicebeam.transforms.storage.files import file_format
from slicebeam.transforms.storage.storage import open_input, storage_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from slicebeam.metrics.arrays import BoolArray
    from slicebeam.pipelines.config.adapt_training import ExportTrainingConfig

# What the column `TRAINED` says of a test.
_EXPORTED = "exported"
_MOST_LABELS = 12


@dataclass(frozen=True)
class TrainingExport:
    """What was exported.

    Attributes
    ----------
    path : the file that was written
    tests : in it
    rows : of the training data in it
    left_out : how many failing tests were not exported, by the reason
    tree : the file in which the tests are marked
    topics : of the exported tests, as the tree writes them
    """

    path: str
    tests: int
    rows: int
    left_out: dict[str, int]
    tree: str
    topics: tuple[str, ...]


def export_training(config: ExportTrainingConfig, note: Callable[[str], None]) -> TrainingExport:
    """Write failing tests and as many rows of the training data to a file, and mark the tests.

    The tree is marked after the file is written: who is stopped between the two runs the command
    again, which writes the same file.

    Raises
    ------
    InputError
        The options, the tree, the ChangeList or the data are wrong; or no failing test says a label.
    EngineError
        The storage failed.
    """
    file = training_file(config.data, config.format, config.delimiter)
    _refuse_overwriting(config, file.path)
    tree = read_tree(config.tree)
    for one in tree.source.notes if isinstance(tree.source, TreeSource) else ():
        note(one)
    left_out: Counter[str] = Counter()
    failed, names = _failing_in_run(config)
    if config.classes:
        names = ClassNames.of(config.classes)
        names.refuse_unused(mentioned(scorable_tests(tree).table))
    failing = _failing_tests(config, tree, failed, names, left_out)
    others = {text for one in failing for text in compared_inputs(one)}
    data = read_rows(file, config.text, config.label, len(failing), config.seed, others)
    if not data.labels:
        raise FileError(f"--data {config.data}: no row has both a text and a label")
    _refuse_unknown_labels(config, failing, data.labels, names)
    in_tree = said_in_tree(tree, {one.text for one in failing} | others, names)
    chosen = labelled(failing, tuple(data.labels), in_tree, data.labels_of, left_out)
    if not chosen:
        raise InputError(
            f"no failing test of {config.tree} says which label is right ({reasons(left_out)})"
        )
    rows = data.drawn[: len(chosen)]
    if len(rows) < len(chosen):
        note(
            f"--data {config.data} has {len(rows):,} rows with text and label, fewer than the "
            f"{len(chosen):,} tests: all of them are in the file"
        )
    tests = {config.label: [data.labels[label] for _, label in chosen]}
    texts = [one.text if isinstance(one.text, tuple) else (one.text,) for one, _ in chosen]
    for name, column in zip(config.text, zip(*texts, strict=True), strict=True):
        tests[name] = list(column)
    write_mixed(file, config.to, rows, tests, mixed_order(len(chosen) + len(rows), config.seed))
    _mark(config.tree, [one.id for one, _ in chosen])
    topics = tuple(sorted({one.topic for one, _ in chosen}))
    return TrainingExport(config.to, len(chosen), len(rows), dict(left_out), config.tree, topics)


def reasons(left_out: Mapping[str, int]) -> str:
    """Return why tests were left out, in a line."""
    return "; ".join(f"{number:,}: {reason}" for reason, number in left_out.items())


def _refuse_overwriting(config: ExportTrainingConfig, data: str) -> None:
    for what, path in (("--data", data), ("the tree", config.tree)):
        if _is_same_file(config.to, path):
            raise OptionError(f"--to {config.to} is {what} itself; name another file")
    wanted = file_format(data, config.format)
    try:
        named = file_format(config.to)
    except InputError:
        # The name shows no format.
        return
    if named != wanted:
        raise OptionError(
            f"--to {config.to} is a name of {named}, and --data {config.data} is {wanted}; the file is "
            "written in the format of the data, so name it so"
        )


def _is_same_file(to: str, other: str) -> bool:
    one, another = storage_path(to, "--to"), storage_path(other)
    if isinstance(one, Path) and isinstance(another, Path):
        return one.resolve() == another.resolve()
    return one == another


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
    now = {row[ID]: row for row in _rows_of(table, failed[ID])}
    is_pair = len(config.text) == 2
    found = []
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
            found.append(
                FailingTest(
                    row[ID],
                    row["topic"],
                    text,
                    row["expectation"],
                    row["label_value"],
                    row["is_guess"],
                )
            )
    if is_pair and not any(one.text[1] for one in found):
        raise OptionError(
            f"--text {','.join(config.text)} are two columns, and inputs of {config.tree} are single texts; "
            "name one column"
        )
    return found


def _rows_of(table: pa.Table, ids: pa.ChunkedArray) -> list[dict[str, Any]]:
    """Return the rows of some ids."""
    rows: list[dict[str, Any]] = table.filter(pc.is_in(table[ID], ids.combine_chunks())).to_pylist()
    return rows


def _failing_in_run(config: ExportTrainingConfig) -> tuple[pa.Table, ClassNames]:
    """Return the tests that a run says fail: id, topic, and what they expect; and its names of classes."""
    uri = base_of(config.changelist)
    document = read_search(uri, "--changelist", with_slices=False)
    if document.adaptive is None:
        raise InputError(
            f"--changelist {config.changelist} is no result of a test tree; name that of slicebeam adapt run"
        )
    path = file_of(uri, document, TESTS)
    for one in (path, path.parent / TESTS):
        if _is_same_file(config.to, str(one)):
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
    wanted = [as_written(one, known) for one in config.topic]
    for given, topic in zip(config.topic, wanted, strict=True):
        if topic not in known:
            shown = [displayed(one) for one in known]
            raise OptionError(f"--topic {given}: {unknown_name('topic', given, shown)}")
    return np.array([any(is_within(topic, one) for one in wanted) for topic in topics], dtype=bool)


def _refuse_unknown_labels(
    config: ExportTrainingConfig,
    failing: Sequence[FailingTest],
    labels: Mapping[str, Any],
    names: ClassNames,
) -> None:
    unknown = Counter(
        one.value
        for one in failing
        if not one.is_guess
        and parse_expectation(one.expectation).kind.name in (OUTPUTS, OUTPUTS_NOT)
        and one.value not in labels
        and not names.is_declared(one.value)
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
