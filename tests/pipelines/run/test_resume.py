"""What --resume does, also after a driver that died on an engine that keeps finished jobs."""

import fcntl
import json
import os
from collections import Counter
from functools import partial
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.errors import EngineError, OptionError
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.commands.table import data_command
from slicebeam.pipelines.config.check import check_config
from slicebeam.pipelines.config.common import validated
from slicebeam.pipelines.config.discover import DiscoverConfig
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.config.shift import ShiftConfig
from slicebeam.pipelines.prepare import encoded_dataset
from slicebeam.pipelines.run import engine
from slicebeam.pipelines.run.stage import Workspace
from slicebeam.pipelines.run.work_folder import WorkFolder, described
from slicebeam.pipelines.search import counter, findings
from slicebeam.pipelines.search.discover import run_discovery
from slicebeam.pipelines.search.search import run_check, run_search
from slicebeam.pipelines.shift.run import run_shift
from slicebeam.pipelines.show.terminal import Terminal
from slicebeam.runner_configs.in_process import InProcess
from slicebeam.runner_configs.options import DirectOptions
from tests.conftest import slow
from tests.discover_runs import examples, written
from tests.refusals import refuses
from tests.running import Killed, all_published, read, search
from tests.shift_runs import REPLAYED, made, saved


def table(rows=400):
    random = np.random.default_rng(5)
    job, label = random.choice(["ant", "bee", "cat"], rows), random.integers(0, 2, rows)
    new = np.where(random.random(rows) < np.where(job == "ant", 0.6, 0.1), 1 - label, label)
    return pd.DataFrame({"job": job, "label": label, "new": new})


COMMANDS = ("search", "check", "discover", "shift")
only_search = pytest.mark.parametrize("given", ["search"], indirect=True)
MOST_SELDOM = ["search", *(slow(one) for one in COMMANDS[1:])]
every_command = pytest.mark.parametrize("given", MOST_SELDOM, indirect=True)


@pytest.fixture
def given(request, tmp_path):
    data, output = tmp_path / "data.parquet", f"--output={tmp_path}/out"
    outcome = ["--label=label", "--prediction=new"]
    if request.param == "discover":
        written(data, examples(3, n=300, apart=1.2))
        more = [*outcome, "--embedding=z", "--components=3", "--baseline-prediction=old"]
    elif request.param == "shift":
        saved(made(300), tmp_path, "data.parquet")
        more = [*REPLAYED, "--budget=100"]
    else:
        table().to_parquet(data)
        more = [*outcome]
        if request.param == "check":
            (tmp_path / "slices.yaml").write_text("- job = ant\n- job = bee\n")
            more.append(f"--slices={tmp_path}/slices.yaml")
    return [request.param, f"--data={data}", output, *more]


def contents(output):
    return {path.name: path.read_bytes() for path in output.rglob("*") if path.is_file()}


@pytest.fixture
def computes_nothing(monkeypatch):
    computing = Mock(side_effect=AssertionError("something is computed again"))
    monkeypatch.setattr(engine.Engine, "run", computing)
    monkeypatch.setattr(WorkFolder, "begin", computing)
    return monkeypatch


@every_command
def test_what_was_not_begun_begins_and_what_is_published_is_not_computed_again(
    given, tmp_path, capsys, request
):
    code = run([*given, "--fail-on=worse", "--resume"])
    printed, folder = capsys.readouterr(), tmp_path / "out" / "_work"
    assert f"--resume: there is no unfinished run in {folder}; a new one starts" in printed.err
    assert (code, folder.exists()) == (1, False)
    first, before = printed.out, contents(tmp_path / "out")
    request.getfixturevalue("computes_nothing")
    assert run([*given, "--fail-on=worse", "--resume"]) == code
    again = capsys.readouterr()
    assert f"already published: {tmp_path}/out/changelist.json" in again.err
    assert again.out == first
    # The document says what the exit code says, also of another gate.
    assert json.loads(before["changelist.json"])["gate"]["exit_code"] == code
    assert run([*given, "--resume"]) == 0
    ungated = contents(tmp_path / "out")
    assert "gate" not in json.loads(ungated["changelist.json"])
    assert b'"summary": "FAIL: ' not in ungated["changelist.json"]
    assert {**ungated, "changelist.json": before["changelist.json"]} == before
    assert run([*given, "--fail-on=worse", "--resume"]) == code
    # What does not change what is found may be given otherwise.
    other = ["--fail-on=worse", "--resume", f"--work-dir={tmp_path}/elsewhere"]
    assert run([*given, *other]) == code
    assert contents(tmp_path / "out") == before
    assert not (tmp_path / "elsewhere").exists()
    assert run([*given, "--seed=5", "--resume"]) == 2
    said = f"--resume: {tmp_path}/out/changelist.json was published with different options"
    assert said in capsys.readouterr().err


@every_command
def test_a_run_killed_after_it_published_is_finished(given, tmp_path, monkeypatch, request):
    monkeypatch.setattr("slicebeam.pipelines.run.open_run._try_to", Mock(side_effect=Killed))
    refuses(Killed, "", run, given)
    before = contents(tmp_path / "out")
    assert "run.json" in before
    lock = tmp_path / "out" / ".changelist.json.lock"
    lock.touch()
    monkeypatch.undo()
    request.getfixturevalue("computes_nothing")
    with lock.open() as held:
        # Of a run that is publishing just now.
        fcntl.flock(held, fcntl.LOCK_EX)
        assert run([*given, "--resume"]) == 0
        assert lock.exists()
    assert run([*given, "--resume"]) == 0
    assert not lock.exists()
    assert not (tmp_path / "out" / "_work").exists()
    assert contents(tmp_path / "out").items() <= before.items()


@only_search
def test_a_run_that_was_killed_before_it_published_anew_goes_on(given, tmp_path, monkeypatch):
    """What an earlier run of the same published does not stand for it."""
    assert run(given) == 0
    before = contents(tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr("slicebeam.pipelines.search.search.build", Mock(side_effect=Killed))
        refuses(Killed, "", run, given)
    # Until the new result is whole the old one stays.
    assert contents(tmp_path / "out").items() > before.items()
    assert run([*given, "--resume"]) == 0
    documents = (one["changelist.json"] for one in (before, contents(tmp_path / "out")))
    then, now = (json.loads(one)["created_at"] for one in documents)
    assert now > then


def cut(path):
    path.write_bytes(path.read_bytes()[:30])


def of_an_earlier_version(path):
    content = json.loads(path.read_text())
    del content["provenance"]["run"]
    path.write_text(json.dumps(content))


@only_search
@pytest.mark.parametrize(("name", "change", "said"), [
    ("data.parquet", lambda path: os.utime(path, (1, 1)), "changelist.json was published with different data; leave"),
    ("out/changelist.json", lambda path: path.write_text(path.read_text().replace('"title": "', '"title": "My ')), "changelist.json has changed since it was published; l"),
    slow("out/changelist.json", of_an_earlier_version, "does not record its options and"),
    slow("out/changelist.json", cut, "is not a document of this command"),
    slow("out/slices.parquet", lambda path: path.unlink(), "slices.parquet has disappeared since it was published"),
    slow("out/slices.parquet", cut, "slices.parquet has changed since it was published"),
])  # fmt: skip
def test_what_was_not_published_is_not_taken_for_it(given, tmp_path, capsys, name, change, said):
    assert run(given) == 0
    change(tmp_path / name)
    before = contents(tmp_path / "out")
    capsys.readouterr()
    assert run([*given, "--resume"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("slicebeam: --resume: ")
    assert said in message
    assert "leave --resume out to replace it" in message
    assert contents(tmp_path / "out") == before
    assert run(given) == 0


@only_search
def test_what_was_computed_is_not_there_to_be_explained(given, capsys):
    assert run([*given, "--explain=job = ant"]) == 0
    assert run([*given, "--explain=job = ant", "--resume"]) == 2
    assert "the run is published, and its intermediate results are gone" in capsys.readouterr().err


@only_search
def test_a_work_folder_that_stays_is_a_note(given, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(WorkFolder, "remove", Mock(side_effect=EngineError("cannot clear it")))
    assert run([*given, f"--output={tmp_path}/out"]) == 0
    assert "cannot clear it; the result is published" in capsys.readouterr().err


def named(text):
    return frozenset(text.split())


# Each option of search, check, discover and shift is in one of these. A new one belongs to the first
# where the files of a result depend on it, and to the second where a test shows that they do not.
DECIDE = named("""
    alpha alternative api baseline_data baseline_loss baseline_model baseline_prediction baseline_score bins budget by
    changelist column_names compare components confidence confirm correction data delimiter difficulty dimensions
    discovery_share domains embedding encoder eval_config exact_edges example_id exclude_features features
    focus format group iterations keep_outputs label ledger loss loss_weight max_candidates max_cross_size
    method metric min_slice_size model model_inputs old_matrix old_prediction parity phrases plan positive_class
    prediction price prune_significant query repeat replay_prediction replicates score score_classes seed since skip_rows slices
    strategy target_error test text tfma_metric tfma_module threshold top_values weight within_findings
""")
# save_slices leaves rows of a table out when it is published.
MAY_DIFFER = named("""
    beam chunk_rows memory_budget output runner_config runner_option save_slices work_dir
""")
# Embeddings and members lie in a file for each chunk, and are added up in its order.
DECIDE_BY_CHUNKS = frozenset({"chunk_rows", "memory_budget"})
# Becomes since where there is such a file.
RESOLVED = frozenset({"since_if_exists"})
# How a run goes and what is shown of it: these are not in the configuration.
SHOW = named("""
    allow_http as_json dry_run explain fail_on known log_format page quiet report resume tolerance
""")
ROLES = {"data": ("d.parquet",), "output": "out", "label": "y"}
CONFIGS = {
    "search": search_config({**ROLES, "prediction": "p"}),
    "check": check_config({**ROLES, "prediction": "p", "slices": "s.yaml"}),
    "discover": validated(DiscoverConfig, {**ROLES, "prediction": "p", "embedding": "z", "example_id": "id"}),
    "shift": validated(ShiftConfig, {**ROLES, "old_prediction": "p", "replay_prediction": "q", "budget": "9"}),
}  # fmt: skip
OF_A_CHECK = {"changelist": "c.json", "slices": None}
CONFIGS["check --changelist"] = CONFIGS["check"].model_copy(update=OF_A_CHECK)


def other(value):
    return (*value, "other") if isinstance(value, tuple) else f"{value} and more"


def test_every_option_is_classified():
    known = {name for config in CONFIGS.values() for name in type(config).model_fields}
    assert known == DECIDE | MAY_DIFFER | RESOLVED
    each = [data_command(name).models[1] for name in COMMANDS]
    assert {name for options in each for name in options.model_fields} == SHOW
    assert len(known) == len(DECIDE) + len(MAY_DIFFER) + len(RESOLVED)
    assert not SHOW & known


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("command", CONFIGS)
def test_what_decides_the_result_may_not_differ(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").touch()
    config, has_chunks = CONFIGS[command], command in ("discover", "check --changelist")
    may_differ = MAY_DIFFER - (DECIDE_BY_CHUNKS if has_chunks else frozenset())
    begun = described(config, [])
    for name in [one for one, field in type(config).model_fields.items() if not field.exclude]:
        resumed = described(config.model_copy(update={name: other(getattr(config, name))}), [])
        assert (resumed.config_hash == begun.config_hash) == (name in may_differ), name
        if name in may_differ:
            resumed.check_same(begun, tmp_path)
        else:
            with pytest.raises(OptionError, match="use the same options, or leave --resume out"):
                resumed.check_same(begun, tmp_path)


OPTIONS = {
    # So many slices that small tables hold them in several blocks.
    "accuracy": {"features": ("workclass", "education", "occupation", "native-country", "age", "fnlwgt", "hours-per-week"), "top_values": 40, "bins": 20},
    "groups": {"group": "native-country", "features": ("education", "relationship", "sex"), "replicates": 100, "min_slice_size": 100},
    "auc": {"metric": ("auc",), "score": "score", "features": ("education", "sex", "relationship")},
}  # fmt: skip
SMALL, LARGE = {"memory_budget": "16MB", "chunk_rows": 1111}, {"memory_budget": "1GB"}
STAGES = {
    "accuracy": ("domains", "shards", "iteration-1", "findings-0-worse-2"),
    "groups": ("iteration-1-resampled",),
    "auc": ("iteration-1-exact",),
}
ORDERS = ("lower", "higher")
DEFAULT = {("domains", "lower"), ("shards", "higher"), ("iteration-1", "higher")}
DEFAULT |= {("findings-0-worse-2", "lower"), ("iteration-1-resampled", "higher")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, adult_path):
    made = tmp_path_factory.mktemp
    return {way: search(made(way), **options_of(way, adult_path)) for way in OPTIONS}


def options_of(way, data):
    return {"data": (str(data),), "label": "income", "prediction": "prediction", **OPTIONS[way]}


@pytest.mark.parametrize(("way", "stage", "order"), [
    one if one[1:] in DEFAULT else slow(*one)
    for one in ((way, stage, order) for way in STAGES for stage in STAGES[way] for order in ORDERS)
])  # fmt: skip
def test_a_run_continues_in_other_memory(
    undisturbed, adult_path, tmp_path, monkeypatch, way, stage, order
):
    # However few, examples are counted anew for each finding.
    monkeypatch.setattr(findings, "MOST_HELD", 0)
    before, after = (LARGE, SMALL) if order == "lower" else (SMALL, LARGE)
    parts = []
    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, "finish", dying(stage, parts))
        refuses(EngineError, "died", search, tmp_path, **options_of(way, adult_path), **before)
    found = search(tmp_path, resume=True, **options_of(way, adult_path), **after)
    expected = undisturbed[way]
    assert found.slices_bytes == expected.slices_bytes
    assert found.timeless() == expected.timeless()
    assert parts
    if stage == "iteration-1":
        assert (parts[0] > 1) == (order == "higher")


def dying(stage, parts):
    """Return a `WorkFolder.finish` that dies at a stage of which the last file is not written yet."""
    finish = WorkFolder.finish

    def finish_or_die(work, name, *facts):
        if name == stage:
            files = sorted(work.path_of(name).glob("[0-9]*"))
            parts.append(len(files))
            files[-1].unlink()
            raise EngineError("died")
        finish(work, name, *facts)

    return finish_or_die


def test_a_finished_block_is_not_counted_again(adult_path, tmp_path, monkeypatch):
    options, parts = {**options_of("accuracy", adult_path), **SMALL}, []
    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, "finish", dying("iteration-1", parts))
        refuses(EngineError, "died", search, tmp_path, **options)
    counting = Mock(wraps=counter.work_items)
    monkeypatch.setattr(counter, "work_items", counting)
    search(tmp_path, resume=True, **options)
    assert parts[0] > 2
    assert [list(call.args[0]) for call in counting.call_args_list] == [[parts[0] - 1]]


def test_out_of_memory_continues_with_less(undisturbed, adult_path, tmp_path, monkeypatch, capsys):
    features = ",".join(OPTIONS["auc"]["features"])
    command = ["search", f"--data={adult_path}", f"--output={tmp_path}", "--label=income"]
    command += ["--prediction=prediction", "--metric=auc", "--score=score"]
    command.append(f"--features={features}")
    with monkeypatch.context() as patch:
        fault = Mock(side_effect=MemoryError)
        patch.setattr("slicebeam.pipelines.search.iterations.Iterations._count", fault)
        assert run([*command, "--memory-budget=2GB"]) == 3
    said = capsys.readouterr().err
    assert "out of memory; finished work is in" in said
    assert "continue with --resume and a lower --memory-budget, or start over" in said
    assert run([*command, "--memory-budget=1GB", "--resume", "--max-cross-size=2"]) == 2
    assert "--max-cross-size is 2 but was 3" in capsys.readouterr().err
    assert run([*command, "--memory-budget=16MB", "--chunk-rows=1111", "--resume", "--quiet"]) == 0
    assert read(tmp_path).slices_bytes == undisturbed["auc"].slices_bytes


OF_GROUPS = slow("iteration-1-resampled-groups", {"group": "fnlwgt"})


@pytest.mark.parametrize(
    ("stage", "options"), [("hashes", {}), OF_GROUPS], ids=["hashes", "groups"]
)
def test_a_part_that_vanishes_is_named(tmp_path, adult_path, monkeypatch, stage, options):
    inner, removed = Workspace.stage, []

    def without_a_part(run, name, *arguments, **keywords):
        noted = inner(run, name, *arguments, **keywords)
        if name == stage:
            # The last of all, which no count of the others tells to be missing.
            removed.append(max(run.work.path_of(stage).glob("*.arrow")))
            removed[0].unlink()
        return noted

    monkeypatch.setattr(Workspace, "stage", without_a_part)
    roles = {"label": "income", "prediction": "prediction", "max_cross_size": 2}
    given = {"data": adult_path, **roles, **options}
    refuses(EngineError, r"\d{6}\.arrow", search, tmp_path / "out", **given)
    assert len(removed) == 1


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
        return Counter() if name in self.done else None


@pytest.fixture
def keeping(monkeypatch):
    KeepingEngine.done.clear()
    KeepingEngine.ran.clear()
    monkeypatch.setattr(engine, "_backend", lambda _: KeepingEngine())
    # However small, everything is a job.
    monkeypatch.setattr(encoded_dataset, "LEAST_PASS_SECONDS", 0.0)
    monkeypatch.setattr(findings, "MOST_HELD", 0)


def driven(config_of, run):
    """Return how a command is run from Python, as by a driver of its own."""

    def once(output, resume, given):
        with engine.Engine(engine.RunnerConfig("direct", DirectOptions())) as direct:
            config = config_of({**given, "output": str(output)})
            run(config, direct, Terminal(quiet=True), resume=resume)

    return once


DRIVEN = {
    "search": driven(search_config, run_search),
    "check": driven(check_config, run_check),
    "discover": driven(partial(validated, DiscoverConfig), run_discovery),
    "shift": driven(partial(validated, ShiftConfig), run_shift),
}


def killed_at_each_stage(command, given, folder, monkeypatch):
    """Kill a run before the note of each stage, go on each time, and hold what it publishes."""
    run = DRIVEN[command]
    run(folder / "undisturbed", False, given)
    wanted = all_published(folder / "undisturbed")
    KeepingEngine.done.clear()
    KeepingEngine.ran.clear()
    finish, stages = WorkFolder.finish, list[str]()

    def killed(work, stage, *facts):
        if stage not in stages:
            stages.append(stage)
            raise Killed
        finish(work, stage, *facts)

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
    assert all_published(folder / "out") == wanted
    return set(stages)


def of_parts(rows=600):
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
@pytest.mark.usefixtures("keeping")
def test_a_search_takes_up_the_job_of_each_stage(name, tmp_path, monkeypatch):
    of_parts().to_csv(tmp_path / "data.csv", index=False)
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
@pytest.mark.usefixtures("keeping")
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
