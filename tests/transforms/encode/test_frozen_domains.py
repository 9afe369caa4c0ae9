"""Values that an earlier run's domain never saw: their codes, their gaps, and what is not known."""

import numpy as np
import pyarrow as pa
import pytest

from slicebeam.metrics.errors import ColumnError
from slicebeam.transforms.encode.domains import ColumnSummary, FeatureDomain
from slicebeam.transforms.encode.frozen_domains import FrozenBins, FrozenDomain, with_new_values
from slicebeam.transforms.encode.predicates import Singleton
from slicebeam.transforms.encode.value_counts import ValueCounts
from tests.transforms.encode.test_domains import assert_encodes, learn


def domain(kind, data_type, *predicates, **how):
    singletons = tuple(Singleton("x", *one) for one in predicates)
    return FeatureDomain("x", kind, data_type, singletons, **{"closed": False, **how})


POINT, MISSING = ("==", 5.0), ("is_null",)
GAPS = domain("numeric", "double", ("between", [0.0, 1.0]), POINT, ("between", [7.0, 8.0]), MISSING)
TEXTS = domain("categorical", "string", ("==", "a"), ("==", "b"), MISSING)


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


@pytest.mark.parametrize("rows", [1, 4, 11])
def test_numbers_outside_the_bins_are_counted_against_numpy(rows):
    """However they are cut into chunks, those at the very edges too."""
    values = np.array([-2.0, 0.0, 0.5, 1.0, 1.0, 5.0, 6.0, 7.5, 8.0, 8.0, 9.0])
    seen = ColumnSummary(0, low=0.0, high=8.0)
    bins = FrozenBins(FrozenDomain(domain("numeric", "double", *_of(GAPS), seen=seen), 100))
    for begin in range(0, len(values), rows):
        bins.add(pa.chunked_array([pa.array(values[begin : begin + rows])]))
    found = bins.result()
    assert found.closed
    assert_encodes(found, pa.array(values))
    held = ((values >= 0) & (values < 1)) | (values == 5) | ((values >= 7) & (values < 8))
    assert found.seen.other == (~held).sum()
    assert (found.seen.below, found.seen.above) == ((values < 0).sum(), (values > 8).sum())


def _of(of):
    return [(one.op, one.value) for one in of.singletons]


@pytest.mark.parametrize(("old", "largest", "missing"), [
    (domain("categorical", "string", ("==", "a"), closed=True), 0, 0),
    (domain("categorical", "string", ("==", "a"), MISSING, closed=True), 0, None),
    (domain("categorical", "string", ("==", "a"), ("not_in", ["a"]), closed=True), None, 0),
    (domain("list", "string", ("contains", "a"), closed=True), None, 0),
    (TEXTS, None, None),
    (domain("categorical", "string", ("==", "a"), seen=ColumnSummary(3, 9, 4)), 4, 3),
])  # fmt: skip
def test_what_a_document_of_an_older_version_does_not_tell_is_not_known(old, largest, missing):
    frozen = FrozenDomain(old, 100)
    assert (frozen.largest_other, frozen.missing) == (largest, missing)


def test_what_a_sketch_forgot_is_among_the_others():
    # Of 100 rows 5 are missing, 60 and 20 have names, 3 are others that the sketch kept.
    counted = ValueCounts(pa.array(["a", "b", "z"]), np.array([60, 20, 3]), rows=100, missing=5)
    found = with_new_values(FrozenDomain(TEXTS, 100), counted, top_values=9, smallest=10, error=0.1)
    assert found.seen.other == 100 - 5 - 60 - 20
    assert found.seen.largest_other == 3
