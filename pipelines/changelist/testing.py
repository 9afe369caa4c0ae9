"""How the slices were searched, or given, and tested, whether the run passes, and the numbers of TFMA."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from slicebeam.metrics.errors import counted, shortened
from slicebeam.pipelines.changelist.changes import Change
from slicebeam.pipelines.changelist.parts import Estimate, Sha256
from slicebeam.transforms.encode.definitions import Part, optional


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
    p_value: float | None = optional("of the change over all examples; absent if not tested")
    p_adjusted: float | None = None
    significant: bool = Field(description="whether it is over all examples")


class Noticeable(Part):
    """The smallest fall of a metric that would have been noticed."""

    n: int | None = optional("that the metric counts on the slice; absent for all examples")
    fall: float = Field(description="in its unit; with two models from the old to the new one")
    power: float = Field(description="probability that the test finds such a fall significant")


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
    untested: dict[str, int] = optional("slices that are large enough, by the reason", {})
    blind: str | None = optional("why no slice at all could be tested; absent where some could")
    significant: int
    degraded: int = Field(description="significant slices on which the metric is worse")
    reported: int = Field(description="slices that are reported for this metric")
    tolerated: Tolerated | None = optional("present with --tolerance")
    nearest: tuple[NearMiss, ...] = optional("smallest p-values, where none is worse", ())
    noticeable: tuple[Noticeable, ...] = optional("the smallest falls, where none is worse", ())


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
        description="slices that the correction counts, of at least min_slice_size examples: all of them in a "
        "batch search or a check; if a strategy did not visit all, those it tested and an upper bound "
        "of the others, which count with p = 1; q-values are multiplied by the number of metrics"
    )
    family_per_level: tuple[int, ...]
    tested_per_level: tuple[int, ...]
    significant: int = Field(description="slices that are significant in any metric")
    degraded: int = Field(description="slices on which any metric is significantly worse")
    metrics: tuple[MetricTests, ...] = optional("of each metric, the primary one first", ())
    expected_false: float | None = optional("expected false results of all metrics, if uncorrected")
    warnings: tuple[str, ...] = optional("warnings for the reader", ())
    unseen: tuple[str, ...] = optional("where no test could decide: with --fail-on exit code 2", ())

    @property
    def tested(self) -> int:
        """Number of slices that were tested."""
        return sum(self.tested_per_level)


class Iteration(Part):
    """The work and cost of one iteration of the search."""

    iteration: int
    candidates: int = Field(description="generated conjunctions")
    nonempty: int = Field(description="candidates whose slice is not empty")
    nonempty_estimated: float | None = None
    tested: int
    significant: int = Field(description="slices significant so far, in the primary metric")
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
        description="significant slices that add to those above them in any metric, each set of examples once, or "
        "all slices of a check; the document has at most a thousand, the worst of each metric"
    )
    inherited: int = Field(description="significant slices that a slice above them explains")
    duplicates: int = Field(description="that add too, but hold the examples of a shorter one")
    saved_slices: Literal["tested", "significant"] = Field(description="in slices.parquet")
    slices_fingerprint: Sha256 = Field(description="of the table of slices of this run")


class Check(Part):
    """Which slices were checked again."""

    source: Literal["changelist", "file", "eval_config"] = Field(description="where they came from")
    uri: str
    changelist_id: str | None = None
    slices: int = Field(description="given slices; each is in slices.parquet")
    too_small: int = Field(description="those with too few examples to test")
    empty: int = Field(description="those without any example in this data")


class FailedThreshold(Part):
    """A threshold that a metric does not meet on a slice."""

    metric: str = Field(description="TFMA's name of the number")
    slice: str
    slice_id: str | None = optional("absent for all examples")
    compared_with: str | None = optional("for two slices: the one whose value is subtracted")
    value: float | None = optional("of the new model, or its change; absent for undefined")
    reason: str | None = optional("why there is no value")
    bounds: str = Field(description="the MetricThreshold, as an EvalConfig has it")

    def __str__(self) -> str:
        value = "undefined" if self.value is None else f"{self.value:.6g}"
        value += "" if self.reason is None else f" ({self.reason})"
        against = "" if self.compared_with is None else f" minus {self.compared_with}"
        is_change = self.bounds.startswith("change_threshold")
        verb = "changes by" if is_change and self.value is not None else "is"
        where = f"on {self.slice}{against}"
        return f"{self.metric} {verb} {value} {where}, but the threshold is {self.bounds}"


class Validation(Part):
    """Whether TFMA finds the thresholds of an EvalConfig met."""

    passed: bool = Field(description="validation_ok of TFMA's ValidationResult")
    checked: int = Field(description="slices that TFMA compared with thresholds")
    failures: tuple[FailedThreshold, ...] = ()
    missing_slices: tuple[str, ...] = optional("with a threshold, but missing: also a failure", ())

    def reasons(self) -> tuple[str, ...]:
        """Return why it is not passed, a line each."""
        missing = (f"TFMA has not checked the threshold for {name}" for name in self.missing_slices)
        reasons = (*map(str, self.failures), *missing)
        return (
            reasons if self.passed or reasons else ("TFMA has compared nothing with a threshold",)
        )


_PASSES = {
    "worse": "nothing is significantly worse",
    "drift": "no feature has drifted",
    "any": "no metric is significantly worse, and no feature has drifted",
    "failing": "no topic fails",
    None: "all thresholds are met",
}
# The document has all reasons, a sentence the first ones.
_MOST_REASONS = 3


class Gate(Part):
    """Whether a run passes: what the exit code and the first word of the summary say too."""

    fail_on: Literal["worse", "drift", "any", "failing"] | None = optional(
        "absent with thresholds only"
    )
    passed: bool
    exit_code: Literal[0, 1, 2] = Field(description="0 passed, 1 worse, 2 not testable")
    reasons: tuple[str, ...] = optional("why it fails; none if it passes", ())
    tolerated: str | None = optional("the option --tolerance, by metric")
    known: int | None = optional("slices that are significantly worse, and known by --known")

    def line(self) -> str:
        """Return PASS or FAIL with the reasons, in a line."""
        if self.passed:
            by_more = f" by more than is tolerated ({self.tolerated})" if self.tolerated else ""
            besides = f", besides {counted(self.known, 'known slice')}" if self.known else ""
            return f"PASS: {_PASSES[self.fail_on]}{by_more}{besides}"
        more = len(self.reasons) - _MOST_REASONS
        shown = "; ".join(self.reasons[:_MOST_REASONS])
        return f"FAIL: {shown}{f'; and {more:,} more' if more > 0 else ''}"


class KnownSlice(Part):
    """An entry of a file of known slices."""

    slice: Annotated[str, Field(min_length=1, max_length=20_000)] = Field(
        description="its conditions as text, its slice_id, or its name"
    )
    metric: str | None = optional("the only metric that it is known for; absent for all")
    note: str | None = optional("written by people")
    until: date | None = optional("last day (UTC) on which it counts; absent for no end")


class KnownInRun(KnownSlice):
    """An entry of ``--known``, and what it is in a run."""

    state: Literal["worse", "not worse", "absent", "expired"] = Field(
        description="worse: on slices, significantly; not worse: on none; absent: the document has no such slice, "
        "or the run no such metric; expired: it counts no longer"
    )
    slices: tuple[str, ...] = optional(
        "slice_ids of the document's significantly worse slices that are it, or within it", ()
    )

    def line(self) -> str:
        """Return what the entry is in the run, in a line."""
        named = shortened(self.slice) + (f" ({self.metric})" if self.metric else "")
        said = {
            "worse": f"significantly worse on {counted(len(self.slices), 'slice')}",
            "not worse": "not significantly worse; remove it from the file if it is mended",
            "absent": "matches no slice of this result",
            "expired": f"expired after {self.until}, so it counts no longer",
        }[self.state]
        note = f"; {shortened(self.note)}" if self.note else ""
        return f"Known: {named}: {said}{note}"


class TfmaValue(Part):
    """A number of TFMA on a slice."""

    slice_id: str
    after: Estimate = Field(description="the metric of the model under test")
    before: Estimate | None = optional("for two models, that of the baseline")
    delta: Estimate = Field(description="after minus before, or minus the metric over all examples")
    p_value: float | None = optional("two-sided, of the delta; not corrected")


class TfmaMetric(Part):
    """A number of TFMA, over all examples and on the listed slices."""

    name: str = Field(description="TFMA's, with class, rank or average, such as ndcg@topK:3")
    output: str | None = optional("of a model of several outputs, which one it is")
    replicates: int = Field(description="of TFMA's Poisson bootstrap; 0 where it has no intervals")
    overall: Estimate
    overall_before: Estimate | None = optional("for two models, the baseline's")
    overall_delta: Estimate | None = optional("for two models, overall minus before")
    slices: tuple[TfmaValue, ...]
