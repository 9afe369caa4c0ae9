"""Odd data that a discovery may be given: what it finds is what a direct computation finds."""

import json
import threading
from collections import Counter
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from slicebeam.pipelines import api
from slicebeam.pipelines.cli import run
from slicebeam.transforms.http import calls as http_calls
from tests.discover_runs import discover, embeddings, examples, read_discovery, written
from tests.running import refused

ROWS = 120
TABLE = examples(0, n=ROWS, dimensions=4, groups=3, apart=6.0)
LOSSES = {"loss": "loss_new", "baseline_loss": "loss_old"}
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
    expected = set(of[tested])
    least = options["min_slice_size"]
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


@pytest.mark.parametrize(("kind", "expected"), [
    # As many components as are asked for, but only so many places to be.
    ([[float(group), 1.0] for group in GROUPS], 3),
    pytest.param([[float(group)] for group in GROUPS], 3, marks=pytest.mark.slow),
    pytest.param([[0.0] * 4] * ROWS, 1, marks=pytest.mark.slow),
    ([[1.0, -2.0, 3.0]] * ROWS, 1),
], ids=["three points", "one dimension", "zero", "one point"])  # fmt: skip
def test_fewer_points_than_components(kind, expected, tmp_path):
    found = found_in(tmp_path, with_columns(z=vectors(kind)))
    assert groups(found) == [tuple(range(group, ROWS, expected)) for group in range(expected)]
    assert found.resolutions["cluster@5"]["nonempty"] == expected
    assert len(found.table) == expected


SCALED = embeddings(TABLE)


@pytest.mark.parametrize(("dimensions", "scale"), [
    (2, 1e36),
    pytest.param(128, 1e36, marks=pytest.mark.slow),
    pytest.param(128, 1e19, marks=pytest.mark.slow),
])  # fmt: skip
def test_large_vectors_fall_into_the_same_groups(dimensions, scale, tmp_path, recwarn):
    """Squares of these overflow single precision."""
    # Apart enough that the least variance, which does not grow with them, decides nothing.
    one = found_in(tmp_path, with_columns(z=vectors(SCALED * 64)), dimensions=dimensions)
    many = found_in(tmp_path, with_columns(z=vectors(SCALED * scale)), dimensions=dimensions)
    assert groups(many) == groups(one)
    assert not [each for each in recwarn if issubclass(each.category, RuntimeWarning)]


@pytest.mark.parametrize("kinds", [
    (pa.list_(pa.float16()), pa.list_(pa.int64())),
    pytest.param((pa.large_list(pa.float64()), pa.list_(pa.float32(), 4), pa.list_(pa.uint8())), marks=pytest.mark.slow),
], ids=["lists", "other lists"])  # fmt: skip
@pytest.mark.slow
def test_numbers_of_any_type(kinds, tmp_path):
    z = np.round(np.abs(SCALED)) + 0.0
    expected = groups(found_in(tmp_path, with_columns(z=vectors(z))))
    for kind in kinds:
        own = kind.value_type.to_pandas_dtype()
        found = found_in(tmp_path, with_columns(z=pa.array(list(z.astype(own)), kind)))
        assert groups(found) == expected


@pytest.mark.parametrize("n", [2, 5])
def test_as_few_examples_as_components(n, tmp_path):
    """Each is a component of its own where there are as many, and no test says anything of one."""
    table = with_columns(TABLE.slice(0, n), z=vectors(100.0 * np.eye(n)))
    found = found_in(tmp_path, table, components=(n,))
    assert groups(found) == [(row,) for row in range(n)]
    assert found.table["p_value"].eq(1).all()
    assert not found.document["slices"]


def test_more_dimensions_than_examples(tmp_path):
    rng = np.random.default_rng(3)
    z = rng.standard_normal((24, 300)) * 0.1
    z[np.arange(24), np.arange(24) % 2] += 10.0
    table = with_columns(TABLE.slice(0, 24), z=vectors(z))
    found = found_in(tmp_path, table, components=(2,), dimensions=64)
    assert groups(found) == [tuple(range(0, 24, 2)), tuple(range(1, 24, 2))]
    told = found.document["discovery"]
    # Of 24 points only 23 directions have a variance.
    assert told["dimensions"] == 300
    assert told["kept_dimensions"] == 23
    assert told["kept_variance"] == pytest.approx(1.0)


@pytest.mark.parametrize("order", ["ab", pytest.param("ba", marks=pytest.mark.slow)])
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
    data = written(tmp_path / "e.parquet", table)
    found = discover(tmp_path / "out", data=(data,), **named)
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
def test_losses_that_weigh_much_or_are_all_the_same(tmp_path):
    same = with_columns(loss_new=[0.25] * ROWS, loss_old=[0.75] * ROWS)
    for weight, table in ((1000.0, TABLE), (1.0, same)):
        found = found_in(tmp_path, table, loss_weight=weight)
        assert set(found.membership["split"]) == {"discovery", "evaluation"}


@pytest.mark.slow
def test_ids_that_are_repeated(tmp_path):
    """They are discovered all the same, and what has one id is of one part."""
    ids = np.arange(ROWS) // 3
    table = with_columns(id=ids)
    found = found_in(tmp_path, table, example_id="id")
    assert found.membership["id"].tolist() == ids.tolist()
    found = found_in(tmp_path, table, example_id="id", loss_weight=1.0)
    assert found.membership.groupby("id")["split"].nunique().eq(1).all()
    assert found.membership["split"].nunique() == 2
    coded = with_columns(id=pa.array([f"x{one}" for one in ids]).dictionary_encode())
    assert found_in(tmp_path, coded, example_id="id").membership["id"].iloc[5] == "x1"


@pytest.mark.slow
def test_columns_of_the_same_names_as_those_of_a_result(tmp_path):
    own = {name: ["a", "b"] * 60 for name in ("slice", "slice_id", "row", "split", "log odds")}
    table = with_columns(**own, **{"cluster@7": ["x"] * ROWS})
    features = (*own, "cluster@5 ")
    table = table.append_column("cluster@5 ", [["y", "z"] * 60])
    found = found_in(tmp_path, table, features=features, max_cross_size=2)
    plain = found.table.set_index("slice")
    assert plain.loc["slice = a", "n"] == 60
    mean = table["loss_new"].to_numpy()[1::2].mean()
    assert plain.loc["slice_id = b", "value"] == pytest.approx(mean, rel=1e-12)


ODD = "\x1b[31mred\x1b[0m\nevil \x07 \u202eabc"


@pytest.mark.slow
def test_texts_that_are_hard_to_print(tmp_path, capsys):
    """Control characters and directions of writing reach no terminal."""
    kinds = [f"{ODD} bad", "good 😀 مرحبا stuff"]
    loss = np.where(np.arange(ROWS) % 2, 0.9, 0.1) + 0.001 * np.arange(ROWS)
    table = with_columns(text=kinds * 60, loss_new=loss, source=[ODD, "b"] * 60)
    data = written(tmp_path / "e.parquet", table)
    arguments = ["discover", "--data", data, "--text", "text", "--components", "2"]
    arguments += ["--loss", "loss_new", "--baseline-loss", "loss_old", "--features", "source"]
    arguments += ["--output", str(tmp_path / "out")]
    explain = ["--explain", "cluster@2 = 0"]
    for flags in ([*explain, "--log-format", "json"], ["--json"]):
        assert run([*arguments, *flags]) == 0
        printed = capsys.readouterr()
        for text in (printed.out, printed.err):
            assert not any(sign in text for sign in "\x1b\x07\u202e")
        if flags == ["--json"]:
            json.loads(printed.out)
        if "--log-format" in flags:
            assert all(json.loads(line)["event"] for line in printed.err.splitlines())
    assert run([*arguments, "--quiet", "--fail-on", "worse"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("slicebeam: FAIL: ")
    assert not any(sign in printed.out + printed.err for sign in "\x1b\x07\u202e")
    found = read_discovery(tmp_path / "out")
    # The document has them as they are.
    shown = {one["display"]["text"] for one in found.document["slices"][0]["found"]["examples"]}
    assert shown <= set(kinds)
    of = found.membership["slice_id"].astype(str).to_numpy()
    assert len(set(of[::2])) == len(set(of[1::2])) == 1
    assert of[0] != of[1]


@pytest.mark.parametrize("text", [
    "word " * 200_000 + "w" * 1_000_000,
    *(pytest.param(text, marks=pytest.mark.slow) for text in ("", "!!!", "\x00 film")),
], ids=["2 MB", "empty", "no words", "zero"])  # fmt: skip
@pytest.mark.slow
def test_one_text_of_another_kind(text, tmp_path):
    kinds = ["news bad x", "film good x", "news good x", "film bad x", "news good x", "film good x"]
    texts = kinds * (ROWS // 6)
    texts[7] = text
    found = found_in(tmp_path, with_columns(text=texts), embedding=None, text="text")
    members = [group for group in groups(found) if 9 in group]
    # Texts that are equal go together.
    assert {row for row in range(ROWS) if texts[row] == texts[9]} <= set(members[0])
    for one in found.document["slices"]:
        assert all(len(each["display"]["text"]) <= 300 for each in one["found"].get("examples", ()))


@pytest.mark.parametrize("kind", [
    pa.dictionary(pa.int8(), pa.string()),
    pytest.param(pa.large_string(), marks=pytest.mark.slow),
    pytest.param(pa.string_view(), marks=pytest.mark.slow),
], ids=str)  # fmt: skip
def test_text_of_any_type(kind, tmp_path):
    texts = [["a film that is good", "bad news", "the plot"][group] for group in GROUPS]
    plain = pa.array(texts)
    column = plain.dictionary_encode().cast(kind) if "dict" in str(kind) else plain.cast(kind)
    found = found_in(tmp_path, with_columns(text=column), embedding=None, text="text")
    assert groups(found) == [tuple(range(group, ROWS, 3)) for group in range(3)]


@pytest.mark.slow
def test_from_python(tmp_path):
    whole = discover(tmp_path / "out", data=(written(tmp_path / "e.parquet", TABLE),), **OPTIONS)
    options = {name: value for name, value in OPTIONS.items() if name != "components"}
    for data, components in ((TABLE.to_pandas(), 5), ([str(tmp_path / "e.parquet")], np.int64(5))):
        report = api.discover(data, components=components, output=None, **options)
        assert report.path is None
        pd.testing.assert_frame_equal(report.slices.to_pandas(), whole.table)
    told = api.discover(TABLE, components=[5, 2, 2], **options).changelist.discovery
    assert [one.components for one in told.resolutions] == [2, 5]


@pytest.mark.slow
def test_what_a_run_file_and_a_document_repeat(tmp_path):
    data = written(tmp_path / "e.parquet", TABLE)
    options = {**OPTIONS, "components": (3, 5), "example_id": "id"}
    first = discover(tmp_path / "out", data=(data,), **options)
    again = str(tmp_path / "again")
    told = {"command": "discover", "data": [data], "output": again, **options}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**told, "components": "3,5"}))
    assert run(["run", str(tmp_path / "run.yaml"), "--quiet"]) == 0
    assert read_discovery(tmp_path / "again").timeless() == first.timeless()
    document = str(tmp_path / "out" / "changelist.json")
    assert run(["run", document, "--output", again, "--quiet"]) == 0
    repeated = read_discovery(tmp_path / "again")
    assert repeated.timeless() == first.timeless()
    assert repeated.slices_bytes == first.slices_bytes


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


@pytest.mark.slow
def test_a_search_of_a_column_that_is_called_like_components(tmp_path):
    """Of a document without a discovery it is a column as others are."""
    halves = {"cluster@5": ["a", "b"], "loss_new": [0.1, 0.9], "loss_old": [0.3, 0.4]}
    table = with_columns(**{name: both * 60 for name, both in halves.items()})
    noise = 0.01 * np.random.default_rng(0).random(ROWS)
    table = with_columns(table, loss_new=table["loss_new"].to_numpy() + noise)
    data = written(tmp_path / "e.parquet", table)
    arguments = ["--data", data, "--loss", "loss_new", "--baseline-loss", "loss_old", "--quiet"]
    search = ["search", "--features", "cluster@5", "--alternative", "both"]
    assert run([*search, *arguments, "--output", str(tmp_path / "out")]) == 0
    document = str(tmp_path / "out" / "changelist.json")
    check = ["check", "--changelist", document, "--data", data, "--quiet"]
    assert run([*check, "--output", str(tmp_path / "new")]) == 0
    define = ["define", "--changelist", document, "--name", "x", "--quiet"]
    assert run([*define, "--where", "cluster@5 = a"]) == 2
    assert run([*define, "--where", "cluster@5 = a & source = web"]) == 0
    revision = json.loads((tmp_path / "out" / "changelist.r1.json").read_text())
    (defined,) = (one for one in revision["slices"] if one["name"] == "x")
    members = (table["source"].to_numpy() == "web") & (np.arange(ROWS) % 2 == 0)
    assert defined["size"]["n"] == members.sum()


@contextmanager
def serving(calls, status):
    """An endpoint that answers so many calls, and the others with a status."""
    told = SimpleNamespace(calls=calls, status=status, answered=Counter())
    changing = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_POST(self):
            texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
            with changing:
                told.calls -= 1
                fails = told.calls < 0
                if not fails:
                    told.answered.update(texts)
            vectors = [[each / 8 for each in sha256(text.encode()).digest()[:5]] for text in texts]
            data = [{"index": at, "embedding": each} for at, each in enumerate(vectors)]
            # As endpoints do that say which key they refuse.
            error = {"error": f"no more for {self.headers['Authorization']}"}
            content = json.dumps(error if fails else {"data": data}).encode()
            self.send_response(told.status if fails else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told.url = f"http://127.0.0.1:{server.server_port}/v1"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield told
        server.shutdown()


@pytest.mark.parametrize(("status", "code", "resume"), [
    (500, 3, False),
    *(pytest.param(*each, marks=pytest.mark.slow) for each in ((401, 2, False), (401, 2, True), (500, 3, True))),
])  # fmt: skip
def test_an_endpoint_that_fails_half_way(status, code, resume, tmp_path, monkeypatch, capsys):
    """Begun again, no text is asked twice, and the key is told nowhere."""
    key = "sk-a-very-secret-key"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    monkeypatch.setattr(http_calls, "_FIRST_WAIT", 0.01)
    rows = 300
    texts = [f"text {row}" for row in range(rows)]
    table = pa.table({"text": texts, "loss": np.random.default_rng(0).random(rows)})
    data = written(tmp_path / "e.parquet", table)
    with serving(2, status) as server:
        arguments = ["discover", "--data", data, "--text", "text", "--loss", "loss"]
        arguments += ["--encoder", f"openai:{server.url}", "--components", "3"]
        arguments += ["--chunk-rows", "100", "--output", str(tmp_path / "out")]
        said = refused([*arguments, "--quiet"], capsys, folder=tmp_path, code=code)
        assert said.startswith(f"--encoder openai:{server.url}: ")
        assert f'HTTP {status}: {{"error": "no more for Bearer ***"}}' in said
        if code == 3:
            assert "finished embeddings are kept" in said
            assert said.endswith(
                "finished work is in DIR/out/_work; continue with the same command and --resume"
            )
        before = sum(server.answered.values())
        assert 0 < before < rows
        server.calls = 10**6
        assert run([*arguments, *(["--resume"] if resume else [])]) == 0
        # Phrases are embedded too.
        assert set(table["text"].to_pylist()) <= set(server.answered)
        assert set(server.answered.values()) == {1}
    printed = capsys.readouterr()
    assert key not in said + printed.out + printed.err
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or key.encode() not in path.read_bytes()
