"""Slices that are defined by a predicate: ``define --where``, and what ``edit split`` splits by."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.transforms.encode.column import arrow_type
from slicebeam.transforms.encode.conditions import check_condition
from slicebeam.transforms.encode.definitions import Condition, Predicate, PredicateDefinition
from slicebeam.transforms.encode.predicates import parse_predicate
from slicebeam.transforms.encode.sources import StoredFile, open_parquet
from slicebeam.transforms.storage.files import expand_paths, file_format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from slicebeam.pipelines.changelist.document import SearchChangeList


# What an earlier run says of how its files are read.
_HOW_READ = ("format", "column_names", "skip_rows", "delimiter", "memory_budget", "chunk_rows")


def how_read(document: SearchChangeList) -> dict[str, Any]:
    """Return the options of a document's run that say how its files are read."""
    earlier = document.provenance.config
    return {name: earlier[name] for name in _HOW_READ if name in earlier}


def predicate_definition(text: str, columns: Mapping[str, pa.DataType]) -> PredicateDefinition:
    """Return the definition that a predicate's text gives."""
    try:
        conditions = parse_predicate(text, columns)
        for condition in conditions:
            check_condition(condition, columns[condition.field])
    except InputError as error:
        raise OptionError(f"--where: {error}") from error
    written = tuple(
        Condition(field=condition.field, op=_op(condition.op), value=condition.value)
        for condition in conditions
    )
    return PredicateDefinition(predicate=Predicate(all=written))


def _op(text: str) -> Any:
    # pydantic checks that it is one of the known ones.
    return text


def column_types(
    changelist_uri: str, document: SearchChangeList, data: Sequence[str]
) -> dict[str, pa.DataType]:
    """Return the types of the columns that a predicate may be about.

    Those of the data, and those that discovery added to it, such as ``cluster@25``.
    """
    schema = _schema(changelist_uri, document, expand_paths(data))
    found = {domain.name: arrow_type(domain.data_type) for domain in document.dataset.domains}
    return {**found, **dict(zip(schema.names, schema.types, strict=True))}


def _schema(changelist_uri: str, document: SearchChangeList, files: Sequence[str]) -> pa.Schema:
    earlier = document.provenance.config
    kinds = {file_format(path, earlier.get("format")) for path in files}
    if kinds == {"parquet"} and not earlier.get("query"):
        return open_parquet([StoredFile(path, path) for path in files]).schema
    # What type a column of text is of shows only when all of it was read.
    from slicebeam.pipelines.config.check import check_config
    from slicebeam.pipelines.prepare.source import read_source
    from slicebeam.pipelines.run.engine import start_engine
    from slicebeam.pipelines.run.stage import hidden_run

    with tempfile.TemporaryDirectory(prefix="slicebeam-") as folder:
        options = {
            **how_read(document),
            "data": files,
            "output": folder,
            "changelist": changelist_uri,
        }
        config = check_config(options)
        with (
            start_engine("direct", ()) as engine,
            hidden_run(config, files, engine, Path(folder) / "work") as run,
        ):
            return read_source(config, run).schema
