"""Prompts byte for byte, and what is read from completions."""

import numpy as np
import pytest

from slicebeam.pipelines.adaptive import prompts
from slicebeam.pipelines.adaptive.prompts import Completion, Prompt, PromptItem, build_prompts

TEXTS = (
    "I really wanted to like this, but I did not.",
    "I thought this was great, but it was not",
    "We were hopeful, but disappointed.",
    "I expected so much, but got nothing good.",
    "I expected to love this, but I did not.",
    "I wanted to love this, but I did not.",
    'They said "superb", it was not.',
    "A fine hotel, they promised.",
    "Not the best.",
)
TOPIC = "/Negation/Negated%20positive"


def items(topic=TOPIC, outputs=("positive",)):
    return [
        PromptItem(str(number), topic, text, outputs[number % len(outputs)], number / 10)
        for number, text in enumerate(TEXTS)
    ]


def test_what_all_items_share_is_left_out():
    first, second = build_prompts(items(), TOPIC, 8, seed=3)
    assert first.text == (
        '"I thought this was great, but it was not"\n'
        '"I expected to love this, but I did not."\n'
        '"We were hopeful, but disappointed."\n'
        '"They said "superb", it was not."\n'
        '"I wanted to love this, but I did not."\n'
        '"A fine hotel, they promised."\n'
        '"Not the best."\n'
        '"'
    )
    assert first.output == "positive"
    assert second.text != first.text
    turned = build_prompts(items()[::-1], TOPIC, 8, seed=3)
    assert [one.text for one in turned] == [first.text, second.text]


def test_outputs_and_topics_that_differ_are_shown():
    mixed = items(outputs=("pos", "neg"))[:2]
    assert prompts.prompt_of(mixed, TOPIC) == Prompt(
        '"I really wanted to like this, but I did not." "pos"\n'
        '"I thought this was great, but it was not" "neg"\n'
        '"',
        TOPIC,
        None,
        ("0", "1"),
    )
    assert prompts.prompt_of(mixed, "/Negation").text == (
        "/Negation/Negated positive\n"
        '"I really wanted to like this, but I did not." "pos"\n'
        "/Negation/Negated positive\n"
        '"I thought this was great, but it was not" "neg"\n'
        "/Negation\n"
        '"'
    )


def test_an_empty_topic_is_shown_the_tests_of_its_neighbours():
    near, far = items("/Negation/Other")[:4], items("/Taxonomy")[4:]
    (prompt,) = build_prompts([*near, *far], "/Negation/New", 1, seed=0)
    topics = [line for line in prompt.text.split("\n") if line.startswith("/")]
    # What is nearest to the topic stands last.
    assert topics == ["/Taxonomy"] * 3 + ["/Negation/Other"] * 4 + ["/Negation/New"]
    assert build_prompts([], "/Negation/New", 25, seed=0) == []


def test_topics_are_suggested_in_the_same_way():
    paths = ["/Negation", "/Negation/Negated%20positive", "/Negation/Double", "/Negation/Double"]
    found = prompts.topic_items(["", *paths], np.array([0.0, 0.5, 0.25, 0.1, 0.1]))
    assert [item.text for item in found] == ["Negation", "Negated positive", "Double"]
    (prompt,) = build_prompts(found[1:], "/Negation", 1, seed=0)
    assert prompt.text == '"Negated positive"\n"Double"\n"'
    (prompt,) = build_prompts(found, "/Negation", 1, seed=0)
    assert prompt.text == (
        '\n"Negation"\n/Negation\n"Negated positive"\n/Negation\n"Double"\n/Negation\n"'
    )


@pytest.mark.parametrize(
    ("topic", "factor"),
    [("/A/B", 1.0), ("/A/B/C", 1e-4), ("/A", 1e-18), ("/A/BC", 1e-24), ("/D", 1e-30)],
)
def test_nearer_topics_count_more(topic, factor):
    assert prompts.membership(topic, "/A/B") == pytest.approx(factor)


@pytest.mark.parametrize(("text", "output", "expected"), [
    ('So bad."\n"And more', "pos", Completion("So bad.", "pos")),
    ('"So bad."', "pos", Completion("So bad.", "pos")),
    ('/A B\n"So bad."', "pos", Completion("So bad.", "pos")),
    ('He said "no".', "pos", Completion('He said "no".', "pos")),
    ('So bad." "neg"\n', None, Completion("So bad.", "neg")),
    ("So bad.", None, None),
    ('"\n', "pos", None),
    ("", "pos", None),
])  # fmt: skip
def test_completions(text, output, expected):
    assert prompts.completion_of(text, Prompt("", "/A%20B", output, ())) == expected


def test_duplicates_are_dropped_and_texts_without_letters_are_unlike():
    found = [Completion(text, "") for text in ("So  bad", "so bad", "Good", "known")]
    assert [one.text for one in prompts.new_texts(found, ["Known"])] == ["So  bad", "Good"]
    assert prompts.text_similarities(["", ""]).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert prompts.text_similarities(["bad room", "bad room"])[0, 1] == pytest.approx(1.0)
