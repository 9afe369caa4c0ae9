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

# Types of values that are written without quotes.
_NUMBERS = (bool, int, float)


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
    if field.is_list:
        if field.option.by_commas and isinstance(value, str):
            return listed([value])
        several = value if isinstance(value, (list, tuple)) else [value]
        if int in get_args(field.kind):
            return tuple(_whole(where, one) for one in several)
        takes = _NUMBERS if field.option.takes_numbers else ()
        return tuple(
            _scalar(one) if isinstance(one, takes) else _text(where, one) for one in several
        )
    if field.option.takes_numbers and isinstance(value, _NUMBERS):
        return _scalar(value)
    if field.kind is bool:
        if not isinstance(value, bool):
            raise OptionError(f"{where}: {value!r} is neither true nor false")
        return value
    if field.kind is str or get_origin(field.kind) is Literal:
        return _text(where, value)
    if isinstance(value, (bool, list, tuple, dict)):
        raise OptionError(f"{where}: {value!r} is not a number")
    return value


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _whole(where: str, value: Any) -> int | str:
    if isinstance(value, str):
        return value
    # Those of numpy are integers too.
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise OptionError(f"{where}: {value!r} is not a whole number")
    return int(value)


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise OptionError(f"{where}: {value!r} is not text; put it in quotes")
    return value
