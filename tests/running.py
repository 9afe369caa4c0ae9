"""Runs searches for the tests and reads what they published."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from slicebeam.metrics.counting.counting import Tables
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.run.engine import Engine, runner_config
from slicebeam.pipelines.search.search import run_search
from slicebeam.pipelines.show.terminal import Terminal
from slicebeam.transforms.storage.publish import well_known
from tests.oracles import predicates


@dataclass
class Found:
    document: dict[str, Any]
    table: Any
    folder: Path

    @property
    def slices_bytes(self):
        return (self.folder / "slices.parquet").read_bytes()

    def domains(self):
        """The singleton predicates of each feature, as the oracle wants them."""
        return {
            domain["name"]: [{"all": [single]} for single in domain["singletons"]]
            for domain in self.document["dataset"]["domains"]
        }

    def names(self):
        """The oracle's name of each singleton, by its JSON."""
        flat = [(name, at, one) for name, of in self.domains().items() for at, one in enumerate(of)]
        return {json.dumps(one["all"][0], sort_keys=True): (name, at) for name, at, one in flat}

    def conjunctions(self, rows=None):
        """The slice of each row of the table, as the oracle names it."""
        names = self.names()
        return [
            frozenset(names[json.dumps(one, sort_keys=True)] for one in json.loads(text)["all"])
            for text in (self.table if rows is None else rows)["predicate"]
        ]

    def timeless(self):
        document = json.loads(json.dumps(self.document))
        del document["created_at"]
        # The names depend on what was replaced; what stands under them does not.
        document.pop("replaced_files", None)
        for file in document.get("files", {}).values():
            del file["name"]
        for record in document["search"]["iterations"]:
            for key in ("cpu_seconds", "wall_seconds", "shuffled_bytes"):
                del record[key]
        for key in ("output", "work_dir", "chunk_rows", "runner_config", "memory_budget", "data"):
            document["provenance"]["config"].pop(key, None)
        for key in ("uri", "name"):
            del document["dataset"][key]
        # The times of the data are in it.
        del document["provenance"]["runner"], document["provenance"]["run"]
        return document


class Killed(BaseException):
    """The process is gone: nothing that the product knows of."""


def as_options(options):
    """Options as the command line has them: a single file stands for a list, and paths are text."""
    files = options["data"] if isinstance(options["data"], (tuple, list)) else (options["data"],)
    texts = {name: str(one) for name, one in options.items() if isinstance(one, Path)}
    return {**options, **texts, "data": tuple(map(str, files))}


def search(output, *, resume=False, **options):
    config = search_config(as_options({"output": output, **options}))
    with Engine(runner_config(config.runner_config, config.runner_option, config.beam)) as engine:
        run_search(config, engine, Terminal(quiet=True), resume=resume)
    return read(output)


def search_noting_ids(output, rows, **options):
    ids, add = np.zeros(rows, np.uint64), Tables.add

    def noting(tables, block):
        ids[block.positions.astype(np.int64)] = block.ids
        return add(tables, block)

    with mock.patch.object(Tables, "add", noting):
        found = search(output, **options)
    assert np.unique(ids).size == rows
    return found, ids


def importable(monkeypatch, folder, name, text, *others):
    """Write a module that a test imports; afterwards it and others are as if never imported."""
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    for one in (name, *others):
        monkeypatch.setitem(sys.modules, one, None)
        monkeypatch.delitem(sys.modules, one)


def small_search(folder, wrong=(3,), **columns):
    """Search 400 examples, ``data.parquet``, of which those of some x are wrong."""
    frame = pd.DataFrame({"x": [one % 7 for one in range(400)], "y": [0, 1] * 200, **columns})
    frame["p"] = frame.y.where(~frame.x.isin(wrong), 1 - frame.y)
    frame.to_parquet(folder / "data.parquet")
    options = ["--data", str(folder / "data.parquet"), "--label", "y", "--prediction", "p"]
    assert run(["search", *options, "--quiet", "--output", str(folder / "out")]) == 0
    return folder


def read(folder):
    document = json.loads((folder / "changelist.json").read_text("utf-8"))
    return Found(document, pq.read_table(folder / "slices.parquet").to_pandas(), folder)


def all_published(output):
    """All that is in an output, of which the document is without its times and its place.

    The files are under their well-known names alone: names of their own depend on the document that a run
    replaced, as one that was killed after it had published replaces its own.
    """
    files = {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()}
    files |= {path.name: None for path in output.iterdir() if path.is_dir()}
    document = json.loads(files.pop("changelist.json"))
    for file in document.get("files", {}).values():
        assert files.pop(file["name"]) == files[well_known(file.pop("name"))]
    # A hash of the document covers its times.
    del document["created_at"], document["provenance"]["run"]["content"]
    document["provenance"]["config"].pop("output", None)
    for record in document.get("search", {}).get("iterations", ()):
        for name in ("cpu_seconds", "wall_seconds", "shuffled_bytes"):
            del record[name]
    return {**files, "changelist.json": document}


def names_of(document):
    own = [file["name"] for file in document["files"].values()]
    return sorted(["changelist.json", *own, *map(well_known, own)])


def own_file(folder, name):
    document = json.loads((folder / "changelist.json").read_text("utf-8"))
    return folder / str(document["files"][name.partition(".")[0]]["name"])


def rows_of(found, frame):
    """Each row of the table with the examples of its slice."""
    known = {}
    for row in found.table.itertuples():
        held = np.ones(len(frame), bool)
        for condition in json.loads(row.predicate)["all"]:
            key = json.dumps(condition)
            if key not in known:
                known[key] = predicates.mask(frame, {"all": [condition]})
            held &= known[key]
        yield row, held


def check_within_errors(found, frame, of):
    """Hold values of metrics, `of` rows, to be exact where significant and else within their errors; count the exact."""
    exact, whole = 0, {name: metric(frame) for name, metric in of.items()}
    for row, held in rows_of(found, frame):
        for value, error, some in (
            (row.value, row.value_error, frame[held]),
            (row.complement, row.complement_error, frame[~held]),
        ):
            expected = of[row.metric](some)
            assert np.isnan([value, error]).all() == np.isnan(expected), row.slice
            if not np.isnan(expected):
                assert abs(value - expected) <= error + 1e-12, row.slice
        # The complement of an average precision stays as it was counted first.
        errors = row.value_error, row.complement_error if row.metric == "auc" else 0.0
        assert not (row.significant and np.nansum(errors)), row.slice
        assert abs(row.reference - whole[row.metric]) <= 1e-12
        exact += row.value_error == 0
    return exact


def refused(arguments, capsys, *, folder, code=2):
    """Run the command, which must fail in a line or two; in what it says the folder is ``DIR``."""
    found, printed = run(arguments), capsys.readouterr()
    assert found == code, printed.err
    assert printed.out == ""
    assert "Traceback" not in printed.err
    lines = [line for line in printed.err.splitlines() if not line.startswith("[")]
    assert 1 <= len(lines) <= 2, printed.err
    assert lines[0].startswith("slicebeam: ")
    return "\n".join(lines).removeprefix("slicebeam: ").replace(str(folder), "DIR")
