"""The given labels: yes, no or unsure, each stored as soon as it is known."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.attribution.estimates import NO, UNSURE, YES
from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.storage.storage import open_plain, storage_errors, written_whole
from slicebeam.transforms.storage.strict_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from slicebeam.pipelines.paid_api.api_file import ApiFile
    from slicebeam.pipelines.paid_api.calls import Answer
    from slicebeam.transforms.encode.definitions import Id
    from slicebeam.transforms.storage.storage import StoragePath

NAME = "labels.jsonl"
# Of an item that nobody has labelled yet.
MISSING = -2
WORDS = {YES: "yes", NO: "no", UNSURE: "unsure"}
_CODES = {
    **dict.fromkeys(("yes", "y", "true", "t", "1", "1.0", "case", "positive"), YES),
    **dict.fromkeys(("no", "n", "false", "f", "0", "0.0", "negative"), NO),
    **dict.fromkeys(("unsure", "u", "?", "maybe", "unknown", "unclear"), UNSURE),
}
CHOICES = "yes, no or unsure (y, n, u, true, false, 1, 0)"


def label_of(value: Any) -> int | None:
    """Return the label that a word, a boolean or 0 or 1 stands for, None if it stands for none.

    >>> label_of(" Yes "), label_of(False), label_of("perhaps not")
    (1, 0, None)
    """
    return _CODES.get(str(value).strip().casefold())


def is_label(value: Any) -> bool:
    """Return whether a model's answer is a label."""
    return _said(value) is not None


def label_of_answer(api: ApiFile, answer: Answer | None) -> int:
    """Return the label that an answer stands for, `UNSURE` where it stands for none."""
    if answer is None or answer.problem is not None:
        return UNSURE
    label = _said(api.class_of(answer.value))
    return UNSURE if label is None else label


def _said(value: Any) -> int | None:
    # Models like to end a word by a full stop.
    return None if value is None else label_of(str(value).strip().strip(".!\"'*` "))


@dataclass(frozen=True)
class Label:
    """A label of an item: `YES`, `NO` or `UNSURE`; `at` is ISO text."""

    item: Id
    label: int
    labeler: str
    at: str


class Labels:
    """The labels of a text, an append-only file of which the last line of an item counts.

    Whether words are true of an item does not depend on the slice: all slices share the file.
    """

    def __init__(self, path: StoragePath, text: str) -> None:
        self.path, self.text = path, text
        self._known, self._ends_whole = _read(path)

    @property
    def known(self) -> Mapping[Id, Label]:
        """The latest label of each item."""
        return self._known

    def codes(self, items: Sequence[Id]) -> NDArray[np.int8]:
        """Return the label of each item, int8, `MISSING` where there is none."""
        labels = (self._known.get(item) for item in items)
        return np.array([MISSING if label is None else label.label for label in labels], np.int8)

    def labeler(self, items: Sequence[Id]) -> str:
        """Return the labelers of these items."""
        names = {self._known[item].labeler for item in items if item in self._known}
        return ", ".join(sorted(names)) or "nobody"

    def add(self, labels: Mapping[Id, int], labeler: str) -> int:
        """Keep labels, durably, and return how many replace another one.

        A label that is the same as before stays that of who gave it first.
        """
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        fresh = {
            item: Label(item, label, labeler, at)
            for item, label in labels.items()
            if item not in self._known or self._known[item].label != label
        }
        replaced = sum(item in self._known for item in fresh)
        self._append(fresh)
        return replaced

    def take_back(self, item: Id, before: Label | None) -> None:
        """Put back, durably, what was known of an item before its label; None for nothing."""
        self._append({item: before})

    def _append(self, labels: Mapping[Id, Label | None]) -> None:
        if not labels:
            return
        known = {**self._known, **labels}
        kept = {item: label for item, label in known.items() if label is not None}
        if self._ends_whole and isinstance(self.path, Path):
            # Until it is known to be there: what failed may have written a part of a line.
            self._ends_whole = False
            with storage_errors(self.path, "write"), open_plain(self.path) as stream:
                left = memoryview(b"".join(self._line(*label) for label in labels.items()))
                while left:
                    left = left[stream.write(left) :]
                os.fsync(stream.fileno())
        else:
            with written_whole(self.path) as stream:
                stream.writelines(self._line(*label) for label in kept.items())
        self._known, self._ends_whole = kept, True

    def _line(self, item: Id, label: Label | None) -> bytes:
        record: dict[str, Any] = {"item": item, "text": self.text, "label": None}
        if label is not None:
            record |= {"label": WORDS[label.label], "labeler": label.labeler, "at": label.at}
        return json.dumps(record, ensure_ascii=False).encode("utf-8") + b"\n"


def _read(path: StoragePath) -> tuple[dict[Id, Label], bool]:
    """Return the latest label of each item, and whether the file ends with a whole line.

    The beginning of a last line, which a crash left, is passed over: it was never acknowledged.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}, False
    except OSError:
        with storage_errors(path, "read"):
            raise
    *lines, rest = content.split(b"\n")
    known: dict[Id, Label] = {}
    number = 0
    try:
        for number, line in enumerate(lines, 1):  # noqa: B007
            _apply(line, known)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(
            f"{path.parent.name}/{path.name}, line {number} is damaged: its content has "
            "changed; restore the file, or remove the line to label that item again"
        ) from error
    with suppress(KeyError, TypeError, ValueError):
        _apply(rest, known)
    return known, bool(content) and not rest


def _apply(line: bytes, known: dict[Id, Label]) -> None:
    """Keep the label in a line, or forget the item's where it was taken back."""
    record = parse_json(line.decode("utf-8"))
    item, label = record["item"], record["label"]
    if not isinstance(item, (int, str)):
        raise TypeError
    if label is None:
        known.pop(item, None)
        return
    if (code := label_of(label)) is None:
        raise ValueError
    known[item] = Label(item, code, record["labeler"], record["at"])
