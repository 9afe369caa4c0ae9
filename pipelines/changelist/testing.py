"""How the slices were searched, or given, and tested."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slicebeam.pipelines.changelist.changes import Change
from slicebeam.pipelines.changelist.parts import Part, Sha256


class Bootstrap(Part):
    """How replicates were drawn."""

    replicates: int
    kind: Literal["poisson"] = "poisson"
    unit: Literal["rows", "groups"]
    seed: int


class Tolerated(Part):
    """Where a metric is significantly worse by more than --tolerance."""

    tolerance: float = Field(description="in the unit of the metric")
    degraded: int = Field(description="slices on which it is, corrected as all tests of slices are")
    p_value: float | None = Field(
        default=None, description="of the change over all examples; absent where that is not tested"
    )
    p_adjusted: float | None = None
    significant: bool = Field(description="whether it is over all examples")


class Noticeable(Part):
    """A fall of a metric that the run notices: that its test then calls with a certain probability."""

    n: int | None = Field(
        default=None,
        description="examples of the slice that the metric counts; absent for all examples",
    )
    fall: float = Field(
        description="smallest one in the unit of the metric; of two models from the old to the new one"
    )
    power: float = Field(description="the probability")


class NearMiss(Part):
    """A slice that is worse, but not significantly."""

    slice_id: str
    name: str
    change: Change


class MetricTests(Part):
    """How many slices could be tested by one metric, and the results."""

    metric: str
    test: str = Field(description="the tests that were used, the most frequent one first")
    tested: int = Field(description="slices that could be tested")
    untested: dict[str, int] = Field(
        default={},
        description="number of slices that are large enough but could not be tested, by reason",
    )
    blind: str | None = Field(
        default=None, description="why no slice at all could be tested; absent where some could"
    )
    significant: int
    degraded: int = Field(description="significant slices on which the metric is worse")
    reported: int = Field(description="slices that are reported for this metric")
    tolerated: Tolerated | None = Field(default=None, description="present with --tolerance")
    nearest: tuple[NearMiss, ...] = Field(
        default=(),
        description="after a search in which no slice is significantly worse: the worse slices with the "
        "smallest p-values, none a part of another",
    )
    noticeable: tuple[Noticeable, ...] = Field(
        default=(),
        description="where no slice is significantly worse: the falls that the run would have noticed; none "
        "with weights or groups, for a bootstrap and AUC",
    )


class Testing(Part):
    """What was tested and how."""

    test: str
    alternative: Literal["worse", "better", "both"]
    alpha: float
    correction: Literal["fdr-level", "fwer-level", "bh", "by", "none"]
    corrected_for: str = Field(description="the correction in a plain sentence")
    confidence: float
    bootstrap: Bootstrap | None = None
    min_slice_size: int
    family_size: int = Field(
        description="slices that the correction counts, of at least min_slice_size examples: all "
        "of them in a batch search or a check; if a strategy did not visit all, "
        "those it tested and an upper bound of the others, which count with p = 1; "
        "q-values are multiplied by the number of metrics"
    )
    family_per_level: tuple[int, ...]
    tested_per_level: tuple[int, ...]
    significant: int = Field(description="slices that are significant in any metric")
    degraded: int = Field(description="slices on which any metric is significantly worse")
    metrics: tuple[MetricTests, ...] = Field(
        default=(), description="of each metric, the primary one first"
    )
    expected_false: float | None = Field(
        default=None,
        description="expected number of false results, over all metrics; only without a correction",
    )
    warnings: tuple[str, ...] = Field(default=(), description="warnings for the reader")
    unseen: tuple[str, ...] = Field(
        default=(),
        description="where the model may be worse but no test could decide: with --fail-on worse "
        "the exit code is 2 unless it is 1",
    )


class Iteration(Part):
    """The work and cost of one iteration of the search."""

    iteration: int
    candidates: int = Field(description="generated conjunctions")
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
        description="significant slices that add to those above them in any metric, each set of "
        "examples once, or all slices of a check; the document has at most a "
        "thousand, the worst of each metric"
    )
    inherited: int = Field(description="significant slices that a slice above them explains")
    duplicates: int = Field(
        description="slices that add to those above them, with the same examples as a shorter one"
    )
    saved_slices: Literal["tested", "significant"] = Field(
        description="which slices are in slices.parquet; with significant also the singletons"
    )
    slices_fingerprint: Sha256 = Field(description="of the table of slices of this run")


class Check(Part):
    """Which slices were checked again."""

    source: Literal["changelist", "file", "eval_config"] = Field(
        description="what the slices were read from"
    )
    uri: str
    changelist_id: str | None = None
    slices: int = Field(description="given slices; each is in slices.parquet")
    too_small: int = Field(description="those with too few examples to test")
    empty: int = Field(description="those without any example in this data")
