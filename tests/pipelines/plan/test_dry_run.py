"""A dry run: which jobs, with which options, at what cost; and nothing is touched."""

import gzip
import json
import shutil

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.cli import run
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.plan import data_sample
from slicebeam.pipelines.plan.data_sample import read_sample
from slicebeam.pipelines.run.engine import Engine
from tests.conftest import slow
from tests.running import refused, search

ROLES = ["--label=income", "--prediction=prediction"]
OTHERS = "--exclude-features=row_id,score,prediction_old,score_old"
ROLES_OF = {"label": "income", "prediction": "prediction"}


def dry_run(capsys, data, *more):
    output = data.parent / "nowhere"
    arguments = ["search", f"--data={data}", f"--output={output}", *ROLES, OTHERS, *more]
    assert run([*arguments, "--dry-run", "--json"]) == 0
    assert not output.exists()
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def data(tmp_path, adult_path):
    return shutil.copy(adult_path, tmp_path / "adult.parquet")


def test_jobs_and_options_of_dataflow(data, capsys, monkeypatch):
    """The jobs are those of a run, in its order, and the options those that Beam would get."""
    from slicebeam.runner_configs.dataflow import Dataflow

    # The data of this test is here; what is in a bucket is read by the same functions.
    monkeypatch.setattr(Dataflow, "runs_on_other_machines", lambda _: None)
    engine = ["--runner-config=dataflow", "--runner-option=project=tests-project"]
    engine += ["--runner-option=region=europe-west1", "--runner-option=temp_location=gs://b/temp"]
    engine += ["--runner-option=num_workers=3", "--runner-option=setup_file=setup.py"]
    planned = dry_run(capsys, data, *engine)
    stages = ["domains", "encode", "iteration-1"]
    assert [job["name"] for job in planned["jobs"]] == [f"slicebeam-RUN-{one}" for one in stages]
    # All of it is too small for machines that take minutes to start.
    assert not any(job["sent"] for job in planned["jobs"])
    options = planned["options"]
    assert options[:2] == ["--runner=DataflowRunner", "--job_name=slicebeam-RUN-stage"]
    assert {"--project=tests-project", "--num_workers=3", "--setup_file=./setup.py"} <= set(options)
    large = dry_run(capsys, data, *engine, "--runner-option=smallest_job_seconds=0")
    assert all(job["sent"] for job in large["jobs"])
    assert large["estimate"]["jobs"] == 3


def test_text_says_the_same(data, capsys):
    arguments = ["search", f"--data={data}", f"--output={data.parent}/nowhere", *ROLES, OTHERS]
    assert run([*arguments, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "nothing is submitted: this is what would run"
    assert "engine: direct" in lines
    assert any(line.startswith("data: 16,281 examples, ") for line in lines)
    assert any(line.startswith("job slicebeam-RUN-encode: on the engine; about ") for line in lines)
    assert any(line.startswith("estimate: about ") for line in lines)
    assert "  --direct_num_workers=1" in lines


def test_iterating_strategies_are_bounded(data, capsys):
    planned = dry_run(capsys, data, "--strategy=priority", "--iterations=4", "--max-candidates=999")
    counted = [job for job in planned["jobs"] if "iteration" in job["stage"]]
    assert [job["candidates"] for job in counted][1:] == [999] * 3
    assert planned["estimate"]["iterations"] == 4
    assert planned["estimate"]["is_bound"]
    levels = dry_run(capsys, data, "--strategy=iterative", "--max-cross-size=2")
    assert levels["estimate"]["iterations"] == 2
    assert sum(job["candidates"] for job in levels["jobs"]) == levels["conjunctions"]


def _options(data, **more):
    return {"data": (data,), "output": "x", **ROLES_OF, **more}


def guessed(data, known):
    """What a plan takes for the columns of a search, and how many predicates these have."""
    sizes = {name: len(singles) for name, singles in known.domains().items()}
    sample = read_sample(search_config(_options(str(data))), [str(data)])
    found = sample.domains([*sizes], bins=10, top_values=100)
    assert set(found) == set(sizes)
    return sample, {name: (one.size, sizes[name]) for name, one in found.items()}


@pytest.fixture
def known(tmp_path, adult_path):
    return search(tmp_path / "out", data=adult_path, **ROLES_OF)


@pytest.mark.parametrize("kind", [slow("csv"), "csv.gz"])
@pytest.mark.slow
def test_text_is_sampled(tmp_path, adult_path, known, capsys, monkeypatch, kind):
    """Of a file larger than a block its rows are estimated, and its types are those of the block."""
    monkeypatch.setattr(data_sample, "_BLOCK_BYTES", 1 << 19)
    table = pq.read_table(adult_path)
    text = pa.BufferOutputStream()
    pa_csv.write_csv(table, text)
    content = text.getvalue().to_pybytes()
    path = tmp_path / f"adult.{kind}"
    path.write_bytes(gzip.compress(content, 1) if kind == "csv.gz" else content)
    planned = dry_run(capsys, path)
    assert planned["is_sampled"]
    assert planned["rows"] == pytest.approx(table.num_rows, rel=0.12)
    assert planned["jobs"][0]["name"] == "slicebeam-RUN-convert"
    _, sizes = guessed(path, known)
    # Rare values may not be in the first block.
    assert all(0.6 * size <= one <= 1.2 * size for one, size in sizes.values())


@pytest.mark.parametrize("rows", [16_281, 4096])
@pytest.mark.slow
def test_a_sample_tells_about_how_many_values_there_are(data, known, monkeypatch, rows):
    monkeypatch.setattr(data_sample, "_SPLIT_ROWS", rows)
    sample, sizes = guessed(data, known)
    assert (sample.rows, sample.is_sampled) == (16281, False)
    # Of all examples they are exact.
    assert all((0.6 if rows < 16_281 else 1) * size <= one <= size for one, size in sizes.values())


@pytest.mark.slow
def test_domains_of_an_earlier_run_are_not_guessed(data, known, capsys):
    planned = dry_run(capsys, data, f"--domains={known.folder}/changelist.json")
    names = set(known.domains()) - {"row_id", "score", "prediction_old", "score_old"}
    assert planned["singletons"] == sum(len(known.domains()[name]) for name in names)
    assert not planned["is_guessed"]
    # The values are read for what is new among them.
    assert [job["stage"] for job in planned["jobs"]] == ["domains", "encode", "iteration-1"]


def test_what_is_wrong_is_said_at_once(data, tmp_path, capsys):
    arguments = ["search", f"--data={data}", "--output=x", "--prediction=prediction", "--dry-run"]
    message = refused([*arguments, "--label=incom"], capsys, folder=tmp_path)
    assert message.startswith("--label: unknown column 'incom'; did you mean 'income'?")
    message = refused([*arguments, "--label=income", "--resume"], capsys, folder=tmp_path)
    assert message == "--resume has no effect with --dry-run, which runs no job"


def test_costs_grow_with_the_data(data, capsys):
    table = pq.read_table(data)
    for copies in (1, 8):
        pq.write_table(pa.concat_tables([table] * copies), data)
        planned = dry_run(capsys, data)
        seconds = {job["stage"]: job["seconds"] for job in planned["jobs"]}
        # Reading a value takes 4e-8 s: of ten features, label and prediction to encode them.
        names = planned["features"]
        assert seconds["domains"] == pytest.approx(copies * 16_281 * names * 4e-8)
        assert seconds["encode"] == pytest.approx(copies * 16_281 * (names + 2) * 4e-8)
        assert planned["estimate"]["cpu_seconds"] > sum(seconds.values())


def test_a_run_sends_what_its_dry_run_says(data, tmp_path, capsys, monkeypatch):
    """Both ask with the same seconds whether a job is worth sending."""
    asked = []

    def sends(_, seconds):
        asked.append(seconds)
        return False

    monkeypatch.setattr(Engine, "sends", sends)
    dry_run(capsys, data)
    planned = asked.copy()
    asked.clear()
    search(
        tmp_path / "out",
        data=data,
        **ROLES_OF,
        exclude_features=tuple(OTHERS.split("=")[1].split(",")),
    )
    assert len(planned) == 3
    assert asked[:3] == pytest.approx(planned)


def test_a_check_too(data, tmp_path, capsys):
    known = search(tmp_path / "out", data=data, **ROLES_OF, features=("age", "sex"))
    arguments = ["check", f"--data={data}", f"--changelist={known.folder}/changelist.json"]
    assert run([*arguments, f"--output={tmp_path}/nowhere", "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["singletons"] == planned["conjunctions"] > 0
    assert [job["stage"] for job in planned["jobs"]] == ["encode", "iteration-1"]
    assert planned["jobs"][1]["candidates"] == planned["singletons"]
    assert not (tmp_path / "nowhere").exists()


def test_replicates_are_not_estimated_and_this_is_said(data, capsys):
    assert dry_run(capsys, data)["not_estimated"] == []
    assert len(dry_run(capsys, data, "--test=bootstrap-rows")["not_estimated"]) == 1
