"""The given labels: yes, no or unsure, each stored as soon as it is known."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.attribution.estimates import NO, UNSURE, YES
from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.formats.strict_text import parse_json
from slicebeam.transforms.storage.storage import open_plain, storage_errors, written_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from slicebeam.pipelines.changelist.discovered import Id
    from slicebeam.pipelines.paid_api.api_file import ApiFile
    from slicebeam.pipelines.paid_api.calls import Answer
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
    """A label of an item.

    Attributes
    ----------
    label : `YES`, `NO` or `UNSURE`
    at : when, as ISO text
    """

    item: Id
    label: int
    labeler: str
    at: str


class LabelStore:
    """The labels of a text, in a folder, and those of the same text in the folders next to it.

    Whether words are true of an item does not depend on the slice, so that none is labelled twice.

    Parameters
    ----------
    siblings : folders of the same text and other slices
    """

    def __init__(self, folder: StoragePath, siblings: Iterable[StoragePath], text: str) -> None:
        self.path, self.text = folder / NAME, text
        own, self._ends_whole = _read(self.path, text)
        self._own = {one.item: one for one in own}
        self._known = dict(self._own)
        for other in siblings:
            theirs, _ = _read(other / NAME, text)
            for one in {each.item: each for each in theirs}.values():
                before = self._known.get(one.item)
                if before is None or before.at < one.at:
                    self._known[one.item] = one

    @property
    def known(self) -> Mapping[Id, Label]:
        """The latest label of each item."""
        return self._known

    def codes(self, items: Sequence[Id]) -> NDArray[np.int8]:
        """Return the label of each item, int8, `MISSING` where there is none."""
        found = (self._known.get(item) for item in items)
        return np.array([MISSING if one is None else one.label for one in found], np.int8)

    def labeler(self, items: Sequence[Id]) -> str:
        """Return the labelers of these items."""
        found = (self._known[item].labeler for item in items if item in self._known)
        return ", ".join(sorted(set(found))) or "nobody"

    def add(self, labels: Mapping[Id, int], labeler: str) -> int:
        """Keep labels, durably, and return how many replace another one.

        A label that is the same as before stays that of who gave it first. Labels are appended to the
        file, of which the last line of an item counts.
        """
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        fresh = {
            item: Label(item, label, labeler, at)
            for item, label in labels.items()
            if item not in self._known or self._known[item].label != label
        }
        if not fresh:
            return 0
        replaced = sum(item in self._known for item in fresh)
        if self._ends_whole and isinstance(self.path, Path):
            self._append(self.path, fresh.values())
            self._own |= fresh
        else:
            self._write({**self._own, **fresh})
        self._known |= fresh
        return replaced

    def take_back(self, item: Id, before: Label | None) -> None:
        """Put back, durably, what was known of an item before its label; None for nothing."""
        own, known = dict(self._own), dict(self._known)
        for labels in (own, known):
            labels.pop(item, None)
            if before is not None:
                labels[item] = before
        self._write(own)
        self._known = known

    def adopt(self, items: Iterable[Id]) -> None:
        """Keep what other folders know of items, which may be gone some day."""
        theirs = {
            item: self._known[item]
            for item in items
            if item in self._known and item not in self._own
        }
        if theirs:
            self._write({**self._own, **theirs})

    def _append(self, path: Path, labels: Iterable[Label]) -> None:
        content = b"".join(_line(one, self.text) for one in labels)
        # Until it is known to be there: what failed may have written a part of a line.
        self._ends_whole = False
        with storage_errors(path, "write"), open_plain(path) as stream:
            left = memoryview(content)
            while left:
                left = left[stream.write(left) :]
            os.fsync(stream.fileno())
        self._ends_whole = True

    def _write(self, own: dict[Id, Label]) -> None:
        with written_whole(self.path) as stream:
            stream.writelines(_line(one, self.text) for one in own.values())
        self._own, self._ends_whole = own, True


def _line(one: Label, text: str) -> bytes:
    record = {
        "item": one.item,
        "text": text,
        "label": WORDS[one.label],
        "labeler": one.labeler,
        "at": one.at,
    }
    return json.dumps(record, ensure_ascii=False).encode("utf-8") + b"\n"


def _read(path: StoragePath, text: str) -> tuple[list[Label], bool]:
    """Return the labels of a text in a file, in order, and whether the file ends with a whole line.

    The beginning of a last line, which a crash left, is passed over: it was never acknowledged.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], False
    except OSError:
        with storage_errors(path, "read"):
            raise
    whole, _, rest = content.rpartition(b"\n")
    labels = []
    for number, line in enumerate(whole.split(b"\n") if whole else (), 1):
        one = _label_in(line, text)
        if one is None:
            raise EngineError(
                f"{path.parent.name}/{path.name}, line {number} is damaged: its content has "
                "changed; restore the file, or remove the line to label that item again"
            )
        labels.append(one)
    last = _label_in(rest, text) if rest else None
    mine = [one for one, is_mine in (*labels, *filter(None, [last])) if is_mine]
    return mine, bool(content) and not rest


def _label_in(line: bytes, text: str) -> tuple[Label, bool] | None:
    """Return the label in a line and whether it is of a text; None where the line is damaged."""
    try:
        record = parse_json(line.decode("utf-8"))
        code = label_of(record["label"])
        one = Label(
            record["item"], UNSURE if code is None else code, record["labeler"], record["at"]
        )
        if code is None or not isinstance(one.item, (int, str)):
            return None
        return one, record["text"] == text
    except (KeyError, TypeError, ValueError):
        return None
