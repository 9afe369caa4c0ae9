"""``slicebeam adapt from``: its tests against a selection of its own, and what `adapt run` says of them."""

import json
import operator
import pickle
import sys
from dataclasses import replace
from urllib.parse import quote

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.adaptive.expectations import expectation_of
from slicebeam.pipelines.adaptive.tree_files import read_tree, write_tree
from slicebeam.pipelines.commands import api
from slicebeam.pipelines.commands.cli import run
from tests.pipelines.page.results import discovery_result, shift_result
from tests.python_models import Trap

# What a CSV file, a spreadsheet, a topic or a terminal could take for something else.
HOSTILE = [
    "=cmd|' /C calc'!A0", 'a "quoted", text', "two\r\nlines\nand a third\r", "bell \x07 escape \x1b[2J",
    "50 % of a/b | c", " padded\t", "\ufeffmark \u202eturned \u2028", "%2F__suggestions__/x",
]  # fmt: skip
PLACES = ["a/b %2F|c", "=1+1", "plain", "two\nlines"]
WORD = 2**64


def mixed(value):
    """The 64 bits of splitmix64, step by step."""
    value = (value + 0x9E3779B97F4A7C15) % WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) % WORD
    return value ^ (value >> 31)


def table(folder):
    """Write 1,200 texts, some of them hostile or twice; the new model fails often in two places."""
    rng, n = np.random.default_rng(11), 1_200
    place = rng.choice(PLACES, n)
    place[100:200], place[300:400] = PLACES[0], PLACES[1]
    label = rng.choice(["good", "bad", "[no output]"], n, p=[0.45, 0.45, 0.1])
    share = np.select([place == PLACES[0], place == PLACES[1]], [0.5, 0.4], 0.05)
    other = np.where(label == "good", "bad", "good")
    text = [f"{HOSTILE[at % 8]} {at}" if at % 3 else f"text {at}" for at in range(n)]
    second = [f"{HOSTILE[(at + 3) % 8]}{at % 5}" for at in range(n)]
    columns = {"text": text, "second": second, "place": place, "size": rng.integers(0, 5, n)}
    columns["label"] = label
    columns["new"] = np.where(rng.random(n) < share, other, label)
    columns["old"] = np.where(rng.random(n) < 0.1, other, label)
    frame = pd.DataFrame(columns)
    # The same texts in both of the places, with the same labels and answers.
    same = ["text", "label", "new", "old"]
    frame.loc[100:199, same] = frame.loc[300:399, same].to_numpy()
    frame.loc[::97, "text"] = None
    frame.to_parquet(folder / "data.parquet", index=False)
    return folder / "data.parquet"


def search(data, output, *options):
    command = ["search", "--data", str(data), "--label", "label", "--prediction", "new", *options]
    assert run([*command, "--quiet", "--output", str(output)]) == 0
    return json.loads((output / "changelist.json").read_text())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A folder with the data and three searches of it: of one model, of two, and of what never fails."""
    folder = tmp_path_factory.mktemp("found")
    data = table(folder)
    search(data, folder / "one", "--exclude-features", "old,second")
    two = ("--baseline-prediction", "old", "--alternative", "both", "--exclude-features", "second")
    search(data, folder / "two", *two)
    right = pd.read_parquet(data).assign(new=lambda frame: frame["label"])
    right.to_parquet(folder / "right.parquet", index=False)
    search(folder / "right.parquet", folder / "right", "--exclude-features", "old,second")
    return folder


def adapt(output, tree, *options):
    return run(["adapt", "from", str(output), "--to", str(tree), *options])


HOLDS = {
    "==": operator.eq, "<": operator.lt, ">=": operator.ge, "in": pd.Series.isin,
    "between": lambda column, ends: (column >= ends[0]) & (column < ends[1]),
}  # fmt: skip


def inside(frame, one):
    member = pd.Series(data=True, index=frame.index)
    for part in one["definition"]["predicate"]["all"]:
        column, value = frame[part["field"]], part.get("value")
        member &= HOLDS[part["op"]](column, value)
    return member


def by_hand(frame, document, most, ranks, seed=0):
    """Rows that tests are made of, by slice: rank by rank at random, those of earlier slices last."""
    slices = {one["slice_id"]: one for one in document["slices"]}
    order = sorted(frame.index, key=lambda row: mixed(row ^ (seed << 32)))
    taken, found = set(), {}
    for slice_id in dict.fromkeys(one["slice_id"] for one in document["findings"]):
        member = inside(frame, slices[slice_id]) & frame["text"].notna()
        rows, rest = [], pd.Series(data=True, index=frame.index)
        for rank in [*ranks, rest]:
            own = [row for row in order if member[row] and rank[row] and rest[row]]
            own = sorted(own, key=lambda row: frame["text"][row] in taken)
            for row in own:
                if len(rows) < most and frame["text"][row] not in set(frame["text"][rows]):
                    rows.append(row)
            rest &= ~rank
        taken |= set(frame["text"][rows])
        found[slice_id] = rows
    return found


def read_tests(tree):
    read = read_tree(str(tree))
    return list(read.rows(read.is_test))


def test_a_search_becomes_tests_that_fail_as_recorded(found, tmp_path, monkeypatch, capsys):
    frame = pd.read_parquet(found / "data.parquet")
    document = json.loads((found / "one" / "changelist.json").read_text())
    tree = tmp_path / "tree.csv"
    assert adapt(found / "one", tree, "--examples", "30", "--json") == 0
    said = capsys.readouterr()
    assert said.err == "the inputs are the column 'text'; --text names another one\n"
    made, wrong = json.loads(said.out), frame["label"] != frame["new"]
    chosen = by_hand(frame, document, 30, [wrong])
    assert [one["slice_id"] for one in made["topics"]] == list(chosen)
    assert len(chosen) >= 2
    names = {one["slice_id"]: one["name"] for one in document["slices"]}
    tests = read_tests(tree)
    for one in made["topics"]:
        rows = chosen[one["slice_id"]]
        assert one["topic"] == f"/found/{quote(names[one['slice_id']], safe='')}"
        own = [test for test in tests if test.topic == one["topic"]]
        assert [test.input for test in own] == frame["text"][rows].tolist()
        outputs = [expectation_of(test) for test in own]
        assert outputs == [("should output", label) for label in frame["label"][rows]]
        assert (one["tests"], one["known"]) == (len(rows), 0)
        assert one["failing"] == wrong[rows].sum() == min(30, len(rows))
        finding = next(f for f in document["findings"] if f["slice_id"] == one["slice_id"])
        for row, test in zip(rows, own, strict=True):
            assert f"accuracy {finding['value']:.3f} [" in test.description
            assert f"row {row}: predicted {frame['new'][row]} (wrong)" in test.description
            assert document["changelist_id"] in test.description
    assert {HOSTILE[0], HOSTILE[2]} <= {test.input.rpartition(" ")[0] for test in tests}
    assert any(test.expectation for test in tests)
    assert len({test.id for test in tests}) == len(tests) == made["tests"]
    # A model that answers as recorded fails exactly the tests that the search saw it fail.
    answers = frame[frame["text"].notna()].set_index("text")["new"].to_dict()
    model = "def model(texts):\n    return [ANSWERS[one] for one in texts]\n"
    (tmp_path / "recorded_model.py").write_text(f"ANSWERS = {answers!r}\n\n{model}")
    monkeypatch.syspath_prepend(str(tmp_path))
    scored = tmp_path / "scored"
    command = ["adapt", "run", str(tree), "--model", "recorded_model:model", "--quiet"]
    assert run([*command, "--output", str(scored)]) == 0
    sys.modules.pop("recorded_model", None)
    results = pq.read_table(scored / "tests.parquet").to_pylist()
    recorded = {test.id: answers[test.input] != expectation_of(test)[1] for test in tests}
    assert {one["id"]: not one["passed"] for one in results} == recorded
    outcomes = json.loads((scored / "changelist.json").read_text())["adaptive"]
    failing = {one["topic"]: one["failures"] for one in outcomes["topics"]}
    del failing["/found"]
    assert {one["topic"]: one["failing"] for one in made["topics"]} == failing
    # Of more tests than fail the others pass, and a second topic has some of the first.
    assert adapt(found / "one", tmp_path / "many.csv", "--examples", "200", "--quiet") == 0
    many = by_hand(frame, document, 200, [wrong])
    inputs = [text for rows in many.values() for text in frame["text"][rows]]
    assert [test.input for test in read_tests(tmp_path / "many.csv")] == inputs
    assert len(set(inputs)) < len(inputs)
    assert adapt(scored, tmp_path / "again.csv") == 2
    assert "is of slicebeam adapt run: its slices are topics of" in capsys.readouterr().err


def test_of_an_update_the_broken_come_first_and_appending_makes_no_doubles(found, tmp_path, capsys):
    frame = pd.read_parquet(found / "data.parquet")
    document = json.loads((found / "two" / "changelist.json").read_text())
    tree = tmp_path / "tree.csv"
    # A row of a person stays as it is.
    own_row = b"1,/mine,a text,good,pass,ann,'kept',,\r\n"
    header = b",topic,input,output,label,labeler,description,expectation,value\r\n"
    tree.write_bytes(header + own_row)
    assert adapt(found / "two", tree) == 2
    assert f"--to {tree} exists; add to it with --append" in capsys.readouterr().err
    options = ("--append", "--topic", "/nightly/found", "--examples", "8", "--text", "text")
    keywords = {"append": True, "topic": "/nightly/found", "examples": 8, "text": "text"}
    made = api.adapt.from_(found / "two", to=tree, **keywords)
    now, then = frame["label"] != frame["new"], frame["label"] != frame["old"]
    expected = by_hand(frame, document, 8, [now & ~then, now & then])
    tests = {test.id: test for test in read_tests(tree)}
    by_topic = {one.slice_id: one.topic for one in made.topics}
    assert set(by_topic) == set(expected)
    for slice_id, rows in expected.items():
        own = [test for test in tests.values() if test.topic == by_topic[slice_id]]
        assert [test.input for test in own] == frame["text"][rows].tolist()
        assert by_topic[slice_id].startswith("/nightly/found/")
    written = tree.read_bytes()
    assert own_row.strip() in written
    assert len(tests) == 1 + made.tests
    # What a person moved, or wrote in another way, is known as well.
    moved, rewritten = [test for test in tests.values() if test.topic != "/mine"][:2]
    mine = read_tree(str(tree)).change([moved.id], topic="/mine").remove([rewritten.id])
    write_tree(mine.add([replace(rewritten, id="own", label="off_topic")]), str(tree))
    written = tree.read_bytes()
    assert adapt(found / "two", tree, *options, "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["tests"], sum(one["known"] for one in again["topics"])) == (0, made.tests)
    assert tree.read_bytes() == written
    # Another seed has other examples; those that are there already are not written twice.
    assert adapt(found / "two", tree, *options, "--seed", "5", "--json") == 0
    more = json.loads(capsys.readouterr().out)
    assert 0 < more["tests"] <= made.tests
    after = read_tests(tree)
    assert len(after) == len(tests) + more["tests"]
    assert len({(test.topic, test.input) for test in after}) == len(after)
    other = by_hand(frame, document, 8, [now & ~then, now & then], seed=5)
    nightly = {test.input for test in after if test.topic.startswith("/nightly")}
    chosen = [row for rows in (expected, other) for some in rows.values() for row in some]
    assert nightly | {moved.input} == set(frame["text"][chosen])


def test_pairs_and_a_slice_by_its_name(found, tmp_path):
    frame = pd.read_parquet(found / "data.parquet")
    one = json.loads((found / "one" / "changelist.json").read_text())["slices"][-1]
    tree = tmp_path / "tree.csv"
    pair = ("--text", "text", "--text", "second")
    assert adapt(found / "one", tree, *pair, "--slice", one["name"], "--quiet") == 0
    tests = read_tests(tree)
    assert {test.topic for test in tests} == {f"/found/{quote(one['name'], safe='')}"}
    member = frame[inside(frame, one) & (frame["label"] != frame["new"])]
    pairs = set(zip(member["text"], member["second"], strict=True))
    assert 0 < len(tests) == len({(test.input, test.second_input) for test in tests} & pairs)


def test_what_can_not_be_is_said_in_a_line(found, tmp_path, capsys):
    frame, changed = pd.read_parquet(found / "data.parquet"), tmp_path / "changed.parquet"
    at = frame.index[frame["label"] == "good"][0]
    frame.assign(label=frame["label"].where(frame.index != at, "bad")).to_parquet(changed)
    plain = tmp_path / "plain.parquet"
    frame.drop(columns=["text", "second"]).to_parquet(plain, index=False)
    search(plain, tmp_path / "plain", "--exclude-features", "old")
    losses = json.loads((found / "one" / "changelist.json").read_text())
    losses["dataset"]["classes"] = []
    (tmp_path / "losses.json").write_text(json.dumps(losses))
    renamed = tmp_path / "renamed.parquet"
    frame.rename(columns={"size": "length"}).to_parquet(renamed, index=False)
    cases = [
        (tmp_path / "plain", [], "is free text, which tests are made of; name a column with --text"),
        (found / "one", ["--text", "size"], "--text size is a column of int64; name a column of te"),
        (found / "one", ["--text", "txt"], "--text: unknown column 'txt'; did you mean 'text'?"),
        (found / "one", ["--text", "text"] * 3, "name the column of the texts, or the two columns of pairs"),
        (found / "one", ["--topic", "found"], "--topic 'found' is not a topic path"),
        (found / "one", ["--slice", "none"], "--slice: unknown slice 'none'"),
        (found / "one", ["--data", str(changed)], "its fingerprint is"),
        (found / "one", ["--data", str(renamed)], "its fingerprint is"),
        (found / "one", ["--data", str(tmp_path / "no.parquet")], "no.parquet"),
        (tmp_path / "losses.json", [], "has no labels that are classes"),
        (tmp_path, [], "there is no changelist.json in this folder"),
    ]  # fmt: skip
    capsys.readouterr()
    tree = tmp_path / "tree.csv"
    for output, options, line in cases:
        assert adapt(output, tree, *options) == 2, (options, line)
        said = capsys.readouterr().err
        assert line in said
        assert len(said.splitlines()) <= 2, said
        assert not tree.exists()
    # A run that found nothing is no mistake: a nightly job goes on.
    assert adapt(found / "right", tree) == 0
    assert "has no findings, so that no tree is written" in capsys.readouterr().err
    assert not tree.exists()


def test_no_model_of_a_document_is_loaded_that_the_user_does_not_name(found, tmp_path, capsys):
    model, mark = tmp_path / "model.pkl", tmp_path / "mark"
    model.write_bytes(pickle.dumps(Trap(mark)))
    document = json.loads((found / "one" / "changelist.json").read_text())
    config = document["provenance"]["config"]
    del config["prediction"]
    config |= {"model": str(model), "runner_config": "flink"}
    hostile = tmp_path / "hostile.json"
    hostile.write_text(json.dumps(document))
    assert adapt(hostile, tmp_path / "tree.csv") == 0
    said = capsys.readouterr().err
    assert "whether the data is still that of the run could not be checked" in said
    assert f"confirm it with --model {model}" in said
    assert "flink" not in said
    assert not mark.exists()
    # Without the model that the run had, nothing is known of what it got wrong.
    del document["models"][0]["prediction_field"]
    hostile.write_text(json.dumps(document))
    assert adapt(hostile, tmp_path / "other.csv", "--json") == 0
    came = capsys.readouterr()
    assert "no column of predicted classes is known" in came.err
    assert {one["failing"] for one in json.loads(came.out)["topics"]} == {None}
    for test in read_tests(tmp_path / "other.csv"):
        assert "(" not in test.description.split("; ")[-2]


@pytest.mark.slow
def test_a_discovery_becomes_topics_of_its_phrases(tmp_path, capsys):
    result = discovery_result(tmp_path)
    document = json.loads((result / "changelist.json").read_text())
    frame = pd.read_parquet(tmp_path / "reviews.parquet").set_index("id")
    tree = tmp_path / "tree.csv"
    assert adapt(result, tree, "--examples", "12") == 0
    tests = read_tests(tree)
    assert document["slices"]
    membership = pq.read_table(result / "membership.parquet").to_pandas()
    for one in document["slices"]:
        words = ", ".join(phrase["text"] for phrase in one["found"]["phrases"][:3])
        own = [test for test in tests if test.topic == f"/found/{quote(words, safe='')}"]
        member = set(membership[membership["slice_id"] == one["slice_id"]]["id"])
        broken = frame[(frame["new"] != frame["label"]) & (frame["old"] == frame["label"])]
        broken = broken[broken.index.isin(member)]
        shown = [each["id"] for each in one["found"]["examples"]]
        typical = [broken["text"][each] for each in shown if each in broken.index]
        texts = [test.input for test in own]
        assert len(set(texts)) == 12
        assert set(texts) <= set(broken["text"])
        first = list(dict.fromkeys(typical))[:12]
        assert texts[: len(first)] == first
        for test in own:
            assert test.output in {str(each) for each in broken[broken["text"] == test.input].label}
            assert one["name"] in test.description
    assert adapt(result, tree, "--examples", "12", "--append") == 0
    assert read_tests(tree) == tests
    capsys.readouterr()
    # The texts are what tells that the data has changed.
    other = pd.read_parquet(tmp_path / "reviews.parquet")
    other["text"] = other["text"].iloc[::-1].to_numpy()
    other.to_parquet(tmp_path / "other.parquet", index=False)
    assert adapt(result, tmp_path / "b.csv", "--data", str(tmp_path / "other.parquet")) == 2
    assert "name the data that the document is about with --data" in capsys.readouterr().err
    # Of groups that the losses shaped, only the examples that were tested count.
    aware = tmp_path / "aware"
    roles = {"id": "id", "label": "label", "prediction": "new", "baseline-prediction": "old"}
    command = ["discover", "--data", str(tmp_path / "reviews.parquet"), "--text", "text"]
    command += [f"--{role}={column}" for role, column in roles.items()]
    command += ["--components", "3", "--loss-weight", "1", "--quiet", "--output", str(aware)]
    assert run(command) == 0
    assert adapt(aware, tmp_path / "aware.csv", "--quiet") == 0
    split = pq.read_table(aware / "membership.parquet").to_pandas().set_index("id")["split"]
    shown = [test.description.split("; id ")[1] for test in read_tests(tmp_path / "aware.csv")]
    made = [text.split(":")[0] for text in shown]
    assert made
    assert set(split[list(map(int, made))]) == {"evaluation"}
    data = ("--data", str(tmp_path / "reviews.parquet"))
    assert run(["report", str(aware), "--examples", "2", *data, "--quiet"]) == 0
    assert adapt(shift_result(tmp_path), tmp_path / "b.csv") == 2
    assert "is the document of a shift" in capsys.readouterr().err
