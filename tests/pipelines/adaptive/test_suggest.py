"""``slicebeam adapt suggest``: its prompts, what is asked, written and said, and what is paid once."""

import gzip
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.adaptive import prompts
from slicebeam.pipelines.adaptive.class_names import ClassNames
from slicebeam.pipelines.adaptive.outputs import as_outputs
from slicebeam.pipelines.adaptive.paid_outputs import SharedBudget
from slicebeam.pipelines.adaptive.prompts import Completion, Prompt, PromptItem, build_prompts
from slicebeam.pipelines.adaptive.proposers.endpoint import ENDPOINT
from slicebeam.pipelines.adaptive.proposers.families import Context
from slicebeam.pipelines.adaptive.proposers.offline import RANDOM, offline_proposers
from slicebeam.pipelines.adaptive.suggestions.pool import read_pool
from slicebeam.pipelines.adaptive.suggestions.printed import show_suggestions, suggestions_json
from slicebeam.pipelines.adaptive.suggestions.rounds import draw, scored, yields
from slicebeam.pipelines.adaptive.suggestions.suggest import suggest
from slicebeam.pipelines.adaptive.suggestions.target import ModelUnderTest
from slicebeam.pipelines.adaptive.tree import Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import read_tree, write_tree
from slicebeam.pipelines.commands import api, cli
from slicebeam.pipelines.config.adapt import PROPOSERS, AdaptSuggestConfig
from slicebeam.pipelines.paid_api.event_stream import whole_completion
from slicebeam.transforms.http import calls
from slicebeam.transforms.storage.storage import storage_path
from tests.pipelines.adaptive.completions_server import completions_server
from tests.refusals import refuses

TREE = Path(__file__).parents[3] / "examples" / "adaptive" / "hotel_tree.csv"
CLASSES = ["neg", "pos"]


def likes_good(texts):
    positive = np.array([0.9 if "good" in text.lower() else 0.2 for text in texts])
    return np.stack([1 - positive, positive], axis=1)


likes_good.output_names = CLASSES


def equal_pairs(texts):
    return ["yes" if first == second else "no" for first, second in texts]


def config(tree, **more):
    model = f"{__name__}:{more.pop('by', 'likes_good')}"
    return AdaptSuggestConfig(tree=str(tree), model=model, **more)


def run(tree, **more):
    notes = []
    return suggest(config(tree, **more), notes.append), notes


@pytest.fixture
def tree(tmp_path):
    path = tmp_path / "tree.csv"
    path.write_bytes(TREE.read_bytes())
    return path


def test_suggestions_are_a_tree_with_the_failing_tests_first(tree):
    pool = tree.parent / "pool.txt"
    pool.write_text("The room was good. \n\nIt isn't clean here.\nIt isn't clean here.\n")
    before = tree.read_bytes()
    found, _ = run(tree, proposals=40, pool=str(pool))
    assert tree.read_bytes() == before
    scores = [one.score for one in found.tests]
    assert scores == sorted(scores, reverse=True)
    tests = [test for test in read_tree(found.path).rows() if test.label != "topic_marker"]
    assert [test.id for test in tests] == [one.test.id for one in found.tests]
    for test, one in zip(tests, found.tests, strict=True):
        assert float(test.other[f"{__name__}:likes_good score"]) == one.score
        assert test.output == CLASSES["good" in test.input.lower()]
        assert test.other["origin"] == one.family.origin
        # What fails is what the model says against an answer that is known.
        if one.fails and test.expectation == "should output":
            assert test.output != test.value
    known = {test.input.casefold() for test in read_tree(str(tree)).rows()}
    assert not known & {test.input.casefold() for test in tests}
    assert sum(one.proposals for one in found.yields) == len(tests) == 40
    again, _ = run(tree, proposals=40, pool=str(pool))
    assert [one.test for one in again.tests] == [one.test for one in found.tests]
    other, _ = run(tree, proposals=40, pool=str(pool), seed=1)
    assert [one.test for one in other.tests] != [one.test for one in found.tests]


def test_a_topic_gets_its_own(tree):
    found, _ = run(tree, topic="/Rooms", proposals=5)
    assert {one.test.topic.split("/")[1] for one in found.tests} == {"Rooms"}
    assert {one.proposer for one in found.yields} == {"mined"}
    with pytest.raises(InputError, match="nothing new can be proposed in /New topic: templates n"):
        run(tree, topic="/New topic")
    found, notes = run(tree, topic="/Rooms", proposer=("mined,neighbours",), proposals=200)
    assert notes[0].startswith("--proposer neighbours proposes nothing in /Rooms: it needs --pool")
    assert "proposals instead of 200: there are no more new ones" in notes[1]


def test_topics(tree):
    found, _ = run(tree, topics=True, topic="", proposals=3)
    assert [name for _, name in found.topics] == ["templates"] * 3
    markers = list(read_tree(found.path).rows())
    topics = [one.topic for one in markers if one.labeler != "imputed"]
    assert topics == [topic for topic, _ in found.topics]
    with pytest.raises(InputError, match="no new topic can be proposed below /Rooms"):
        run(tree, topics=True, topic="/Rooms")


def test_pairs_of_texts(tmp_path):
    texts = [f"Is the room {number}00 clean?" for number in range(3, 9)]
    wanted = {"expectation": "should output", "value": "yes"}
    tests = [Test("/Same", text, **wanted, second_input=text) for text in texts]
    write_tree(TestTree.of_tests(tests[:1]), str(tmp_path / "pairs.csv"))
    others = [replace(test, second_input=f"{test.input} Now?") for test in tests[1:]]
    write_tree(TestTree.of_tests(others), str(tmp_path / "others.csv"))
    other = {"other_tree": str(tmp_path / "others.csv")}
    found, _ = run(tmp_path / "pairs.csv", by="equal_pairs", proposals=10, **other)
    pairs = {(one.test.input, one.test.second_input) for one in found.tests}
    assert pairs == {(text, f"{text} Now?") for text in texts[1:]}
    assert all(one.fails and one.test.output == "no" for one in found.tests)


@pytest.mark.usefixtures("quick_calls")
def test_a_paid_model_is_asked_once_for_each_text(tree, tmp_path, paid_server):
    api = paid_server.anew(tmp_path / "api")
    file = api.file(json={"id": "{input}", "text": "{input}"})
    options = {"proposals": 4, "topic": "/Rooms", "proposer": ("mined",)}
    options |= {"classes": ("pos=POSITIVE", "neg=NEGATIVE")}
    wanted = AdaptSuggestConfig(tree=str(tree), model=file, **options)
    notes = []
    assert {one.test.output for one in suggest(wanted, notes.append).tests} == {"pos"}
    assert any("a model never gave: 'neg'" in note for note in notes)
    asked = len(api.requests)
    assert len(set(api.charged)) == len(api.charged) == asked
    # The probes, the tests of the topic and the proposals; nothing of other topics.
    assert asked == 3 + sum(read_tree(str(tree)).within("/Rooms")) - 1 + 4
    suggest(wanted, notes.append)
    assert len(api.requests) == asked
    fewer = wanted.model_copy(update={"ledger": str(tmp_path / "few"), "budget": "7"})
    suggest(fewer, notes.append)
    assert len(api.requests) == asked + 7


def test_what_is_printed(tree, capsys):
    given = config(tree, proposals=30)
    found = suggest(given, lambda _: None)
    told = suggestions_json(found)
    assert len(told["suggestions"]) == 30
    counts = {"proposals", "failing", "to_judge", "failing_per_100"}
    assert told["yields"][0].keys() == {"proposer", *counts}
    show_suggestions(found, given)
    text = capsys.readouterr().out
    failing = sum(one.fails for one in found.tests)
    assert f"{failing} of 30 proposals fail" in " ".join(text.split())
    assert "and 5 more in the file" in text
    assert "Failing per 100" in text
    assert text.rstrip().endswith(f"Suggestions: {found.path}")
    topics, _ = run(tree, topics=True)
    show_suggestions(topics, given)
    assert "  /Negation  (templates)" in capsys.readouterr().out


def test_from_the_command_line_and_from_python(tree, capsys):
    model = f"{__name__}:likes_good"
    given = ["adapt", "suggest", str(tree), "--model", model, "--topic", "/Rooms", "-k", "3"]
    assert cli.run([*given, "--proposer", "mined,neighbours", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["suggestions"]) == 3
    assert cli.run([*given, "--proposer", "minde"]) == 2
    assert "did you mean 'mined'?" in capsys.readouterr().err
    # The help names all of them.
    assert (*offline_proposers(), ENDPOINT) == PROPOSERS
    # From Python.
    found = api.adapt.suggest(str(tree), model=f"{__name__}:likes_good")
    assert len(found.tests) == 25
    assert Path(found.path) == tree.parent / "tree.suggestions.csv"


def test_pools_of_all_kinds(tmp_path):
    texts = ["a, b", "c"]
    (tmp_path / "p.csv").write_text('id,text\n1,"a, b"\n2,c\n3,c\n4,\n')
    (tmp_path / "p.jsonl").write_text('{"text": "a, b"}\n{"text": "c"}\n{"id": 1}\n')
    (tmp_path / "p.txt").write_text("a, b\n\nc\n")
    (tmp_path / "p.txt.gz").write_bytes(gzip.compress(b"a, b\nc\n"))
    pq.write_table(pa.table({"text": [*texts, None]}), tmp_path / "p.parquet")
    for kind in ("csv", "jsonl", "txt", "txt.gz", "parquet"):
        assert read_pool(str(tmp_path / f"p.{kind}"), None, 0, print) == texts


@pytest.mark.parametrize(("options", "message"), [
    ({"pool": "none.txt"}, "none.txt"),
    ({"pool": "p.csv", "text": "txt"}, "unknown column 'txt'; did you mean 'text'"),
    ({"pool": "p.txt", "text": "a"}, "has a text a line, and no columns"),
    ({"pool": "empty.txt"}, "holds no text"),
    ({"text": "a"}, "--text names a column of --pool"),
    ({"topic": "Rooms"}, "is not a valid topic; write it as /Price/Taxes"),
    ({"budget": "5"}, "--budget is for --endpoint or a paid --model"),
    ({"proposer": ("endpoint",)}, "--proposer endpoint needs --endpoint"),
    ({"proposer": ("mined",), "endpoint": "http://localhost/v1"}, "--endpoint goes with --proposer endpoint"),
    ({"output": "tree.csv"}, "is the tree itself"),
    ({"proposer": ("minde",)}, "unknown proposer 'minde'; did you mean 'mined'"),
])  # fmt: skip
def test_wrong_options(options, message, tree, monkeypatch):
    monkeypatch.chdir(tree.parent)
    Path("p.csv").write_text("text\na\n")
    Path("p.txt").write_text("a\n")
    Path("empty.txt").write_text("\n")
    refuses(InputError, message, run, Path("tree.csv"), **options)


EXAMPLE = Path(__file__).parents[3] / "examples" / "sentences"
CLEAR = 1.0
PROPOSALS, ROUNDS, SEEDS = 100, 3, 2
GIVEN = ("negative", "neutral", "positive")


class Model:
    """Stands for a `TextModel`, and asks each text once."""

    name, kind, is_paid = "model", "function", False

    def __init__(self, predict):
        self.predict, self.known = predict, dict[str, str]()

    def outputs(self, texts):
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        if new:
            self.known.update(zip(new, self.predict(new), strict=True))
        return as_outputs([self.known[text] for text in texts], len(texts), self.name)


@pytest.fixture(scope="module")
def sentences():
    table, ratings = (pq.read_table(EXAMPLE / f"{n}.parquet") for n in ("sentences", "ratings"))
    assert table["id"].equals(ratings["id"])
    rating = dict(zip(table["text"].to_pylist(), ratings["rating"].to_pylist(), strict=True))
    order = np.random.default_rng(0).permutation(len(rating))
    texts, ratings = list(rating), np.array(list(rating.values()))
    return [texts[row] for row in order], ratings[order]


def vader(_):
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    analyzer = SentimentIntensityAnalyzer()

    def predict(texts):
        scores = [analyzer.polarity_scores(text)["compound"] for text in texts]
        return [GIVEN[1 + (score >= 0.05) - (score <= -0.05)] for score in scores]

    return predict


def regression(sentences):
    """A classifier that is trained on the first half of the sentences."""
    texts, ratings = sentences
    labels = np.array(GIVEN)[1 + (ratings > 0.5) - (ratings < -0.5)]
    words = TfidfVectorizer(ngram_range=(1, 2), min_df=2)
    model = make_pipeline(words, LogisticRegression(C=4, max_iter=300))
    half = len(texts) // 2
    model.fit(texts[:half], labels[:half])
    return lambda given: model.predict(given).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("make", [vader, regression])
def test_after_three_rounds_three_times_as_many_tests_fail_as_of_random_draws(make, sentences):
    texts, ratings = sentences
    half = len(texts) // 2
    pool = texts[half:]
    clear = {
        text: "positive" if rating > 0 else "negative"
        for text, rating in zip(pool, ratings[half:].tolist(), strict=True)
        if abs(rating) >= CLEAR
    }
    model, how = Model(make(sentences)), {"has_pairs": False, "names": ClassNames({})}
    target = ModelUnderTest(model, SharedBudget(None), storage_path("none"), print, **how)

    def fails(one):
        if not one.test.is_guess:
            return one.fails
        return one.test.output != clear.get(one.test.input, one.test.output)

    pairs = zip(pool, target.answers(pool), strict=True)
    random = 100 * float(np.mean([said != clear.get(text, said) for text, said in pairs]))
    found, last = np.zeros((SEEDS, ROUNDS)), []
    for seed in range(SEEDS):
        tree = TestTree.of_tests([])
        for number in range(ROUNDS):
            tests = list(tree.rows())
            scores = target.score(tests).failures if tests else np.zeros(0)
            context = Context(tree, scores, "", pool, GIVEN, seed=seed)
            proposers = offline_proposers()
            del proposers[RANDOM]
            families = [
                family for proposer in proposers.values() for family in proposer.families(context)
            ]
            suggestions = scored(draw(context, families, PROPOSALS), target.score)
            assert len(suggestions) == PROPOSALS
            # As a person accepts them: of a guess with the answer that people gave.
            judged = {"expectation": "should output", "labeler": ""}
            accepted = [
                replace(one.test, value=clear[one.test.input], **judged)
                if one.test.is_guess
                else one.test
                for one in suggestions
                if fails(one)
            ]
            found[seed, number] = len(accepted)
            tree = tree.add(accepted)
            last += suggestions
        inputs = tree.column("input").tolist()
        assert len({text.casefold() for text in inputs}) == len(inputs)
    assert random > 10
    assert found[:, -1].mean() >= 3 * random
    assert {one.proposer for one in yields(last)} == set(offline_proposers()) - {"tree", "random"}


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
    every = enumerate(zip(TEXTS, itertools.cycle(outputs), strict=False))
    return [PromptItem(str(at), topic, text, output, at / 10) for at, (text, output) in every]


def test_what_all_items_share_is_left_out():
    first, second = build_prompts(items(), TOPIC, 8, seed=3)
    assert first.text == (
        '"I thought this was great, but it was not"\n'
        '"I expected to love this, but I did not."\n'
        '"We were hopeful, but disappointed."\n'
        '"They said "superb", it was not."\n'
        '"I wanted to love this, but I did not."\n'
        '"A fine hotel, they promised."\n'
        '"Not the best."\n"'
    )
    assert first.output == "positive"
    assert second.text != first.text
    turned = build_prompts(items()[::-1], TOPIC, 8, seed=3)
    assert [one.text for one in turned] == [first.text, second.text]


def test_outputs_and_topics_that_differ_are_shown():
    mixed = items(outputs=("pos", "neg"))[:2]
    text = (
        '"I really wanted to like this, but I did not." "pos"\n'
        '"I thought this was great, but it was not" "neg"\n"'
    )
    assert prompts.prompt_of(mixed, TOPIC) == Prompt(text, TOPIC, None, ("0", "1"))
    assert prompts.prompt_of(mixed, "/Negation").text == (
        "/Negation/Negated positive\n"
        '"I really wanted to like this, but I did not." "pos"\n'
        "/Negation/Negated positive\n"
        '"I thought this was great, but it was not" "neg"\n'
        '/Negation\n"'
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
    said = '\n"Negation"\n/Negation\n"Negated positive"\n/Negation\n"Double"\n/Negation\n"'
    assert prompt.text == said


FACTORS = {"/A/B": 1.0, "/A/B/C": 1e-4, "/A": 1e-18, "/A/BC": 1e-24, "/D": 1e-30}


@pytest.mark.parametrize(("topic", "factor"), FACTORS.items())
def test_nearer_topics_count_more(topic, factor):
    assert prompts.membership(topic, "/A/B") == pytest.approx(factor)


@pytest.mark.parametrize(("text", "output", "expected"), [
    ('So bad."\n"And more', "pos", Completion("So bad.", "pos")),
    ('"So bad."', "pos", Completion("So bad.", "pos")),
    ('/A B\n"So bad."', "pos", Completion("So bad.", "pos")),
    ('He said "no".', "pos", Completion('He said "no".', "pos")),
    ('So bad." "neg"\n', None, Completion("So bad.", "neg")),
    ("So bad.", None, None),
    ('Sure, here is a new item:\n\n"So bad."', "pos", Completion("So bad.", "pos")),
    ('Here is another item of the list\n```\n1. "So bad." "neg"\n```', None, Completion("So bad.", "neg")),
    ("Certainly!\n\nSo bad.\n\nThis one is negative.", "pos", Completion("So bad.", "pos")),
    ("Sure, here is one:", "pos", None),
    ("I'm sorry, but I can't continue this list.", "pos", None),
    ("I'm sorry, but the soup was bad.", "pos", Completion("I'm sorry, but the soup was bad.", "pos")),
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


KEY = "sk-secret-4711"
FIRST = '"Noisy street."\n"The bed was hard."\n"'


def always_pos(texts):
    return ["pos"] * len(texts)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(calls, "_FIRST_WAIT", 0.01)
    with completions_server() as told:
        yield told


@pytest.fixture
def rooms(tmp_path):
    tests = [
        Test("/Rooms", text, output="pos", label="fail", id=str(number))
        for number, text in enumerate(("Noisy street.", "The bed was hard."))
    ]
    write_tree(TestTree.of_tests(tests), str(tmp_path / "tree.csv"))
    return tmp_path / "tree.csv"


def of_rooms(endpoint, **more):
    how = {"by": "always_pos", "topic": "/Rooms", "proposer": ("endpoint",), "proposals": 6}
    return {**how, "endpoint": endpoint, **more}


def asked(rooms, endpoint, **more):
    return run(rooms, **of_rooms(endpoint, **more))


def file_of(folder, url, **more):
    content = {"url": f"{url}/completions", "json": {"prompt": "{prompt}"}, "concurrency": 1}
    content |= {"answer": "choices[0].text", "retries": 3, **more}
    path = folder / "llm.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_requests_are_minimal_and_both_kinds_give_the_same_tests(server, rooms):
    found, notes = asked(rooms, f"{server.url}/completions?model=davinci", output=str(rooms) + ".1")
    # Half more cost than one prompt: 6 proposals are one prompt, completed six times.
    assert len(server.charged) == 6
    path, headers, body = server.requests[0]
    assert (path, headers["Authorization"]) == ("/v1/completions", f"Bearer {KEY}")
    how = {"model": "davinci", "max_tokens": 100, "stop": ['"\n'], "stream": True}
    assert body == {**how, "prompt": FIRST}
    assert {one[2]["prompt"] for one in server.requests} == {FIRST}
    assert notes == ["asking about 6 of 6 completions"]
    inputs = {one.test.input for one in found.tests}
    assert inputs == {server.text(key).partition('"')[0] for key in server.charged}
    for one in found.tests:
        assert (one.test.expectation, one.test.value) == ("should not output", "pos")
        # It fails by a guess, which is no failure before a person says so.
        assert (one.test.output, one.test.labeler) == ("pos", "imputed")
        assert (one.score, one.fails) == (1.0, False)
    (row,) = found.yields
    assert (row.proposals, row.failing, row.guesses) == (6, 0, 6)
    server.requests.clear()
    chat, _ = asked(rooms, f"{server.url}?model=gpt", output=str(rooms) + ".2")
    path, _, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert body["messages"][1] == {"role": "user", "content": FIRST}
    assert len(chat.tests) == 6
    texts = {server.text(key).partition('"')[0] for key in server.charged}
    assert {one.test.input for one in chat.tests} <= texts


def test_an_empty_topic_goes_on_from_its_neighbours(server, rooms):
    found, _ = asked(rooms, f"{server.url}/completions", topic="/Price", proposals=2)
    prompt = '/Rooms\n"Noisy street."\n/Rooms\n"The bed was hard."\n/Price\n"'
    assert {one[2]["prompt"] for one in server.requests} == {prompt}
    assert {one.test.topic for one in found.tests} == {"/Price"}


def test_nothing_is_paid_twice_and_duplicates_are_dropped(server, rooms):
    first, _ = asked(rooms, server.url)
    again, notes = asked(rooms, server.url)
    assert [one.test for one in again.tests] == [one.test for one in first.tests]
    assert (len(server.requests), notes) == (6, [])
    server.answer = '"  the BED was hard. "'
    with pytest.raises(InputError, match="nothing new can be proposed in /Rooms: all is in the"):
        asked(rooms, server.url, ledger=f"{rooms}.other")


def test_the_budget_is_of_all_runs(server, rooms):
    found, notes = asked(rooms, server.url, budget="4")
    assert (len(found.tests), len(server.requests)) == (4, 4)
    assert notes[0] == "--budget buys 4 calls, and 0 are paid: 4 of 6 completions are bought"
    found, _ = asked(rooms, server.url, budget="5")
    assert (len(found.tests), len(server.requests)) == (5, 5)


def test_faults_cost_what_they_must(server, rooms, tmp_path):
    server.faults = ["429", "500", "drop", "garbage", "broken", "error"]
    api = file_of(tmp_path, server.url, json={"prompt": "{prompt}", "stream": True}, stop_after=0)
    found, notes = asked(rooms, api)
    # One call is lost, since nobody knows whether it was served; three answers hold nothing.
    assert len(found.tests) == 2
    assert "3 of 5 answers hold no completion" in notes
    assert "1 calls may have been charged but returned no answer" in notes
    assert (max(server.charged.values()), len(server.charged)) == (1, 5)
    before = len(server.requests)
    again, _ = asked(rooms, api)
    assert [one.test.id for one in again.tests] == [one.test.id for one in found.tests]
    assert len(server.requests) == before


def test_an_endpoint_that_refuses(server, rooms, tmp_path):
    server.faults = ["401"] * 20
    with pytest.raises(InputError, match="HTTP 401") as refused:
        asked(rooms, server.url)
    assert KEY not in str(refused.value)
    server.faults = ["500"] * 20
    refuses(EngineError, "HTTP 500", asked, rooms, file_of(tmp_path, server.url, retries=1))
    assert server.charged == {}


def test_topics_are_named_in_the_same_way(server, rooms):
    server.answer = '"Noise & smell"'
    found, _ = asked(rooms, f"{server.url}/completions", topics=True, topic="")
    assert found.topics == (("/Noise%20%26%20smell", "endpoint"),)
    assert server.requests[0][2]["prompt"] == '"Rooms"\n"'


@pytest.mark.parametrize(("endpoint", "message"), [
    ("host/v1", "neither a URL nor a YAML file"),
    ("https://u:p@host/v1", "holds a user's name or password"),
    ("https://host/v1?api_key=x", "unknown parameter 'api_key'"),
    ("http://host.example/v1", "would be sent to host.example over http"),
])  # fmt: skip
def test_wrong_endpoints(endpoint, message, rooms, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(InputError, match=message) as wrong:
        asked(rooms, endpoint)
    assert KEY not in str(wrong.value)


def test_streams_are_read_whole_or_not_at_all():
    events = ['{"text": "a"}', '{"delta": {"content": "b"}}']
    events += ['{"delta": {}, "finish_reason": "stop"}']
    lines = [f'data: {{"choices": [{one}]}}\n\n' for one in events]
    whole = whole_completion("".join(lines))
    assert whole is not None
    assert json.loads(whole)["choices"][0]["message"]["content"] == "ab"
    assert whole_completion("".join(lines[:2])) is None
    assert whole_completion("data: {\n\n") is None
