"""The ChangeList: the JSON document of a run. These models own its schema."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from slicebeam.pipelines.changelist.discovered import (
    AnyDefinition,
    Attribution,
    Discovery,
    Edit,
    Found,
    Parent,
)
from slicebeam.pipelines.changelist.parts import Condition, Estimate, Part, Predicate
from slicebeam.pipelines.changelist.shifted import Shift
from slicebeam.transforms.storage.published_files import NAME_PATTERN

SCHEMA_VERSION = "1.0"

Sha256 = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class Seen(Part):
    """What the data held of a column besides its predicates: later data is compared with it."""

    missing: Annotated[int, Field(ge=0)] = Field(description="examples without a value")
    other: Annotated[int, Field(ge=0)] = Field(
        0,
        description="examples whose value has no predicate of its own; of a list column, elements; of "
        "numbers, those in none of the earlier run's bins",
    )
    largest_other: Annotated[int, Field(ge=0)] = Field(
        0, description="examples with the most frequent of these values"
    )
    low: Any = Field(None, description="smallest value of a numeric column")
    high: Any = Field(None, description="largest value of a numeric column")
    below: int | None = Field(
        None, description="examples with a value smaller than any of the earlier run"
    )
    above: int | None = Field(
        None, description="examples with a value larger than any of the earlier run"
    )


class NewValue(Part):
    """A value that the run whose domains were taken had no predicate for."""

    value: Any
    n: int = Field(description="examples that hold it")
    occurred: bool = Field(description="whether it may have been among the other values then")


class Domain(Part):
    """The singleton predicates of a feature; ``search --domains`` takes them over."""

    name: str
    kind: Literal["categorical", "numeric", "list"]
    data_type: str
    singletons: tuple[Condition, ...]
    error: float = Field(description="relative error of a sketch that counted it; 0 means exact")
    closed: bool = Field(description="whether every value of this data satisfies one of them")
    seen: Seen | None = Field(None, description="absent in documents of older versions")
    new_values: tuple[NewValue, ...] = Field(
        (), description="values with a predicate now that the run of config.domains had none for"
    )


class LeftOut(Part):
    """A column that is no feature, and why."""

    name: str
    reason: str


class Dataset(Part):
    """The examples."""

    name: str
    uri: tuple[str, ...]
    fingerprint: Sha256 = Field(
        description="of all examples' values as far as slices tell them apart, labels and "
        "predictions, whatever their order"
    )
    n: Annotated[int, Field(ge=0)]
    id_field: str | None = None
    label_field: str | None = Field(None, description="absent where losses are given")
    weight_field: str | None = None
    group_field: str | None = None
    classes: tuple[Any, ...]
    domains: tuple[Domain, ...]
    left_out: tuple[LeftOut, ...]
    drift: tuple[str, ...] = Field(
        (),
        description="what this data holds and that of config.domains did not: a sentence for each "
        "column where it is material",
    )


class Model(Part):
    """A model: the one that is tested (after), or the one that it is compared with (before)."""

    key: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    role: Literal["before", "after"]
    name: str
    prediction_field: str | None = None
    score_field: str | None = None
    model_uri: str | None = None
    loss_field: str | None = None


class Comparison(Part):
    """What a slice is compared with."""

    kind: Literal["overall", "baseline"] = Field(
        description="overall: the slice against all examples, one model; baseline: the same slice, "
        "two models"
    )
    before: str | None = None
    after: str


class MetricEntry(Part):
    """A metric; the primary one steered the search."""

    key: str
    name: str
    kind: Literal["pointwise", "aggregate"]
    range: tuple[float | None, float | None] = Field(
        description="smallest and largest value; null where there is no bound"
    )
    higher_is_better: bool
    primary: bool


class Change(Part):
    """One metric on a slice (or on all examples) and how it differs from what it is compared with."""

    metric: str
    n: int
    after: Estimate = Field(description="the metric of the model under test")
    before: Estimate | None = Field(
        None, description="baseline: the metric of the old model on the same examples"
    )
    reference: float | None = Field(None, description="overall: the metric on all examples")
    complement: float | None = Field(None, description="overall: the metric on the other examples")
    delta: Estimate | None = Field(
        None,
        description="after minus before, or after minus reference; absent for all examples and one "
        "model",
    )
    p_value: float | None = None
    p_adjusted: float | None = Field(None, description="the q-value of slices.parquet")
    test: str | None = Field(None, description="the test that gave the p-value")
    inputs: dict[str, float] | None = Field(
        None, description="the numbers that the test was computed from"
    )
    reason: str | None = Field(None, description="why there is no test; the p-value then is 1")
    significant: bool = False
    direction: Literal["improved", "degraded", "none"] = Field(
        description="of the delta in the metric's own direction"
    )
    label: Literal["new", "refines", "inherited"] | None = Field(
        None, description="whether the slice says more than those above it in this metric"
    )
    place: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="place among the slices that are reported for this metric, the worst first; "
        "absent where the slice is reported for another metric only",
    )


class Origin(Part):
    """How a slice came into the document."""

    method: Literal[
        "metadata_search",
        "mixture",
        "text_filter",
        "lm_filter",
        "classifier",
        "manual",
        "imported",
    ] = Field(
        "metadata_search",
        description="found by a search, found by a mixture over embeddings, defined by a text, a "
        "language model, a classifier or by hand, or taken from another document to be checked "
        "again",
    )
    derived_from: str | None = Field(
        None, description="changelist_id of the document that it was taken from"
    )


class Size(Part):
    """How large a slice is."""

    n: int
    share: float


class Refinement(Part):
    """Whether a slice says more than the slices above it."""

    label: Literal["new", "refines", "inherited"]
    parent: str | None = Field(None, description="slice_id of the parent that explains it best")
    p_refine: float | None = Field(
        None, description="probability that a random part of that parent is as extreme"
    )


class Slice(Part):
    """A slice that is significant in any metric of a search, or any slice of a check."""

    slice_id: str
    name: str
    description: str | None = Field(None, description="written by a person")
    notes: tuple[str, ...] = Field((), description="written by people")
    rank: int | None = Field(
        None,
        description="place in the cover: the few of the reported slices that greedy choice takes, "
        "the one with the most excess that no earlier one holds at each step; absent for the others",
    )
    explained: float | None = Field(
        None,
        description="excess in the slices up to this rank, as a share of the excess in all of the "
        "(at most 128) reported slices that the cover is chosen from together, or of what greedy "
        "choice collects of it where that is more; no share of all errors. The excess is that over "
        "the reference: errors that would be there at the reference's rate do not count",
    )
    origin: Origin = Origin()
    definition: AnyDefinition
    cross_size: int
    size: Size
    impact: float | None = Field(
        None, description="n times delta of the primary metric; absent where that is undefined"
    )
    refinement: Refinement | None = Field(
        None,
        description="of a search only: in a check no slice is held against those above it; by the first "
        "metric in which it says more",
    )
    same_examples_as: tuple[str, ...] = Field(
        (), description="longer predicates that hold of the very same examples"
    )
    found: Found | None = Field(None, description="of a discovered slice: what it is like")
    attribution: Attribution | None = Field(None, description="how far its words are true")
    changes: Annotated[tuple[Change, ...], Field(min_length=1)]


class Bootstrap(Part):
    """How replicates were drawn."""

    replicates: int
    kind: Literal["poisson"] = "poisson"
    unit: Literal["rows", "groups", "cells"]
    seed: int


class MetricTests(Part):
    """How far the slices could be tested by one metric, and what came out."""

    metric: str
    test: str = Field(description="the tests that were used, the most frequent one first")
    tested: int = Field(description="slices that could be tested")
    untested: dict[str, int] = Field(
        {}, description="how many large enough slices could not be tested, by the reason"
    )
    blind: str | None = Field(
        None, description="why no slice at all could be tested; absent where some could"
    )
    significant: int
    degraded: int = Field(description="significant slices on which the metric is worse")
    reported: int = Field(description="slices that are reported for this metric")


class Testing(Part):
    """What was tested and how."""

    test: str
    alternative: Literal["worse", "better", "both"]
    alpha: float
    correction: Literal["fdr-level", "fwer-level", "fwer-tarone", "bh", "by", "none"]
    corrected_for: str = Field(description="the correction in a plain sentence")
    confidence: float
    bootstrap: Bootstrap | None = None
    min_slice_size: int
    family_size: int = Field(
        description="slices that the correction counts, of at least min_slice_size examples: all of "
        "them in a batch search or a check; where a strategy did not visit all, those it tested and "
        "an upper bound of the others, which count with p = 1; each metric has a correction of its own"
    )
    family_per_level: tuple[int, ...]
    tested_per_level: tuple[int, ...]
    significant: int = Field(description="slices that are significant in any metric")
    degraded: int = Field(description="slices on which any metric is significantly worse")
    metrics: tuple[MetricTests, ...] = Field(
        (), description="of each metric, the primary one first"
    )
    expected_false: float | None = Field(
        None,
        description="expected number of false results, over all metrics; only where nothing was "
        "corrected",
    )
    warnings: tuple[str, ...] = Field((), description="what to be careful about")
    unseen: tuple[str, ...] = Field(
        (),
        description="where the model may be worse and no test could tell: with --fail-on worse the "
        "exit code is 2 unless it is 1",
    )


class Iteration(Part):
    """What one iteration of the search did and cost."""

    iteration: int
    candidates: int = Field(description="conjunctions that were generated")
    nonempty: int = Field(description="candidates whose slice is not empty")
    nonempty_estimated: float | None = None
    tested: int
    significant: int = Field(
        description="slices significant in the primary metric after this iteration, of all visited"
    )
    cpu_seconds: float
    wall_seconds: float
    shuffled_bytes: int


class Search(Part):
    """How the lattice was searched, or that the slices were given."""

    strategy: Literal["batch", "iterative", "priority", "given"]
    max_cross_size: int
    stopped: Literal["exhausted", "iterations"]
    iterations: tuple[Iteration, ...]
    reported: int = Field(
        description="significant slices that say more than those above them in any metric, each set "
        "of examples once, or all slices of a check; the document holds a thousand, the worst of each "
        "metric"
    )
    inherited: int = Field(description="significant slices that a slice above them explains")
    duplicates: int = Field(
        description="slices that say more than those above them, with the examples of a shorter one"
    )
    saved_slices: Literal["tested", "significant"] = Field(
        description="which slices are in slices.parquet; with significant also the singletons"
    )
    slices_fingerprint: Sha256 = Field(description="of the table of slices of this very run")


class PublishedFile(Part):
    """A file beside the document, published with it."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)] = Field(
        description="of the file in the document's folder; no other content ever has this name"
    )
    sha256: Sha256
    size: Annotated[int, Field(ge=0)] = Field(description="bytes")


class Check(Part):
    """Which slices were checked again."""

    source: Literal["changelist", "file"] = Field(description="what the slices were read from")
    uri: str
    changelist_id: str | None = None
    slices: int = Field(description="slices that were given; each is in slices.parquet")
    too_small: int = Field(description="those with fewer examples than are tested")
    empty: int = Field(description="those without any example in this data")


class Difference(Part):
    """How a number differs between two runs, tested as that of independent samples."""

    difference: Estimate = Field(description="now minus then, with an interval")
    p_value: float = Field(description="two-sided, that nothing changed")
    p_adjusted: float
    significant: bool
    direction: Literal["improved", "degraded", "none"] = Field(
        description="in the metric's own direction"
    )


class OverallSince(Part):
    """A metric over all examples in this run and in an earlier one."""

    metric: str
    n_now: int
    n_then: int
    now: Estimate = Field(description="the metric of the model under test")
    then: Estimate
    value_change: Difference | None = Field(
        None, description="of the value; absent where it could not be tested"
    )
    delta_now: Estimate | None = Field(
        None, description="baseline: the model under test minus the old one"
    )
    delta_then: Estimate | None = None
    delta_change: Difference | None = Field(
        None, description="of the delta; absent where it could not be tested"
    )
    reason: str | None = Field(None, description="why something could not be tested")


class Moment(Part):
    """A metric on a slice in one of two runs."""

    n: int
    value: float | None = None
    value_interval: Estimate | None = Field(
        None, description="the value with its interval; absent where none is known"
    )
    delta: Estimate
    p_adjusted: float | None = None
    significant: bool


class SinceSlice(Part):
    """A slice in this run and in an earlier one, by one metric."""

    slice_id: str
    name: str
    metric: str | None = Field(None, description="absent in documents of earlier versions")
    predicate: Predicate | None = Field(
        None, description="absent for a slice that is defined in another way"
    )
    status: Literal["new", "gone", "stays", "neither"] = Field(
        description="of its significance: new is significant now only, gone was significant then "
        "only, stays is both"
    )
    now: Moment | None = None
    then: Moment | None = None
    missing: str | None = Field(None, description="why now or then is absent")
    difference: Estimate | None = Field(
        None, description="delta now minus delta then, with an interval for independent examples"
    )
    p_value: float | None = Field(None, description="two-sided, that the deltas are the same")
    p_adjusted: float | None = None
    significant: bool = Field(False, description="whether the delta changed")
    direction: Literal["improved", "degraded", "none"] = Field(
        "none", description="of the change in the metric's own direction"
    )
    value_change: Difference | None = Field(
        None, description="of the metric's value itself; absent where it could not be tested"
    )


class MetricSince(Part):
    """How the slices changed since an earlier run, by one metric."""

    metric: str
    compared: int = Field(description="slices in both runs whose deltas were compared")
    new: int
    gone: int
    worse: int = Field(description="compared slices whose delta is significantly worse than then")
    better: int
    value_compared: int = Field(description="slices whose values were compared")
    value_worse: int = Field(description="those whose value is significantly worse than then")
    value_better: int


class Since(Part):
    """What changed since an earlier run; slices are matched by slice_id."""

    uri: str
    changelist_id: str
    created_at: datetime
    n: int = Field(description="examples of the earlier run")
    read_from: Literal["slices.parquet", "changelist.json"] = Field(
        description="whether all tested slices of the earlier run were known, or its reported ones"
    )
    metric: str = Field(description="the first metric that both runs measured")
    summary: str = Field(description="what changed in plain words")
    overall: tuple[OverallSince, ...] = Field(
        (), description="each metric that both runs measured, over all examples"
    )
    metrics: tuple[MetricSince, ...] = Field(
        (), description="counts of slices by each metric that both runs measured"
    )
    compared: int = Field(
        description="slices in both runs whose deltas were compared, once for each metric, as all that "
        "follows"
    )
    corrected_for: str
    new: int
    gone: int
    worse: int = Field(description="compared slices whose delta is significantly worse than then")
    better: int
    warnings: tuple[str, ...] = ()
    slices: tuple[SinceSlice, ...] = Field(
        description="those that are new, gone, worse or better, and those that both runs report or "
        "check, metric by metric; a thousand at the most"
    )


class Run(Part):
    """The run that published the document: by this the same command sees that it has nothing to do."""

    config: Sha256 = Field(
        description="of all options that decide what is found, as they were given"
    )
    data: Sha256 = Field(description="of size and time, or version, of each file that was read")
    content: Sha256 | None = Field(None, description="of the document without this very entry")


class Provenance(Part):
    """What made the document."""

    tool: Literal["slicebeam"] = "slicebeam"
    tool_version: str
    command: Literal["search", "check", "shift", "discover"] = "search"
    runner: str
    seed: int
    config: dict[str, Any] = Field(
        description="every option that had an effect, by its name, defaults too: it repeats the run"
    )
    run: Run | None = Field(None, description="absent in documents of older versions")


class ChangeList(Part):
    """The document of a run; keys that begin with ``x_`` are passed over."""

    model_config = ConfigDict(validate_by_name=True)

    schema_version: Annotated[str, Field(pattern=r"^1\.[0-9]+$")] = SCHEMA_VERSION
    changelist_id: str
    revision: Annotated[int, Field(ge=0)] = 0
    parent: Parent | None = Field(None, description="of a revision: what it was made from")
    title: str
    summary: str = Field(description="the result in plain words")
    created_at: datetime
    dataset: Dataset
    models: Annotated[tuple[Model, ...], Field(min_length=1)]
    comparison: Comparison
    metrics: Annotated[tuple[MetricEntry, ...], Field(min_length=1)]
    global_: Annotated[tuple[Change, ...], Field(alias="global", min_length=1)]
    testing: Testing | None = Field(None, description="of a search or check: present")
    search: Search | None = Field(None, description="of a search or check: present")
    check: Check | None = None
    shift: Shift | None = Field(None, description="of the command shift: present")
    since: Since | None = None
    discovery: Discovery | None = Field(None, description="of the command discover: present")
    slices: tuple[Slice, ...]
    edits: tuple[Edit, ...] = Field((), description="of a revision: what was changed, in order")
    files: dict[str, PublishedFile] | None = Field(
        None,
        description="the files of this very run, by what they hold: slices, and of the command discover "
        "membership and mixture; absent in documents of earlier versions, and where there are none",
    )
    replaced_files: tuple[PublishedFile, ...] | None = Field(
        None,
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


class ShiftChangeList(ChangeList):
    """The document of the command shift."""

    shift: Shift


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the document."""
    schema = ChangeList.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$id"] = f"urn:changelist:schema:{SCHEMA_VERSION}"
    return schema
