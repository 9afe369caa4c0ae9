"""Proposers that need no language model: each yields families of tests that are made in one way."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.adaptive.expectations import (
    OUTPUTS,
    OUTPUTS_NOT,
    SAME,
    as_value,
    expectation_of,
    parse_expectation,
)
from slicebeam.pipelines.adaptive.proposers.families import Context, Family, Proposer
from slicebeam.pipelines.adaptive.proposers.lexicons import (
    drawn,
    filled,
    lexicons,
    slots_of,
    template_of,
)
from slicebeam.pipelines.adaptive.proposers.templates import sentiment_templates
from slicebeam.pipelines.adaptive.topics import below, is_within
from slicebeam.pipelines.adaptive.tree import IMPUTED, OFF_TOPIC, Test, TestTree
from slicebeam.transforms.discovery.lsa import LsaEncoder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.pipelines.adaptive.proposers.templates import SentenceTemplate, TemplateFile

# The baseline: texts of the pool as they come. It proposes only if it is named.
RANDOM = "random"
# Templates that are mined in a round: those of the tests with the highest scores.
_MOST_TEMPLATES = 100
_MOST_FITTED, _DIMENSIONS = 5_000, 64
_MOST_NEIGHBOURS_OF, _MOST_TOPICS = 200, 20
_WORD = r"[^\W\d_]{3,}"


def offline_proposers(templates: TemplateFile | None = None) -> dict[str, Proposer]:
    """Return them by name; ``templates`` are a user's, None for those of sentiment."""
    return {
        "templates": Proposer(
            "a model of sentiment, or --templates",
            partial(_template_families, templates),
            partial(_template_topics, templates or sentiment_templates()),
        ),
        "mined": Proposer("tests in the topic whose answers are known", _mined),
        "neighbours": Proposer("--pool and tests in the topic", _neighbours, _telling_topics),
        "tree": Proposer("--other-tree", _other_tree, _other_topics),
        RANDOM: Proposer("--pool", _random),
    }


def _template_families(user_templates: TemplateFile | None, context: Context) -> list[Family]:
    """Fill templates with words; what the model should say is known."""
    file, families = user_templates or sentiment_templates(), []
    for template in file.templates:
        value: str | None = template.value
        if user_templates is None and template.expectation != SAME:
            value = context.sentiments.get(template.value)
        topic = context.placed(template.topic)
        if topic is not None and value is not None:
            name = f"{template.expectation} {template.value}: {template.text}"
            rng_name = f"templates {name}"
            tests = partial(_filled, file, template, topic, value, context, rng_name)
            families.append(Family("templates", name, tests))
    return families


def _filled(
    file: TemplateFile,
    template: SentenceTemplate,
    topic: str,
    value: str,
    context: Context,
    rng_name: str,
) -> Iterator[Test]:
    rng, words = context.random(rng_name), file.words
    while True:
        chosen = drawn(template.text, rng, words)
        text = filled(template.text, chosen)
        if template.expectation == SAME:
            slot = template.value
            chosen[slot] = words[slot][int(rng.integers(len(words[slot])))]
            if (other := filled(template.text, chosen)) == text:
                continue
            value = as_value([other])
        yield Test(topic, text, expectation=template.expectation, value=value)


def _template_topics(file: TemplateFile, context: Context) -> list[str]:
    prefix = f"{context.topic}/"
    inside = (template.topic for template in file.templates if template.topic.startswith(prefix))
    return list(dict.fromkeys(prefix + topic[len(prefix) :].split("/")[0] for topic in inside))


def _mined(context: Context) -> list[Family]:
    """Put names, cities, adjectives and the like of tests into slots, and fill them again.

    Other words of the same kind keep a sentiment; for any other model the answer is a guess.
    """
    families: dict[str, Family] = {}
    wrong = {test.id for test in context.failing}
    for test in context.tests:
        expectation, value = expectation_of(test)
        if expectation not in (OUTPUTS, OUTPUTS_NOT) or test.second_input:
            continue
        template = template_of(test.input)
        name = f"{expectation} {value}: {template}"
        if name in families:
            more = families[name].failures + (test.id in wrong)
            families[name] = replace(families[name], failures=more)
        elif slots_of(template) and len(families) < _MOST_TEMPLATES:
            labeler = "" if context.sentiments and not test.is_guess else IMPUTED
            filled_test = Test(
                test.topic, "", labeler=labeler, expectation=expectation, value=value
            )
            tests = partial(_refilled, template, filled_test, context)
            families[name] = Family("mined", name, tests, failures=int(test.id in wrong))
    return list(families.values())


def _refilled(template: str, test: Test, context: Context) -> Iterator[Test]:
    rng, words = context.random(f"mined {template}"), lexicons()
    while True:
        yield replace(test, input=filled(template, drawn(template, rng, words)))


def _neighbours(context: Context) -> list[Family]:
    """Propose the texts of the pool that are nearest to the tests; the right answer is a guess."""
    if not context.pool or not context.tests:
        return []
    return [Family("neighbours", "texts", partial(_nearest, context))]


def _nearest(context: Context) -> Iterator[Test]:
    tests = (context.failing or context.tests)[:_MOST_NEIGHBOURS_OF]
    try:
        encoder, vectors = _encoded(tuple(context.pool), context.seed)
    except InputError:
        return
    similar = encoder.encode([test.input for test in tests]) @ vectors.T
    # Of each test its nearest text, then of each the second nearest, and so on.
    order = np.argsort(-similar, axis=1, kind="stable")
    seen: set[int] = set()
    for place in range(order.shape[1]):
        for row, test in enumerate(tests):
            text = int(order[row, place])
            if text in seen or not similar[row, text] > 0:
                continue
            seen.add(text)
            expectation, value = expectation_of(test)
            yield Test(
                test.topic,
                context.pool[text],
                labeler=IMPUTED,
                expectation="" if test.second_input else expectation,
                value=value,
                other={"like": test.id},
            )


def _random(context: Context) -> list[Family]:
    """Propose texts of the pool in random order; nothing is expected of them."""
    if not context.pool:
        return []
    return [Family(RANDOM, "texts", partial(_shuffled, context))]


def _shuffled(context: Context) -> Iterator[Test]:
    for row in context.random(RANDOM).permutation(len(context.pool)):
        yield Test(context.topic, context.pool[row], labeler=IMPUTED)


@lru_cache(2)
def _encoded(pool: tuple[str, ...], seed: int) -> tuple[LsaEncoder, NDArray[np.float32]]:
    rows = np.random.default_rng(seed).permutation(len(pool))[:_MOST_FITTED]
    sample = [pool[row] for row in np.sort(rows).tolist()]
    encoder = LsaEncoder.fit(sample, dimensions=_DIMENSIONS, seed=seed)
    return encoder, encoder.encode(pool)


def _telling_topics(context: Context) -> list[str]:
    """Return the words that set the failing tests of the topic apart from the pool."""
    words = _telling([test.input for test in context.failing], context.pool)
    return [below(context.topic, word.capitalize()) for word in words]


def _telling(texts: Sequence[str], others: Sequence[str]) -> list[str]:
    from sklearn.feature_extraction.text import CountVectorizer

    if len(texts) < 2:
        return []
    vectorizer = CountVectorizer(binary=True, stop_words="english", token_pattern=_WORD)
    try:
        inside = np.asarray(vectorizer.fit_transform(texts).sum(axis=0)).ravel()
    except ValueError:
        return []
    outside = np.zeros_like(inside)
    if others:
        outside = np.asarray(vectorizer.transform(others).sum(axis=0)).ravel()
    odds = np.log((inside + 0.5) / (len(texts) - inside + 0.5))
    odds -= np.log((outside + 0.5) / (len(others) - outside + 0.5))
    # By the signal to noise of Monroe, Colaresi, Quinn, "Fightin' words", 2008, equation 22.
    spread = np.sqrt(1 / (inside + 0.5) + 1 / (outside + 0.5))
    order = np.argsort(-odds / spread, kind="stable")[:_MOST_TOPICS]
    names = vectorizer.get_feature_names_out()
    return [str(names[at]) for at in order if inside[at] > 1 and odds[at] > 0]


def _other_tree(context: Context) -> list[Family]:
    """Propose the tests that another tree has in the topic, a family a topic."""
    other = context.other
    return [
        Family("tree", topic or "/", partial(_tests_of, other, topic, place, context))
        for topic in (other.topics() if other is not None else ())
        if other is not None and (place := context.placed(topic)) is not None
    ]


def _tests_of(other: TestTree, topic: str, place: str, context: Context) -> Iterator[Test]:
    rows = np.flatnonzero(other.directly_in(topic) & other.is_test)
    for test in other.rows(context.random(f"tree {topic}").permutation(rows)):
        expectation, value = expectation_of(test)
        try:
            parse_expectation(expectation)
        except InputError:
            continue
        if test.label != OFF_TOPIC:
            yield Test(
                place,
                test.input,
                second_input=test.second_input,
                other_inputs=test.other_inputs,
                labeler=IMPUTED if test.is_guess else "",
                expectation=expectation,
                value=value,
            )


def _other_topics(context: Context) -> list[str]:
    names = [] if context.other is None else context.other.topics()
    return [topic for topic in names if topic != context.topic and is_within(topic, context.topic)]
