"""Calls over HTTP: when a call may be sent, its result, and when it is repeated."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NamedTuple

from slicebeam.metrics.errors import EngineError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    import aiohttp

# Seconds before the first call that is made again, doubled each time up to the longest.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
# An API that asks to wait for longer than this is called again by another run.
_MOST_PATIENCE = 3600.0
_PASSING = frozenset({408, 429})


class Response(NamedTuple):
    """The response to a call, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def may_pass(self) -> bool:
        """Whether the same call may be answered later, and is made again."""
        return self.status in _PASSING or self.status >= 500


class NoConnectionError(Exception):
    """A call did not reach the API, and may be made again."""


class UnknownOutcomeError(Exception):
    """A call was sent, but it is unknown whether it was served."""


async def response_of(
    call: Callable[[], AbstractAsyncContextManager[aiohttp.ClientResponse]],
    *,
    where: str,
    timeout: float,
    most_bytes: int,
    describe: Callable[[Exception], str],
) -> Response:
    """Return what comes back of a call, of a body of more than ``most_bytes`` the beginning.

    ``where`` names what gives the address, for errors, and ``describe`` what may be shown of one. It raises
    NoConnectionError or UnknownOutcomeError where there is no answer.
    """
    import aiohttp

    try:
        async with call() as response:
            blocks, size = [], 0
            async for block in response.content.iter_any():
                blocks.append(block)
                size += len(block)
                if size > most_bytes:
                    response.close()
                    break
            return Response(response.status, response.headers, b"".join(blocks))
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NoConnectionError(f"no connection ({describe(error)})") from None
    except asyncio.TimeoutError:
        raise UnknownOutcomeError(f"no answer within {timeout:g} s") from None
    except (aiohttp.InvalidURL, ValueError) as error:
        raise InputError(f"{where}: cannot make a request from it ({describe(error)})") from None
    except (aiohttp.ClientError, OSError) as error:
        raise UnknownOutcomeError(f"a dropped connection ({describe(error)})") from None
    except Exception as error:  # noqa: BLE001  (what else it raises may hold a secret)
        raise EngineError(
            f"{where}: the HTTP client failed: {type(error).__name__} ({describe(error)}); "
            "please report it"
        ) from None


class Pace:
    """Lets the calls of several tasks leave in order, at most so many a second; None for any number."""

    def __init__(self, rate_limit: float | None = None) -> None:
        self.rate_limit = rate_limit
        # By the clock of time.monotonic.
        self._slot = self._paused_until = 0.0

    def pause_as_requested(self, response: Response, who: str, kept: str) -> float | None:
        """Hold all calls for as long as a response asks; return the seconds, if any.

        More than an hour is an error, which ``who`` begins and ``kept`` ends.
        """
        seconds = retry_after(response.headers)
        if seconds is None:
            return None
        if seconds > _MOST_PATIENCE:
            raise EngineError(f"{who} asks for a wait of {seconds / 3600:.1f} hours; {kept}")
        self._paused_until = max(self._paused_until, time.monotonic() + seconds)
        return seconds

    async def turn(self, ended: asyncio.Event) -> bool:
        """Wait until a call may leave; False if none may any more."""
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
    """Return the seconds to wait after this many failures, with jitter."""
    longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** (failures - 1))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311  (no secret)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header, None if there is none that can be read."""
    text = headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text[:9])
    try:
        until = parsedate_to_datetime(text)
        # By the clock that the date is of, where the answer gives it.
        date = headers.get("Date")
        now = parsedate_to_datetime(date).timestamp() if date else time.time()
        return max(0.0, until.timestamp() - now)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
