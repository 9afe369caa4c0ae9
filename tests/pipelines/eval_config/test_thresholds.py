import math

import pytest

from slicebeam.pipelines.eval_config.native_metrics import configured_metric
from slicebeam.pipelines.eval_config.thresholds import (
    CrossSpec,
    Measured,
    SliceSpec,
    Threshold,
    validate,
)

US, FR = (("country", "us"),), (("country", "fr"),)
COUNTRY = SliceSpec(("country",))
SLICES = {
    (): Measured("all examples", None, {"auc": (0.8, 0.79)}),
    US: Measured("country = us", "u", {"auc": (0.9, 0.95)}),
    FR: Measured("country = fr", "f", {"auc": (math.nan, math.nan)}),
}


@pytest.mark.parametrize(
    ("threshold", "failing"),
    [
        (Threshold("auc", "value", None, 0.85), ["all examples", "country = fr"]),
        (Threshold("auc", "value", None, None, 0.85), ["country = us", "country = fr"]),
        (Threshold("auc", "value", COUNTRY, 0.85), ["country = fr"]),
        (Threshold("auc", "value", SliceSpec(), 0.85), ["all examples"]),
        (Threshold("auc", "change", None, absolute=0.0, direction="higher"), ["country = us", "country = fr"]),
        (Threshold("auc", "change", None, relative=0.0, direction="lower"), ["all examples", "country = fr"]),
        (Threshold("auc", "value", CrossSpec(SliceSpec(), (COUNTRY,)), -0.05), ["all examples", "all examples"]),
    ],
)  # fmt: skip
def test_thresholds_fail_where_they_should(threshold, failing):
    found = validate([threshold], [CrossSpec(SliceSpec(), (COUNTRY,))], SLICES)
    assert [one.slice for one in found.failures] == failing
    assert not found.passed
    assert found.missing_slices == ()


def test_a_threshold_for_slices_that_do_not_occur_fails():
    found = validate([Threshold("auc", "value", SliceSpec(("city",)), 0.1)], (), SLICES)
    assert (found.passed, found.missing_slices) == (False, ("city",))
    assert found.reasons() == ("a threshold is for city, which does not occur",)


def test_values_are_numbers_or_their_text():
    spec = SliceSpec((), (("age", 20),))
    assert spec.applies((("age", 20),))
    assert spec.applies((("age", "20"),))
    assert not spec.applies((("age", 21),))
    assert not spec.applies(())


def test_a_relative_change_of_nothing_fails():
    one = Threshold("mse", "change", None, relative=0.1, direction="lower")
    assert not one.holds(0.0, 0.0)
    assert one.holds(0.9, 1.0)


def test_settings_that_change_a_metric_are_refused():
    assert configured_metric("here", "AUC", "", '"num_thresholds": 1000').key == "auc"
    assert configured_metric("here", "Recall", "", '{"name": "r"}').key == "r"
    for config, message in (
        ('"curve": "PR"', "here AUC: curve = 'PR' cannot run natively"),
        ("curve", "here AUC: config 'curve' is no JSON"),
    ):
        with pytest.raises(Exception, match=message):
            configured_metric("here", "AUC", "", config)
    with pytest.raises(Exception, match="2 thresholds, of which a run has a single one"):
        configured_metric("here", "Recall", "", '"thresholds": [0.1, 0.2]')
