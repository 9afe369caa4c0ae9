"""Who labels which item of a slice and a text, and what the labels say so far."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.attribution.estimating import assess
from slicebeam.pipelines.attribution.rounds import estimate
from slicebeam.pipelines.attribution.session import check_plan
from slicebeam.pipelines.attribution.sheets import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from slicebeam.pipelines.attribution.labels import Label
    from slicebeam.pipelines.attribution.rounds import Finished
    from slicebeam.pipelines.attribution.session import Plan, Session
    from slicebeam.pipelines.changelist.discovered import Id
    from slicebeam.pipelines.changelist.document import SearchChangeList

# Seconds that an item is kept for who got it, and items that are read from the data at once.
_KEPT, _READ = 600.0, 32
# Labels of each labeler that can be undone.
_UNDONE = 1_000
# Characters of a field; what is longer is said to be.
_LONGEST = 100_000


@dataclass(frozen=True)
class _Claim:
    """An item that a labeler has before them."""

    item: Id
    until: float


@dataclass(frozen=True)
class _Key:
    """A label as a labeler gave it, and what was known of the item before."""

    given: Label
    before: Label | None


class LabelDesk:
    """Hands the items of a session out, one at a time, and keeps every label at once.

    Several labelers get different items. An item that its labeler has not labelled within ten minutes
    goes to another; if both label it, both labels are in the file, and the later one counts.

    Parameters
    ----------
    session : of the slice and the text, which is this process's
    clock : seconds that only grow
    """

    def __init__(self, session: Session, clock: Callable[[], float] = time.monotonic) -> None:
        self.session, self._clock = session, clock
        self._lock, self._has_ended = threading.Lock(), False
        self._claims: dict[str, _Claim] = {}
        self._keys: dict[str, deque[_Key]] = {}
        self._shown: dict[Id, list[tuple[str, str]]] = {}

    def begin(self, budget: int, *, is_train: bool = False) -> None:
        """Go on with the round whose items are not all labelled, or draw a new one.

        Parameters
        ----------
        is_train : whether a new one is to train a classifier with

        Raises
        ------
        InputError
            Every example was drawn before, or a sheet is wrong.
        """
        with self._held():
            self.session.sample(budget, is_train=is_train)

    def shown(self, labeler: str) -> dict[str, Any]:
        """Return what a labeler sees: an item of their own, and what the labels say so far."""
        with self._held():
            return self._all(labeler)

    def end(self) -> None:
        """Wait for what is being kept, and take nothing more."""
        with self._lock:
            self._has_ended = True

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self._lock:
            if self._has_ended:
                raise InputError(
                    "this labelling was ended in another window; begin it again: no label is lost"
                )
            yield

    def label(self, labeler: str, name: str, written: str, label: int) -> dict[str, Any]:
        """Keep a label of an item, durably, and return what its labeler sees next.

        After the last label of a round it is looked whether the labels suffice.

        Parameters
        ----------
        labeler : identifies the browser
        name : of the labeler, as the file has it
        written : id of the item, as text
        label : `YES`, `NO` or `UNSURE`

        Raises
        ------
        InputError
            The item was not drawn.
        """
        with self._held():
            store, rounds = self.session.store, self.session.state.rounds
            drawn = (one for each in rounds for one in each.asked if str(one) == written)
            item = next(drawn, None)
            if item is None:
                raise InputError(f"item {written[:100]!r} was not drawn to be labelled")
            before = store.known.get(item)
            store.add({item: label}, name)
            now = store.known[item]
            if now is not before:
                self._keys.setdefault(labeler, deque(maxlen=_UNDONE)).append(_Key(now, before))
            if item == self._item_of(labeler):
                del self._claims[labeler]
            if not self.session.open_items:
                self.session.look()
            return self._all(labeler)

    def undo(self, labeler: str) -> dict[str, Any]:
        """Take a labeler's last label back and show its item again.

        Raises
        ------
        InputError
            There is none, or another labeler has labelled the item since.
        """
        with self._held():
            keys = self._keys.get(labeler)
            if not keys:
                raise InputError("there is no label of yours to undo since this page was opened")
            key = keys.pop()
            item = key.given.item
            if self.session.store.known.get(item) != key.given:
                raise InputError(
                    f"item {item!r} has been labelled by {self.session.store.labeler([item])} since; "
                    "your label before that can be undone next"
                )
            self.session.store.take_back(item, key.before)
            self._claims[labeler] = _Claim(item, self._clock() + _KEPT)
            return self._all(labeler)

    def look(self, labeler: str) -> dict[str, Any]:
        """Count that it was looked, and return what the labels say with the decision."""
        with self._held():
            self.session.look()
            return self._all(labeler)

    def publish(self, uri: str, document: SearchChangeList) -> Finished:
        """Write a revision with the estimates, as ``slicebeam attribute estimate`` does.

        Parameters
        ----------
        uri, document : the last revision, from which the new one goes on
        """
        with self._held():
            self.session.follow(uri, document)
            return estimate(self.session)

    def check_plan(self, plan: Plan) -> None:
        """Refuse a labeler who plans otherwise than the first one."""
        with self._held():
            check_plan(plan, self.session.state)

    def _item_of(self, labeler: str) -> Id | None:
        claim = self._claims.get(labeler)
        return None if claim is None else claim.item

    def _claim(self, labeler: str, waiting: Sequence[Id]) -> Id | None:
        """Return the item of a labeler: the one they have, or the first that no other one has."""
        now = self._clock()
        own = self._item_of(labeler)
        self._claims = {
            who: one for who, one in self._claims.items() if who != labeler and one.until > now
        }
        taken = {one.item for one in self._claims.values()}
        free = [item for item in waiting if item not in taken]
        if not free:
            return None
        item = own if own in free else free[0]
        self._claims[labeler] = _Claim(item, now + _KEPT)
        return item

    def _fields(self, item: Id, waiting: Sequence[Id]) -> list[tuple[str, str]]:
        """Return what shows an item; that of those after it is read with it."""
        if item not in self._shown:
            at = waiting.index(item)
            some = [one for one in waiting[at : at + _READ] if one not in self._shown]
            rows = rows_of(self.session.population, some)
            self._shown = {
                one: [(name, _text(value)) for name, value in row.items() if name != "item"]
                for one, row in zip(some, rows, strict=True)
            }
        return self._shown[item]

    def _all(self, labeler: str) -> dict[str, Any]:
        session = self.session
        waiting = session.open_items
        item = self._claim(labeler, waiting)
        others = len({one.item for who, one in self._claims.items() if who != labeler})
        shown: dict[str, Any] = {
            "slice_id": session.slice.slice_id,
            "name": session.slice.name,
            "text": session.plan.text,
            "item": None,
            "left": len(waiting),
            "others": others,
            "drawn": sum(len(one.asked) for one in session.state.rounds),
            "undo": bool(self._keys.get(labeler)),
            "standing": self._standing(),
            "labels": str(session.store.path),
        }
        if item is not None:
            shown["item"] = {"id": str(item), "fields": self._fields(item, waiting)}
        return shown

    def _standing(self) -> dict[str, Any]:
        """Return the estimates so far; the decision only where it was looked at these very labels.

        Whoever ends when the numbers please them needs as many looks as there are labels: so the
        decision comes with a look, of which the number was planned.
        """
        state, evidence = self.session.state, self.session.evidence
        standing: dict[str, Any] = {
            "looks": state.looks,
            "looked": len(state.looked),
            "decision": None,
            "least_precision": state.least_precision,
            "least_recall": state.least_recall,
            "labelled": len(
                {
                    one
                    for each in state.rounds
                    for one in each.items
                    if one in self.session.store.known
                }
            ),
        }
        if not evidence.inside.size and not evidence.outside.item.size:
            return standing
        assessed = assess(state, evidence, "")
        for name in ("precision", "recall", "missed"):
            found = getattr(assessed.attribution, name)
            standing[name] = found.model_dump(mode="json", exclude_none=True)
        standing["notes"] = list(assessed.notes)
        if evidence.digest in state.looked:
            standing["decision"] = assessed.decision
        return standing


def _text(value: Any) -> str:
    if value is None:
        return "missing"
    text = str(value)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… ({len(text):,} characters)"
