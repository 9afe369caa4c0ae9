"""``slicebeam adapt run``: scores a test tree, and tests its topics as slices.

The tests with their outcomes are a table, the topics are slices of it, and what counts and tests them is
that of ``slicebeam check``: the document is one of a check, whose data and slices are published with it.
"""

from __future__ import annotations

import shutil
import uuid
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from slicebeam.metrics.adaptive.failure_scores import fails
from slicebeam.metrics.adaptive.topic_changes import FAILS_FROM, state_by_rule
from slicebeam.metrics.errors import FileError, InputError
from slicebeam.pipelines.adaptive.paid_outputs import Purse, buy_outputs, read_endpoint
from slicebeam.pipelines.adaptive.scoring import (
    Models,
    ScorableTests,
    Scored,
    needed_inputs,
    refuse_missing_models,
    scorable_tests,
    score_tests,
)
from slicebeam.pipelines.adaptive.text_models import TextModel, text_model
from slicebeam.pipelines.adaptive.topics import displayed, with_ancestors
from slicebeam.pipelines.adaptive.tree import ID, TestTree
from slicebeam.pipelines.adaptive.tree_files import TreeSource, read_tree
from slicebeam.pipelines.changelist.adaptive import AdaptiveTests, PaidAnswers, TopicOutcome
from slicebeam.pipelines.changelist.discovered import PredicateDefinition
from slicebeam.pipelines.check.check import GivenIterations, given_names, prepare_check
from slicebeam.pipelines.config.check import CheckConfig
from slicebeam.pipelines.config.common import validated
from slicebeam.pipelines.config.shift import parse_budget
from slicebeam.pipelines.run.engine import start_engine
from slicebeam.pipelines.run.stage import Stage
from slicebeam.pipelines.search.earlier_run import earlier_run
from slicebeam.pipelines.search.report_order import given_order
from slicebeam.pipelines.search.results import collect_given
from slicebeam.pipelines.search.search import ExtraOutputs, Steps, run_steps
from slicebeam.transforms.storage.publish import sha256_of
from slicebeam.transforms.storage.storage import (
    make_folder,
    remove_folder,
    storage_path,
    written_whole,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slicebeam.pipelines.changelist.changes import Change
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.config.adapt import AdaptRunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.published import Published
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.pipelines.search.search_observer import SearchObserver
    from slicebeam.transforms.storage.storage import StoragePath

TESTS, TOPICS = "tests.parquet", "topics.yaml"
# The column of a tree that says whether a test was exported as training data.
TRAINED = "training"
EXPECTED, RESULT, OLD_RESULT = "expected", "result", "baseline_result"
_METRIC = "error_rate"


class _TopicConfig(CheckConfig):
    """Options of a check of topics, of which every test may fail."""

    @property
    def has_known_classes(self) -> bool:
        """Whether results are pass or fail, also where no test passes."""
        return True


@dataclass(frozen=True)
class _ScoredTree:
    """What is known of a tree before its topics are tested.

    Attributes
    ----------
    tests : a row each test that every model was scored on
    unscored : how many tests were not, by the reason
    topics : that have tests, in their order
    trained : topics of which tests were exported as training data
    paid : what was bought
    """

    tests: pa.Table
    unscored: dict[str, int]
    topics: tuple[str, ...]
    trained: frozenset[str]
    paid: tuple[PaidAnswers, ...]


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
    models = _models(config)
    tests = scorable_tests(tree)
    if not tests.table.num_rows:
        raise FileError(
            f"{config.tree}: no test says what it expects{_reasons(tests.left_out)}; label tests pass or "
            "fail, or give them an expectation"
        )
    refuse_missing_models(tests.table, models)
    output = storage_path(config.output, "--output")
    # Another run may write to the same output, until the one that is later sees it.
    scratch = output / f"_scored-{uuid.uuid4().hex[:8]}"
    make_folder(scratch)
    try:
        with start_engine(config.runner_config, config.runner_option) as engine:
            engine.check_storage([output])
            scored = _scored(config, tree, tests, models, scratch, engine, observer)
            return _published(config, scored, len(tree.topics()), scratch, engine, observer)
    finally:
        remove_folder(scratch)


def _models(config: AdaptRunConfig) -> Models:
    new = text_model(config.model, "--model")
    old, inverse, classifier = (
        None if given is None else text_model(given, option)
        for given, option in (
            (config.baseline_model, "--baseline-model"),
            (config.inverse_model, "--inverse-model"),
            (config.output_classifier, "--output-classifier"),
        )
    )
    for model, option in ((inverse, "--inverse-model"), (classifier, "--output-classifier")):
        if model is not None and model.is_paid:
            raise InputError(
                f"{option} {model.name} is an endpoint, which only --model and --baseline-model may be; "
                "name module:function"
            )
    return Models(new, old, inverse, classifier)


def _scored(
    config: AdaptRunConfig,
    tree: TestTree,
    tests: ScorableTests,
    models: Models,
    scratch: StoragePath,
    engine: Engine,
    observer: SearchObserver,
) -> _ScoredTree:
    models, paid = _bought(config, tests, models, scratch, observer)
    names = [one.name for one in reversed(models.scored)]
    observer.stage(Stage(f"scoring {tests.table.num_rows:,} tests by {' and '.join(names)}"))
    results = score_tests(tests, models, scratch, engine)
    known = np.ones(tests.table.num_rows, bool)
    unscored = dict(tests.left_out)
    for one, model in zip(results, models.scored, strict=True):
        missing = known & np.isnan(one.failures)
        for reason, which in _reasons_without_score(tests.table, one):
            number = int((missing & which).sum())
            if number:
                unscored[f"{model.name}: {reason}"] = number
        known &= ~missing
    if not known.any():
        raise FileError(f"{config.tree}: no test could be scored{_reasons(unscored)}")
    table = _table(tests.table, results).filter(pa.array(known))
    topics = pc.unique(table["topic"]).to_pylist()
    every = sorted({one for topic in topics for one in with_ancestors(topic) if one})
    return _ScoredTree(table, unscored, tuple(every), _trained(tree), paid)


def _reasons_without_score(tests: pa.Table, scored: Scored) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return why tests have no score, and which of them if they have none; [tests] each."""
    answered = np.array([text is not None for text in scored.outputs.tolist()], bool)
    unless = pc.match_substring(tests["expectation"], "unless=").to_numpy(zero_copy_only=False)
    return [
        ("no output", ~answered),
        ("excused by the output for the input (unless=)", answered & unless),
        ("no probability or number of the class that the expectation compares", answered & ~unless),
    ]


def _bought(
    config: AdaptRunConfig,
    tests: ScorableTests,
    models: Models,
    scratch: StoragePath,
    observer: SearchObserver,
) -> tuple[Models, tuple[PaidAnswers, ...]]:
    """Return the models with the answers of those that are endpoints, and what these cost."""
    paid_models = [(one, f"--{flag}") for one, flag in _by_option(models) if one.is_paid]
    if not paid_models:
        if config.budget is not None or config.ledger is not None:
            name = "budget" if config.budget is not None else "ledger"
            raise InputError(
                f"--{name} is for endpoints (.yaml), and none of the models is one; leave it out"
            )
        return models, ()
    # What is wrong with any file is said before anything is paid.
    for model, option in paid_models:
        read_endpoint(model, option, has_pairs=tests.has_pairs)
    inputs = needed_inputs(tests.table, has_pairs=tests.has_pairs)
    purse = Purse(None if config.budget is None else parse_budget(config.budget))
    ledger = storage_path(config.ledger or f"{config.output.rstrip('/')}/ledger", "--ledger")
    bought: dict[TextModel, TextModel] = {}
    paid = []
    for place, (model, option) in enumerate(paid_models):
        file = scratch / f"answers-{place}.parquet"
        bought[model], one = buy_outputs(
            model, option, inputs, purse, ledger, file, observer.stage, has_pairs=tests.has_pairs
        )
        paid.append(one)
    old = None if models.old is None else bought.get(models.old, models.old)
    new = bought.get(models.new, models.new)
    return Models(new, old, models.inverse, models.classifier), tuple(paid)


def _by_option(models: Models) -> list[tuple[TextModel, str]]:
    return list(zip(models.scored, ("model", "baseline-model"), strict=False))


def _table(tests: pa.Table, results: Sequence[Scored]) -> pa.Table:
    """Return tests with their topics at each level, and how each model did."""
    encoded = tests["topic"].combine_chunks().dictionary_encode()
    above = [with_ancestors(topic)[1:] for topic in encoded.dictionary.to_pylist()]
    levels = {}
    for level in range(max(map(len, above), default=0)):
        at_level = pa.array(
            [one[level] if level < len(one) else None for one in above], pa.string()
        )
        levels[topic_column(level + 1)] = at_level.take(encoded.indices).dictionary_encode()
    columns = {name: tests[name] for name in (ID, "topic", "label")} | levels
    columns |= {name: tests[name] for name in ("input", "second_input", "expectation", "value")}
    for scored, prefix, result in zip(
        results, ("", "baseline_"), (RESULT, OLD_RESULT), strict=False
    ):
        columns[f"{prefix}output"] = pa.array(scored.outputs, pa.string())
        columns[f"{prefix}failure"] = pa.array(scored.failures)
        failed = pa.array(fails(scored.failures))
        columns[result] = pc.if_else(failed, "fail", "pass")
    columns[EXPECTED] = pa.repeat(pa.scalar("pass"), len(tests))
    return pa.table(columns)


def topic_column(level: int) -> str:
    """Return the column of the topics at a level; the topics below the root are at level 1."""
    return f"topic_{level}"


def _trained(tree: TestTree) -> frozenset[str]:
    if TRAINED not in tree.table.column_names:
        return frozenset()
    marked = tree.table.filter(pc.not_equal(tree.table[TRAINED], ""))
    topics = pc.unique(marked["topic"]).to_pylist()
    return frozenset(one for topic in topics for one in with_ancestors(topic))


def _reasons(counts: dict[str, int]) -> str:
    if not counts:
        return ""
    return f" ({'; '.join(f'{number:,}: {reason}' for reason, number in counts.items())})"


def _published(
    config: AdaptRunConfig,
    scored: _ScoredTree,
    topics_in_tree: int,
    scratch: StoragePath,
    engine: Engine,
    observer: SearchObserver,
) -> Published:
    """Test the topics, and publish the document with the tests."""
    if not scored.topics:
        raise FileError(
            f"{config.tree}: all tests are at the root, so that there is no topic to report; give them topics"
        )
    slices = [
        {
            "name": displayed(topic),
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
        "prediction": RESULT,
        "metric": (_METRIC,),
        "correction": "bh",
        "alpha": config.alpha,
        "min_slice_size": 1,
        "since": config.since,
        "runner_config": config.runner_config,
        "runner_option": config.runner_option,
    }
    if config.baseline_model is not None:
        options |= {"baseline_prediction": OLD_RESULT, "alternative": "both"}
    check = validated(_TopicConfig, {name: one for name, one in options.items() if one is not None})

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
        return _with_topics(document, config, scored, topics_in_tree)

    steps = Steps(
        prepare_check,
        GivenIterations,
        collect_given,
        given_names,
        given_order,
        ExtraOutputs((TESTS, TOPICS), publish),
    )
    return run_steps(check, steps, engine, observer, earlier_run(check))


def _with_topics(
    document: SearchChangeList, config: AdaptRunConfig, scored: _ScoredTree, topics_in_tree: int
) -> SearchChangeList:
    """Return a document that says what became of the topics, and names the published files."""
    outcomes = _outcomes(document.slices, scored.trained)
    with storage_path(config.tree).open("rb") as stream:
        digest = sha256_of(stream)
    adaptive = AdaptiveTests(
        tree=config.tree,
        tree_sha256=f"sha256:{digest}",
        models=tuple(filter(None, (config.baseline_model, config.model))),
        tests=scored.tests.num_rows,
        unscored=scored.unscored,
        fails_from=FAILS_FROM,
        topics_in_tree=topics_in_tree,
        topics=outcomes,
        paid=scored.paid,
    )
    output = storage_path(config.output)
    tests, topics = str(output / TESTS), str(output / TOPICS)
    provenance = document.provenance
    named = provenance.config | {"data": [tests], "slices": topics}
    names = {"after": config.model, "before": config.baseline_model or ""}
    update: dict[str, Any] = {
        "title": f"Topics of {displayed(config.tree).rpartition('/')[2]}: where tests fail",
        "summary": summary(adaptive),
        "dataset": document.dataset.model_copy(update={"name": TESTS, "uri": (tests,)}),
        "models": tuple(one.model_copy(update={"name": names[one.key]}) for one in document.models),
        "provenance": provenance.model_copy(update={"config": named}),
        "adaptive": adaptive,
    }
    if document.check is not None:
        update["check"] = document.check.model_copy(update={"uri": topics})
    return document.model_copy(update=update)


def _outcomes(slices: Sequence[Slice], trained: frozenset[str]) -> tuple[TopicOutcome, ...]:
    found = [(one, one.changes[0], _topic(one)) for one in slices]
    found = [one for one in found if one[2] is not None]
    sizes = [change.n for _, change, _ in found]
    now = [_failures(change.after.value, change.n) for _, change, _ in found]
    has_old = any(change.before is not None for _, change, _ in found)
    before = (
        [
            _failures(change.before.value if change.before else None, change.n)
            for _, change, _ in found
        ]
        if has_old
        else None
    )
    states: list[Any] = list(state_by_rule(now, sizes, before))
    outcomes = []
    for place, (one, change, topic) in enumerate(found):
        outcomes.append(
            TopicOutcome(
                slice_id=one.slice_id,
                topic=topic or "",
                tests=change.n,
                failures=now[place],
                failures_before=before[place] if before is not None else None,
                newly_failing=_discordant(change, "b (only new marked)") if has_old else None,
                newly_passing=_discordant(change, "c (only old)") if has_old else None,
                rule=states[place],
                significant=_significant(change) if has_old else None,
                trained=topic in trained,
            )
        )
    return tuple(outcomes)


def _topic(one: Slice) -> str | None:
    if not isinstance(one.definition, PredicateDefinition):
        return None
    return str(one.definition.predicate.all[0].value)


def _failures(share: float | None, tests: int) -> int:
    return round((share or 0.0) * tests)


def _discordant(change: Change, name: str) -> int:
    return round((change.inputs or {}).get(name, 0))


def _significant(change: Change) -> Any:
    if not change.significant:
        return None
    return {"degraded": "broken", "improved": "fixed"}.get(change.direction)


def summary(adaptive: AdaptiveTests) -> str:
    """Return the result in plain words."""
    topics = adaptive.topics
    failing = sum(one.rule in ("failing", "broken") for one in topics)
    text = (
        f"{adaptive.tests:,} tests in {len(topics):,} topics: {failing:,} topics fail (from "
        f"{adaptive.fails_from:.0%} of their tests on)."
    )
    if len(adaptive.models) == 1:
        return text
    by = {
        (state, bool(sure)): sum(
            one.rule == state and (one.significant == state) == sure for one in topics
        )
        for state in ("fixed", "broken")
        for sure in (True, False)
    }
    parts = []
    for state in ("fixed", "broken"):
        sure, unsure = by[state, True], by[state, False]
        more = f" ({unsure:,} more by the rule only)" if unsure else ""
        parts.append(f"{sure:,} {state}{more}")
    moved = [
        sum(one.significant == word and one.rule != word for one in topics)
        for word in ("fixed", "broken")
    ]
    text += f" The update: {', '.join(parts)}."
    if not any(moved):
        return text
    return f"{text} On the same side of it, {moved[0]:,} significantly better, {moved[1]:,} worse."
