"""Test trees in AdaTest's files: every value that was read is written again."""

import csv
import gzip
import io
import json
import random
import re
import sys
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.adaptive import scoring
from slicebeam.pipelines.adaptive.tree import Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import read_tree, to_csv, write_tree
from slicebeam.pipelines.commands.cli import run
from tests import random_text_models as models
from tests.conftest import slow
from tests.oracles.adaptive_oracle import failed, topics_of
from tests.refusals import refusal, refuses

HOTELS = Path(__file__).parents[3] / "examples" / "adaptive" / "hotel_tree.csv"
NAMES = ["topic", "input", "output", "label", "labeler", "description"]
letters = st.sampled_from(',"\n\r|[ é🙂') | st.characters(exclude_categories=("Cs",))
texts = st.text(letters, max_size=12)
topics = st.sampled_from(["", "/A", "/A/B b", "/A/B%20b", "/Vocabulary+POS", "/C/D/E"])
labels = st.sampled_from(["pass", "fail", "off_topic", "", "Unknown"])
scores = st.sampled_from(["", "0.0", "nan", "0.25|0.5", "1e-7"])
rows = st.lists(st.tuples(topics, texts, texts, labels, texts, texts, scores), max_size=8)


def markers(found):
    every = {""}
    for topic in found:
        every |= {topic[:at] for at, letter in enumerate(topic) if letter == "/"} | {topic}
    rest = ["", "", "", "topic_marker", "", ""]
    return [[f"m{number}", topic, *rest] for number, topic in enumerate(sorted(every))]


@given(rows, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_tree_is_written_with_the_values_that_it_was_read_with(
    tmp_path_factory, found, line_end, quotes_all, has_end
):
    if sys.version_info < (3, 11):
        # Python's writer did not write this character before.
        found = [tuple(text.replace("\0", "") for text in row) for row in found]
    if not quotes_all:
        # Python's writer leaves a carriage return bare, which no reader takes for part of a value.
        found = [tuple(text.replace("\r", "") for text in row) for row in found]
    # Columns that slicebeam does not know stay where they are.
    header = ["", *NAMES[:3], "model score", *NAMES[3:]]
    table = [[f"t{n}", *row[:3], row[6], *row[3:6]] for n, row in enumerate(found)]
    table += markers([row[0] for row in found])
    text = io.StringIO()
    quoting = csv.QUOTE_ALL if quotes_all else csv.QUOTE_MINIMAL
    csv.writer(text, lineterminator=line_end, quoting=quoting).writerows([header, *table])
    data, path = text.getvalue().encode(), tmp_path_factory.mktemp("tree") / "tree.csv"
    path.write_bytes(data if has_end else data.removesuffix(line_end.encode()))
    tree = read_tree(str(path))
    written = to_csv(tree)
    assert list(csv.reader(io.StringIO(written.decode(), newline=""))) == [header, *table]
    if line_end == "\n" and not quotes_all:
        # What is written as most programs write it stays as it was.
        assert written == data
    path.write_bytes(written)
    assert to_csv(read_tree(str(path))) == written
    if not found:
        return
    # The values are those that AdaTest's own reader finds.
    if quotes_all and "\r" not in data.decode():
        frame = pd.read_csv(io.BytesIO(data), index_col=0, dtype=str, keep_default_na=False)
        assert frame["input"].tolist() == tree.column("input").tolist()
    changed = tree.change(["t0"], description='new, "text"')
    path.write_bytes(to_csv(changed))
    again = read_tree(str(path))
    assert again.test("t0").description == 'new, "text"'
    assert list(again.rows()) == list(changed.rows())


def test_the_hotel_tree_of_adatest(tmp_path):
    tree = read_tree(str(HOTELS))
    assert to_csv(tree) == HOTELS.read_bytes()
    frame = pd.read_csv(HOTELS, index_col=0, dtype=str, keep_default_na=False)
    for name in (*NAMES, "author", "model score"):
        assert tree.column(name).tolist() == frame[name].tolist()
    assert int(tree.is_test.sum()) == (frame.label != "topic_marker").sum() == 190
    inside = frame[(frame.label != "topic_marker") & frame.topic.str.match(r"/Facilities(/|$)")]
    assert tree.totals(tree.is_test)["/Facilities"] == len(inside)
    first, out = str(frame.index[3]), tmp_path / "tree.csv"
    write_tree(tree.change([first], label="fail").remove([str(frame.index[-1])]), str(out))
    before, after = HOTELS.read_text().splitlines(), out.read_text().splitlines()
    assert len(after) == len(before) - 1
    assert [n for n, (old, new) in enumerate(zip(before, after, strict=False)) if old != new] == [4]
    frame.loc[first, "label"] = "fail"
    again = pd.read_csv(out, index_col=0, dtype=str, keep_default_na=False)
    pd.testing.assert_frame_equal(again, frame.iloc[:-1])


def test_what_is_added_and_what_is_not_saved(tmp_path):
    tests = [
        Test("/A/B", "line\nbreak", "x", "pass", id="1"),
        Test("/A/__suggestions__", "maybe", id="2"),
        Test("/A", "same", expectation="should have the same output as", value="Same", id="3"),
        Test("/A", "carriage\rreturn", id="4"),
    ]
    path = tmp_path / "new.csv"
    write_tree(TestTree.of_tests(tests), str(path))
    frame = pd.read_csv(path, index_col=0, dtype=str, keep_default_na=False)
    assert list(frame) == [*NAMES, "expectation", "value"]
    assert frame.loc["1", "input"] == "line\nbreak"
    assert "2" not in frame.index
    marks = frame[frame.label == "topic_marker"]
    assert sorted(marks.topic) == ["", "/A", "/A/B"]
    assert set(marks.labeler) == {"imputed"}
    again = read_tree(str(path))
    assert to_csv(again) == path.read_bytes()
    assert again.test("4").input == "carriage\rreturn"
    # A column that the file has not is added to each of its rows, which stay as they are.
    wider = read_tree(str(HOTELS)).change(["02076434c5fc4a389f127e542c479c64"], value="neg")
    lines = to_csv(wider).decode().splitlines()
    assert [line for line in lines if not line.endswith(",")] == [
        f"{HOTELS.read_text().splitlines()[0]},value",
        next(line for line in lines if line.startswith("02076434")),
    ]
    refuses(KeyError, "", again.remove, ["nobody"])


def test_the_older_form_is_read_and_written_as_the_newer_one(tmp_path):
    path = tmp_path / "old.csv"
    path.write_text(
        ",topic,type,value1,value2,value3,author\n"
        "0,,topic_marker,,,,\n"
        "1,/A,topic_marker,,,,\n"
        "2,/A,{} should output {},good,pos,,me\n"
        "3,/A,{} should be frobnicated,bad,neg,,me\n"
        "4,/A,{} should not be more {} than {},bad,pos,good,\n"
        "5,/A,{} should not be less than for {},fine,bad,,\n"
    )
    tree = read_tree(str(path))
    assert tree.notes == (f"{path} has AdaTest's older form; it is written in the newer one",)
    assert to_csv(tree).decode().splitlines() == [
        ",topic,input,output,label,labeler,description,expectation,value,author",
        "0,,,,topic_marker,,,,,",
        "1,/A,,,topic_marker,,,,,",
        "2,/A,good,,,,,should output,pos,me",
        "3,/A,bad,,,,,should be frobnicated,neg,me",
        "4,/A,bad,,,,,should not score higher than (class=pos),good,",
        "5,/A,fine,,,,,should not be less than for,bad,",
    ]


@pytest.mark.parametrize(("text", "message"), [
    ("id,topic,input\n", "unknown column 'output'"),
    ("topic,input,output,label\n", "the first column of a test tree has the ids"),
    (",topic,input,output,label\n1,,a,b,pass\n1,,c,d,pass\n", "the id '1' occurs twice"),
    (",input,input,output,label\n", "two columns named 'input'"),
    ("\x80\x04.", "is a pickle, whose code could run; save the tree as CSV in AdaTest: tree.to_csv("),
])  # fmt: skip
def test_files_that_are_no_trees(tmp_path, text, message):
    path = tmp_path / "tree.csv"
    path.write_text(text, "latin-1")
    said = refusal(InputError, read_tree, str(path))
    assert "tree.csv" in said
    assert message in said


def test_a_topic_without_a_slash_is_at_the_root(tmp_path):
    path = tmp_path / "tree.csv"
    path.write_text(",topic,input,output,label\n1,Rooms,a,b,pass\n2,,,,topic_marker\n")
    tree = read_tree(str(path))
    assert tree.test("1").topic == ""
    said = "rows at the root since their topic does not begin with a slash: 1; the first is 'Rooms'"
    assert tree.notes == (f"{path}: {said}",)
    assert b"1,,a,b,pass\n" in to_csv(tree)


def test_a_quote_within_a_value_without_quotes_is_read(tmp_path):
    path = tmp_path / "tree.csv"
    path.write_text(',topic,input,output,label\n1,,5" wide,b,pass\n2,,c,d,pass\n')
    tree = read_tree(str(path))
    assert tree.column("input").tolist() == ['5" wide', "c"]
    assert b'1,,"5"" wide",b,pass,\n' in to_csv(tree)


def test_what_is_written_as_gzip_is_read_again(tmp_path):
    tree, path = read_tree(str(HOTELS)), str(tmp_path / "tree.csv.gz")
    write_tree(tree, path)
    with gzip.open(path) as stream:
        assert stream.read() == to_csv(tree)
    assert list(read_tree(path).rows()) == list(tree.with_markers().rows())


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


def _value(draw, phrase, kind, *, pairs):
    if "same" in phrase or "score" in phrase or "less" in phrase:
        if pairs:
            return json.dumps([[_text(draw), _text(draw)] for _ in range(draw.randrange(1, 4))])
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
    checker, rows = draw.choice(("classes", "probabilities")), []
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
    unscored = sum(adaptive["unscored"].values())
    assert (adaptive["tests"], unscored) == (len(known), len(frame) - len(known))
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


LATER = [slow(seed) for seed in range(RUNS // 2, RUNS)]


@pytest.mark.parametrize("seed", [*range(RUNS // 2), *LATER])
def test_random_trees(seed, tmp_path, monkeypatch):
    # Several blocks, the last of which is not full.
    monkeypatch.setattr(scoring, "BLOCK", 50)
    one_run(seed, TREES // RUNS, tmp_path)
