"""Failure scores of all expectations, and what proposers make of them."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.pipelines.adaptive import expectations as ex
from slicebeam.pipelines.adaptive.outputs import as_outputs
from slicebeam.pipelines.adaptive.proposers.families import ORIGIN, Context, Family
from slicebeam.pipelines.adaptive.proposers.lexicons import filled, lexicons, template_of
from slicebeam.pipelines.adaptive.proposers.offline import offline_proposers
from slicebeam.pipelines.adaptive.proposers.templates import read_templates
from slicebeam.pipelines.adaptive.scoring import Models, Scored, scorable_tests, score_block
from slicebeam.pipelines.adaptive.suggestions.rounds import draw, scored, yields
from slicebeam.pipelines.adaptive.text_models import TextModel, _FunctionModel
from slicebeam.pipelines.adaptive.tree import Test, TestTree
from tests.refusals import refusal, refuses

CLASSES = ("neg", "neu", "pos")
PROBABILITIES = {"good": (0.1, 0.2, 0.7), "goood": (0.1, 0.25, 0.65), "bad": (0.8, 0.1, 0.1)}
PROBABILITIES |= {"ok": (0.2, 0.5, 0.3), "okay": (0.36, 0.34, 0.3)}


class _Fake(TextModel):
    def outputs(self, texts):
        return as_outputs(_FAKES[self.name](texts), len(texts), self.name, CLASSES)


_FAKES = {
    "probabilities": lambda texts: np.array([PROBABILITIES[one] for one in texts]),
    "classes": lambda texts: [CLASSES[int(np.argmax(PROBABILITIES[one]))] for one in texts],
    "numbers": lambda texts: [float(PROBABILITIES[one][2]) for one in texts],
    "echo": lambda texts: [f"{one}, she said" for one in texts],
    "toxic": lambda texts: np.array([(0.0, 0.4, 0.6) if "bad" in one else (0.9, 0, 0.1) for one in texts]),
    "pairs": lambda texts: [str(one[0] == one[1]) for one in texts],
}  # fmt: skip


def scores(model, *tests, pairs=False):
    table = scorable_tests(TestTree.of_tests(tests)).table
    new, classifier = (_Fake(name, "function") for name in (model, "toxic"))
    models = Models(new, None, classifier)
    scored = score_block(table, models.new, models, has_pairs=pairs)
    return [pytest.approx(one, nan_ok=True) for one in scored.failures.tolist()]


def test_every_expectation_has_the_score_that_its_words_say():
    def expects(kind, value="", input_="good"):
        return Test("/A", input_, expectation=kind, value=value)

    drops, rises = "should not score higher than", "should not score lower than"
    same, nan = "should have the same output as", float("nan")
    cases = {
        "probabilities": [
            (Test("/A", "good", "pos", "pass"), 0.25),
            (Test("/A", "good", "pos", "fail"), 0.75),
            (Test("/A", "okay", "neu", "pass"), 0.51),
            (Test("/A", "good", "unheard of", "pass"), 1.0),
            (expects("should output", "neg"), 0.8),
            (expects("should not output", "neg"), 0.2),
            (expects(same, "goood"), 0.3),
            (expects(same, '["goood", "okay"]'), 0.53),
            # The class changed, and its probability fell by 0.16.
            (expects(f"{same} (tolerance=0.2)", "okay", "ok"), 0.5),
            (expects(f"{same} (tolerance=0.1)", "okay", "ok"), 0.51),
            (expects(drops, "goood"), 0.5 + 0.5 * 0.05 / 1.05),
            (expects(f"{drops} (tolerance=0.1)", "goood"), 0.25),
            (expects(f"{drops} (class=neg)", '["bad", "good"]'), 0.0),
            (expects(f"{rises} (class=pos - neg, tolerance=0.1)", "good", "bad"), 0.5 + 0.5 * 1.2 / 2.2),
            (expects(f"{rises} (unless=neu)", "good", "ok"), nan),
            (expects(f"{rises} (class=unheard of)", "good", "ok"), nan),
        ],
        "classes": [
            (expects(same, "goood"), 0),
            (expects(same, "okay", "ok"), 1),
            (expects("should output", "pos"), 0),
            # Classes alone have no score that could fall.
            (expects(drops, "bad"), nan),
        ],
        "numbers": [
            (expects(rises, "goood"), 0),
            (expects(rises, "good", "goood"), 0.5 + 0.5 * 0.05 / 1.05),
            (expects(f"{same} (tolerance=0.1)", "goood"), 0.25),
        ],
        "echo": [
            (expects("should contain", "she"), 0),
            (expects("should contain", "he said so"), 1),
            (expects("should not contain", "she"), 1),
            (expects("should start with", "good"), 0),
            (expects("should not start with", "good"), 1),
            (expects("should not be classified as", "pos", "bad"), 0.6),
            (expects("should not be classified as", "pos"), 0.1),
        ],
        "pairs": [
            (Test("/A", "a", "True", "pass", second_input="a"), 0),
            (Test("/A", "a", "True", "pass", second_input="b"), 1),
            (Test("/A", "a", expectation=same, value='[["b", "b"]]', second_input="a"), 0),
        ],
    }  # fmt: skip
    for model, tests in cases.items():
        found = scores(model, *(test for test, _ in tests), pairs=model == "pairs")
        assert found == [score for _, score in tests], model
    # A kind that is added to the table has no score here yet.
    assert len(ex.EXPECTATIONS) == 10


def test_what_expects_nothing_is_counted():
    tests = [
        Test("/A", "a", "pos", "pass"),
        Test("/A", "b", "pos", "off_topic"),
        Test("/A", "c", "pos", ""),
        Test("/A", "d", "[no output]", "pass"),
        Test("/A", "e", expectation="should sing"),
        Test("/B", "e", expectation="should contain"),
        Test("/A", "g", "pos", "Unknown"),
        Test("/A", "", label="topic_marker"),
        Test("/A/__suggestions__", "f", "pos", "pass"),
    ]
    found = scorable_tests(TestTree.of_tests(tests))
    assert found.table["input"].to_pylist() == ["a"]
    counts = list(found.left_out.items())
    assert counts[:4] == [
        ("off topic", 1),
        ("no label and no expectation, so that nothing is expected", 1),
        ("a label pass or fail without the output that it is about", 1),
        ("a label that is none of pass, fail and off_topic", 1),
    ]
    assert counts[4][0].startswith("unknown expectation 'should sing'; did you mean")
    assert counts[5] == ("'should contain' without a value", 1)
    assert found.misread.to_pylist() == ["/A", "/B"]


@pytest.mark.parametrize(("text", "message"), [
    ("should sing", "unknown expectation 'should sing'"),
    ("should output (tolerance=1)", "unknown parameter 'tolerance'"),
    ("should have the same output as (tolerance=much)", "tolerance 'much' is no number"),
    ("should have the same output as (tolerance=-1)", "tolerance '-1' is no number"),
])  # fmt: skip
def test_wrong_expectations(text, message):
    assert message in refusal(InputError, ex.parse_expectation, text)


def test_further_inputs_are_one_text_or_a_list():
    assert (ex.inputs_of("[a] b"), ex.inputs_of("[1, 2]")) == (["[a] b"], ["[1, 2]"])
    assert ex.inputs_of('[["a", "b"], ["c", "d"]]') == [("a", "b"), ("c", "d")]
    for inputs in (["a"], [""], ["[a] b"], ["a", "b"], [("a", "b")]):
        assert ex.as_value(inputs)
        assert ex.inputs_of(ex.as_value(inputs)) == inputs


class _TensorOfAGraph:
    """It is an array only when it is detached and on the processor, as those of PyTorch are."""

    def __init__(self, array, *, detached=False, here=False):
        self.array, self.detached, self.here = array, detached, here

    def __len__(self):
        return len(self.array)

    def detach(self):
        return _TensorOfAGraph(self.array, detached=True, here=self.here)

    def cpu(self):
        return _TensorOfAGraph(self.array, detached=self.detached, here=True)

    def __array__(self, dtype=None, copy=None):
        if not (self.detached and self.here):
            raise RuntimeError("call detach() and cpu() first")
        return np.asarray(self.array, dtype)


@pytest.mark.parametrize(("raw", "texts"), [
    (["a", None, "b"], ["a", None, "b"]),
    (_TensorOfAGraph(np.array([[0.1, 0.7, 0.2]] * 3)), ["neu"] * 3),
    ([1, 2, 3], ["1", "2", "3"]),
    ([True, False, True], ["True", "False", "True"]),
    (np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [np.nan] * 3]), ["neu", "neg", None]),
    ([{"label": "x", "score": 0.9}, {"label": "y", "score": 0.8}, {"label": "x", "score": 1}], list("xyx")),
    ([[{"label": "x", "score": 0.9}, {"label": "y", "score": 0.1}]] * 3, list("xxx")),
    ([[{"generated_text": "one"}]] * 3, ["one"] * 3),
])  # fmt: skip
def test_what_models_may_return(raw, texts):
    classes = None if isinstance(raw, list) and isinstance(raw[0], dict | list) else CLASSES
    assert as_outputs(raw, 3, "m", classes).texts.tolist() == texts


_SCORES = [{"label": one, "score": 0.5 - at / 5} for at, one in enumerate(CLASSES)]


@pytest.mark.parametrize(("raw", "classes", "message"), [
    (["a"], None, "returned 1 outputs for 3 texts"),
    (7, None, "returned a int"),
    (np.ones((3, 2)), None, "give the function an attribute output_names"),
    (np.ones((3, 2)), CLASSES, "3 output_names, and returned 2 probabilities"),
    (np.ones((3, 2)), ("a", "a"), "output_names a, a, of which two are the same"),
    ([{"a": 1}] * 3, None, "dictionaries without 'label'"),
    (np.ones((3, 2, 2)), None, "shape (3, 2, 2)"),
    ([_SCORES[:2], _SCORES[:2], _SCORES[1:]], None, "scores of some of its classes"),
    ([_SCORES[:2]] * 3, None, "(top_k=None) or of the best alone (top_k=1)"),
    ([_SCORES, _SCORES, _SCORES[:1]], CLASSES, "of all classes for some texts and not for"),
    ([{"label": "x", "score": 1.0}] * 3, CLASSES, "the label 'x', which is none of its classes"),
])  # fmt: skip
def test_what_models_may_not_return(raw, classes, message):
    assert message in refusal(OptionError, as_outputs, raw, 3, "m", classes)


NAMES = ("input", "expectation", "value")


class _Pipeline:
    """It returns what a text classification of Hugging Face does: the best classes, best first."""

    def __init__(self, top_k, *, has_config):
        self.top_k = top_k
        if has_config:
            names = dict(enumerate(CLASSES))
            self.model = SimpleNamespace(config=SimpleNamespace(id2label=names))

    def probabilities(self, text):
        return np.random.default_rng(sum(text.encode())).dirichlet(np.ones(len(CLASSES)))

    def __call__(self, texts):
        found = []
        for text in texts:
            shares = zip(CLASSES, self.probabilities(text).tolist(), strict=True)
            row = [{"label": label, "score": score} for label, score in shares]
            row.sort(key=lambda one: -one["score"])
            found.append(row[0] if self.top_k == 1 else row[: self.top_k])
        return found


@pytest.mark.parametrize(
    ("top_k", "has_config"), [(1, True), (1, False), (2, True), (None, True), (None, False)]
)
def test_scores_do_not_depend_on_the_texts_beside(top_k, has_config):
    pipeline = _Pipeline(top_k, has_config=has_config)
    model, random = _FunctionModel("m", pipeline), np.random.default_rng(1)
    columns = {
        "input": [f"text {row}" for row in range(60)],
        "second_input": [""] * 60,
        "other_inputs": [""] * 60,
    }
    columns["expectation"] = ["should output", "should not output"] * 30
    tests = pa.table({**columns, "value": random.choice(CLASSES, 60).tolist()})
    expected = []
    for text, phrase, value in zip(*(tests[name].to_pylist() for name in NAMES), strict=True):
        probabilities = dict(zip(CLASSES, pipeline.probabilities(text), strict=True))
        own, best = probabilities.pop(value), max(probabilities.values())
        # Of the best class alone it is only known whether it is the value.
        failure = (1 + best - own) / 2 if top_k is None else float(best > own)
        expected.append(failure if phrase == "should output" else 1 - failure)
    for size in (1, 2, 7, 60):
        blocks = [tests.slice(begin, size) for begin in range(0, 60, size)]
        named = SimpleNamespace(outputs=model)
        scored = [score_block(block, named, Models(None), has_pairs=False) for block in blocks]
        assert np.concatenate([one.failures for one in scored]) == pytest.approx(expected)


OUTPUTS, OUTPUTS_NOT = "should output", "should not output"
SAME, OFFLINE = "should have the same output as", offline_proposers()
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
            (other,) = ex.inputs_of(test.value)
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
    refuses(InputError, message, read_templates, str(path))


def test_mined_templates_exchange_words_for_words_of_their_kind():
    said = "{female_name} thought the food was {positive_adjective}, not great."
    assert template_of("Sarah thought the food was good, not great.") == said
    texts = ("The bed was awful.", "The bath was awful.", "Nothing here.")
    wanted = {"expectation": OUTPUTS, "value": "neg"}
    tests = [Test("/A", text, **wanted, id=str(at)) for at, text in enumerate(texts, 1)]
    families = OFFLINE["mined"].families(context_of(tests, ["2"]))
    assert [(one.name, one.failures) for one in families] == [
        ("should output neg: The bath was {negative_adjective}.", 1),
        ("should output neg: The bed was {negative_adjective}.", 0),
    ]
    words = {one.input.split()[-1].strip(".") for one in made("mined", context_of(tests), 20)}
    assert len(words) > 5
    assert words <= set(lexicons()["negative_adjective"])


def test_a_guess_is_scored_once_it_is_judged():
    guess = Test("/A", "So.", "pos", labeler="imputed", expectation=OUTPUTS, value="neg", id="1")
    tests = [guess, replace(guess, label="fail", id="2"), replace(guess, labeler="anna", id="3")]
    found = scorable_tests(TestTree.of_tests(tests))
    assert found.table["id"].to_pylist() == ["2", "3"]
    assert list(found.left_out.values()) == [1]


def test_what_is_mined_is_a_guess_unless_words_keep_the_answer():
    wanted = {"expectation": OUTPUTS, "value": "neg", "id": "1"}
    test = Test("/A", "The bed was awful.", **wanted)
    assert not any(one.is_guess for one in made("mined", context_of([test])))
    for guessed in (
        context_of([replace(test, labeler="imputed")]),
        context_of([test], outputs=("sports", "news")),
    ):
        found = made("mined", guessed)
        assert found
        assert all(one.is_guess for one in found)
    other = TestTree.of_tests([replace(test, labeler="imputed")])
    assert [one.is_guess for one in made("tree", context_of(other=other))] == [True]


def test_random_draws_are_all_texts_of_the_pool_and_expect_nothing():
    found = made("random", context_of(topic="/A"), len(POOL))
    assert sorted(one.input for one in found) == sorted(POOL)
    assert {(one.topic, one.expectation, one.is_guess) for one in found} == {("/A", "", True)}
    assert made("random", context_of(pool=[])) == []


def test_neighbours_are_the_nearest_texts_and_only_a_guess():
    tests = [Test("/A", "A bowl of soup", expectation=OUTPUTS, value="neg", id="1")]
    (family,) = OFFLINE["neighbours"].families(context_of(tests, ["1"]))
    found = list(family.tests())
    assert all(test.is_guess for test in found)
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
    expected = {("/A", "So bad", OUTPUTS_NOT, "pos"), ("/C", "So good", OUTPUTS, "pos")}
    assert {(one.topic, one.input, one.expectation, one.value) for one in found} == expected
    inside = made("tree", context_of(other=other, topic="/C/D"))
    assert [one.topic for one in inside] == ["/C/D"]
    assert OFFLINE["tree"].topics(context_of(other=other, topic="/A")) == ["/A/B"]


def test_all_expectations_of_proposals_are_known():
    tests = [Test("/A", "The bed was awful.", expectation=OUTPUTS, value="neg", id="1")]
    context = context_of(tests, ["1"], other=TestTree.of_tests(tests))
    for name in OFFLINE:
        found = made(name, context)
        assert found, name
        assert {test.expectation for test in found} <= {*ex.EXPECTATIONS, ""}
        assert all(test.other[ORIGIN].startswith(f"{name}: ") for test in found)
        assert [test.id for test in made(name, context)] == [test.id for test in found]
        assert all(test.label == "" for test in found)


def counting(proposer, name, most=1000, labeler="", **more):
    def tests():
        rng = np.random.default_rng(list(map(ord, name)))
        for number in range(most):
            letters = "".join(chr(97 + int(one)) for one in rng.integers(0, 26, 20))
            text = f"{name} {letters} {number}"
            yield Test("/A", text, labeler=labeler, expectation=OUTPUTS, value="pos")

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
    assert Counter(one.family.name for one in draw(context_of(), mined, 40))["c0"] == 5


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
    assert draw(context_of(has_pairs=True), [counting("b", "z", most=3)], 5) == []


def test_yields_count_only_what_is_known():
    families = [counting("a", "a", most=3), counting("g", "g", most=2, labeler="imputed")]
    proposals = draw(context_of(), families, 5)

    def score(tests):
        fails = [float(not test.input.startswith("a") or "0" in test.input[-1]) for test in tests]
        outputs, nothing = (np.full(len(tests), value, object) for value in ("pos", None))
        return Scored(outputs, np.array(fails), np.zeros(len(tests), np.int64), nothing)

    found = scored(proposals, score)
    assert [one.score for one in found] == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert not found[0].test.is_guess
    counts = [(one.proposer, one.proposals, one.failing, one.guesses) for one in yields(found)]
    assert counts == [("a", 3, 1, 0), ("g", 2, 0, 2)]
    assert yields(found)[0].per_hundred == pytest.approx(100 / 3)
