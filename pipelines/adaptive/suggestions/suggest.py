"""``slicebeam adapt suggest``: a round of the testing loop, from a tree to a file of suggestions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.pipelines.adaptive.class_names import ClassNames, mentioned
from slicebeam.pipelines.adaptive.paid_outputs import SharedBudget
from slicebeam.pipelines.adaptive.prompt_items import PROMPT_SIZE
from slicebeam.pipelines.adaptive.prompts import Completion, new_texts
from slicebeam.pipelines.adaptive.proposers.endpoint import ENDPOINT, NEEDS, Endpoint, endpoint_api
from slicebeam.pipelines.adaptive.proposers.families import Context, Family, Proposer
from slicebeam.pipelines.adaptive.proposers.offline import RANDOM, offline_proposers
from slicebeam.pipelines.adaptive.proposers.templates import read_templates
from slicebeam.pipelines.adaptive.scoring import scorable_tests
from slicebeam.pipelines.adaptive.suggestions.pool import read_pool
from slicebeam.pipelines.adaptive.suggestions.rounds import Suggestion, Yield, draw, scored, yields
from slicebeam.pipelines.adaptive.suggestions.target import ModelUnderTest
from slicebeam.pipelines.adaptive.text_models import text_model
from slicebeam.pipelines.adaptive.topics import displayed, encoded
from slicebeam.pipelines.adaptive.tree import TOPIC_MARKER, Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import read_tree, write_tree
from slicebeam.transforms.storage.storage import beneath, make_folder, storage_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicebeam.metrics.arrays import FloatArray
    from slicebeam.pipelines.config.adapt import AdaptSuggestConfig

# Texts that show which outputs a model of sentiment has.
PROBES = ("This is great.", "This is terrible.", "This is a chair.")
# Tests that are scored before the round: those of the topic, and where it has too few for a prompt
# others.
_MOST_INSIDE, _MOST_OUTSIDE = 20_000, 2_000


@dataclass(frozen=True)
class Suggestions:
    """What a round came to."""

    topic: str
    model: str
    tests: tuple[Suggestion, ...]  # Those that fail first; empty where topics were wanted.
    topics: tuple[tuple[str, str], ...]  # With the proposer of each; empty where tests were wanted.
    yields: tuple[Yield, ...]
    path: str


def suggest(config: AdaptSuggestConfig, note: Callable[[str], None]) -> Suggestions:
    """Propose tests or topics, score them by the model, and write them to a file."""
    found = propose(config, note)
    if config.topics:
        markers = (Test(topic, "", label=TOPIC_MARKER) for topic, _ in found.topics)
        write_tree(TestTree.of_tests(markers), config.suggestions)
    else:
        write_suggestions(config, [(one.test, one.score) for one in found.tests])
    return found


def propose(config: AdaptSuggestConfig, note: Callable[[str], None]) -> Suggestions:
    """Propose tests or topics, and score them by the model."""
    tree = read_tree(config.tree)
    topic = encoded(config.topic, tree.topics(), "--topic")
    if storage_path(config.suggestions, "--output") == storage_path(config.tree):
        raise OptionError(f"--output {config.suggestions} is the tree itself; name another file")
    pairs = bool((tree.column("second_input") != "").any())
    beside = storage_path(f"{config.suggestions}.ledger", "--output")
    ledger = (
        storage_path(config.ledger, "--ledger")
        if config.ledger
        else beneath(beside.parent, beside.name)
    )
    budget = SharedBudget(config.budget)
    names = class_names(config, tree)
    target = ModelUnderTest(
        text_model(config.model), budget, ledger, note, has_pairs=pairs, names=names
    )
    if target.is_paid or config.endpoint is not None:
        make_folder(ledger)
    elif config.budget is not None or config.ledger is not None:
        name = "budget" if config.budget is not None else "ledger"
        raise OptionError(f"--{name} is for --endpoint or a paid --model, and neither is given")
    proposers = _proposers(config, ledger, budget, note)
    context = _context(config, tree, topic, target, note)
    if config.topics:
        return _topics(config, context, proposers)
    return _tests(config, context, proposers, target, note)


def class_names(config: AdaptSuggestConfig, tree: TestTree) -> ClassNames:
    """Return which class of the model a name in the trees means."""
    names = ClassNames.of(config.classes)
    if names.by_tree:
        other = [] if config.other_tree is None else [read_tree(config.other_tree)]
        names.refuse_unused(
            *(mentioned(scorable_tests(one, with_guesses=True).table) for one in (tree, *other))
        )
    return names


def _proposers(
    config: AdaptSuggestConfig, ledger: Any, budget: SharedBudget, note: Callable[[str], None]
) -> dict[str, Proposer]:
    templates = None if config.templates is None else read_templates(config.templates)
    found = offline_proposers(templates)
    every = [name for name in found if name != RANDOM] + [ENDPOINT] * bool(config.endpoint)
    chosen = config.proposer or tuple(every)
    if config.endpoint is not None:
        if ENDPOINT not in chosen:
            raise OptionError("--endpoint goes with --proposer endpoint; add it, or leave both out")
        share = config.proposals if config.topics else -(-config.proposals // len(chosen))
        found[ENDPOINT] = Endpoint(
            endpoint_api(config.endpoint), ledger, share, budget, note
        ).proposer
    for name in chosen:
        if name not in found:
            raise OptionError(f"--proposer {name} needs {NEEDS}")
    return {name: found[name] for name in chosen}


def _context(
    config: AdaptSuggestConfig,
    tree: TestTree,
    topic: str,
    target: ModelUnderTest,
    note: Callable[[str], None],
) -> Context:
    pool = [] if config.pool is None else read_pool(config.pool, config.text, config.seed, note)
    if config.pool is None and config.text is not None:
        raise OptionError("--text names a column of --pool, which is not given")
    other = None if config.other_tree is None else read_tree(config.other_tree)
    outputs: dict[str, None] = {}
    if not target.has_pairs:
        found = target.outputs(PROBES)
        said = [one for one in found.texts.tolist() if one is not None]
        outputs.update(dict.fromkeys(map(target.names.in_tree, (*found.classes, *said))))
    return Context(
        tree,
        _tree_scores(tree, topic, target, has_prompts=config.endpoint is not None),
        topic,
        pool,
        tuple(outputs),
        other,
        config.seed,
        target.has_pairs,
    )


def _tree_scores(
    tree: TestTree, topic: str, target: ModelUnderTest, *, has_prompts: bool
) -> FloatArray:
    """Return the failure scores of a tree's rows, NaN for those that are not scored."""
    scores = np.full(len(tree), np.nan)
    inside = tree.within(topic)
    rows = np.flatnonzero(tree.is_test & inside)[:_MOST_INSIDE]
    if has_prompts and len(rows) < PROMPT_SIZE:
        rows = np.append(rows, np.flatnonzero(tree.is_test & ~inside)[:_MOST_OUTSIDE])
    scores[rows] = target.row_scores(tree, rows, checks_classes=True)
    return scores


def _tests(
    config: AdaptSuggestConfig,
    context: Context,
    proposers: dict[str, Proposer],
    target: ModelUnderTest,
    note: Callable[[str], None],
) -> Suggestions:
    families: list[Family] = []
    bought: list[Family] = []
    idle = []
    for name, proposer in proposers.items():
        own = proposer.families(context)
        (bought if name == ENDPOINT else families).extend(own)
        if not own:
            idle.append(f"{name} needs {proposer.needs}")
            if name in config.proposer:
                note(
                    f"--proposer {name} proposes nothing in {displayed(context.topic)}: it needs {proposer.needs}"
                )
    drawn = draw(context, families, config.proposals, bought)
    target.refuse_foreign_classes([one.test for one in drawn if not one.test.is_guess])
    suggestions = scored(drawn, target.score)
    if not suggestions:
        raise InputError(
            f"nothing new can be proposed in {displayed(context.topic)}: {'; '.join(idle) or 'all is in the tree'}"
        )
    if len(suggestions) < config.proposals:
        note(
            f"{len(suggestions):,} proposals instead of {config.proposals:,}: there are no more new ones"
        )
    return Suggestions(
        context.topic,
        config.model,
        tuple(suggestions),
        (),
        tuple(yields(suggestions)),
        config.suggestions,
    )


def score_column(model: str) -> str:
    """Return the column of a model's failure scores, as AdaTest names it."""
    return f"{model} score"


def write_suggestions(
    config: AdaptSuggestConfig, suggestions: Sequence[tuple[Test, float]]
) -> None:
    """Write tests with their failure scores to the file of the suggestions."""
    tree = TestTree.of_tests(test for test, _ in suggestions)
    scores = ["" if np.isnan(score) else repr(score) for _, score in suggestions]
    write_tree(tree.with_column(score_column(config.model), scores), config.suggestions)


def _topics(
    config: AdaptSuggestConfig, context: Context, proposers: dict[str, Proposer]
) -> Suggestions:
    found = [(topic, name) for name, one in proposers.items() for topic in one.topics(context)]
    new = {
        one.text
        for one in new_texts([Completion(topic, "") for topic, _ in found], context.tree.topics())
    }
    chosen: dict[str, str] = {}
    for topic, name in found:
        if topic in new:
            chosen.setdefault(topic, name)
    topics = tuple(chosen.items())[: config.proposals]
    if not topics:
        raise InputError(
            f"no new topic can be proposed below {displayed(context.topic)}; give --endpoint, --pool or "
            "--other-tree"
        )
    return Suggestions(context.topic, config.model, (), topics, (), config.suggestions)
