"""Trees that name classes otherwise than the model: refused, mapped by --classes, or counted."""

import json
import pickle
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.adaptive.class_names import (
    PROBED,
    ClassNames,
    Vocabulary,
    check_classes,
    mentioned,
)
from slicebeam.pipelines.adaptive.scoring import scorable_tests
from slicebeam.pipelines.adaptive.text_models import text_model
from slicebeam.pipelines.adaptive.tree import Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import read_tree, write_tree
from slicebeam.pipelines.commands import api
from slicebeam.pipelines.commands.cli import run
from tests.pipelines.adaptive.test_adapt_from import search
from tests.refusals import refusal, refuses
from tests.running import importable

EXAMPLES = Path(__file__).parents[3] / "examples" / "adaptive"
HOTELS = EXAMPLES / "hotel_tree.csv"
MODELS = """
import numpy as np

GOOD = {"good", "friendly", "excellent", "attentive", "close", "clean"}

def words(texts):
    return ["positive" if GOOD & set(text.lower().split()) else "negative" for text in texts]

def short(texts):
    return ["neg" if GOOD & set(text.lower().split()) else "pos" for text in texts]

def named(texts):
    return words(texts)
named.output_names = np.array(["negative", "positive"])

def unlisted(texts):
    return words(texts)
unlisted.output_names = "negative, positive"

def numbers(texts):
    return np.array([float(one == "positive") for one in words(texts)])

def essay(texts):
    return [f"I would call it {text}" for text in texts]

def shouts(texts):
    return ["TOXIC" if "bad" in text else "FINE" for text in texts]

class Config:
    id2label = {0: "negative", 1: "neutral", 2: "positive"}

class Inner:
    config = Config

class Pipeline:
    task, model = "text-classification", Inner
    def __call__(self, texts):
        return [{"label": one, "score": 0.9} for one in words(texts)]

def pipeline():
    return Pipeline()
"""


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    importable(monkeypatch, tmp_path, "class_models", MODELS, "sentiment_models")
    monkeypatch.syspath_prepend(str(EXAMPLES))


def adapt(tree, output, *options):
    return run(["adapt", "run", str(tree), "--output", str(output), "--quiet", *options])


def adaptive(output):
    return json.loads((output / "changelist.json").read_text())["adaptive"]


def written(tmp_path, *tests):
    path = tmp_path / "written.csv"
    write_tree(TestTree.of_tests(tests), str(path))
    return path


def remedy(message):
    pattern = r"--classes ('[^']*'|[^ ,]\S*?)(?=,? or |\n|$)"
    found = re.search(pattern, message.replace(", or", " or"))
    assert found is not None, message
    return shlex.split(found[0])


def test_a_tree_of_other_names_is_refused_and_mapped_as_if_it_was_rewritten(tmp_path, capsys):
    two = ("--model", "sentiment_models:afinn", "--baseline-model", "sentiment_models:vader")
    assert adapt(HOTELS, tmp_path / "out", *two) == 2
    message = capsys.readouterr().err
    for part in ("'neg', 'pos'", "'negative', 'neutral', 'positive'", f"--model {two[1]}"):
        assert part in message
    assert (len(message.splitlines()), list((tmp_path / "out").iterdir())) == (1, [])
    mapped = remedy(message)
    assert mapped == ["--classes", "neg=negative,pos=positive"]
    assert adapt(HOTELS, tmp_path / "out", *two, *mapped) == 0
    frame = pd.read_csv(HOTELS, dtype=str, keep_default_na=False, index_col=0)
    frame["output"] = frame["output"].replace({"neg": "negative", "pos": "positive"})
    frame.to_csv(tmp_path / "rewritten.csv")
    assert adapt(tmp_path / "rewritten.csv", tmp_path / "by_hand", *two) == 0
    found, expected = adaptive(tmp_path / "out"), adaptive(tmp_path / "by_hand")
    assert found["topics"] == expected["topics"]
    assert found["classes"] == {"neg": "negative", "pos": "positive"}
    assert expected["classes"] == {}
    # As the keyword of Python, and beside names that are those of the model already.
    names = {"negative": "neg", "positive": " pos"}
    frame.loc[frame.index[:100], "output"] = frame["output"][:100].replace(names).str.strip()
    frame.to_csv(tmp_path / "mixed.csv")
    options = {"model": two[1], "baseline_model": two[3], "output": str(tmp_path / "mixed")}
    classes = {"neg": "negative", "pos": "positive"}
    done = api.adapt.run(str(tmp_path / "mixed.csv"), **options, classes=classes)
    topics = done.changelist.adaptive.topics
    told = [{"trained": False, "undecided": 0, **one} for one in expected["topics"]]
    assert [one.model_dump(mode="json", exclude_none=True) for one in topics] == told


def test_the_remedy_for_spaces_and_case_works_as_it_stands():
    names = [" negative", "Positive "] * 2
    tests = [Test("/A", name, expectation="should output", value=name) for name in names]
    mentions = mentioned(scorable_tests(TestTree.of_tests(tests)).table)
    said = Vocabulary.of("--model m:f", (), dict(enumerate(["negative", "positive"] * 2)))
    message = refusal(InputError, check_classes, ClassNames({}), mentions, said)
    for text in ("negative=negative,Positive=positive", "negative=negative,Positive=Positive"):
        assert f"--classes {text}" in message
        assert not check_classes(ClassNames.of(text.split(",")), mentions, said)


def naming(values, name="should output"):
    """Return scorable tests that name classes, of which each character stands for one."""
    names = {"p": "pos", "n": "neg", "P": "positive", "N": "negative", "x": "neutral", "1": "1"}
    named = [names.get(one, one) for one in values]
    tests = [Test("/A", f"text {at}", expectation=name, value=one) for at, one in enumerate(named)]
    return scorable_tests(TestTree.of_tests(tests)).table


REFUSED = "refused"


@pytest.mark.parametrize("name", ["should output", "should be", "should not output"])
@pytest.mark.parametrize(("values", "known", "outputs", "classes", "expected"), [
    # The classes of the model are known: one that it lacks is enough.
    ("pnpn", "positive negative", "", "", REFUSED),
    ("PNPx", "positive negative", "", "", REFUSED),
    ("PNPN", "positive negative", "", "", {}),
    ("PNPN", "Positive Negative", "", "", REFUSED),
    ("PNPx", "positive negative", "", "neutral=neutral", {}),
    ("pnpn", "positive negative", "", "pos=positive neg=negative", {}),
    ("11", "0.0 1.0", "", "", REFUSED),
    ("11", "0.0 1.0", "", "1=1.0", {}),
    # Nobody knows them: none of the names is among the outputs, or some are not.
    ("pnpn", "", "positive negative positive negative", "", REFUSED),
    ("pn", "", "positive negative", "", REFUSED),
    ("PNPN", "", "positive positive positive positive", "", {"negative": 2}),
    ("PNxx", "", "positive negative negative negative", "", {"neutral": 2}),
    ("PNxx", "", "positive negative negative negative", "neutral=neutral", {}),
    ("NNN", "", "positive positive positive", "", REFUSED),
    ("NNN", "", "positive positive positive", "negative=negative", {}),
    ("N", "", "positive", "", {"negative": 1}),
    ("pnpn", "", "positive negative positive negative", "pos=positive neg=negative", {}),
    ("pPnN", "", "positive negative positive negative", "", {"pos": 1, "neg": 1}),
    ("1111", "", "1.0 0.0 0.0 1.0", "", REFUSED),
    # Free texts, and numbers on a scale, are not classes.
    ("pnpn", "", "so_good;not so good;very bad;rather fine", "", {}),
    ("1111", "", "0.25 0.5 0.75 0.125", "", {}),
    ("pnpn", "", "", "", {}),
])  # fmt: skip
def test_which_names_are_refused(name, values, known, outputs, classes, expected):
    said = outputs.split(";") if ";" in outputs else outputs.split()
    vocabulary = Vocabulary.of("--model m:f", known.split(), dict(enumerate(said)))
    names, mentions = ClassNames.of(classes.split()), mentioned(naming(values, name))
    if expected == REFUSED:
        refuses(InputError, r"--classes .*=", check_classes, names, mentions, vocabulary)
    else:
        assert dict(check_classes(names, mentions, vocabulary)) == expected


def test_models_that_share_an_output_share_their_classes():
    mentions = mentioned(naming("PNPNPN"))
    same = Vocabulary.of("--model new", (), dict(enumerate(["neutral"] * 6)))
    three = dict(enumerate(["positive", "negative", "neutral"] * 2))
    old = Vocabulary.of("--baseline-model old", (), three)
    assert not check_classes(ClassNames({}), mentions, same, [old])
    renamed = Vocabulary.of("--baseline-model old", (), dict(enumerate(["pos", "neg"] * 3)))
    given, said = (ClassNames({}), mentions, renamed, [same]), "old only gave 'neg', 'pos'"
    refuses(InputError, f"--baseline-model {said}", check_classes, *given)


def test_classes_in_parentheses_are_names_too(tmp_path, capsys):
    change = "should not score lower than (class={}, tolerance=0.1)"

    def tests(pos, neg):
        same = f"should have the same output as (unless={pos})"
        lower = Test("/A", "good", expectation=change.format(f"{pos} - {neg}"), value="bad")
        return lower, Test("/A", "fine", expectation=same, value="bad")

    tree = written(tmp_path, *tests("pos", "neg"))
    model = ("--model", "sentiment_models:vader")
    assert adapt(tree, tmp_path / "out", *model) == 2
    assert "tests name the classes 'neg', 'pos', but" in capsys.readouterr().err
    assert adapt(tree, tmp_path / "out", *model, "--classes", "pos=positive,neg=negative") == 0
    first = [one["failures"] for one in adaptive(tmp_path / "out")["topics"]]
    assert adapt(written(tmp_path, *tests("positive", "negative")), tmp_path / "other", *model) == 0
    assert [one["failures"] for one in adaptive(tmp_path / "other")["topics"]] == first


def test_classes_that_models_say_they_have(tmp_path):
    fitted = {
        "probabilities": (LogisticRegression(), [1.0, 2.0, 1.0]),
        "predictions": (LinearSVC(), ["a", "b", "a"]),
        "regression": (LinearRegression(), [0.5, 1.0, 0.5]),
    }
    found = {}
    for name, (model, labels) in fitted.items():
        path, pipeline = tmp_path / f"{name}.pkl", make_pipeline(CountVectorizer(), model)
        path.write_bytes(pickle.dumps(pipeline.fit(["good one", "bad", "good"], labels)))
        found[name] = text_model(str(path)).classes
    for name in ("words", "named", "pipeline"):
        found[name] = text_model(f"class_models:{name}").classes
    own = {"named": ("negative", "positive"), "pipeline": ("negative", "neutral", "positive")}
    fitted = {"probabilities": ("1.0", "2.0"), "predictions": ("a", "b"), "regression": ()}
    assert found == {**fitted, **own, "words": ()}


@pytest.mark.parametrize(("options", "message"), [
    (["--classes", "pos"], "--classes 'pos': write the name in the tree and the class of the model"),
    (["--classes", "pos=a", "--classes", "pos=b"], "names 'pos' twice, as 'a' and as 'b'"),
    (["--classes", "poss=positive"], "no test names the class 'poss'; did you mean 'pos'?"),
    (["--classes", "pos=positve,neg=negative"], "has no class 'positve'; did you mean 'positive'? it has 'negative', 'positive'"),
    (["--model", "class_models:words"], "class_models:words only gave 'negative', 'positive'; say"),
    (["--baseline-model", "class_models:named", "--model", "class_models:short"], "--baseline-model"),
])  # fmt: skip
def test_wrong_names(tmp_path, capsys, options, message):
    model = [] if "--model" in options else ["--model", "class_models:named"]
    assert adapt(HOTELS, tmp_path / "out", *model, *options) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "out" / "changelist.json").exists()


def test_a_class_that_was_never_given_is_shown_and_no_gate_passes(tmp_path, capsys):
    wrong = {"good": "negative", "dull": "neutral", "bad": "positive"}
    kind = "should not output"
    tests = [
        Test(f"/{'AB'[at % 2]}", f"a {word} room {at}", expectation=kind, value=value)
        for at in range(4)
        for word, value in wrong.items()
    ]
    tree = written(tmp_path, *tests)
    out, model = tmp_path / "out", ("--model", "class_models:words")
    assert run(["adapt", "run", str(tree), "--output", str(out), *model]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    line = "classes that tests name and a model never gave: 'neutral' (4 tests)"
    assert line in shown
    assert adaptive(out)["never_given"] == {"neutral": 4}
    for gate in ("failing", "worse"):
        assert adapt(tree, out, *model, "--fail-on", gate) == 2
        assert line in capsys.readouterr().err
    declared = ("--classes", "neutral=neutral", "--fail-on", "failing", "--json")
    assert run(["adapt", "run", str(tree), "--output", str(out), *model, *declared]) == 0
    assert json.loads(capsys.readouterr().out)["adaptive"]["never_given"] == {}


def test_free_texts_are_not_classes(tmp_path):
    wanted = "I would call it good"
    tests = [Test("/A", f"text {at}", expectation="should output", value=wanted) for at in range(9)]
    assert adapt(written(tmp_path, *tests), tmp_path / "out", "--model", "class_models:essay") == 0
    found = adaptive(tmp_path / "out")
    assert (found["topics"][0]["failures"], found["never_given"]) == (9, {})


def test_classes_of_the_classifier_of_outputs(tmp_path, capsys):
    texts = [f"{word} {at}" for at in range(3) for word in ("bad", "good")]
    toxic = {"expectation": "should not be classified as", "value": "toxic"}
    tests = [Test("/A", text, **toxic) for text in texts]
    tree, out = written(tmp_path, *tests), tmp_path / "out"
    models = ("--model", "class_models:essay", "--output-classifier", "class_models:shouts")
    assert adapt(tree, out, *models) == 2
    said = capsys.readouterr().err
    assert "but --output-classifier class_models:shouts only gave 'FINE', 'TOXIC'" in said
    assert adapt(tree, out, *models, "--classes", "toxic=TOXIC") == 0
    assert adaptive(out)["topics"][0]["failures"] == 3


@pytest.mark.parametrize("has_labels", [True, False])
@pytest.mark.usefixtures("quick_calls")
def test_little_is_paid_before_and_nothing_twice(tmp_path, capsys, paid_server, has_labels):
    count = 3 * PROBED
    said = ["neg" if at % 2 else "pos" for at in range(count)]
    tests = [Test("/A", f"text {at}", one, "pass", id=str(at)) for at, one in enumerate(said)]
    tree, out = written(tmp_path, *tests), tmp_path / "out"
    answers = {f"text {at}": "NEGATIVE" if at % 2 else "POSITIVE" for at in range(count)}
    server = paid_server.anew(tmp_path / "api", answers=answers)
    labels = {"labels": {"NEGATIVE": "negative", "POSITIVE": "positive"}} if has_labels else {}
    file = server.file("api.yaml", json={"id": "{input}", "text": "{input}"}, **labels)
    model = ("--model", str(file))
    assert adapt(tree, out, *model) == 2
    message = capsys.readouterr().err
    assert "tests name the classes 'neg', 'pos'" in message
    assert len(server.charged) == (0 if has_labels else PROBED)
    assert not (out / "changelist.json").exists()
    assert adapt(tree, out, *model, *remedy(message)) == 0
    assert sorted(server.charged) == sorted(answers)
    assert adaptive(out)["topics"][0]["failures"] == 0


def hotels(tmp_path):
    path = tmp_path / "hotels.csv"
    shutil.copy(HOTELS, path)
    return path


def suggested(tree, *options):
    more = ("--proposer", "mined,templates", "-k", "8", "--topic", "/Rooms", "--json")
    return run(["adapt", "suggest", str(tree), *more, *options])


def test_suggestions_name_classes_as_the_tree(tmp_path, capsys):
    tree, templates = hotels(tmp_path), tmp_path / "templates.yaml"
    template = "{topic: /Rooms, output: pos, text: ['a good {dish}']}"
    templates.write_text(f"templates: [{template}]\nslots: {{dish: [a, b]}}\n")
    for model in ("class_models:named", "class_models:words"):
        assert suggested(tree, "--model", model, "--templates", str(templates)) == 2
        assert "tests name the classes 'neg', 'pos', but" in capsys.readouterr().err
        assert not (tmp_path / "hotels.suggestions.csv").exists()
    mapped = ("--model", "class_models:named", "--classes", "pos=positive,neg=negative")
    assert suggested(tree, *mapped) == 0
    found = json.loads(capsys.readouterr().out)["suggestions"]
    assert {one["output"] for one in found} <= {"pos", "neg"}
    assert {one["value"] for one in found} <= {"pos", "neg"}
    for one in found:
        is_value = one["expectation"] == "should output"
        assert (one["score"] > 0.5) == ((one["output"] == one["value"]) != is_value)


def test_another_tree_of_other_names_is_refused(tmp_path, capsys):
    empty = tmp_path / "empty.csv"
    empty.write_text(",topic,input,output,label,labeler,description\n")
    more = ("--other-tree", str(HOTELS), "--proposer", "tree")
    command = ["adapt", "suggest", str(empty), "--model", "class_models:named", *more]
    assert run(command) == 2
    assert "but --model class_models:named has 'negative', 'positive'" in capsys.readouterr().err
    assert run([*command, "--classes", "pos=positive,neg=negative"]) == 0


def test_training_data_has_the_names_of_the_run_or_others(tmp_path, capsys):
    tree, out = hotels(tmp_path), tmp_path / "out"
    mapped = ("--model", "class_models:named", "--classes", "pos=positive,neg=negative")
    assert adapt(tree, out, *mapped) == 0

    def exported(labels, *options):
        rows = {"text": [f"row {at}" for at in range(40)], "label": np.tile(labels, 20)}
        pd.DataFrame(rows).to_csv(tmp_path / "data.csv", index=False)
        command = ["adapt", "export-training", str(tree), "--changelist", str(out)]
        more = ["--mix", str(tmp_path / "data.csv"), "--to", str(tmp_path / "more.csv")]
        return run([*command, *more, *options])

    tests = read_tree(str(HOTELS))
    right, known = {"pass": "pos"}, tests.rows(tests.is_test)
    expected = {one.input: one.output == right.get(one.label, "neg") for one in known}
    renamed = ("--classes", "pos=nice,neg=bad")
    for labels, options in ((["negative", "positive"], ()), (["bad", "nice"], renamed)):
        assert exported(labels, *options) == 0
        found = pd.read_csv(tmp_path / "more.csv")
        found = found[found["text"].isin(expected)]
        assert len(found) > 20
        for text, label in zip(found["text"], found["label"], strict=True):
            assert label == labels[expected[text]], text
    capsys.readouterr()
    assert exported(["bad", "nice"]) == 2
    assert "which is not a label in" in capsys.readouterr().err
    assert exported(["bad", "nice"], "--classes", "poss=nice") == 2
    assert "no test names the class 'poss'; did you mean 'pos'?" in capsys.readouterr().err


def test_slices_become_tests_with_the_names_of_the_tree(tmp_path, capsys):
    rng = np.random.default_rng(2)
    place, label = (rng.choice(two, 600) for two in (["here", "there"], ["positive", "negative"]))
    other = np.where(label == "positive", "negative", "positive")
    wrong = rng.random(600) < np.where(place == "here", 0.6, 0.05)
    text = [f"text {at} which is long enough {rng.integers(1e9)}" for at in range(600)]
    new = np.where(wrong, other, label)
    frame = pd.DataFrame({"text": text, "place": place, "label": label, "new": new})
    frame.to_parquet(tmp_path / "data.parquet", index=False)
    search(tmp_path / "data.parquet", tmp_path / "found")
    tree = hotels(tmp_path)
    command = ["adapt", "from", str(tmp_path / "found"), f"--to={tree}", "--append", "--text=text"]
    before = tree.read_bytes()
    assert run(command) == 2
    message = capsys.readouterr().err
    assert "tests name the classes 'neg', 'pos'" in message
    assert tree.read_bytes() == before
    assert run([*command, *remedy(message)]) == 0
    made = [one for one in read_tree(str(tree)).rows() if one.topic.startswith("/found")]
    right = dict(zip(text, label, strict=True))
    outputs = [(one.output, right[one.input]) for one in made if one.input]
    assert set(outputs) <= {("pos", "positive"), ("neg", "negative")}
    assert len(outputs) == 10
    assert run([*command, "--classes", "pos=positve"]) == 2
    assert "unknown label 'positve'; did you mean 'positive'?" in capsys.readouterr().err
