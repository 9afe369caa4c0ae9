from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

from slicebeam.transforms.http import calls as http_calls


def test_dates_to_wait_for_are_by_the_clock_of_the_api():
    assert http_calls.retry_after({"Date": at(3000), "Retry-After": at(3090)}) == 90
    assert http_calls.retry_after({"Retry-After": at(-90)}) == 0
    assert http_calls.retry_after({"Retry-After": at(90_000)}) == pytest.approx(90_000, abs=600)
    assert http_calls.retry_after({"Retry-After": "17"}) == 17


def at(seconds):
    return format_datetime(datetime.now(timezone.utc) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize("text", ["", "soon", "-3", "1.5.2", "Wed, 99 Foo 2026"])
def test_a_wait_that_cannot_be_read_is_none(text):
    assert http_calls.retry_after({"Retry-After": text}) is None


def test_waits_grow_up_to_a_minute():
    waits = [[http_calls.backoff(failures) for _ in range(200)] for failures in range(1, 14)]
    for failures, drawn in enumerate(waits):
        longest = min(60.0, 0.5 * 2.0**failures)
        assert 0.5 * longest <= min(drawn) < 0.6 * longest
        assert 0.9 * longest < max(drawn) <= longest
