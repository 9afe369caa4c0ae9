import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.discovery.encoders import encoder, needs_fit
from tests.refusals import refuses


@pytest.mark.parametrize(("name", "message"), [
    ("minlm", r"unknown encoder 'minlm'; did you mean 'minilm'\?"),
    ("", "unknown encoder ''"),
    ("https://host/v1", "write openai: before the address"),
])  # fmt: skip
def test_names_of_encoders(name, message):
    assert [needs_fit(one) for one in ("lsa", "minilm", "openai:https://host/v1")] == [1, 0, 0]
    refuses(InputError, message, encoder, name, cache=None)
