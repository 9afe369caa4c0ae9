"""Labels without a person: from a recorded column, or a language model behind an API."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.attribution.estimates import NO, UNSURE, YES
from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.pipelines.attribution.labels import is_label, label_of, label_of_answer
from slicebeam.pipelines.attribution.population import positions_of
from slicebeam.pipelines.attribution.sheets import rows_of
from slicebeam.pipelines.attribution.state import text_hash
from slicebeam.pipelines.paid_api.calls import Item
from slicebeam.pipelines.paid_api.questions import announcement, buying, read_api
from slicebeam.transforms.encode.column import python_values
from slicebeam.transforms.storage.storage import beneath, storage_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from slicebeam.pipelines.attribution.labels import Labels
    from slicebeam.pipelines.attribution.population import SlicePopulation
    from slicebeam.pipelines.paid_api.calls import Answer
    from slicebeam.transforms.encode.definitions import Id
    from slicebeam.transforms.storage.storage import StoragePath

# The column of a template that stands for the words.
TEXT = "attribution_text"
_MOST_SHOWN = 5


class Labeler(Protocol):
    """The source of labels: whether words are true of items."""

    def label(self, items: Sequence[Id], population: SlicePopulation, store: Labels) -> None:
        """Put a label of each item into the store; fewer where the user stopped it."""


class RecordedLabels:
    """Labels from a column of the data.

    ``positive``: values of which the words are true; none for a column of booleans, of 0 and 1, or
    of yes, no and unsure.
    """

    def __init__(self, column: str, positive: Sequence[str]) -> None:
        self.column, self.positive = column, tuple(positive)

    def label(self, items: Sequence[Id], population: SlicePopulation, store: Labels) -> None:
        """Look up the labels; unrecorded ones are unsure."""
        column = population.data.column(self.column)
        if self.positive:
            self._check_positive(column)
        values = python_values(column.take(pa.array(positions_of(population.data.ids, items))))
        labels = dict(zip(items, map(self._label, values), strict=True))
        store.add(labels, f"column {self.column}")

    def _label(self, value: Any) -> int:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return UNSURE
        if self.positive:
            return YES if any(_is(value, one) for one in self.positive) else NO
        label = label_of(value)
        if label is None:
            raise OptionError(
                f"--labels {self.column}: {value!r} is not a label; name the values that mean yes "
                "with --positive"
            )
        return label

    def _check_positive(self, column: pa.Array) -> None:
        values = python_values(pc.unique(column))
        for one in self.positive:
            if not any(_is(value, one) for value in values):
                shown = ", ".join(map(repr, values[:_MOST_SHOWN]))
                raise OptionError(
                    f"--positive {one!r}: column {self.column!r} has no such value; its values "
                    f"are {shown}{', …' if len(values) > _MOST_SHOWN else ''}"
                )


def _is(value: Any, written: str) -> bool:
    """Whether a value is the one that was written on a command line."""
    if isinstance(value, bool):
        return str(value).casefold() == written.casefold()
    if isinstance(value, (int, float)):
        try:
            return float(value) == float(written)
        except ValueError:
            return False
    return str(value) == written


class LanguageModel:
    """Labels bought from an API, described by a file as for ``slicebeam shift --api``.

    In the file ``{attribution_text}`` stands for the words, and ``{column}`` for a column that shows
    an item. An answer that is not a label is unsure; each is paid once.
    """

    def __init__(
        self, path: str, ledger: str | None, labels_dir: StoragePath, note: Callable[[str], None]
    ) -> None:
        self.api = read_api(path, "--llm")
        if TEXT not in self.api.columns:
            raise InputError(
                f"{path}: no {{{TEXT}}} is in url, params, json or headers, so the model would "
                "not know which words to judge; add it to the prompt"
            )
        if not set(self.api.columns) - {TEXT}:
            raise InputError(
                f"{path}: no {{column}} that shows an item is in url, params, json or headers; "
                "add one to the prompt"
            )
        name = f"ledger-{self.api.identity[:10]}"
        self._folder = storage_path(ledger, "--ledger") if ledger else beneath(labels_dir, name)
        self._name, self._note = f"llm {storage_path(path).name}", note

    def label(self, items: Sequence[Id], population: SlicePopulation, store: Labels) -> None:
        """Buy an answer for each item; paid answers are always stored."""
        api = self.api
        rows = rows_of(population, items)
        keys = {f"{item} {text_hash(store.text)}": item for item in items}
        wanted = [Item(key, {**row, TEXT: store.text}) for key, row in zip(keys, rows, strict=True)]
        for one in wanted:
            # What no request can be made of is said before anything is paid.
            api.request(one)
        counts = api.lost_calls == "count"
        with buying(api, self._folder, {"api": api.identity}, is_label) as (ledger, http):
            missing = [key for key in keys if key not in ledger.answers]
            paid = len(keys) - len(missing)
            of = f"{len(keys):,} items" + (f" ({paid:,} already paid)" if paid else "")
            self._note(announcement(api, len(missing), of))
            try:
                http.buy(wanted, ledger, ledger.calls + len(missing))
            finally:
                self._keep(keys, ledger.answers, ledger.lost if counts else {}, store)

    def _keep(
        self,
        keys: Mapping[str, Id],
        answers: Mapping[str, Answer],
        lost: Mapping[str, int],
        store: Labels,
    ) -> None:
        """Store the answers; a paid call that was lost has none."""
        labels = {item: UNSURE for key, item in keys.items() if key in lost}
        for key, item in keys.items():
            if key in answers:
                labels[item] = label_of_answer(self.api, answers[key])
        store.add(labels, self._name)
