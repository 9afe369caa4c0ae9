"""Labels for ``slicebeam attribute``, given in the browser: into the same files, one key at a time."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from slicebeam.metrics.attribution.estimates import NO, UNSURE, YES
from slicebeam.metrics.errors import SlicebeamError
from slicebeam.pipelines.attribution.session import LabelPaths, Plan, session
from slicebeam.pipelines.attribution.state import folder_name, read_state
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.serve.answers import Given, RefusedError, labeler_name, reads, takes
from slicebeam.pipelines.serve.editing import WRITING
from slicebeam.pipelines.serve.label_desk import LabelDesk

if TYPE_CHECKING:
    from starlette.routing import Route

    from slicebeam.pipelines.attribution.state import State
    from slicebeam.pipelines.serve.served import ServedOutput
    from slicebeam.transforms.storage.storage import StoragePath

_LABELS: dict[str, int] = {"yes": YES, "no": NO, "unsure": UNSURE}
# Folders of labels that are listed, and sessions whose examples are held in memory at a time.
_LISTED, _MOST = 200, 8
_Text = Annotated[str, Field(min_length=1, max_length=2_000)]


class _Begun(Given):
    """A request to label. Without a budget it goes on with what was drawn.

    Attributes
    ----------
    train : whether new items are to train a classifier with, instead of to estimate from
    """

    slice_id: Annotated[str, Field(min_length=1, max_length=200)]
    text: _Text
    labeler: Annotated[str, Field(min_length=8, max_length=64)]
    budget: Annotated[int | None, Field(ge=1, le=100_000)] = None
    train: bool = False
    looks: Annotated[int | None, Field(ge=1, le=100)] = None
    least_precision: Annotated[float | None, Field(ge=0, le=1)] = None
    least_recall: Annotated[float | None, Field(ge=0, le=1)] = None


class _AtDesk(Given):
    """A request of a labeler, who is known by what their browser made up."""

    desk: Annotated[str, Field(max_length=300)]
    labeler: Annotated[str, Field(min_length=8, max_length=64)]


class _Labelled(_AtDesk):
    """A label; ids are written out, since a browser rounds large numbers."""

    name: Annotated[str, Field(max_length=60)] = ""
    item: Annotated[str, Field(max_length=100_000)]
    label: Literal["yes", "no", "unsure"]


class _Desk(Given):
    desk: Annotated[str, Field(max_length=300)]


@dataclass
class LabelDesks:
    """The sessions that are open in this server, each of a slice and a text.

    While a session is open here, ``slicebeam attribute`` refuses it; it ends with `close`, or with
    the server.

    Attributes
    ----------
    served : the output
    """

    served: ServedOutput
    _open: dict[str, tuple[LabelDesk, ExitStack]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _opening: threading.Lock = field(default_factory=threading.Lock)
    _is_registered: bool = False

    def begin(self, given: _Begun) -> dict[str, Any]:
        """Open a session, or go on with one that is open, and return what the labeler sees."""
        name = folder_name(given.slice_id, given.text)
        # Who labels already need not wait until another slice's examples are read.
        with self._opening:
            found = self._open.get(name)
            if found is not None:
                found[0].check_plan(_plan(given))
            else:
                if len(self._open) >= _MOST:
                    raise RefusedError(
                        f"{_MOST} slices are being labelled here; end the labelling of one first",
                        409,
                    )
                found = self._opened(given)
                with self._lock:
                    self._open[name] = found
                if not self._is_registered:
                    self.served.at_end.callback(self.close_all)
                    self._is_registered = True
        desk = found[0]
        try:
            if given.budget is not None:
                desk.begin(given.budget, is_train=given.train)
            return self._answer(name, desk.shown(given.labeler))
        except BaseException:
            if not desk.session.state.rounds:
                self.close(name)
            raise

    def _opened(self, given: _Begun) -> tuple[LabelDesk, ExitStack]:
        # Imported here, where it is used, since it imports Beam.
        from slicebeam.pipelines.define.examples import open_population

        now, config = self.served.latest(), self.served.config
        population, document, one = open_population(
            now.uri, given.slice_id, data=config.data or None, confirmed=config.confirmed
        )
        with ExitStack() as stack:
            opened = stack.enter_context(
                session(
                    population,
                    document,
                    one,
                    _plan(given),
                    LabelPaths.of(now.uri, None),
                    begins=given.budget is not None,
                )
            )
            return LabelDesk(opened), stack.pop_all()

    def desk(self, name: str) -> LabelDesk:
        """Return a session that is open.

        Raises
        ------
        RefusedError
            It is not open, perhaps since the server was started again.
        """
        with self._lock:
            found = self._open.get(name)
        if found is None:
            raise RefusedError(
                "this labelling is not open any more; begin it again: no label is lost", 410
            )
        return found[0]

    def label(self, given: _Labelled) -> dict[str, Any]:
        """Keep a label and return what its labeler sees next."""
        desk = self.desk(given.desk)
        name = labeler_name(given.name)
        shown = desk.label(given.labeler, name, given.item, _LABELS[given.label])
        return self._answer(given.desk, shown)

    def undo(self, given: _AtDesk) -> dict[str, Any]:
        """Take the labeler's last label back."""
        return self._answer(given.desk, self.desk(given.desk).undo(given.labeler))

    def look(self, given: _AtDesk) -> dict[str, Any]:
        """Look whether the labels suffice."""
        return self._answer(given.desk, self.desk(given.desk).look(given.labeler))

    def publish(self, given: _Desk) -> dict[str, Any]:
        """Write the estimates into the next revision, and end the session."""
        desk = self.desk(given.desk)
        with WRITING:
            now = self.served.latest()
            if not isinstance(now.document, SearchChangeList):
                raise RefusedError("the document has no slices any more", 409)
            finished = desk.publish(now.uri, now.document)
        self.close(given.desk)
        return {
            "decision": finished.assessed.decision,
            "revision": None if finished.document is None else finished.document.name,
            "proposed": None if finished.proposed is None else finished.proposed.name,
        }

    def end(self, given: _Desk) -> dict[str, Any]:
        """End a session; its labels stay."""
        self.close(given.desk)
        return {}

    def close(self, name: str) -> None:
        """Let others have a session."""
        with self._lock:
            found = self._open.pop(name, None)
        if found is not None:
            found[0].end()
            found[1].close()

    def close_all(self) -> None:
        """Let others have all sessions."""
        for name in list(self._open):
            self.close(name)

    def listed(self) -> dict[str, Any]:
        """Return the slices and texts of which there are labels or items to label."""
        folder = LabelPaths.of(self.served.latest().uri, None).labels_dir
        found = []
        for path in _folders(folder):
            with suppress(SlicebeamError):
                state = read_state(path)
                if state is not None:
                    found.append(_summary(state, is_open=path.name in self._open))
        return {"labels": found, "folder": str(folder)}

    def _answer(self, name: str, shown: dict[str, Any]) -> dict[str, Any]:
        return {"desk": name, **shown}


def _plan(given: _Begun) -> Plan:
    return Plan(
        given.text,
        looks=given.looks,
        least_precision=given.least_precision,
        least_recall=given.least_recall,
    )


def _folders(folder: StoragePath) -> list[StoragePath]:
    if not isinstance(folder, Path):
        # Each of them would be a request.
        return []
    return [*sorted(folder.iterdir())[:_LISTED]] if folder.is_dir() else []


def _summary(state: State, *, is_open: bool) -> dict[str, Any]:
    return {
        "slice_id": state.slice_id,
        "text": state.text,
        "drawn": len({item for one in state.rounds for item in one.asked}),
        "open": is_open,
    }


def routes(served: ServedOutput) -> list[Route]:
    """Return the routes of labelling."""
    desks = LabelDesks(served)
    return [
        reads("/labels", desks.listed),
        takes("/labels/begin", _Begun, desks.begin),
        takes("/labels/label", _Labelled, desks.label),
        takes("/labels/undo", _AtDesk, desks.undo),
        takes("/labels/look", _AtDesk, desks.look),
        takes("/labels/publish", _Desk, desks.publish),
        takes("/labels/end", _Desk, desks.end),
    ]
