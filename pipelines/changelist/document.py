"""The ChangeList: the JSON document of a run, whose models define its schema."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from slicebeam.pipelines.changelist.changes import (
    Change,
    Comparison,
    Confirmation,
    EarlierData,
    MetricEntry,
    Model,
    Since,
)
from slicebeam.pipelines.changelist.discovered import Discovery, Edit, Parent
from slicebeam.pipelines.changelist.parts import Count, ParityGap, Sha256, SliceCoverage
from slicebeam.pipelines.changelist.shifted import AdaptiveTests, Shift
from slicebeam.pipelines.changelist.slices import Finding, FindingModel, Slice
from slicebeam.pipelines.changelist.testing import (
    Check,
    Gate,
    KnownInRun,
    Search,
    Testing,
    TfmaMetric,
    Validation,
)
from slicebeam.transforms.encode.definitions import Condition, Part, Predicate, optional
from slicebeam.transforms.storage.publish import NAME_PATTERN


class Seen(Part):
    """The content of a column outside its predicates; later data is compared with it."""

    missing: Count = Field(description="examples without a value")
    other: Count = optional("examples or elements without a predicate", 0)
    largest_other: Count = optional("examples with the most frequent of these values", 0)
    low: Any = optional("smallest value of a numeric column")
    high: Any = optional("largest value of a numeric column")
    below: int | None = optional("examples with a value smaller than any of the earlier run")
    above: int | None = optional("examples with a value larger than any of the earlier run")
    distinct: int | None = optional("number of distinct values; absent for lists and given bins")


class NewValue(Part):
    """A value without a predicate in the run whose domains are used."""

    value: Any
    n: int = Field(description="examples with it")
    occurred: bool = Field(description="whether the earlier run may have had it among the others")


class Domain(Part):
    """The singleton predicates of a feature; ``search --domains`` takes them over."""

    name: str
    kind: Literal["categorical", "numeric", "list"]
    data_type: str
    singletons: tuple[Condition, ...]
    error: float = Field(description="relative error of a sketch that counted it; 0 means exact")
    closed: bool = Field(description="whether every value of this data satisfies one of them")
    seen: Seen | None = optional("absent for columns that the run derived, such as components")
    new_values: tuple[NewValue, ...] = optional("values that have a predicate only now", ())


class LeftOut(Part):
    """A column that is not a feature, and why."""

    name: str
    reason: str


class FeatureHint(Part):
    """A feature that does not look like a property of an example, and why."""

    name: str
    looks_like: Literal["output", "label", "id"] = Field(description="output: by its name")
    reason: str


class Within(Part):
    """The findings of another document that the examples are within; others were left out."""

    uri: str
    sha256: Sha256 = Field(description="of the document")
    slices: tuple[Predicate, ...] = Field(description="an example is in at least one")
    n: Count = Field(description="examples in them")
    of: Count = Field(description="examples of the data")


class Dataset(Part):
    """The examples."""

    name: str
    uri: tuple[str, ...]
    fingerprint: Sha256 = Field(description="of examples, labels and predictions, in any order")
    n: Count
    id_field: str | None = None
    label_field: str | None = optional("absent where losses are given")
    weight_field: str | None = None
    group_field: str | None = None
    classes: tuple[Any, ...]
    domains: tuple[Domain, ...]
    left_out: tuple[LeftOut, ...]
    hints: tuple[FeatureHint, ...] = optional("features that perhaps should be left out", ())
    within: Within | None = None
    drift: tuple[str, ...] = optional("values of config.domains that the data did not have", ())


class PublishedFile(Part):
    """A file next to the document, published with it."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)] = Field(description="in this folder")
    sha256: Sha256
    size: Count = Field(description="bytes")


class Run(Part):
    """The run that published the document, by which the same command sees that it is done."""

    config: Sha256 = Field(description="of all options that decide the result, as given")
    data: Sha256 = Field(description="of size and time, or version, of each file that was read")
    content: Sha256 | None = optional("of the document without this entry")


class Provenance(Part):
    """What made the document."""

    tool: Literal["slicebeam"] = "slicebeam"
    tool_version: str
    command: Literal["search", "check", "shift", "discover"] = "search"
    runner: str
    seed: int
    config: dict[str, Any] = Field(description="every option with an effect; it repeats the run")
    run: Run | None = optional("present in a published document")


SCHEMA_VERSION = "1.0"


class ChangeList(Part):
    """The document of a run; keys that begin with ``x_`` are ignored."""

    model_config = ConfigDict(validate_by_name=True)

    schema_version: Annotated[str, Field(pattern=r"^1\.[0-9]+$")] = SCHEMA_VERSION
    changelist_id: str
    revision: Count = 0
    parent: Parent | None = optional("in a revision: the document that it was made from")
    title: str
    summary: str = Field(description="the result in words, beginning with PASS or FAIL of a gate")
    gate: Gate | None = optional("present with --fail-on, and with the thresholds of an EvalConfig")
    known: tuple[KnownInRun, ...] = optional("with --known: its entries, and what they are", ())
    created_at: datetime
    dataset: Dataset
    models: Annotated[tuple[Model, ...], Field(min_length=1)]
    comparison: Comparison
    metrics: Annotated[tuple[MetricEntry, ...], Field(min_length=1)]
    global_: Annotated[tuple[Change, ...], Field(alias="global", min_length=1)]
    testing: Testing | None = optional("present in a search or check")
    search: Search | None = optional("present in a search or check")
    check: Check | None = None
    validation: Validation | None = optional("present in a check with an EvalConfig's thresholds")
    shift: Shift | None = optional("present after the command shift")
    since: Since | None = None
    earlier_data: EarlierData | None = optional("present with --baseline-data")
    adaptive: AdaptiveTests | None = optional("present after adapt run, whose slices are topics")
    discovery: Discovery | None = optional("of the command discover: present")
    confirmation: Confirmation | None = optional("present with --confirm")
    findings: tuple[Finding, ...] = optional("worse than expected from those before, by rank", ())
    finding_models: tuple[FindingModel, ...] = optional("how findings were chosen, or why none", ())
    slices: tuple[Slice, ...]
    coverage: tuple[SliceCoverage, ...] = optional("how much the slices explain together", ())
    parity: tuple[ParityGap, ...] = optional("with --parity: the largest gap of each measure", ())
    tfma_metrics: tuple[TfmaMetric, ...] = optional("of TensorFlow Model Analysis", ())
    edits: tuple[Edit, ...] = optional("in a revision: the changes, in order", ())
    files: dict[str, PublishedFile] | None = optional("by content, such as slices or mixture")
    replaced_files: tuple[PublishedFile, ...] | None = optional("removed after publication")
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
        return [slice_ for slice_ in self.slices if slice_.found is not None]


class ShiftChangeList(ChangeList):
    """The document of the command shift."""

    shift: Shift


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the document."""
    schema = ChangeList.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$id"] = f"urn:changelist:schema:{SCHEMA_VERSION}"
    return schema
