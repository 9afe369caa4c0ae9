"""``slicebeam adapt from``: slices of a run become topics of a test tree, and examples of them tests."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import (
    ColumnError,
    FileError,
    InputError,
    OptionError,
    SlicebeamError,
    unknown_name,
)
from slicebeam.pipelines.adaptive.class_names import (
    ClassNames,
    Vocabulary,
    check_classes,
    mentioned,
)
from slicebeam.pipelines.adaptive.from_slices.slice_tests import TestMaker
from slicebeam.pipelines.adaptive.from_slices.slice_topics import topics_of
from slicebeam.pipelines.adaptive.scoring import scorable_tests
from slicebeam.pipelines.adaptive.topics import displayed
from slicebeam.pipelines.adaptive.tree import Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import read_tree, write_tree
from slicebeam.pipelines.changelist.edits import find_slice
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.changelist.revisions import base_of
from slicebeam.pipelines.define.document_data import open_data
from slicebeam.pipelines.search.fingerprints import OtherDataError, check_same_data
from slicebeam.pipelines.show.terminal_text import harmless
from slicebeam.pipelines.show.worst_slices import shown_slices
from slicebeam.transforms.encode.column import plain_type
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.config.adapt import AdaptFromConfig
    from slicebeam.pipelines.define.document_data import DocumentData

_NAMED = "slicebeam adapt from"
# What two tests of the same have in common.
_SAME = ("topic", "input", "second_input")


@dataclass(frozen=True)
class SliceTopic:
    """The topic of a slice."""

    topic: str  # As it is written in the tree, percent-encoded.
    slice_id: str
    tests: int  # Added.
    # Those of them that the model of the run fails; None where no class is predicted.
    failing: int | None
    known: int  # Tests that the tree had already.


@dataclass(frozen=True)
class SliceTests:
    """The tests that were made of a run."""

    tree: str
    tests: int  # Added.
    topics: tuple[SliceTopic, ...]  # In the order of the run.


def make_tests(config: AdaptFromConfig, note: Callable[[str], None]) -> SliceTests:
    """Write tests of the slices of a run into a tree, and return what was added."""
    exists = storage_path(config.to, "--to").exists()
    if exists and not config.append:
        raise FileError(f"--to {config.to} exists; add to it with --append, or name a new file")
    tree = read_tree(config.to) if exists else TestTree.of_tests(())
    for said in tree.notes:
        note(said)
    uri = base_of(config.changelist, _NAMED)
    document = read_search(uri, _NAMED)
    _refuse(uri, document)
    names = _class_names(config, tree, uri, document)
    slices = _chosen(config, document)
    if not slices:
        kept = f"{config.to} stays as it is" if exists else "no tree is written"
        note(f"{uri} has no findings, so that {kept}; --slice names a slice to make tests of")
        return SliceTests(config.to, 0, ())
    topics = topics_of(document, config.topic)
    examples = open_data(uri, document, config.data or None, config.confirmed)
    try:
        _check_data(uri, config, examples, note)
        texts = _text_columns(uri, config, examples, note)
        examples.seed = config.seed
        if examples.roles is None:
            note(
                "no column of predicted classes is known, so that the tests are random examples of the "
                "slices, failing or not"
            )
        maker = TestMaker(document, examples, texts, config.examples, names)
        made = {one.slice_id: maker.tests(one, topics[one.slice_id]) for one in slices}
    finally:
        examples.close()
    for line in _shortages(config, slices, made):
        note(line)
    every = [test for tests in made.values() for test, _ in tests]
    new = _new(tree, every)
    write_tree(tree.add(test for test in every if test.id in new), config.to)
    found = []
    for slice_id, tests in made.items():
        added = [fails for test, fails in tests if test.id in new]
        failing = None if examples.roles is None else sum(map(bool, added))
        known = len(tests) - len(added)
        found.append(SliceTopic(topics[slice_id], slice_id, len(added), failing, known))
    return SliceTests(config.to, len(new), tuple(found))


def _refuse(uri: str, document: SearchChangeList) -> None:
    """Refuse a document whose slices have no examples that a test can be made of."""
    if document.adaptive is not None:
        raise InputError(
            f"{uri} is of slicebeam adapt run: its slices are topics of {document.adaptive.tree}, which has "
            "their tests already"
        )
    if document.dataset.label_field is None or not document.dataset.classes:
        raise InputError(
            f"{uri} has no labels that are classes, and a test needs the output that is right; run the search "
            "with --label and --prediction of classes, or write the tests by hand"
        )


def _class_names(
    config: AdaptFromConfig, tree: TestTree, uri: str, document: SearchChangeList
) -> ClassNames:
    """Return how the tree names the labels, after refusing a tree that names all classes otherwise."""
    names = ClassNames.of(config.classes)
    labels = [str(one) for one in document.dataset.classes]
    for name, label in names.by_tree.items():
        if label not in (*labels, name):
            raise OptionError(f"--classes {name}={label}: {unknown_name('label', label, labels)}")
    said = Vocabulary(uri, frozenset(), frozenset(labels), document.dataset.n)
    check_classes(names, mentioned(scorable_tests(tree).table), said)
    return names


def _chosen(config: AdaptFromConfig, document: SearchChangeList) -> list[Slice]:
    """Return the slices that the user names, or those that the page shows."""
    if config.slice:
        named = [find_slice(document, one) for one in config.slice]
        return list({one.slice_id: one for one in named}.values())
    if document.discovery is not None and (found := document.described()):
        return found
    by_id = {one.slice_id: one for one in document.slices}
    return [by_id[one] for one in shown_slices(document)]


def _check_data(
    uri: str, config: AdaptFromConfig, examples: DocumentData, note: Callable[[str], None]
) -> None:
    """Refuse data that is not what a document is about; of a discovery, texts are compared instead."""
    document = examples.known.document
    files, remedy = config.data or document.dataset.uri, "run the search again"
    try:
        check_same_data(uri, document, files, config.confirmed, remedy)
    except OtherDataError:
        raise
    except SlicebeamError as error:
        note(f"whether the data is still that of the run could not be checked: {error}")


def _text_columns(
    uri: str, config: AdaptFromConfig, examples: DocumentData, note: Callable[[str], None]
) -> Sequence[str]:
    """Return the columns of the inputs: one, or two of pairs."""
    source, document = examples.source, examples.known.document
    for name in config.text:
        kind = source.column_type(name, "--text")
        if not _is_text(kind):
            raise ColumnError(f"--text {name} is a column of {kind}; name a column of texts")
    if config.text:
        return config.text
    if document.discovery is not None and document.discovery.text_field is not None:
        return (document.discovery.text_field,)
    free = [one.name for one in document.dataset.left_out if one.name in source.schema.names]
    free = [name for name in free if _is_text(source.schema.field(name).type)]
    if len(free) == 1:
        note(f"the inputs are the column {free[0]!r}; --text names another one")
        return (free[0],)
    if free:
        raise ColumnError(
            f"several columns may be the inputs ({', '.join(free)}); name it with --text"
        )
    raise ColumnError(
        f"no column of {' '.join(config.data or document.dataset.uri)} is free text, which tests are made of; "
        f"name a column with --text, or test the slices on new data: slicebeam check --changelist {uri}"
    )


def _is_text(kind: pa.DataType) -> bool:
    inner = plain_type(kind)
    return bool(pa.types.is_string(inner) or pa.types.is_large_string(inner))


def _shortages(
    config: AdaptFromConfig,
    slices: Sequence[Slice],
    made: Mapping[str, Sequence[tuple[Test, bool | None]]],
) -> Iterator[str]:
    """Yield what topics lack: words, and tests."""
    wordless = sum(one.found is not None and not one.found.phrases for one in slices)
    if wordless:
        yield (
            f"topics that have the name of a cluster, since it has no phrases: {wordless:,}; slicebeam "
            "discover describes as many slices as --slices says, where there are texts"
        )
    short = sum(len(tests) < config.examples for tests in made.values())
    if short:
        yield (
            f"topics with fewer than {config.examples:,} tests, since their slices have no more different "
            f"inputs with a label: {short:,}"
        )


def _new(tree: TestTree, tests: Sequence[Test]) -> set[str]:
    """Return the ids of the tests that a tree has neither by their id nor by topic and inputs."""
    known = tree.known(test.id for test in tests)
    in_topics = pc.is_in(
        tree.table["topic"], pa.array(list({test.topic for test in tests}), pa.string())
    )
    own = tree.table.filter(in_topics).select(_SAME)
    same = set(zip(*(own[name].to_pylist() for name in _SAME), strict=True))
    return {
        test.id
        for test in tests
        if test.id not in known and tuple(getattr(test, name) for name in _SAME) not in same
    }


def show_tests(made: SliceTests, _: AdaptFromConfig) -> None:
    """Print the topics, and where they are."""
    if made.topics:
        lines = [f"{made.tests:,} new tests in {len(made.topics):,} topics"]
        for one in made.topics:
            failing = "" if one.failing is None else f", {one.failing:,} failing"
            known = f", {one.known:,} in the tree already" if one.known else ""
            lines.append(f"  {displayed(one.topic)}: {one.tests:,} tests{failing}{known}")
        sys.stdout.write(harmless("\n".join([*lines, made.tree])) + "\n")
