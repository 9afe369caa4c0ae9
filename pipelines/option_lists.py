"""Options that have several values, separated by commas or given again."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Options that are repeated or separated by commas.
LISTS = ("column_names", "features", "exclude_features", "metric", "components")


def listed(values: Sequence[str]) -> tuple[str, ...]:
    """Return the values of an option that is repeated or separated by commas.

    >>> listed(["a,b", '"c,d"'])
    ('a', 'b', 'c,d')
    """
    # As in CSV, quotes keep a comma that belongs to a name.
    try:
        return tuple(part for row in csv.reader(values) for part in row or [""])
    except csv.Error as error:
        raise InputError(
            f"{','.join(values)!r} is no list separated by commas ({error}); put names in quotes"
        ) from error
