"""Has TFMA evaluate what a search or check lists: its metrics, plots and thresholds.

TFMA's own ``ExtractAndEvaluate`` does it, once for a run. Where an EvalConfig names the slices, TFMA
slices by it; otherwise the number of each listed slice is a feature, by whose values TFMA slices.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.special import stdtr

from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.changelist.testing import (
    FailedThreshold,
    TfmaMetric,
    TfmaValue,
    Validation,
)
from slicebeam.pipelines.run.stage import Stage
from slicebeam.pipelines.tfma.request import BASELINE, REPLICATES, seconds_of
from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.tfma.eval_config import THRESHOLDS, slice_spec
from slicebeam.transforms.tfma.evaluation import SLICES, EvaluateSlices, key_name, numbers_of
from slicebeam.transforms.tfma.install import tfma_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.tfma.request import Evaluation
    from slicebeam.transforms.tfma.evaluation import TfmaNumber

CONFIDENCE = 0.95
# What is published for the viewer: serialized messages, of all examples without a slice.
_SCHEMA = pa.schema([("kind", pa.string()), ("slice_id", pa.string()), ("content", pa.binary())])


def with_tfma(
    document: SearchChangeList, evaluation: Evaluation, prepared: EncodedDataset, stream: Any
) -> SearchChangeList:
    """Return the document with what TFMA says of its slices, and write its messages as a table."""
    slices = [part for part in document.slices if part.predicate is not None]
    results = _Results(evaluation, slices, _evaluated(evaluation, slices, prepared))
    update: dict[str, Any] = {"tfma_metrics": tuple(results.metrics())}
    if evaluation.validates:
        update["validation"] = results.validation()
    pq.write_table(pa.Table.from_pylist(list(results.published()), schema=_SCHEMA), stream)
    return document.model_copy(update=update)


def _evaluated(
    evaluation: Evaluation, slices: Sequence[Slice], prepared: EncodedDataset
) -> list[dict[str, Any]]:
    """Run TFMA, and return the kind and the content of its messages."""
    seconds = seconds_of(evaluation, prepared.rows + sum(part.size.n for part in slices))
    run = prepared.run
    run.show(Stage(f"TFMA evaluates {len(slices):,} slices: about {seconds:.3g} s of CPU"))
    membership = SliceMembership(tuple(part.conditions for part in slices))
    examples = evaluation.examples(prepared, membership)
    path = run.work.folder("tfma") / "messages.parquet"
    config = evaluation.message.SerializeToString(deterministic=True)
    run.stage(
        "tfma",
        partial(_build, EvaluateSlices(examples, config, evaluation.config.seed, path)),
        path.is_file,
        job="tfma",
        seconds=seconds,
        reads_data=True,
    )
    with path.open("rb") as stream:
        rows: list[dict[str, Any]] = pq.read_table(stream).to_pylist()
    return rows


def _build(transform: EvaluateSlices, pipeline: Any) -> Any:
    return pipeline | "TFMA" >> transform


class _Results:
    """Reads TFMA's messages about the slices of a document."""

    def __init__(
        self, evaluation: Evaluation, slices: Sequence[Slice], rows: list[dict[str, Any]]
    ) -> None:
        self.evaluation, self.slices = evaluation, slices
        self.names = {part.slice_id: part.name for part in slices}
        self.ids: dict[Any, str | None] = {(): None}
        for number, part in enumerate(slices):
            key: Any = ((SLICES, number),)
            if evaluation.has_own_slices:
                key = tuple(sorted((c.field, _as_key(c.value)) for c in part.conditions))
            self.ids[key] = part.slice_id
        pb = tfma_module("proto.metrics_for_slice_pb2")
        types = {
            "metrics": pb.MetricsForSlice,
            "plots": pb.PlotsForSlice,
            "validations": tfma_module("proto.validation_result_pb2").ValidationResult,
        }
        self.messages: dict[str, list[Any]] = {
            kind: [read.FromString(row["content"]) for row in rows if row["kind"] == kind]
            for kind, read in types.items()
        }

    def metrics(self) -> Iterator[TfmaMetric]:
        """Yield each number of TFMA, over all examples and on the slices."""
        compares, config = self.evaluation.compares, self.evaluation.config
        # By name and output; then by slice, and what of it is measured.
        numbers: dict[tuple[str, str], dict[tuple[str | None, str], TfmaNumber]] = {}
        for message in self.messages["metrics"]:
            is_cross = message.HasField("cross_slice_key")
            cross = message.cross_slice_key
            if is_cross and (compares or cross.baseline_slice_key.single_slice_keys):
                continue
            slice_key = _key(cross.comparison_slice_key if is_cross else message.slice_key)
            if slice_key not in self.ids:
                continue
            for key, title, number in numbers_of(message):
                measured = "before" if key.model_name == BASELINE else "after"
                if is_cross or key.is_diff:
                    measured = "delta"
                is_weighted, suffix = key.example_weighted.value, ""
                if key.HasField("example_weighted") and is_weighted != (config.weight is not None):
                    # The run's numbers are the others.
                    suffix = "@weighted" if is_weighted else "@unweighted"
                found = numbers.setdefault((title + suffix, key.output_name), {})
                found[self.ids[slice_key], measured] = number
        for (name, output), found in numbers.items():
            overall = self._estimates(found, None)
            yield TfmaMetric(
                name=name,
                output=output or None,
                replicates=REPLICATES if self.evaluation.has_intervals else 0,
                overall=overall["after"],
                overall_before=overall["before"],
                overall_delta=overall["delta"] if compares else None,
                slices=tuple(
                    TfmaValue(
                        slice_id=part.slice_id,
                        **self._estimates(found, part.slice_id),
                        p_value=_p_value(found.get((part.slice_id, "delta"))),
                    )
                    for part in self.slices
                    if any((part.slice_id, what) in found for what in ("after", "before", "delta"))
                ),
            )

    def _estimates(
        self, found: dict[tuple[str | None, str], TfmaNumber], slice_id: str | None
    ) -> dict[str, Any]:
        """Return what is measured of a number on a slice, or over all examples."""
        compares = self.evaluation.compares
        after, before, of_all = (
            _estimate(found.get(key))
            for key in ((slice_id, "after"), (slice_id, "before"), (None, "after"))
        )
        # TFMA subtracts a slice from all examples.
        delta = _estimate(found.get((slice_id, "delta")), sign=1 if compares else -1)
        reference = before.value if compares else of_all.value
        if (slice_id, "delta") not in found and after.value is not None and reference is not None:
            delta = Estimate(value=after.value - reference)
        return {"after": after, "before": before if compares else None, "delta": delta}

    def validation(self) -> Validation:
        """Return TFMA's verdict on the thresholds."""
        (result,) = self.messages["validations"]
        self._add_missing(result)
        failures = []
        for part in result.metric_validations_per_slice:
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
        missing = [_spec_name(spec) for spec in result.missing_slices]
        missing += [
            f"{_spec_name(spec.baseline_spec)} against "
            + (", ".join(map(_spec_name, spec.slicing_specs)) or "all others")
            for spec in result.missing_cross_slices
        ]
        details = result.validation_details.slicing_details
        return Validation(
            passed=result.validation_ok,
            checked=sum(detail.num_matching_slices for detail in details),
            failures=tuple(failures),
            missing_slices=tuple(missing),
        )

    def _add_missing(self, result: Any) -> None:
        """Let a slice fail that TFMA has passed over, such as one of a text that looks like a number."""
        specs = self.evaluation.message.metrics_specs
        parts = [part for spec in specs for part in (spec, *spec.metrics)]
        fields = {field.name for part in parts for field, _ in part.ListFields()}
        if fields.isdisjoint(THRESHOLDS):
            return
        evaluated = {self.ids.get(_key(each.slice_key)) for each in self.messages["metrics"]}
        for part in self.slices:
            if part.slice_id not in evaluated:
                values = {c.field: str(_as_key(c.value)) for c in part.conditions}
                result.missing_slices.add(feature_values=values)
                result.validation_ok = False

    def _name(self, key: Any) -> str:
        slice_id = self.ids.get(key)
        if slice_id is not None:
            return self.names[slice_id]
        return " & ".join(f"{column} = {value}" for column, value in key) or "all examples"

    def published(self) -> Iterator[dict[str, Any]]:
        """Yield the messages for the viewer: of a kind, and of a slice, all examples or the verdict."""
        for kind, messages in self.messages.items():
            for message in messages:
                slice_id = None
                if kind != "validations":
                    key = _key(message.slice_key)
                    entries = getattr(message, f"{kind[:-1]}_keys_and_values")
                    if message.HasField("cross_slice_key") or key not in self.ids or not entries:
                        continue
                    slice_id = self.ids[key]
                elif not self.evaluation.validates:
                    continue
                content = message.SerializeToString(deterministic=True)
                yield {"kind": kind, "slice_id": slice_id, "content": content}


def _key(message: Any) -> tuple[tuple[str, Any], ...]:
    """Return a SliceKey as columns with their values, sorted."""
    return tuple(sorted(tfma_module("slicer.slicer_lib").deserialize_slice_key(message)))


def _as_key(value: Any) -> Any:
    """Return a value of the data as a slice key of TFMA has it."""
    if isinstance(value, bool | int):
        return int(value)
    return float(np.float32(value)) if isinstance(value, float) else str(value)


def _spec_name(spec: Any) -> str:
    return str(slice_spec(spec)) or "all examples"


def _bounds(threshold: Any) -> str:
    """Return a MetricThreshold as an EvalConfig has it."""
    from google.protobuf import text_format  # type: ignore[import-untyped]

    return str(text_format.MessageToString(threshold, as_one_line=True)).strip()


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
    if number is None or not (number.standard_error > 0 and number.degrees_of_freedom > 0):
        return None
    # TFMA's interval is around the mean of the replicates; so is the test that agrees with it.
    centre = (number.low + number.high) / 2
    return float(2 * stdtr(number.degrees_of_freedom, -abs(centre) / number.standard_error))
