"""The Tests view: a test tree that grows against a model, one key for each suggestion."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.adaptive.suggestions.desk import TestDesk
from slicebeam.pipelines.adaptive.suggestions.verdicts import Label
from slicebeam.pipelines.config.adapt import PROPOSERS, AdaptSuggestConfig
from slicebeam.pipelines.page.answers import PageRequest, RefusedError, get, labeler_name, post

if TYPE_CHECKING:
    from starlette.routing import Route

    from slicebeam.pipelines.page.served import ServedOutput

_Id = Annotated[str, Field(min_length=1, max_length=200)]
_Topic = Annotated[str, Field(max_length=2_000)]
_Words = Annotated[str, Field(max_length=100_000)]
# Lines about the last round that are kept for the page.
_NOTES = 20


class _OfTopic(PageRequest):
    topic: _Topic


class _Wanted(_OfTopic):
    number: Annotated[int, Field(ge=1, le=200)] = 20
    proposers: Annotated[tuple[str, ...], Field(max_length=len(PROPOSERS))] = ()


class _Judged(PageRequest):
    id: _Id
    label: Label
    name: Annotated[str, Field(max_length=60)] = ""


class _Edited(PageRequest):
    id: _Id
    input: _Words | None = None
    second_input: _Words | None = None
    output: _Words | None = None
    value: _Words | None = None
    topic: _Topic | None = None


class _Some(PageRequest):
    ids: Annotated[list[_Id], Field(min_length=1, max_length=1_000)]


class TestJudging:
    """The desk of the tree that the command line names; it is opened when the page asks for it."""

    __test__ = False

    def __init__(self, served: ServedOutput) -> None:
        self._served, self._lock = served, threading.Lock()
        self._desk: TestDesk | None = None
        self._notes: list[str] = []

    def desk(self) -> TestDesk:
        """Return the desk."""
        config = self._served.config
        if config.tree is None or config.tree_model is None:
            raise RefusedError(
                "start slicebeam serve with --tree and --tree-model to judge tests", 404
            )
        with self._lock:
            if self._desk is None:
                sources = config.model_dump(
                    include={"pool", "text", "other_tree", "templates", "classes"}
                )
                options = {"tree": config.tree, "model": config.tree_model, **sources}
                suggest = AdaptSuggestConfig.model_validate(options)
                self._desk = TestDesk(suggest, self._served.state, self._note)
                self._served.at_end.callback(self._desk.close)
            return self._desk

    def _note(self, line: str) -> None:
        self._notes = [*self._notes, line][-_NOTES:]

    def begin(self) -> dict[str, Any]:
        """Return the topics of the tree, or say that there is none."""
        config = self._served.config
        if config.tree is None:
            return {"tree": None}
        return {
            "tree": config.tree,
            "model": config.tree_model,
            "topics": self.desk().topics(),
            "proposers": [one for one in PROPOSERS if one != "endpoint"],
        }

    def suggest(self, given: _Wanted) -> dict[str, Any]:
        """Propose tests for a topic."""
        unknown = [proposer for proposer in given.proposers if proposer not in PROPOSERS]
        if unknown:
            raise OptionError(f"there is no proposer {unknown[0]!r}")
        self._notes = []
        found = self.desk().suggest(given.topic, given.number, given.proposers)
        return found | {"notes": self._notes}

    def judge(self, given: _Judged) -> dict[str, Any]:
        """Label a suggestion or a test."""
        return self.desk().judge(given.id, given.label, labeler_name(given.name))

    def edit(self, given: _Edited) -> dict[str, Any]:
        """Write other texts into a test, or move it."""
        columns = given.model_dump(exclude={"id"}, exclude_none=True)
        if not columns:
            raise RefusedError("nothing is to be changed", 422)
        return self.desk().edit(given.id, columns)


def routes(served: ServedOutput) -> list[Route]:
    """Return the routes of the Tests view."""
    judging = TestJudging(served)
    return [
        get("/tests", judging.begin),
        post("/tests/topic", _OfTopic, lambda given: judging.desk().topic(given.topic)),
        post("/tests/suggest", _Wanted, judging.suggest),
        post("/tests/judge", _Judged, judging.judge),
        post("/tests/edit", _Edited, judging.edit),
        post("/tests/remove", _Some, lambda given: judging.desk().remove(given.ids)),
        post("/tests/undo", PageRequest, lambda _: judging.desk().undo()),
    ]
