"""``slicebeam adapt run``: scores a test tree, and tests its topics as slices.

The tests with their outcomes are a table, the topics are slices of it, and what counts and tests them is
that of ``slicebeam check``: the document is one of a check, whose data and slices are published with it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any

import pyarrow.parquet as pq
import yaml

from slicebeam.metrics.errors import FileError
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
from slicebeam.pipelines.adaptive.tree_files import read_tree
from slicebeam.pipelines.config.check import CheckConfig
from slicebeam.pipelines.config.common import validated
from slicebeam.pipelines.run.engine import start_engine
from slicebeam.pipelines.search.check import prepare_check
from slicebeam.pipelines.search.earlier_run import earlier_run
from slicebeam.pipelines.search.search import Steps, run_steps
from slicebeam.transforms.storage.storage import make_folder, storage_errors, storage_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.adaptive.scored_tree import ScoredTree
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.config.adapt import AdaptRunConfig
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.open_run import Published
    from slicebeam.pipelines.search.iterations import SearchObserver
    from slicebeam.pipelines.search.results import Results

_METRIC = "error_rate"


def run_tests(config: AdaptRunConfig, observer: SearchObserver) -> Published:
    """Score a tree by one model or two, test its topics, and publish the ChangeList."""
    tree = read_tree(config.tree)
    for note in tree.notes:
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
    with storage_errors(output, "write"):
        make_folder(output)
    scored = score_tree(config, tree, tests, models, observer)
    with TemporaryDirectory(prefix="slicebeam-") as folder, start_engine("direct", ()) as engine:
        return _published(config, scored, len(tree.topics()), Path(folder), engine, observer)


def _published(
    config: AdaptRunConfig,
    scored: ScoredTree,
    topics_in_tree: int,
    folder: Path,
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
    pq.write_table(scored.tests, folder / TESTS)
    text = yaml.safe_dump({"slices": slices}, allow_unicode=True, sort_keys=False)
    (folder / TOPICS).write_text(text, "utf-8")
    options: dict[str, Any] = {
        "data": (str(folder / TESTS),),
        "output": config.output,
        "slices": str(folder / TOPICS),
        "label": EXPECTED,
        "prediction": PASSED,
        "metric": (_METRIC,),
        "correction": "bh",
        "alpha": config.alpha,
        "min_slice_size": 1,
        "since": config.since,
    }
    if config.baseline_model is not None:
        options |= {"baseline_prediction": OLD_PASSED, "alternative": "both"}
    check = validated(CheckConfig, {name: one for name, one in options.items() if one is not None})

    def publish(
        _: CheckConfig, __: Results, document: SearchChangeList, streams: Sequence[IO[bytes]]
    ) -> SearchChangeList:
        for stream, name in zip(streams, (TESTS, TOPICS), strict=True):
            with (folder / name).open("rb") as written:
                shutil.copyfileobj(written, stream)
        return with_topics(document, config, scored, topics_in_tree)

    steps = Steps(prepare_check, further=(TESTS, TOPICS), write=publish, judge=gate_of_topics)
    earlier = earlier_run(check)
    return run_steps(check, steps, engine, observer, earlier, fail_on=config.fail_on)
