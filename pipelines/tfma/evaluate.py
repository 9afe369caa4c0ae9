"""Has TFMA evaluate what a search or check lists: its metrics, plots and thresholds.

TFMA's own ``ExtractAndEvaluate`` does it, once for a run. Where an EvalConfig names the slices, TFMA
slices by it; otherwise the number of each listed slice is a feature, by whose values TFMA slices.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
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
from slicebeam.pipelines.tfma.messages import TfmaMessage
from slicebeam.pipelines.tfma.request import BASELINE, REPLICATES, seconds_of
from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.tfma.eval_config import THRESHOLDS, slice_spec
from slicebeam.transforms.tfma.evaluation import (
    SLICES,
    EvaluatedExamples,
    EvaluateSlices,
    key_name,
    numbers_of,
    prediction_column,
)
from slicebeam.transforms.tfma.install import tfma_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.tfma.request import Evaluation
    from slicebeam.transforms.encode.extract_predictions import Side
    from slicebeam.transforms.tfma.evaluation import TfmaNumber

CONFIDENCE = 0.95


def with_tfma(
    document: SearchChangeList, evaluation: Evaluation, prepared: EncodedDataset
) -> tuple[SearchChangeList, list[TfmaMessage]]:
    """Return the document with what TFMA says of its slices, and TFMA's messages."""
    config = evaluation.config
    slices = [part for part in document.slices if part.predicate is not None]
    seconds = seconds_of(evaluation, prepared.rows + sum(part.size.n for part in slices))
    run = prepared.run
    run.show(Stage(f"TFMA evaluates {len(slices):,} slices: about {seconds:.3g} s of CPU"))
    numbers, features = evaluation.numbers(), evaluation.features()
    source = prepared.source
    for name in (*numbers, *features):
        source.column_type(name, "metrics of TFMA")
    membership = SliceMembership(tuple(part.conditions for part in slices))
    keys = {spec.prediction_key for spec in evaluation.message.model_specs}
    sides: dict[Side, str | None]
    sides = {"prediction": config.model, "baseline": config.baseline_model}
    models = {
        side: model for side, model in sides.items() if model and prediction_column(side) in keys
    }
    examples = EvaluatedExamples(
        source,
        None if evaluation.has_own_slices else membership,
        numbers,
        features,
        evaluation.metric_columns(),
        prepared.outcome.positive_class,
        models,
        {side: prepared.model_columns[side] for side in models},
    )
    path = run.work.folder("tfma") / "messages.parquet"
    serialized = evaluation.message.SerializeToString(deterministic=True)
    run.stage(
        "tfma",
        partial(_build, EvaluateSlices(examples, serialized, config.seed, path)),
        path.is_file,
        job="tfma",
        seconds=seconds,
        reads_data=True,
    )
    with path.open("rb") as stream:
        rows = pq.read_table(stream).to_pylist()
    return _Results(evaluation, slices, rows).document(document)


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
        self.messages = [
            (row["kind"], types[row["kind"]].FromString(row["content"])) for row in rows
        ]

    def document(self, document: SearchChangeList) -> tuple[SearchChangeList, list[TfmaMessage]]:
        """Return the document with TFMA's numbers and verdict, and the messages to publish."""
        update: dict[str, Any] = {"tfma_metrics": tuple(self._entries())}
        if self.evaluation.validates:
            update["validation"] = self._validation()
        return document.model_copy(update=update), list(self._published())

    def _of_kind(self, kind: str) -> list[Any]:
        return [message for name, message in self.messages if name == kind]

    def _entries(self) -> Iterator[TfmaMetric]:
        compares, config = self.evaluation.compares, self.evaluation.config
        numbers: dict[tuple[str, str], dict[str | None, dict[str, TfmaNumber]]] = {}
        for message in self._of_kind("metrics"):
            is_cross = message.HasField("cross_slice_key")
            cross = message.cross_slice_key
            if is_cross and (compares or cross.baseline_slice_key.single_slice_keys):
                continue
            slice_key = _key(cross.comparison_slice_key if is_cross else message.slice_key)
            if slice_key not in self.ids:
                continue
            for number in numbers_of(message):
                side = "before" if number.model == BASELINE else "after"
                if is_cross or number.is_difference:
                    side = "delta"
                name = number.name
                if number.is_weighted not in (None, config.weight is not None):
                    # The run's numbers are the others.
                    name += "@weighted" if number.is_weighted else "@unweighted"
                by_slice = numbers.setdefault((name, number.output), {})
                by_slice.setdefault(self.ids[slice_key], {})[side] = number
        for (name, output), by_slice in numbers.items():
            yield self._entry(name, output, by_slice)

    def _entry(
        self, name: str, output: str, by_slice: dict[str | None, dict[str, TfmaNumber]]
    ) -> TfmaMetric:
        compares = self.evaluation.compares
        overall = by_slice.get(None, {})
        listed = []
        for part in self.slices:
            sides = by_slice.get(part.slice_id)
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
                    slice_id=part.slice_id,
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
        (result,) = self._of_kind("validations")
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
        parts = [
            part for spec in self.evaluation.message.metrics_specs for part in (spec, *spec.metrics)
        ]
        fields = {field.name for part in parts for field, _ in part.ListFields()}
        if fields.isdisjoint(THRESHOLDS):
            return
        evaluated = {self.ids.get(_key(each.slice_key)) for each in self._of_kind("metrics")}
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

    def _published(self) -> Iterator[TfmaMessage]:
        for kind, message in self.messages:
            slice_id = None
            if kind == "validations":
                if not self.evaluation.validates:
                    continue
            else:
                key = _key(message.slice_key)
                entries = getattr(message, f"{kind[:-1]}_keys_and_values")
                if message.HasField("cross_slice_key") or key not in self.ids or not entries:
                    continue
                slice_id = self.ids[key]
            yield TfmaMessage(kind, slice_id, message.SerializeToString(deterministic=True))


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
    if number is None or not (number.error > 0 and number.freedom > 0):
        return None
    # TFMA's interval is around the mean of the replicates; so is the test that agrees with it.
    centre = (number.low + number.high) / 2
    return float(2 * stdtr(number.freedom, -abs(centre) / number.error))
