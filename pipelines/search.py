"""``slicebeam search``: from files to a published ChangeList."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.covering import cover
from slicebeam.pipelines.document import build
from slicebeam.pipelines.explain import explain
from slicebeam.pipelines.iterations import Iterations
from slicebeam.pipelines.preparation import prepare
from slicebeam.pipelines.results import collect, report_order
from slicebeam.pipelines.slices_table import SliceNames, write_slices
from slicebeam.pipelines.stage import Stage
from slicebeam.pipelines.work_folder import WorkFolder
from slicebeam.transforms.files import expand_paths, local_path, storage_errors, written_together

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.pipelines.changelist import ChangeList
    from slicebeam.pipelines.config import SearchConfig
    from slicebeam.pipelines.runner import Engine
    from slicebeam.pipelines.terminal import Terminal


@dataclass(frozen=True)
class Published:
    """What a run published.

    Attributes
    ----------
    changelist : the document
    changelist_path, slices_path : where it and the table are
    explanation : how the slice that was asked for got its p-value, line by line
    """

    changelist: ChangeList
    changelist_path: Path
    slices_path: Path
    explanation: tuple[str, ...] = ()


def run_search(
    config: SearchConfig,
    engine: Engine,
    terminal: Terminal,
    *,
    resume: bool = False,
    asked: str | None = None,
) -> Published:
    """Search the slices and publish what was found.

    Raises
    ------
    InputError
        The options or the data are wrong.
    EngineError
        The engine or the storage failed; what is finished stays in the work folder.
    """
    files = expand_paths(config.data)
    output = local_path(config.output, "--output")
    if output.is_file():
        raise InputError(f"--output {output} is a file; name a folder")
    with storage_errors(output, "make the output folder"):
        output.mkdir(parents=True, exist_ok=True)
    folder = local_path(config.work_dir, "--work-dir") if config.work_dir else output / "_work"
    if folder.resolve() == output.resolve():
        raise InputError(f"--work-dir {folder} is the output; name another folder, or leave it out")
    work = WorkFolder(folder)
    work.begin(config, files, resume=resume)
    engine.log_to(work.path / "workers.log")
    with resumable(work):
        prepared = prepare(config, files, work, engine, terminal.stage)
        terminal.prepared(prepared)
        iterations = Iterations(config, prepared, work, engine, terminal.progress)
        searched = iterations.search()
        terminal.stage(Stage("describing what was found"))
        results = collect(config, prepared, searched, iterations, work, engine)
        names = SliceNames(prepared.lattice, prepared.domains)
        order = report_order(results, config)
        paths = output / "slices.parquet", output / "changelist.json"
        # Both are complete before either appears, and the document names its table's hash.
        with written_together(*paths) as (table, document):
            with ThreadPoolExecutor(1) as aside:
                # The engine has examples to count, the table none to wait for.
                writing = aside.submit(write_slices, table, results, names, prepared.rows)
                chosen = cover(config, prepared, results, order, work, engine)
                writing.result()
            changelist = build(
                config,
                prepared,
                searched,
                results,
                names,
                order,
                chosen,
                engine.name,
                _sha256(table),
            )
            document.write(changelist.to_json().encode("utf-8"))
    work.remove()
    explanation: tuple[str, ...] = ()
    if asked is not None:
        explanation = explain(asked, config, prepared, searched, results, names)
    return Published(changelist, paths[1], paths[0], explanation)


def _sha256(stream: IO[bytes]) -> str:
    digest = hashlib.sha256()
    stream.seek(0)
    while block := stream.read(1 << 20):
        digest.update(block)
    return f"sha256:{digest.hexdigest()}"


@contextmanager
def resumable(work: WorkFolder) -> Iterator[None]:
    """Say in an error of engine or storage where a run goes on from."""
    try:
        yield
    except EngineError as error:
        message = (
            f"{error}\nwhat is finished is in {work.path}; go on with the same command and --resume"
        )
        raise EngineError(message) from error
    except MemoryError as error:
        raise EngineError(
            f"out of memory; lower --memory-budget, --top-values or --max-cross-size\n"
            f"what is finished is in {work.path}; go on with the same command and --resume"
        ) from error
