"""EvalConfigs from TFMA's and TFX's own documentation, and wrong ones."""

import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from slicebeam.metrics.errors import SlicebeamError
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.config.check import check_config
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.eval_config.native_metrics import NATIVE
from slicebeam.pipelines.eval_config.plan import eval_plan
from tests.conftest import ADULT
from tests.pipelines.eval_config.oracle import ours

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
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "tensorflow_model_analysis" else find(name, *more),
    )
    path = written(tmp_path, MODEL + "  # not read before")
    out = str(tmp_path / "out")
    assert run(["check", "--data", str(ADULT), "--eval-config", path, "--output", out]) == 2
    assert "not installed; in the checkout, run pip install '.[tfma]'" in capsys.readouterr().err


@NEEDS_TFMA
@pytest.mark.parametrize("form", ["text", "json"])
def test_configurations_of_others_run_unchanged(form, tmp_path, capsys):
    text = GET_STARTED if form == "text" else json.dumps(TAXI)
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
    if form == "text":
        assert "plots are in plots.parquet" in printed.out
        assert ") on 2 slices with 0 replicates: about" in printed.err
        assert document["dataset"]["weight_field"] == "fnlwgt"
        assert [one["name"] for one in document["slices"]]
        assert validation["checked"] == 6
    else:
        assert "preprocessing_function_names of model_specs is passed over" in printed.err
        assert document["slices"] == []
        assert validation["checked"] == 2


@NEEDS_TFMA
def test_what_failed_is_printed_and_logged(tmp_path, capsys):
    bound = "threshold { value_threshold { lower_bound { value: 0.85 } } }"
    config = f"""{MODEL} metrics_specs {{ metrics {{ class_name: "BinaryAccuracy" {bound} }} }}
    slicing_specs {{ feature_keys: "sex" }}"""
    arguments = ["check", "--data", str(ADULT), "--eval-config", written(tmp_path, config)]
    assert run([*arguments, "--output", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    line = "on sex = Male, but the threshold is at least 0.85"
    assert line in printed.out
    assert line in printed.err
    assert run([*arguments, "--output", str(tmp_path / "o2"), "--json"]) == 1
    failures = json.loads(capsys.readouterr().out)["validation"]["failures"]
    assert [(one["slice"], one["lower_bound"]) for one in failures] == [("sex = Male", 0.85)]
    # The document repeats its run.
    again = str(tmp_path / "again")
    assert run(["run", str(tmp_path / "out/changelist.json"), "--output", again, "--quiet"]) == 1


@NEEDS_TFMA
def test_a_search_and_a_run_file_take_models_and_metrics(tmp_path, capsys):
    config = f"""{MODEL} metrics_specs {{ metrics {{ class_name: "AUC" }}
      metrics {{ class_name: "Recall" }} metrics {{ class_name: "ExampleCount" }} }}
    slicing_specs {{ feature_keys: "sex" }} options {{ min_slice_size {{ value: 300 }} compute_confidence_intervals {{ value: true }} }}"""
    path = written(tmp_path, config)
    found = search_config({"data": ("d",), "output": "o", "eval_config": path})
    assert (found.label, found.score, found.metric) == ("income", "score", ("auc", "recall"))
    assert found.min_slice_size == 300
    file = tmp_path / "run.yaml"
    file.write_text(
        f"command: search\ndata: {ADULT}\noutput: {tmp_path / 'out'}\neval_config: {path}\n"
        "features: [sex, race]\n"
    )
    assert run(["run", str(file)]) == 0
    document = json.loads((tmp_path / "out" / "changelist.json").read_text())
    assert [one["key"] for one in document["metrics"]] == ["auc", "recall"]
    assert "slicing_specs and thresholds are for slicebeam check" in capsys.readouterr().err
    assert document["testing"]["min_slice_size"] == 300


@NEEDS_TFMA
def test_reading_imports_no_tensorflow(tmp_path):
    path = written(tmp_path, GET_STARTED)
    code = f"""
import sys
from slicebeam.pipelines.eval_config.plan import eval_plan
from slicebeam.pipelines.eval_config.native_metrics import NATIVE
eval_plan({path!r})
assert not {{"tensorflow", "tensorflow_model_analysis"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@NEEDS_TFMA
def test_the_weighted_example_count_is_the_weight(tmp_path):
    import pandas as pd

    bound = "threshold { value_threshold { lower_bound { value: 3000.5 } } }"
    config = f"""model_specs {{ label_key: "y" prediction_key: "s" example_weight_key: "w" }}
    metrics_specs {{ metrics {{ class_name: "BinaryAccuracy" }}
      metrics {{ class_name: "ExampleCount" {bound} }} }}"""
    frame = pd.DataFrame({"y": [0, 1] * 50, "s": [0.2, 0.7] * 50, "w": [10.0, 50.0] * 50})
    code, document = ours(frame, config, tmp_path)
    assert code == 1
    assert [one["value"] for one in document["validation"]["failures"]] == [3000.0]


WRONG = {
    "metrics_specs { metrics { class_name: 'BinaryAcuracy' } }": (
        "unknown metric 'BinaryAcuracy'; did you mean 'BinaryAccuracy'?"
    ),
    "metrics_specs { metrics { class_name: 'NDCG' } }": "missing 1 required positional argument: 'gain_key'",
    "metrics_specs { metrics { class_name: 'M' module: 'my.own' } }": "add --tfma-module my.own",
    "metrics_specs { metrics { class_name: 'AUC' config: '\"nonsense\": 1' } }": "nonsense",
    "slicing_specs { slice_keys_sql: 'SELECT STRUCT(sex)' }": "slice_keys_sql cannot run",
    "slicing_specs { feature_keys: 'sexx' }": "unknown column 'sexx'; did you mean 'sex'?",
    "metric_specs {}": "no field named",
    "metrics_specs { metrics { class_name: 'AUC' } binarize { class_ids { values: 1 } } }": (
        "no predictions: give --prediction"
    ),
    'metrics_specs { metrics { class_name: \'NDCG\' config: \'"top_k_list": [2], "gain_key": "age"\' } '
    "query_key: 'q' }": "unknown column 'q'",
    "metrics_specs { output_weights { key: 'a' value: 1 } }": "output_weights cannot run; leave them out",
    "metrics_specs { output_names: ['a', 'b'] metrics { class_name: 'AUC' } }": "add prediction_keys",
    "metrics_specs { metrics { class_name: 'BooleanFlipRates' } }": "of both models at once",
    "metrics_specs { metrics { class_name: 'NoSuchPlot' } }": "neither TFMA nor Keras has 'NoSuchPlot'",
    "metrics_specs { metrics { class_name: 'ConfusionMatrixAtThresholds' config: '\"thresholds\": [0.5]' "
    "threshold { value_threshold {} } } }": "no single number 'confusion_matrix_at_thresholds'",
    "model_specs { name: 'b' }": "model_specs has two models and no is_baseline",
    "metrics_specs { thresholds { key: 'auc' value {} } }": "a threshold is for 'auc'",
}


@NEEDS_TFMA
@pytest.mark.parametrize("text", WRONG)
def test_wrong_configurations_are_a_line(text, tmp_path, capsys):
    path = written(tmp_path, f"{MODEL} {text}")
    out = str(tmp_path / "out")
    assert run(["check", "--data", str(ADULT), "--eval-config", path, "--output", out]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert WRONG[text] in error
    assert error.startswith("slicebeam: ")


@NEEDS_TFMA
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("label", "sex", "--label sex contradicts income"),
        ("metric", ("recall",), "--metric recall contradicts auc"),
        ("prediction", "prediction", "contradicts prediction_key 'score'"),
        ("min_slice_size", 5, "--min-slice-size 5 contradicts 50"),
        ("slices", "s.yaml", "both give the slices to check"),
    ],
)
def test_contradictions_are_a_line(option, value, message, tmp_path):
    text = f"""{MODEL} metrics_specs {{ metrics {{ class_name: "AUC" }} }}
    options {{ min_slice_size {{ value: 50 }} }}"""
    path = written(tmp_path, text)
    same = {"label": "income", "metric": ("auc",), "score": "score", "min_slice_size": 50}
    base = {"data": ("d",), "output": "o", "eval_config": path}
    assert check_config({**base, **same}).label == "income"
    with pytest.raises(SlicebeamError, match=message):
        check_config({**base, option: value})


@NEEDS_TFMA
def test_what_tfma_writes_beside_its_results_is_read(tmp_path):
    path = written(tmp_path, json.dumps({"evalConfig": TAXI, "version": "0.52"}))
    assert [one.key for one in eval_plan(path).metrics] == ["binary_accuracy"]


@NEEDS_TFMA
def test_the_command_of_the_page_works(tmp_path):
    page = (ROOT / "docs/how-to/tfma.md").read_text("utf-8")
    command = page.partition("slicebeam check ")[2].partition("```")[0].replace("\\\n", " ")
    arguments = ["check", *shlex.split(command, comments=True)]
    arguments[arguments.index("--output") + 1] = str(tmp_path / "out")
    arguments[arguments.index("--data") + 1] = str(ADULT)
    arguments[arguments.index("--eval-config") + 1] = str(
        ROOT / arguments[arguments.index("--eval-config") + 1]
    )
    code = run(arguments)
    assert f"# exit code {code}" in command
    document = json.loads((tmp_path / "out" / "changelist.json").read_text())
    assert [one["key"] for one in document["metrics"]] == ["accuracy", "auc"]
    assert document["validation"]["checked"] == 2 * (len(document["slices"]) + 1)


@NEEDS_TFMA
def test_every_native_metric_is_in_the_page():
    page = (ROOT / "docs/how-to/tfma.md").read_text("utf-8")
    assert [name for name in NATIVE if name not in page] == []
