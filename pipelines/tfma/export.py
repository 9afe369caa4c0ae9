"""``slicebeam export tfma``: a ChangeList as the output folder of TensorFlow Model Analysis.

| file | holds |
|---|---|
| ``eval_config.json`` | models, metrics and a slicing spec for each slice |
| ``metrics-00000-of-00001.tfrecord`` | a MetricsForSlice for all examples and for each slice |
| ``plots-00000-of-00001.tfrecord`` | a PlotsForSlice for each of them, where there are plots |
| ``validations.tfrecord`` | TFMA's verdict on the thresholds; without any, that of ``--fail-on worse`` |
| ``slices.json`` | of each slice key the predicate that it stands for |
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from slicebeam.metrics.errors import FileError
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.changelist.revisions import base_of
from slicebeam.pipelines.tfma.messages import read_messages
from slicebeam.pipelines.tfma.request import BASELINE, CANDIDATE
from slicebeam.transforms.formats.tfrecord import write_records
from slicebeam.transforms.storage.storage import (
    make_folder,
    storage_errors,
    storage_path,
    written_whole,
)
from slicebeam.transforms.tfma.install import tfma_module
from slicebeam.transforms.tfma.slice_keys import NamedSlice, SliceKey, is_derived, slice_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.pipelines.changelist.changes import Change
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.parts import Estimate
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.tfma.messages import TfmaMessage
    from slicebeam.transforms.storage.storage import StoragePath

Judge: TypeAlias = "Callable[[SearchChangeList], tuple[bool, tuple[str, ...]]]"

_METRICS = "metrics-00000-of-00001.tfrecord"
_PLOTS = "plots-00000-of-00001.tfrecord"
_VALIDATIONS, _CONFIG, _SLICES = "validations.tfrecord", "eval_config.json", "slices.json"
# TFMA reads every file of these names, whoever wrote it.
_READ = ("metrics", "plots", "attributions", "validations")


@dataclass(frozen=True)
class Exported:
    """What was written.

    ``folder``: where. ``slices``: how many slices, besides all examples. ``derived``: columns that
    the data does not have, by which some slices are named. ``is_ok``: what
    `tfma.load_validation_result` says. ``notes``: what the user should know.
    """

    folder: str
    slices: int
    derived: tuple[str, ...]
    is_ok: bool
    notes: tuple[str, ...] = ()


def export_changelist(changelist: str, folder: str, judge: Judge) -> Exported:
    """Write a ChangeList as an output folder of TFMA.

    ``changelist``: path of a document, or of its folder for the last revision. ``folder``: where;
    made if it is not there. ``judge``: returns whether a document passes, and why not.
    """
    uri = base_of(changelist, "OUTPUT")
    document = read_search(uri, "OUTPUT")
    messages = read_messages(uri, document)
    path = storage_path(folder, "--to")
    _refuse_foreign(path)
    writer = _Messages(document, messages, *judge(document))
    make_folder(path)
    _write(path / _METRICS, writer.metrics())
    _write_plots(path / _PLOTS, writer.plots())
    _write(path / _VALIDATIONS, [writer.validation()])
    _write_text(path / _SLICES, json.dumps(writer.index(), indent=1, ensure_ascii=False) + "\n")
    # Last, so that a folder with a configuration is complete.
    _write_text(path / _CONFIG, writer.eval_run())
    return Exported(str(path), len(writer.keys), writer.derived(), writer.is_ok, writer.notes())


def _refuse_foreign(path: StoragePath) -> None:
    with storage_errors(path, "read"):
        if not path.is_dir():
            return
        names = sorted(one.name for one in path.iterdir())
    for name in names:
        if name.startswith(_READ) and name not in (_METRICS, _PLOTS, _VALIDATIONS):
            raise FileError(
                f"--to {path}: {name} is there, which TFMA would read along; name another folder"
            )


def _write(path: StoragePath, records: list[bytes]) -> None:
    with written_whole(path) as stream:
        write_records(stream, records)


def _write_plots(path: StoragePath, records: list[bytes]) -> None:
    if records:
        _write(path, records)
        return
    # Those of an earlier export are of another document.
    with storage_errors(path, "remove"):
        path.unlink(missing_ok=True)


def _write_text(path: StoragePath, text: str) -> None:
    with written_whole(path) as stream:
        stream.write(text.encode("utf-8"))


def named_slices(slices: tuple[Slice, ...]) -> list[NamedSlice]:
    """Return the slices of a document as `slice_keys` names them."""
    return [
        NamedSlice(one.slice_id, one.name, None if one.predicate is None else one.conditions)
        for one in slices
    ]


class _Messages:
    """The protocol buffers of a document."""

    def __init__(
        self,
        document: SearchChangeList,
        messages: list[TfmaMessage],
        is_ok: bool,
        reasons: tuple[str, ...],
    ) -> None:
        self.document = document
        self.of_tfma = {(one.kind, one.slice_id): one.content for one in messages}
        needs = "slicebeam export tfma"
        self.metrics_pb2 = tfma_module("proto.metrics_for_slice_pb2", needs)
        self.config_pb2 = tfma_module("proto.config_pb2", needs)
        self.validation_pb2 = tfma_module("proto.validation_result_pb2", needs)
        self.named = named_slices(document.slices)
        self.keys = slice_keys(self.named)
        self.compares = document.comparison.kind == "baseline"
        self.model = CANDIDATE if self.compares else ""
        verdict = document.validation
        self.is_ok = is_ok if verdict is None else verdict.passed
        self.reasons = reasons

    def slice_key(self, key: SliceKey) -> Any:
        found = self.metrics_pb2.SliceKey()
        for column, value in key:
            single = found.single_slice_keys.add(column=column)
            if isinstance(value, str):
                single.bytes_value = value.encode("utf-8")
            elif isinstance(value, int):
                single.int64_value = value
            else:
                single.float_value = value
        return found

    def metrics(self) -> list[bytes]:
        """Return the serialized MetricsForSlice of all examples, and of each slice."""
        ranks = {
            (one.slice_id, one.metric): float(one.rank)
            for one in self.document.findings
            if one.direction == "worse"
        }
        whole = self._of_slice((), self.document.dataset.n, self.document.global_, {})
        self._add_tfma(whole, None)
        records = [bytes(whole.SerializeToString(deterministic=True))]
        for key, one in zip(self.keys, self.document.slices, strict=True):
            own = {
                metric: rank
                for (slice_id, metric), rank in ranks.items()
                if slice_id == one.slice_id
            }
            message = self._of_slice(key, one.size.n, one.changes, own)
            self._add_tfma(message, one.slice_id)
            records.append(bytes(message.SerializeToString(deterministic=True)))
        return records

    def plots(self) -> list[bytes]:
        """Return the serialized PlotsForSlice of all examples, and of each slice that has plots."""
        keys: dict[str | None, SliceKey] = {None: ()}
        keys |= {
            one.slice_id: key for one, key in zip(self.document.slices, self.keys, strict=True)
        }
        found = []
        for slice_id, key in keys.items():
            content = self.of_tfma.get(("plots", slice_id))
            if content is not None:
                message = self.metrics_pb2.PlotsForSlice.FromString(content)
                message.slice_key.CopyFrom(self.slice_key(key))
                found.append(bytes(message.SerializeToString(deterministic=True)))
        return found

    def _add_tfma(self, message: Any, slice_id: str | None) -> None:
        """Add the numbers that TFMA computed, which are of all kinds."""
        content = self.of_tfma.get(("metrics", slice_id), b"")
        taken = {metric.key for metric in self.document.metrics} | {"example_count"}
        for entry in self.metrics_pb2.MetricsForSlice.FromString(content).metric_keys_and_values:
            if entry.key.name in taken:
                entry.key.name = f"tfma_{entry.key.name}"
            message.metric_keys_and_values.append(entry)

    def _of_slice(
        self, key: SliceKey, n: int, changes: tuple[Change, ...], ranks: dict[str, float]
    ) -> Any:
        message = self.metrics_pb2.MetricsForSlice(slice_key=self.slice_key(key))
        # As in TFMA, the count is no model's.
        self._add(message, "example_count", "", n)
        for change in changes:
            name = change.metric
            self._estimate(message, name, self.model, change.after)
            if change.before is not None:
                self._estimate(message, name, BASELINE, change.before)
            if change.delta is not None:
                named = name if self.compares else f"{name}_delta"
                self._estimate(message, named, self.model, change.delta, is_diff=self.compares)
            for what in ("p_value", "p_adjusted"):
                if (p := getattr(change, what)) is not None:
                    self._add(message, f"{name}_{what}", self.model, p)
            if name in ranks:
                self._add(message, f"{name}_finding_rank", self.model, ranks[name])
        return message

    def _estimate(
        self, message: Any, name: str, model: str, estimate: Estimate, *, is_diff: bool = False
    ) -> None:
        if estimate.value is None:
            return
        entry = self._add(message, name, model, estimate.value, is_diff=is_diff)
        if estimate.lo is not None and estimate.hi is not None:
            entry.confidence_interval.lower_bound.double_value.value = estimate.lo
            entry.confidence_interval.upper_bound.double_value.value = estimate.hi

    def _add(
        self, message: Any, name: str, model: str, value: float, *, is_diff: bool = False
    ) -> Any:
        entry = message.metric_keys_and_values.add()
        entry.key.CopyFrom(self._key(name, model, is_diff=is_diff))
        entry.value.double_value.value = value
        return entry

    def _key(self, name: str, model: str, *, is_diff: bool = False) -> Any:
        return self.metrics_pb2.MetricKey(name=name, model_name=model, is_diff=is_diff)

    def validation(self) -> bytes:
        """Return the serialized ValidationResult, which is TFMA's own where it validated.

        Otherwise it is not ok where ``--fail-on worse`` would fail.
        """
        own = self.of_tfma.get(("validation", None))
        if own is not None:
            return own
        result = self.validation_pb2.ValidationResult(validation_ok=self.is_ok)
        for key, one in zip(self.keys, self.document.slices, strict=True):
            failed = [c for c in one.changes if c.significant and c.direction == "degraded"]
            if not failed:
                continue
            part = result.metric_validations_per_slice.add(slice_key=self.slice_key(key))
            for change in failed:
                value = change.delta.value if change.delta is not None else change.after.value
                failure = part.failures.add(message=_message(change))
                named = change.metric if self.compares else f"{change.metric}_delta"
                failure.metric_key.CopyFrom(self._key(named, self.model, is_diff=self.compares))
                if value is not None:
                    failure.metric_value.double_value.value = value
        if self.reasons:
            part = result.metric_validations_per_slice.add(slice_key=self.slice_key(()))
            for reason in self.reasons:
                part.failures.add(message=reason)
        return bytes(result.SerializeToString(deterministic=True))

    def eval_run(self) -> str:
        """Return the EvalRun as JSON."""
        from google.protobuf import json_format  # type: ignore[import-untyped]

        config = self.config_pb2.EvalConfig()
        dataset = self.document.dataset
        for model in self.document.models:
            spec = config.model_specs.add(label_key=dataset.label_field or "")
            spec.prediction_key = model.score_field or model.prediction_field or ""
            if self.compares:
                spec.name = BASELINE if model.role == "before" else CANDIDATE
                spec.is_baseline = model.role == "before"
        config.slicing_specs.add()
        for key in self.keys:
            spec = config.slicing_specs.add()
            for column, value in key:
                spec.feature_values[column] = str(value)
        specs = config.metrics_specs.add()
        specs.metrics.add(class_name="ExampleCount")
        for one in self.document.metrics:
            specs.metrics.add(class_name=one.key, module="slicebeam")
        names = [CANDIDATE, BASELINE] if self.compares else [""]
        run = self.config_pb2.EvalRun(
            eval_config=config,
            version=tfma_module().__version__,
            data_location=", ".join(dataset.uri),
            model_locations=dict.fromkeys(names, ", ".join(m.name for m in self.document.models)),
        )
        return str(json_format.MessageToJson(run))

    def index(self) -> list[dict[str, Any]]:
        """Return what each slice key stands for."""
        return [
            {
                "slice_key": [list(part) for part in key],
                "slice_id": one.slice_id,
                "name": one.name,
                "definition": one.definition.model_dump(mode="json", exclude_none=True),
            }
            for key, one in zip(self.keys, self.document.slices, strict=True)
        ]

    def derived(self) -> tuple[str, ...]:
        """Return the derived columns."""
        columns = {
            column
            for key, one in zip(self.keys, self.named, strict=True)
            for column, _ in key
            if one.conditions is None
            or column not in {c.field for c in one.conditions if not is_derived(c)}
        }
        return tuple(sorted(columns))

    def notes(self) -> tuple[str, ...]:
        """Return what the folder does not hold."""
        listed = len(self.document.slices)
        more = self.document.search.reported - listed
        if more <= 0:
            return ()
        return (f"the document lists {listed:,} slices; {more:,} more are in slices.parquet only",)


def _message(change: Change) -> str:
    """Return why a slice fails, in a line."""
    delta = change.delta
    if delta is None or delta.value is None:
        return f"{change.metric} is significantly worse"
    interval = "" if delta.lo is None or delta.hi is None else f" [{delta.lo:.4g}, {delta.hi:.4g}]"
    p = "" if change.p_adjusted is None else f", adjusted p {change.p_adjusted:.2g}"
    against = "the baseline" if change.before is not None else "all examples"
    return f"{change.metric} differs from {against} by {delta.value:.4g}{interval}{p}"
