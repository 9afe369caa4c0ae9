"""Random test trees, scored by random models: every number of the document by a direct computation."""

import json
import random
import re
from functools import partial

import pandas as pd
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.adaptive import scoring
from slicebeam.pipelines.cli import run
from tests import random_text_models as models
from tests.oracles.adaptive_oracle import failed, topics_of

TREES, RUNS = 200, 8
PHRASES = (
    *("should output", "should be", "should not output", "should not be"),
    *("should have the same output as", "should be the same as for"),
    *("should not score lower than", "should not score higher than", "should not be less than for"),
    *("should contain", "should not contain", "should start with", "should not start with"),
    "should not be classified as",
)
LABELS = ("pass", "fail", "pass", "fail", "off_topic", "", "Unknown")
TOLERANCES = ("0", "0.125", "0.1", "0.5", "2")
COLUMNS = ("topic", "input", "output", "label", "expectation", "value", "second_input")


def _text(draw):
    words = draw.choices(models.WORDS, k=draw.randrange(1, 4))
    return " ".join([*words, str(draw.randrange(60))]) + draw.choice(("", ".", "?\nYes", ' "x", y'))


def _pair(draw):
    return [_text(draw), _text(draw)]


def _value(draw, phrase, kind, *, pairs):
    if "same" in phrase or "score" in phrase or "less" in phrase:
        if pairs:
            return json.dumps([_pair(draw) for _ in range(draw.randrange(1, 4))])
        if draw.random() < 0.6:
            return _text(draw)
        return json.dumps([_text(draw) for _ in range(draw.randrange(1, 4))])
    if "classified" in phrase:
        return draw.choice(models.CLASSES)
    if "output" in phrase or phrase in ("should be", "should not be"):
        if kind == "numbers":
            return str(draw.randrange(64) / 64 - 0.5)
        return draw.choice((*models.CLASSES, *models.CLASSES, "unheard of"))
    return draw.choice((*models.WORDS, "e", "neg", "-0", "G"))


def _parameters(draw, phrase):
    if draw.random() < 0.4 or not ("same" in phrase or "score" in phrase or "less" in phrase):
        return ""
    given = []
    if draw.random() < 0.6:
        given.append(f"tolerance={draw.choice(TOLERANCES)}")
    if "same" not in phrase and draw.random() < 0.5:
        given.append(f"class={draw.choice(('pos', 'neg', 'pos - neg', 'neu - pos', 'none'))}")
    if draw.random() < 0.3:
        given.append(f"unless={draw.choice(models.CLASSES)}")
    return f" ({', '.join(given)})" if given else ""


def random_tests(draw, root, kind, *, pairs):
    """Return the tests of a tree below a topic."""
    topics = [root]
    for _ in range(draw.randrange(6)):
        name = draw.choice(("A", "B", "C%20D", "E & F", "é"))
        topics.append(f"{draw.choice(topics)}/{name}")
    found = []
    for _ in range(draw.choice((1, 2, 5, 10, 40))):
        test = dict.fromkeys(COLUMNS, "")
        test |= {"topic": draw.choice(topics), "input": _text(draw), "label": draw.choice(LABELS)}
        if pairs:
            test["second_input"] = _text(draw)
        if draw.random() < 0.4:
            outputs = (*models.CLASSES, *models.CLASSES, "[no output]", "__TOEVAL__", "")
            test["output"] = draw.choice(outputs)
        else:
            phrase = draw.choice(PHRASES)
            test["expectation"] = phrase + _parameters(draw, phrase)
            test["value"] = _value(draw, phrase, kind, pairs=pairs)
            if draw.random() < 0.03:
                test["value"] = ""
        found.append(test)
    # Some are there twice.
    return found + draw.sample(found, len(found) // 5)


def one_run(seed, trees, folder):
    """Score a forest of random trees by two random models, or one, and compare all numbers."""
    draw = random.Random(seed)
    new, old = (draw.choice(models.KINDS) for _ in range(2))
    pairs, has_old = draw.random() < 0.25, draw.random() < 0.75
    checker = draw.choice(("classes", "probabilities"))
    rows = []
    for tree in range(trees):
        rows += random_tests(draw, f"/Tree {tree}", new, pairs=pairs)
    # Each name is in a test at least, so that it may be declared.
    numbers = {row["value"] for row in rows if re.fullmatch(r"-?[0-9.]+", row["value"])}
    names = (*models.CLASSES, "none", "unheard of", *sorted(numbers))
    pair = {"second_input": "second"} if pairs else {}
    for name in names:
        row = {"topic": "/Named", "input": name, "expectation": "should output", "value": name}
        rows.append(dict.fromkeys(COLUMNS, "") | row | pair)
    draw.shuffle(rows)
    frame = pd.DataFrame(rows, index=[f"id-{row}" for row in range(len(rows))])
    path, out = folder / "tree.csv", folder / "out"
    frame.to_csv(path)

    def judged(kind, name):
        model, classifier = partial(models.output, kind, name), partial(models.output, checker, "c")
        fails = [failed(test, model, classifier) for test in rows]
        return pd.Series(fails, frame.index, dtype=object)

    frame["new"] = judged(new, "1")
    if has_old:
        frame["old"] = judged(old, "2")
    known = frame.dropna()
    options = [f"--model={models.__name__}:{new}_1", f"--output={out}", "--quiet"]
    options += [f"--baseline-model={models.__name__}:{old}_2"] if has_old else []
    options += [f"--output-classifier={models.__name__}:classifier_{checker}"]
    options += [f"--classes={','.join(f'{name}={name}' for name in names)}"]
    code = run(["adapt", "run", str(path), *options])
    if known.empty:
        assert code == 2
        return
    assert code == 0
    tests = pq.read_table(out / "tests.parquet").to_pandas().set_index("id")
    differing = set(tests.index) ^ set(known.index)
    assert not differing, frame.loc[sorted(differing)].to_dict("index")
    marks = {name: bool for name in ("new", "old") if name in known}
    for name, column in zip(marks, ("passed", "baseline_passed"), strict=False):
        wrong = tests.reindex(known.index)[column].astype(bool) == known[name].astype(bool)
        assert not wrong.any(), known[wrong].to_dict("index")
    assert ((tests.failure > 0.5) == ~tests.passed).all()
    by_hand = topics_of(known.astype(marks))
    document = json.loads((out / "changelist.json").read_text())
    adaptive = document["adaptive"]
    assert adaptive["tests"] == len(known)
    assert sum(adaptive["unscored"].values()) == len(frame) - len(known)
    topics = {one["topic"]: one for one in adaptive["topics"]}
    changes = {one["slice_id"]: one["changes"][0] for one in document["slices"]}
    assert set(topics) == set(by_hand.index)
    for topic, row in by_hand.iterrows():
        found = topics[str(topic)]
        change = changes[found["slice_id"]]
        for name in row.index.difference(["p", "q", "significant"]):
            assert found[name] == row[name], (topic, name)
        if has_old:
            assert found.get("significant", "") == row["significant"], topic
            assert change["p_value"] == pytest.approx(row["p"], rel=1e-9), topic
            assert change["p_adjusted"] == pytest.approx(row["q"], rel=1e-9), topic
        else:
            assert "significant" not in found
        assert change["after"]["value"] == pytest.approx(row["failures"] / row["tests"])


LATER = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(RUNS // 2, RUNS)]


@pytest.mark.parametrize("seed", [*range(RUNS // 2), *LATER])
def test_random_trees(seed, tmp_path, monkeypatch):
    # Several blocks, the last of which is not full.
    monkeypatch.setattr(scoring, "BLOCK", 50)
    one_run(seed, TREES // RUNS, tmp_path)
