"""Keeps the labels of transforms unchanged in a notebook."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def own_labels() -> Iterator[None]:
    """Let Beam put no number of a cell before labels.

    For that it loads its interactive runner, which needs packages of its own and fails beside pandas 3
    (Beam 2.77).
    """
    # Here, since worker processes are started before this one loads Beam.
    from apache_beam import pipeline

    before = pipeline.alter_label_if_ipython
    pipeline.alter_label_if_ipython = lambda *_: None
    try:
        yield
    finally:
        pipeline.alter_label_if_ipython = before
