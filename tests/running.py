"""Runs searches for the tests and reads what they published."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from slicebeam.pipelines.config import search_config
from slicebeam.pipelines.search import run_search
from slicebeam.pipelines.terminal import Terminal
from tests.oracle import lattice

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd


@dataclass
class Found:
    """What a search published."""

    document: dict[str, Any]
    table: pd.DataFrame
    folder: Path

    @property
    def slices_bytes(self) -> bytes:
        return (self.folder / "slices.parquet").read_bytes()

    def domains(self) -> dict[str, list[dict[str, Any]]]:
        """The singleton predicates of each feature, as the oracle wants them."""
        return {
            domain["name"]: [{"all": [single]} for single in domain["singletons"]]
            for domain in self.document["dataset"]["domains"]
        }

    def names(self) -> dict[str, lattice.Id]:
        """The oracle's name of each singleton, by its JSON."""
        return {
            json.dumps(predicate["all"][0], sort_keys=True): (feature, index)
            for feature, predicates in self.domains().items()
            for index, predicate in enumerate(predicates)
        }

    def conjunctions(self, rows: pd.DataFrame | None = None) -> list[lattice.Slice]:
        """The slice of each row of the table, as the oracle names it."""
        names = self.names()
        return [
            frozenset(names[json.dumps(one, sort_keys=True)] for one in json.loads(text)["all"])
            for text in (self.table if rows is None else rows)["predicate"]
        ]

    def timeless(self) -> dict[str, Any]:
        """The document without what differs between equal runs: times, and how it was run."""
        document = json.loads(json.dumps(self.document))
        del document["created_at"]
        for record in document["search"]["iterations"]:
            for key in ("cpu_seconds", "wall_seconds", "shuffled_bytes"):
                del record[key]
        for key in ("output", "work_dir", "chunk_rows", "runner_config", "memory_budget", "data"):
            document["provenance"]["config"].pop(key, None)
        for key in ("uri", "name"):
            del document["dataset"][key]
        del document["provenance"]["runner"]
        return document


def search(output: Path, *, resume: bool = False, **options: Any) -> Found:
    """Run a search in this process."""
    run_search(
        search_config({"output": str(output), **options}), Terminal(quiet=True), resume=resume
    )
    return read(output)


def read(folder: Path) -> Found:
    """Read what a search published."""
    document = json.loads((folder / "changelist.json").read_text("utf-8"))
    return Found(document, pq.read_table(folder / "slices.parquet").to_pandas(), folder)
