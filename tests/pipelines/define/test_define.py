"""``slicebeam define`` and ``slicebeam edit``: what counts is a stand-in; edits at once, and a paid filter."""

import json
import multiprocessing
import random
import shutil
import threading
import time
from contextlib import suppress

import httpx2 as httpx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.changelist import revisions as rev
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.commands.command import Invocation
from slicebeam.pipelines.commands.edit import edit as edit_slice
from slicebeam.pipelines.commands.flags import program
from slicebeam.pipelines.config.document import AnnotateConfig
from slicebeam.pipelines.define.llm_filter import llm_filter
from slicebeam.pipelines.define.predicates import column_types
from slicebeam.pipelines.define.text_filter import default_threshold
from slicebeam.pipelines.prepare.id_lists import id_list
from slicebeam.transforms.encode import definitions as dc
from slicebeam.transforms.encode.definitions import slice_id_of
from tests import edited_documents as edited
from tests.pipelines.page.served_outputs import serving
from tests.refusals import refuses

FRAME = edited.examples()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return edited.searched(tmp_path_factory.mktemp("searched"))


@pytest.fixture
def measured(monkeypatch):
    return edited.stand_in(monkeypatch, FRAME)


@pytest.fixture
def out(original, measured, tmp_path):
    shutil.copy(original, tmp_path / "changelist.json")
    edited.discovered(tmp_path / "changelist.json")
    return tmp_path


def define(out, *arguments, name="new"):
    words = ["define", f"--changelist={out}", f"--name={name}", *arguments]
    program().main(words, standalone_mode=False, obj=Invocation())


def edit(op, out, *arguments):
    words = ["edit", op, f"--changelist={out}", *arguments]
    program().main(words, standalone_mode=False, obj=Invocation())


def last(out):
    return read_search(rev.base_of(str(out)), "--changelist")


def refused(message, out, *arguments, name="new"):
    with pytest.raises(InputError, match=message) as found:
        define(out, *arguments, name=name)
    assert len(str(found.value).splitlines()) <= 2
    assert rev.revisions(out) == []


def test_where(out, measured, capsys):
    define(out, "--where", "age in [20, 40) & sex = Female", name="women of 20 to 39")
    document = last(out)
    new = document.slices[-1]
    held = FRAME["age"].between(20, 39) & (FRAME["sex"] == "Female")
    assert (new.name, new.size.n) == ("women of 20 to 39", held.sum())
    right = (FRAME["label"] == FRAME["prediction"])[held].mean()
    assert new.changes[0].after.value == pytest.approx(right)
    assert new.origin.method == "manual"
    assert new.slice_id == slice_id_of(new.definition)
    assert (document.revision, len(document.slices)) == (1, 4)
    assert [(one.op, one.target) for one in document.edits] == [("add_slice", new.slice_id)]
    ((uri, counting),) = measured.calls
    assert (uri, counting.data) == (str(out / "changelist.json"), ())
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == str(out / "changelist.r1.json")
    assert f"{new.slice_id}  women of 20 to 39: {held.sum()} examples" in printed.out
    assert printed.err == ""


def test_columns_that_are_no_features_and_such_that_discovery_added(out):
    path = out / "changelist.json"
    told = json.loads(path.read_text())
    told["dataset"]["domains"].append({**told["dataset"]["domains"][0], "name": "cluster@25"})
    path.write_text(json.dumps(told))
    document = read_search(str(path), "--changelist")
    types = column_types(str(path), document, document.dataset.uri)
    # As they are read: pandas writes large strings.
    assert types["prediction"] == pa.int64()
    assert set(types) == {*FRAME.columns, "cluster@25"}
    assert types["cluster@25"] == pa.int64()
    define(out, "--where", "prediction = 1")
    assert last(out).slices[-1].size.n == (FRAME["prediction"] == 1).sum()


def test_columns_of_csv(tmp_path):
    path = edited.searched(tmp_path, suffix="csv")
    document = read_search(str(path), "--changelist")
    types = column_types(str(path), document, document.dataset.uri)
    kinds = dict.fromkeys(("id", "topic", "sex", "text"), "string")
    kinds |= dict.fromkeys(("age", "label", "prediction"), "int64")
    assert {name: str(kind) for name, kind in types.items()} == kinds


def test_wrong_predicates(out):
    refused("--where: unknown column 'agee'; did you mean 'age'", out, "--where", "agee < 3")
    refused("--where: .*op '<' is for numbers", out, "--where", "sex < 3")
    refused("--where: .*is not a condition", out, "--where", "")
    same = "slice d70e8b377ddea9df, 'topic = food', has the same definition"
    refused(same, out, "--where", "topic = food")
    refused("'new' would have no examples", out, "--where", "age < 3")
    refused("no such file", out, "--where", "age < 30", f"--data={out}/none.parquet")
    refused("--name 'age < 24': slice .* has this name", out, "--where", "age < 3", name="age < 24")


def test_text_filter(out, capsys):
    define(out, "--text-filter", "food", "--threshold", "0.7")
    new, vectors = last(out).slices[-1], edited.embeddings(FRAME).astype(float)
    cosines = vectors @ edited.embedded("food") / np.linalg.norm(vectors, axis=1)
    assert new.size.n == (cosines >= 0.7).sum()
    assert new.definition == dc.TextQueryDefinition(query="food", threshold=0.7, encoder="e1")
    assert new.origin.method == "text_filter"
    assert f"note: {new.size.n} of {edited.ROWS} examples" in capsys.readouterr().err


def test_default_threshold():
    values = np.random.default_rng(3).normal(0.1, 0.05, 100_000).astype(np.float32)
    assert default_threshold(values) == pytest.approx(0.2, abs=0.002)
    assert (values >= default_threshold(values)).mean() == pytest.approx(0.0228, abs=0.002)
    # Never more than a fifth, which is reached where all others are alike.
    for share in (0.05, 0.19, 0.2, 0.21, 0.5):
        two = (np.arange(1000) < 1000 * share).astype(np.float32)
        matched = (two >= default_threshold(two) - 1e-9).mean()
        assert matched == pytest.approx(share if share <= 0.2 else 0.0)


def test_wrong_text_filters(out):
    refused("--text-filter is empty", out, "--text-filter", " ")
    refused("every example is as similar", out, "--text-filter", "xyz")
    refused("--threshold 1.5: a cosine is", out, "--text-filter", "food", "--threshold=1.5")
    lower = "give a lower --threshold: the highest similarity is 0.99"
    refused(lower, out, "--text-filter", "food", "--threshold=1")
    told = json.loads((out / "changelist.json").read_text())
    del told["discovery"]
    (out / "changelist.json").write_text(json.dumps(told))
    refused("--text-filter needs embeddings", out, "--text-filter", "food")
    refused("--classifier needs embeddings", out, "--classifier", "none.csv")


@pytest.mark.parametrize(("file", "content"), [
    ("ids.txt", "n3\nn5\n\n  n500 \n"),
    ("ids.csv", "id,why\nn3,a\nn5,b\nn500,\n"),
    ("ids.csv", "\ufeffwhich\r\nn3\r\nn5\r\nn500\r\n"),
    ("ids.jsonl", '"n3"\n{"id": "n5", "x": 1}\n\n"n500"\n'),
])  # fmt: skip
def test_ids(out, file, content):
    (out / file).write_text(content)
    define(out, "--ids", str(out / file))
    new = last(out).slices[-1]
    assert new.definition == dc.MembershipDefinition(ids=("n3", "n5", "n500"))
    assert (new.size.n, new.origin.method) == (3, "manual")


def test_repeated_ids_count_once(out, capsys):
    (out / "ids").write_text("n5\nn3\nn5\nn5\n")
    define(out, "--ids", str(out / "ids"))
    assert last(out).slices[-1].definition == dc.MembershipDefinition(ids=("n5", "n3"))
    assert "note: 1 id is listed more than once" in capsys.readouterr().err


@pytest.mark.parametrize(("file", "content", "reason"), [
    ("ids", "n1\nm1\nm2\nm1\n", r"'m1', 'm2': not in the data"),
    ("ids", "\n".join(f"m{at}" for at in range(9)), "'m4' and 4 more: not in the data"),
    ("ids", "", "contains no ids"),
    ("ids", b"\xff\xfe1", "not UTF-8 text"),
    ("ids.csv", "a,b\nn1,2\n", "there is no column 'id'; columns: a, b"),
    ("ids.csv", "id,b\nn1\n", "row 1: 1 cells under a header of 2"),
    ("ids.csv", 'id\n"n1\n', "not readable as CSV"),
    ("ids.csv", "", "is empty"),
    ("ids.jsonl", "n1\n", "line 1: not JSON"),
    ("ids.jsonl", '{"key": "n1"}\n', "line 1: there is no 'id'"),
    ("ids.jsonl", "17\n", "id 1: 17 is not an id; ids of the data are texts"),
    ("ids.jsonl", "null\n", "id 1: None is not an id"),
])  # fmt: skip
def test_wrong_ids(out, file, content, reason):
    (out / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(reason, out, "--ids", str(out / file))


def test_files_of_ids_that_are_not_there_and_no_column_of_ids(out):
    refused("--ids .*none: no such file", out, "--ids", str(out / "none"))
    refused("--ids .* is a folder", out, "--ids", str(out))
    refused("--classifier .*none: no such file", out, "--classifier", str(out / "none"))
    told = json.loads((out / "changelist.json").read_text())
    del told["dataset"]["id_field"]
    (out / "changelist.json").write_text(json.dumps(told))
    refused("--ids needs ids, .* run the search again with --example-id", out, "--ids", "ids")


def test_ids_that_are_numbers(tmp_path):
    known, path = pa.array([3, -5, 2**62]), tmp_path / "ids"
    path.write_text(f"-5\n{2**62}\n")
    assert id_list(str(path), known, "id")[0].ids == (-5, 2**62)
    said = "id 2: .* is not an id; ids of the data are whole"
    for wrong in ("1_0", "5.0", "x", str(2**63), "٥"):
        path.write_text(f"3\n{wrong}\n")
        refuses(InputError, said, id_list, str(path), known, "id")
    (tmp_path / "ids.jsonl").write_text("3\ntrue\n")
    refuses(InputError, "id 2: True is not an id", id_list, f"{path}.jsonl", known, "id")


def test_classifier(out, capsys):
    some = FRAME.sample(60, random_state=1)
    some = some[~some["id"].isin(["n0", "n1"])]
    is_food = np.where(some["topic"] == "food", "Yes", "no")
    told = pd.DataFrame({"id": some["id"], "label": is_food, "note": "x"})
    others = pd.DataFrame({"id": ["n0", "n1"], "label": ["unsure", ""], "note": ""})
    pd.concat([told, others]).to_csv(out / "labels.csv", index=False)
    define(out, "--classifier", str(out / "labels.csv"))
    new = last(out).slices[-1]
    definition = new.definition
    assert isinstance(definition, dc.ClassifierDefinition)
    vectors = edited.embeddings(FRAME)
    oracle = LogisticRegression(class_weight="balanced", C=1.0, tol=1e-8)
    oracle.fit(vectors[some.index].astype(float), some["topic"] == "food")
    np.testing.assert_allclose(definition.coefficients, oracle.coef_[0], atol=1e-3)
    assert definition.intercept == pytest.approx(oracle.intercept_[0], abs=1e-3)
    assert (definition.encoder, definition.threshold) == ("e1", 0.5)
    assert new.size.n == oracle.predict(vectors.astype(float)).sum()
    assert abs(new.size.n - (FRAME["topic"] == "food").sum()) < 10
    assert new.origin.method == "classifier"
    number = (some["topic"] == "food").sum()
    assert f"{number} examples with label yes" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "reason"), [
    ("id,label\nn1,yes\n", "no example has the label no"),
    ("id,label\nn1,no\n", "no example has the label yes"),
    ("id,label\nn1,perhaps so\n", "id 'n1': label 'perhaps so' is not valid; write yes, no"),
    ("id,label\nn1,yes\nn1,no\n", "id 'n1' has both labels"),
    ("id,label\nn1,yes\nm1,no\n", "'m1': not in the data"),
    ("id,lable\nn1,yes\n", "there is no column 'label'"),
    ("", "is empty"),
])  # fmt: skip
def test_wrong_labels(out, content, reason):
    (out / "labels.csv").write_text(content)
    refused(reason, out, "--classifier", str(out / "labels.csv"))


def test_one_way_to_define(out):
    refused("one of --text-filter, --where, --ids, .*; none of them is given", out)
    refused("not --where and --ids", out, "--where=age < 3", "--ids=x")
    refused("--threshold needs --text-filter", out, "--where=age < 3", "--threshold=0")
    refused("--budget needs --llm-filter", out, "--where=age < 3", "--budget=3")
    refused("--llm-filter needs --llm", out, "--llm-filter={text}?", "--budget=3")
    refused("--llm-filter needs --budget", out, "--llm-filter={text}?", "--llm=llm.yaml")
    nothing = ("--llm-filter={text}?", "--llm=llm.yaml", "--budget=0")
    refused("--budget 0: give at least 1", out, *nothing)


def test_json_and_quiet(out, capsys):
    define(out, "--where=age < 30", "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["revision"], told["op"]) == (1, "add_slice")
    assert told["changelist"] == str(out / "changelist.r1.json")
    (one,) = told["slices"]
    assert (one["slice"], one["n"]) == ("new", (FRAME["age"] < 30).sum())
    edit("rename", out, "--slice=new", "--name=other", "--quiet")
    assert capsys.readouterr() == ("", "")


def test_earlier_revision_is_noted(out, capsys):
    define(out, "--where=age < 30")
    capsys.readouterr()
    define(out / "changelist.json", "--where=age < 31")
    later = "changelist.r1.json is a later revision; this command started from revision 0"
    assert (capsys.readouterr().err, last(out).revision) == (f"note: {later}\n", 2)


def test_merge(out):
    edit("merge", out, "--slice=age < 24", "--slice=d6100", "--name=younger")
    document = last(out)
    assert [one.name for one in document.slices] == ["topic = food", "younger"]
    young = document.slices[1]
    assert young.size.n == (FRAME["age"] < 31).sum()
    both = (edited.predicate("age", "<", 24), edited.predicate("age", "between", [24, 31]))
    assert young.definition == dc.JoinedDefinition(kind="any_of", of=both)
    # A name that only the merged ones have may be the new one's.
    edit("undo", out)
    edit("merge", out, "--slice=d6100", "--slice=topic = food", "--name=topic = food")
    assert [one.name for one in last(out).slices] == ["topic = food", "age < 24"]
    for wrong in (["--slice=age < 24"], ["--slice=age < 24"] * 2):
        refuses(InputError, "two or more different ones", edit, "merge", out, *wrong, "--name=x")


def test_split(out):
    edit("split", out, "--slice=topic = food", "--where=sex = Female")
    document = last(out)
    parts = ["topic = food & sex = Female", "topic = food & not (sex = Female)"]
    assert [one.name for one in document.slices] == [*parts, "age < 24", "age in [24, 31)"]
    food, women = FRAME["topic"] == "food", FRAME["sex"] == "Female"
    first, second = document.slices[:2]
    assert (first.size.n, second.size.n) == ((food & women).sum(), (food & ~women).sum())
    whole, part = edited.predicate("topic", "==", "food"), edited.predicate("sex", "==", "Female")
    assert first.definition == dc.JoinedDefinition(kind="all_of", of=(whole, part))
    assert second.definition == dc.JoinedDefinition(
        kind="all_of", of=(whole, dc.NotDefinition(of=part))
    )
    edit("split", out, "--slice=age < 24", "--where=age < 20", "--name=teens", "--name=others")
    assert [one.name for one in last(out).slices[2:4]] == ["teens", "others"]
    teens, a = ("split", out, "--slice=teens"), "--name=a"
    refuses(InputError, "would have no examples", edit, *teens, "--where=age < 40")
    refuses(InputError, "occurs 1 times", edit, *teens, "--where=age < 18", a)
    refuses(InputError, "'a' occurs twice", edit, *teens, "--where=age < 18", a, a)


def test_edit_alone_helps(capsys):
    assert run(["edit"]) == 0
    said = capsys.readouterr().out
    assert "Change the slices of a ChangeList" in said
    assert "undo" in said


def test_edits_and_their_log(out, capsys):
    edit("rename", out, "--slice=age < 24", "--name=Young")
    edit("describe", out, "--slice=Young", "--text=below 24")
    edit("annotate", out, "--slice=Young", "--note=ask Ada")
    edit("remove", out, "--slice=topic = food")
    edit("undo", out)
    edit("merge", out, "--slice=Young", "--slice=age in [24, 31)", "--name=both")
    assert last(out).revision == 6
    capsys.readouterr()
    edit("log", out)
    lines = capsys.readouterr().out.splitlines()
    expected = {"rename": "'Young'", "describe": "'below 24'", "annotate": "'ask Ada'"}
    expected |= {"remove_slice": "(undone)", "undo": "undoes edit 4", "merge": "'both'"}
    assert [line.split(maxsplit=4)[3] for line in lines] == list(expected)
    for line, word in zip(lines, expected.values(), strict=True):
        assert word in line
    edit("log", out, "--json")
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["op"] for one in told][-1] == "merge"
    for _ in range(4):
        edit("undo", out)
    assert last(out).slices == read_search(str(out / "changelist.json"), "--changelist").slices
    refuses(InputError, "nothing to undo", edit, "undo", out)
    capsys.readouterr()
    edit("log", out / "changelist.json")
    assert capsys.readouterr().out == "nothing was changed\n"


PROMPT = 'Is it food? Yes or no.\n{"weather": no}\n{text} is'
TEXTS = ["bread", "rain", "bread", None, "soup", "rain {text}", "???", "soup"]
IDS = pa.array([f"n{at}" for at in range(len(TEXTS))])
ANSWERS = {"bread": "Yes.", "rain": "no", "soup": " YES ", "rain {text}": "**No**"}
ANSWERS |= {"???": "perhaps"}
TEMPLATE = {"id": "{prompt}", "text": "{prompt}"}


def filled(text):
    return PROMPT.replace("{text}", text)


def plan(paid_server, folder, **changes):
    answers = {filled(text): answer for text, answer in ANSWERS.items()}
    return paid_server.anew(folder, answers=answers, default="no", **changes)


@pytest.fixture
def api(quick_calls, paid_server, tmp_path):
    return plan(paid_server, tmp_path / "api")


def ask(folder, api, *, budget=5, **changes):
    told = {"ids": IDS, "texts": pa.array(TEXTS), "prompt": PROMPT, **changes}
    file = api.file(json=TEMPLATE) if "llm" not in told else told["llm"]
    said = []
    given = (told["prompt"], file, told["ids"], told["texts"], folder)
    return *llm_filter(*given, budget, said.append), said


def test_members_are_those_of_which_it_says_yes(api, tmp_path):
    definition, notes, said = ask(tmp_path, api)
    assert definition.ids == ("n0", "n2", "n4", "n7")
    assert (definition.prompt, definition.model) == (PROMPT, api.file(json=TEMPLATE))
    # Each different text is asked about once.
    assert sorted(api.charged) == sorted(filled(text) for text in ANSWERS)
    assert said == ["asking about 5 of 5 different texts"]
    assert notes == (
        "the model answers yes for 4 of 8 examples",
        "of 1 it answers neither yes nor no; they are not in the slice",
        "1 examples without text are not in the slice",
    )
    (ledger,) = tmp_path.glob("llm-filter-*")
    assert ledger.is_dir()


def test_nothing_is_paid_twice(api, tmp_path):
    first = ask(tmp_path, api)[0]
    definition, _, said = ask(tmp_path, api)
    assert (definition, said) == (first, ["asking about 0 of 5 different texts"])
    assert len(api.charged) == 5
    more, ids = pa.array(["soup", "cake", "rain"]), pa.array([3, 1, 2])
    definition, _, said = ask(tmp_path, api, texts=more, ids=ids, budget=6)
    assert (said, definition.ids) == (["asking about 1 of 3 different texts"], (3,))
    assert len(api.charged) == 6
    other = {"prompt": "{text}?", "texts": pa.array(["soup"]), "ids": pa.array([1])}
    refuses(InputError, "the model answers yes for no example", ask, tmp_path, api, **other)
    assert (len(list(tmp_path.glob("llm-filter-*"))), len(api.charged)) == (2, 7)


def test_budget_is_held_against_all_calls_before_any_is_made(api, tmp_path):
    said = "5 more calls are needed, 0 are paid; give --budget 5"
    refuses(InputError, said, ask, tmp_path, api, budget=4)
    assert api.requests == []
    ask(tmp_path, api, budget=5)
    with pytest.raises(InputError, match="1 more calls are needed, 5 are paid; give --budget 6"):
        ask(tmp_path, api, texts=pa.array(["cake"]), ids=pa.array([1]), budget=5)
    refuses(InputError, "--budget 0: give at least 1", ask, tmp_path, api, budget=0)


def test_lost_calls_that_count(api, paid_server, tmp_path):
    api = plan(paid_server, tmp_path / "api", always={filled("soup"): "drop-after"})
    file = api.file(json=TEMPLATE, lost_calls="count")
    definition, notes, _ = ask(tmp_path, api, llm=file)
    assert definition.ids == ("n0", "n2")
    assert notes[-1].startswith("1 calls may have been charged but got no answer")
    # Nor is it asked again, or taken out of the budget twice.
    definition, _, said = ask(tmp_path, api, llm=file)
    assert definition.ids == ("n0", "n2")
    assert (said, len(api.charged)) == (["asking about 0 of 5 different texts"], 5)


@pytest.mark.parametrize(("template", "reason"), [
    ({"id": "1", "text": "{prompt} {topic}"}, "there is no column 'topic' here; write {prompt}"),
    ({"id": "1", "text": "x"}, "it has no place for the prompt; write {prompt}"),
])  # fmt: skip
def test_wrong_files(api, tmp_path, template, reason):
    refuses(InputError, reason, ask, tmp_path, api, llm=api.file(json=template))
    assert api.requests == []


def test_wrong_prompt_and_missing_file(api, tmp_path):
    refuses(InputError, r"the prompt has no {text}", ask, tmp_path, api, prompt="Is it food?")
    with pytest.raises(InputError, match=r"none\.yaml: no such file"):
        ask(tmp_path, api, llm=str(tmp_path / "none.yaml"))


WRITERS, EDITS = 4, 40


def _write(folder, slice_id, words, acknowledged):
    """Edit from the command line's function until killed or done; say which were acknowledged."""
    with acknowledged.open("a", buffering=1) as stream:
        for number in range(EDITS):
            note = f"{words}-{number}"
            config = AnnotateConfig(changelist=str(folder), slice=slice_id, note=note)
            edit_slice(config, lambda _: None)
            stream.write(f"{note}\n")


def _edit_in_page(client, slice_id, note):
    """Edit as the page does: it looks again where another edit came between."""
    while True:
        revision = client.get("/api/edits").json()["revision"]
        sent = {"slice_id": slice_id, "note": note, "revision": revision}
        answer = client.post("/api/edits", json={"op": "note", **sent})
        if answer.status_code == 200:
            return
        assert answer.status_code == 409, answer.text


@pytest.mark.slow
def test_no_acknowledged_edit_is_lost(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "changelist.json").write_bytes(edited.searched(tmp_path).read_bytes())
    slice_id = json.loads((folder / "changelist.json").read_text())["slices"][0]["slice_id"]
    draw, context = random.Random(50), multiprocessing.get_context("fork")
    files = [tmp_path / f"acknowledged-{number}" for number in range(2 * WRITERS)]

    def started(number):
        args = (folder, slice_id, f"w{number}", files[number])
        process = context.Process(target=_write, args=args)
        process.start()
        return process

    in_page = []

    def edit_in_page(served, names):
        with suppress(httpx.HTTPError), served.client() as client:
            for name in names:
                _edit_in_page(client, slice_id, name)
                in_page.append(name)

    writers = [started(number) for number in range(WRITERS)]
    for turn in range(4):
        with serving(folder) as served:
            names = [f"page-{turn}-{number}" for number in range(EDITS // 4)]
            page = threading.Thread(target=edit_in_page, args=(served, names))
            page.start()
            time.sleep(draw.uniform(0.2, 1.5))
            killed = draw.randrange(WRITERS)
            if writers[killed].is_alive():
                writers[killed].kill()
                writers.append(started(len(writers)))
            # At any point of an edit, but in the last turn, which ends.
            if turn < 3:
                served.process.kill()
            page.join(120)
    for writer in writers:
        writer.join(120)
    told = [line for path in files if path.exists() for line in path.read_text().split()]
    assert len(told) >= (WRITERS - 1) * EDITS
    notes = read_search(rev.base_of(str(folder)), "--changelist").slices[0].notes
    assert set(notes) >= {*told, *in_page}
    # The killed may have written their last edit before they could say so; no edit is there twice.
    assert len(notes) == len(set(notes)) <= len(told) + len(in_page) + len(writers) + 3
