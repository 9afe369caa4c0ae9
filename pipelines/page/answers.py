"""Routes that answer JSON with JSON: what they are given is validated, what fails is a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from slicebeam.metrics.errors import SlicebeamError
from slicebeam.transforms.storage.secrets import redacted

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request


class Given(BaseModel):
    """What a request holds; what it does not name is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


_Given = TypeVar("_Given", bound=BaseModel)


class RefusedError(Exception):
    """A request that can't be answered."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def labeler_name(written: str) -> str:
    """Return the name that goes with a label: as it was written in the browser, or ``browser``."""
    name = " ".join(written.split())
    if not name.isprintable():
        raise RefusedError("your name has characters that can't be printed; write it again", 422)
    return name or "browser"


def reads(path: str, answer: Callable[[], Any]) -> Route:
    """Return a route that answers GET."""

    async def endpoint(_: Request) -> Response:
        return _response(await run_in_threadpool(answer))

    return Route(path, endpoint, methods=["GET"])


def takes(path: str, model: type[_Given], answer: Callable[[_Given], Any]) -> Route:
    """Return a route that answers POST; ``answer`` runs in a thread of its own."""

    async def endpoint(request: Request) -> Response:
        try:
            given = model.model_validate_json(await request.body())
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "the request"
            raise RefusedError(f"{place}: {first['msg']}", 422) from error
        return _response(await run_in_threadpool(answer, given))

    return Route(path, endpoint, methods=["POST"])


def _response(content: Any) -> Response:
    return content if isinstance(content, Response) else JSONResponse(content)


def failed(status: int, message: str) -> Response:
    """Return the response that the page shows as an error."""
    return JSONResponse({"error": redacted(message)}, status)


async def on_error(_: Request, error: Exception) -> Response:
    """Answer an error; after a fault of ours the server goes on."""
    if isinstance(error, RefusedError):
        return failed(error.status, str(error))
    if isinstance(error, SlicebeamError):
        return failed(400, str(error))
    if isinstance(error, HTTPException):
        return failed(error.status_code, error.detail)
    reason = (str(error).splitlines() or ["no message"])[0]
    return failed(500, f"unforeseen {type(error).__name__}: {reason}")


HANDLERS: dict[Any, Any] = dict.fromkeys(
    (RefusedError, SlicebeamError, HTTPException, Exception), on_error
)
