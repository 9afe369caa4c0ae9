"""Labelling session of the browser: labels in the files of ``slicebeam attribute``, a key at a time."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from slicebeam.metrics.attribution.estimates import NO, UNSURE, YES
from slicebeam.metrics.errors import InputError, SlicebeamError
from slicebeam.pipelines.attribution.estimating import assess
from slicebeam.pipelines.attribution.population import SlicePopulation
from slicebeam.pipelines.attribution.session import LabelPaths, check_plan, estimate, session
from slicebeam.pipelines.attribution.sheets import rows_of
from slicebeam.pipelines.attribution.state import Plan, folder_name, read_state
from slicebeam.pipelines.changelist.edits import find_slice
from slicebeam.pipelines.page.answers import PageRequest, RefusedError, get, labeler_name, post
from slicebeam.pipelines.page.editing import WRITING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.routing import Route

    from slicebeam.pipelines.attribution.labels import Label
    from slicebeam.pipelines.attribution.session import Session
    from slicebeam.pipelines.page.served import ServedOutput
    from slicebeam.transforms.encode.definitions import Id

_CODES = {"yes": YES, "no": NO, "unsure": UNSURE}
# Folders that are listed, items read from the data at once, characters of a field that are sent.
_LISTED, _READ, _LONGEST = 200, 32, 100_000


class _Begin(PageRequest):
    """A slice and the words to label it by. Without a budget, labelling goes on with what was drawn."""

    slice_id: Annotated[str, Field(min_length=1, max_length=200)]
    text: Annotated[str, Field(min_length=1, max_length=2_000)]
    budget: Annotated[int | None, Field(ge=1, le=100_000)] = None
    train: bool = False
    looks: Annotated[int | None, Field(ge=1, le=100)] = None
    least_precision: Annotated[float | None, Field(ge=0, le=1)] = None
    least_recall: Annotated[float | None, Field(ge=0, le=1)] = None


class _OfSession(PageRequest):
    """A request about the open session: a tab that was left behind must not label for another slice."""

    desk: Annotated[str, Field(max_length=300)]


class _Label(_OfSession):
    """A label; the item's id is text, since JavaScript rounds large numbers."""

    item: Annotated[str, Field(max_length=100_000)]
    label: Literal["yes", "no", "unsure"]
    name: Annotated[str, Field(max_length=60)] = ""


@dataclass
class Labelling:
    """The open session of this server: one slice and text, which ``slicebeam attribute`` then refuses."""

    served: ServedOutput
    _session: Session | None = None
    _open: ExitStack = field(default_factory=ExitStack)
    # Labelled items of this session, each with the label before, for undo.
    _labelled: list[tuple[Id, Label | None]] = field(default_factory=list)
    _fields: dict[Id, list[tuple[str, str]]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def begin(self, request: _Begin) -> dict[str, Any]:
        """Open a session, or continue the open one, and return the item to label."""
        plan = Plan(
            request.text,
            looks=request.looks,
            least_precision=request.least_precision,
            least_recall=request.least_recall,
        )
        with self._lock:
            now = self._session
            if now is not None and now.folder.name == folder_name(request.slice_id, request.text):
                check_plan(plan, now.state)
            else:
                now = self._opened(request, plan)
            try:
                if request.budget is not None:
                    now.sample(request.budget, is_train=request.train)
                return self._shown(now)
            except BaseException:
                if not now.state.rounds:
                    self.close()
                raise

    def _opened(self, request: _Begin, plan: Plan) -> Session:
        self.close()
        data, document = self.served.opened.of(self.served), self.served.search()
        labelled = find_slice(document, request.slice_id)
        population = SlicePopulation(data, data.members_of(labelled.definition))
        place = LabelPaths.of(self.served.latest().uri, None)
        self._session = self._open.enter_context(
            session(population, document, labelled, plan, place, begins=request.budget is not None)
        )
        return self._session

    @contextmanager
    def _of(self, request: _OfSession) -> Iterator[Session]:
        with self._lock:
            if self._session is None or self._session.folder.name != request.desk:
                raise RefusedError(
                    "this labelling is not open any more; begin it again: no label is lost", 410
                )
            yield self._session

    def label(self, request: _Label) -> dict[str, Any]:
        """Store a label durably; the last label of a round is followed by a look."""
        name = labeler_name(request.name)
        with self._of(request) as now:
            drawn = {str(item): item for drawn in now.state.rounds for item in drawn.asked}
            if request.item not in drawn:
                raise InputError(f"item {request.item[:100]!r} was not drawn to be labelled")
            item = drawn[request.item]
            before = now.store.known.get(item)
            now.store.add({item: _CODES[request.label]}, name)
            if now.store.known[item] is not before:
                self._labelled.append((item, before))
            if not now.open_items:
                now.look()
            return self._shown(now)

    def undo(self, request: _OfSession) -> dict[str, Any]:
        """Take the last label of this session back, and show its item again."""
        with self._of(request) as now:
            if not self._labelled:
                raise InputError("there is no label to undo since this labelling was begun")
            item, before = self._labelled.pop()
            now.store.take_back(item, before)
            return self._shown(now, item)

    def look(self, request: _OfSession) -> dict[str, Any]:
        """Count a look, and return the estimates with the decision."""
        with self._of(request) as now:
            now.look()
            return self._shown(now)

    def publish(self, request: _OfSession) -> dict[str, Any]:
        """Write the estimates into the next revision, and end the session."""
        with WRITING, self._of(request) as now:
            now.follow(self.served.latest().uri, self.served.search())
            finished = estimate(now)
            self.served.look_again()
            self.close()
        return {
            "decision": finished.assessed.decision,
            "revision": None if finished.document is None else finished.document.name,
            "proposed": None if finished.proposed is None else finished.proposed.name,
        }

    def end(self, request: _OfSession) -> dict[str, Any]:
        """End the session; its labels stay."""
        with suppress(RefusedError), self._of(request):
            self.close()
        return {}

    def close(self) -> None:
        """Let others have the labels."""
        with self._lock:
            self._open.close()
            self._session = None
            self._labelled.clear()
            self._fields.clear()

    def listed(self) -> dict[str, Any]:
        """Return the slices and texts for which items were drawn."""
        folder = LabelPaths.of(self.served.latest().uri, None).labels_dir
        # In a bucket each folder would be a request.
        paths: list[Path] = []
        if isinstance(folder, Path) and folder.is_dir():
            paths = sorted(folder.iterdir())[:_LISTED]
        now, listed = self._session, []
        for path in paths:
            with suppress(SlicebeamError):
                if path.is_dir() and (state := read_state(path)) is not None:
                    drawn = {item for drawn in state.rounds for item in drawn.asked}
                    named = {"slice_id": state.slice_id, "text": state.text, "drawn": len(drawn)}
                    is_open = now is not None and now.folder.name == path.name
                    listed.append({**named, "open": is_open})
        return {"labels": listed, "folder": str(folder)}

    def _shown(self, now: Session, item: Id | None = None) -> dict[str, Any]:
        """Return the next item, or the one that was taken back, and the estimates so far."""
        waiting = now.open_items
        if item not in waiting:
            item = waiting[0] if waiting else None
        if item is not None and item not in self._fields:
            some = waiting[waiting.index(item) :][:_READ]
            self._fields = {
                item: [(name, _text(value)) for name, value in row.items() if name != "item"]
                for item, row in zip(some, rows_of(now.population, some), strict=True)
            }
        return {
            "desk": now.folder.name,
            "slice_id": now.slice.slice_id,
            "name": now.slice.name,
            "text": now.plan.text,
            "item": None if item is None else {"id": str(item), "fields": self._fields[item]},
            "left": len(waiting),
            "drawn": sum(len(drawn.asked) for drawn in now.state.rounds),
            "undo": bool(self._labelled),
            "standing": _standing(now),
            "labels": str(now.store.path),
        }


def _standing(now: Session) -> dict[str, Any]:
    """Return the estimates so far; the decision only for labels that were looked at.

    Whoever stops when the numbers please needs as many looks as labels: so a decision takes a look, of
    which the number was planned.
    """
    state, evidence = now.state, now.evidence
    drawn = {item for round_ in state.rounds for item in round_.items}
    standing: dict[str, Any] = {
        "looks": state.looks,
        "looked": len(state.looked),
        "decision": None,
        "least_precision": state.least_precision,
        "least_recall": state.least_recall,
        "labelled": sum(item in now.store.known for item in drawn),
    }
    if not evidence.inside.size and not evidence.outside.item.size:
        return standing
    assessed = assess(state, evidence, "")
    for name in ("precision", "recall", "missed"):
        found = getattr(assessed.attribution, name)
        standing[name] = found.model_dump(mode="json", exclude_none=True)
    if evidence.digest in state.looked:
        standing["decision"] = assessed.decision
    return standing | {"notes": list(assessed.notes)}


def _text(value: Any) -> str:
    text = "missing" if value is None else str(value)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… ({len(text):,} characters)"


def routes(served: ServedOutput) -> list[Route]:
    """Return the routes of labelling."""
    labelling = Labelling(served)
    served.at_end.callback(labelling.close)
    return [
        get("/labels", labelling.listed),
        post("/labels/begin", _Begin, labelling.begin),
        post("/labels/label", _Label, labelling.label),
        post("/labels/undo", _OfSession, labelling.undo),
        post("/labels/look", _OfSession, labelling.look),
        post("/labels/publish", _OfSession, labelling.publish),
        post("/labels/end", _OfSession, labelling.end),
    ]
