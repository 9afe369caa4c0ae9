"""``--parity``: the largest gaps between groups, from the counts of the search."""

import json

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.api import search
from slicebeam.pipelines.cli import run
from tests.refusals import refuses

SIZES = {"student": 300, "retired": 400, "clerk": 1000, "rare": 25}
COMMON = {"label": "y", "features": ["age", "job"], "max_cross_size": 1}


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(1)
    job = np.repeat(list(SIZES), list(SIZES.values()))
    y = rng.integers(0, 2, job.size)
    wrong = rng.random((2, job.size)) < np.where(job == "student", 0.4, 0.2)
    columns = {"job": job, "age": rng.integers(18, 80, job.size), "y": y}
    return pd.DataFrame(columns | {"new": y ^ wrong[0], "old": y ^ wrong[1]})


def of_groups(data, model, measure):
    """The share of each job with 30 examples of which it is."""
    within = {"true_positive_rate": data.y == 1, "false_positive_rate": data.y == 0}
    chosen = data[within.get(measure, data.y >= 0)]
    marked = chosen[model] == chosen.y if measure == "accuracy" else chosen[model]
    groups = marked.groupby(chosen.job).agg(["mean", "size"])
    return groups[groups["size"] >= 30]


@pytest.mark.parametrize("strategy", ["batch", "priority"])
def test_gaps_of_both_models_are_those_of_the_data(people, strategy):
    models = {"prediction": "new", "baseline_prediction": "old", "strategy": strategy}
    report = search(people, **COMMON, **models, parity="job", metric=["error_rate", "npv"])
    gaps = report.parity.to_pylist()
    assert [one["model"] for one in gaps] == ["before"] * 4 + ["after"] * 4
    for one in gaps:
        groups = of_groups(people, {"after": "new", "before": "old"}[one["model"]], one["measure"])
        for end, at in (("lowest", groups["mean"].idxmin()), ("highest", groups["mean"].idxmax())):
            assert one[end] == {
                "name": f"job = {at}",
                "n": groups["size"][at],
                "value": pytest.approx(groups["mean"][at]),
            }
        assert (one["left_out"], one["groups"]) == (["job = rare"], 3)
    accuracy = gaps[3]
    assert (accuracy["lowest"]["name"], accuracy["p_value"]) == ("job = student", 0.0001)
    assert accuracy["gap"]["lo"] > 0.1
    # The same slices as without.
    plain = search(people, **COMMON, **models, metric=["error_rate", "npv"])
    assert plain.slices.equals(report.slices)
    assert plain.parity.num_rows == 0


def test_what_the_command_prints(people, tmp_path, capsys):
    people.to_parquet(tmp_path / "data.parquet")
    flags = ["--label=y", "--prediction=new", "--features=job,age", "--max-cross-size=1"]
    command = ["search", str(tmp_path / "data.parquet"), *flags, f"--output={tmp_path / 'out'}"]
    assert run([*command, "--parity=age,job"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Largest gaps between groups of age, in bins: prediction rate: lowest" in said
    assert "Largest gaps between groups of job: prediction rate: lowest" in said
    text = f"{of_groups(people, 'new', 'accuracy')['mean'].min():.3f}".removeprefix("0")
    assert f"accuracy: lowest {text} in job = student (n 300), highest " in said
    assert "fewer than 30 examples: job = rare." in said
    assert run([*command, "--parity=job", "--json", "--min-slice-size=350"]) == 0
    published = json.loads((tmp_path / "out" / "changelist.json").read_text())["parity"]
    printed = json.loads(capsys.readouterr().out)["parity"]
    assert [{k: v for k, v in one.items() if v is not None} for one in printed] == published
    assert printed[3]["left_out"] == ["job = rare", "job = student"]
    # Fewer than two groups have enough positive labels.
    assert printed[1]["gap"] is None


@pytest.mark.parametrize(("column", "message"), [
    (lambda y: ["a"] * len(y), r"--parity 'it' has no groups: one value only \('a'\)"),
    (lambda y: [["a", "b"], ["b"]] * (len(y) // 2) + [["a"]], "whose groups overlap"),
    (lambda y: [f"v{at // 6}" for at in range(len(y))], "more than 200; lower --top-values or --bins"),
])  # fmt: skip
def test_columns_without_groups_are_refused(people, column, message):
    data = people.assign(it=column(people.y))
    options = {"label": "y", "prediction": "new", "features": ["it", "job"], "parity": "it"}
    refuses(OptionError, message, search, data, **options, top_values=300, min_slice_size=2)
