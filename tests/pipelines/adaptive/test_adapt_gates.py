"""The gates of ``slicebeam adapt run``, and what other trees than AdaTest's newer ones make of it."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines.cli import run
from tests.oracles.adaptive_oracle import topics_of
from tests.pipelines.adaptive.test_adapt_run import HOTELS

# The words of an input say what the new model makes of it, and the old one.
MODELS = """
import numpy as np

def _output(word):
    if word == "raise":
        raise ValueError("no such word")
    return {"p": "pos", "f": "neg"}.get(word)

def new(texts):
    return [_output(text.split()[0]) for text in texts]

def old(texts):
    return [_output(text.split()[1]) for text in texts]

def share(text):
    return (sum(map(ord, text)) % 64) / 64

def shares(texts):
    return np.array([[1 - share(text), share(text)] for text in texts])

shares.output_names = ["neg", "pos"]
"""
NEW, OLD = "gate_models:new", "gate_models:old"
COLUMNS = ["topic", "input", "output", "label", "expectation", "value", "second_input"]


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    (tmp_path / "gate_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("gate_models", None)


def rows_of(topic, words, **columns):
    """Return tests of a topic: ``8 pp, 2 fp`` are 10, of which the new model fails two."""
    given = {"topic": topic, "output": "pos", "label": "pass", **columns}
    found = []
    for part in words.split(", "):
        times, both = part.split()
        letters = " ".join({"p": "p", "f": "f", "n": "none", "r": "raise"}[one] for one in both)
        found += [{**given, "input": f"{letters} {one}"} for one in range(int(times))]
    return found


def adapt(folder, rows, *options):
    frame = pd.DataFrame(rows, [f"id-{row}" for row in range(len(rows))], COLUMNS, dtype=object)
    frame.fillna("").to_csv(folder / "tree.csv")
    tree, out = str(folder / "tree.csv"), str(folder / "out")
    return run(["adapt", "run", tree, "--model", NEW, "--output", out, *options])


def topics_in(folder):
    document = json.loads((folder / "out" / "changelist.json").read_text())
    return {one["topic"]: one for one in document["adaptive"]["topics"]}


FINE = rows_of("/Fine", "30 pp")
GATES = {
    "a fifth exactly": (rows_of("/A", "4 pp, 1 fp"), 1, "1 topic (/A) fails"),
    "just below a fifth": (rows_of("/A", "401 pp, 100 fp"), 0, ""),
    "a fifth of those below": (rows_of("/A/B", "1 fp, 1 pp") + rows_of("/A", "3 pp") + rows_of("/A/C%20D", "1 pp"), 1, "1 topic (/A/B) fails"),
    "all fail": (rows_of("/A", "9 ff"), 1, "1 topic (/A) fails"),
    "topics without tests": ([{"topic": "/Empty", "label": "topic_marker"}, *rows_of("/A", "9 pp")], 0, ""),
    "labels that expect nothing": ([test for label in ("off_topic", "Unknown", "") for test in rows_of("/A", "9 ff", label=label)], 0, ""),
    "off topic, with an expectation": (rows_of("/A", "9 ff", label="off_topic", expectation="should output", value="pos"), 0, ""),
    "excused": (rows_of("/A", "9 ff", expectation="should have the same output as (unless=neg)", value="x"), 0, ""),
    "a misspelt expectation": (rows_of("/A", "9 pp", expectation="should outptu", value="pos"), 2, "1 topic (/A) can't be judged"),
    "few without output": (rows_of("/A", "9 pp, 1 np"), 0, ""),
    "a fifth without output": (rows_of("/A", "8 pp, 2 np"), 2, "1 topic (/A) can't be judged"),
    "together with failures a fifth": (rows_of("/A", "8 pp, 1 fp, 1 np"), 2, "1 topic (/A) can't be judged"),
    "no output at all": (rows_of("/A", "3 np"), 2, "1 topic (/A) can't be judged"),
    "some fail, others have no output": (rows_of("/A", "5 np") + rows_of("/B", "5 fp"), 1, "1 topic (/B) fails"),
    "another input without output": (
        rows_of("/A", "5 pp", expectation="should have the same output as", value="none p"),
        2,
        "1 topic (/A) can't be judged",
    ),
    "a model that raises": (rows_of("/A", "50 pp, 1 rp"), 2, "failed on 51 texts: ValueError: no such word"),
}  # fmt: skip


@pytest.mark.parametrize("name", GATES)
@pytest.mark.slow
def test_a_topic_that_fails_or_cannot_be_judged(tmp_path, capsys, name):
    rows, code, said = GATES[name]
    assert adapt(tmp_path, [*FINE, *rows], "--fail-on=failing") == code
    printed = capsys.readouterr().err
    assert said in printed
    if code == 2 and "judged" in said:
        assert (tmp_path / "out" / "changelist.json").exists()


@pytest.mark.parametrize(("words", "codes", "says"), [
    ("30 pp", (0, 0), ""),
    ("20 pp, 10 fp", (1, 1), "significantly worse on 1 slice"),
    # Broken by the rule, by chance.
    ("12 pp, 3 fp", (1, 0), ""),
    ("10 pp, 10 fp, 10 pf", (1, 0), ""),
    # Below a fifth, and significantly worse.
    ("90 pp, 12 fp", (0, 1), "significantly worse on 1 slice"),
    ("20 pp, 10 pf", (0, 0), ""),
    ("28 pp, 2 pn", (0, 0), ""),
    ("20 pp, 8 pn, 2 np", (2, 2), "1 topic (/A) can't be judged"),
])  # fmt: skip
@pytest.mark.slow
def test_a_topic_that_is_worse(tmp_path, capsys, words, codes, says):
    rows = rows_of("/A", words) + FINE
    old = f"--baseline-model={OLD}"
    if codes[0] != codes[1]:
        assert adapt(tmp_path, rows, old, "--fail-on=failing") == codes[0]
        capsys.readouterr()
    assert adapt(tmp_path, rows, old, "--fail-on=worse") == codes[1]
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_without_an_old_model_worse_is_worse_than_all(tmp_path):
    rows = rows_of("/A", "20 fp, 10 pp") + rows_of("/B", "2 fp, 98 pp")
    assert adapt(tmp_path, rows, "--fail-on=worse") == 1
    rows = rows_of("/A", "3 fp, 30 pp") + rows_of("/B", "10 fp, 98 pp")
    assert adapt(tmp_path, rows, "--fail-on=worse") == 0


@pytest.mark.parametrize("seed", range(3))
def test_gates_say_what_scipy_says(tmp_path, seed):
    random = np.random.default_rng(seed)
    rows = []
    for topic in ("/A", "/A/B", "/A/B/C", "/D", "/D/E%2FF", "/G"):
        number = random.integers(1, 60)
        kinds = random.multinomial(number, random.dirichlet((8, 1 + 2 * (seed % 2), 1, 1)))
        words = [f"{n} {both}" for n, both in zip(kinds, ("pp", "fp", "pf", "ff"), strict=True)]
        rows += rows_of(topic, ", ".join(words))
    frame = pd.DataFrame(rows)
    frame["new"], frame["old"] = frame.input.str[0] == "f", frame.input.str[2] == "f"
    by_hand = topics_of(frame)
    gate = ("failing", "worse")[seed % 2]
    fails = {"failing": by_hand.rule.isin(["failing", "broken"])}
    expected = fails.get(gate, by_hand.significant == "broken").any()
    code = adapt(tmp_path, rows, f"--baseline-model={OLD}", f"--fail-on={gate}")
    found = topics_in(tmp_path)
    for topic, row in by_hand.iterrows():
        one = found[str(topic)]
        assert one["rule"] == row["rule"], topic
        assert one.get("significant", "") == row["significant"], topic
    assert code == int(expected)


def test_the_older_form_is_scored_as_the_newer_one(tmp_path):
    newer = pd.read_csv(HOTELS, index_col=0, dtype=str, keep_default_na=False)
    newer = newer.assign(expectation="", value="")
    types = {"pass": "{} should output {}", "fail": "{} should not output {}"}
    kinds = newer.label.map(types).fillna("topic_marker")
    older = pd.DataFrame({"topic": newer.topic, "type": kinds, "value1": newer.input})
    older = older.assign(value2=newer.output, value3="", author="x")
    same, lower = "should have the same output as", "should not score lower than"
    compared = {
        "{} should have the same output as {}": ("so good", "so bad", "", same),
        "{} should be the same as for {}": ("a", "b", "", same),
        "{} should not be less than for {}": ("good food", "bad food", "", lower),
        "{} should not be more {} than {}": ("awful", "pos", "awfully bad", "should not score higher than (class=pos)"),
    }  # fmt: skip
    for number, (kind, (*values, phrase)) in enumerate(compared.items()):
        older.loc[f"more-{number}"] = ["/Compared", kind, *values, ""]
        test = {"topic": "/Compared", "input": values[0], "expectation": phrase}
        newer.loc[f"more-{number}"] = {**test, "value": values[2] or values[1]}
    found = []
    for name, frame in (("older", older), ("newer", newer.fillna(""))):
        frame.to_csv(tmp_path / f"{name}.csv")
        command = ["adapt", "run", str(tmp_path / f"{name}.csv"), "--model=gate_models:shares"]
        assert run([*command, f"--output={tmp_path / 'out'}", "--quiet"]) == 0
        topics = topics_in(tmp_path)
        found.append({topic: (one["tests"], one["failures"]) for topic, one in topics.items()})
    assert found[0] == found[1]
    assert found[0]["/Compared"][0] == 4
