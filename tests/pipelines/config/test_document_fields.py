"""Every field of a document that holds free text: whether it reaches code, a process, an address or a file.

A new field belongs into one of these tables, and what reaches code, a process or an address has to be
confirmed by the user.
"""

import inspect
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.changelist.document import (
    ChangeList,
    PublishedFile,
    SearchChangeList,
    ShiftChangeList,
)
from slicebeam.pipelines.commands.table import COMMANDS
from slicebeam.pipelines.config.common import Command
from slicebeam.pipelines.config.confirmation import refuse_unconfirmed

# Options in `provenance.config`. A hostile value of what has to be confirmed.
CODE = {"model": "theirs.pkl", "baseline_model": "theirs.pkl", "encoder": "theirs:encoder"}
CODE |= {"tfma_module": ["theirs"], "metric": ["theirs:Metric"]}
PROCESS = {
    "runner_config": "theirs.yaml",
    "runner_option": ["workers=9"],
    "beam": ["prism_location=/bin/sh"],
}
ADDRESS = {"api": "theirs.yaml", "phrases": "theirs.yaml", "encoder": "openai:https://theirs/v1"}
# Read with the user's rights, and parsed as text or tables; SECURITY.md says so.
READ = {
    "data",
    "baseline_data",
    "since",
    "since_if_exists",
    "changelist",
    "domains",
    "slices",
    "eval_config",
}
READ |= {"old_matrix", "phrases", "within_findings", "focus"}
# Written by `slicebeam run`, unless the user names another place; SECURITY.md says so.
WRITTEN = {"output", "work_dir", "ledger"}
# Resolved in a fixed list: no other name is imported.
NAMES = {"tfma_metric"}
# Columns of the data, sizes and values.
VALUES = {
    *("column_names", "delimiter", "example_id", "memory_budget", "label", "prediction", "score"),
    *("baseline_prediction", "baseline_score", "loss", "baseline_loss", "positive_class"),
    *("features", "exclude_features", "parity", "weight", "group", "old_prediction", "difficulty"),
    *("replay_prediction", "budget", "by", "embedding", "text", "score_classes", "model_inputs"),
    *("query",),
}
# Fields of the document besides, by model. Paths that are read with the user's rights.
OPENED = {("Dataset", "uri")}
# Has to be confirmed, as the option has.
CONFIRMED = {("Discovery", "encoder")}
# Held to a pattern that leads to no other folder.
BESIDE = {("PublishedFile", "name")}
# Options, which are above.
OPTIONS = {("Provenance", "config")}
# Shown, compared or written into the next document; no code opens them.
SHOWN = {
    "AdaptiveTests": (*("tree", "tree_sha256", "models", "classes", "unscored", "untested", "never_given"),),
    "Gate": ("reasons", "tolerated"),
    "KnownInRun": ("slice", "metric", "note", "slices"),
    "EarlierData": ("uri",),
    "WhyMoved": ("metric", "new_values"),
    "MovedPart": ("name", "slice_id", "value"),
    "FeatureDrift": ("feature", "value", "new_values", "gone_values"),
    "TopicOutcome": ("slice_id", "topic"),
    "PaidAnswers": ("model", "currency"),
    "Change": ("metric", "test", "inputs", "reason"),
    "Comparison": ("before", "after"),
    "MetricEntry": ("key", "name", "counted"),
    "Model": ("key", "name", "prediction_field", "score_field", "model_uri", "loss_field"),
    "Dataset": (*("name", "fingerprint", "id_field", "label_field", "weight_field", "group_field"), *("classes", "drift")),
    "Within": ("uri", "sha256"),
    "Domain": ("name", "data_type"),
    "Condition": ("field", "value"),
    "Seen": ("low", "high"),
    "NewValue": ("value",),
    "LeftOut": ("name", "reason"),
    "FeatureHint": ("name", "reason"),
    "ParityGap": ("column", "left_out"),
    "ParityGroup": ("name",),
    "Discovery": ("encoder_fingerprint", "embedding_field", "text_field", "mixture_fingerprint"),
    "Resolution": ("field",),
    "Edit": ("target", "before", "after", "note"),
    "Parent": ("changelist_id", "fingerprint"),
    "SliceCoverage": ("metric",),
    "Confusion": ("classes",),
    "Finding": ("metric", "slice_id", "near"),
    "FindingModel": ("metric", "reason"),
    "Confirmation": ("column",),
    "Provenance": ("tool_version", "runner"),
    "Run": ("config", "data", "content"),
    "PublishedFile": ("sha256",),
    "Shift": ("labels", "predictions", "corrected_for", "warnings"),
    "ChangedCell": ("label", "prediction"),
    "ShiftCost": ("currency",),
    "ShiftFocus": ("of",),
    "ShiftStratum": ("label",),
    "SliceShift": ("slice_id",),
    "Since": ("uri", "changelist_id", "metric", "summary", "corrected_for", "warnings"),
    "OverallSince": ("metric", "reason"),
    "MetricSince": ("metric",),
    "SinceSlice": ("slice_id", "name", "metric", "missing", "like"),
    "NearMiss": ("slice_id", "name"),
    "Slice": ("slice_id", "name", "description", "notes", "same_examples_as"),
    "Origin": ("derived_from",),
    "MembershipDefinition": ("ids",),
    # The encoder is the fingerprint of the discovery's, and has to be equal to it.
    "TextQueryDefinition": ("query", "encoder"),
    "ClassifierDefinition": ("encoder",),
    "LlmFilterDefinition": ("prompt", "model", "ids"),
    "Refinement": ("parent",),
    "Phrase": ("text",),
    "ShownExample": ("id", "display"),
    "Overlap": ("slice_id",),
    "Attribution": ("text", "queries", "labels_uri"),
    "Round": ("labeler",),
    "Check": ("uri", "changelist_id"),
    "Search": ("slices_fingerprint",),
    "Testing": ("test", "corrected_for", "warnings", "unseen"),
    "MetricTests": ("metric", "test", "untested", "blind"),
    "TfmaMetric": ("name", "output"),
    "TfmaValue": ("slice_id",),
    "Validation": ("missing_slices",),
    "FailedThreshold": (*("metric", "slice", "slice_id", "compared_with", "reason", "bounds"),),
    "ChangeList": ("schema_version", "changelist_id", "title", "summary", "files"),
}  # fmt: skip


def parts_of(annotation):
    yield annotation
    for one in get_args(annotation):
        yield from parts_of(one)


def texts_of(model):
    parts = {name: parts_of(field.annotation) for name, field in model.model_fields.items()}
    return {name for name in parts if any(one in (str, Any, object) for one in parts[name])}


def models_of(root, seen):
    if root not in seen:
        seen.add(root)
        for field in root.model_fields.values():
            for one in parts_of(field.annotation):
                if inspect.isclass(one) and issubclass(one, BaseModel):
                    models_of(one, seen)
    return seen


def test_every_option_of_a_document_is_in_a_table():
    found = set().union(*(texts_of(COMMANDS[name].models[0]) for name in get_args(Command)))
    assert found == {*CODE, *PROCESS, *ADDRESS, *READ, *WRITTEN, *NAMES, *VALUES}


def test_every_field_of_a_document_is_in_a_table():
    found = {
        ("ChangeList" if issubclass(model, ChangeList) else model.__name__, name)
        for root in (ChangeList, SearchChangeList, ShiftChangeList)
        for model in models_of(root, set())
        for name in texts_of(model)
    }
    listed = {(model, name) for model, names in SHOWN.items() for name in names}
    reaching = (OPENED, CONFIRMED, BESIDE, OPTIONS)
    assert found == listed.union(*reaching)
    assert len(found) == len(listed) + sum(map(len, reaching))


@pytest.mark.parametrize(("name", "value"), [*CODE.items(), *PROCESS.items(), *ADDRESS.items()])
def test_what_reaches_code_a_process_or_an_address_is_confirmed(name, value):
    with pytest.raises(InputError, match="if you trust it, confirm it with --"):
        refuse_unconfirmed("a.json", {name: value}, {})
    refuse_unconfirmed("a.json", {name: value}, {name: value})


@pytest.mark.parametrize(
    "name", ["../a.0123456789ab.parquet", "/etc/passwd", "a/b.0123456789ab.parquet", "x\n.json", ""]
)
def test_the_name_of_a_file_leads_to_no_other_folder(name):
    with pytest.raises(ValidationError):
        PublishedFile(name=name, sha256=f"sha256:{'0' * 64}", size=1)
