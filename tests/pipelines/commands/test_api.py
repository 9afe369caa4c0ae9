"""Commands from Python, and `FindSlices` in a user's pipeline, find what the command line finds."""

import html
import json
import re
import runpy
import sys
import tempfile
import types
from pathlib import Path
from typing import NamedTuple

import apache_beam as beam
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

import slicebeam.pipelines.search.search
from slicebeam.metrics.errors import (
    ColumnError,
    EngineError,
    FileError,
    InputError,
    OptionError,
    StorageError,
)
from slicebeam.pipelines.commands import find_slices
from slicebeam.pipelines.commands.api import FindSlices, check, define, edit, report, search, shift
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.commands.python_runs import arrow_table
from slicebeam.pipelines.search.search import run_search
from slicebeam.transforms.encode import write_examples
from slicebeam.transforms.encode.extract_slice_keys import encode_chunk, read_chunks
from slicebeam.transforms.storage.parts import write_part
from tests import running
from tests.conftest import slow
from tests.engines import programs
from tests.object_stores import ROOT
from tests.publications import Written, publish_set
from tests.refusals import refuses
from tests.shift_runs import made

OPTIONS = {"label": "income", "prediction": "prediction", "features": ["age", "education", "sex"]}
FLAGS = ["--label=income", "--prediction=prediction", "--features=age,education,sex"]
SHIFT = {"label": "label", "old_prediction": "old", "replay_prediction": "new"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def told(report):
    return timeless(json.loads(report.changelist.to_json()))


def timeless(content):
    for name in ("created_at", "changelist_id", "provenance", "slices_uri", "search"):
        content.pop(name, None)
    del content["dataset"]["uri"], content["dataset"]["name"]
    return content


def test_a_table_of_another_run_is_not_returned(adult_path, tmp_path, monkeypatch):
    """Even where the other one published as soon as this one had."""

    def overtaken(*arguments, **options):
        published = run_search(*arguments, **options)
        publish_set(tmp_path, Written("another"))
        return published

    monkeypatch.setattr(slicebeam.pipelines.search.search, "run_search", overtaken)
    with pytest.raises(EngineError, match="was replaced by another run before it could be read"):
        search(str(adult_path), **OPTIONS, output=tmp_path)


def test_a_search_of_a_table(adult_path, tmp_path, folder):
    assert run(["search", f"--data={adult_path}", *FLAGS, f"--output={tmp_path}", "--quiet"]) == 0
    table = pq.read_table(tmp_path / "slices.parquet")
    document = json.loads((tmp_path / "changelist.json").read_text())
    data = pq.read_table(adult_path)
    # An index of pandas without a name is no feature.
    frame = data.to_pandas().set_index(pd.Index(range(7, 7 + data.num_rows)))
    kept = search(str(adult_path), **OPTIONS, output=tmp_path / "kept")
    for given in (data, frame, [adult_path]):
        found = search(given, **OPTIONS)
        assert found.slices.equals(table)
        assert found.path is None
        assert told(found) == told(kept)
    assert document["summary"] in repr(kept)
    assert kept.path == str(tmp_path / "kept" / "changelist.json")
    assert Path(kept.path).exists()
    assert told(kept) == timeless(document)
    assert list(folder.iterdir()) == []


def test_a_column_that_parquet_cannot_store_is_left_out(adult_path):
    table = pq.read_table(adult_path, columns=["age", "income", "prediction"])
    intervals = pa.array([(1, 2, 3)] * table.num_rows, pa.month_day_nano_interval())
    roles = {"label": "income", "prediction": "prediction"}
    found = search(table.append_column("since", intervals), **roles).changelist
    (left_out,) = found.dataset.left_out
    assert left_out.name == "since"
    assert left_out.reason == "Parquet cannot store month_day_nano_interval"
    with pytest.raises(ColumnError, match=r"^group: column 'since' cannot be read"):
        search(table.append_column("since", intervals), **roles, group="since")


@pytest.mark.slow
def test_a_check_of_a_table(adult, adult_path, tmp_path):
    earlier = search(adult_path, **OPTIONS, output=str(tmp_path / "earlier"))
    name = earlier.changelist.slices[0].name
    found = check(adult, changelist=earlier.path, explain=name)
    flags = [f"--data={adult_path}", f"--changelist={earlier.path}", "--quiet"]
    assert run(["check", *flags, f"--output={tmp_path}/flags"]) == 0
    assert found.slices.equals(pq.read_table(tmp_path / "flags" / "slices.parquet"))
    assert any(name in line for line in found.explanation)


def test_a_shift_of_a_table(tmp_path):
    frame = made()
    frame.to_parquet(tmp_path / "pool.parquet")
    flags = ["--data", str(tmp_path / "pool.parquet"), "--label=label", "--old-prediction=old"]
    flags += ["--replay-prediction=new", "--budget=150", "--by=part", "--quiet"]
    assert run(["shift", *flags, f"--output={tmp_path}"]) == 0
    document = json.loads((tmp_path / "changelist.json").read_text())
    found = shift(pa.Table.from_pandas(frame), **SHIFT, budget=150, by="part")
    assert told(found) == timeless(document)
    changes = [one["changes"][0] for one in document["slices"]]
    assert found.slices["slice"].to_pylist() == [one["name"] for one in document["slices"]]
    assert found.slices["delta"].to_pylist() == [one["delta"]["value"] for one in changes]
    assert found.slices["q_value"].to_pylist() == [one["p_adjusted"] for one in changes]
    assert sum(found.slices["n"].to_pylist()) == len(frame)


def test_findings_are_a_table(adult):
    found = search(adult, **OPTIONS)
    names = {one.slice_id: one.name for one in found.changelist.slices}
    rows = found.findings.to_pylist()
    assert [one["slice_id"] for one in rows] == [one.slice_id for one in found.changelist.findings]
    assert [one["slice"] for one in rows] == [names[one["slice_id"]] for one in rows]
    first = found.changelist.findings[0]
    assert (rows[0]["rank"], rows[0]["n"], rows[0]["value"]) == (1, first.n, first.value)
    assert (rows[0]["ci_low"], rows[0]["ci_high"]) == first.interval
    corrected = [rows[0][name] for name in ("corrected", "corrected_low", "corrected_high")]
    assert corrected == list(first.corrected.model_dump().values())
    assert {one["slice_id"] for one in rows} <= set(found.slices["slice_id"].to_pylist())
    none = shift(made(), **SHIFT, budget=100).findings
    assert (none.num_rows, none.schema) == (0, found.findings.schema)


@pytest.mark.slow
def test_it_is_shown_as_the_command_does(adult, adult_path, tmp_path, capsys):
    assert run(["search", f"--data={adult_path}", *FLAGS, f"--output={tmp_path}"]) == 0
    printed = capsys.readouterr().out.splitlines()
    found = search(adult, **OPTIONS)
    assert capsys.readouterr() == ("", "")
    found.show()
    shown = capsys.readouterr().out.splitlines()
    assert shown[:-1] == printed[:-1]
    paths = [tmp_path / name for name in ("changelist.json", "slices.parquet")]
    assert printed[-1] == f"Ids and all numbers: {paths[0]}; all slices: {paths[1]}"
    assert shown[-1] == "Ids and all numbers: .findings, .changelist; all slices: .slices"
    search(adult, **OPTIONS, score="score", metric="auc", max_cross_size=1).show()
    printed_text = capsys.readouterr().out
    assert "value_error in the table of slices" in printed_text
    assert "slices.parquet" not in printed_text
    search(adult, **OPTIONS, progress=True)
    assert "iteration 1" in capsys.readouterr().err
    shift(made(), **SHIFT, budget=100).show()
    assert "of 600 items were queried" in capsys.readouterr().out


def test_slices_may_be_named_like_files(adult, tmp_path, capsys):
    odd, most = "rows of changelist.json", 12
    few = "".join(f"- age >= {200 + number}\n" for number in range(most))
    (tmp_path / "slices.yaml").write_text(
        "- {name: findings in changelist.json, predicate: sex = Female}\n"
        "- {name: slices.parquet, predicate: age >= 199}\n"
        f"- {{name: {odd}, predicate: 'education = changelist.json'}}\n{few}"
    )
    frame = adult.assign(education=adult["education"].replace("Masters", "changelist.json"))
    told = {"slices": f"{tmp_path}/slices.yaml", "label": "income", "prediction": "prediction"}
    check(frame, **told).show()
    shown = capsys.readouterr().out
    assert "findings in changelist.json" in shown
    assert odd in shown
    assert "Slice slices.parquet (age >= 199) was not tested: no examples now." in shown
    assert "more: column reason of the table of slices." in shown
    assert shown.splitlines()[-1].endswith("all slices: .slices")


def test_a_notebook_shows_the_page(adult, monkeypatch, capsys):
    """What a notebook defines stands in for IPython, which is no dependency."""
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr("rich.console.get_ipython", lambda: shell, raising=False)
    shown = []
    module = types.SimpleNamespace(display=shown.append, HTML=str)
    monkeypatch.setitem(sys.modules, "IPython.display", module)  # type: ignore[arg-type]
    found = search(adult, **OPTIONS)
    found.show()
    [frame] = shown
    assert frame.startswith("<iframe srcdoc=")
    assert 'sandbox="allow-scripts allow-downloads"' in frame
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("metric", "table"), [
    ("accuracy", "Accuracy, worse than expected (over all examples .872):"),
    ("auc", "auc:"),
])  # fmt: skip
def test_a_cell_ends_with_the_verdict_and_the_findings(adult, metric, table):
    frame = adult.assign(sex=adult["sex"].replace("Female", "<script>alert(1)</script>"))
    found = search(frame, **{**OPTIONS, "prediction": None, "score": "score", "metric": metric})
    shown = found._repr_html_()
    assert len(shown) < 100_000
    assert html.escape(found.changelist.summary) in shown
    assert table in shown
    (first, *_) = found.findings["slice"].to_pylist() or [found.changelist.slices[0].name]
    assert f">{html.escape(first)}</td>" in shown
    assert "<script" not in shown


def test_in_a_notebook(adult, monkeypatch):
    """Beam does more there, for which it needs other packages."""
    monkeypatch.setattr("apache_beam.utils.interactive_utils.is_in_ipython", lambda: True)
    before = beam.pipeline.alter_label_if_ipython
    assert search(adult, **OPTIONS).slices.num_rows > 0
    assert beam.pipeline.alter_label_if_ipython is before


@pytest.mark.parametrize(("options", "kind", "message"), [
    ({"lable": "x"}, OptionError, "unknown option 'lable'; did you mean 'label'"),
    ({"label": 3}, OptionError, "label: 3 is not text"),
    ({"label": "incom"}, ColumnError, "'incom'"),
    ({"data": "x"}, OptionError, "the data is the first argument"),
    ({"max_cross_size": "two"}, OptionError, "max_cross_size"),
    ({"resume": True}, OptionError, "give it as output="),
    ({"score": "score", "metric": "log_loss,brier_multiclass"}, OptionError, "a list of them; measure it in a run"),
    ({"prediction": None, "score": "score", "metric": "error_rate,brier_multiclass"}, OptionError, "a list of them; give pred"),
])  # fmt: skip
def test_wrong_options(adult, options, kind, message):
    refuses(kind, re.escape(message), search, adult, **{**OPTIONS, **options})


def test_wrong_data(folder):
    for data in (3, {"a": 1}, [1, "x"], None):
        refuses(InputError, "cannot be read as data", search, data, **OPTIONS)
    for path in ("nowhere.parquet", Path("nowhere.parquet")):
        refuses(InputError, "no such file", search, path, **OPTIONS)
    assert list(folder.iterdir()) == []


def test_what_is_paid_is_kept(tmp_path):
    with pytest.raises(InputError, match="give output= or ledger="):
        shift(made(), label="label", old_prediction="old", api=tmp_path / "api.yaml", budget=100)
    with pytest.raises(InputError, match="use them on the command line"):
        shift(made(), label="label", old_prediction="old", budget=100, plan=True)


class Capsule:
    """A table of a library of its own, which gives Arrow its columns."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def test_a_table_of_any_library_with_arrow_capsules(adult_path):
    table = pq.read_table(adult_path)
    place = table.schema.get_field_index("sex")
    views = table["sex"].cast(pa.string()).cast(pa.string_view())
    found = search(Capsule(table.set_column(place, "sex", views)), **OPTIONS)
    assert found.slices.equals(search(table, **OPTIONS).slices)


def test_a_table_of_polars(adult_path):
    found = search(pytest.importorskip("polars").read_parquet(adult_path), **OPTIONS)
    assert found.slices.equals(search(adult_path, **OPTIONS).slices)


def test_views_in_lists_and_dictionaries():
    texts = pa.array(["a", "b"], pa.string_view())
    table = pa.table(
        {
            "list": pa.array([["a"], ["b"]], pa.list_(pa.string_view())),
            "dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 1]), texts),
            "bytes": pa.array([b"a", b"b"], pa.binary_view()),
        }
    )
    found = arrow_table(Capsule(table))
    dictionary = "dictionary<values=large_string, indices=int64, ordered=0>"
    types = ["large_list<item: large_string>", dictionary, "large_binary"]
    assert [str(one) for one in found.schema.types] == types
    assert found.to_pylist() == table.to_pylist()


def test_errors_are_caught_by_kind(adult, tmp_path):
    refuses(FileError, "no such file", search, tmp_path / "nowhere.parquet", **OPTIONS)
    refuses(FileError, "no such file", check, adult, changelist=tmp_path / "nowhere.json")
    # A file of the user's by its name; a table in memory has none.
    refuses(
        FileError, "slicebeam-a/data.parquet: no", search, "slicebeam-a/data.parquet", **OPTIONS
    )
    refuses(InputError, "^the data: there are no examples", search, adult.iloc[:0], **OPTIONS)
    (tmp_path / "file").touch()
    with pytest.raises((StorageError, FileError)):
        search(adult, **OPTIONS, output=tmp_path / "file" / "out")
    assert issubclass(StorageError, EngineError)
    assert all(issubclass(one, InputError) for one in (OptionError, ColumnError, FileError))


@pytest.mark.slow
def test_documents_are_edited(adult_path, tmp_path):
    """As the commands do, and what they print is returned."""
    search(adult_path, **OPTIONS, output=tmp_path)
    made = define(tmp_path, name="young women", where="age < 25 & sex = Female")
    assert made.document.slices[-1].name == "young women"
    assert made.path == tmp_path / "changelist.r1.json"
    assert made.summary == "defined slice 'young women'"
    renamed = edit.rename(tmp_path, slice="young women", name="girls")
    assert [one.name for one in renamed.changed] == ["girls"]
    edit.undo(tmp_path)
    assert [one.op for one in edit.log(tmp_path)] == ["add_slice", "rename", "undo"]
    with pytest.raises(OptionError, match="unknown option 'nam'; did you mean 'name'"):
        edit.rename(tmp_path, slice="young women", nam="girls")
    refuses(OptionError, "^name is missing", edit.rename, tmp_path, slice="young women")
    refuses(OptionError, "^changelist is missing", report, None)
    refuses(OptionError, "a slice needs exactly one of", define, tmp_path, name="x")


ROLES = {"label": "income", "prediction": "prediction", "features": ("age", "sex")}
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
    return running.search(folder, data=folder / "data.parquet", strategy="batch", **ROLES)


def test_rows_of_any_form_and_order(table, expected, tmp_path):
    dicts = table.slice(2000).to_pylist()
    rows = [beam.Row(**row) for row in table.slice(0, 500).to_pylist()]
    rows += [Example(**row) for row in table.slice(500, 500).to_pylist()]
    examples = [*dicts, *rows, table.slice(1000, 600), table.slice(1600, 400).to_batches()[0]]
    (tmp_path / "found").mkdir()
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        slices = pipeline | beam.Create(examples) | FindSlices(output=str(tmp_path), **ROLES)
        slices | beam.Map(lambda row: (tmp_path / "found" / row["slice_id"]).touch())
    assert (tmp_path / "slices.parquet").read_bytes() == expected.slices_bytes
    found = {path.name for path in (tmp_path / "found").iterdir()}
    assert found == set(expected.table["slice_id"])


def test_a_pipeline_compares_the_published_slices(table, expected, tmp_path):
    """The data of the earlier run is not read: the pipeline has encoded its own examples alone."""
    since = str(expected.folder / "changelist.json")
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        examples = pipeline | beam.Create([table.slice(0, 1500)])
        examples | FindSlices(output=str(tmp_path), since=since, **ROLES)
    document = running.read(tmp_path).document
    assert document["since"]["compared"] > 0
    assert "earlier_data" not in document


@pytest.fixture(scope="module")
def rows(expected):
    return pq.read_table(expected.folder / "slices.parquet").to_pylist()


def steps(tmp_path, tables, options=ROLES):
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
    slow({**ROLES, "group": "fnlwgt", "weight": "fnlwgt"}, id="groups and weights"),
    slow({**AUC, "metric": ("brier", "log_loss"), "baseline_score": None}, id="values"),
])  # fmt: skip
def test_metrics_that_take_several_passes(options, adult_path, tmp_path):
    options = {name: value for name, value in options.items() if value is not None}
    whole = pq.read_table(adult_path).slice(0, 2500)
    pq.write_table(whole, tmp_path / "data.parquet")
    begun, planned = steps(tmp_path / "found", [whole.slice(1000), whole.slice(0, 1000)], options)
    count_all(planned)
    assert list(find_slices._published(begun, []))
    alone = running.search(tmp_path, data=tmp_path / "data.parquet", strategy="batch", **options)
    assert (tmp_path / "found" / "slices.parquet").read_bytes() == alone.slices_bytes


def test_the_driver_does_nothing_again(table, rows, tmp_path, monkeypatch):
    def again(*_):
        raise AssertionError("done again")

    names = (
        "count.search_graph.encode_chunk",
        "count.search_graph.count_block",
        "storage.parts.write_part",
    )
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
        FindSlices(**{"output": "out", **ROLES, **options})
    assert message in str(error.value)


def test_wrong_examples(table, tmp_path):
    for rows, message in (
        ([{"x": 1}, {"x": "a"}], r"column 'x' has no common type"),
        ([5], "an example is a int; make it a dict, a schema row"),
    ):
        with pytest.raises((ColumnError, InputError), match=message):
            write_examples.table_of([write_examples._mapping(row) for row in rows])
    config = FindSlices(output=str(tmp_path), **ROLES).config
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
    found = running.search(tmp_path / "alone", data=adult_path, strategy="batch", **options)
    assert (tmp_path / "flink" / "slices.parquet").read_bytes() == found.slices_bytes
    assert "of " in capfd.readouterr().out
