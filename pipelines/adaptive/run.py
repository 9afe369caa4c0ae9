"""``slicebeam adapt run``: scores a test tree, and tests its topics as slices.

The tests with their outcomes are a table, the topics are slices of it, and what counts and tests them is
that of ``slicebeam check``: the document is one of a check, whose data and slices are published with it.
"""

from __future__ import annotations

import shutil
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow.parquet as pq
import yaml

from slicebeam.metrics.errors import EngineError, FileError
from slicebeam.pipelines.adaptive.scored_tree import (
    EXPECTED,
    OLD_PASSED,
    PASSED,
    named_models,
    reasons_text,
    score_tree,
    topic_column,
    topics_of,
)
from slicebeam.pipelines.adaptive.scoring import refuse_missing_models, scorable_tests
from slicebeam.pipelines.adaptive.topic_outcomes import TESTS, TOPICS, gate_of_topics, with_topics
from slicebeam.pipelines.adaptive.topics import displayed
from slicebeam.pipelines.adaptive.tree_files import TreeSource, read_tree
from slicebeam.pipelines.check.check import prepare_check
from slicebeam.pipelines.config.check import CheckConfig
from slicebeam.pipelines.config.common import validated
from slicebeam.pipelines.run.engine import start_engine
from slicebeam.pipelines.run.lock_files import lock_file
from slicebeam.pipelines.run.run_lock import RunLock
from slicebeam.pipelines.search.earlier_run import earlier_run
from slicebeam.pipelines.search.search import ExtraOutputs, Steps, run_steps
from slicebeam.transforms.storage.storage import (
    make_folder,
    remove_folder,
    storage_errors,
    storage_path,
    written_whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.pipelines.adaptive.scored_tree import ScoredTree
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.config.adapt import AdaptRunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.published import Published
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.pipelines.search.search_observer import SearchObserver
    from slicebeam.transforms.storage.storage import StoragePath

_METRIC = "error_rate"
# Folders within the output, each of one run until it ends.
_SCRATCH = "_scored-"


def run_tests(config: AdaptRunConfig, observer: SearchObserver) -> Published:
    """Score a tree by one model or two, test its topics, and publish the ChangeList.

    Raises
    ------
    InputError
        The options, the tree or a model are wrong.
    EngineError
        The engine, an endpoint or the storage failed; what was paid is in the ledger.
    """
    tree = read_tree(config.tree)
    for note in tree.source.notes if isinstance(tree.source, TreeSource) else ():
        observer.note(note)
    models = named_models(config)
    tests = scorable_tests(tree)
    if not tests.table.num_rows:
        raise FileError(
            f"{config.tree}: no test says what it expects{reasons_text(tests.left_out)}; label tests pass or "
            "fail, or give them an expectation"
        )
    if not topics_of(tests.table):
        raise FileError(
            f"{config.tree}: all tests are at the root, so that there is no topic to report; give them topics"
        )
    refuse_missing_models(tests.table, models)
    output = storage_path(config.output, "--output")
    with (
        _scratch_folder(output) as scratch,
        start_engine(config.runner_config, config.runner_option) as engine,
    ):
        engine.check_storage([output])
        scored = score_tree(config, tree, tests, models, scratch, engine, observer)
        return _published(config, scored, len(tree.topics()), scratch, engine, observer)


@contextmanager
def _scratch_folder(output: StoragePath) -> Iterator[StoragePath]:
    """Make a folder for this run, and remove it at its end; those of runs that were killed too.

    Another run may write to the same output, until the one that is later sees it: a folder is locked as
    long as its run lives.
    """
    with storage_errors(output, "write"):
        make_folder(output)
        for left in [one for one in output.iterdir() if one.name.startswith(_SCRATCH)]:
            _remove_if_dead(left)
        scratch = output / f"{_SCRATCH}{uuid.uuid4().hex[:8]}"
        make_folder(scratch)
    lock = RunLock(scratch, lock_file(scratch))
    lock.acquire()
    try:
        yield scratch
    finally:
        try:
            remove_folder(scratch)
        finally:
            lock.release()


def _remove_if_dead(folder: StoragePath) -> None:
    """Remove the folder of a run, unless that lives."""
    if isinstance(folder, Path) and folder.is_symlink():
        # No run made it, and what it leads to is not a run's.
        return
    lock = RunLock(folder, lock_file(folder))
    try:
        lock.acquire()
    except EngineError:
        return
    try:
        remove_folder(folder)
    finally:
        lock.release()


def _published(
    config: AdaptRunConfig,
    scored: ScoredTree,
    topics_in_tree: int,
    scratch: StoragePath,
    engine: Engine,
    observer: SearchObserver,
) -> Published:
    """Test the topics, and publish the document with the tests."""
    if not scored.topics:
        raise FileError(
            f"{config.tree}: all tests that could be scored are at the root, so that there is no topic to "
            f"report{reasons_text(scored.unscored)}"
        )
    slices = [
        {
            "name": displayed(topic) + (" (trained)" if topic in scored.trained else ""),
            "predicate": {
                "all": [{"field": topic_column(topic.count("/")), "op": "==", "value": topic}]
            },
        }
        for topic in scored.topics
    ]
    with written_whole(scratch / TESTS) as stream:
        pq.write_table(scored.tests, stream)
    with written_whole(scratch / TOPICS) as stream:
        stream.write(
            yaml.safe_dump({"slices": slices}, allow_unicode=True, sort_keys=False).encode()
        )
    options: dict[str, Any] = {
        "data": (str(scratch / TESTS),),
        "output": config.output,
        "slices": str(scratch / TOPICS),
        "label": EXPECTED,
        "prediction": PASSED,
        "metric": (_METRIC,),
        "correction": "bh",
        "alpha": config.alpha,
        "min_slice_size": 1,
        "since": config.since,
        "runner_config": config.runner_config,
        "runner_option": config.runner_option,
    }
    if config.baseline_model is not None:
        options |= {"baseline_prediction": OLD_PASSED, "alternative": "both"}
    check = validated(CheckConfig, {name: one for name, one in options.items() if one is not None})

    def publish(
        _: CheckConfig,
        prepared: EncodedDataset,
        document: SearchChangeList,
        streams: Sequence[IO[bytes]],
        work: WorkFolder,
        engine: Engine,
    ) -> SearchChangeList:
        del prepared, work, engine
        for stream, name in zip(streams, (TESTS, TOPICS), strict=True):
            with (scratch / name).open("rb") as written:
                shutil.copyfileobj(written, stream)
        return with_topics(document, config, scored, topics_in_tree)

    steps = Steps(
        prepare_check, further=ExtraOutputs((TESTS, TOPICS), publish), judge=gate_of_topics
    )
    earlier = earlier_run(check)
    return run_steps(check, steps, engine, observer, earlier, fail_on=config.fail_on)
