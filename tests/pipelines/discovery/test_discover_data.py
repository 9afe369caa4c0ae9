"""Discovery of planted, odd and wrong data, and phrases that a language model names."""

import json
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.commands import api
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.discovery.llm_phrases import phrases_of_model
from slicebeam.pipelines.show.result_notes import discovery_lines
from slicebeam.pipelines.show.worst_slices import worst_slices
from tests.conftest import google_first, slow
from tests.discover_runs import discover, embeddings, examples, written
from tests.discovered import COLUMNS, planted_file, planted_table
from tests.refusals import refusal, refuses, refusing
from tests.running import names_of, own_file, refused
from tests.transforms.discovery import test_endpoint_encoder as test_endpoint

ROWS = 120
TABLE = examples(0, n=ROWS, dimensions=4, groups=3, apart=6.0)
WORDS = [("film" if row % 2 else "news", "good" if row % 3 else "bad") for row in range(ROWS)]
TEXTS = [f"{kind} number {how}" for kind, how in WORDS]
WITH_TEXT = TABLE.append_column("text", pa.array(TEXTS)).append_column("row", pa.array(range(ROWS)))
LOSSES = {"loss": "loss_new", "baseline_loss": "loss_old"}


@pytest.fixture
def refuse(tmp_path, capsys):
    return refusing("discover", tmp_path, capsys, WITH_TEXT, embedding="z", components=3, **LOSSES)


TEXT = {"embedding": None, "text": "text"}


NO_PHRASES = "no phrases; write one per line"


@pytest.mark.parametrize(("content", "message"), [
    (None, "no such file"),
    (b"", NO_PHRASES),
    (b"\n  \n", NO_PHRASES),
    (bytes(range(256)), "cannot be read; write one phrase per line, as UTF-8"),
])  # fmt: skip
def test_phrases(content, message, tmp_path, refuse):
    """What is wrong with them is said before a text is embedded, which may be paid for."""
    if content is not None:
        (tmp_path / "phrases.txt").write_bytes(content)
    told = refuse(**TEXT, phrases=tmp_path / "phrases.txt", encoder="openai:http://127.0.0.1:9/v1")
    assert told == f"--phrases DIR/phrases.txt: {message}"


NO_ENCODER = "words need the encoder that made column 'z', which no option names; run the discovery again with --encoder"


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    loss = np.where(embeddings(TABLE)[:, 0] > 3, 0.9, 0.2) + 0.001 * np.arange(ROWS)
    table = TABLE.append_column("row", [range(ROWS)])
    at = table.schema.get_field_index("loss_new")
    pq.write_table(table.set_column(at, "loss_new", [loss]), folder / "e.parquet")
    options = {"embedding": "z", "components": 3, "example_id": "row", **LOSSES}
    api.discover(str(folder / "e.parquet"), output=folder / "out", **options)
    return folder


@pytest.fixture
def found(kept, tmp_path):
    shutil.copytree(kept / "out", tmp_path / "out")
    shutil.copy(kept / "e.parquet", tmp_path / "e.parquet")
    return tmp_path


def files(folder):
    return sorted(str(path) for path in folder.rglob("*") if path.is_file())


def names(found, document="changelist.json"):
    return [one["name"] for one in json.loads((found / "out" / document).read_text())["slices"]]


@pytest.fixture
def fails(found, capsys):
    def run_it(command, *flags, code=2):
        before, uri = files(found / "out"), found / "out" / "changelist.json"
        arguments = [*command.split(), "--changelist", str(uri), *map(str, flags)]
        said = refused(arguments, capsys, folder=found, code=code)
        assert files(found / "out") == before
        return said

    return run_it


def another_mixture(path):
    with np.load(path) as loaded:
        arrays = dict(loaded)
    arrays["cluster@3/means"][0, 0] += 1e-9
    np.savez_compressed(path, **arrays)


@pytest.mark.parametrize(("change", "message"), [
    (lambda path: path.unlink(), "no such file; it belongs next to the ChangeList of a discovery"),
    (lambda path: (path.unlink(), path.mkdir()), "no such file; it belongs next to"),
    (lambda path: path.write_bytes(b"PK"), " is damaged: its content has changed; run the"),
    (lambda path: path.write_bytes(path.read_bytes()[:600]), " is damaged: its content"),
    (lambda path: np.savez(path, other=np.ones(3)), " is damaged: its content"),
    (lambda path: np.savez(path, other=np.array([{}])), " is damaged: its content"),
    (another_mixture, " belongs to another run than the ChangeList next to it; keep the two"),
])  # fmt: skip
def test_mixtures_that_are_not_those_of_the_document(change, message, found, fails):
    # Where the document's own is missing, the one of the well-known name would do.
    (found / "out" / "mixture.npz").unlink()
    change(own_file(found / "out", "mixture.npz"))
    said = fails("check", "--data", found / "e.parquet", "--output", found / "new")
    assert said.startswith("DIR/out/mixture.")
    assert message in said


NEW = {
    "other dimensions": (lambda table: table.set_column(1, "z", pa.array([[1.0, 2.0]] * ROWS)), "embeddings of the data have 2 dimensions, but those of the discovery had 4; use the same"),
    "no embedding": (lambda table: table.drop_columns(["z"]), "slices of DIR/out/changelist.json are defined by embeddings of a column: unknown column 'z'; columns:"),
    "no loss": (lambda table: table.drop_columns(["loss_new"]), "--loss: unknown column 'loss_new'"),
    "no id": (lambda table: table.drop_columns(["row"]), "--example-id: unknown column 'row'"),
    "no example": (lambda table: table.slice(0, 0), "--data DIR/new.parquet: there are no examples in it; name files with some"),
    "column of components": (lambda table: table.append_column("cluster@3", [["x"] * ROWS]), "the data has a column 'cluster@3', the name of the components; rename it"),
}  # fmt: skip


@pytest.mark.parametrize("what", NEW)
def test_new_data_that_do_not_fit(what, found, fails):
    change, message = NEW[what]
    pq.write_table(change(pq.read_table(found / "e.parquet")), found / "new.parquet")
    said = fails("check", "--data", found / "new.parquet", "--output", found / "new")
    assert said.startswith(message)


def test_documents_where_another_is_needed(found, fails, capsys):
    document, data = found / "out" / "changelist.json", found / "e.parquet"
    check = ["check", "--data", str(data), "--output", str(found / "checked")]
    assert run([*check, "--changelist", str(document), "--quiet"]) == 0
    again = ["--changelist", str(found / "checked" / "changelist.json")]
    said = refused([*check, *again], capsys, folder=found)
    why = "is not the document of a discovery, so the encoder is unknown"
    assert said == f"DIR/checked/changelist.json {why}; name the document of slicebeam discover"
    shift = f"shift --data {data} --label label --old-prediction old --replay-prediction new"
    said = fails(shift, "--budget", 50, "--output", found / "shift")
    assert said.startswith("--changelist DIR/out/changelist.json, slice 'cluster@3 = ")
    why = "': it is defined by embeddings, ids or other slices, which only slicebeam check"
    assert said.endswith(f"{why} --changelist supports")
    search = ["search", "--data", str(data), "--loss", "loss_new", "--baseline-loss", "loss_old"]
    search += ["--features", "source", "--alternative", "both", "--output", str(found / "search")]
    said = refused([*search, "--since", str(document)], capsys, folder=found)
    assert said == (
        "--since DIR/out/changelist.json is the document of a discovery, whose slices are not "
        "columns of the data; follow them with slicebeam check --changelist, or name the "
        "document of a search"
    )
    said = refused([*search, "--domains", str(document)], capsys, folder=found)
    begins = "no feature is left to slice by (cluster@3: in DIR/out/changelist.json but not"
    assert said.startswith(begins)


def test_edits_and_definitions(found, fails):
    name = names(found)[0]
    (found / "ids.csv").write_text("id\n1\n2\n")
    unknown = "--slice: unknown slice 'nope'; slices: cluster@3 = "
    for command, flags, begins in (
        ("edit rename", ("--slice", "nope", "--name", "x"), unknown),
        ("edit merge", ("--slice", "nope", "--slice", name, "--name", "x"), unknown),
        ("edit merge", ("--slice", name, "--name", "x"), "--slice names 1 of 1 slices"),
        ("edit split", ("--slice", name, "--where", "nope = 1"), "--where: unknown column 'nope'"),
        ("edit split", ("--slice", name, "--where", "cluster@9 = 1"), "--where: unknown column 'cluster@9'; did you mean 'cluster@3'?"),
        ("edit rename", ("--slice", name, "--name", "\x1b[31m"), "--name '\\x1b[31m' is no"),
        ("edit undo", (), "there is nothing to undo"),
    ):  # fmt: skip
        assert fails(command, *flags).startswith(begins)
    said = fails("edit split", "--slice", name, "--where", "source = fax")
    assert said.endswith("would have no examples; change its definition")
    for way in (
        ["define", "--name", "x", "--text-filter", "film"],
        ["attribute sample", "--slice", name, "--text", "x", "--budget", 20],
    ):
        assert fails(*way) == NO_ENCODER
    # Ids have to tell examples apart where they are what a slice is made of.
    table = pq.read_table(found / "e.parquet")
    twice = table.set_column(table.schema.get_field_index("row"), "row", [[1, 1, *range(2, ROWS)]])
    pq.write_table(twice, found / "twice.parquet")
    flags = ["--data", found / "twice.parquet"]
    unique = "column 'row' does not identify examples: 1 twice; give every example a unique id"
    assert fails("define", "--name", "x", "--ids", found / "ids.csv", *flags) == unique
    said = fails("attribute sample", "--slice", name, "--text", "x", "--budget", 20, *flags)
    assert said == unique


@pytest.mark.parametrize(("options", "message"), [
    ({"componets": 3}, "unknown option 'componets'; did you mean 'components'?"),
    ({"components": True}, "components: True is not a whole number"),
    ({"components": 4.0}, "components: 4.0 is not a whole number"),
    ({"since": "x"}, "unknown option 'since'"),
    ({"resume": True}, "a run continues in the output where it began; give it as output="),
])  # fmt: skip
def test_from_python(options, message):
    error = refusal(InputError, api.discover, TABLE, **{"embedding": "z", **LOSSES, **options})
    assert error.startswith(message)


@google_first
@pytest.mark.slow
def test_as_on_a_disk(bucket, tmp_path):
    local = planted_file(tmp_path / "data.parquet")
    data = bucket.upload(tmp_path / "data.parquet", "data/data.parquet")
    options = {**COLUMNS, "components": (8,), "chunk_rows": 250}
    report = api.discover(data, output=f"{bucket.uri}/out", **options)
    alone = discover(tmp_path / "alone", data=(local,), **options)
    found = json.loads(bucket.read("out/changelist.json"))
    assert bucket.keys() == ["data/data.parquet", *(f"out/{name}" for name in names_of(found))]
    for name in ("discovery", "slices", "testing"):
        assert found[name] == alone.document[name]
    assert bucket.read("out/slices.parquet") == alone.slices_bytes
    for name in ("membership.parquet", "mixture.npz"):
        assert bucket.read(f"out/{name}") == (tmp_path / "alone" / name).read_bytes()
    first, folder = report.changelist.slices[0], f"{bucket.uri}/out"
    renamed = ["edit", "rename", "--changelist", folder, "--slice", first.slice_id]
    assert run([*renamed, "--name", "the worst", "--quiet"]) == 0
    split = ["edit", "split", "--changelist", folder, "--slice", "the worst"]
    assert run([*split, "--where", "id < 300", "--quiet"]) == 0
    revised = json.loads(bucket.read("out/changelist.r2.json"))
    assert [edit["op"] for edit in revised["edits"]] == ["rename", "split"]
    check = ["check", "--changelist", f"{folder}/changelist.r2.json", "--data", data]
    assert run([*check, "--output", f"{bucket.uri}/checked", "--quiet"]) == 0
    checked = json.loads(bucket.read("checked/changelist.json"))
    sizes = {one["slice_id"]: one["size"]["n"] for one in checked["slices"]}
    assert sizes == {one["slice_id"]: one["size"]["n"] for one in revised["slices"]}


server = test_endpoint.server
CLASSES = {"label": "label", "prediction": "new", "baseline_prediction": "old"}
OPTIONS = {"embedding": "z", "components": (5,), "min_slice_size": 1, **LOSSES}


def with_columns(table=TABLE, **columns):
    for name, values in columns.items():
        column = values if isinstance(values, pa.Array) else pa.array(values)
        if name in table.schema.names:
            table = table.set_column(table.schema.get_field_index(name), name, [column])
        else:
            table = table.append_column(name, [column])
    return table


def vectors(values, kind=None):
    return pa.array(list(values), kind or pa.list_(pa.float64()))


def found_in(tmp_path, table, **options):
    """Discover, and hold the table of slices against a direct computation."""
    data = written(tmp_path / "e.parquet", table)
    found = discover(tmp_path / "out", data=(data,), **{**OPTIONS, **options})
    assert_counted(found, table, {**OPTIONS, **options})
    return found


def assert_counted(found, table, options):
    """Each slice's size and mean losses are those of the examples that membership.parquet tells."""
    told = found.membership
    (components,) = options["components"]
    assert len(told) == table.num_rows
    tested = (told["split"] != "discovery").to_numpy()
    of = told["slice_id"].astype(str).to_numpy()
    expected, least = set(of[tested]), options["min_slice_size"]
    sizes = {name: int((tested & (of == name)).sum()) for name in expected}
    rows = found.table.set_index("slice_id")
    rows = rows[rows["slice"].str.fullmatch(rf"cluster@{components} = \d+")]
    assert dict(rows["n"]) == {name: n for name, n in sizes.items() if n >= least}
    if "loss" in options:
        new, old = (table[options[name]].to_numpy().astype(float) for name in LOSSES)
    else:
        label, *both = (table[options[name]].to_numpy() for name in CLASSES)
        new, old = ((label == predicted).astype(float) for predicted in both)
    for name, row in rows.iterrows():
        members = tested & (of == name)
        assert row["value"] == pytest.approx(new[members].mean(), rel=1e-12, abs=1e-12)
        assert row["reference"] == pytest.approx(old[members].mean(), rel=1e-12, abs=1e-12)
        change = new[members].mean() - old[members].mean()
        assert row["delta"] == pytest.approx(change, rel=1e-9, abs=1e-12)
        assert 0 < row["p_value"] <= 1
    assert told["responsibility"].between(0, 1).all()


def groups(found):
    """The positions of the examples of each component, in the order of the first."""
    of = found.membership["slice_id"].astype(str)
    return sorted(tuple(rows.tolist()) for rows in of.groupby(of).indices.values())


GROUPS = np.arange(ROWS) % 3


@pytest.mark.parametrize("order", ["ab", slow("ba")])
@pytest.mark.slow
def test_files_without_row_groups(order, tmp_path):
    whole = discover(tmp_path / "one", data=(written(tmp_path / "x.parquet", TABLE),), **OPTIONS)
    paths = []
    for number, kind in enumerate(order):
        path = tmp_path / f"{number}.parquet"
        if kind == "a":
            pq.ParquetWriter(path, TABLE.schema).close()
            assert pq.ParquetFile(path).num_row_groups == 0
        else:
            written(path, TABLE)
        paths.append(str(path))
    found = discover(tmp_path / "out", data=tuple(paths), **OPTIONS)
    pd.testing.assert_frame_equal(found.table, whole.table)


def test_models_that_are_always_right(tmp_path):
    """No pair is discordant, so that nothing can be significant."""
    table = with_columns(new=TABLE["label"].combine_chunks(), old=TABLE["label"].combine_chunks())
    named = {name: value for name, value in OPTIONS.items() if name not in LOSSES} | CLASSES
    found = discover(tmp_path / "out", data=(written(tmp_path / "e.parquet", table),), **named)
    assert_counted(found, table, named)
    assert found.table["p_value"].eq(1).all()
    assert found.table["reason"].str.contains("never differ").all()
    # The same where losses say so, and where all are of one class.
    zero = with_columns(loss_new=[0.0] * ROWS, loss_old=[0.0] * ROWS)
    assert found_in(tmp_path, zero).table["p_value"].eq(1).all()
    one = with_columns(**dict.fromkeys(("label", "new", "old"), ["ant"] * ROWS))
    found = discover(tmp_path / "out", data=(written(tmp_path / "e.parquet", one),), **named)
    assert_counted(found, one, named)
    assert found.table["value"].eq(1).all()


@pytest.mark.slow
def test_columns_of_the_same_names_as_those_of_a_result(tmp_path):
    own = {name: ["a", "b"] * 60 for name in ("slice", "slice_id", "row", "split", "log odds")}
    table = with_columns(**own, **{"cluster@7": ["x"] * ROWS, "cluster@5 ": ["y", "z"] * 60})
    features = (*own, "cluster@5 ")
    plain = found_in(tmp_path, table, features=features, max_cross_size=2).table.set_index("slice")
    assert plain.loc["slice = a", "n"] == 60
    mean = table["loss_new"].to_numpy()[1::2].mean()
    assert plain.loc["slice_id = b", "value"] == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("text", ["word " * 200_000 + "w" * 1_000_000, "", "!!!", "\x00 film"], ids=["2 MB", "empty", "no words", "zero"])  # fmt: skip
@pytest.mark.slow
def test_one_text_of_another_kind(text, tmp_path):
    kinds = ["news bad x", "film good x", "news good x", "film bad x", "news good x", "film good x"]
    texts = kinds * (ROWS // 6)
    texts[7] = text
    found = found_in(tmp_path, with_columns(text=texts), embedding=None, text="text")
    members = [group for group in groups(found) if 9 in group]
    assert {row for row in range(ROWS) if texts[row] == texts[9]} <= set(members[0])
    for one in found.document["slices"]:
        assert all(len(each["display"]["text"]) <= 300 for each in one["found"].get("examples", ()))


ENCODED = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize(
    "kind", [ENCODED, slow(pa.large_string()), slow(pa.string_view())], ids=str
)
def test_text_of_any_type(kind, tmp_path):
    plain = pa.array([["a film that is good", "bad news", "the plot"][group] for group in GROUPS])
    column = plain.dictionary_encode().cast(kind) if "dict" in str(kind) else plain.cast(kind)
    found = found_in(tmp_path, with_columns(text=column), embedding=None, text="text")
    assert groups(found) == [tuple(range(group, ROWS, 3)) for group in range(3)]


@pytest.mark.slow
def test_check_on_odd_data(tmp_path):
    """New data without what only shows an example, of one example, and where a slice has none."""
    loss = np.where(GROUPS, 0.9, 0.1) + 0.001 * np.arange(ROWS)
    z = 10.0 * np.eye(3)[GROUPS]
    table = with_columns(z=vectors(z), loss_new=loss, text=[f"text {row}" for row in range(ROWS)])
    table = with_columns(table, loss_old=[0.5] * ROWS)
    first = found_in(tmp_path, table, text="text", components=(3,))
    assert len(first.document["slices"]) == 3
    for rows, sizes in ((1, [0, 0, 1]), (3, [1, 1, 1]), (120, [40] * 3)):
        path = written(tmp_path / "new.parquet", table.drop_columns(["text"]).slice(0, rows))
        arguments = ["check", "--changelist", str(tmp_path / "out" / "changelist.json")]
        arguments += ["--data", path, "--output", str(tmp_path / "new"), "--quiet"]
        assert run(arguments) == 0
        document = json.loads((tmp_path / "new" / "changelist.json").read_text())
        assert sorted(one["size"]["n"] for one in document["slices"]) == sizes
    earlier = {one["slice_id"]: one["changes"][0] for one in first.document["slices"]}
    for one in document["slices"]:
        assert one["changes"][0]["delta"] == earlier[one["slice_id"]]["delta"]


@pytest.mark.parametrize(("status", "code", "resume"), [(500, 3, False), slow(401, 2, False), slow(500, 3, True)])  # fmt: skip
def test_an_endpoint_that_fails_half_way(server, status, code, resume, tmp_path, capsys):
    """Begun again, no text is asked twice; what is kept is said."""
    texts = [f"text {row}" for row in range(300)]
    table = pa.table({"text": texts, "loss": np.random.default_rng(0).random(300)})
    data = written(tmp_path / "e.parquet", table)
    # Requests at the same time are counted as they come, not as they are answered.
    server.rule = lambda _: None if sum(server.asked.values()) <= 256 else (status, {}, "no more")
    arguments = ["discover", "--data", data, "--text", "text", "--loss", "loss"]
    arguments += ["--encoder", f"openai:{server.url}", "--components", "3"]
    arguments += ["--chunk-rows", "100", "--output", str(tmp_path / "out")]
    said = refused([*arguments, "--quiet"], capsys, folder=tmp_path, code=code)
    assert said.startswith(f"--encoder openai:{server.url}: ")
    assert f"HTTP {status}: no more" in said
    if code == 3:
        assert "finished embeddings are kept" in said
        work = "finished work is in DIR/out/_work; continue with the same command and --resume"
        assert said.endswith(work)
    assert 0 < sum(server.answered.values()) < 300
    server.rule = lambda _: None
    assert run([*arguments, *(["--resume"] if resume else [])]) == 0
    assert set(texts) <= set(server.answered)
    assert set(server.answered.values()) == {1}


@pytest.fixture(scope="module")
def folding(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folded")
    data = (written(folder / "data.parquet", examples(8, n=2000, apart=2.0)),)
    roles = {"label": "label", "prediction": "new", "embedding": "z"}
    return discover(folder / "out", data=data, components=(8, 20), slices=4, **roles)


@pytest.fixture(scope="module")
def members(folding):
    return {key: set(own) for key, own in folding.membership.groupby("slice_id")["id"]}


def test_the_table_begins_with_the_first_slices(folding):
    (shown,) = worst_slices(SearchChangeList.model_validate(folding.document))
    slices = [one["slice_id"] for one in folding.document["slices"]]
    assert [one.slice_id for one, _ in shown.rows] == slices[:12]
    assert shown.rest == len(slices) - 12 > 0


def test_findings_do_not_repeat_examples(folding, members):
    for side in ("worse", "better"):
        findings = [one for one in folding.document["findings"] if one["direction"] == side]
        held = [members[one["slice_id"]] for one in findings]
        assert held
        for number, own in enumerate(held):
            assert max([len(own & other) / len(own) for other in held[:number]], default=0.0) <= 0.5


def test_findings_are_described_before_the_others(folding):
    """What tables begin with has examples, also where others changed more."""
    slices = folding.document["slices"]
    described = {one["slice_id"] for one in slices if one["found"]["examples"]}
    ranked = sorted(folding.document["findings"], key=lambda one: one["rank"])
    assert described == {one["slice_id"] for one in ranked[:4]}
    assert described != {one["slice_id"] for one in slices[:4]}


TEMPLATE = {"id": "{prompt}", "text": "{prompt}"}
ANSWER = '1. sour soup\n- "fresh bread"\n\n* rain of the north\n' + "word " * 9 + "\n" + "x" * 81
SHOWN = [(["soup", "more\nsoup"], ["rain"]), (["rain"], ["soup"]), ([], ["soup"])]


@pytest.mark.usefixtures("quick_calls")
def test_a_list_of_any_kind_is_read_and_each_group_is_asked_about_once(paid_server, tmp_path):
    paid = paid_server.anew(tmp_path / "api", default=ANSWER)
    file = paid.file(json=TEMPLATE)
    found = phrases_of_model(file, SHOWN, tmp_path)
    # What is longer than a phrase is none.
    assert found == ["sour soup", "fresh bread", "rain of the north"]
    assert len(paid.charged) == 2
    assert any("Of the group:\n- soup\n- more soup\n" in asked for asked in paid.charged)
    assert all("Not of the group:\n- " in asked for asked in paid.charged)
    assert phrases_of_model(file, SHOWN, tmp_path) == found
    assert len(paid.charged) == 2


@pytest.mark.usefixtures("quick_calls")
@pytest.mark.parametrize(("changes", "message"), [
    ({"json": {"text": "{text}"}}, r"write \{prompt\} where"),
    ({"json": TEMPLATE, "labels": {"a": 1}}, "answers are phrases; leave 'labels' out"),
])  # fmt: skip
def test_files_that_ask_otherwise(paid_server, tmp_path, changes, message):
    paid = paid_server.anew(tmp_path / "api")
    refuses(InputError, message, phrases_of_model, paid.file(**changes), SHOWN, tmp_path)
    assert paid.requests == []


@pytest.mark.usefixtures("quick_calls")
def test_they_describe_slices_and_the_user_is_shown_them(paid_server, tmp_path):
    """The model that answers in this test always says the same; the scores tell whom it fits."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 3, 600)
    words = [["sour", "soup", "hot"], ["heavy", "rain", "wind"], ["old", "car", "road"]]
    texts = [" ".join(rng.permutation(words[kind])[:2]) for kind in kinds]
    old = rng.random(600) < np.where(kinds == 0, 0.1, 0.3)
    new = rng.random(600) < np.where(kinds == 0, 0.9, 0.3)
    data = tmp_path / "data.parquet"
    pq.write_table(pa.table({"t": texts, "old": old * 1.0, "new": new * 1.0}), data)
    paid = paid_server.anew(tmp_path / "api", default="sour soup\nheavy rain")
    how = {"text": "t", "loss": "new", "baseline_loss": "old", "components": 3}
    out, file = str(tmp_path / "out"), paid.file(json=TEMPLATE)
    report = api.discover(str(data), phrases=file, output=out, **how)
    first = report.changelist.slices[0]
    assert [(one.text, one.source) for one in first.found.phrases] == [("sour soup", "llm")]
    assert len(paid.charged) == len(report.changelist.slices)
    assert list((tmp_path / "out").glob("phrases-*"))
    lines, correlation = discovery_lines(report.changelist), first.found.phrases[0].correlation
    assert f"  {first.name}: sour soup ({correlation:.2f})" in lines
    told = f"{first.found.improved:,} improved, {first.found.degraded:,} degraded"
    assert any(line.startswith(f"    {told}; such as “") for line in lines)
    assert lines[-2].startswith("Embeddings (lsa) of ")


# As large as the published benchmark's sets: 10 planted slices of 100 points, 10 decoys.
LARGE = {"rows": 5000, "dimensions": 64, "planted": 10, "size": 100, "background": 20}
LARGE |= {"decoys": 10, "apart": 1.5}


def precision_at_ten(table, loss_weight):
    """Mean over planted slices of the best share among shown examples; planted share of each slice."""
    planted = table["planted"].to_numpy()
    how = {"components": 50, "loss_weight": loss_weight}
    document = api.discover(table.drop_columns(["planted"]), **COLUMNS, **how).changelist
    shown = [
        np.array([e.row for e in one.found.examples if e.role == "representative"])
        for one in document.slices[:10]
        if one.found is not None
    ]
    best = [max(np.mean(planted[rows] == k) for rows in shown) for k in range(10)]
    return float(np.mean(best)), [float(np.mean(planted[rows] >= 0)) for rows in shown]


@pytest.mark.slow
@pytest.mark.parametrize(("loss_weight", "least"), [(0.0, 0.92), (1.0, 0.85)])
def test_planted_slices_are_found(loss_weight, least):
    found = [precision_at_ten(planted_table(**LARGE, seed=seed), loss_weight) for seed in range(4)]
    assert np.mean([precision for precision, _ in found]) >= least
    shares = np.array([share for _, some in found for share in some])
    # One in twenty of what is significant may be false; of so few that is more than two by chance.
    assert np.count_nonzero(shares < 0.02) <= stats.binom.ppf(0.995, shares.size, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("loss_weight", [0.0, 10.0])
def test_nothing_is_found_where_losses_are_permuted(loss_weight):
    """Of 30 data sets level-wise correction at 0.05 expects 1.5, and hardly ever 6."""
    false = 0
    for seed in range(30):
        table = planted_table(1500, dimensions=12, planted=6, size=60, background=8, seed=seed)
        order = pa.array(np.random.default_rng(seed).permutation(table.num_rows))
        for name in ("loss_old", "loss_new"):
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, table[name].take(order))
        how = {"components": 20, "loss_weight": loss_weight, "slices": 0}
        report = api.discover(table.drop_columns(["planted"]), **COLUMNS, **how)
        false += bool(report.changelist.testing.significant)
    assert false <= 5
