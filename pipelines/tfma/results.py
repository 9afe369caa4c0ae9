"""What TFMA says of the slices of a document: numbers, plots and its verdict."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtr

from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.changelist.testing import (
    FailedThreshold,
    TfmaMetric,
    TfmaValue,
    Validation,
)
from slicebeam.pipelines.tfma.messages import TfmaMessage
from slicebeam.pipelines.tfma.request import BASELINE, CANDIDATE, REPLICATES
from slicebeam.transforms.tfma.eval_config import models_of
from slicebeam.transforms.tfma.evaluation import SLICES, key_name, numbers_of
from slicebeam.transforms.tfma.install import tfma_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.tfma.request import Evaluation
    from slicebeam.transforms.tfma.evaluation import TfmaNumber

CONFIDENCE = 0.95


class TfmaResults:
    """Reads TFMA's messages about the slices of a document."""

    def __init__(
        self, evaluation: Evaluation, slices: Sequence[Slice], rows: list[dict[str, Any]]
    ) -> None:
        self.evaluation, self.slices = evaluation, slices
        _, old = models_of(evaluation.message)
        self.old = None if old is None else old.name
        self.names = {one.slice_id: one.name for one in slices}
        self.ids: dict[Any, str | None] = {(): None}
        for number, one in enumerate(slices):
            key = ((SLICES, number),)
            if evaluation.has_own_slices:
                parts = ((c.field, _typed(c.value)) for c in one.conditions)
                key = tuple(sorted(parts))  # type: ignore[assignment]
            self.ids[key] = one.slice_id
        pb = tfma_module("proto.metrics_for_slice_pb2")
        self.metrics = [
            pb.MetricsForSlice.FromString(row["content"])
            for row in rows
            if row["kind"] == "metrics"
        ]
        self.plots = [
            pb.PlotsForSlice.FromString(row["content"]) for row in rows if row["kind"] == "plots"
        ]
        results = tfma_module("proto.validation_result_pb2").ValidationResult
        (self.result,) = [
            results.FromString(row["content"]) for row in rows if row["kind"] == "validation"
        ]

    def document(self, document: SearchChangeList) -> tuple[SearchChangeList, list[TfmaMessage]]:
        """Return the document with TFMA's numbers and verdict, and the messages to publish."""
        update: dict[str, Any] = {"tfma_metrics": tuple(self._entries())}
        if self.evaluation.validates:
            update["validation"] = self._validation()
        return document.model_copy(update=update), list(self._messages())

    def _entries(self) -> Iterator[TfmaMetric]:
        plan = self.evaluation.plan
        native = frozenset[tuple[str, bool]]() if plan is None else plan.native
        found: dict[tuple[str, bool, str], dict[str | None, dict[str, TfmaNumber]]] = {}
        for message in self.metrics:
            is_cross = message.HasField("cross_slice_key")
            of = message.cross_slice_key.comparison_slice_key if is_cross else message.slice_key
            if is_cross and (
                self.evaluation.compares
                or message.cross_slice_key.baseline_slice_key.single_slice_keys
            ):
                continue
            slice_key = _key(of)
            if slice_key not in self.ids:
                continue
            for number in numbers_of(message):
                if (number.name, number.is_weighted) in native and not number.output:
                    continue
                side = "after"
                if is_cross or number.is_difference:
                    side = "delta"
                elif self.old is not None and number.model == self.old:
                    side = "before"
                key = number.name, number.is_weighted, number.output
                by_slice = found.setdefault(key, {})
                by_slice.setdefault(self.ids[slice_key], {})[side] = number
        names = native | {(name, weighted) for name, weighted, _ in found}
        for (name, weighted, output), by_slice in found.items():
            is_both = (name, not weighted) in names
            of = f"@{'weighted' if weighted else 'unweighted'}" if is_both else ""
            yield self._entry(f"{name}{of}", output, by_slice)

    def _entry(
        self, name: str, output: str, by_slice: dict[str | None, dict[str, TfmaNumber]]
    ) -> TfmaMetric:
        compares = self.evaluation.compares
        overall = by_slice.get(None, {})
        listed = []
        for one in self.slices:
            sides = by_slice.get(one.slice_id)
            if sides is None:
                continue
            after = _estimate(sides.get("after"))
            # TFMA subtracts a slice from all examples.
            delta = _estimate(sides.get("delta"), sign=1 if compares else -1)
            of_all = _estimate(overall.get("after")).value
            if "delta" not in sides and after.value is not None and of_all is not None:
                delta = Estimate(value=after.value - of_all)
            listed.append(
                TfmaValue(
                    slice_id=one.slice_id,
                    after=after,
                    before=_estimate(sides.get("before")) if compares else None,
                    delta=delta,
                    p_value=_p_value(sides.get("delta")),
                )
            )
        return TfmaMetric(
            name=name,
            output=output or None,
            replicates=REPLICATES if self.evaluation.has_intervals else 0,
            overall=_estimate(overall.get("after")),
            overall_before=_estimate(overall.get("before")) if compares else None,
            overall_delta=_estimate(overall.get("delta")) if compares else None,
            slices=tuple(listed),
        )

    def _validation(self) -> Validation:
        failures = []
        for part in self.result.metric_validations_per_slice:
            cross = part.cross_slice_key if part.HasField("cross_slice_key") else None
            key = _key(part.slice_key if cross is None else cross.baseline_slice_key)
            other = None if cross is None else self._name(_key(cross.comparison_slice_key))
            for failure in part.failures:
                value = float(failure.metric_value.double_value.value)
                has_value = failure.HasField("metric_value") and math.isfinite(value)
                failures.append(
                    FailedThreshold(
                        metric=key_name(failure.metric_key),
                        slice=self._name(key),
                        slice_id=self.ids.get(key),
                        compared_with=other,
                        value=value if has_value else None,
                        reason=" ".join(failure.message.split()) or None,
                        bounds=_bounds(failure.metric_threshold),
                    )
                )
        missing = [_spec_name(spec) for spec in self.result.missing_slices]
        missing += [
            f"{_spec_name(spec.baseline_spec)} against "
            + (", ".join(map(_spec_name, spec.slicing_specs)) or "all others")
            for spec in self.result.missing_cross_slices
        ]
        details = self.result.validation_details.slicing_details
        return Validation(
            passed=self.result.validation_ok,
            checked=sum(detail.num_matching_slices for detail in details),
            failures=tuple(failures),
            missing_slices=tuple(missing),
        )

    def _name(self, key: Any) -> str:
        if not key:
            return "all examples"
        slice_id = self.ids.get(key)
        if slice_id is not None:
            return self.names[slice_id]
        return " & ".join(f"{column} = {value}" for column, value in key)

    def _messages(self) -> Iterator[TfmaMessage]:
        """Yield what is published, with the names that an export has for the models."""
        for kind, messages in (("metrics", self.metrics), ("plots", self.plots)):
            for message in messages:
                key = _key(message.slice_key)
                if message.HasField("cross_slice_key") or key not in self.ids:
                    continue
                entries = (
                    message.metric_keys_and_values
                    if kind == "metrics"
                    else message.plot_keys_and_values
                )
                if not entries:
                    continue
                for entry in entries:
                    self._rename(entry.key)
                yield TfmaMessage(
                    kind, self.ids[key], message.SerializeToString(deterministic=True)
                )
        if self.evaluation.validates:
            for part in self.result.metric_validations_per_slice:
                for failure in part.failures:
                    self._rename(failure.metric_key)
            yield TfmaMessage("validation", None, self.result.SerializeToString(deterministic=True))

    def _rename(self, key: Any) -> None:
        if self.evaluation.compares:
            key.model_name = BASELINE if key.model_name == self.old else CANDIDATE


def _key(message: Any) -> tuple[tuple[str, Any], ...]:
    """Return a SliceKey as columns with their values, sorted."""
    parts = []
    for single in message.single_slice_keys:
        kind = single.WhichOneof("kind")
        value = getattr(single, kind) if kind else ""
        parts.append((single.column, value.decode("utf-8") if isinstance(value, bytes) else value))
    return tuple(sorted(parts))


def _typed(value: Any) -> Any:
    """Return a value of the data as a slice key of TFMA has it."""
    if isinstance(value, bool | int):
        return int(value)
    return float(np.float32(value)) if isinstance(value, float) else str(value)


def _spec_name(spec: Any) -> str:
    values = (f"{name} = {value}" for name, value in sorted(spec.feature_values.items()))
    return " & ".join([*sorted(spec.feature_keys), *values]) or "all examples"


def _bounds(threshold: Any) -> str:
    """Return the bounds of a MetricThreshold in words."""
    if threshold.HasField("value_threshold"):
        bound = threshold.value_threshold
        parts = [
            f"{words} {getattr(bound, name).value:g}"
            for name, words in (("lower_bound", "at least"), ("upper_bound", "at most"))
            if bound.HasField(name)
        ]
        return " and ".join(parts) or "a value"
    bound = threshold.change_threshold
    side = "at most" if bound.direction == 1 else "at least"
    parts = [
        f"{side} {getattr(bound, name).value:+g}{words}"
        for name, words in (("absolute", ""), ("relative", " of the old value"))
        if bound.HasField(name)
    ]
    return "a change of " + (" and ".join(parts) or "any size")


def _estimate(number: TfmaNumber | None, sign: int = 1) -> Estimate:
    if number is None or not math.isfinite(number.value):
        return Estimate()
    low, high = sorted((sign * number.low, sign * number.high))
    value = sign * number.value
    # What no replicate changes has no interval: that nothing varied does not say that nothing could.
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        return Estimate(value=value)
    return Estimate(value=value, lo=low, hi=high, confidence=CONFIDENCE)


def _p_value(number: TfmaNumber | None) -> float | None:
    if number is None or not (number.error > 0 and number.freedom > 0):
        return None
    # TFMA's interval is around the mean of the replicates; so is the test that agrees with it.
    centre = (number.low + number.high) / 2
    return float(2 * stdtr(number.freedom, -abs(centre) / number.error))
