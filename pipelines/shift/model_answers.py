"""Answers of a model through Beam's RunInference: a file, or the user's own handler."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.ml.inference.base import (
    KeyedModelHandler,
    ModelHandler,
    PredictionResult,
    RunInference,
)

from slicebeam.metrics.errors import OptionError
from slicebeam.metrics.imported import imported, one_line
from slicebeam.pipelines.paid_api.calls import Answer
from slicebeam.transforms.encode.models import LoadedModel, load_model, model_features
from slicebeam.transforms.storage.publish import sha256_of
from slicebeam.transforms.storage.storage import matching, open_input, remove_folder, storage_path
from slicebeam.transforms.storage.work_files import DamagedFileError, read_facts, write_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from slicebeam.pipelines.paid_api.calls import Item
    from slicebeam.pipelines.paid_api.ledger import Ledger
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.storage.storage import StoragePath

# Answers that are kept in one file: as many are lost at most where a worker is killed, besides those
# that the model is computing.
_TOGETHER = 64
_ANSWERS = "answers"
# How the name of the file ends that says which job is running.
_ASKED = ".asked"


@dataclass(frozen=True)
class AnsweringModel:
    """The model, and the columns that it reads, empty for all; ``content`` is the hash of its file, if any."""

    name: str
    columns: tuple[str, ...]
    handler: Callable[[], Any]
    content: str | None = None


class _FileHandler(ModelHandler):
    """Runs a scikit-learn model on dictionaries of columns."""

    def __init__(self, path: str, columns: Sequence[str]) -> None:
        super().__init__()
        self.path, self.columns = path, list(columns)

    def load_model(self) -> Any:
        return load_model(self.path)

    def run_inference(
        self,
        batch: Sequence[dict[str, Any]],
        model: Any,
        inference_args: dict[str, Any] | None = None,  # noqa: ARG002  (Beam passes it)
    ) -> Iterable[PredictionResult]:
        import pyarrow as pa

        table = pa.Table.from_pylist(list(batch))
        predicted = LoadedModel(model, self.columns, self.path).classes(table).to_pylist()
        for row, value in zip(batch, predicted, strict=True):
            yield PredictionResult(row, value)


def open_model(name: str, features: Sequence[str], columns: Sequence[str]) -> AnsweringModel:
    """Return the model that ``--model`` names: a scikit-learn file, or ``module:factory`` of a handler of Beam's."""
    _, colon, factory = name.partition(":")
    if colon and "://" not in name:
        handler = _factory(name, factory)
        read = tuple(features)
        made: Callable[[], Any] = handler
        content = None
    else:
        read = tuple(model_features(load_model(name)) or features)
        if not read:
            raise OptionError(
                f"--model {name} does not say which columns it reads; name them with --features"
            )
        made = _FileModel(name, read)
        with open_input(storage_path(name, "--model")) as stream:
            content = f"sha256:{sha256_of(stream)}"
    for column in read:
        if column not in columns:
            raise OptionError(
                f"--model {name} reads column {column!r}, which the data does not have"
            )
    return AnsweringModel(name, read, made, content)


@dataclass(frozen=True)
class _FileModel:
    path: str
    columns: tuple[str, ...]

    def __call__(self) -> Any:
        return _FileHandler(self.path, self.columns)


def _factory(name: str, factory: str) -> Callable[[], Any]:
    found = imported(name, "--model")
    if not callable(found):
        raise OptionError(
            f"--model {name}: {factory} is not a function that returns a model handler"
        )
    try:
        handler = found()
    except Exception as error:
        raise OptionError(f"--model {name}: {factory}() failed: {one_line(error)}") from error
    if not isinstance(handler, ModelHandler):
        raise OptionError(
            f"--model {name}: {factory}() returns a {type(handler).__name__}, not a ModelHandler of "
            "apache_beam.ml.inference"
        )
    return found


@dataclass
class ModelCalls:
    """Asks a model for batches of items, one job each; the work folder keeps answers until the ledger has them."""

    model: AnsweringModel
    ledger: Ledger
    work: WorkFolder
    engine: Engine
    on_answer: Callable[[], None]
    identity: Mapping[str, str]

    def buy(self, items: Sequence[Item], most_calls: int | None) -> None:  # noqa: ARG002
        """Note the answers of items that the ledger has none of.

        What a job has answered stays in the work folder until the ledger has it, so that one which is
        killed loses little.
        """
        folder = self.work.kept_folder(_ANSWERS)
        note = folder / f"{self._prefix}{_ASKED}"
        # What a job of an earlier process is still computing is not computed twice.
        if (job := _job_in(note)) is not None:
            self.engine.attach(job)
        self._collect(folder, items)
        missing = [item for item in items if item.key not in self.ledger.answers]
        if missing:
            keys = json.dumps([item.key for item in missing])
            job = f"{_ANSWERS}-{hashlib.sha256(keys.encode()).hexdigest()[:8]}"
            write_facts(note, {"job": job})
            self.ledger.sent_all([item.key for item in missing])
            elements = [(item.key, dict(item.fields)) for item in missing]
            handler = KeyedModelHandler(self.model.handler())
            self.engine.run(
                lambda pipeline: (
                    pipeline
                    | "Items" >> beam.Create(elements)
                    | "Spread" >> beam.Reshuffle()
                    | "Ask" >> RunInference(handler)
                    | "Batch" >> beam.BatchElements(min_batch_size=1, max_batch_size=_TOGETHER)
                    | "Keep" >> beam.ParDo(_Keep(folder, self._prefix))
                ),
                job,
            )
            self._collect(folder, missing)
        remove_folder(folder)

    @property
    def _prefix(self) -> str:
        """What the files begin with: the folder may have those of another model or of other data."""
        identity = json.dumps(dict(self.identity), sort_keys=True)
        return hashlib.sha256(identity.encode()).hexdigest()[:12]

    def _collect(self, folder: StoragePath, items: Sequence[Item]) -> None:
        wanted = {item.key for item in items} - set(self.ledger.answers)
        found: dict[str, Any] = {}
        for path in matching(folder, f"{self._prefix}-*.json"):
            found |= {key: value for key, value in read_facts(path).items() if key in wanted}
        answers = [
            Answer(key, value, None if value is not None else "no prediction")
            for key, value in found.items()
        ]
        if answers:
            self.ledger.answered_all(answers)
        for _ in answers:
            self.on_answer()


def _job_in(note: StoragePath) -> str | None:
    """Return the job that was sent last; None if none was, or no readable file names it."""
    try:
        job: str = read_facts(note)["job"]
    except (FileNotFoundError, DamagedFileError):
        return None
    return job


class _Keep(beam.DoFn):
    """Writes the predictions of a batch to a file named by its content."""

    def __init__(self, folder: StoragePath, prefix: str) -> None:
        self.folder, self.prefix = folder, prefix

    def process(self, batch: Sequence[tuple[str, Any]]) -> Iterator[int]:
        facts = {key: _scalar(result) for key, result in batch}
        name = hashlib.sha256(json.dumps(sorted(facts)).encode()).hexdigest()[:24]
        write_facts(self.folder / f"{self.prefix}-{name}.json", facts)
        yield len(facts)


def _scalar(result: Any) -> Any:
    """Return a prediction as JSON has it; None if it is not a single value, or no finite one."""
    value = result.inference if isinstance(result, PredictionResult) else result
    value = getattr(value, "item", lambda: value)() if getattr(value, "size", 1) == 1 else None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, bool, int, float)) else None
