"""FindSlices: the search as a transform in a pipeline of its user's, on the same stages as the command.

What a step needs of all examples (the schema, the domains, the plan) is made by one worker with the
driver's functions, from the work folder, and reaches the others as a side input. The last step is the
driver itself, which continues a run of which these stages are finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow.parquet as pq
from apache_beam.pvalue import AsList, AsSingleton

from slicebeam.metrics.counting.counting_plan import plan_all
from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.pipelines.changelist.reading import CHANGELIST
from slicebeam.pipelines.commands.python_runs import opened_slices, typed_options
from slicebeam.pipelines.config.search import STRATEGIES_OF, SearchConfig, search_config
from slicebeam.pipelines.prepare.encoded_dataset import (
    Examples,
    encode,
    encoding_of,
    prepare,
    read_examples,
)
from slicebeam.pipelines.prepare.features import learn, learning
from slicebeam.pipelines.run.engine import Engine, runner_config
from slicebeam.pipelines.run.open_run import paths_of
from slicebeam.pipelines.run.stage import SilentObserver, Workspace
from slicebeam.pipelines.run.work_folder import WorkFolder
from slicebeam.pipelines.search.counter import Planned, SliceCounter
from slicebeam.pipelines.search.search import Steps, compared, run_steps
from slicebeam.transforms.count.search_graph import CountAndTest, EncodeExamples
from slicebeam.transforms.encode.domains import LeftOutColumn
from slicebeam.transforms.encode.extract_slice_keys import Encoding
from slicebeam.transforms.encode.write_examples import WriteExamples
from slicebeam.transforms.storage.parts import write_part
from slicebeam.transforms.storage.publish import version_of
from slicebeam.transforms.storage.storage import beneath, storage_path

_EXAMPLES = "examples"
_REFUSED = {
    **dict.fromkeys(
        ("data", "format", "column_names", "skip_rows", "delimiter"),
        "the examples are the PCollection",
    ),
    "confirm": "the examples of a PCollection have no order; search the files in output/examples",
    **dict.fromkeys(("runner_config", "runner_option", "beam"), "the pipeline has its own runner"),
    **dict.fromkeys(("model", "baseline_model"), "put RunInference before it, and name the column"),
    **dict.fromkeys(
        ("strategy", *STRATEGIES_OF),
        "it visits every conjunction; choose max_cross_size or features",
    ),
}


class FindSlices(beam.PTransform):
    """Find the slices where a model is worse: PCollection of examples -> PCollection of tested slices.

    Examples are dicts, schema rows or Arrow tables, from any source. The result is byte for byte the one
    of ``slicebeam search`` on the same examples, in any order. ``since`` compares the published slices of the
    earlier run, as ``--compare overall`` does.

    Parameters
    ----------
    output : folder that all workers see, for ``changelist.json``, ``slices.parquet`` and the examples,
        which are written as Parquet in ``examples/`` and stay there, since the document refers to them
    options : keywords of `slicebeam.pipelines.commands.api.search`, such as ``label``, ``prediction``, ``metric``;
        without those of files, models, engines and strategies

    Returns
    -------
    PCollection of dict
        A row of ``slices.parquet`` for each slice that was tested, once the document is written.

    Raises
    ------
    OptionError
        An option is wrong; while the pipeline is put together. Errors in the data fail the pipeline.
    """

    def __init__(self, *, output: str, **options: Any) -> None:
        super().__init__()
        for name, remedy in _REFUSED.items():
            if options.get(name) is not None:
                raise OptionError(f"FindSlices takes no {name}: {remedy}")
        # The names of files are known later.
        chosen = {"output": output, "strategy": "batch", **options}
        self.config = search_config({"data": (), **typed_options(SearchConfig, chosen)})

    def expand(self, rows: beam.PCollection[Any]) -> beam.PCollection[dict[str, Any]]:
        """Wire the transform."""
        folder = beneath(storage_path(self.config.output, "output"), _EXAMPLES)
        files = rows | "Write examples" >> WriteExamples(folder)
        begun = (
            rows.pipeline
            | "Begin" >> beam.Create([self.config])
            | "Read schema" >> beam.Map(_begun, AsList(files))
        )
        domains = (
            begun
            | "Column groups" >> beam.FlatMap(_column_groups)
            | "Spread columns" >> beam.Reshuffle()
            | "Learn domains" >> beam.Map(lambda parts: write_part(*parts))
        )
        encoded = begun | "Plan shards" >> beam.Map(_encoded, AsList(domains))
        encoding = encoded | "Encoding" >> beam.Map(lambda plan: plan.encoding)
        shards = (
            encoded
            | "Splits" >> beam.FlatMap(lambda plan: plan.encoding.source.splits)
            | "Spread splits" >> beam.Reshuffle()
            | "Encode" >> EncodeExamples(AsSingleton(encoding))
        )
        planned = encoded | "Plan" >> beam.Map(_planned, AsList(shards))
        blocks = (
            planned
            | "Blocks" >> beam.FlatMap(lambda plan: plan.items)
            | "Spread blocks" >> beam.Reshuffle()
            | "Search"
            >> CountAndTest(AsSingleton(planned | "Settings" >> beam.Map(lambda plan: plan.config)))
        )
        return (
            begun
            | "Publish" >> beam.FlatMap(_published, AsList(blocks))
            | "Spread slices" >> beam.Reshuffle()
        )


class _Begun(NamedTuple):
    config: SearchConfig
    examples: Examples


class _Encoded(NamedTuple):
    config: SearchConfig
    encoding: Encoding
    lattice: Lattice
    left_out: tuple[LeftOutColumn, ...]


def _engine() -> Engine:
    return Engine(runner_config("direct", ()), "a pipeline")


def _work(config: SearchConfig) -> WorkFolder:
    """Return the work folder, which only the last step keeps others out of."""
    return WorkFolder(paths_of(config)[2])


@contextmanager
def _continued(work: WorkFolder, files: Sequence[str] = ()) -> Iterator[Workspace]:
    with _engine() as engine:
        yield Workspace(work, engine, SilentObserver(), files)


def _begun(config: SearchConfig, files: Sequence[str]) -> _Begun:
    """Begin the run, and read what the files say of themselves."""
    if not files:
        raise InputError("there are no examples in the PCollection")
    config = config.model_copy(update={"data": tuple(sorted(files))})
    config, _ = compared(config, is_published=True)
    paths, output, folder = paths_of(config)
    work, replaced = WorkFolder(folder), version_of(output / CHANGELIST)
    try:
        # Who tries again finds what it has begun.
        work.begin(config, paths, resume=True, replaces=replaced)
    except InputError:
        work.begin(config, paths, resume=False, replaces=replaced)
    with work, _continued(work, paths) as run:
        return _Begun(config, read_examples(config, run))


def _column_groups(begun: _Begun) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of `write_part` for each group of columns."""
    config, examples = begun
    transform = learning(config, examples.source, examples.features, _work(config)).transform
    for element in enumerate(transform.items):
        yield transform.function, transform.folder, False, element


def _encoded(begun: _Begun, _: Sequence[int]) -> _Encoded:
    config, examples = begun
    work, source, features = _work(config), examples.source, examples.features
    parts = len(learning(config, source, features, work).transform.items)
    work.finish("domains", {"parts": parts})
    with _continued(work) as run:
        learned = learn(config, source, features, run)
    return _Encoded(config, *encoding_of(config, examples, learned, work))


def _planned(encoded: _Encoded, _: Sequence[int]) -> Planned:
    """Return the plan of the counting, once the shards are written."""
    config, encoding, lattice, left_out = encoded
    work = _work(config)
    work.finish("shards", {})
    with _continued(work) as run:
        prepared = encode(config, encoding, lattice, left_out, run)
        counter = SliceCounter(config, prepared)
        return counter.planned("iteration-1", plan_all(lattice, counter.budget))


def _published(begun: _Begun, _: Sequence[int]) -> Iterator[dict[str, Any]]:
    with _engine() as engine:
        config, earlier = compared(begun.config, is_published=True)
        steps = Steps(prepare)
        published = run_steps(config, steps, engine, SilentObserver(), earlier, resume=True)
    with opened_slices(published) as stream:
        for batch in pq.ParquetFile(stream).iter_batches():
            yield from batch.to_pylist()
