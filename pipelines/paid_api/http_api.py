"""Buys answers from an HTTP API: many calls at once, each recorded before and after.

The cost of a failure decides what follows: a free call is made again; for a call with an unknown
outcome the file decides whether it is repeated or counted as paid; an answer without a class is
paid like any other.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError, InputError, OptionError, install_hint
from slicebeam.pipelines.paid_api.calls import Answer
from slicebeam.transforms.http.calls import (
    NoConnectionError,
    Pace,
    UnknownOutcomeError,
    backoff,
    response_of,
    rest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import aiohttp
    from typing_extensions import Self

    from slicebeam.pipelines.paid_api.api_file import ApiFile
    from slicebeam.pipelines.paid_api.calls import Item
    from slicebeam.pipelines.paid_api.ledger import Ledger
    from slicebeam.pipelines.paid_api.request_templates import Request
    from slicebeam.transforms.http.calls import Response

# Seconds that an interrupted run gives the calls in flight, which are paid.
_GRACE = 5.0
# Servers close connections that nobody uses for a while, and what is sent just then is lost.
_KEPT_ALIVE = 4.0
_CONNECTS_WITHIN = 10.0
_LARGEST_BODY = 16 << 20
_SHOWN = 200
_WRONG_REQUEST = frozenset({401, 403, 404, 405})
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class HttpApi:
    """An API that answers over HTTP; a context, in which its connections stay open.

    ``is_class`` says whether what `ApiFile.class_of` returns is a class that is known.
    """

    def __init__(self, api: ApiFile, is_class: Callable[[Any], bool] = lambda _: True) -> None:
        try:
            import aiohttp  # noqa: F401
        except ImportError as error:
            raise OptionError(f"--api needs aiohttp; {install_hint('api')}") from error
        self.api, self.is_class = api, is_class
        self.pace = Pace(api.rate_limit)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: aiohttp.ClientSession | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            try:
                self._loop.run_until_complete(self._close())
            finally:
                self._loop.close()
                self._loop = self._session = None

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await asyncio.get_running_loop().shutdown_asyncgens()

    async def session(self) -> aiohttp.ClientSession:
        """Return what holds the connections, made in the loop that uses it."""
        import aiohttp

        if self._session is None:
            api = self.api
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=api.concurrency, keepalive_timeout=_KEPT_ALIVE
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=api.timeout, sock_connect=min(_CONNECTS_WITHIN, 0.8 * api.timeout)
                ),
                headers={"User-Agent": "slicebeam"},
            )
            # Requests of methods that change nothing would be sent again behind the ledger's back.
            self._session._retry_connection = False  # noqa: SLF001
        return self._session

    def has_class(self, answer: Answer) -> bool:
        """Whether an answer gives a class."""
        if answer.problem is not None:
            return False
        value = self.api.class_of(answer.value)
        return value is not None and self.is_class(value)

    def buy(
        self,
        items: Sequence[Item],
        ledger: Ledger,
        most_calls: int | None = None,
        on_answer: Callable[[Answer], None] | None = None,
    ) -> None:
        """Buy the answers to items that the ledger has none of, in their order, each key once.

        It returns when each has one, or is lost for good, or the budget is spent: ``most_calls`` is that of the
        ledger as a whole, earlier runs too. ``on_answer`` gets each new answer once it is durable. Interrupted,
        it gives the calls in flight some seconds.
        """
        api = self.api
        if ledger.count_lost != (api.lost_calls == "count"):
            raise ValueError(f"lost_calls is {api.lost_calls!r}, but the ledger counts otherwise")
        purchase = _Purchase(self, items, ledger, most_calls, on_answer)
        if not purchase.items:
            return
        if self._loop is None:
            raise ValueError("calls are made inside of the context")
        with _signals(self._loop, purchase.end):
            self._loop.run_until_complete(purchase.make())


@contextmanager
def _signals(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> Iterator[None]:
    """Let signals that would raise in the midst of the loop end it first, and raise afterwards."""
    before: dict[int, Any] = {}
    received: list[int] = []

    def note(number: int) -> None:
        received.append(number)
        end()

    if threading.current_thread() is threading.main_thread():
        # Those that end the process at once, or are ignored, continue doing so.
        before = {one: now for one in _SIGNALS if callable(now := signal.getsignal(one))}
    for number in before:
        loop.add_signal_handler(number, note, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
        if received:
            before[received[0]](received[0], None)


class _Purchase:
    """One purchase: its tasks, and what they share; parameters as for `HttpApi.buy`."""

    def __init__(
        self,
        http: HttpApi,
        items: Iterable[Item],
        ledger: Ledger,
        most_calls: int | None,
        on_answer: Callable[[Answer], None] | None,
    ) -> None:
        self.http, self.api, self.ledger, self.on_answer = http, http.api, ledger, on_answer
        known = {*ledger.answers, *(ledger.lost if ledger.count_lost else ())}
        wanted: dict[str, Item] = {}
        for item in items:
            if item.key not in known:
                wanted.setdefault(item.key, item)
        # An item takes one call of the budget, whatever becomes of it: retries follow free failures only.
        left = None if most_calls is None else max(most_calls - ledger.calls, 0)
        self.items = list(wanted.values())[:left]
        self._answered = 0
        self._shown = ""
        self._reason: str | None = None
        self._proven = self.api.stop_after == 0
        self._ended = asyncio.Event()
        self._failure: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._in_vain = asyncio.Semaphore(0)

    def end(self) -> None:
        """Make no further call at a signal; cancel those in flight at the second one."""
        if self._ended.is_set():
            self._cancel()
        self._end(_GRACE)

    def _end(self, grace: float) -> None:
        """Make no further call, and cancel those in flight after some seconds."""
        self._ended.set()
        self._release(len(self._tasks))
        asyncio.get_running_loop().call_later(grace, self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def make(self) -> None:
        """Make the calls."""
        session, pending = await self.http.session(), iter(self.items)
        # Until an answer gives a class, no more calls are made than may be in vain.
        self._release(self._check_first())

        async def work() -> None:
            try:
                for item in pending:
                    if not self._proven:
                        await self._in_vain.acquire()
                    if self._ended.is_set():
                        return
                    await self._buy(session, item)
            except Exception as error:  # noqa: BLE001  (raised when the others have ended)
                self._failure = self._failure or error
                self._end(self.api.timeout)

        number = min(self.api.concurrency, len(self.items))
        self._tasks = [asyncio.create_task(work()) for _ in range(number)]
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._failure is not None:
            raise self._failure

    def _release(self, calls: int) -> None:
        for _ in range(calls):
            self._in_vain.release()

    async def _buy(self, session: aiohttp.ClientSession, item: Item) -> None:
        """Ask until there is an answer, or nothing more to hope for."""
        api, ledger = self.api, self.ledger
        request = api.request(item)
        if api.idempotency_header is not None:
            request.headers[api.idempotency_header] = ledger.idempotency_key(item.key)
        failures, progress = 0, self._answered
        while await self.http.pace.turn(self._ended):
            await ledger.sent(item.key)
            wait = None
            try:
                response = await self._call(session, request)
                if not response.may_pass:
                    await self._note(item, response)
                    return
                reason = f"HTTP {response.status}"
                await ledger.failed(item.key, reason)
                wait = self.http.pace.pause_as_requested(
                    response,
                    f"{api.path}: {reason}: the API",
                    f"the answers so far are in {ledger.folder}",
                )
                # An API that is busy with the other calls has nothing against this one.
                if response.status == 429 and self._answered > progress:
                    failures, progress = 0, self._answered
            except NoConnectionError as error:
                reason = str(error)
                await ledger.failed(item.key, reason)
            except UnknownOutcomeError as error:
                reason = str(error)
                ledger.lose(item.key)
                if ledger.count_lost:
                    # Another item takes its place among the first ones.
                    self._in_vain.release()
                    return
            except asyncio.CancelledError:
                ledger.lose(item.key)
                raise
            failures += 1
            if failures > api.retries:
                raise self._exhausted(item, reason, failures)
            if wait is None:
                await rest(self._ended, backoff(failures))

    async def _call(self, session: aiohttp.ClientSession, request: Request) -> Response:
        from yarl import URL

        return await response_of(
            lambda: session.request(
                self.api.method,
                URL(request.address, encoded=True),
                data=request.body,
                headers=request.headers,
                allow_redirects=False,
            ),
            where=f"{self.api.path}, url",
            timeout=self.api.timeout,
            most_bytes=_LARGEST_BODY,
            describe=self._described,
        )

    async def _note(self, item: Item, response: Response) -> None:
        """Note what is answered, where the request as such is not refused."""
        api, status = self.api, response.status
        if status in _WRONG_REQUEST or status < 200 or 300 <= status < 400:
            await self.ledger.failed(item.key, f"HTTP {status}")
            raise self._refused(response)
        value, problem = (None, f"HTTP {status}") if status >= 400 else api.answer_in(response.body)
        answer = Answer(item.key, value, problem)
        has_class = self.http.has_class(answer)
        text = "" if has_class else response.body.decode("utf-8", "replace")
        await self.ledger.answered(answer, text, mendable=status < 300)
        self._answered += 1
        if not self._proven:
            self._shown, self._reason = text, problem
            self._check_first()
        if self.on_answer is not None:
            self.on_answer(self.ledger.answers[item.key])

    def _check_first(self) -> int:
        """Return how many more calls may be in vain; refuse first answers of which none gives a class."""
        number = self.api.stop_after
        first = list(islice(self.ledger.answers.values(), number))
        if self._proven or any(map(self.http.has_class, first)):
            self._proven = True
            self._release(len(self._tasks))
            return 0
        if len(first) < number:
            return number - len(first)
        if not self._answered:
            self._shown = next((self.ledger.bodies.get(answer.key, "") for answer in first), "")
            self._reason = first[-1].problem
        none = "none of them is a class of the pool"
        if self.api.labels is not None and all(
            self.api.class_of(answer.value) is None for answer in first
        ):
            none = "none of them is a key of 'labels'"
        why = self._reason or none
        keys = "'answer'" if self._reason else "'answer' or 'labels'"
        if why.startswith("HTTP"):
            keys = "'json', 'params' or 'url', with another --ledger"
        raise InputError(
            f"{self.api.path}: none of the first {number} answers is a class "
            f"({self.api.redact(why)}); one is {self._excerpt(self._shown) or 'empty'}\n"
            f"correct {keys}, or set stop_after: 0; the answers are stored in "
            f"{self.ledger.folder}, and using them again costs nothing"
        )

    def _refused(self, response: Response) -> InputError:
        status = response.status
        text = self._excerpt(response.body.decode("utf-8", "replace"))
        if 300 <= status < 400:
            place = self.api.redact(response.headers.get("Location", "nowhere"))[:_SHOWN]
            return InputError(
                f"{self.api.path}, url: HTTP {status}: it redirects to {place}, to which no "
                "headers are sent; if you trust that address, put it in the file"
            )
        remedy = {
            401: "check the secrets in the environment, and 'headers'",
            403: "check what the secrets in the environment permit",
            405: "mend 'method'",
        }.get(status, "mend 'url'")
        return InputError(f"{self.api.path}: HTTP {status}: {text or 'no text'}\n{remedy}")

    def _exhausted(self, item: Item, reason: str, times: int) -> EngineError:
        often = "once" if times == 1 else f"{times} times"
        return EngineError(
            f"{self.api.path}: {reason} {often} for item {item.key!r}; the answers so far are in "
            f"{self.ledger.folder}"
        )

    def _excerpt(self, text: str) -> str:
        return " ".join(self.api.redact(text).split())[:_SHOWN]

    def _described(self, error: Exception) -> str:
        return self._excerpt(str(error) or type(error).__name__)
