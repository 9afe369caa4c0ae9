"""Keeps matrix products to one thread."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def one_thread() -> AbstractContextManager[Any]:
    """Return a context in which matrix products take one thread of this process.

    On small blocks a second thread saves a third of the time where a processor is free, and takes ten times
    as long where none is. And sums are the same to the byte, however many processors there are.
    """
    limits: AbstractContextManager[Any] = _controller().limit(limits=1)
    return limits


@cache
def _controller() -> Any:
    # Looking for the libraries takes longer than an iteration on little data.
    import scipy.linalg  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
