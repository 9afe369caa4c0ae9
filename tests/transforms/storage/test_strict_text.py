import pytest

from slicebeam.transforms.storage.strict_text import MalformedTextError, parse_json, parse_yaml
from tests.fuzzing.yaml_cases import bomb
from tests.refusals import refusal

JSON = {
    "no JSON": ('{"a":', "line 1: Expecting value"),
    "a key twice": ('{"a": 1, "a": 2}', "the key 'a' occurs twice in an object"),
    "a spelt key twice": ('{"a": 1, "\\u0061": 2}', "the key 'a' occurs twice"),
    "NaN": ('{"a": NaN}', "NaN is not a number in JSON"),
    "infinite": ("[-Infinity]", "-Infinity is not a number in JSON"),
    "too large": ("1e400", "a number is larger than 64 bits allow"),
    "many digits": ("9" * 5000, "has more than 64 bits"),
    "too deep": ("[" * 70 + "]" * 70, "nested deeper than 64 levels"),
    "deeper than the stack": ("[" * 100_000 + "]" * 100_000, "nested deeper than 64 levels"),
    "half a character": ('"\\ud800"', "half of a surrogate pair"),
}
YAML = {
    "no YAML": ("a: [", "expected the node content"),
    "two documents": ("---\na: 1\n---\nb: 1", "expected a single document"),
    "a key twice": ("a: 1\nb: 2\na: 3", "the key 'a' occurs twice, again in line 3"),
    "a key twice below": ("a:\n  b: 1\n  b: 1", "the key 'b' occurs twice, again in line 3"),
    "a number spelt twice": ("1: a\n0x1: b", "the key 1 occurs twice"),
    "an object": ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
    "a list as key": ("? [a]\n: 1", "unhashable key"),
    "month 13": ("2024-13-01", "a value does not match its tag or form (month must"),
    "no number": ("!!int one", "a value does not match its tag or form"),
    "an empty number": ("!!int ''", "a value does not match its tag or form"),
    "no time": ("!!timestamp x", "a value does not match its tag or form"),
    "no truth": ("!!bool x", "a value does not match its tag or form"),
    "many digits": ("9" * 5000, "a value does not match its tag or form"),
    "beyond 64 bits": ("[18446744073709551616]", "has more than 64 bits"),
    "itself": ("a: &a {b: *a}", "line 1: a value contains itself through an alias"),
    "lists of lists": (bomb(mappings=False), "aliases stand for more than 100,000 values"),
    "mappings of mappings": (bomb(mappings=True), "aliases stand for more than 100,000 values"),
    "too deep": ("[" * 70 + "]" * 70, "nested deeper than 64 levels"),
    "deeper than the stack": ("[" * 3000 + "]" * 3000, "nested deeper than 64 levels"),
    "half a character": ('"\\ud800"', "half of a surrogate pair"),
}


@pytest.mark.parametrize(("parse", "most", "text", "message"), [
    *(pytest.param(parse_json, 300, *case, id=f"JSON, {name}") for name, case in JSON.items()),
    *(pytest.param(parse_yaml, 500, *case, id=f"YAML, {name}") for name, case in YAML.items()),
])  # fmt: skip
def test_text_that_is_refused(parse, most, text, message):
    caught = refusal(MalformedTextError, parse, text)
    assert message in caught
    assert len(caught) < most


def test_json_that_is_read():
    text = '{"a": [1, -2.5, 18446744073709551615, true, null, "\\ud83d\\ude00"], "b": {}}'
    assert parse_json(text) == {"a": [1, -2.5, 2**64 - 1, True, None, "\U0001f600"], "b": {}}
    assert parse_json("[" * 64 + "]" * 64)


def test_yaml_that_is_read():
    text = "base: &base {w: 1, x: 2}\nown:\n  <<: *base\n  w: 3\nsame: [*base, .inf]"
    content, node = parse_yaml(text)
    base = {"w": 1, "x": 2}
    assert content == {"base": base, "own": {"w": 3, "x": 2}, "same": [base, float("inf")]}
    assert node is not None
    assert [key.start_mark.line for key, _ in node.value] == [0, 1, 4]
    assert parse_yaml("# nothing\n") == (None, None)
