"""Applies a predicate document to a raw pandas table, one value at a time."""

import datetime as dt
import decimal
import operator
import re
from typing import Any

import numpy as np
import pandas as pd

INFINITE = {"Infinity": float("inf"), "-Infinity": float("-inf")}


def mask(frame, predicate):
    """Return which rows of the raw table satisfy ``{"all": [{"field", "op", "value"}, ...]}``.

    They come in the order of the rows, whatever the index of the table. A value whose JSON type is
    not the column's is a TypeError.
    """
    rows = np.ones(len(frame), dtype=bool)
    for condition in predicate["all"]:
        rows &= _condition(frame, condition)
    return rows


def _condition(frame, condition):
    field, op, value = condition["field"], condition["op"], condition.get("value")
    # What no document may contain.
    assert set(condition) == {"field", "op"} | ({"value"} if op != "is_null" else set()), condition
    assert isinstance(value, list) or op not in ("in", "not_in"), condition
    column = frame[field]
    elements = column.tolist()
    if op == "is_null":
        return _each(elements, is_missing)
    holds = _holds(op, value, _float_type(column.dtype))
    return _each(elements, lambda element: not is_missing(element) and holds(element))


class _Tested(dict[tuple[type, Any], bool]):
    """Whether each value passes a test; values that are the same are tested once."""

    def __init__(self, test):
        self.test = test

    def __missing__(self, key):
        found = self[key] = self.test(plain(key[1]))
        return found


def _each(elements, test):
    # 1, 1.0 and True are one key of a dict, and not the same value.
    tested = _Tested(test)
    try:
        return np.array([tested[type(element), element] for element in elements], dtype=bool)
    except TypeError:
        # Lists are no keys; and an error of the test's own comes again.
        return np.array([test(plain(element)) for element in elements], dtype=bool)


def _holds(op, value, float_type):
    """Return the test that one value of the column, not missing, has to pass."""
    if op in ("in", "not_in"):
        choices = [Constant(choice, float_type) for choice in value]
        if op == "in":
            return lambda element: any(element == choice.like(element) for choice in choices)
        return lambda element: all(element != choice.like(element) for choice in choices)
    if op == "between":
        low, high = (Constant(edge, float_type) for edge in value)
        return lambda element: low.like(element) <= element < high.like(element)
    constant = Constant(value, float_type)
    if op == "contains":
        return lambda element: _contains(element, constant)
    comparisons = {"==": operator.eq, "<": operator.lt, ">=": operator.ge}
    return lambda element: comparisons[op](element, constant.like(element))


def _contains(elements, constant):
    """Tell whether a list holds a value; missing entries of the list equal nothing."""
    if not isinstance(elements, list):
        raise TypeError(f"contains is for list columns, not for {elements!r}")
    return any(element == constant.like(element) for element in elements if not is_missing(element))


def plain(element):
    if isinstance(element, (list, tuple, set, frozenset, np.ndarray)):
        return [plain(part) for part in element]
    if isinstance(element, (np.datetime64, dt.datetime)):
        return pd.Timestamp(element)
    if isinstance(element, np.generic) and not isinstance(element, np.floating):
        return element.item()
    return element


def is_missing(element):
    if isinstance(element, list):
        return False
    if element is None or element is pd.NA or element is pd.NaT:
        return True
    if isinstance(element, decimal.Decimal):
        return element.is_nan()
    return isinstance(element, (float, np.floating)) and bool(np.isnan(element))


class Constant:
    """A value of a predicate, read as the type of the element that it is compared with."""

    def __init__(self, value, float_type):
        assert not is_missing(value), "only is_null matches missing values"
        self.value = value
        self.float_type = float_type
        self._read = {}

    def like(self, element):
        """Return the constant in the type of an element."""
        key = (type(element), getattr(element, "tzinfo", None))
        if key not in self._read:
            self._read[key] = self._as(element)
        return self._read[key]

    def _as(self, element):
        value = self.value
        if isinstance(element, bool):
            if isinstance(value, bool):
                return value
        elif isinstance(element, (int, float, np.floating)):
            if isinstance(value, str) and value in INFINITE:
                return INFINITE[value]
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                # pandas rounds a constant to the width of a float column.
                if isinstance(element, int):
                    return value
                narrow = type(element) if isinstance(element, np.floating) else self.float_type
                return float(narrow(value))
        elif isinstance(value, str):
            if isinstance(element, str):
                return value
            if isinstance(element, decimal.Decimal):
                return decimal.Decimal(value)
            if isinstance(element, pd.Timestamp):
                return self._timestamp(element)
            if isinstance(element, dt.date):
                return dt.date.fromisoformat(value)
            if isinstance(element, dt.time):
                # Nanoseconds are cut off, which Python 3.10 does not do by itself.
                return dt.time.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", value))
        raise TypeError(f"the value {value!r} does not have the type of {element!r}")

    def _timestamp(self, element):
        moment = pd.Timestamp(self.value)
        if element.tzinfo is not None and moment.tzinfo is None:
            # What pandas does with a text that is compared with a zoned column.
            return moment.tz_localize(element.tzinfo)
        if element.tzinfo is None and moment.tzinfo is not None:
            raise TypeError(f"{self.value!r} has a time zone, the column has none")
        return moment


def _float_type(dtype):
    """Return the numpy type in which a column, or the lists of a column, keeps its floats."""
    if isinstance(dtype, pd.CategoricalDtype):
        return _float_type(dtype.categories.dtype)
    if isinstance(dtype, pd.ArrowDtype):
        arrow = dtype.pyarrow_dtype
        arrow = getattr(arrow, "value_type", arrow)  # of a list or a dictionary
        return {"halffloat": np.float16, "float": np.float32}.get(str(arrow), np.float64)
    numpy_dtype = np.dtype(getattr(dtype, "numpy_dtype", object))
    if isinstance(dtype, np.dtype):
        numpy_dtype = dtype
    return numpy_dtype.type if numpy_dtype.kind == "f" else np.float64
