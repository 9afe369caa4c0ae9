"""What the tests let Beam and click remember is what these would say."""

import pickle

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.options.pipeline_options import (
    DebugOptions,
    DirectOptions,
    PipelineOptions,
    SetupOptions,
    StandardOptions,
)
from apache_beam.transforms import userstate
from apache_beam.typehints import decorators

from slicebeam.pipelines.commands import flags
from slicebeam.pipelines.commands.cli import run
from tests import quick_beam

SEEN = userstate.SetStateSpec("seen", VarIntCoder())
OF_SEEN = beam.DoFn.StateParam(SEEN)


class Stateful(beam.DoFn):
    def process(self, element, seen=OF_SEEN):
        """Have a state."""


def test_states_are_those_of_the_class_or_of_the_function_that_was_given():
    assert userstate.get_dofn_specs != quick_beam._specs_of
    given = beam.core.CallableWrapperDoFn(Stateful().process)
    for one in (Stateful(), beam.DoFn(), given, beam.core.CallableWrapperDoFn(len)):
        for _ in range(2):
            assert userstate.get_dofn_specs(one) == quick_beam._specs_of(one)
    specs = userstate.get_dofn_specs
    assert specs(Stateful()) == specs(given) == ({SEEN}, set())


def test_views_share_their_values_and_are_not_sent():
    options = PipelineOptions(["--direct_num_workers=3"])
    assert options.view_as(DirectOptions).direct_num_workers == 3
    options.view_as(SetupOptions).view_as(StandardOptions).streaming = True
    direct = options.view_as(DirectOptions)
    assert options.view_as(StandardOptions) is direct.view_as(StandardOptions)
    for one in (options, pickle.loads(pickle.dumps(options))):
        assert one.view_as(StandardOptions).streaming
        assert one.view_as(DirectOptions).direct_num_workers == 3
        # Options that other tests have declared may have values too.
        known = one.get_all_options(drop_default=True).items()
        assert known >= {("direct_num_workers", 3), ("streaming", True)}
    assert not PipelineOptions([]).view_as(StandardOptions).streaming
    assert vars(pickle.loads(pickle.dumps(options)))["_views"] == {}
    with pytest.raises(AttributeError):
        options.view_as(StandardOptions).direct_num_workers  # noqa: B018


def test_flags_are_read_anew_and_a_signature_is_that_of_the_function():
    for _ in range(3):
        for flags_given, streaming in (["--experiments=a"], False), (["--streaming"], True):
            debug = PipelineOptions(flags_given).view_as(DebugOptions)
            assert debug.experiments == (None if streaming else ["a"])
            debug.view_as(StandardOptions).view_as(DebugOptions).experiments = ["b"]
            assert StandardOptions(flags_given).streaming is streaming
            assert StandardOptions(flags_given, streaming=None).streaming is None
        PipelineOptions(["--experiments=a"]).view_as(DebugOptions).experiments.append("b")
    for one in (Stateful.process, Stateful().process, len, str.upper, Stateful):
        for _ in range(2):
            assert decorators.get_signature(one) == quick_beam._signature_of(one)


def test_a_command_is_as_made_anew(capsys):
    help_of = {}
    for flag in ("--help", "--help-all", "--help"):
        assert run(["search", flag]) == 0
        printed = capsys.readouterr().out
        assert help_of.setdefault(flag, printed) == printed
    assert help_of["--help"] != help_of["--help-all"]
    assert flags.PanelCommand("search") is flags.PanelCommand("search")
