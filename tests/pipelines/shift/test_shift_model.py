"""Shifts whose answers a model gives: handlers of Beam's, and scikit-learn's."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from slicebeam.pipelines.cli import run
from tests.running import refused
from tests.shift_runs import REPLAYED, ROLES, asked_items, document, made, matrix, saved, shift


@pytest.fixture(scope="module")
def frame():
    return made()


@pytest.fixture(scope="module")
def pool(frame, tmp_path_factory):
    return saved(frame, tmp_path_factory.mktemp("pool"))


HANDLERS = '''
import time
from pathlib import Path

import numpy as np
from apache_beam.ml.inference.base import ModelHandler, RemoteModelHandler

HERE = Path(__file__).parent


def note(row):
    with (HERE / "calls").open("a") as log:
        log.write(row["key"] + "\\n")


class Local(ModelHandler):
    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        for row in batch:
            note(row)
            if (HERE / "slow").exists():
                time.sleep(0.005)
            yield row["new"]


class Remote(RemoteModelHandler):
    def __init__(self):
        super().__init__(namespace="remote", num_retries=1)

    def create_client(self):
        return None

    def request(self, batch, model, inference_args=None):
        for row in batch:
            note(row)
        return [row["new"] for row in batch]


class Odd(Local):
    """Answers with what is no class, but every fifth time."""

    def run_inference(self, batch, model, inference_args=None):
        odd = [None, float("nan"), [1], {"a": 1}, np.int64(1)]
        for row in batch:
            note(row)
            yield odd[int(row["key"].split("-")[1]) % 5]
'''


@pytest.fixture
def handlers(tmp_path, monkeypatch):
    folder = tmp_path / "handlers"
    folder.mkdir()
    (folder / "handlers_of_a_test.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.delitem(sys.modules, "handlers_of_a_test", raising=False)
    return folder


def calls_of(folder):
    log = folder / "calls"
    return log.read_text().split() if log.exists() else []


@pytest.mark.parametrize("handler", ["Local", "Remote"])
@pytest.mark.slow
def test_a_model_handler_answers_once(handler, frame, pool, handlers, tmp_path):
    flags = ["--data", pool, *ROLES, "--model", f"handlers_of_a_test:{handler}"]
    how = ["--budget", 100, "--by", "part"]
    found = shift(tmp_path / "out", *flags, *how)
    replayed = shift(tmp_path / "recorded", "--data", pool, *REPLAYED, *how)
    for told in (found, replayed):
        del told["shift"]["cost"]
    assert found["shift"] == replayed["shift"]
    asked = asked_items(frame["label"], [one["calls"] for one in found["shift"]["strata"]], 0)
    assert sorted(calls_of(handlers)) == sorted(frame["key"][asked])
    assert not (tmp_path / "out" / "_work").exists()
    again = shift(tmp_path / "out", *flags, "--budget", 130)["shift"]["cost"]
    assert (again["calls"], again["replayed"]) == (130, 100)
    assert len(calls_of(handlers)) == len(set(calls_of(handlers))) == 130
    adaptive = [*flags, "--method", "masa", "--ledger", tmp_path / "out" / "ledger"]
    shift(tmp_path / "masa", *adaptive, "--budget", 40)
    assert len(calls_of(handlers)) == len(set(calls_of(handlers))) < 170


@pytest.mark.slow
def test_what_is_no_class_is_no_result(pool, handlers, tmp_path):
    flags = ["--data", pool, *ROLES, "--model", "handlers_of_a_test:Odd", "--budget", 100]
    told = shift(tmp_path / "out", *flags)["shift"]
    asked = [int(key.split("-")[1]) % 5 for key in calls_of(handlers)]
    assert told["cost"]["no_result"] == sum(number < 4 for number in asked)
    assert told["predictions"] == [0, 1, 2, None]
    again = shift(tmp_path / "out", *flags)["shift"]
    assert (again["cost"]["replayed"], again["new_matrix"]) == (100, told["new_matrix"])
    assert len(calls_of(handlers)) == 100


@pytest.mark.slow
@pytest.mark.parametrize("resume", [True, False])
def test_a_killed_run_asks_only_what_it_has_no_answer_to(resume, pool, handlers, tmp_path):
    flags = ["shift", "--data", pool, *ROLES, "--model", "handlers_of_a_test:Local", "--quiet"]
    flags += ["--budget", "400", "--output", str(tmp_path / "out")]
    (handlers / "slow").touch()
    program = "from slicebeam.pipelines.cli import main; main()"
    running = subprocess.Popen([sys.executable, "-c", program, *flags], env=os.environ)
    kept = tmp_path / "out" / "_work" / "answers"
    while not list(kept.glob("*.json")) or len(calls_of(handlers)) < 150:
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    settled = set()
    for path in kept.glob("*.json"):
        settled |= set(json.loads(path.read_text())["facts"])
    before = len(calls_of(handlers))
    (handlers / "slow").unlink()
    assert run([*flags, *(["--resume"] if resume else [])]) == 0
    later = calls_of(handlers)[before:]
    assert settled
    assert not settled & {f"#{key.split('-')[1]}" for key in later}
    assert len(set(calls_of(handlers))) == 400
    assert run(flags) == 0
    assert len(calls_of(handlers)) == before + len(later)
    told = document(tmp_path / "out")["shift"]
    undisturbed = shift(tmp_path / "recorded", "--data", pool, *REPLAYED, "--budget", 400)["shift"]
    assert (told["new_matrix"], told["cost"]["replayed"]) == (undisturbed["new_matrix"], 400)


@pytest.mark.slow
def test_a_scikit_learn_model(frame, pool, tmp_path, capsys):
    named = LogisticRegression().fit(frame[["x1", "x2"]], frame["label"])
    unnamed = LogisticRegression().fit(frame[["x1", "x2"]].to_numpy(), frame["label"])
    for name, model in (("named", named), ("unnamed", unnamed)):
        (tmp_path / f"{name}.pkl").write_bytes(pickle.dumps(model))
    flags = ["--data", pool, *ROLES, "--budget", 600, "--model"]
    one = shift(tmp_path / "one", *flags, tmp_path / "named.pkl")
    two = shift(tmp_path / "two", *flags, tmp_path / "unnamed.pkl", "--features", "x1,x2")
    predicted = frame.assign(new=named.predict(frame[["x1", "x2"]]))
    for found in (one, two):
        told = found["shift"]
        np.testing.assert_allclose(told["new_matrix"], matrix(predicted, "new", told), atol=1e-12)
    # Another model under the same name does not answer with what the first one said.
    (tmp_path / "named.pkl").write_bytes(pickle.dumps(unnamed))
    arguments = ["shift", *map(str, flags), str(tmp_path / "named.pkl"), "--features", "x1,x2"]
    arguments += ["--output", str(tmp_path / "one"), "--quiet"]
    assert "belong to other requests" in refused(arguments, capsys, folder=tmp_path)
