"""The ChangeList: the JSON document of a run, whose models define its schema."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from slicebeam.pipelines.changelist.changes import (
    Change,
    Comparison,
    Confirmation,
    MetricEntry,
    Model,
)
from slicebeam.pipelines.changelist.dataset import Dataset
from slicebeam.pipelines.changelist.discovered import Discovery, Edit, Parent
from slicebeam.pipelines.changelist.findings import Finding, FindingModel
from slicebeam.pipelines.changelist.gate import Gate, Validation
from slicebeam.pipelines.changelist.parts import ParityGap, Part, Sha256, SliceCoverage
from slicebeam.pipelines.changelist.shifted import AdaptiveTests, Shift
from slicebeam.pipelines.changelist.since import Since
from slicebeam.pipelines.changelist.slices import Slice
from slicebeam.pipelines.changelist.testing import Check, Search, Testing
from slicebeam.pipelines.changelist.tfma import TfmaMetric
from slicebeam.transforms.storage.publish import NAME_PATTERN


class PublishedFile(Part):
    """A file next to the document, published with it."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)] = Field(
        description="of the file in the document's folder; its content never changes"
    )
    sha256: Sha256
    size: Annotated[int, Field(ge=0)] = Field(description="bytes")


class Run(Part):
    """The run that published the document, by which the same command sees that it is done."""

    config: Sha256 = Field(description="of all options that decide the result, as given")
    data: Sha256 = Field(description="of size and time, or version, of each file that was read")
    content: Sha256 | None = Field(default=None, description="of the document without this entry")


class Provenance(Part):
    """What made the document."""

    tool: Literal["slicebeam"] = "slicebeam"
    tool_version: str
    command: Literal["search", "check", "shift", "discover"] = "search"
    runner: str
    seed: int
    config: dict[str, Any] = Field(
        description="every option that had an effect, by name, including defaults; it repeats the run"
    )
    run: Run | None = Field(default=None, description="absent in documents of older versions")


SCHEMA_VERSION = "1.0"


class ChangeList(Part):
    """The document of a run; keys that begin with ``x_`` are ignored."""

    model_config = ConfigDict(validate_by_name=True)

    schema_version: Annotated[str, Field(pattern=r"^1\.[0-9]+$")] = SCHEMA_VERSION
    changelist_id: str
    revision: Annotated[int, Field(ge=0)] = 0
    parent: Parent | None = Field(
        default=None, description="in a revision: the document that it was made from"
    )
    title: str
    summary: str = Field(
        description="the result in plain words, which begin with PASS or FAIL where there is a gate"
    )
    gate: Gate | None = Field(
        default=None, description="present with --fail-on, and with the thresholds of an EvalConfig"
    )
    created_at: datetime
    dataset: Dataset
    models: Annotated[tuple[Model, ...], Field(min_length=1)]
    comparison: Comparison
    metrics: Annotated[tuple[MetricEntry, ...], Field(min_length=1)]
    global_: Annotated[tuple[Change, ...], Field(alias="global", min_length=1)]
    testing: Testing | None = Field(default=None, description="present in a search or check")
    search: Search | None = Field(default=None, description="present in a search or check")
    check: Check | None = None
    validation: Validation | None = Field(
        default=None, description="present in a check with the thresholds of an EvalConfig"
    )
    shift: Shift | None = Field(default=None, description="present after the command shift")
    since: Since | None = None
    adaptive: AdaptiveTests | None = Field(
        default=None, description="of the command adapt run, whose slices are topics: present"
    )
    discovery: Discovery | None = Field(
        default=None, description="of the command discover: present"
    )
    confirmation: Confirmation | None = Field(default=None, description="present with --confirm")
    findings: tuple[Finding, ...] = Field(
        default=(),
        description="in a search, discovery or check: the few slices that are worse than "
        "expected from those before them, by metric and rank",
    )
    finding_models: tuple[FindingModel, ...] = Field(
        default=(),
        description="for each metric and direction: how its findings were chosen, or why there are none",
    )
    slices: tuple[Slice, ...]
    coverage: tuple[SliceCoverage, ...] = Field(
        default=(),
        description="for each metric that averages over examples: how much the slices explain together; "
        "none with weights, and after an edit that changed the slices without counting them",
    )
    parity: tuple[ParityGap, ...] = Field(
        default=(), description="with --parity: for each column, measure and model the largest gap"
    )
    tfma_metrics: tuple[TfmaMetric, ...] = Field(
        default=(),
        description="metrics of TensorFlow Model Analysis over all examples and on the listed slices",
    )
    edits: tuple[Edit, ...] = Field(default=(), description="in a revision: the changes, in order")
    files: dict[str, PublishedFile] | None = Field(
        default=None,
        description="the files of this run, by content: slices, and after the command discover "
        "membership and mixture; absent in documents of earlier versions, and if "
        "there are none",
    )
    replaced_files: tuple[PublishedFile, ...] | None = Field(
        default=None,
        description="files of the document that this one replaced; they are removed after publication",
    )
    provenance: Provenance

    def to_json(self) -> str:
        """Return the document as it is published."""
        return self.model_dump_json(by_alias=True, indent=1, exclude_none=True) + "\n"


class SearchChangeList(ChangeList):
    """The document of a search or check."""

    testing: Testing
    search: Search

    def described(self) -> list[Slice]:
        """Return the slices that a discovery described, in their order; none of other documents."""
        return [one for one in self.slices if one.found is not None]


class ShiftChangeList(ChangeList):
    """The document of the command shift."""

    shift: Shift


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the document."""
    schema = ChangeList.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$id"] = f"urn:changelist:schema:{SCHEMA_VERSION}"
    return schema
