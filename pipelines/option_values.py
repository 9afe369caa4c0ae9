"""Values of options that come from elsewhere than the command line, as it would have them."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.check_config import CheckConfig
from slicebeam.pipelines.config import SearchConfig
from slicebeam.pipelines.discover_config import DiscoverConfig
from slicebeam.pipelines.option_lists import LISTS, listed
from slicebeam.pipelines.shift.config import ShiftConfig

if TYPE_CHECKING:
    from slicebeam.pipelines.data_config import Command, DataConfig

CONFIGS: dict[Command, type[DataConfig]] = {
    "search": SearchConfig,
    "check": CheckConfig,
    "shift": ShiftConfig,
    "discover": DiscoverConfig,
}
# What the command line takes as text, and others write as a number or a boolean.
_ALSO_NUMBERS = frozenset({"positive_class", "budget"})


def as_flag(where: str, key: str, value: Any, kind: Any) -> Any:
    """Return a value as the flag of an option would have it.

    Parameters
    ----------
    where : how an error tells of it
    key : the option
    kind : its type in the configuration

    Raises
    ------
    InputError
        It is of another type.
    """
    if value is None:
        raise InputError(f"{where}: it has no value; give one or leave the key out")
    if key == "runner_option" and isinstance(value, dict):
        return tuple(f"{name}={_scalar(one)}" for name, one in value.items())
    if get_origin(kind) is tuple:
        if key in LISTS and isinstance(value, str):
            return listed([value])
        several = value if isinstance(value, (list, tuple)) else [value]
        if int in get_args(kind):
            return tuple(_whole(where, one) for one in several)
        return tuple(_text(where, one) for one in several)
    kinds = {kind, *get_args(kind)}
    if key in _ALSO_NUMBERS and isinstance(value, (bool, int, float)):
        return _scalar(value)
    if bool in kinds:
        if not isinstance(value, bool):
            raise InputError(f"{where}: {value!r} is neither true nor false")
        return value
    if str in kinds or get_origin(kind) is Literal:
        return _text(where, value)
    if isinstance(value, (bool, list, tuple, dict)):
        raise InputError(f"{where}: {value!r} is no number")
    return value


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _whole(where: str, value: Any) -> int | str:
    if isinstance(value, str):
        return value
    # Those of numpy are integers too.
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{where}: {value!r} is no whole number")
    return int(value)


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: {value!r} is no text; put it in quotes")
    return value
