"""What each proposer makes, that its answers are true, and how a round draws from them."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.adaptive.expectations import EXPECTATIONS, inputs_of
from slicebeam.pipelines.adaptive.proposers.edits import edits, negated
from slicebeam.pipelines.adaptive.proposers.families import ORIGIN, Context, Family
from slicebeam.pipelines.adaptive.proposers.lexicons import filled, lexicons, template_of
from slicebeam.pipelines.adaptive.proposers.mined import Mined
from slicebeam.pipelines.adaptive.proposers.mixtures import Mixtures
from slicebeam.pipelines.adaptive.proposers.neighbours import Neighbours
from slicebeam.pipelines.adaptive.proposers.other_tree import OtherTree
from slicebeam.pipelines.adaptive.proposers.perturbations import Perturbations
from slicebeam.pipelines.adaptive.proposers.registry import offline_proposers
from slicebeam.pipelines.adaptive.proposers.templates import TemplateProposer, read_templates
from slicebeam.pipelines.adaptive.scoring import Scored
from slicebeam.pipelines.adaptive.suggestions.rounds import draw, scored, yields
from slicebeam.pipelines.adaptive.tree import Test, TestTree

OUTPUTS, OUTPUTS_NOT = "should output", "should not output"
SAME = "should have the same output as"
POOL = [
    "Sarah saw 25 films in Chicago, but the last one was dull.",
    "The soup was cold; the waiter didn't care.",
    "A warm soup on a cold day.",
    "Trains were late again!",
    "The plot was thin, the music was loud.",
]


def says(texts):
    return ["neg" if "cold" in text or "dull" in text else "pos" for text in texts]


def context_of(tests=(), failing=(), **more):
    tree = TestTree.of_tests(tests)
    scores = np.isin(tree.column("id").astype(str), list(failing)).astype(np.float64)
    given = {"topic": "", "pool": POOL, "outputs": ("neg", "neu", "pos"), **more}
    return Context(tree, scores, answers=says, **given)


def made(proposer, context, each=3):
    """The first tests of all families."""
    found = []
    for family in proposer.families(context):
        tests = family.tests()
        found += [family.named(test) for _, test in zip(range(each), tests, strict=False)]
    return found


def test_templates_know_the_answer_in_the_words_of_the_model():
    found = made(TemplateProposer(), context_of())
    assert {test.value for test in found if test.expectation != SAME} == {"neg", "neu", "pos"}
    positive = lexicons()["positive_adjective"]
    for test in found:
        if test.topic == "/Negation/Negated%20positive":
            assert (test.expectation, test.value) == (OUTPUTS, "neg")
            assert any(word in test.input for word in positive)
        if test.topic.startswith("/Fairness"):
            assert test.expectation == SAME
            (other,) = inputs_of(test.value)
            first, second = test.input.split(), other.split()
            assert first != second
            assert first[-1] == second[-1] or test.input.startswith(("My", "The"))
    assert all("{" not in test.input for test in found)
    # Other names of classes give no answer, but what must not matter still must not.
    others = made(TemplateProposer(), context_of(outputs=("0", "1")))
    assert {test.expectation for test in others} == {SAME}
    assert made(TemplateProposer(), context_of(topic="/Rooms")) == []
    below = made(TemplateProposer(), context_of(topic="/Negation"))
    assert {test.topic.split("/")[1] for test in below} == {"Negation"}
    names = ["Negated%20positive", "Negated%20negative", "Far%20away", "Negated%20neutral"]
    topics = TemplateProposer().topics(context_of(topic="/Negation"))
    assert topics == [f"/Negation/{name}" for name in names]


@pytest.mark.parametrize(("template", "word", "text"), [
    ("She is a {x} poet.", "Indian", "She is an Indian poet."),
    ("An {x} room.", "nice", "A nice room."),
    ("a {x} room.", "ugly", "An ugly room."),
    ("A {x} guide.", "Ukrainian", "A Ukrainian guide."),
    ("{x} food.", "european", "European food."),
    ("{x}", "bad", "bad"),
])  # fmt: skip
def test_filled_templates_are_english(template, word, text):
    assert filled(template, {"x": word}) == text


def test_own_templates(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(
        "slots: {dish: [soup, bread]}\n"
        "templates:\n"
        "- {topic: /Food, output: food, text: 'Where is my {dish}?'}\n"
        "- {topic: /Food, vary: city, text: ['{dish} in {city}']}\n"
    )
    found = made(TemplateProposer(read_templates(str(path))), context_of(outputs=()))
    said = {(test.input, test.value) for test in found if test.expectation == OUTPUTS}
    assert said
    assert said <= {("Where is my soup?", "food"), ("Where is my bread?", "food")}


@pytest.mark.parametrize(("text", "message"), [
    ("templates: 1", "a mapping with a list 'templates' is expected"),
    ("template: []\ntemplates: []", "unknown key 'template'; did you mean 'templates'"),
    ("templates: [{topic: /A, text: '{city}'}]", "needs one of output, output not, vary"),
    ("templates: [{topic: A, output: x, text: '{city}'}]", "does not begin with a slash"),
    ("templates: [{topic: /A, output: x, text: '{cty}'}]", "unknown slot 'cty'; did you mean"),
    ("templates: [{topic: /A, output: x, text: 'no'}]", "it has no slot"),
    ("templates: [{topic: /A, vary: city, text: '{country}'}]", "is none of its slots"),
    ("slots: {a: []}\ntemplates: []", "slot 'a' has no words"),
])  # fmt: skip
def test_wrong_templates(text, message, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_templates(str(path))


@pytest.mark.parametrize(("name", "text", "expected"), [
    ("contractions expanded", "It didn't work, I'm sad.", "It did not work, I am sad."),
    ("contractions", "It is not bad.", "It isn't bad."),
    ("lower case", "The END.", "the end."),
    ("upper case", "The end.", "THE END."),
    ("full stop", "The end!", "The end."),
    ("no full stop", "The end.", "The end"),
    ("paraphrase: , but as , yet", "Small, but nice.", "Small, yet nice."),
    ("paraphrase: movie as film", "A Movie about movies.", "A Film about movies."),
    ("paraphrase: As I said, {}", "It was bad.", "As I said, It was bad."),
    ("paraphrase: {} That is all.", "It was bad", "It was bad. That is all."),
    ("contractions", "Nothing to do.", None),
    ("full stop", "Is it good?", None),
    ("numbers", "In 1999 it got 95% and 10/10, 12 out of 12.", None),
    ("names: male name", "Will it work?", None),
    ("paraphrase: , but as , yet", "Nothing but trouble.", None),
    ("typos", "It is so so.", None),
])  # fmt: skip
def test_edits_keep_the_meaning(name, text, expected):
    assert edits()[name](text, np.random.default_rng(0)) == expected


def test_edits_that_draw():
    rng = np.random.default_rng(0)
    for _ in range(50):
        text = "A wonderful place"
        typo = edits()["typos"](text, rng)
        assert typo is None or (typo != text and Counter(typo) == Counter(text))
        assert typo is None or typo[:3] == "A w"
        number = edits()["numbers"]("We had 25 rooms", rng)
        assert number is None or (len(number) == 15 and number[7:9].isdigit())
        name = edits()["names: city"]("We saw it in Chicago.", rng)
        assert name is None or (name.startswith("We saw it in ") and "Chicago" not in name)


@pytest.mark.parametrize(("text", "expected"), [
    ("The room was nice.", "The room was not nice."),
    ("The rooms are not nice.", None),
    ("It was nice, but small.", None),
    ("Nobody is nice.", None),
    ("I liked it.", None),
    ("What I got is what they said.", None),
])  # fmt: skip
def test_only_simple_statements_are_negated(text, expected):
    assert negated(text) == expected


def test_perturbed_tests_keep_their_answer_and_perturbed_texts_their_output():
    tests = [
        Test("/A", "The room is good.", output="pos", label="pass", id="1"),
        Test("/A", "Is it good?", expectation=OUTPUTS, value="yes", second_input="No.", id="2"),
        Test("/A", "unlabelled", id="3"),
    ]
    found = made(Perturbations(), context_of(tests))
    of_tests = [test for test in found if test.topic == "/A"]
    negations = [test for test in of_tests if "negation" in test.other[ORIGIN]]
    (negation,) = negations
    said = (negation.input, negation.expectation, negation.value)
    assert said == ("The room is not good.", OUTPUTS_NOT, "pos")
    others = {(one.expectation, one.value) for one in of_tests if one not in negations}
    assert others == {(OUTPUTS, "pos"), (OUTPUTS, "yes")}
    assert {one.second_input for one in of_tests if one.value == "yes"} == {"No."}
    of_pool = [test for test in found if test.topic != "/A"]
    assert {test.expectation for test in of_pool} == {SAME}
    assert {test.value for test in of_pool} <= set(POOL)
    assert {test.topic for test in of_pool} >= {"/Robustness/Typos", "/Robustness/Numbers"}
    assert all(test.input != test.value for test in of_pool)


def test_mined_templates_exchange_words_for_words_of_their_kind():
    assert template_of("Sarah thought the food was good, not great.") == (
        "{female_name} thought the food was {positive_adjective}, not great."
    )
    texts = ("The bed was awful.", "The bath was awful.", "Nothing here.")
    tests = [
        Test("/A", text, expectation=OUTPUTS, value="neg", id=str(at))
        for at, text in enumerate(texts, 1)
    ]
    families = Mined().families(context_of(tests, ["2"]))
    assert [(one.name, one.failures) for one in families] == [
        ("should output neg: The bath was {negative_adjective}.", 1),
        ("should output neg: The bed was {negative_adjective}.", 0),
    ]
    words = {one.input.split()[-1].strip(".") for one in made(Mined(), context_of(tests), 20)}
    assert len(words) > 5
    assert words <= set(lexicons()["negative_adjective"])


def test_neighbours_are_the_nearest_texts_and_only_a_guess():
    tests = [Test("/A", "A bowl of soup", expectation=OUTPUTS, value="neg", id="1")]
    (family,) = Neighbours().families(context_of(tests, ["1"]))
    assert family.is_guess
    found = list(family.tests())
    assert {"soup" in test.input for test in found[:2]} == {True}
    assert (found[0].expectation, found[0].value, found[0].labeler) == (OUTPUTS, "neg", "imputed")
    assert Neighbours().families(context_of(tests, pool=[])) == []
    failing = [replace(tests[0], id=str(at), input=f"soup {at} again") for at in range(4)]
    topics = Neighbours().topics(context_of(failing, [str(at) for at in range(4)]))
    assert topics == ["/Soup"]


def test_mixtures_are_of_parts_with_the_same_output():
    pool = [f"{word} was cold and grey." for word in ("Soup", "Tea", "Bread", "The sea")]
    found = made(Mixtures(), context_of(pool=[*pool, *POOL]), 9)
    assert len(found) >= 6
    for test in found:
        parts = inputs_of(test.value)
        assert len(parts) == 2
        assert len(set(says(parts))) == 1
        assert all(part in test.input for part in parts)
    turning = [*pool, *(f"{word} was cold and not grey." for word in ("Wine", "Jam", "Milk"))]
    for test in made(Mixtures(), context_of(pool=turning), 9):
        assert "not" not in test.input or ". " in test.input


def test_another_tree_proposes_what_it_knows():
    tests = [
        Test("/A", "So bad", output="pos", label="fail"),
        Test("/A", "Who knows", output="pos"),
        Test("/A", "odd", expectation="should sing", value="a"),
        Test("/A/B", "off", output="pos", label="off_topic"),
        Test("/C", "So good", expectation=OUTPUTS, value="pos"),
    ]
    other = TestTree.of_tests(tests)
    found = made(OtherTree(), context_of(other=other))
    assert {(one.topic, one.input, one.expectation, one.value) for one in found} == {
        ("/A", "So bad", OUTPUTS_NOT, "pos"),
        ("/C", "So good", OUTPUTS, "pos"),
    }
    inside = made(OtherTree(), context_of(other=other, topic="/C/D"))
    assert [one.topic for one in inside] == ["/C/D"]
    assert OtherTree().topics(context_of(other=other, topic="/A")) == ["/A/B"]


def test_all_expectations_of_proposals_are_known():
    tests = [Test("/A", "The bed was awful.", expectation=OUTPUTS, value="neg", id="1")]
    context = context_of(tests, ["1"], other=TestTree.of_tests(tests))
    for proposer in offline_proposers().values():
        found = made(proposer, context)
        assert found, proposer.name
        assert {test.expectation for test in found} <= set(EXPECTATIONS)
        assert all(test.other[ORIGIN].startswith(f"{proposer.name}: ") for test in found)
        assert [test.id for test in made(proposer, context)] == [test.id for test in found]
        assert all(test.label == "" for test in found)


def counting(proposer, name, most=1000, **more):
    """A family of texts that are unlike each other."""

    def tests():
        rng = np.random.default_rng(list(map(ord, name)))
        for number in range(most):
            letters = "".join(chr(97 + int(one)) for one in rng.integers(0, 26, 20))
            yield Test("/A", f"{name} {letters} {number}", expectation=OUTPUTS, value="pos")

    return Family(proposer, name, tests, **more)


def test_a_round_goes_on_with_what_fails_and_explores_a_tenth():
    families = [counting("a", f"a{at}") for at in range(30)] + [counting("b", "b0")]
    first = draw(context_of(), families, 80)
    shares = Counter(one.family.proposer for one in first)
    # Without failures proposers share equally, however many families they have.
    assert 25 < shares["b"] < 55
    failing = {one.family.name for one in first} - {f"a{at}" for at in range(15, 30)}
    accepted = [one.test for one in first if one.family.name in failing]
    context = context_of(accepted, [test.id for test in accepted])
    second = Counter(one.family.name for one in draw(context, families, 80))
    # A tenth explores, and no family gets more than an eighth.
    assert sum(number for name, number in second.items() if name in failing) == 72
    assert max(second.values()) == second["b0"] == 10
    mined = [*families[:5], counting("c", "c0", failures=3)]
    third = Counter(one.family.name for one in draw(context_of(), mined, 40))
    assert third["c0"] == 5


def test_a_round_has_no_duplicates_and_ends_with_its_families():
    twins = [replace(counting("a", "x"), name=name) for name in ("x", "y")]
    found = draw(context_of(), [*twins, counting("b", "z", most=3)], 50)
    texts = [one.test.input for one in found]
    assert len(set(texts)) == len(texts) == 50
    assert sum(text.startswith("z") for text in texts) == 3
    few = draw(context_of(), [counting("b", "z", most=3)], 50)
    assert len(few) == 3
    known = [replace(few[0].test, id="1", input=few[0].test.input.upper())]
    assert len(draw(context_of(known), [counting("b", "z", most=3)], 50)) == 2
    bought = draw(context_of(), [counting("a", "x")], 10, [counting("endpoint", "e", most=4)])
    assert [one.family.proposer for one in bought] == ["endpoint"] * 4 + ["a"] * 6
    pairs = draw(context_of(has_pairs=True), [counting("b", "z", most=3)], 5)
    assert pairs == []


def test_yields_count_only_what_is_known():
    families = [counting("a", "a", most=3), counting("g", "g", most=2, is_guess=True)]
    proposals = draw(context_of(), families, 5)

    def score(tests):
        fails = [float(not test.input.startswith("a") or "0" in test.input[-1]) for test in tests]
        outputs, nothing = (np.full(len(tests), value, object) for value in ("pos", None))
        return Scored(outputs, np.array(fails), np.zeros(len(tests), np.int64), nothing)

    found = scored(proposals, score)
    assert [one.score for one in found] == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert not found[0].family.is_guess
    counts = [(one.proposer, one.proposals, one.failing, one.guesses) for one in yields(found)]
    assert counts == [("a", 3, 1, 0), ("g", 2, 0, 2)]
    assert yields(found)[0].per_hundred == pytest.approx(100 / 3)
