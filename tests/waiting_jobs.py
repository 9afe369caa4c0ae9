"""A search that is struck in the middle of a job, which waits for the file ``begun-may-end``."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.object_stores import ROOT

FLAGS = ["--label=income", "--prediction=prediction", "--quiet", "--memory-budget=16MB"]
FLAGS += [
    "--test=paper",
    "--features=age,education,fnlwgt,hours-per-week,marital-status,occupation",
]


def command(output, data, engine):
    program = [sys.executable, "-m", "slicebeam.pipelines.commands.cli", "search", *FLAGS]
    engine = [f"--runner-config={engine}"] if isinstance(engine, str) else engine
    return [*program, f"--data={data}", f"--output={output}", *engine]


def search_at_work(folder, data, engine, stage):
    """Start the search of a command; return it in the middle of a job, and the processes below it."""
    begun = folder / "begun"
    _, _, _, *arguments = command(folder / "out", data, engine)
    program = f"from tests.waiting_jobs import main; main({str(begun)!r}, {stage!r})"
    started = [sys.executable, "-c", program, *arguments]
    process = subprocess.Popen(started, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.005)
    return process, psutil.Process(process.pid).children(recursive=True)


def forked_search_at_work(commands, folder, data, engine, stage):
    """Start the same as a fork of a process that has imported what it needs."""
    begun = folder / "begun"
    _, _, _, *arguments = command(folder / "out", data, engine)
    environment = {**os.environ, "BEGUN": str(begun), "STAGE": stage}
    hook = "tests.waiting_jobs:wait_as_told"
    started = commands.start(arguments, environment=environment, hook=hook)
    while not begun.exists():
        assert started.runs(), started.ended()
        time.sleep(0.005)
    return started, psutil.Process(started.pid).children(recursive=True)


def main(begun, stage):
    from slicebeam.pipelines.commands import cli

    _wait_in_a_job(begun, stage)
    cli.main()


def wait_as_told():
    _wait_in_a_job(os.environ["BEGUN"], os.environ["STAGE"])


def _wait_in_a_job(begun, stage):
    import apache_beam as beam

    from slicebeam.pipelines.run.engine import Engine

    run, plain = Engine.run, beam.Create

    def wait(element):
        Path(begun).touch()
        while Path(begun).parent.exists() and not Path(f"{begun}-may-end").exists():
            time.sleep(0.01)
        return element

    def run_waiting(engine, build, name, *more, **further):
        waits = name.startswith(stage)
        beam.Create = (lambda *items: plain(*items) | beam.Map(wait)) if waits else plain
        return run(engine, build, name, *more, **further)

    Engine.run = run_waiting
