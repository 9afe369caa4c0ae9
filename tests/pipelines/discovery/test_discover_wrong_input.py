"""What is wrong with the data of a discovery, or where its slices are checked, changed or read, is said in a line or two."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.api import discover
from slicebeam.pipelines.cli import run
from tests.conftest import google_first
from tests.discover_runs import embeddings, examples
from tests.discovered import COLUMNS as OF_BUCKET
from tests.discovered import discovery, planted_file
from tests.refusals import refusal, refusing
from tests.running import names_of, own_file, refused

ROWS = 120
TABLE = examples(0, n=ROWS, dimensions=4, groups=3, apart=6.0)
WORDS = [("film" if row % 2 else "news", "good" if row % 3 else "bad") for row in range(ROWS)]
TEXTS = [f"{kind} number {how}" for kind, how in WORDS]
TABLE = TABLE.append_column("text", pa.array(TEXTS)).append_column("row", pa.array(range(ROWS)))
LOSSES = {"loss": "loss_new", "baseline_loss": "loss_old"}


@pytest.fixture
def refuse(tmp_path, capsys):
    return refusing("discover", tmp_path, capsys, TABLE, embedding="z", components=3, **LOSSES)


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
EXAMPLES = examples(0, n=ROWS, dimensions=4, groups=3, apart=6.0)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    loss = np.where(embeddings(EXAMPLES)[:, 0] > 3, 0.9, 0.2) + 0.001 * np.arange(ROWS)
    table = EXAMPLES.append_column("row", [range(ROWS)])
    at = table.schema.get_field_index("loss_new")
    pq.write_table(table.set_column(at, "loss_new", [loss]), folder / "e.parquet")
    options = {"embedding": "z", "components": 3, "example_id": "row", **LOSSES}
    discover(str(folder / "e.parquet"), output=folder / "out", **options)
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


@pytest.mark.parametrize(("change", "message"), [
    (lambda path: path.unlink(), "no such file; it belongs next to the ChangeList of a discovery"),
    (lambda path: (path.unlink(), path.mkdir()), "no such file; it belongs next to"),
    (lambda path: path.write_bytes(b"PK"), " is damaged: its content has changed; run the"),
    (lambda path: path.write_bytes(path.read_bytes()[:600]), " is damaged: its content"),
    (lambda path: np.savez(path, other=np.ones(3)), " is damaged: its content"),
    (lambda path: np.savez(path, other=np.array([{}])), " is damaged: its content"),
    (np.savez, " belongs to another run than the ChangeList next to it; keep the two"),
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
    "no example": (lambda table: table.slice(0, 0), "--data DIR/new.parquet: there are no examples in it"),
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
    ({"since": "x"}, "--since is for a search, not for discovery"),
    ({"resume": True}, "a run continues in the output where it began; give it as output="),
])  # fmt: skip
def test_from_python(options, message):
    error = refusal(InputError, discover, EXAMPLES, **{"embedding": "z", **LOSSES, **options})
    assert error.startswith(message)


@google_first
@pytest.mark.slow
def test_as_on_a_disk(bucket, tmp_path):
    local = planted_file(tmp_path / "data.parquet")
    data = bucket.upload(tmp_path / "data.parquet", "data/data.parquet")
    options = {**OF_BUCKET, "components": (8,), "chunk_rows": 250}
    report = discover(data, output=f"{bucket.uri}/out", **options)
    alone = discovery(tmp_path / "alone", data=(local,), **options)
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
