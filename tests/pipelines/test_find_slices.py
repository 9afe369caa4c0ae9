"""`FindSlices` in a user's pipeline finds what the command finds, byte for byte, whatever runs twice."""

import runpy
from typing import NamedTuple

import apache_beam as beam
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from slicebeam.metrics.errors import ColumnError, InputError, OptionError
from slicebeam.pipelines.api import FindSlices
from slicebeam.pipelines.python import find_slices
from slicebeam.transforms.encode import write_examples
from slicebeam.transforms.encode.extract_slice_keys import encode_chunk, read_chunks
from slicebeam.transforms.storage.parts import write_part
from tests.conftest import slow
from tests.engines import programs
from tests.object_stores import ROOT
from tests.running import search

OPTIONS = {"label": "income", "prediction": "prediction", "features": ("age", "sex")}
AUC = {"label": "income", "score": "score", "baseline_score": "score_old", "metric": ("auc",)}
AUC |= {"features": ("age", "race")}


class Example(NamedTuple):
    age: int
    sex: str
    income: int
    prediction: int


@pytest.fixture(scope="module")
def table(adult_path):
    return pq.read_table(adult_path, columns=[*Example._fields]).slice(0, 3000)


@pytest.fixture(scope="module")
def expected(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("expected")
    pq.write_table(table, folder / "data.parquet")
    return search(folder, data=folder / "data.parquet", strategy="batch", **OPTIONS)


def test_rows_of_any_form_and_order(table, expected, tmp_path):
    dicts = table.slice(2000).to_pylist()
    rows = [beam.Row(**row) for row in table.slice(0, 500).to_pylist()]
    rows += [Example(**row) for row in table.slice(500, 500).to_pylist()]
    examples = [*dicts, *rows, table.slice(1000, 600), table.slice(1600, 400).to_batches()[0]]
    (tmp_path / "found").mkdir()
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        slices = pipeline | beam.Create(examples) | FindSlices(output=str(tmp_path), **OPTIONS)
        slices | beam.Map(lambda row: (tmp_path / "found" / row["slice_id"]).touch())
    assert (tmp_path / "slices.parquet").read_bytes() == expected.slices_bytes
    found = {path.name for path in (tmp_path / "found").iterdir()}
    assert found == set(expected.table["slice_id"])


@pytest.fixture(scope="module")
def rows(expected):
    return pq.read_table(expected.folder / "slices.parquet").to_pylist()


def steps(tmp_path, tables, options=OPTIONS):
    """The steps of the graph, each twice as where a bundle is tried again, without Beam."""
    config = FindSlices(output=str(tmp_path), **options).config

    def twice(function, *arguments):
        function(*arguments)
        return function(*arguments)

    files = [*write_examples.write_tables(tmp_path / "examples", (0, tables))]
    begun = twice(find_slices._begun, config, files)
    groups = list(find_slices._column_groups(begun))
    encoded = twice(find_slices._encoded, begun, [twice(write_part, *group) for group in groups])
    chunks = [
        one
        for part in encoded.encoding.source.splits
        for one in read_chunks(part, encoded.encoding)
    ]
    planned = twice(
        find_slices._planned,
        encoded,
        [twice(encode_chunk, one, encoded.encoding) for one in chunks],
    )
    return begun, planned


def count_all(plan):
    from slicebeam.transforms.count.tables import count_block, write_p_values

    return [write_p_values(count_block(one, plan.config), plan.config) for one in plan.items]


def test_steps_may_run_twice(table, expected, rows, tmp_path):
    begun, planned = steps(tmp_path, [table.slice(0, 1200), table.slice(1200)])
    blocks = count_all(planned) + count_all(planned)
    first = [list(find_slices._published(begun, blocks)) for _ in range(2)]
    assert first[0] == first[1] == rows
    assert (tmp_path / "slices.parquet").read_bytes() == expected.slices_bytes
    assert not (tmp_path / "_work").exists()


@pytest.mark.parametrize("options", [
    pytest.param(AUC, id="scores of two models"),
    slow({**OPTIONS, "group": "fnlwgt", "weight": "fnlwgt"}, id="groups and weights"),
    slow({**AUC, "metric": ("brier", "log_loss"), "baseline_score": None}, id="values"),
])  # fmt: skip
def test_metrics_that_take_several_passes(options, adult_path, tmp_path):
    options = {name: value for name, value in options.items() if value is not None}
    whole = pq.read_table(adult_path).slice(0, 2500)
    pq.write_table(whole, tmp_path / "data.parquet")
    begun, planned = steps(tmp_path / "found", [whole.slice(1000), whole.slice(0, 1000)], options)
    count_all(planned)
    assert list(find_slices._published(begun, []))
    alone = search(tmp_path, data=tmp_path / "data.parquet", strategy="batch", **options)
    assert (tmp_path / "found" / "slices.parquet").read_bytes() == alone.slices_bytes


def test_the_driver_does_nothing_again(table, rows, tmp_path, monkeypatch):
    def again(*_):
        raise AssertionError("done again")

    names = ("search_graph.encode_chunk", "search_graph.count_block", "storage.parts.write_part")
    for name in names:
        monkeypatch.setattr(f"slicebeam.transforms.{name}", again)
    begun, planned = steps(tmp_path, [table])
    count_all(planned)
    assert list(find_slices._published(begun, [])) == rows


def test_another_pipeline_begins_anew(table, rows, tmp_path):
    steps(tmp_path, [table.slice(0, 500)])
    begun, planned = steps(tmp_path, [table])
    count_all(planned)
    assert list(find_slices._published(begun, [])) == rows


@pytest.mark.parametrize(("options", "message"), [
    ({"data": "x.parquet"}, "FindSlices takes no data: the examples are the PCollection"),
    ({"confirm": 0.3}, "FindSlices takes no confirm: the examples of a PCollection have no order"),
    ({"runner_config": "flink"}, "takes no runner_config: the pipeline has its own runner"),
    ({"model": "m.pkl"}, "takes no model: put RunInference before it, and name the column"),
    ({"strategy": "priority"}, "takes no strategy: it visits every conjunction"),
    ({"iterations": 3}, "takes no iterations: it visits every conjunction"),
    ({"lable": "x"}, "unknown option 'lable'; did you mean 'label'?"),
    ({"metric": "acuracy"}, "did you mean 'accuracy'?"),
])  # fmt: skip
def test_wrong_options_are_refused_where_the_pipeline_is_made(options, message):
    with pytest.raises((OptionError, InputError)) as error:
        FindSlices(**{"output": "out", **OPTIONS, **options})
    assert message in str(error.value)


def test_wrong_examples(table, tmp_path):
    for rows, message in (
        ([{"x": 1}, {"x": "a"}], r"column 'x' has no common type"),
        ([5], "an example is a int; make it a dict, a schema row"),
    ):
        with pytest.raises((ColumnError, InputError), match=message):
            write_examples.table_of([write_examples._mapping(row) for row in rows])
    config = FindSlices(output=str(tmp_path), **OPTIONS).config
    with pytest.raises(InputError, match="there are no examples in the PCollection"):
        find_slices._begun(config, [])
    with pytest.raises(ColumnError, match="--label: unknown column 'income'"):
        steps(tmp_path, [table.drop_columns(["income"])])


@pytest.mark.engine
def test_the_example_on_flink(adult_path, tmp_path, monkeypatch, capfd):
    flags = ["--runner=FlinkRunner", "--flink_master=[local]", "--environment_type=LOOPBACK"]
    flags += [f"--flink_job_server_jar={programs.flink_job_server()}", "--parallelism=2"]
    example = runpy.run_path(str(ROOT / "examples" / "beam_pipeline.py"))
    monkeypatch.chdir(ROOT)
    example["main"](str(tmp_path / "flink"), flags)
    roles = {*example["OPTIONS"].values()}
    features = tuple(name for name in example["COLUMNS"] if name not in roles)
    options = example["OPTIONS"] | {"features": features}
    found = search(tmp_path / "alone", data=adult_path, strategy="batch", **options)
    assert (tmp_path / "flink" / "slices.parquet").read_bytes() == found.slices_bytes
    assert "of " in capfd.readouterr().out
