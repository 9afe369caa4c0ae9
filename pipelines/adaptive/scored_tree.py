"""A test tree with its tests scored by each model, an endpoint's answers bought before."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import FileError, InputError
from slicebeam.pipelines.adaptive.class_names import ClassNames, mentioned
from slicebeam.pipelines.adaptive.failure_scores import fails
from slicebeam.pipelines.adaptive.paid_outputs import (
    SharedBudget,
    affordable,
    buy_outputs,
    read_endpoint,
)
from slicebeam.pipelines.adaptive.scoring import (
    EXCUSED,
    NEEDED,
    NO_SCORE,
    Models,
    ScorableTests,
    Scored,
    inputs_by_test,
    needed_inputs,
    score_tests,
)
from slicebeam.pipelines.adaptive.text_models import TextModel, text_model
from slicebeam.pipelines.adaptive.topics import with_ancestors
from slicebeam.pipelines.adaptive.tree import ID, TRAINED, TestTree
from slicebeam.pipelines.adaptive.tree_classes import TreeClasses
from slicebeam.pipelines.changelist.shifted import PaidAnswers
from slicebeam.pipelines.run.stage import Stage
from slicebeam.transforms.storage.storage import beneath, storage_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.pipelines.adaptive.text_models import Text
    from slicebeam.pipelines.config.adapt import AdaptRunConfig
    from slicebeam.pipelines.search.iterations import SearchObserver

EXPECTED, PASSED, OLD_PASSED = "expected", "passed", "baseline_passed"


@dataclass(frozen=True)
class ScoredTree:
    """What is known of a tree before its topics are tested."""

    tests: pa.Table  # A row each test that every model was scored on.
    unscored: dict[str, int]  # How many tests were not, by the reason.
    # How many tests expect something that could not be found out, by each topic above them.
    undecided: dict[str, int]
    topics: tuple[str, ...]  # With tests, sorted.
    trained: frozenset[str]  # Topics of which tests were exported as training data.
    # Number of tests by a class that they name, where a model may not have it.
    never_given: dict[str, int]
    paid: tuple[PaidAnswers, ...]


def named_models(config: AdaptRunConfig) -> Models:
    """Return the models that options name."""
    new = text_model(config.model, "--model")
    old, classifier = (
        None if name is None else text_model(name, option)
        for name, option in (
            (config.baseline_model, "--baseline-model"),
            (config.output_classifier, "--output-classifier"),
        )
    )
    if classifier is not None and classifier.is_paid:
        raise InputError(
            f"--output-classifier {classifier.name} is an endpoint, which only --model and "
            "--baseline-model may be; name module:function"
        )
    return Models(new, old, classifier)


def score_tree(
    config: AdaptRunConfig,
    tree: TestTree,
    tests: ScorableTests,
    models: Models,
    observer: SearchObserver,
) -> ScoredTree:
    """Buy what the models of a tree sell, and score its tests."""
    class_names = ClassNames.of(config.classes)
    class_names.refuse_unused(mentioned(tests.table))
    classes = TreeClasses.of(tests.table, class_names, models)
    models, paid, missing = _bought(config, tests, models, classes, observer)
    names = [one.name for one in reversed(models.scored)]
    number, scored = tests.table.num_rows, [0]
    observer.stage(
        Stage(
            f"scoring {number:,} tests by {' and '.join(names)}",
            lambda: scored[0],
            "tests",
            number * len(names),
        )
    )

    def count(tests_of_block: int) -> None:
        scored[0] += tests_of_block

    in_models = replace(tests, table=class_names.applied(tests.table))
    results = score_tests(in_models, models, count)
    never_given = classes.never_given(tests.table, models, results)
    known = np.ones(tests.table.num_rows, bool)
    is_excused = ~known
    unscored = Counter(tests.left_out)
    for one, model in zip(results, models.scored, strict=True):
        rows = np.flatnonzero(known & (one.reasons > 0))
        reasons = _reasons_of(tests, one, rows, missing.get(model.name, {}))
        unscored.update(f"{model.name}: {reason}" for reason in reasons)
        is_excused[rows] = one.reasons[rows] == EXCUSED
        known[rows] = False
    if not known.any():
        raise FileError(f"{config.tree}: no test could be scored{reasons_text(unscored)}")
    table = _table(tests.table, results).filter(pa.array(known))
    undecided = tests.table["topic"].filter(pa.array(~known & ~is_excused))
    by_topic = Counter(
        one
        for topic in (*undecided.to_pylist(), *tests.misread.to_pylist())
        for one in with_ancestors(topic)
        if one
    )
    return ScoredTree(
        table, dict(unscored), dict(by_topic), topics_of(table), _trained(tree), never_given, paid
    )


def topics_of(tests: pa.Table) -> tuple[str, ...]:
    """Return the topics of tests with those above them, sorted; without the root."""
    topics = pc.unique(tests["topic"]).to_pylist()
    return tuple(sorted({one for topic in topics for one in with_ancestors(topic) if one}))


def _reasons_of(
    tests: ScorableTests, scored: Scored, rows: IntArray, missing: dict[Text, str]
) -> list[str]:
    """Return why tests have no score."""
    reasons = [NO_SCORE[code - 1] for code in scored.reasons[rows].tolist()]
    if not missing:
        return reasons
    inputs = inputs_by_test(tests.table.take(pa.array(rows)), has_pairs=tests.has_pairs)
    return [
        reason
        if code == EXCUSED
        else next((missing[one] for one in texts if one in missing), reason)
        for reason, code, texts in zip(reasons, scored.reasons[rows].tolist(), inputs, strict=True)
    ]


def _bought(
    config: AdaptRunConfig,
    tests: ScorableTests,
    models: Models,
    classes: TreeClasses,
    observer: SearchObserver,
) -> tuple[Models, tuple[PaidAnswers, ...], dict[str, dict[Text, str]]]:
    """Return the models with the answers of endpoints, what these cost, and why by model some are missing."""
    paid_models = [(one, f"--{flag}") for one, flag in _by_option(models) if one.is_paid]
    if not paid_models:
        if config.budget is not None or config.ledger is not None:
            name = "budget" if config.budget is not None else "ledger"
            raise InputError(
                f"--{name} is for endpoints (.yaml), and none of the models is one; leave it out"
            )
        return models, (), {}
    # What is wrong with any file is said before anything is paid.
    apis = [read_endpoint(*one, has_pairs=tests.has_pairs) for one in paid_models]
    inputs = needed_inputs(tests.table, has_pairs=tests.has_pairs)
    budget = SharedBudget(config.budget)
    ledger = (
        storage_path(config.ledger, "--ledger")
        if config.ledger
        else beneath(storage_path(config.output, "--output"), "ledger")
    )
    most = affordable(apis, inputs, budget, ledger)
    bought: dict[TextModel, TextModel] = {}
    missing: dict[str, dict[Text, str]] = {}
    paid = []
    for model, option in paid_models:
        bought[model], one, missing[model.name] = buy_outputs(
            model,
            option,
            inputs,
            budget,
            ledger,
            observer.stage,
            has_pairs=tests.has_pairs,
            most=most,
            check_first=partial(classes.check_first, model, option),
        )
        paid.append(one)
    old = None if models.old is None else bought.get(models.old, models.old)
    new = bought.get(models.new, models.new)
    return Models(new, old, models.classifier), tuple(paid), missing


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
    columns |= {name: tests[name] for name in NEEDED}
    for scored, prefix, result in zip(
        results, ("", "baseline_"), (PASSED, OLD_PASSED), strict=False
    ):
        columns[f"{prefix}output"] = pa.array(scored.outputs, pa.string())
        columns[f"{prefix}failure"] = pa.array(scored.failures)
        columns[result] = pa.array(~fails(scored.failures))
    # Truth values, since a model may fail all tests: texts that never agree would seem misspelt.
    columns[EXPECTED] = pa.repeat(pa.scalar(value=True), len(tests))
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


def reasons_text(counts: dict[str, int]) -> str:
    """Return the numbers of tests by the reason, in parentheses; empty where there are none."""
    if not counts:
        return ""
    return f" ({'; '.join(f'{number:,}: {reason}' for reason, number in counts.items())})"
