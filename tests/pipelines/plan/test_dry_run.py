"""A dry run: which jobs, with which options, at what cost; and nothing is touched."""

import gzip
import json
import shutil
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.registry import statistic_space
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.plan import cost_model, data_shape
from slicebeam.pipelines.plan.cost_model import Shape, estimate
from slicebeam.pipelines.plan.data_shape import ColumnShape, column_shapes, read_shape
from slicebeam.pipelines.plan.job_steps import steps_of
from tests.conftest import slow
from tests.running import refused, search

ROLES = ["--label=income", "--prediction=prediction"]
OTHERS = "--exclude-features=row_id,score,prediction_old,score_old"


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
    assert "Read examples/Read: ParDo(Read)" in large["jobs"][1]["steps"]
    assert large["jobs"][2]["steps"] == [
        "Combine slice metrics/Work items: Create",
        "Combine slice metrics/Count: ParDo(CountBlock)",
        "Test significance/Test: ParDo(TestBlock)",
    ]


def test_text_says_the_same(data, capsys):
    arguments = ["search", f"--data={data}", f"--output={data.parent}/nowhere", *ROLES, OTHERS]
    assert run([*arguments, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "nothing is submitted: this is what would run"
    assert "engine: direct" in lines
    assert any(line.startswith("data: 16,281 examples, ") for line in lines)
    assert any(line.startswith("estimate: about ") for line in lines)
    assert "  Learn domains/Learn: ParDo(LearnColumns)" in lines
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
    return {"data": (data,), "label": "income", "prediction": "prediction", "output": "x", **more}


def guessed(data, known):
    """What a plan takes for the columns of a search, and how many predicates these have."""
    sizes = {name: len(singles) for name, singles in known.domains().items()}
    shape = read_shape(search_config(_options(str(data))), [str(data)])
    found = column_shapes(shape, [*sizes], bins=10, top_values=100)
    assert set(found) == set(sizes)
    return shape, {name: (one.size, sizes[name]) for name, one in found.items()}


@pytest.fixture
def known(tmp_path, adult_path):
    roles = {"label": "income", "prediction": "prediction"}
    return search(tmp_path / "out", data=adult_path, **roles)


@pytest.mark.parametrize("kind", [slow("csv"), "csv.gz"])
@pytest.mark.slow
def test_text_is_sampled(tmp_path, adult_path, known, capsys, monkeypatch, kind):
    """Of a file larger than a block its rows are estimated, and its types are those of the block."""
    monkeypatch.setattr(data_shape, "_BLOCK_BYTES", 1 << 19)
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


@pytest.mark.slow
def test_footers_tell_about_how_many_values_there_are(data, known):
    shape, sizes = guessed(data, known)
    assert (shape.rows, shape.is_sampled) == (16281, False)
    one, size = np.sum(list(sizes.values()), axis=0)
    assert 0.7 < one / size < 1.4


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


def _shape(rows, repeats=3):
    columns = (ColumnShape(10, has_equal_bins=True), ColumnShape(30, has_equal_bins=False))
    return Shape(rows, 4, 6, 0, columns * repeats, statistic_space(("accuracy",), "overall"))


def test_costs_grow_with_the_data():
    config = search_config(_options("x.parquet"))
    seconds = [
        sum(stage.seconds for stage in estimate(config, _shape(rows), 1))
        for rows in (10_000, 100_000, 1_000_000, 10_000_000)
    ]
    assert seconds == sorted(seconds)
    assert 3 < seconds[3] / seconds[2] < 11
    written = {s.stage: s.written_bytes for s in estimate(config, _shape(1_000), 1)}
    # Six features of a byte, and the cell.
    assert written["encode"] == 7_000


def test_shuffled_bytes_are_those_of_blocks_that_are_dealt_out():
    config = search_config(_options("x.parquet") | {"strategy": "batch"})
    # One table of two features, which takes seconds.
    shape = _shape(2_000_000_000, repeats=1)
    costs = {
        workers: next(one for one in estimate(config, shape, workers) if "iteration" in one.stage)
        for workers in (1, 64)
    }
    assert costs[1].shuffled_bytes == 0
    assert costs[64].shuffled_bytes > 0


def test_tested_slices_of_independent_features_are_about_those_estimated():
    """Of data as the model assumes it, but for the dependence that real features have."""
    from itertools import combinations

    generator = np.random.default_rng(5)
    shape = _shape(40_000)
    lattice = shape.lattice(3)
    shares = [cost_model._shares(column) for column in shape.columns]
    codes = [generator.choice(one.size, shape.rows, p=one) for one in shares]
    counted = 0.0
    for level in (1, 2, 3):
        weight = cost_model.DEPENDENCE ** (level - 1)
        for chosen in combinations(range(len(codes)), level):
            joint = np.zeros(shape.rows, np.int64)
            for feature in chosen:
                joint = joint * shares[feature].size + codes[feature]
            counted += weight * int((np.bincount(joint) >= 20).sum())
    assert cost_model.tested_slices(shape, lattice, 20) == pytest.approx(counted, rel=0.1)


@pytest.mark.parametrize("look", [steps_of])
def test_a_job_that_is_only_looked_at_leaves_no_folder(look, tmp_path, monkeypatch):
    import apache_beam as beam

    made = []

    def build(pipeline):
        made.extend(tmp_path.iterdir())
        _ = pipeline | beam.Create([b""]) | beam.FlatMap(lambda _: [0])

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    look(build)
    assert len(made) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_check_too(data, tmp_path, capsys):
    roles = {"label": "income", "prediction": "prediction", "features": ("age", "sex")}
    known = search(tmp_path / "out", data=data, **roles)
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
