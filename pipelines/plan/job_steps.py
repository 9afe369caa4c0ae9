"""The steps of a job in words, one per line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.pipeline import PipelineVisitor

if TYPE_CHECKING:
    from collections.abc import Callable

# Composites that a reader knows by name.
_NAMED = (beam.Create, beam.Reshuffle, beam.CombineGlobally)


def steps_of(build: Callable[[Any], Any]) -> tuple[str, ...]:
    """Return the steps of the job that a function puts together: a line each, its kind last."""
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

    pipeline = beam.Pipeline(runner=FnApiRunner())
    build(pipeline)
    seen = _Steps()
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
        if isinstance(transform, beam.ParDo):
            kind += f"({type(transform.fn).__name__.lstrip('_')})"
        self.lines.append(f"{transform_node.full_label}: {kind}")
