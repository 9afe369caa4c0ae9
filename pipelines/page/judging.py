"""The Tests view: a test tree that a person grows with a language model and the offline proposers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.pipelines.adaptive.expectations import EXPECTATIONS
from slicebeam.pipelines.adaptive.proposers.endpoint import ENDPOINT
from slicebeam.pipelines.adaptive.suggestions.review import TestReview
from slicebeam.pipelines.adaptive.suggestions.verdicts import Label
from slicebeam.pipelines.config.adapt import PROPOSERS, AdaptSuggestConfig, ProposalSources
from slicebeam.pipelines.page.answers import PageRequest, RefusedError, get, labeler_name, post

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.routing import Route

    from slicebeam.pipelines.page.served import ServedOutput

_Id = Annotated[str, Field(min_length=1, max_length=200)]
_Topic = Annotated[str, Field(max_length=2_000)]
_Words = Annotated[str, Field(max_length=100_000)]
# Lines about the last round that are kept for the page.
_NOTES = 20


class _OfTopic(PageRequest):
    focus: _Topic = ""  # The topic whose view is answered.
    name: Annotated[str, Field(max_length=60)] = ""


class _Wanted(_OfTopic):
    number: Annotated[int, Field(ge=1, le=200)] = 20
    proposers: Annotated[tuple[str, ...], Field(max_length=len(PROPOSERS))] = ()
    topics: bool = False


class _Judged(_OfTopic):
    id: _Id
    label: Label


class _Edited(_OfTopic):
    id: _Id
    input: _Words | None = None
    second_input: _Words | None = None
    expectation: _Words | None = None
    value: _Words | None = None
    topic: _Topic | None = None


class _Added(_OfTopic):
    input: Annotated[_Words, Field(min_length=1)]
    second_input: _Words = ""
    expectation: _Words = ""
    value: _Words = ""
    topic: _Topic = ""


class _AddedTopic(_OfTopic):
    topic: Annotated[_Topic, Field(min_length=2)]


class _Removed(_OfTopic):
    ids: Annotated[list[_Id], Field(min_length=1, max_length=1_000)]


class TestJudging:
    """The review of the tree that the command line names; it begins when the page asks for it."""

    __test__ = False

    def __init__(self, served: ServedOutput) -> None:
        self._served, self._lock = served, threading.Lock()
        self._review: TestReview | None = None
        self._notes: list[str] = []

    def review(self) -> TestReview:
        """Return the review."""
        config = self._served.config
        if config.tree is None or config.tree_model is None:
            raise RefusedError(
                "start slicebeam serve with --tree and --tree-model to judge tests", 404
            )
        with self._lock:
            if self._review is None:
                sources = config.model_dump(include=set(ProposalSources.model_fields))
                options = {**sources, "tree": config.tree, "model": config.tree_model}
                options["allow_http"] = config.allow_http
                suggest = AdaptSuggestConfig.model_validate(options)
                self._review = TestReview(suggest, config.tree_baseline_model, self._note)
            return self._review

    def _note(self, line: str) -> None:
        self._notes = [*self._notes, line][-_NOTES:]

    def begin(self) -> dict[str, Any]:
        """Return the tree at its root, or say that there is none."""
        config = self._served.config
        if config.tree is None:
            return {"tree": None}
        self.review().read()
        return {
            "tree": config.tree,
            "model": config.tree_model,
            "baseline": config.tree_baseline_model,
            "proposers": [one for one in PROPOSERS if one != ENDPOINT or config.endpoint],
            "expectations": list(EXPECTATIONS),
            "view": self.review().view(""),
        }

    def suggest(self, request: _Wanted) -> dict[str, Any]:
        """Propose tests for a topic, or topics below it."""
        unknown = [proposer for proposer in request.proposers if proposer not in PROPOSERS]
        if unknown:
            raise OptionError(f"there is no proposer {unknown[0]!r}")
        self._notes = []
        try:
            found = self.review().suggest(
                request.focus, request.number, request.proposers, topics=request.topics
            )
        except InputError as error:
            # Such as that the budget is spent.
            raise InputError("; ".join([*self._notes, str(error)])) from error
        return {"round": found | {"notes": self._notes}}

    def judge(self, request: _Judged) -> None:
        """Label a suggestion or a test."""
        self.review().judge(request.id, request.label, labeler_name(request.name))

    def edit(self, request: _Edited) -> None:
        """Write other texts into a test, or move it."""
        columns = request.model_dump(exclude={"id", "focus", "name"}, exclude_none=True)
        if not columns:
            raise RefusedError("nothing is to be changed", 422)
        self.review().edit(request.id, columns, labeler_name(request.name))

    def add(self, request: _Added) -> None:
        """Add a test by hand."""
        texts = request.model_dump(exclude={"topic", "focus", "name"})
        self.review().add(request.topic, texts, labeler_name(request.name))

    def add_topic(self, request: _AddedTopic) -> dict[str, Any]:
        """Add a topic, and return the view of it."""
        topic = self.review().add_topic(request.topic, labeler_name(request.name))
        return {"view": self.review().view(topic)}


def routes(served: ServedOutput) -> list[Route]:
    """Return the routes of the Tests view, which all answer with the view of a topic."""
    judging = TestJudging(served)

    def viewed(answer: Callable[[Any], dict[str, Any] | None]) -> Callable[[Any], dict[str, Any]]:
        def answered(request: _OfTopic) -> dict[str, Any]:
            found = answer(request) or {}
            return {"view": judging.review().view(request.focus)} | found

        return answered

    return [
        get("/tests", judging.begin),
        post("/tests/topic", _OfTopic, viewed(lambda _: None)),
        post("/tests/suggest", _Wanted, viewed(judging.suggest)),
        post("/tests/judge", _Judged, viewed(judging.judge)),
        post("/tests/edit", _Edited, viewed(judging.edit)),
        post("/tests/add", _Added, viewed(judging.add)),
        post("/tests/add-topic", _AddedTopic, viewed(judging.add_topic)),
        post(
            "/tests/remove", _Removed, viewed(lambda request: judging.review().remove(request.ids))
        ),
        post("/tests/undo", _OfTopic, viewed(lambda _: judging.review().undo())),
    ]
