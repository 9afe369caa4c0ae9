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
    """What was written: where, how many slices, and the columns of theirs that the data does not have.

    ``is_ok``: what `tfma.load_validation_result` says. ``notes``: what the user should know.
    """

    folder: str
    slices: int
    derived: tuple[str, ...]
    is_ok: bool
    notes: tuple[str, ...] = ()


def export_changelist(changelist: str, folder: str, judge: Judge) -> Exported:
    """Write a ChangeList as an output folder of TFMA.

    ``changelist``: path of a document, or of its folder for the last revision. ``judge``: returns
    whether a document passes, and why not.
    """
    uri = base_of(changelist, "OUTPUT")
    document = read_search(uri, "OUTPUT")
    messages = read_messages(uri, document)
    path = storage_path(folder, "--to")
    _refuse_foreign(path)
    writer = _Messages(document, messages, *judge(document))
    make_folder(path)
    files = {
        _METRICS: writer.metrics(),
        _PLOTS: writer.plots(),
        _VALIDATIONS: [writer.validation()],
    }
    for name, records in files.items():
        if records:
            with written_whole(path / name) as stream:
                write_records(stream, records)
        else:
            # Plots of an earlier export are of another document.
            with storage_errors(path / name, "remove"):
                (path / name).unlink(missing_ok=True)
    index = json.dumps(writer.index(), indent=1, ensure_ascii=False) + "\n"
    # The configuration is last, so that a folder with it is complete.
    for name, text in ((_SLICES, index), (_CONFIG, writer.eval_run())):
        with written_whole(path / name) as stream:
            stream.write(text.encode("utf-8"))
    return Exported(str(path), len(writer.keys), writer.derived(), writer.is_ok, writer.notes())


def _refuse_foreign(path: StoragePath) -> None:
    with storage_errors(path, "read"):
        names = sorted(file.name for file in path.iterdir()) if path.is_dir() else []
    for name in names:
        if name.startswith(_READ) and name not in (_METRICS, _PLOTS, _VALIDATIONS):
            raise FileError(
                f"--to {path}: {name} is there, which TFMA would read along; name another folder"
            )


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
        self.of_tfma = {(each.kind, each.slice_id): each.content for each in messages}
        needs = "slicebeam export tfma"
        self.metrics_pb2 = tfma_module("proto.metrics_for_slice_pb2", needs)
        self.config_pb2 = tfma_module("proto.config_pb2", needs)
        self.validation_pb2 = tfma_module("proto.validation_result_pb2", needs)
        self.slice_key = tfma_module("slicer.slicer_lib", needs).serialize_slice_key
        self.named = [
            NamedSlice(part.slice_id, part.name, part.conditions if part.predicate else None)
            for part in document.slices
        ]
        self.keys = slice_keys(self.named)
        self.compares = document.comparison.kind == "baseline"
        self.model = CANDIDATE if self.compares else ""
        verdict = document.validation
        self.is_ok = is_ok if verdict is None else verdict.passed
        self.reasons = reasons

    def metrics(self) -> list[bytes]:
        """Return the serialized MetricsForSlice of all examples, and of each slice."""
        document = self.document
        ranks: dict[str, dict[str, float]] = {}
        for finding in document.findings:
            if finding.direction == "worse":
                ranks.setdefault(finding.slice_id, {})[finding.metric] = float(finding.rank)
        records = [self._of_slice(None, (), document.dataset.n, document.global_, {})]
        for key, part in zip(self.keys, document.slices, strict=True):
            own_ranks = ranks.get(part.slice_id, {})
            records.append(self._of_slice(part.slice_id, key, part.size.n, part.changes, own_ranks))
        return records

    def plots(self) -> list[bytes]:
        """Return the serialized PlotsForSlice of all examples, and of each slice that has plots."""
        records = []
        ids = [None, *(part.slice_id for part in self.document.slices)]
        for slice_id, key in zip(ids, [(), *self.keys], strict=True):
            content = self.of_tfma.get(("plots", slice_id))
            if content is not None:
                message = self.metrics_pb2.PlotsForSlice.FromString(content)
                message.slice_key.CopyFrom(self.slice_key(key))
                records.append(_bytes(message))
        return records

    def _of_slice(
        self,
        slice_id: str | None,
        key: SliceKey,
        n: int,
        changes: tuple[Change, ...],
        ranks: dict[str, float],
    ) -> bytes:
        message = self.metrics_pb2.MetricsForSlice(slice_key=self.slice_key(key))
        # As in TFMA, the count is no model's.
        self._add(message, "example_count", "", n)
        for change in changes:
            name = change.metric
            self._estimate(message, name, self.model, change.after)
            if change.before is not None:
                self._estimate(message, name, BASELINE, change.before)
            if change.delta is not None:
                full = name if self.compares else f"{name}_delta"
                self._estimate(message, full, self.model, change.delta, is_diff=self.compares)
            for what in ("p_value", "p_adjusted"):
                if (p := getattr(change, what)) is not None:
                    self._add(message, f"{name}_{what}", self.model, p)
            if name in ranks:
                self._add(message, f"{name}_finding_rank", self.model, ranks[name])
        taken = {metric.key for metric in self.document.metrics} | {"example_count"}
        content = self.of_tfma.get(("metrics", slice_id), b"")
        for entry in self.metrics_pb2.MetricsForSlice.FromString(content).metric_keys_and_values:
            if entry.key.name in taken:
                entry.key.name = f"tfma_{entry.key.name}"
            message.metric_keys_and_values.append(entry)
        return _bytes(message)

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
        entry.key.MergeFrom(self._key(name, model, is_diff=is_diff))
        entry.value.double_value.value = value
        return entry

    def _key(self, name: str, model: str, *, is_diff: bool = False) -> Any:
        return self.metrics_pb2.MetricKey(name=name, model_name=model, is_diff=is_diff)

    def validation(self) -> bytes:
        """Return the serialized ValidationResult, which is TFMA's own where it validated.

        Otherwise it is not ok where ``--fail-on worse`` would fail.
        """
        verdict = self.of_tfma.get(("validations", None))
        if verdict is not None:
            return verdict
        result = self.validation_pb2.ValidationResult(validation_ok=self.is_ok)
        for key, entry in zip(self.keys, self.document.slices, strict=True):
            failed = [c for c in entry.changes if c.significant and c.direction == "degraded"]
            if not failed:
                continue
            part = result.metric_validations_per_slice.add(slice_key=self.slice_key(key))
            for change in failed:
                value = change.delta.value if change.delta is not None else change.after.value
                failure = part.failures.add(message=_message(change))
                name = change.metric if self.compares else f"{change.metric}_delta"
                failure.metric_key.CopyFrom(self._key(name, self.model, is_diff=self.compares))
                if value is not None:
                    failure.metric_value.double_value.value = value
        if self.reasons:
            part = result.metric_validations_per_slice.add(slice_key=self.slice_key(()))
            for reason in self.reasons:
                part.failures.add(message=reason)
        return _bytes(result)

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
        for metric in self.document.metrics:
            specs.metrics.add(class_name=metric.key, module="slicebeam")
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
                "slice_key": [list(column_value) for column_value in key],
                "slice_id": part.slice_id,
                "name": part.name,
                "definition": part.definition.model_dump(mode="json", exclude_none=True),
            }
            for key, part in zip(self.keys, self.document.slices, strict=True)
        ]

    def derived(self) -> tuple[str, ...]:
        """Return the derived columns."""
        conditions = [c for part in self.named for c in part.conditions or ()]
        plain = {c.field for c in conditions if not is_derived(c)}
        return tuple(sorted({column for key in self.keys for column, _ in key} - plain))

    def notes(self) -> tuple[str, ...]:
        """Return what the folder does not hold."""
        listed = len(self.document.slices)
        more = self.document.search.reported - listed
        if more <= 0:
            return ()
        return (f"the document lists {listed:,} slices; {more:,} more are in slices.parquet only",)


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


def _message(change: Change) -> str:
    """Return why a slice fails, in a line."""
    delta = change.delta
    if delta is None or delta.value is None:
        return f"{change.metric} is significantly worse"
    interval = "" if delta.lo is None or delta.hi is None else f" [{delta.lo:.4g}, {delta.hi:.4g}]"
    p = "" if change.p_adjusted is None else f", adjusted p {change.p_adjusted:.2g}"
    against = "the baseline" if change.before is not None else "all examples"
    return f"{change.metric} differs from {against} by {delta.value:.4g}{interval}{p}"
