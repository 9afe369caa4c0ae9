"""EvalConfigs of TFMA and TFX as options of a run, wrong ones, and keys of slices."""

import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slicebeam.metrics.errors import InputError, SlicebeamError
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.config.check import check_config
from slicebeam.pipelines.config.search import search_config
from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.encode.predicates import Singleton
from slicebeam.transforms.tfma import eval_config
from slicebeam.transforms.tfma.extractor import FoundSlices, read_slices
from slicebeam.transforms.tfma.install import tfma_module
from slicebeam.transforms.tfma.slice_keys import NamedSlice, key_part, slice_keys
from tests.conftest import ADULT
from tests.pipelines.tfma.tfma_runs import BY_SEX, adult, ours
from tests.refusals import refuses

# tensorflow/model-analysis, docs/get_started.md, "Model Validation"; label and weight are Adult's.
GET_STARTED = """
  ## Model information
  model_specs {
    # This assumes a serving model with a "serving_default" signature.
    label_key: "income"
    example_weight_key: "fnlwgt"
  }
  ## Post export metric information
  metrics_specs {
    metrics {
      class_name: "AUC"
      threshold {
        value_threshold {
          lower_bound { value: 0.9 }
        }
        change_threshold {
          direction: HIGHER_IS_BETTER
          absolute { value: -1e-10 }
        }
      }
    }
    metrics { class_name: "ConfusionMatrixPlot" }
  }
  ## Slicing information
  slicing_specs {}  # overall slice
  slicing_specs {
    feature_keys: ["sex"]
  }
"""
# tensorflow/tfx, examples/chicago_taxi_pipeline/taxi_pipeline_native_keras.py, as JSON.
TAXI = {
    "modelSpecs": [{"signatureName": "serving_default", "labelKey": "income", "preprocessingFunctionNames": ["transform_features"]}],
    "slicingSpecs": [{}],
    "metricsSpecs": [
        {
            "metrics": [
                {
                    "className": "BinaryAccuracy",
                    "threshold": {
                        "valueThreshold": {"lowerBound": 0.6},
                        "changeThreshold": {"direction": "HIGHER_IS_BETTER", "absolute": -1e-10},
                    },
                }
            ]
        }
    ],
}  # fmt: skip
ROOT = Path(__file__).parents[3]
NEEDS_TFMA = pytest.mark.tfma
MODEL = 'model_specs { label_key: "income" prediction_key: "score" }'


def written(folder, text):
    path = folder / "eval_config.txt"
    path.write_text(text)
    return str(path)


def test_without_tfma_the_line_has_the_command(tmp_path, monkeypatch, capsys):
    find = importlib.util.find_spec

    def found(name, *more):
        return None if name == "tensorflow_model_analysis" else find(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    path = written(tmp_path, MODEL + "  # not read before")
    out = str(tmp_path / "out")
    assert run(["check", "--data", str(ADULT), "--eval-config", path, "--output", out]) == 2
    assert "not installed; in the checkout, run pip install '.[tfma]'" in capsys.readouterr().err


@NEEDS_TFMA
@pytest.mark.parametrize("form", ["text", "json"])
def test_configurations_of_others_run_unchanged(form, tmp_path, capsys):
    text = GET_STARTED if form == "text" else json.dumps({"evalConfig": TAXI, "version": "0.52"})
    arguments = ["check", "--data", str(ADULT), "--eval-config", written(tmp_path, text)]
    arguments += ["--output", str(tmp_path / "out"), "--score", "score"]
    # The old model is missing, which is an error of TFMA's, too.
    assert run(arguments) == 2
    assert "needs the old model; give --baseline-score" in capsys.readouterr().err
    code = run([*arguments, "--baseline-score", "score_old"])
    printed = capsys.readouterr()
    document = json.loads((tmp_path / "out" / "changelist.json").read_text())
    validation = document["validation"]
    assert code == (0 if validation["passed"] else 1)
    assert "slicebeam export tfma writes what TFMA computed" in printed.out
    if form == "text":
        assert document["dataset"]["weight_field"] == "fnlwgt"
        assert [one["name"] for one in document["slices"]]
        assert validation["checked"] == 3
    else:
        assert "preprocessing_function_names of model_specs is ignored" in printed.err
        assert (document["slices"], validation["checked"]) == ([], 1)


@NEEDS_TFMA
def test_a_search_and_a_run_file_take_models_and_metrics(tmp_path, capsys):
    config = f"""{MODEL} metrics_specs {{ metrics {{ class_name: "AUC" }}
      metrics {{ class_name: "Recall" }} metrics {{ class_name: "ExampleCount" }} }}
    slicing_specs {{ feature_keys: "sex" }} options {{ min_slice_size {{ value: 300 }} }}"""
    path = written(tmp_path, config)
    found = search_config({"data": ("d",), "output": "o", "eval_config": path})
    assert (found.label, found.score, found.metric) == ("income", "score", ("auc", "recall"))
    assert found.min_slice_size == 300
    file = tmp_path / "run.yaml"
    file.write_text(
        f"command: search\ndata: {ADULT}\noutput: {tmp_path}/out\neval_config: {path}\n"
        "features: [sex, race]\n"
    )
    assert run(["run", str(file)]) == 0
    document = json.loads((tmp_path / "out" / "changelist.json").read_text())
    assert [one["key"] for one in document["metrics"]] == ["auc", "recall"]
    assert "slicing_specs and thresholds are for slicebeam check" in capsys.readouterr().err
    # The document repeats its run.
    again = ["run", str(tmp_path / "out/changelist.json"), "--output", str(tmp_path / "again")]
    assert run([*again, "--quiet"]) == 0


@NEEDS_TFMA
def test_metrics_of_tfma_join_the_users(tmp_path):
    path = written(tmp_path, f'{MODEL} metrics_specs {{ metrics {{ class_name: "Hinge" }} }}')
    base = {"data": ("d",), "output": "o", "eval_config": path}
    found = check_config(base)
    assert (found.metric, found.tfma_metric) == (("accuracy",), ())
    assert any("none of its metrics is slicebeam's own" in line for line in found.notes)
    found = check_config({**base, "metric": ("mse", "tfma:Poisson")})
    assert (found.prediction, found.score) == ("score", None)
    assert found.tfma_metric == ("tfma:Poisson",)


@NEEDS_TFMA
def test_what_is_both_weighted_and_not_is_named_so(tmp_path):
    """The run's own recall is weighted; TFMA has the other."""
    specs = """metrics_specs { metrics { class_name: "Recall" } }
    metrics_specs { metrics { class_name: "Recall" } example_weights { unweighted: true } }"""
    config = f"""model_specs {{ label_key: "label" prediction_key: "score" example_weight_key: "weight" }}
    {specs} {BY_SEX}"""
    code, document = ours(adult(), config, tmp_path)
    assert code == 0
    frame = adult()
    right = frame["score"] > 0.5
    positive = frame["label"] == 1
    (number,) = document["tfma_metrics"]
    assert number["name"] == "recall@unweighted"
    assert number["overall"]["value"] == pytest.approx(right[positive].mean())
    (change,) = document["global"]
    weighted = np.average(right[positive], weights=frame["weight"][positive])
    assert change["after"]["value"] == pytest.approx(weighted)
    assert abs(weighted - number["overall"]["value"]) > 1e-4


@NEEDS_TFMA
def test_reading_imports_no_tensorflow(tmp_path):
    code = f"""
import sys
from slicebeam.transforms.tfma.eval_config import eval_plan
eval_plan({written(tmp_path, GET_STARTED)!r})
assert not {{"tensorflow", "tensorflow_model_analysis"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# fmt: off
WRONG = [
    ("metrics_specs { metrics { class_name: 'BinaryAcuracy' } }", "did you mean 'BinaryAccuracy'?"),
    ("metrics_specs { metrics { class_name: 'NDCG' } }", "missing 1 required positional argument: 'gain_key'"),
    ("metrics_specs { metrics { class_name: 'M' module: 'my.own' } }", "add --tfma-module my.own"),
    ("metrics_specs { metrics { class_name: 'AUC' config: '\"nonsense\": 1' } }", "nonsense"),
    ("metrics_specs { metrics { class_name: 'Mean' config: '\"name\": {\"class_name\": \"x\"}' } }", "name is not a number"),
    ("metrics_specs { metrics { class_name: 'AUC' config: '{' } }", "is not valid JSON"),
    ("metrics_specs { metrics {} }", "has no class_name"),
    ("slicing_specs { slice_keys_sql: 'SELECT STRUCT(sex)' }", "slice_keys_sql cannot be used"),
    ("slicing_specs { feature_keys: 'sexx' }", "unknown column 'sexx'; did you mean 'sex'?"),
    ("slicing_specs { feature_keys: 'sex' feature_values { key: 'sex' value: 'a' } }", "keep one"),
    ("metric_specs {}", "no field named"),
    ("metrics_specs { metrics { class_name: 'AUC' } binarize { class_ids { values: 1 } } }", "no predictions: give --prediction"),
    ("metrics_specs { metrics { class_name: 'NDCG' config: '\"top_k_list\": [2], \"gain_key\": \"age\"' } query_key: 'q' }",
     "unknown column 'q'"),
    ("metrics_specs { output_weights { key: 'a' value: 1 } }", "output_weights cannot be used"),
    ("metrics_specs { metrics { class_name: 'NoSuchPlot' } }", "neither TFMA nor Keras has 'NoSuchPlot'"),
    ("model_specs { name: 'b' }", "has 2 models; slicebeam compares one"),
    ("metrics_specs { thresholds { key: 'auc' value {} } }", "a threshold is for 'auc', a metric that is saved with the model"),
    ("metrics_specs { metrics { class_name: 'AUC' } thresholds { key: 'auk' value {} } }", "did you mean 'auc'?"),
    ("metrics_specs { metrics { class_name: 'ConfusionMatrixPlot' threshold { value_threshold {} } } }", "no single number"),
    ("metrics_specs { metrics { class_name: 'ConfusionMatrixAtThresholds' threshold { value_threshold {} } } }", "no single number 'confusion_matrix_at_thresholds'"),
    ("metrics_specs { output_names: ['a', 'b'] metrics { class_name: 'AUC' } }", "add prediction_keys"),
]
# fmt: on


@NEEDS_TFMA
@pytest.mark.parametrize(("text", "message"), WRONG)
def test_wrong_configurations_are_a_line(text, message, tmp_path, capsys):
    path = written(tmp_path, f"{MODEL} {text}")
    out = str(tmp_path / "out")
    assert run(["check", "--data", str(ADULT), "--eval-config", path, "--output", out]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error
    assert error.startswith("slicebeam: ")


@NEEDS_TFMA
@pytest.mark.parametrize(("option", "value", "message"), [
    ("label", "sex", "--label sex contradicts income"),
    ("metric", ("recall",), "--metric recall contradicts auc"),
    ("prediction", "prediction", "contradicts prediction_key 'score'"),
    ("min_slice_size", 5, "--min-slice-size 5 contradicts 50"),
    ("slices", "s.yaml", "both give the slices to check"),
])  # fmt: skip
def test_contradictions_are_a_line(option, value, message, tmp_path):
    text = f"""{MODEL} metrics_specs {{ metrics {{ class_name: "AUC" }} }}
    options {{ min_slice_size {{ value: 50 }} }}"""
    path = written(tmp_path, text)
    same = {"label": "income", "metric": ("auc",), "score": "score", "min_slice_size": 50}
    base = {"data": ("d",), "output": "o", "eval_config": path}
    assert check_config({**base, **same}).label == "income"
    refuses(SlicebeamError, message, check_config, {**base, option: value})


@NEEDS_TFMA
def test_the_command_of_the_page_works(tmp_path):
    page = (ROOT / "docs/how-to/tfma.md").read_text("utf-8")
    command = page.partition("slicebeam check ")[2].partition("```")[0].replace("\\\n", " ")
    arguments = ["check", *shlex.split(command, comments=True)]
    for option, value in (
        ("--output", tmp_path / "out"),
        ("--data", ADULT),
        ("--eval-config", ROOT / arguments[arguments.index("--eval-config") + 1]),
    ):
        arguments[arguments.index(option) + 1] = str(value)
    code = run(arguments)
    assert f"# exit code {code}" in command
    document = json.loads((tmp_path / "out" / "changelist.json").read_text())
    assert [one["key"] for one in document["metrics"]] == ["accuracy", "auc"]
    assert document["validation"]["checked"] == len(document["slices"]) + 1


def test_every_native_metric_is_in_the_page():
    page = (ROOT / "docs/how-to/tfma.md").read_text("utf-8")
    native = [*eval_config._AT_A_THRESHOLD, *eval_config._OTHERS]
    assert [name for name in native if name not in page] == []


@pytest.mark.parametrize(("op", "value", "part"), [
    ("==", "a", ("x", "a")),
    ("contains", "a", ("x", "a")),
    ("==", True, ("x", 1)),
    ("==", 3, ("x", 3)),
    ("==", 0.5, ("x", 0.5)),
    # What a float32 would round has a column of its own.
    ("==", 0.1, ("x (value)", "0.1")),
    ("==", 2**70, ("x (value)", str(2**70))),
    ("<", 3, ("x (range)", "< 3")),
    (">=", 3, ("x (range)", ">= 3")),
    ("between", [3, 4.5], ("x (range)", "[3, 4.5)")),
    ("in", ["a", "b"], ("x (values)", "in {a, b}")),
    ("not_in", list(range(12)), ("x (values)", "not in {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, … 2 more}")),
    ("is_null", None, ("x (missing)", "yes")),
])  # fmt: skip
def test_the_part_of_a_condition(op, value, part):
    assert key_part(Singleton("x", op, value)) == part


def test_keys_are_sorted_and_differ():
    long = [*range(11), 12], [*range(11), 13]
    slices = [
        NamedSlice("1", "one", (Singleton("b", "==", 1), Singleton("a", "==", "x"))),
        *(NamedSlice(f"2{at}", "", (Singleton("c", "in", one),)) for at, one in enumerate(long)),
        NamedSlice("3", "words", None),
    ]
    first, second, third, last = slice_keys(slices)
    assert first == (("a", "x"), ("b", 1))
    assert second != third
    assert (third[-1], last) == (("slice", "21"), (("slice", "words"),))


def test_examples_get_the_keys_of_their_slices():
    predicates = (
        (Singleton("age", "between", [37, 41]), Singleton("sex", "==", "F")),
        (Singleton("age", "is_null"),),
        (Singleton("tags", "contains", "b"),),
        (Singleton("old", "==", True),),
    )
    keys = slice_keys([NamedSlice(str(at), "", one) for at, one in enumerate(predicates)])
    found = FoundSlices(tuple(keys), SliceMembership(predicates))
    examples = [
        {"age": np.array([40.0], np.float32), "sex": np.array([b"F"]), "old": np.array([1])},
        {"age": np.array([41.0], np.float32), "sex": np.array([b"F"]), "old": np.array([0])},
        {"age": np.array([], np.float32), "tags": np.array([b"a", b"b"]), "old": np.array([1])},
        {"sex": np.array([[b"F"]]), "tags": np.array([b"a"]), "old": np.array([0])},
    ]
    expected = [[keys[0], keys[3]], [], [keys[1], keys[2], keys[3]], [keys[1]]]
    assert found.keys_of(examples) == expected
    with pytest.raises(InputError, match="feature 'sex' has 2 values"):
        found.keys_of([{"sex": np.array([b"F", b"M"])}])


def test_a_document_that_is_none(tmp_path):  # type: ignore[no-untyped-def]
    refuses(InputError, "no such file", read_slices, str(tmp_path))
    (tmp_path / "changelist.json").write_text("{}")
    refuses(InputError, "no ChangeList with slices", read_slices, str(tmp_path))


def test_what_is_missing_is_named_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_model_analysis", None)
    with pytest.raises(InputError, match=r"in the checkout, run pip install '\.\[tfma\]'"):
        tfma_module("proto.config_pb2", "slicebeam export tfma")


def test_nothing_else_imports_tensorflow():
    code = (
        "import sys; from slicebeam.pipelines.cli import run; run(['demo', '--quiet']);"
        "import slicebeam.transforms.tfma;"
        "print([n for n in sys.modules if n.partition('.')[0] in"
        " ('tensorflow', 'tensorflow_model_analysis', 'tfx_bsl')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"
