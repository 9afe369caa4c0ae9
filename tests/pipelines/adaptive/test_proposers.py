"""What each proposer makes, that its answers are true, and how a round draws from them."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.adaptive.expectations import EXPECTATIONS, inputs_of
from slicebeam.pipelines.adaptive.proposers.families import ORIGIN, Context, Family
from slicebeam.pipelines.adaptive.proposers.lexicons import filled, lexicons, template_of
from slicebeam.pipelines.adaptive.proposers.offline import offline_proposers
from slicebeam.pipelines.adaptive.proposers.templates import read_templates
from slicebeam.pipelines.adaptive.scoring import Scored
from slicebeam.pipelines.adaptive.suggestions.rounds import draw, scored, yields
from slicebeam.pipelines.adaptive.tree import Test, TestTree

OUTPUTS, OUTPUTS_NOT = "should output", "should not output"
SAME = "should have the same output as"
OFFLINE = offline_proposers()
POOL = [
    "Sarah saw 25 films in Chicago, but the last one was dull.",
    "The soup was cold; the waiter didn't care.",
    "A warm soup on a cold day.",
    "Trains were late again!",
    "The plot was thin, the music was loud.",
]


def context_of(tests=(), failing=(), **more):
    tree = TestTree.of_tests(tests)
    scores = np.isin(tree.column("id").astype(str), list(failing)).astype(np.float64)
    given = {"topic": "", "pool": POOL, "outputs": ("neg", "neu", "pos"), **more}
    return Context(tree, scores, **given)


def made(name, context, each=3, templates=None):
    """The first tests of all families."""
    found = []
    for family in offline_proposers(templates)[name].families(context):
        tests = family.tests()
        found += [family.named(test) for _, test in zip(range(each), tests, strict=False)]
    return found


def test_templates_know_the_answer_in_the_words_of_the_model():
    found = made("templates", context_of())
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
    others = made("templates", context_of(outputs=("0", "1")))
    assert {test.expectation for test in others} == {SAME}
    assert made("templates", context_of(topic="/Rooms")) == []
    below = made("templates", context_of(topic="/Negation"))
    assert {test.topic.split("/")[1] for test in below} == {"Negation"}
    names = ["Negated%20positive", "Negated%20negative", "Far%20away", "Negated%20neutral"]
    topics = OFFLINE["templates"].topics(context_of(topic="/Negation"))
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
    found = made("templates", context_of(outputs=()), templates=read_templates(str(path)))
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


def test_mined_templates_exchange_words_for_words_of_their_kind():
    assert template_of("Sarah thought the food was good, not great.") == (
        "{female_name} thought the food was {positive_adjective}, not great."
    )
    texts = ("The bed was awful.", "The bath was awful.", "Nothing here.")
    tests = [
        Test("/A", text, expectation=OUTPUTS, value="neg", id=str(at))
        for at, text in enumerate(texts, 1)
    ]
    families = OFFLINE["mined"].families(context_of(tests, ["2"]))
    assert [(one.name, one.failures) for one in families] == [
        ("should output neg: The bath was {negative_adjective}.", 1),
        ("should output neg: The bed was {negative_adjective}.", 0),
    ]
    words = {one.input.split()[-1].strip(".") for one in made("mined", context_of(tests), 20)}
    assert len(words) > 5
    assert words <= set(lexicons()["negative_adjective"])


def test_neighbours_are_the_nearest_texts_and_only_a_guess():
    tests = [Test("/A", "A bowl of soup", expectation=OUTPUTS, value="neg", id="1")]
    (family,) = OFFLINE["neighbours"].families(context_of(tests, ["1"]))
    assert family.is_guess
    found = list(family.tests())
    assert {"soup" in test.input for test in found[:2]} == {True}
    assert (found[0].expectation, found[0].value, found[0].labeler) == (OUTPUTS, "neg", "imputed")
    assert OFFLINE["neighbours"].families(context_of(tests, pool=[])) == []
    failing = [replace(tests[0], id=str(at), input=f"soup {at} again") for at in range(4)]
    topics = OFFLINE["neighbours"].topics(context_of(failing, [str(at) for at in range(4)]))
    assert topics == ["/Soup"]


def test_another_tree_proposes_what_it_knows():
    tests = [
        Test("/A", "So bad", output="pos", label="fail"),
        Test("/A", "Who knows", output="pos"),
        Test("/A", "odd", expectation="should sing", value="a"),
        Test("/A/B", "off", output="pos", label="off_topic"),
        Test("/C", "So good", expectation=OUTPUTS, value="pos"),
    ]
    other = TestTree.of_tests(tests)
    found = made("tree", context_of(other=other))
    assert {(one.topic, one.input, one.expectation, one.value) for one in found} == {
        ("/A", "So bad", OUTPUTS_NOT, "pos"),
        ("/C", "So good", OUTPUTS, "pos"),
    }
    inside = made("tree", context_of(other=other, topic="/C/D"))
    assert [one.topic for one in inside] == ["/C/D"]
    assert OFFLINE["tree"].topics(context_of(other=other, topic="/A")) == ["/A/B"]


def test_all_expectations_of_proposals_are_known():
    tests = [Test("/A", "The bed was awful.", expectation=OUTPUTS, value="neg", id="1")]
    context = context_of(tests, ["1"], other=TestTree.of_tests(tests))
    for name in OFFLINE:
        found = made(name, context)
        assert found, name
        assert {test.expectation for test in found} <= set(EXPECTATIONS)
        assert all(test.other[ORIGIN].startswith(f"{name}: ") for test in found)
        assert [test.id for test in made(name, context)] == [test.id for test in found]
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
