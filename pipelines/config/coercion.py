"""Converts values of options from files and Python to those of the command line."""

from __future__ import annotations

import csv
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.option_fields import declared
from slicebeam.transforms.tfma.metric_specs import PREFIX, split_outside

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slicebeam.pipelines.config.option_fields import OptionField, Options


def listed(values: Sequence[str]) -> tuple[str, ...]:
    """Return the values of an option that is repeated or separated by commas.

    >>> listed(["a,b", '"c,d"'])
    ('a', 'b', 'c,d')
    """
    # As in CSV, quotes keep a comma that belongs to a name. Those in the brackets of a metric do so, too.
    try:
        return tuple(
            part
            for value in values
            for row in ([split_outside(value)] if PREFIX in value else csv.reader([value]))
            for part in row or [""]
        )
    except csv.Error as error:
        raise OptionError(
            f"{','.join(values)!r} is not a list separated by commas ({error}); put names in quotes"
        ) from error


def split_lists(model: type[Options], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return flags as they were given, with the values of those that commas separate."""
    fields = declared(model)
    return {
        name: listed(value) if name in fields and fields[name].option.by_commas else value
        for name, value in given.items()
    }


def as_flag(where: str, field: OptionField, value: Any) -> Any:
    """Return a value as the flag of an option would have it."""
    if value is None:
        raise OptionError(f"{where}: the key has no value; give one or leave the key out")
    if field.takes_mapping and isinstance(value, dict):
        return tuple(f"{name}={_scalar(one)}" for name, one in value.items())
    if not field.is_list:
        return _single(where, field, value)
    if field.option.by_commas and isinstance(value, str):
        return listed([value])
    several = value if isinstance(value, (list, tuple)) else [value]
    return tuple(_single(where, field, one) for one in several)


def _single(where: str, field: OptionField, value: Any) -> Any:
    kind = get_args(field.kind)[0] if field.is_list else field.kind
    if field.option.takes_numbers and isinstance(value, (bool, int, float)):
        return _scalar(value)
    if kind is bool and not isinstance(value, bool):
        raise OptionError(f"{where}: {value!r} is neither true nor false")
    if kind is int and field.is_list and not isinstance(value, str):
        # Those of numpy are integers too.
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise OptionError(f"{where}: {value!r} is not a whole number")
        return int(value)
    if (kind is str or get_origin(kind) is Literal) and not isinstance(value, str):
        raise OptionError(f"{where}: {value!r} is not text; put it in quotes")
    if kind in (int, float) and isinstance(value, (bool, list, tuple, dict)):
        raise OptionError(f"{where}: {value!r} is not a number")
    return value


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
