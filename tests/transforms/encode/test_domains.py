"""Feature domains: how columns are cut, the code of every value, and where values come from."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slicebeam.metrics.errors import ColumnError
from slicebeam.transforms.encode.domains import FeatureDomain
from slicebeam.transforms.encode.learn_domains import learn_domain
from slicebeam.transforms.encode.predicates import Singleton
from slicebeam.transforms.encode.value_counts import ColumnCounter
from tests.oracles import predicates
from tests.transforms.encode.test_sources import raw


def count(values, most_bytes=1 << 28, rows=5000):
    counter = ColumnCounter(values.type, most_bytes)
    for begin in range(0, len(values), rows):
        counter.add(pa.chunked_array([values.slice(begin, rows)]))
    return counter.result()


def learn(values, most_bytes=1 << 28, *, bins=10, top_values=100, **options):
    options = {"named": False, **options}
    return learn_domain("x", count(values, most_bytes), bins=bins, top_values=top_values, **options)


def masks(domain, values):
    frame = raw(pa.table({"x": values}))
    return np.array([predicates.mask(frame, {"all": [s.to_json()]}) for s in domain.singletons])


def assert_encodes(domain, values):
    """The code of a value is the one predicate that it satisfies, or no code where there is none."""
    held = masks(domain, values)
    assert (held.sum(0) <= 1).all()
    expected = np.where(held.any(0), held.argmax(0), domain.size)
    np.testing.assert_array_equal(domain.encode(values), expected)
    if domain.closed:
        assert held.any(0).all()


KINDS = {
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text(max_size=3)),
    "date": (pa.date32(), st.dates()),
    "time": (pa.time64("us"), st.times()),
    "milliseconds": (pa.time32("ms"), st.integers(0, 86_400_000 - 1)),
    "nanoseconds": (pa.timestamp("ns"), st.integers(-(2**62), 2**62)),
    "zoned": (pa.timestamp("us", "America/New_York"), st.integers(0, 2 * 10**15)),
    "decimal": (pa.decimal128(9, 2), st.decimals(-(10**6), 10**6, places=2)),
}


@settings(max_examples=40, deadline=None, derandomize=True)
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), bins=st.integers(2, 5), top_values=st.integers(1, 4))
@pytest.mark.slow
def test_codes_are_what_predicates_say(kind, data, bins, top_values):
    data_type, value = KINDS[kind]
    column = st.lists(st.none() | value, min_size=1, max_size=30)
    values = pa.array(data.draw(column), data_type)
    domain = learn(values, bins=bins, top_values=top_values)
    assume(isinstance(domain, FeatureDomain))
    assert_encodes(domain, values)
    # The same bins on other data: what satisfies none has no code.
    other = pa.array(data.draw(column), data_type)
    wide = FeatureDomain(
        domain.name, domain.kind, domain.data_type, domain.singletons, closed=False
    )
    assert_encodes(wide, other)


# Values that an earlier run's domain never saw: their codes, their gaps, and what is not known.


def domain_of(kind, data_type, *predicates, **how):
    singletons = tuple(Singleton("x", *one) for one in predicates)
    return FeatureDomain("x", kind, data_type, singletons, **{"closed": False, **how})


POINT, MISSING = ("==", 5.0), ("is_null",)
GAPS = domain_of(
    "numeric", "double", ("between", [0.0, 1.0]), POINT, ("between", [7.0, 8.0]), MISSING
)
TEXTS = domain_of("categorical", "string", ("==", "a"), ("==", "b"), MISSING)


@pytest.mark.parametrize(("open_domain", "values"), [
    (GAPS, [-1.0, 0.0, 0.5, 1.0, 4.9, 5.0, 5.1, 6.9, 7.0, 7.9, 8.0, 99.0, None]),
    (TEXTS, ["a", "c", None, "b"]),
])  # fmt: skip
def test_a_value_without_a_predicate_has_the_code_after_the_last(open_domain, values):
    assert_encodes(open_domain, pa.array(values))
    assert open_domain.radix == open_domain.size + 1


def test_a_value_that_a_closed_domain_does_not_hold_changed_while_it_was_read():
    with pytest.raises(ColumnError, match="changed while it was read: c has no bin"):
        learn(pa.array(["a", "b", "a", "b"])).encode(pa.array(["a", "c"]))
