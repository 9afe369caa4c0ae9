"""The steps of a job in words, one per line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.pipeline import PipelineVisitor
from apache_beam.transforms.core import CallableWrapperDoFn

from slicebeam.runner_configs.unrun_pipeline import unrun_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable

# Composites that a reader knows by name.
_NAMED = (beam.Create, beam.Reshuffle, beam.CombineGlobally)


def steps_of(build: Callable[[Any], Any]) -> tuple[str, ...]:
    """Return the steps of the job that a function puts together: a line each, its kind last."""
    seen = _Steps()
    with unrun_pipeline() as pipeline:
        build(pipeline)
        pipeline.visit(seen)
    return tuple(seen.lines)


class _Steps(PipelineVisitor):
    """Notes the steps of a graph; what Beam itself is made of is one step."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._inside: Any = None

    def enter_composite_transform(self, transform_node: Any) -> None:
        if self._inside is None and isinstance(transform_node.transform, _NAMED):
            self._note(transform_node)
            self._inside = transform_node

    def leave_composite_transform(self, transform_node: Any) -> None:
        if self._inside is transform_node:
            self._inside = None

    def visit_transform(self, transform_node: Any) -> None:
        if self._inside is None:
            self._note(transform_node)

    def _note(self, transform_node: Any) -> None:
        transform = transform_node.transform
        kind = type(transform).__name__
        if isinstance(transform, beam.ParDo) and not isinstance(transform.fn, CallableWrapperDoFn):
            kind += f"({type(transform.fn).__name__.lstrip('_')})"
        self.lines.append(f"{transform_node.full_label}: {kind}")
