import pyarrow as pa
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.prepare.wanted_slices import given_slices, read_slices
from slicebeam.transforms.encode.predicates import Singleton, parse_predicate
from tests.transforms.encode.test_domains import learn

SCHEMA = pa.schema([
    ("age", pa.int32()), ("income", pa.float64()), ("sex", pa.string()),
    ("native country", pa.string()), ("a & b", pa.string()), ("born", pa.date32()),
    ("ok", pa.bool_()), ("tags", pa.list_(pa.string())),
    ("price", pa.decimal128(6, 2)), ("x", pa.list_(pa.string())),
    ("x contains y", pa.string()), ("z not", pa.string()),
])  # fmt: skip
TYPES = dict(zip(SCHEMA.names, SCHEMA.types, strict=True))


@pytest.mark.parametrize("condition", [
    Singleton("age", "between", [37, 41]),
    Singleton("age", "between", [-5, 41]),
    Singleton("age", "==", 37),
    Singleton("income", "<", 1.5e-7),
    Singleton("income", ">=", "-Infinity"),
    Singleton("income", "between", [0.1, "Infinity"]),
    Singleton("sex", "==", "Female"),
    Singleton("sex", "==", "<=50K"),
    Singleton("sex", "==", ""),
    Singleton("sex", "==", ' a "quoted" \\ text, & more\n'),
    Singleton("sex", "in", ["a", "b,c", "}"]),
    Singleton("sex", "not_in", ["a & b", "]"]),
    Singleton("sex", "is_null"),
    Singleton("native country", "==", "is missing"),
    Singleton("a & b", "==", "in {x}"),
    Singleton("born", "between", ["2026-01-01", "2026-02-01"]),
    Singleton("ok", "==", True),
    Singleton("tags", "contains", "night shift"),
    Singleton("price", "<", "10.50"),
    Singleton("x contains y", "==", "x"),
    Singleton("z not", "in", ["a"]),
])  # fmt: skip
def test_what_is_printed_is_read_back(condition):
    assert parse_predicate(str(condition), TYPES) == (condition,)
    two = f"{condition} & {Singleton('age', '<', 5)}"
    assert parse_predicate(two, TYPES) == (condition, Singleton("age", "<", 5))


@pytest.mark.parametrize(("text", "message"), [
    ("agee < 5", "unknown column 'agee'; did you mean 'age'?"),
    ("age <= 5", "unknown op '<='; ops: =, <, >="),
    ("age != 5", "unknown op '!='"),
    ("age", "'age' is not a condition; write it as in 'age in [37, 41) & sex = Female'"),
    ("age < 5 &", "'' is not a condition"),
    ("age in [1, 5]", "is not a condition"),
    ("age in [1, 5, 7)", "is not a condition"),
    ("sex = <=50K", "is not a condition"),
    ("tags contains a, b", "is not a condition"),
    ("x contains y contains z", "is ambiguous: it may refer to 'x' or 'x contains y'; put the name"),
    ("sex not in {a, b, c, … 3 more}", "was shortened for display"),
    (f"sex = {'a' * 59}…", "was shortened for display"),
])  # fmt: skip
def test_what_cannot_be_read(text, message):
    with pytest.raises(InputError) as error:
        parse_predicate(text, TYPES)
    assert message in str(error.value)


def test_values_get_the_columns_own_type(tmp_path):
    """So that a slice has the id that a search gives it."""
    file = tmp_path / "slices.yaml"
    file.write_text(
        "- {field: age, op: '>=', value: 37.0}\n"
        "- {field: income, op: between, value: [1, 2]}\n"
        "- {field: sex, op: in, value: [b, a, b]}\n"
        "- {field: born, op: '<', value: 2026-01-01}\n"
        "- {field: price, op: '<', value: 9.5}\n"
        "- {field: age, op: '>=', value: 36.5}\n"
        "- age >= 50 & age < 60 & age >= 50\n"
    )
    given = given_slices(read_slices(str(file)), SCHEMA)
    found = [[one.json_text() for one in slice_] for slice_ in given.membership.predicates]
    assert found == [
        ['{"field": "age", "op": ">=", "value": 37}'],
        ['{"field": "income", "op": "between", "value": [1.0, 2.0]}'],
        ['{"field": "sex", "op": "in", "value": ["a", "b"]}'],
        ['{"field": "born", "op": "<", "value": "2026-01-01"}'],
        ['{"field": "price", "op": "<", "value": "9.50"}'],
        ['{"field": "age", "op": ">=", "value": 36.5}'],
        ['{"field": "age", "op": ">=", "value": 50}', '{"field": "age", "op": "<", "value": 60}'],
    ]


def test_negative_zero_is_zero():
    for op, value, plain in (
        ("==", -0.0, 0.0),
        ("between", [-0.0, 1.5], [0.0, 1.5]),
        ("in", [3.0, -0.0], [3.0, 0.0]),
    ):
        one, other = Singleton("x", op, value), Singleton("x", op, plain)
        assert one.identity() == other.identity()
        assert str(one) == str(other)
        assert one.json_text() == other.json_text()
    assert Singleton("x", "==", False).value is False
    assert isinstance(Singleton("x", "==", 0).value, int)


def test_long_and_odd_texts_are_readable():
    long = "x" * 400_000
    for op, value in [("==", long), ("contains", long), ("in", [long]), ("not_in", [long, "a"])]:
        text = str(Singleton("f", op, value))
        assert 60 < len(text) < 90
        assert "x…" in text
    assert str(Singleton("f", "==", "x" * 60)) == "f = " + "x" * 60
    assert str(Singleton("f", "==", "a, " * 100)).endswith('a, a,…"')
    assert str(Singleton("f", "==", "two\nlines")) == 'f = "two\\nlines"'
    assert str(Singleton("f", "==", "\x9b1m\u2028")) == 'f = "\\u009b1m\\u2028"'
    assert str(Singleton("a word", "==", 1)) == "a word = 1"
    assert str(Singleton("a = b", "is_null")) == '"a = b" is missing'
    assert str(Singleton(" a", "between", [1, 2])) == '" a" in [1, 2)'
    assert str(Singleton("a\n", "not_in", [1])) == '"a\\n" not in {1}'
    assert str(Singleton("a\x1b", "in", [1])) == '"a\\u001b" in {1}'
    assert len(learn(pa.array([long])).reason) < 90
