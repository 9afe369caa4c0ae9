"""A job as work that can be handed out: its elements, and what is done with each of them.

The jobs of a run are alike: elements that the driver knows, steps that are done with each of them,
and perhaps a second lot of steps with the values of each key. Separated like this, the work of a
job can run inside another job, whose graph was built before the elements were known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.internal import pickler
from apache_beam.pipeline import PipelineVisitor

from slicebeam.runner_configs.unrun_pipeline import unrun_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# Work of so many stages is kept unpacked in a worker.
_UNPACKED = 4


@dataclass(frozen=True)
class JobWork:
    """The work of a job.

    Attributes
    ----------
    grouped_steps : of each key with the values that the steps made; empty where nothing is grouped
    """

    elements: tuple[Any, ...]
    steps: tuple[beam.DoFn, ...]
    grouped_steps: tuple[beam.DoFn, ...] = ()

    def packed(self) -> bytes:
        """Return the steps as bytes, for workers."""
        packed: bytes = pickler.dumps((self.steps, self.grouped_steps))
        return packed


@lru_cache(maxsize=_UNPACKED)
def unpacked(steps: bytes) -> tuple[tuple[beam.DoFn, ...], tuple[beam.DoFn, ...]]:
    """Return the steps, and those after grouping."""
    both: tuple[tuple[beam.DoFn, ...], tuple[beam.DoFn, ...]] = pickler.loads(steps)
    return both


def work_of(build: Callable[[Any], Any]) -> JobWork:
    """Return the work of the job that a function puts together, which is not run.

    Raises
    ------
    TypeError
        The job is of another form: ours are not, unless they run models.
    """
    seen = _Seen()
    with unrun_pipeline() as pipeline:
        build(pipeline)
        pipeline.visit(seen)
    if seen.elements is None:
        raise TypeError("a job that begins with no elements")
    grouped = tuple(seen.steps[1]) if len(seen.steps) > 1 else ()
    return JobWork(seen.elements, tuple(seen.steps[0]), grouped)


class _Seen(PipelineVisitor):
    """Notes elements and steps in the order of the graph."""

    def __init__(self) -> None:
        self.elements: tuple[Any, ...] | None = None
        self.steps: list[list[beam.DoFn]] = [[]]
        self._inside = False

    def enter_composite_transform(self, transform_node: Any) -> None:
        if isinstance(transform_node.transform, beam.Create):
            if self.elements is not None:
                raise TypeError("a job that begins with elements of two kinds")
            self.elements = tuple(transform_node.transform.values)
            self._inside = True

    def leave_composite_transform(self, transform_node: Any) -> None:
        if isinstance(transform_node.transform, beam.Create):
            self._inside = False

    def visit_transform(self, transform_node: Any) -> None:
        transform = transform_node.transform
        if self._inside:
            return
        if isinstance(transform, beam.ParDo) and not transform_node.side_inputs:
            self.steps[-1].append(transform.fn)
        elif isinstance(transform, beam.GroupByKey) and len(self.steps) == 1:
            self.steps.append([])
        else:
            raise TypeError(f"step {transform_node.full_label} can't be handed out")


def done_with(element: Any, steps: tuple[beam.DoFn, ...]) -> Iterator[Any]:
    """Yield the output of the steps for an element."""
    if not steps:
        yield element
        return
    made: Iterable[Any] = steps[0].process(element) or ()
    for one in made:
        yield from done_with(one, steps[1:])


class DoSteps(beam.DoFn):
    """Does with an element what the steps of a stage are: -> (key, value), where they are grouped."""

    def process(self, element: Any, steps: bytes) -> Iterator[Any]:
        """Do them."""
        each, grouped = unpacked(steps)
        for made in done_with(element, each):
            if grouped:
                yield made


class DoGroupedSteps(beam.DoFn):
    """Does with the values of a key what the steps of a stage are: -> only files."""

    def process(self, element: Any, steps: bytes) -> Iterator[int]:
        """Do them."""
        _, grouped = unpacked(steps)
        for _ in done_with(element, grouped):
            yield 1
