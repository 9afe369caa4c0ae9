"""A job as data: its elements, and what is done with each of them."""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import apache_beam as beam
from apache_beam.internal import pickler
from apache_beam.metrics.execution import MetricsContainer
from apache_beam.pipeline import PipelineVisitor, PTransformOverride
from apache_beam.runners.worker.statesampler import (
    StateSampler,
    get_current_tracker,
    set_current_tracker,
)
from apache_beam.transforms.core import (
    CombineValuesDoFn,
    Create,
    DoFn,
    GroupByKey,
    ParDo,
    _DoFnParam,
)
from apache_beam.transforms.environments import EmbeddedPythonEnvironment
from apache_beam.utils.counters import CounterFactory

if TYPE_CHECKING:
    from collections.abc import Iterator

    Part = Literal["steps", "grouped"]

# A function with one of these is more than what it does with an element.
_BUNDLES = ("setup", "start_bundle", "finish_bundle", "teardown")


@dataclass(frozen=True)
class LocalJob:
    """The elements of a job, and packed functions: of an element, and perhaps of a key with its values."""

    elements: tuple[Any, ...]
    steps: bytes
    is_grouped: bool


def work_of(pipeline: beam.Pipeline) -> LocalJob | None:
    """Return the work of a job, None where it is of another form."""
    seen = _Seen(pipeline)
    if seen.elements is None or seen.runs_bundles or seen.is_other:
        return None
    steps, *grouped = seen.steps
    return LocalJob(seen.elements, pickler.dumps((steps, *grouped)), bool(grouped))


def shares_of(pipeline: beam.Pipeline, count: int) -> LocalJob | None:
    """Return a job whose elements are shares of a job's; None if its elements depend on each other."""
    seen = _Seen(pipeline)
    if seen.elements is None or seen.is_other or len(seen.steps) > 1:
        return None
    shares = []
    for start in range(min(count, len(seen.elements))):
        pipeline.replace_all([_Share(seen.elements[start::count])])
        proto = pipeline.to_runner_api(default_environment=EmbeddedPythonEnvironment.default())
        shares.append(proto.SerializeToString())
    return LocalJob(tuple(shares), pickler.dumps(([_RunShare()],)), is_grouped=False)


class _RunShare(DoFn):
    """Runs a share of a job as Beam describes it, in the process that it comes to."""

    def process(self, element: bytes) -> None:
        from apache_beam.options.pipeline_options import PipelineOptions
        from apache_beam.portability.api import beam_runner_api_pb2
        from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

        job = beam_runner_api_pb2.Pipeline.FromString(element)
        FnApiRunner().run_via_runner_api(job, PipelineOptions([])).wait_until_finish()


class _Share(PTransformOverride):
    """Cuts the elements of a job."""

    def __init__(self, elements: tuple[Any, ...]) -> None:
        self.elements = elements

    def matches(self, applied_ptransform: Any) -> bool:
        return isinstance(applied_ptransform.transform, Create)

    def get_replacement_transform_for_applied_ptransform(self, applied_ptransform: Any) -> Any:
        return Create(self.elements).with_output_types(
            applied_ptransform.transform.get_output_type()
        )


class _Seen(PipelineVisitor):
    """The elements and steps of a job, in the order of its graph."""

    def __init__(self, pipeline: beam.Pipeline) -> None:
        self.elements: tuple[Any, ...] | None = None
        self.steps: list[list[DoFn]] = [[]]
        self.runs_bundles = self.is_other = False
        self._inside: Any = None
        pipeline.visit(self)

    def enter_composite_transform(self, transform_node: Any) -> None:
        transform = transform_node.transform
        if self._inside is not None:
            return
        if isinstance(transform, Create):
            self.is_other |= self.elements is not None
            self.elements = tuple(transform.values)
            self._inside = transform_node
        elif isinstance(transform, beam.Reshuffle):
            self._inside = transform_node

    def leave_composite_transform(self, transform_node: Any) -> None:
        if transform_node is self._inside:
            self._inside = None

    def visit_transform(self, transform_node: Any) -> None:
        transform = transform_node.transform
        if self._inside is not None:
            return
        if isinstance(transform, ParDo) and isinstance(transform.fn, CombineValuesDoFn):
            self.steps[-1].append(_Combine(transform.fn.combinefn))
        elif isinstance(transform, ParDo) and not transform_node.side_inputs:
            self.runs_bundles |= not _is_plain(transform)
            self.steps[-1].append(transform.fn)
        elif isinstance(transform, GroupByKey) and len(self.steps) == 1:
            self.steps.append([])
        else:
            self.is_other = True


class _Combine(DoFn):
    """Combines the values of a key as they come; Beam's own function would list them first."""

    def __init__(self, function: beam.CombineFn) -> None:
        self.function = function

    def process(self, element: tuple[Any, Any]) -> Iterator[tuple[Any, Any]]:
        key, values = element
        yield key, self.function.apply(values)


def _is_plain(transform: ParDo) -> bool:
    """Return whether a step is what its function does with an element."""
    function = transform.fn
    overrides = [
        name for name in _BUNDLES if getattr(type(function), name) is not getattr(DoFn, name)
    ]
    _, defaults = function.get_function_arguments("process")
    asks = any(isinstance(default, _DoFnParam) for default in defaults)
    return not (overrides or asks or transform.args or transform.kwargs)


def run_here(job: LocalJob) -> Counter[str]:
    """Do a job in this process, without all that Beam's runner sets up, and return its counts."""
    counts: Counter[str] = Counter()
    steps = pickler.loads(job.steps)
    by_key: dict[Any, list[bytes]] = defaultdict(list)
    with counted(counts):
        for element in job.elements:
            for key, value in outputs_of(steps, "steps", element):
                by_key[key].append(value)
        for key in list(by_key):
            outputs_of(steps, "grouped", (key, by_key.pop(key)))
    return counts


@contextmanager
def counted(counts: Counter[str]) -> Iterator[None]:
    """Add what Beam's counters count meanwhile, by name."""
    counters = MetricsContainer("worker")
    sampler = StateSampler("worker", CounterFactory())
    before = get_current_tracker()
    set_current_tracker(sampler)
    try:
        with sampler.scoped_state("worker", "process", metrics_container=counters):
            yield
    finally:
        set_current_tracker(before)
    for key, value in counters.get_cumulative().counters.items():
        counts[key.metric.name] += value


def outputs_of(steps: tuple[list[DoFn], ...], part: Part, element: Any) -> list[Any]:
    """Return what is to be grouped, with packed values; all other output is files."""
    if part == "grouped":
        key, values = element
        element = key, map(pickle.loads, values)
    outputs = _apply(steps[part == "grouped"], element)
    if part == "grouped" or len(steps) == 1:
        for _ in outputs:
            continue
        return []
    return [(key, pickle.dumps(value, pickle.HIGHEST_PROTOCOL)) for key, value in outputs]


def _apply(steps: list[DoFn], element: Any) -> Iterator[Any]:
    """Yield the output of the steps for an element."""
    if not steps:
        yield element
        return
    for output in steps[0].process(element) or ():
        yield from _apply(steps[1:], output)
