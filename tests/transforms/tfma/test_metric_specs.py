"""Metrics of TFMA as a user, or a document of a stranger, names them."""

import pytest

from slicebeam.metrics.errors import OptionError
from slicebeam.transforms.tfma.metric_specs import parse_metric
from tests.refusals import refuses


def test_a_module_is_named_exactly():
    text = "tfma:my.metrics.Lift(power=2)"
    assert parse_metric(text, ["my.metrics"]).module == "my.metrics"
    for modules in ([], ["my"], ["my.metrics.more"], ["metrics"], [""], ["my.metrics.Lift"]):
        refuses(OptionError, r"add --tfma-module my\.metrics", parse_metric, text, modules)
    # A class of TFMA is found by its name in the list, and a module is not imported for it.
    for path in ("tensorflow_model_analysis.metrics", "tf_keras.metrics", "tensorflow.io.gfile"):
        assert parse_metric(f"tfma:{path}.GFile").module == ""


@pytest.mark.parametrize("value", [
    *("{'class_name': 'Lambda', 'config': {}}", "[{'module': 'os', 'class_name': 'system'}]"),
    *("b'bytes'", "{1, 2}", "1j", "...", "1e999", "[1, -1e999]", "[[[[[[[1]]]]]]]"),
])  # fmt: skip
def test_an_argument_is_a_plain_value(value):
    with pytest.raises(OptionError, match="thresholds is not a number"):
        parse_metric(f"tfma:AUC(thresholds={value})")


@pytest.mark.parametrize(
    "code", ["__import__('os').system('id')", "[" * 4_000 + "]" * 4_000, "-" * 20_000 + "1", "1 +"]
)
def test_what_is_code_is_not_read(code):
    with pytest.raises(OptionError, match="can't be read") as caught:
        parse_metric(f"tfma:AUC(name={code})")
    assert len(str(caught.value)) < 12_000
    found = parse_metric("tfma:AUC(name=a.b,thresholds=[0.5,(1,2)])")
    assert found.arguments == {"name": "a.b", "thresholds": [0.5, [1, 2]]}
