"""Arrays of numbers."""

from slicebeam.metrics.arrays import floats


def test_counts_of_any_shape_are_floats_whose_products_do_not_wrap_around():
    few, many = floats(2**40, [2**40, 1])
    assert (few * many).tolist() == [2.0**80, 2.0**40]
