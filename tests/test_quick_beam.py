"""What the tests let Beam remember is what Beam would say."""

import pickle

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.options.pipeline_options import (
    DirectOptions,
    PipelineOptions,
    SetupOptions,
    StandardOptions,
)
from apache_beam.transforms import userstate

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
