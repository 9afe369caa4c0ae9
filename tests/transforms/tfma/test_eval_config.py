"""EvalConfigs of TFMA and TFX as options of a run, and wrong ones."""

import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slicebeam.metrics.errors import SlicebeamError
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.config.check import check_config
from slicebeam.pipelines.config.search import search_config
from slicebeam.transforms.tfma import eval_config
from tests.conftest import ADULT
from tests.refusals import refuses
from tests.transforms.tfma.tfma_runs import BY_SEX, adult, ours

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


CHANGE = "change_threshold { direction: LOWER_IS_BETTER absolute { value: 0 } }"


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
      metrics {{ class_name: "Recall" }} metrics {{ class_name: "ExampleCount" }}
      metrics {{ class_name: "Hinge" threshold {{ {CHANGE} }} }} }}
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
    # Its threshold, which needs an old model, is not applied.
    assert ([one["name"] for one in document["tfma_metrics"]], "validation" in document) == (
        ["hinge"],
        False,
    )
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
    ("metrics_specs { metrics { class_name: 'Hinge' } } cross_slicing_specs { baseline_spec {} slicing_specs { feature_keys: 'sexx' } }",
     "unknown column 'sexx'; did you mean 'sex'?"),
    ("slicing_specs { feature_keys: 'sex' feature_values { key: 'sex' value: 'a' } }", "keep one"),
    ("metric_specs {}", "no field named"),
    ("metrics_specs { metrics { class_name: 'AUC' } binarize { class_ids { values: 1 } } }", "needs --prediction, --score or --model"),
    ("metrics_specs { metrics { class_name: 'NDCG' config: '\"top_k_list\": [2], \"gain_key\": \"age\"' } query_key: 'q' }",
     "unknown column 'q'"),
    ("metrics_specs { metrics { class_name: 'NoSuchPlot' } }", "neither TFMA nor Keras has 'NoSuchPlot'"),
    ("model_specs { name: 'b' }", "has 2 models; slicebeam compares one"),
    ("metrics_specs { output_names: 'a' output_weights { key: 'b' value: 1 } metrics { class_name: 'AUC' } }", "output_weights does not exist"),
    ("model_specs { label_keys { key: 'a' value: 'b' } label_key: 'income' is_baseline: true }", "has label_key and label_keys; keep one"),
    ("metrics_specs { metrics { class_name: 'Hinge' } per_slice_thresholds { key: 'hinge' value { thresholds {} } } }", "slicing_specs must be set"),
    ("metrics_specs { output_names: ['a', 'b'] metrics { class_name: 'AUC' } }", "add prediction_keys"),
    ("metrics_specs { metrics { class_name: 'MeanAttributions' } }", "reads attributions"),
    # What TFMA would pass over, or take for something else.
    ("metrics_specs { metrics { class_name: 'AUC' threshold {} } }",
     "metrics_specs 1 AUC: MetricThreshold has no effect without value_threshold or change_threshold"),
    ("metrics_specs { metrics { class_name: 'AUC' threshold { value_threshold {} } } }", "without lower_bound or upper_bound"),
    ("metrics_specs { metrics { class_name: 'AUC' threshold { change_threshold { direction: LOWER_IS_BETTER } } } }",
     "without absolute or relative"),
    ("metrics_specs { metrics { class_name: 'AUC' threshold { change_threshold { absolute { value: 0 } } } } }", "has no direction"),
    ("metrics_specs { thresholds { key: 'auc' value { value_threshold {} } } }", "without lower_bound or upper_bound"),
    ("metrics_specs { metrics { class_name: 'AUC' cross_slice_thresholds { threshold { value_threshold { lower_bound {} } } } } }",
     "without cross_slicing_specs"),
    ("metrics_specs { metrics { class_name: 'AUC' } example_weights {} }", "without weighted or unweighted"),
    ("metrics_specs { metrics { class_name: 'Hinge' } model_names: 'new' }", "model_names has 'new', and no model is named so"),
    ("metrics_specs { model_names: 'baseline' metrics { class_name: 'AUC' threshold { value_threshold { lower_bound {} } } } }",
     "thresholds are not applied to the baseline"),
    ("metrics_specs { metrics { class_name: 'MeanLabel' } metrics { class_name: 'Hinge' config: '\"name\": \"mean_label\"' } }",
     "two metrics are named 'mean_label'"),
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
