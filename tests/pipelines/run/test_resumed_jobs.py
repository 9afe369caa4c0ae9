"""A driver that dies after a job is done, before it noted so, on an engine that keeps finished jobs."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines.check.check import run_check
from slicebeam.pipelines.config.check import check_config
from slicebeam.pipelines.config.discover import discover_config
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.config.shift import shift_config
from slicebeam.pipelines.discovery.discover import run_discovery
from slicebeam.pipelines.prepare import shard_passes
from slicebeam.pipelines.run import engine as runner
from slicebeam.pipelines.run.work_folder import WorkFolder
from slicebeam.pipelines.search import findings
from slicebeam.pipelines.search.search import run_search
from slicebeam.pipelines.shift.run import run_shift
from slicebeam.pipelines.show.terminal import Terminal
from slicebeam.runner_configs.backend import FinishedJob
from slicebeam.runner_configs.in_process import InProcess
from slicebeam.runner_configs.options import DirectOptions
from tests.conftest import slow
from tests.discover_runs import examples, written
from tests.running import Killed, importable
from tests.shift_runs import made, saved


class KeepingEngine(InProcess):
    """Runs jobs in this process for two workers, and keeps what is done, as Dataflow does."""

    done: set[str] = set()  # noqa: RUF012  (of all processes of a run)
    ran: list[str] = []  # noqa: RUF012

    def __init__(self):
        super().__init__(DirectOptions())
        self.workers = 2

    def run(self, build, name):
        assert name not in self.done, f"{name} is sent again"
        result = super().run(build, name)
        self.done.add(name)
        self.ran.append(name)
        return result

    def attach(self, name):
        return FinishedJob({}) if name in self.done else None


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    KeepingEngine.done.clear()
    KeepingEngine.ran.clear()
    monkeypatch.setattr(runner, "_backend", lambda _: KeepingEngine())
    # However small, everything is a job.
    monkeypatch.setattr(shard_passes, "LEAST_PASS_SECONDS", 0.0)
    monkeypatch.setattr(findings, "MOST_HELD", 0)


def driven(config_of, run):
    """Return how a command is run from Python, as by a driver of its own."""

    def once(output, resume, given):
        with runner.Engine(runner.RunnerConfig("direct", DirectOptions())) as engine:
            config = config_of({**given, "output": str(output)})
            run(config, engine, Terminal(quiet=True), resume=resume)

    return once


DRIVEN = {
    "search": driven(search_config, run_search),
    "check": driven(check_config, run_check),
    "discover": driven(discover_config, run_discovery),
    "shift": driven(shift_config, run_shift),
}


def timeless(content):
    del content["created_at"], content["provenance"]["run"]["content"]
    content["provenance"]["config"].pop("output", None)
    for one in content.get("search", {}).get("iterations", ()):
        for name in ("cpu_seconds", "wall_seconds", "shuffled_bytes"):
            del one[name]
    return content


def published(output):
    assert {path.name for path in output.iterdir() if path.is_dir()} <= {"ledger"}
    content = {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()}
    return {**content, "changelist.json": timeless(json.loads(content["changelist.json"]))}


def killed_at_each_stage(command, given, folder, monkeypatch):
    """Kill a run before the note of each stage, go on each time, and hold what it publishes."""
    run = DRIVEN[command]
    run(folder / "undisturbed", False, given)
    wanted = published(folder / "undisturbed")
    KeepingEngine.done.clear()
    KeepingEngine.ran.clear()
    finish, stages = WorkFolder.finish, list[str]()

    def killed(work, stage, facts):
        if stage not in stages:
            stages.append(stage)
            raise Killed
        finish(work, stage, facts)

    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, "finish", killed)
        for _ in range(100):
            before = len(stages)
            try:
                run(folder / "out", True, given)
            except Killed:
                # What ends a process lets others have the folder; here it is the same process.
                continue
            assert len(stages) == before
            break
    assert len(KeepingEngine.ran) == len(set(KeepingEngine.ran))
    assert published(folder / "out") == wanted
    return set(stages)


def table(rows=600):
    random = np.random.default_rng(5)
    age, job = random.integers(20, 60, rows), random.choice(["ant", "bee", "cat"], rows)
    label, part = random.integers(0, 2, rows), random.integers(0, 10, rows)
    is_hard = ((job == "ant") & (age < 40)) | (part == 0)
    wrong = random.random(rows) < np.where(is_hard, 0.6, 0.1)
    score = np.clip(np.where(label ^ wrong, 0.7, 0.3) + random.normal(0, 0.15, rows), 0, 1)
    return pd.DataFrame(
        {
            "age": age,
            "job": job,
            # Any two of these are the examples of part 0.
            **{name: np.isin(part, (0, 1 + at)) for at, name in enumerate("abcdef")},
            "label": label,
            "prediction": (score > 0.5).astype(int),
            "score": score.round(3),
            "loss": random.gamma(2, 1 + wrong, rows).round(3),
            "author": random.integers(0, 60, rows),
        }
    )


SEARCHES = {
    "accuracy": (
        {"label": "label", "score": "score", "metric": ("accuracy", "auc")},
        {"parquet", "domains", "shards", "totals", "iteration-1", "iteration-1-exact", "findings-0-worse-1"},
    ),
    "alike": ({"label": "label", "prediction": "prediction", "features": tuple("abcdef")}, {"hashes"}),
    "auc": (
        {"label": "label", "score": "score", "metric": ("auc",), "test": "bootstrap-rows", "replicates": 20},
        {"scores", "buckets", "ids", "auc-of-all", "iteration-1-resampled-exact", "iteration-1-resampled-exact-all"},
    ),
    "loss of groups": (
        {"loss": "loss", "metric": ("loss",), "group": "author", "replicates": 20},
        {"sizes", "deviations", "iteration-1-resampled", "iteration-1-resampled-groups"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["accuracy", *(slow(one) for one in [*SEARCHES][1:])])
def test_a_search_takes_up_the_job_of_each_stage(name, tmp_path, monkeypatch):
    table().to_csv(tmp_path / "data.csv", index=False)
    options, wanted_stages = SEARCHES[name]
    given = {"data": (str(tmp_path / "data.csv"),), "features": ("age", "job")}
    given |= {"max_cross_size": 2, **options}
    assert wanted_stages <= killed_at_each_stage("search", given, tmp_path, monkeypatch)


def texts(rows=400):
    random = np.random.default_rng(2)
    words = {"ant": "small black insect walks", "cat": "soft grey animal sleeps"}
    of = random.choice([*words], rows)
    chosen = [" ".join(random.permutation(words[one].split())[:3]) for one in of]
    label = random.integers(0, 2, rows)
    new = np.where(random.random(rows) < np.where(of == "ant", 0.6, 0.1), 1 - label, label)
    return pd.DataFrame({"text": chosen, "label": label, "old": label, "new": new})


PAIR = {"label": "label", "prediction": "new", "baseline_prediction": "old"}
DISCOVERIES = {
    "vectors": (
        {"embedding": "z", "dimensions": 4, "components": (4,), **PAIR},
        {"embeddings", "pca", "projecting", "projected", "em-0", "em-1", "derived", "describing", "shards"},
    ),
    "texts": ({"text": "text", "components": (3,), **PAIR}, {"texts", "embeddings", "derived"}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", DISCOVERIES)
def test_a_discovery_and_its_check_take_up_the_job_of_each_stage(name, tmp_path, monkeypatch):
    data = str(tmp_path / "data.parquet")
    if name == "vectors":
        written(tmp_path / "data.parquet", examples(3, n=300, apart=1.2))
    else:
        texts().to_parquet(data)
    options, wanted_stages = DISCOVERIES[name]
    given = {"data": (data,), **options}
    assert wanted_stages <= killed_at_each_stage("discover", given, tmp_path, monkeypatch)
    given = {"data": (data,), "changelist": str(tmp_path / "undisturbed" / "changelist.json")}
    (tmp_path / "check").mkdir()
    stages = killed_at_each_stage("check", given, tmp_path / "check", monkeypatch)
    assert {"embeddings", "derived", "shards"} <= stages


ROLES = {"label": "label", "old_prediction": "old", "budget": "100"}
MODEL = """
from pathlib import Path
from apache_beam.ml.inference.base import ModelHandler

class Model(ModelHandler):
    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        for row in batch:
            with Path(__file__).with_name("calls").open("a") as log:
                log.write(row["key"] + "\\n")
            yield row["new"]
"""


def test_what_a_job_was_asked_when_the_driver_died_is_not_asked_again(tmp_path, monkeypatch):
    """The job goes on, and writes the answers while the driver is dead."""
    importable(monkeypatch, tmp_path, "model_of_a_test", MODEL)
    given = {"data": (saved(made(400), tmp_path),), "model": "model_of_a_test:Model", **ROLES}
    left = []

    def sent(engine, build, name):
        if "answers" in name:
            left.append((build, name))
            raise Killed
        return inner(engine, build, name)

    def waited_for(engine, name):
        if left and name == left[0][1]:
            inner(engine, *left[0])
        return attach(engine, name)

    inner, attach = KeepingEngine.run, KeepingEngine.attach
    with monkeypatch.context() as patch:
        patch.setattr(KeepingEngine, "run", sent)
        with pytest.raises(Killed):
            DRIVEN["shift"](tmp_path / "out", False, given)
    monkeypatch.setattr(KeepingEngine, "attach", waited_for)
    DRIVEN["shift"](tmp_path / "out", True, given)
    calls = (tmp_path / "calls").read_text().split()
    assert len(calls) == len(set(calls)) == 100
    assert KeepingEngine.ran.count(left[0][1]) == 1
