"""A dry run touches nothing; domains, drift and hints of an earlier run."""

import gzip
import json
import re
import shlex
import shutil
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from scipy import stats

from slicebeam.metrics.errors import InputError
from slicebeam.metrics.significance.count_tests import p_more_frequent
from slicebeam.pipelines.changelist.document import Domain
from slicebeam.pipelines.commands import api
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.prepare import encoded_dataset
from slicebeam.pipelines.prepare.features import looks_like_output
from slicebeam.pipelines.prepare.inherited_domains import (
    InheritedDomains,
    checked_domain,
    drift_lines,
)
from slicebeam.pipelines.run.engine import Engine
from slicebeam.pipelines.search import dry_run as dry_runs
from slicebeam.runner_configs.dataflow import Dataflow
from slicebeam.transforms.encode.domains import ColumnSummary, FeatureDomain, FrozenDomain
from slicebeam.transforms.encode.predicates import Singleton
from tests.conftest import slow
from tests.refusals import refuses
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
    # The data of this test is here; what is in a bucket is read by the same functions.
    monkeypatch.setattr(Dataflow, "runs_on_other_machines", lambda _: None)
    engine = ["--runner-config=dataflow", "--runner-option=project=tests-project"]
    engine += ["--runner-option=region=europe-west1", "--runner-option=temp_location=gs://b/temp"]
    engine += ["--runner-option=num_workers=3", "--runner-option=setup_file=setup.py"]
    planned, stages = dry_run(capsys, data, *engine), ["domains", "encode", "iteration-1"]
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


def guessed(data, known):
    """What a plan takes for the columns of a search, and how many predicates these have."""
    sizes = {name: len(singles) for name, singles in known.domains().items()}
    config = search_config({"data": (str(data),), "output": "x", **ROLES_OF})
    sample = dry_runs.read_sample(config, [str(data)])
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
    monkeypatch.setattr(dry_runs, "_BLOCK_BYTES", 1 << 19)
    table, text = pq.read_table(adult_path), pa.BufferOutputStream()
    pa_csv.write_csv(table, text)
    content, path = text.getvalue().to_pybytes(), tmp_path / f"adult.{kind}"
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
    monkeypatch.setattr(dry_runs, "_SPLIT_ROWS", rows)
    sample, sizes = guessed(data, known)
    assert (sample.rows, sample.is_sampled) == (16281, False)
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
    assert message == "--resume has no effect with --dry-run; leave one out"


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
    sends = Mock(return_value=False)
    monkeypatch.setattr(Engine, "sends", sends)
    dry_run(capsys, data)
    planned = [call.args[0] for call in sends.call_args_list]
    sends.reset_mock()
    others = tuple(OTHERS.split("=")[1].split(","))
    search(tmp_path / "out", data=data, **ROLES_OF, exclude_features=others)
    assert len(planned) == 3
    assert [call.args[0] for call in sends.call_args_list[:3]] == pytest.approx(planned)


def test_a_check_too(data, tmp_path, capsys):
    known = search(tmp_path / "out", data=data, **ROLES_OF, features=("age", "sex"))
    arguments = ["check", f"--data={data}", f"--changelist={known.folder}/changelist.json"]
    assert run([*arguments, f"--output={tmp_path}/nowhere", "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["singletons"] == planned["conjunctions"] > 0
    assert [job["stage"] for job in planned["jobs"]] == ["encode", "iteration-1"]
    assert planned["jobs"][1]["candidates"] == planned["singletons"]
    assert not (tmp_path / "nowhere").exists()


def test_what_is_not_estimated_is_said(data, tmp_path, capsys):
    assert dry_run(capsys, data)["not_estimated"] == []
    assert len(dry_run(capsys, data, "--test=bootstrap-rows")["not_estimated"]) == 1
    earlier = shutil.copy(data, tmp_path / "earlier.parquet")
    search(tmp_path / "first", data=str(earlier), **ROLES_OF, max_cross_size=1)
    (since,) = dry_run(capsys, data, f"--since={tmp_path}/first/changelist.json")["not_estimated"]
    assert since.startswith("the data of the run of --since")
    compared = (f"--baseline-data={earlier}", "--metric=mean:age")
    assert len(dry_run(capsys, data, *compared)["not_estimated"]) == 1


def test_columns_of_scores_and_queries(data, capsys):
    rankings = ["--label=age", "--query=row_id", "--score=score", "--prediction=score_old"]
    planned = dry_run(capsys, data, *rankings, "--metric=mrr")
    assert [job["stage"] for job in planned["jobs"]][:3] == ["apart", "grouped", "domains"]
    assert "each row is counted as an example" in planned["not_estimated"][0]
    classes = ["--metric=brier_multiclass", "--score=score,score_old"]
    assert dry_run(capsys, data, *classes)["not_estimated"] == []


def shape(kind, data_type, *conditions, **more):
    singletons = [{"field": "x", "op": op, "value": value} for op, value in conditions]
    told = {"name": "x", "kind": kind, "data_type": data_type, "singletons": singletons}
    return Domain.model_validate({**told, "error": 0.0, "closed": True, **more})


NULL = ("is_null", None)
GOOD = {
    "bins": ("numeric", "double", ("<", 1), ("between", [1, 2.5]), ("==", 3.0), (">=", 4), NULL),
    "infinite": ("numeric", "double", ("<", "-Infinity"), ("==", "Infinity")),
    "one bin": ("numeric", "int64", (">=", 5)),
    "days": ("numeric", "date32[day]", ("<", "2024-01-03"), (">=", "2024-01-03")),
    "decimals": ("numeric", "decimal128(9, 2)", ("<", "1.50"), (">=", "10.00")),
    "words": ("categorical", "string", ("==", "a"), ("==", "b"), ("not_in", ["a", "b"]), NULL),
    "named later": ("categorical", "string", ("==", "a"), ("not_in", ["a", "b"]), NULL, ("==", "b")),
    "integers once missing": ("categorical", "double", ("==", 1), ("==", 2), NULL),
    "truth": ("categorical", "bool", ("==", False), ("==", True)),
    "lists of integers once missing": ("list", "double", ("contains", 1), ("contains", 2), NULL),
    "tags": ("list", "string", ("contains", "a"), ("contains", "b"), NULL),
}  # fmt: skip
BAD = {
    "no type": (shape("numeric", "int65", ("<", 1)), "data_type 'int65' is not a type"),
    "no digits": (shape("numeric", "decimal128(x)", ("<", "1")), "is not a type"),
    "binary": (shape("categorical", "binary", ("==", "a")), "has no categorical domain"),
    "bins of text": (shape("numeric", "string", ("<", "a")), "has no numeric domain"),
    "words of numbers": (shape("categorical", "double", ("==", 1.5)), "has no categorical domain"),
    "list of dates": (shape("list", "date32[day]", ("contains", "2024-01-01")), "has no list domain"),
    "list of fractions": (shape("list", "double", ("contains", 1.5)), "has no list domain"),
    "list of no integer": (shape("list", "double", NULL), "has no list domain"),
    "nothing": (shape("numeric", "double"), "it has no predicate"),
    "op": (shape("numeric", "double", ("not_in", [1])), "op 'not_in' is not one of a numeric domain"),
    "text": (shape("numeric", "double", ("<", "1")), "predicate 1: predicate values ['1'] do not fit a column of double"),
    "truth as number": (shape("numeric", "double", ("<", True)), "values [True] do not fit a column of double"),
    "truth as integer": (shape("categorical", "int64", ("==", True)), "values [True] do not fit a column of int64"),
    "fraction": (shape("categorical", "int64", ("==", 1.5)), "values [1.5] do not fit a column of int64"),
    "null": (shape("categorical", "string", ("==", None)), "needs a value, not None; missing values are matched"),
    "out of range": (shape("categorical", "int8", ("==", 300)), "do not fit a column of int8"),
    "no day": (shape("numeric", "date32[day]", ("<", "2024-13-01")), "do not fit a column of date32"),
    "pair": (shape("numeric", "double", ("between", [1])), "op 'between' needs [low, high]"),
    "is_null of": (shape("numeric", "double", ("is_null", 1)), "op 'is_null' takes no value"),
    "null first": (shape("numeric", "double", NULL, ("<", 1), (">=", 1)), "'is_null' is not the last"),
    "null among bins": (shape("numeric", "double", ("<", 1), NULL, (">=", 1)), "'is_null' is not the last"),
    "no bin": (shape("numeric", "double", NULL), "it has no bin"),
    "half a range": (shape("numeric", "double", ("<", 1), seen={"missing": 0, "low": 0.5}), "its low and high do not fit a numeric column"),
    "range of words": (shape("categorical", "string", ("==", "a"), seen={"missing": 0, "low": "a", "high": "b"}), "its low and high do not fit a numeric column"),
    "range of another type": (shape("numeric", "double", ("<", 1), seen={"missing": 0, "low": "a", "high": 1}), "values ['a'] do not fit a column of double"),
    "another column": (shape("numeric", "double", ("<", 1), name="y"), "predicate 1: it is a predicate on 'x'"),
    "nulls": (shape("categorical", "string", ("==", "a"), NULL, NULL), "or occurs twice"),
    "twice": (shape("categorical", "string", ("==", "a"), ("==", "a")), "have the same value"),
    "other others": (shape("categorical", "string", ("==", "a"), ("not_in", ["b"])), "'not_in' does not list the values"),
    "order": (shape("numeric", "double", ("between", [3, 4]), ("between", [1, 2])), "bin 1 is empty"),
    "overlap": (shape("numeric", "double", ("<", 2), (">=", 1)), "bin 1 is empty, overlaps the next"),
    "point in range": (shape("numeric", "double", ("==", 1), ("between", [1, 2])), "bin 1 is empty, overlaps the next one, or is out of order"),
    "empty bin": (shape("numeric", "double", ("between", [2, 2])), "'x in [2, 2)' contains no value"),
    "end in the middle": (shape("numeric", "double", (">=", 1), ("between", [2, 3])), "op '>=' is not at the right end of the bins"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_domains_that_a_run_writes(name):
    kind, data_type, *conditions = GOOD[name]
    given = shape(kind, data_type, *conditions)  # type: ignore[arg-type]
    domain = checked_domain(given)
    assert [(one.op, one.value) for one in domain.singletons] == conditions
    assert (domain.name, domain.kind, domain.data_type) == ("x", kind, data_type)


@pytest.mark.parametrize("name", BAD)
def test_domains_that_no_run_writes(name):
    given, message = BAD[name]
    refuses(InputError, re.escape(message), checked_domain, given)


NIGHTLY = {"label": "label", "prediction": "prediction", "max_cross_size": 1}


def night(folder, name, column):
    label = np.arange(len(column)) % 2
    prediction = np.where(np.arange(len(column)) % 5 == 0, 1 - label, label)
    path = folder / f"{name}.parquet"
    pq.write_table(pa.table({"x": column, "label": label, "prediction": prediction}), path)
    return str(path)


@pytest.mark.parametrize("last", [pa.int64(), pa.float64()], ids=str)
def test_lists_of_integers_that_were_doubles_for_a_night(tmp_path, last):
    nan = float("nan")
    nights = [
        pa.array([[1, 2], [3], [2]] * 100, pa.list_(pa.int64())),
        pa.array([[1.0, nan], [3.0], [2.0]] * 100, pa.list_(pa.float64())),
        pa.array([[1, 2, 4], [3], [4]] * 100, pa.list_(last)),
    ]
    since = {}
    for at, column in enumerate(nights):
        data = (night(tmp_path, f"night {at}", column),)
        found = search(tmp_path / f"out {at}", data=data, **NIGHTLY, **since)
        since = {"since": str(tmp_path / f"out {at}" / "changelist.json"), "compare": "overall"}
        sizes = dict(zip(found.table["slice"], found.table["n"], strict=True))
        values = {v for one in column.to_pylist() for v in one if v == v}
        assert {f"x contains {value:g}" for value in values} <= set(sizes)
        for value in values:
            held = sum(value in one for one in column.to_pylist())
            assert sizes[f"x contains {value:g}"] == held


@pytest.mark.parametrize("option", ["since", "since_if_exists", "domains"])
@pytest.mark.parametrize("dry", [False, True])
def test_errors_name_the_option_that_was_given(tmp_path, capsys, option, dry):
    first = night(tmp_path, "first", pa.array([1.5, 2.5, 4.0, 7.0] * 50))
    second = night(tmp_path, "second", pa.array(["a", "b"] * 100))
    search(tmp_path / "out", data=first, **NIGHTLY)
    document, flag = tmp_path / "out" / "changelist.json", "--" + option.replace("_", "-")
    arguments = ["search", f"--data={second}", "--label=label", "--prediction=prediction"]
    arguments += [f"--output={tmp_path}/new", f"{flag}={document}", *["--dry-run"] * dry]
    said = refused(arguments, capsys, folder=tmp_path)
    named = "--domains" if option == "domains" else "--since"
    why = (
        "column 'x' was double and is string now; cast it, or leave it out with --exclude-features"
    )
    assert said == f"{named} DIR/out/changelist.json: {why}"


@pytest.mark.parametrize("option", ["since", "domains"])
def test_the_remedy_where_most_values_are_in_one_slice(tmp_path, option):
    """What the line says to do is done, and cuts them."""
    rng = np.random.default_rng(4)
    first = night(tmp_path, "first", pa.array(rng.normal(size=1000)))
    second = night(tmp_path, "second", pa.array(rng.normal(50, 1, size=1000)))
    search(tmp_path / "out", data=first, **NIGHTLY)
    given = {option: str(tmp_path / "out" / "changelist.json"), "compare": "overall"}
    found = search(tmp_path / "new", data=second, **NIGHTLY, **given)
    (line,) = found.document["dataset"]["drift"]
    instead = "" if option == "since" else " instead of --domains"
    assert line.endswith(f"that is one slice, so bin the column again with --bins{instead}.")
    assert len(found.table) == 1
    given = given if option == "since" else {}
    assert len(search(tmp_path / "cut", data=second, bins=10, **NIGHTLY, **given).table) == 10


OPTIONS = {"label": "income", "prediction": "prediction", "score": "score"}
OPTIONS |= {"features": ("age", "sex", "workclass"), "max_cross_size": 2, "chunk_rows": 1000}


@pytest.mark.parametrize("options", [
    {"metric": ("auc",)},
    slow({"metric": ("log_loss", "accuracy"), "weight": "fnlwgt"}),
], ids=["auc", "weighted loss"])  # fmt: skip
@pytest.mark.slow
def test_workers_find_what_one_process_finds(tmp_path, adult_path, monkeypatch, options):
    given = {"data": (str(adult_path),), **OPTIONS, **options}
    alone = search(tmp_path / "alone", **given)
    monkeypatch.setattr(encoded_dataset, "LEAST_PASS_SECONDS", 0.0)
    write_parts = Mock(wraps=encoded_dataset.WriteParts)
    monkeypatch.setattr(encoded_dataset, "WriteParts", write_parts)
    together = search(tmp_path / "together", runner_config="direct_multi", **given)
    assert write_parts.call_count >= 2
    assert together.slices_bytes == alone.slices_bytes
    assert together.timeless() == alone.timeless()


@pytest.mark.parametrize(("examples", "before"), [(4000, 4000), (100, 5000), (10**6, 300)])
@pytest.mark.parametrize("then", [0, 1, 40])
def test_against_the_conditional_binomial(examples, before, then):
    now, share = np.array([0, 1, 2, 20, 45, 90]), examples / (examples + before)
    tested = [stats.binomtest(k, max(k + then, 1), share, "greater").pvalue for k in now.tolist()]
    expected = [1.0 if k + then == 0 else p for k, p in zip(now.tolist(), tested, strict=True)]
    assert p_more_frequent(now, examples, then, before) == pytest.approx(expected, rel=1e-9)


def test_false_alarms_stay_below_the_level():
    rng = np.random.default_rng(6)
    now, then = rng.binomial(2000, 0.02, 20_000), rng.binomial(3000, 0.02, 20_000)
    p = p_more_frequent(now, 2000, then, 3000)
    for level in (0.05, 0.01, 0.001):
        # Three standard errors above the level at the most.
        assert (p <= level).mean() <= level + 3 * np.sqrt(level / p.size)
    assert (p <= 0.05).mean() > 0.03


# Of a million examples 40,000 missing and 1,000 others.
BEFORE = ColumnSummary(40_000, 1_000, 500)


def noted(now, examples=10**6, seen=BEFORE):
    """The lines about a column that had a million examples before."""
    singletons = (Singleton("x", "==", "a"), Singleton("x", "not_in", ["a"]))
    then = FeatureDomain("x", "categorical", "string", singletons, seen=seen)
    given = InheritedDomains("DOC", {"x": FrozenDomain(then, 10**6)}, (), (), (), {}, None)
    return drift_lines(given, [replace(then, seen=now)], examples, 20)


def test_a_share_is_noted_where_it_grew_by_half_and_surely():
    # At a million examples a quarter more is certain, and is what any two nights differ by.
    assert float(p_more_frequent(50_000, 10**6, 40_000, 10**6)) < 1e-100
    assert noted(ColumnSummary(50_000, 1_000, 500)) == ()
    assert noted(ColumnSummary(59_000, 1_499, 500)) == ()
    assert noted(ColumnSummary(60_000, 1_499, 500)) == ("x: 6.0% missing, 4.0% in DOC.",)
    said = "x: 0.15% have other values, 0.10% in DOC."
    assert noted(ColumnSummary(20_000, 1_500, 500)) == (said,)
    # Of few examples, twice the share may be chance.
    assert noted(ColumnSummary(80, 0, 0), 1000) == ("x: 8.0% missing, 4.0% in DOC.",)
    assert noted(ColumnSummary(60, 0, 0), 1000) == ()
    assert noted(ColumnSummary(19, 0, 0), 100) == ()


AMONG = "that is one slice, so bin the column again with --top-values"


@pytest.mark.parametrize(("other", "is_most"), [(500_000, False), (500_001, True)])
def test_others_that_are_most_values(other, is_most):
    line = "x: 50.0% have other values, 0.10% in DOC"
    remedy = f"; {AMONG} instead of --domains" if is_most else ""
    assert noted(ColumnSummary(0, other, 500)) == (f"{line}{remedy}.",)
    (said,) = noted(ColumnSummary(40_000, other - 20_000, 500))
    assert (AMONG in said) == is_most
    assert (AMONG in noted(ColumnSummary(40_000, other - 20_001, 500))[0]) is False


@pytest.mark.parametrize("option", ["--domains", "--since"])
@pytest.mark.parametrize("side", ["below", "above"])
def test_values_beyond_an_end_that_are_most(option, side):
    singletons = (Singleton("x", "<", 0), Singleton("x", ">=", 0))
    seen = ColumnSummary(0, low=-5, high=7)
    then = FeatureDomain("x", "numeric", "double", singletons, seen=seen)
    given = InheritedDomains("DOC", {"x": FrozenDomain(then, 1000)}, (), (), (), {}, None, option)
    end = {"below": -5, "above": 7}[side]
    instead = " instead of --domains" if option == "--domains" else ""
    remedy = f"; that is one slice, so bin the column again with --bins{instead}"
    for count, said in ((400, ""), (401, remedy)):
        seen = replace(ColumnSummary(200, below=0, above=0), **{side: count})
        line = f"x: 20.0% missing, none in DOC; 40.{count - 400}% {side} {end}, none in DOC{said}."
        assert drift_lines(given, [replace(then, seen=seen)], 1000, 20) == (line,)


def test_others_that_were_most_values_before_are_no_news():
    assert noted(ColumnSummary(0, 900_000, 5), seen=ColumnSummary(0, 800_000, 5)) == ()


ROWS = 2000
FLAGS = ["--label=label", "--prediction=prediction", "--max-cross-size=1"]


def examples():
    draw = np.random.default_rng(5)
    label = (draw.random(ROWS) < 0.3).astype(int)
    return pa.table(
        {
            "label": label,
            "prediction": np.where(draw.random(ROWS) < 0.2, 1 - label, label),
            "group": draw.choice(list("pqrs"), ROWS),
            # The best honest feature: it leaves one in four of the errors.
            "strong": np.where(draw.random(ROWS) < 0.08, 1 - label, label),
            "amount": draw.normal(0, 1, ROWS),
            "problem": draw.choice(list("xy"), ROWS),
            "scoreOld, raw": draw.random(ROWS),
            "outcome": np.where(draw.random(ROWS) < 0.02, "new", np.where(label, "sold", "kept")),
            "margin": label + draw.normal(0, 0.05, ROWS),
            "account": np.append(np.arange(ROWS - 10), np.arange(10)),
            "user_id": draw.integers(0, ROWS, ROWS) + draw.permutation(ROWS),
        }
    )


NOTED = {"scoreOld, raw": "output", "outcome": "label", "margin": "label"}
NOTED |= {"account": "id", "user_id": "id"}
LOOK_LIKE_OUTPUTS = """
    score SCORE_OLD model-score baselineScore2 modelscore y_pred prob P(PROBA) class_probability
    predictions predicted_class scores pred_1 y_hat logits
"""
LOOK_OTHERWISE = """
    problem probation predecessor predator scotland improbable predicate spread hat capital.gain
"""
NAMES = dict.fromkeys(LOOK_LIKE_OUTPUTS.split(), True)
NAMES |= dict.fromkeys(LOOK_OTHERWISE.split(), False)


@pytest.mark.parametrize(("name", "looks"), NAMES.items())
def test_names_of_outputs(name, looks):
    assert looks_like_output(name) is looks


def test_columns_of_each_kind_are_noted_and_stay_features():
    dataset = api.search(examples(), **NIGHTLY).changelist.dataset
    assert {hint.name: hint.looks_like for hint in dataset.hints} == NOTED
    assert set(NOTED) < {domain.name for domain in dataset.domains}
    table = examples().to_pandas()
    reasons = {hint.name: hint.reason for hint in dataset.hints}
    distinct = table["account"].nunique()
    assert reasons["account"] == f"{distinct:,} distinct values in {ROWS:,}"
    # Each value of the outcome predicts its own most frequent class.
    most = table.groupby("outcome")["label"].agg(lambda own: own.value_counts().max()).sum()
    constant = table["label"].value_counts(normalize=True).max()
    said = f"predicts {most / ROWS:.1%} of the labels; {constant:.1%} are the most frequent one"
    assert reasons["outcome"] == said


def test_the_flag_of_the_line_leaves_them_out(tmp_path, capsys):
    pq.write_table(examples(), tmp_path / "data.parquet")
    command = ["search", f"--data={tmp_path}/data.parquet", f"--output={tmp_path}/out", *FLAGS]
    assert run(command) == 0
    text = " ".join(capsys.readouterr().out.split())
    (line,) = [f"--exclude-features={rest}" for rest in text.split("--exclude-features=")[1:]]
    assert "a model's output (scoreOld, raw); the label (outcome: predicts" in line
    flag = shlex.split(line[: line.index(" leaves out")])
    assert run([*command, *flag]) == 0
    assert "--exclude-features" not in capsys.readouterr().out
    document = json.loads((tmp_path / "out" / "changelist.json").read_text())
    assert document["dataset"]["hints"] == []
    domains = {one["name"] for one in document["dataset"]["domains"]}
    assert domains == {*examples().column_names} - {*NOTED, "label", "prediction"}


def test_json_and_the_log_have_them(tmp_path, capsys):
    pq.write_table(examples(), tmp_path / "data.parquet")
    command = ["search", f"--data={tmp_path}/data.parquet", f"--output={tmp_path}/out", *FLAGS]
    assert run([*command, "--json"]) == 0
    hints = json.loads(capsys.readouterr().out)["dataset"]["hints"]
    assert {hint["name"] for hint in hints} == set(NOTED)
    assert run([*command, "--log-format=json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (line,) = [one["text"] for one in events if one["event"] == "warning"]
    assert line.startswith("--exclude-features=")


@pytest.mark.slow
def test_order_and_chunks_of_the_examples_do_not_matter(tmp_path):
    sections = []
    for order in (np.arange(ROWS), np.lexsort([examples()["label"].to_numpy()])):
        pq.write_table(examples().take(order), tmp_path / "data.parquet", row_group_size=150)
        for chunk_rows in (150, 10_000):
            report = api.search(tmp_path / "data.parquet", chunk_rows=chunk_rows, **NIGHTLY)
            sections.append(report.changelist.dataset.model_copy(update={"uri": (), "name": ""}))
    assert all(one == sections[0] for one in sections)


def test_nothing_is_said_of_columns_that_the_user_named(capsys):
    found = api.search(examples(), features=["group", "outcome", "user_id"], **NIGHTLY)
    assert found.changelist.dataset.hints == ()
    # Where nothing would be left no flag is given.
    api.search(examples().select(["label", "prediction", "scoreOld, raw"]), **NIGHTLY).show()
    printed = " ".join(capsys.readouterr().out.split())
    assert "All features look like a model's output (scoreOld, raw)." in printed
    assert "--exclude-features" not in printed
