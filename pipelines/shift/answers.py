"""The source of new predictions: recorded, bought from an API, or from a model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from slicebeam.metrics.errors import shortened
from slicebeam.pipelines.paid_api.calls import Item
from slicebeam.transforms.encode.column import python_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.pipelines.paid_api.calls import Answer
    from slicebeam.pipelines.paid_api.ledger import Ledger
    from slicebeam.pipelines.shift.pool import PoolItems

# Codes of an answer that is not a class, and of a call that was paid perhaps and never answered.
NO_RESULT, LOST = -1, -2
# Items whose fields are in memory at a time: images of 100 kB are 100 MB.
_READ_TOGETHER = 1024


class AnswerSource(Protocol):
    """A source of answers: recorded predictions, a model or an API."""

    def codes(self, items: IntArray, most_calls: int | None) -> IntArray:
        """Return the code of the class of each item's answer, `NO_RESULT` or `LOST`.

        Items are positions among the candidates; of ``most_calls`` that may still be paid some may
        be of items queried before.
        """


@dataclass(frozen=True)
class RecordedAnswers:
    """Answers from a column of the pool."""

    recorded: NDArray[np.int32]

    def codes(self, items: IntArray, most_calls: int | None) -> IntArray:  # noqa: ARG002
        """Return the recorded answers."""
        return self.recorded[items].astype(np.int64)


class Classes:
    """Converts an answer to the code of its class, compared in an Arrow type."""

    def __init__(self, classes: Sequence[Any], class_type: str) -> None:
        self._codes = {value: code for code, value in enumerate(classes)}
        self._is_text = class_type == "string"

    def code(self, value: Any) -> int:
        """Return the code of a class, `NO_RESULT` where it is none of those of the pool.

        An answer that spells a number as text is that number.
        """
        if self._is_text:
            return self._codes.get(value, NO_RESULT) if isinstance(value, str) else NO_RESULT
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return NO_RESULT
        # true is 1, and 1.0 is 1.
        return self._codes.get(value, NO_RESULT) if isinstance(value, (int, float)) else NO_RESULT


@dataclass
class LedgerAnswers:
    """Answers bought from an API, or stored in the ledger.

    ``read``: the fields of requests by the positions of items in the data, which are read when they are
    asked about. ``buy``: makes the calls that the ledger has no answer of: items, and how many calls it
    may hold in the end. ``class_of``: returns the class that an answer stands for, None for none.
    ``replayed``: answers that the ledger had before this run.
    """

    items: PoolItems
    classes: Classes
    ledger: Ledger
    read: Callable[[IntArray], pa.Table]
    buy: Callable[[Sequence[Item], int | None], None]
    class_of: Callable[[Any], Any]
    replayed: int = 0

    def codes(self, items: IntArray, most_calls: int | None) -> IntArray:
        """Return the answers after buying those that the ledger does not have."""
        keys = self.items.keys.take(items).to_pylist()
        had = [key in self.ledger.answers for key in keys]
        lost = set(self.ledger.lost) if self.ledger.count_lost else set()
        gone = sum(key in lost for key in keys)
        self.replayed += sum(had)
        missing = items[~np.array(had, bool)]
        if missing.size > gone:
            limit = None
            if most_calls is not None:
                # Of those that may be paid some are in the ledger already.
                limit = self.ledger.calls + most_calls - sum(had) - gone
            for begin in range(0, missing.size, _READ_TOGETHER):
                self.buy(self._described(missing[begin : begin + _READ_TOGETHER]), limit)
        answers = self.ledger.answers
        return np.array([self._code(answers.get(key)) for key in keys], np.int64)

    def without_class(self, items: IntArray) -> list[tuple[str, int]]:
        """Return why answers are no class, and how many for each reason, the most frequent first."""
        reasons: Counter[str] = Counter()
        for key in self.items.keys.take(items).to_pylist():
            answer = self.ledger.answers.get(key)
            if answer is not None and self._code(answer) == NO_RESULT:
                reasons[answer.problem or shortened(repr(answer.value))] += 1
        return reasons.most_common()

    def _described(self, items: IntArray) -> list[Item]:
        keys = self.items.keys.take(items).to_pylist()
        rows, place = np.unique(self.items.row[items], return_inverse=True)
        fields = python_rows(self.read(rows).take(pa.array(place)))
        return [Item(key, row) for key, row in zip(keys, fields, strict=True)]

    def _code(self, answer: Answer | None) -> int:
        if answer is None:
            return LOST
        if answer.problem is not None:
            return NO_RESULT
        return self.classes.code(self.class_of(answer.value))
