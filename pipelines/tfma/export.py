"""``slicebeam export tfma``: a ChangeList as the output folder of TensorFlow Model Analysis.

| file | holds |
|---|---|
| ``eval_config.json`` | models, metrics and a slicing spec for each slice |
| ``metrics-00000-of-00001.tfrecord`` | a MetricsForSlice for all examples and for each slice |
| ``plots-00000-of-00001.tfrecord`` | a PlotsForSlice for each of them that has plots |
| ``validations.tfrecord`` | TFMA's verdict on the thresholds; without any, that of ``--fail-on worse`` |
| ``slices.json`` | of each slice key the predicate that it stands for |
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow.parquet as pq

from slicebeam.metrics.errors import FileError
from slicebeam.pipelines.changelist.changes import has_fallen
from slicebeam.pipelines.changelist.reading import TFMA_TABLE, file_of, read_search
from slicebeam.pipelines.changelist.revisions import base_of
from slicebeam.pipelines.tfma.request import BASELINE, CANDIDATE
from slicebeam.transforms.formats.tfrecord import write_records
from slicebeam.transforms.storage.publish import sha256_of
from slicebeam.transforms.storage.storage import (
    make_folder,
    open_input,
    storage_errors,
    storage_path,
    written_whole,
)
from slicebeam.transforms.tfma.install import tfma_module
from slicebeam.transforms.tfma.slice_keys import NamedSlice, derived_columns, slice_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slicebeam.pipelines.changelist.changes import Change
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.testing import Gate
    from slicebeam.transforms.storage.storage import StoragePath

# Serialized messages by their kind and the id of their slice; None for all examples, and the verdict.
_TfmaMessages: TypeAlias = dict[tuple[str, str | None], bytes]

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


def export_changelist(
    changelist: str, folder: str, judge: Callable[[SearchChangeList], Gate | None]
) -> Exported:
    """Write a ChangeList, of a path or of its folder for the last revision, as an output folder of TFMA.

    ``judge``: returns the verdict of ``--fail-on worse``, for a document without TFMA's.
    """
    uri = base_of(changelist, "OUTPUT")
    document = read_search(uri, "OUTPUT")
    writer = _Messages(document, _tfma_messages(uri, document))
    path = storage_path(folder, "--to")
    _refuse_foreign(path)
    gate = judge(document)
    is_ok = gate is None or gate.passed
    if document.validation is not None:
        is_ok = document.validation.passed
    make_folder(path)
    # Without plots an empty file replaces those of an earlier export.
    files = {
        _METRICS: writer.metrics(),
        _PLOTS: writer.plots(),
        _VALIDATIONS: [writer.validation(is_ok, () if gate is None else gate.reasons)],
    }
    for name, records in files.items():
        with written_whole(path / name) as stream:
            write_records(stream, records)
    index = json.dumps(writer.index(), indent=1, ensure_ascii=False) + "\n"
    # The configuration is last, so that a folder with it is complete.
    for name, text in ((_SLICES, index), (_CONFIG, writer.eval_run())):
        with written_whole(path / name) as stream:
            stream.write(text.encode("utf-8"))
    listed = len(document.slices)
    notes: tuple[str, ...] = ()
    if (more := document.search.reported - listed) > 0:
        notes = (f"the document lists {listed:,} slices; {more:,} more are in slices.parquet only",)
    return Exported(str(path), listed, derived_columns(writer.named), is_ok, notes)


def _tfma_messages(uri: str, document: SearchChangeList) -> _TfmaMessages:
    """Return the messages in the file that a document names; none where it names none."""
    named = (document.files or {}).get(TFMA_TABLE.partition(".")[0])
    if named is None:
        return {}
    path = file_of(uri, document, TFMA_TABLE)
    with storage_errors(path, "read"):
        try:
            with open_input(path) as stream:
                if f"sha256:{sha256_of(stream)}" != named.sha256:
                    raise FileError(f"{path} is not the file that {uri} names; run it again")
                stream.seek(0)
                rows = pq.read_table(stream).to_pylist()
        except FileNotFoundError as error:
            raise FileError(f"{path}, which {uri} names, is gone; run it again") from error
    return {(row["kind"], row["slice_id"]): row["content"] for row in rows}


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

    def __init__(self, document: SearchChangeList, of_tfma: _TfmaMessages) -> None:
        self.document, self.of_tfma = document, of_tfma
        needs = "slicebeam export tfma"
        self.metrics_pb2 = tfma_module("proto.metrics_for_slice_pb2", needs)
        self.slice_key = tfma_module("slicer.slicer_lib", needs).serialize_slice_key
        self.named = [
            NamedSlice(part.slice_id, part.name, part.conditions if part.predicate else None)
            for part in document.slices
        ]
        self.keys = slice_keys(self.named)
        self.ranks: dict[tuple[str | None, str], float] = {
            (finding.slice_id, finding.metric): finding.rank
            for finding in document.findings
            if finding.direction == "worse"
        }
        self.compares = document.comparison.kind == "baseline"
        self.model = CANDIDATE if self.compares else ""

    def metrics(self) -> list[bytes]:
        """Return the serialized MetricsForSlice of all examples, and of each slice."""
        document = self.document
        taken = {metric.key for metric in document.metrics} | {"example_count"}
        parts: list[tuple[str | None, int, tuple[Change, ...]]]
        parts = [(part.slice_id, part.size.n, part.changes) for part in document.slices]
        parts.insert(0, (None, document.dataset.n, document.global_))
        records = []
        for (slice_id, n, changes), key in zip(parts, [(), *self.keys], strict=True):
            # As in TFMA, the count is no model's.
            entries = [self._entry("example_count", "", n)]
            for change in changes:
                entries += self._of_change(slice_id, change)
            content = self.of_tfma.get(("metrics", slice_id), b"")
            for entry in self.metrics_pb2.MetricsForSlice.FromString(
                content
            ).metric_keys_and_values:
                if entry.key.name in taken:
                    entry.key.name = f"tfma_{entry.key.name}"
                entries.append(entry)
            message = self.metrics_pb2.MetricsForSlice(
                slice_key=self.slice_key(key), metric_keys_and_values=entries
            )
            records.append(_bytes(message))
        return records

    def _of_change(self, slice_id: str | None, change: Change) -> Iterator[Any]:
        """Yield the numbers of a metric on a slice."""
        name, model = change.metric, self.model
        estimates = [(name, model, change.after), (name, BASELINE, change.before)]
        for title, side, estimate in [*estimates, (self._delta_name(name), model, change.delta)]:
            if estimate is not None and estimate.value is not None:
                is_diff = self.compares and estimate is change.delta
                entry = self._entry(title, side, estimate.value, is_diff=is_diff)
                if estimate.lo is not None and estimate.hi is not None:
                    entry.confidence_interval.lower_bound.double_value.value = estimate.lo
                    entry.confidence_interval.upper_bound.double_value.value = estimate.hi
                yield entry
        numbers = {"p_value": change.p_value, "p_adjusted": change.p_adjusted}
        numbers["finding_rank"] = self.ranks.get((slice_id, name))
        for what, number in numbers.items():
            if number is not None:
                yield self._entry(f"{name}_{what}", model, number)

    def _delta_name(self, metric: str) -> str:
        return metric if self.compares else f"{metric}_delta"

    def _entry(self, name: str, model: str, value: float, *, is_diff: bool = False) -> Any:
        return self.metrics_pb2.MetricsForSlice.MetricKeyAndValue(
            key={"name": name, "model_name": model, "is_diff": is_diff},
            value={"double_value": {"value": value}},
        )

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

    def validation(self, is_ok: bool, reasons: tuple[str, ...]) -> bytes:
        """Return the serialized ValidationResult, which is TFMA's own where it validated."""
        verdict = self.of_tfma.get(("validations", None))
        if verdict is not None:
            return verdict
        validation_pb2 = tfma_module("proto.validation_result_pb2")
        result = validation_pb2.ValidationResult(validation_ok=is_ok)
        for key, entry in zip(self.keys, self.document.slices, strict=True):
            failures = [self._failure(change) for change in entry.changes if has_fallen(change)]
            if failures:
                result.metric_validations_per_slice.add(
                    slice_key=self.slice_key(key), failures=failures
                )
        if reasons:
            failures = [{"message": reason} for reason in reasons]
            result.metric_validations_per_slice.add(slice_key=self.slice_key(()), failures=failures)
        return _bytes(result)

    def _failure(self, change: Change) -> dict[str, Any]:
        """Return the ValidationFailure of a metric on a slice."""
        value = change.after.value if change.delta is None else change.delta.value
        entry = self._entry(self._delta_name(change.metric), self.model, 0, is_diff=self.compares)
        failure = {"message": _reason(change), "metric_key": entry.key}
        if value is not None:
            failure["metric_value"] = {"double_value": {"value": value}}
        return failure

    def eval_run(self) -> str:
        """Return the EvalRun as JSON."""
        from google.protobuf import json_format  # type: ignore[import-untyped]

        document = self.document
        model_specs = []
        for model in document.models:
            spec: dict[str, Any] = {"label_key": document.dataset.label_field or ""}
            spec["prediction_key"] = model.score_field or model.prediction_field or ""
            if self.compares:
                is_baseline = model.role == "before"
                spec |= {"name": BASELINE if is_baseline else CANDIDATE, "is_baseline": is_baseline}
            model_specs.append(spec)
        slices = [
            {"feature_values": {name: str(value) for name, value in key}} for key in self.keys
        ]
        metrics = [{"class_name": metric.key, "module": "slicebeam"} for metric in document.metrics]
        names = [CANDIDATE, BASELINE] if self.compares else [""]
        run = tfma_module("proto.config_pb2").EvalRun(
            eval_config={
                "model_specs": model_specs,
                "slicing_specs": [{}, *slices],
                "metrics_specs": [{"metrics": [{"class_name": "ExampleCount"}, *metrics]}],
            },
            version=tfma_module().__version__,
            data_location=", ".join(document.dataset.uri),
            model_locations=dict.fromkeys(names, ", ".join(m.name for m in document.models)),
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


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


def _reason(change: Change) -> str:
    """Return why a slice fails, in a line."""
    delta = change.delta
    if delta is None or delta.value is None:
        return f"{change.metric} is significantly worse"
    interval = "" if delta.lo is None or delta.hi is None else f" [{delta.lo:.4g}, {delta.hi:.4g}]"
    p = "" if change.p_adjusted is None else f", adjusted p {change.p_adjusted:.2g}"
    against = "the baseline" if change.before is not None else "all examples"
    return f"{change.metric} differs from {against} by {delta.value:.4g}{interval}{p}"
