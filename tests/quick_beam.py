"""Lets Beam and click find out once what they would find out again for each run of the tests."""

from argparse import Namespace
from copy import copy, deepcopy
from functools import cache
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core, ptransform, userstate
from apache_beam.typehints import decorators

from slicebeam.pipelines.commands import flags

_specs_of, _view_of = userstate.get_dofn_specs, PipelineOptions.view_as
_parse, _signature_of = PipelineOptions.__init__, decorators.get_signature
_panel_command = cache(flags.PanelCommand)


def remember_answers(put):
    put(userstate, "get_dofn_specs", _Specs().of)
    put(PipelineOptions, "view_as", _view)
    put(PipelineOptions, "__init__", _parser())
    signatures = _Signatures()
    for module in (decorators, core, ptransform):
        put(module, "get_signature", signatures.of)
    put(flags, "PanelCommand", _panel_command)


class _Specs:
    def __init__(self):
        self.known = {}

    def of(self, dofn):
        if any(isinstance(value, MethodType) for value in vars(dofn).values()):
            # A function that was given stands for a method of the class.
            return _specs_of(dofn)
        if type(dofn) not in self.known:
            self.known[type(dofn)] = _specs_of(dofn)
        states, timers = self.known[type(dofn)]
        return set(states), set(timers)


class _Views(dict[type, Any]):
    """The views of options, which are not sent to the workers."""

    def __reduce__(self):
        return dict, ()


def _view(options, kind):
    # All views of options share their values.
    views = vars(options).setdefault("_views", _Views())
    if kind not in views:
        views[kind] = view = _view_of(options, kind)
        vars(view)["_views"] = views
    return views[kind]


def _parser():
    """Return what makes options of flags, without options that tests have declared since."""
    known = {}

    def parse(options, flags=None, **values):
        key = None if flags is None or isinstance(flags, str) else (type(options), tuple(flags))
        if key in known:
            # Values are texts, numbers and lists of them.
            found = {name: copy(value) for name, value in known[key].items()}
            options._flags, options._all_options = flags, {**found, **values}
            options._visible_options = Namespace(**found)
            return
        _parse(options, flags, **values)
        if key is not None:
            known[key] = deepcopy(vars(options._visible_options))

    return parse


class _Signatures:
    """The signatures of functions, and of methods by their functions, for as long as these live."""

    def __init__(self):
        self.known = {FunctionType: WeakKeyDictionary(), MethodType: WeakKeyDictionary()}

    def of(self, function):
        known = self.known.get(type(function))
        key = getattr(function, "__func__", function)
        if known is None or type(key) is not FunctionType:
            return _signature_of(function)
        if key not in known:
            known[key] = _signature_of(function)
        return known[key]
