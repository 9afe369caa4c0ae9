"""Questions that are put to the API of a file: read, announced, and each paid once."""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.paid_api.api_file import ApiFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from slicebeam.pipelines.paid_api.http_api import HttpApi
    from slicebeam.pipelines.paid_api.ledger import Ledger
    from slicebeam.transforms.storage.storage import StoragePath


def read_api(path: str, option: str) -> ApiFile:
    """Return the API of a file that ``option`` names."""
    try:
        return ApiFile.read(path, os.environ)
    except InputError as error:
        raise InputError(str(error).replace("--api", option)) from None


@contextmanager
def buying(
    api: ApiFile, folder: StoragePath, identity: Mapping[str, str], is_answer: Callable[[Any], bool]
) -> Iterator[tuple[Ledger, HttpApi]]:
    """Open the ledger of a folder, read again by the file's rules, and what buys answers for it.

    ``is_answer`` says whether a value that the API returns is one.
    """
    from slicebeam.pipelines.paid_api.http_api import HttpApi
    from slicebeam.pipelines.paid_api.ledger import Ledger

    counts = api.lost_calls == "count"
    with (
        Ledger.open(folder, identity, count_lost=counts, redact=api.redact) as ledger,
        HttpApi(api, is_answer) as http,
    ):
        ledger.reread(api.answer_in)
        yield ledger, http


def announcement(api: ApiFile, missing: int, of: str) -> str:
    """Return the number of questions and their price."""
    message = f"asking about {missing:,} of {of}"
    if api.price is not None:
        message += f", for about {missing * api.price:,.2f} {api.currency}"
    return message


def text_key(text: str) -> str:
    """Return the key of a question or a text in a ledger: its SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
