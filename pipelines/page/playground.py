"""One input: what both models say of it, and the slices that it falls in."""

from __future__ import annotations

import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from slicebeam.metrics.errors import SlicebeamError
from slicebeam.pipelines.page.answers import PageRequest, RefusedError, post
from slicebeam.transforms.encode.column import plain_type, python_values
from slicebeam.transforms.encode.conditions import columns_of, members, needs_embeddings, needs_ids
from slicebeam.transforms.encode.models import LoadedModel, load_model, model_features

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.routing import Route

    from slicebeam.pipelines.define.document_data import DocumentData
    from slicebeam.pipelines.page.served import ServedOutput

_LONGEST, _FIELDS, _CLASSES = 200_000, 2_000, 10
_ROLES = (("old", "baseline_model"), ("new", "model"))


class _Row(PageRequest):
    """An example of the data to begin with; any one where none is named."""

    row: Annotated[int | None, Field(ge=0)] = None


class _Input(PageRequest):
    """The values of an input as text; an empty one is missing."""

    values: Annotated[
        dict[str, Annotated[str, Field(max_length=_LONGEST)]], Field(max_length=_FIELDS)
    ]


@dataclass(frozen=True)
class _Called:
    """A model that answers."""

    role: str
    name: str
    columns: tuple[str, ...]
    model: Any


@dataclass
class Playground:
    """Asks the models of the command line, which alone are ever loaded, about one input."""

    served: ServedOutput
    _lock: threading.Lock = field(default_factory=threading.Lock)
    # The models, and the data for which they were loaded.
    _models: tuple[DocumentData, list[_Called]] | None = None

    def example(self, request: _Row) -> dict[str, Any]:
        """Return an example of the data, field by field, and which models answer."""
        with self._lock:
            examples = self._opened()
            models = self._called()
            rows = examples.source.rows
            row = (
                int(np.random.default_rng().integers(rows)) if request.row is None else request.row
            )
            if row >= rows:
                raise RefusedError(f"there is no row {row}; the data has {rows:,} rows", 404)
            columns = self._columns()
            values = examples_row(examples, row, columns)
        return {
            "row": row,
            "fields": [
                {"name": name, "value": values[name], "type": str(plain_type(kind))}
                for name, kind in columns.items()
            ],
            "models": [{"is": one.role, "name": one.name} for one in models],
        }

    def answer(self, request: _Input) -> dict[str, Any]:
        """Return what the models predict for an input, and the slices that it falls in."""
        with self._lock:
            schema, columns = self._opened().source.schema, self._columns()
            for name in request.values:
                if name not in columns:
                    raise RefusedError(f"there is no column {name[:100]!r} to fill", 422)
            cells = [_cell(request.values.get(one.name, ""), one) for one in schema]
            table = pa.table(cells, schema=schema)
            found, unknown = self._slices(table)
            return {
                "models": [_answered(one, table) for one in self._called()],
                "slices": found,
                "unknown": unknown,
            }

    def _opened(self) -> DocumentData:
        return self.served.opened.of(self.served)

    def _columns(self) -> dict[str, pa.DataType]:
        """Return the columns that show an example, and those that the models read, with their types."""
        examples = self._opened()
        read = [name for one in self._called() for name in one.columns]
        schema = examples.source.schema
        kinds = {name: schema.field(name).type for name in dict.fromkeys([*examples.shown, *read])}
        return {name: kind for name, kind in kinds.items() if not pa.types.is_nested(kind)}

    def _called(self) -> list[_Called]:
        """Return the models that the command line names, loaded once."""
        data = self._opened()
        if self._models is None or self._models[0] is not data:
            models = []
            for role, option in _ROLES:
                name = getattr(self.served.config, option)
                if name is not None:
                    model = load_model(name)
                    inputs = self.served.search().provenance.config.get("model_inputs", data.shown)
                    columns = tuple(model_features(model) or inputs)
                    for column in columns:
                        data.source.column_type(column, f"--model {name} reads it")
                    models.append(_Called(role, name, columns, model))
            self._models = data, models
        return self._models[1]

    def _slices(self, table: pa.Table) -> tuple[list[str], int]:
        """Return the ids of the slices that a row falls in, and of how many that is not known."""
        document, found, unknown = self.served.search(), [], 0
        with tempfile.TemporaryDirectory(prefix="slicebeam-") as folder:
            alone: DocumentData | None = None
            for slice_ in document.slices:
                definition = slice_.definition
                try:
                    if needs_ids(definition):
                        # An input of its own is none of those that are listed.
                        unknown += 1
                        continue
                    columns = set(table.column_names)
                    if not needs_embeddings(definition) and columns_of(definition) <= columns:
                        is_in = bool(members(definition, table)[0])
                    else:
                        alone = alone or self._alone(table, Path(folder))
                        is_in = bool(alone.members_of(slice_.definition)[0])
                except SlicebeamError:
                    unknown += 1
                    continue
                if is_in:
                    found.append(slice_.slice_id)
        return found, unknown

    def _alone(self, table: pa.Table, folder: Path) -> DocumentData:
        """Return an input as the only example of a file, for slices that need its embedding."""
        from slicebeam.pipelines.define.document_data import open_data

        document, path = self.served.search(), folder / "input.parquet"
        id_field = document.dataset.id_field
        if id_field is not None:
            at = table.schema.get_field_index(id_field)
            one = pa.array(["0"]).cast(plain_type(table.schema.field(at).type))
            table = table.set_column(at, id_field, one)
        pq.write_table(table, path)
        uri = self.served.latest().uri
        return open_data(uri, document, (str(path),), self.served.config.confirmed)


def examples_row(examples: DocumentData, row: int, columns: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of an example as text; an empty one is missing."""
    table = examples.read(np.array([row]), list(columns))
    values = {name: python_values(table.column(name))[0] for name in columns}
    return {name: "" if one is None else str(one) for name, one in values.items()}


def _cell(text: str, column: pa.Field) -> pa.Array:
    """Return the value that a text stands for in a column."""
    if not text or pa.types.is_nested(column.type):
        return pa.nulls(1, column.type)
    kind = plain_type(column.type)
    try:
        return pa.array([text]).cast(kind).cast(column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RefusedError(f"{column.name}: {text[:100]!r} is no {kind}", 422) from error


def _answered(called: _Called, table: pa.Table) -> dict[str, Any]:
    """Return what a model says of a row, or why it says nothing."""
    said: dict[str, Any] = {"is": called.role, "name": called.name}
    model = LoadedModel(called.model, called.columns, called.name)
    try:
        said["predicted"] = str(model.classes(table)[0].as_py())
        if hasattr(called.model, "predict_proba"):
            classes, shares = model.probabilities(table)
            scores = zip(classes, shares[0].tolist(), strict=True)
            said["scores"] = [(str(one), share) for one, share in scores][:_CLASSES]
    except SlicebeamError as error:
        said["error"] = str(error)
    return said


def routes(served: ServedOutput) -> list[Route]:
    """Return the routes of the playground."""
    playground = Playground(served)
    return [
        post("/playground/example", _Row, playground.example),
        post("/playground/answer", _Input, playground.answer),
    ]
