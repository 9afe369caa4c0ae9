"""What threads of a job that failed still report stays out of the user's terminal."""

import logging
import threading

import pytest

from slicebeam.runner_configs.job_log import logged_to


def _heard(monkeypatch):
    """Return what reaches a process without handlers; called by the test, as pytest sets some."""
    seen = []
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    last = logging.Handler()
    last.emit = lambda record: seen.append(record.getMessage())
    monkeypatch.setattr(logging, "lastResort", last)
    monkeypatch.setattr(threading, "excepthook", lambda details: seen.append(details.exc_value))
    return seen


def _complain(gate, words):
    gate.wait()
    logging.getLogger("apache_beam").error(words)
    raise ValueError(words)


def _started(words):
    gate = threading.Event()
    thread = threading.Thread(target=_complain, args=(gate, words))
    thread.start()
    return gate, thread


def _let(gate, thread):
    gate.set()
    thread.join()


def test_threads_of_a_failed_job_are_quiet(monkeypatch, tmp_path):
    heard = _heard(monkeypatch)
    within, left = [], []

    def job():
        with logged_to(tmp_path / "log"):
            within.extend(_started("within"))
            left.extend(_started("left"))
            _let(*within)
            raise RuntimeError("lost")

    with pytest.raises(RuntimeError):
        job()
    _let(*left)
    assert heard == []
    written = (tmp_path / "log").read_text()
    assert "ValueError: within" in written
    assert "left" not in written
    _let(*_started("later"))
    assert [str(one) for one in heard] == ["later", "later"]


def test_threads_of_a_job_that_ended_well_are_heard(monkeypatch, tmp_path):
    heard = _heard(monkeypatch)
    with logged_to(tmp_path / "log"):
        left = _started("left")
    _let(*left)
    assert [str(one) for one in heard] == ["left", "left"]
