"""When a call may leave: limits of rate, pauses that an API asks for, and growing waits."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Seconds before the first call that is made again, doubled each time up to the longest.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0


class Pace:
    """Lets calls of several tasks leave in order.

    Parameters
    ----------
    rate_limit : calls a second; None for any number
    """

    def __init__(self, rate_limit: float | None) -> None:
        self.rate_limit = rate_limit
        # By the clock of time.monotonic.
        self._slot = self._paused_until = 0.0

    def pause(self, seconds: float) -> None:
        """Let no call leave for so long."""
        self._paused_until = max(self._paused_until, time.monotonic() + seconds)

    async def turn(self, ended: asyncio.Event) -> bool:
        """Wait until a call may leave; False where none may any more."""
        while not ended.is_set():
            now = time.monotonic()
            if self._paused_until > now:
                await rest(ended, self._paused_until - now)
                continue
            if self.rate_limit is None:
                return True
            slot = max(now, self._slot)
            self._slot = slot + 1 / self.rate_limit
            if slot > now:
                await rest(ended, slot - now)
            if self._paused_until <= time.monotonic():
                return not ended.is_set()
        return False


async def rest(ended: asyncio.Event, seconds: float) -> None:
    """Wait, unless the run ends."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(ended.wait(), seconds)


def backoff(failures: int) -> float:
    """Return the seconds to wait after so many failures, so that not all come back at once."""
    longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** (failures - 1))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311  (no secret)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header, None where there is none that can be read."""
    text = headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text[:9])
    try:
        until = parsedate_to_datetime(text)
        # By the clock that the date is of, where it is told.
        told = headers.get("Date")
        now = parsedate_to_datetime(told).timestamp() if told else time.time()
        return max(0.0, until.timestamp() - now)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
