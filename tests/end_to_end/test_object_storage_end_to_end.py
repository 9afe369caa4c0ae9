"""Searches whose data, work folder and output are in object storage, undisturbed and disturbed."""

import json
import os
import pickle
from pathlib import Path

import pytest
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

from slicebeam.pipelines.cli import run
from tests.conftest import google_first, own_stores, s3_first, slow
from tests.gcs_server import FORBIDDEN
from tests.running import names_of, read, refused, search
from tests.storage_faults import Fault
from tests.tfrecord_files import example, frame

FEATURES = ("age", "education", "occupation", "sex")
# Several chunks, so that there are several shards.
OPTIONS = {"label": "income", "prediction": "prediction", "chunk_rows": 4000}
SLOW = pytest.mark.slow
ONE = pytest.mark.parametrize("bucket", ["gcs_server"], indirect=True)
PUBLISHED = ["out/changelist.json", "out/slices.parquet"]


def arguments(data, output, **options):
    given = {"data": data, "output": output, "features": ",".join(FEATURES), **OPTIONS, **options}
    return ["search", *(f"--{key.replace('_', '-')}={value}" for key, value in given.items())]


def published(bucket, folder, key="out"):
    """What a run has published in a bucket, as if it were in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names_of(json.loads(bucket.read(f"{key}/changelist.json"))):
        (folder / name).write_bytes(bucket.read(f"{key}/{name}"))
    return read(folder)


def keys_of(bucket):
    return [f"out/{name}" for name in names_of(json.loads(bucket.read("out/changelist.json")))]


def equal(one, other):
    """The same result, but for where and when it was found."""
    assert one.slices_bytes == other.slices_bytes
    assert one.timeless() == other.timeless()


@pytest.fixture(scope="module")
def reference(tmp_path_factory, adult_path):
    output = tmp_path_factory.mktemp("reference")
    return search(output, data=adult_path, features=FEATURES, **OPTIONS)


@pytest.fixture
def data(bucket, adult_path):
    return bucket.upload(adult_path, "data/adult.parquet")


@pytest.mark.parametrize("engine", ["direct", slow("direct_multi")])
def test_as_on_a_disk(bucket, data, reference, tmp_path, engine):
    assert run([*arguments(data, f"{bucket.uri}/out", runner_config=engine), "--quiet"]) == 0
    found = published(bucket, tmp_path / "found")
    equal(found, reference)
    assert bucket.keys() == ["data/adult.parquet", *keys_of(bucket)]
    config = found.document["provenance"]["config"]
    assert (config["data"], config["output"]) == ([data], f"{bucket.uri}/out")


@ONE
@pytest.mark.parametrize("in_the_bucket", [slow("data"), slow("output"), "work_dir"])
def test_some_of_it_in_object_storage(bucket, data, reference, tmp_path, adult_path, in_the_bucket):
    output = f"{bucket.uri}/out" if in_the_bucket == "output" else str(tmp_path / "out")
    work = f"{bucket.uri}/work" if in_the_bucket == "work_dir" else str(tmp_path / "work")
    source = data if in_the_bucket == "data" else str(adult_path)
    assert run([*arguments(source, output, work_dir=work), "--quiet"]) == 0
    is_there = in_the_bucket == "output"
    equal(published(bucket, tmp_path / "found") if is_there else read(tmp_path / "out"), reference)
    assert bucket.keys() == ["data/adult.parquet", *(keys_of(bucket) if is_there else [])]
    assert not (tmp_path / "work").exists()


COLUMNS = ["age", "education", "sex", "income", "prediction"]


def written(few, path):
    if path.name.endswith(".parquet"):
        few.to_parquet(path, row_group_size=500)
    elif ".jsonl" in path.name:
        few.to_json(path, orient="records", lines=True)
    elif ".csv" in path.name:
        few.to_csv(path, index=False)
    else:
        few = few.map(lambda value: [value.encode() if isinstance(value, str) else value])
        path.write_bytes(b"".join(frame(example(row)) for row in few.to_dict("records")))


@pytest.mark.parametrize(("names", "pattern"), [
    slow(["a.parquet", "b.parquet"], "*.parquet", id="parquet"),
    slow(["day=1/a b.csv", "day=2/50%+ö#?.csv"], "**/*.csv", id="csv"),
    pytest.param(["a.jsonl", "b.jsonl.gz"], "*.jsonl*", id="jsonl"),
    slow(["x.tfrecord-00000-of-00002", "x.tfrecord-00001-of-00002"], "x.tfrecord-*-of-00002", id="tfrecord"),
])  # fmt: skip
@google_first
def test_every_format_and_globs(bucket, tmp_path, adult, names, pattern):
    local = tmp_path / "data"
    for number, name in enumerate(names):
        (local / name).parent.mkdir(parents=True, exist_ok=True)
        written(adult[COLUMNS].iloc[number * 600 : number * 600 + 600], local / name)
        bucket.upload(local / name, f"data/{name}")
    options = {**OPTIONS, "max_cross_size": 2, "chunk_rows": 400}
    wanted = search(tmp_path / "local", data=f"{local}/{pattern}", **options)
    given = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    given += [f"--data={bucket.uri}/data/{pattern}", f"--output={bucket.uri}/out", "--quiet"]
    assert run(["search", *given]) == 0
    found = published(bucket, tmp_path / "found")
    assert len(found.table) > 30
    equal(found, wanted)


@google_first
@pytest.mark.slow
def test_models_and_domains_from_a_bucket(bucket, tmp_path, adult):
    features = ["age", "sex", "education"]
    encode = make_column_transformer((OneHotEncoder(), features[1:]), remainder="passthrough")
    model = make_pipeline(encode, DecisionTreeClassifier(max_depth=4, random_state=0))
    model.fit(adult[features].iloc[:2000], adult["income"].iloc[:2000])
    few = adult[[*features, "income", "prediction"]].iloc[:4000]
    few.to_parquet(tmp_path / "data.parquet")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    options = {"label": "income", "features": features, "max_cross_size": 2}
    few = {"data": tmp_path / "data.parquet", **options}
    first = search(tmp_path / "first", bins=4, prediction="prediction", **few)
    local = {"model": str(tmp_path / "model.pkl"), "domains": str(first.folder / "changelist.json")}
    wanted = search(tmp_path / "local", **few, **local)
    there = {name: bucket.upload(Path(file), f"in put/{name}") for name, file in local.items()}
    # The name tells a model's format.
    there["model"] = bucket.upload(Path(local["model"]), "in put/new model.pkl")
    options["data"] = bucket.upload(tmp_path / "data.parquet")
    found = search(tmp_path / "found", **options, **there)
    assert found.slices_bytes == wanted.slices_bytes
    assert found.document["slices"] == wanted.document["slices"]
    assert found.document["slices"]
    assert {one["model_uri"] for one in found.document["models"]} == {there["model"]}


@google_first
def test_files_that_are_not_there(bucket, data, capsys, tmp_path):
    output = f"{bucket.uri}/out"

    def told(*more, code=2, source=data):
        return refused([*arguments(source, output), *more], capsys, folder=tmp_path, code=code)

    assert "did you mean" in told(source=f"{bucket.uri}/data/adlt.parquet")
    assert "no object matches" in told(source=f"{bucket.uri}/data/*.csv")
    assert "is a folder" in told(source=f"{bucket.uri}/data")
    absent = f"{bucket.uri}/absent.json"
    assert absent in told(f"--domains={absent}")
    assert absent in told(f"--domains={data}", f"--domains={absent}")
    without = [one for one in arguments(data, output) if not one.startswith("--prediction")]
    model = f"{bucket.uri}/absent.pkl"
    assert model in refused([*without, f"--model={model}"], capsys, folder=tmp_path)
    message = told(source=f"{bucket.uri}-absent/data.parquet", code=3)
    assert f"no bucket '{bucket.name}-absent'" in message
    assert bucket.keys("out/changelist") == []


@ONE
def test_an_output_that_may_not_be_written(bucket, data, capsys, tmp_path):
    given = arguments(data, f"gs://{FORBIDDEN}bucket/out", work_dir=str(tmp_path / "work"))
    message = refused([*given, "--quiet"], capsys, folder=tmp_path, code=3)
    assert f"gs://{FORBIDDEN}bucket/out" in message
    assert "credentials" in message
    # It is said before anything is read.
    assert not (tmp_path / "work").exists()


@google_first
def test_a_work_folder_with_other_objects_is_refused(bucket, data, capsys, tmp_path):
    bucket.write("work/precious", b"not a run's")
    given = arguments(data, f"{bucket.uri}/out", work_dir=f"{bucket.uri}/work")
    assert "contains files that no run wrote" in refused(given, capsys, folder=tmp_path)
    assert bucket.read("work/precious") == b"not a run's"
    same = arguments(data, f"{bucket.uri}/out", work_dir=f"{bucket.uri}/out/")
    assert "is the output" in refused(same, capsys, folder=tmp_path)


@pytest.fixture
def stopped(bucket, data, proxy, capsys):
    """The command of a run that failed after it had encoded the examples."""
    given = [*arguments(data, f"{bucket.uri}/out"), "--quiet"]
    fault = proxy.add(Fault("status", method="PUT|POST", path="_work.*iteration-1", status=400))
    assert run(given) == 3
    assert fault.struck >= 1
    proxy.heal()
    assert f"cannot write {bucket.uri}/out/_work/stages/iteration-1" in capsys.readouterr().err
    assert bucket.keys("out/_work/stages/shards/")
    return [*given, "--resume"]


@s3_first
@pytest.mark.parametrize("where", [slow(0.1), 0.5, slow(0.999)])
def test_a_damaged_shard_is_never_counted(bucket, stopped, capsys, tmp_path, where):
    shard = bucket.keys("out/_work/stages/shards/")[1]
    content = bytearray(bucket.read(shard))
    content[int(len(content) * where)] ^= 4
    bucket.write(shard, bytes(content))
    assert f"{bucket.uri}/{shard} is damaged" in refused(stopped, capsys, folder=tmp_path, code=3)
    assert bucket.keys("out/changelist.json") == []


@google_first
def test_data_that_changed_since_the_run_began(bucket, data, stopped, adult, capsys, tmp_path):
    adult.iloc[::-1].to_parquet(tmp_path / "turned.parquet")
    bucket.write("data/adult.parquet", (tmp_path / "turned.parquet").read_bytes())
    message = refused(stopped, capsys, folder=tmp_path)
    assert f"the data has changed since the run began ({data})" in message


@SLOW
@own_stores
@pytest.mark.parametrize(("moment", "prefix", "codes"), [
    ("iteration-1", "out/_work", (3,)),
    ("domains.json", "data/adult.parquet", (2, 3)),
], ids=["work folder", "data"])  # fmt: skip
def test_what_is_deleted_during_a_run_is_named(
    commands, bucket, data, proxy, moment, prefix, codes
):
    gate = proxy.add(Fault("gate", method="PUT|POST", path=f"_work.*{moment}", times=1))
    given = [*arguments(data, f"{bucket.uri}/out"), "--quiet"]
    running = commands.start(given, environment=os.environ)
    proxy.wait_for(gate, 1, running)
    for key in bucket.keys(prefix):
        bucket.delete(key)
    gate.gate.set()
    code, message = (ended := running.ended(120)).code, ended.said
    assert code in codes, message
    assert 1 <= len(message.splitlines()) <= 2
    assert f"{bucket.uri}/{prefix}" in message
    assert "Traceback" not in message
    assert bucket.keys("out/changelist.json") + bucket.keys("out/slices.parquet") == []
