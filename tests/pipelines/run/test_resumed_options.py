"""Which options may differ when a run is resumed, and that the result is the same if they do."""

import pytest

from slicebeam.metrics.errors import EngineError, OptionError
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.config.check import check_config
from slicebeam.pipelines.config.discover import discover_config
from slicebeam.pipelines.config.run_options import (
    CheckRunOptions,
    DiscoverRunOptions,
    SearchRunOptions,
    ShiftRunOptions,
)
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.config.shift import shift_config
from slicebeam.pipelines.run.work_folder import WorkFolder, described
from slicebeam.pipelines.search import findings
from tests.conftest import slow
from tests.running import read, search


def named(text):
    return frozenset(text.split())


# Each option of search, check, discover and shift is in one of these. A new one belongs to the first
# where the files of a result depend on it, and to the second where a test shows that they do not.
DECIDE = named("""
    alpha alternative api baseline_loss baseline_model baseline_prediction baseline_score bins budget by
    changelist column_names compare components confidence correction data delimiter difficulty dimensions
    discovery_share domains embedding encoder eval_config exact_edges example_id exclude_features features
    focus format group iterations label ledger loss loss_weight max_candidates max_cross_size
    method metric min_slice_size model old_matrix old_prediction phrases plan positive_class prediction
    price prune_significant repeat replay_prediction replicates score seed since skip_rows slices
    strategy target_error test text tfma_metric tfma_module threshold top_values weight within_findings
""")
# save_slices leaves rows of a table out when it is published.
MAY_DIFFER = named("""
    chunk_rows memory_budget output runner_config runner_option save_slices work_dir
""")
# Embeddings and members lie in a file for each chunk, and are added up in its order.
DECIDE_BY_CHUNKS = frozenset({"chunk_rows", "memory_budget"})
# Becomes since where there is such a file.
RESOLVED = frozenset({"since_if_exists"})
# How a run goes and what is shown of it: these are not in the configuration.
SHOW = named("""
    allow_http as_json dry_run explain fail_on log_format page quiet report resume
""")
ROLES = {"data": ("d.parquet",), "output": "out", "label": "y"}
CONFIGS = {
    "search": search_config({**ROLES, "prediction": "p"}),
    "check": check_config({**ROLES, "prediction": "p", "slices": "s.yaml"}),
    "discover": discover_config({**ROLES, "prediction": "p", "embedding": "z", "example_id": "id"}),
    "shift": shift_config({**ROLES, "old_prediction": "p", "replay_prediction": "q", "budget": "9"}),
}  # fmt: skip
CONFIGS["check --changelist"] = CONFIGS["check"].model_copy(
    update={"changelist": "c.json", "slices": None}
)


def other(value):
    """A value that differs from another one."""
    return (*value, "other") if isinstance(value, tuple) else f"{value} and more"


def test_every_option_is_classified():
    known = {name for config in CONFIGS.values() for name in type(config).model_fields}
    assert known == DECIDE | MAY_DIFFER | RESOLVED
    shown = (SearchRunOptions, CheckRunOptions, DiscoverRunOptions, ShiftRunOptions)
    assert {name for options in shown for name in options.model_fields} == SHOW
    assert len(known) == len(DECIDE) + len(MAY_DIFFER) + len(RESOLVED)
    assert not SHOW & known


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("command", CONFIGS)
def test_what_decides_the_result_may_not_differ(command, tmp_path):
    config = CONFIGS[command]
    has_chunks = command in ("discover", "check --changelist")
    may_differ = MAY_DIFFER - (DECIDE_BY_CHUNKS if has_chunks else frozenset())
    begun = described(config, [])
    for name in {*type(config).model_fields} - RESOLVED:
        changed = config.model_copy(update={name: other(getattr(config, name))})
        resumed = described(changed, [])
        assert (resumed.config_hash == begun.config_hash) == (name in may_differ), name
        if name in may_differ:
            resumed.check_same(begun, tmp_path)
        else:
            with pytest.raises(OptionError, match="use the same options, or leave --resume out"):
                resumed.check_same(begun, tmp_path)


OPTIONS = {
    "accuracy": {
        # So many slices that small tables hold them in several blocks.
        "features": (
            *("workclass", "education", "occupation", "native-country"),
            *("age", "fnlwgt", "hours-per-week"),
        ),
        "top_values": 40,
        "bins": 20,
    },
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
DEFAULT = {
    *(("domains", "lower"), ("shards", "higher"), ("iteration-1", "higher")),
    *(("findings-0-worse-2", "lower"), ("iteration-1-resampled", "higher")),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, adult_path):
    return {
        way: search(tmp_path_factory.mktemp(way), **options_of(way, adult_path)) for way in OPTIONS
    }


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
        with pytest.raises(EngineError, match="died"):
            search(tmp_path, **options_of(way, adult_path), **before)
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

    def finish_or_die(work, name, facts):
        if name == stage:
            files = sorted(work.path_of(name).glob("[0-9]*"))
            parts.append(len(files))
            files[-1].unlink()
            raise EngineError("died")
        finish(work, name, facts)

    return finish_or_die


def test_a_run_out_of_memory_continues_with_less(
    undisturbed, adult_path, tmp_path, monkeypatch, capsys
):
    features = ",".join(OPTIONS["auc"]["features"])
    command = ["search", f"--data={adult_path}", f"--output={tmp_path}", "--label=income"]
    command += ["--prediction=prediction", "--metric=auc", "--score=score"]
    command.append(f"--features={features}")

    def fail(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("slicebeam.pipelines.search.iterations.Iterations._count", fail)
        assert run([*command, "--memory-budget=2GB"]) == 3
    said = capsys.readouterr().err
    assert "out of memory; finished work is in" in said
    assert "continue with --resume and a lower --memory-budget, or start over" in said
    assert run([*command, "--memory-budget=1GB", "--resume", "--max-cross-size=2"]) == 2
    assert "--max-cross-size is 2 but was 3" in capsys.readouterr().err
    assert run([*command, "--memory-budget=16MB", "--chunk-rows=1111", "--resume", "--quiet"]) == 0
    assert read(tmp_path).slices_bytes == undisturbed["auc"].slices_bytes
