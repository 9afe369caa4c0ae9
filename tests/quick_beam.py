"""Lets Beam find out once what it would find out again for each job that the tests run."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate

if TYPE_CHECKING:
    from collections.abc import Callable

_specs_of, _view_of = userstate.get_dofn_specs, PipelineOptions.view_as


def remember_answers(put: Callable[[object, str, Any], None]) -> None:
    """Let Beam keep the states and timers of each class of DoFn, and the views of each job's options.

    Beam reads the signature of every method of a DoFn thirty times a job, and makes a parser of command
    lines for each of sixty looks at its options: a third of what a small job takes.

    ``put`` is `setattr`, or one that undoes it.
    """
    put(userstate, "get_dofn_specs", _Specs().of)
    put(PipelineOptions, "view_as", _view)


class _Specs:
    def __init__(self) -> None:
        self.known: dict[type, tuple[set[Any], set[Any]]] = {}

    def of(self, dofn: Any) -> tuple[set[Any], set[Any]]:
        if any(isinstance(value, MethodType) for value in vars(dofn).values()):
            # A function that was given stands for a method of the class.
            return _specs_of(dofn)
        if type(dofn) not in self.known:
            self.known[type(dofn)] = _specs_of(dofn)
        states, timers = self.known[type(dofn)]
        return set(states), set(timers)


class _Views(dict[type, Any]):
    """The views of options, which are not sent to the workers."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return dict, ()


def _view(options: PipelineOptions, kind: type) -> Any:
    # All views of options share their values.
    views = vars(options).setdefault("_views", _Views())
    if kind not in views:
        views[kind] = view = _view_of(options, kind)
        vars(view)["_views"] = views
    return views[kind]
