"""The testing loop of a person and a model: each verdict is in the tree's file before the next suggestion is shown."""

from __future__ import annotations

import hashlib
import math
import threading
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.adaptive.expectations import NO_OUTPUT, parse_expectation
from slicebeam.pipelines.adaptive.failure_scores import fails
from slicebeam.pipelines.adaptive.paid_outputs import SharedBudget
from slicebeam.pipelines.adaptive.proposers.endpoint import ENDPOINT
from slicebeam.pipelines.adaptive.proposers.families import ORIGIN
from slicebeam.pipelines.adaptive.suggestions.suggest import (
    PROBES,
    class_names,
    propose,
    score_column,
    write_suggestions,
)
from slicebeam.pipelines.adaptive.suggestions.target import ModelUnderTest
from slicebeam.pipelines.adaptive.suggestions.verdicts import Label, judged
from slicebeam.pipelines.adaptive.text_models import text_model
from slicebeam.pipelines.adaptive.topics import displayed, encoded
from slicebeam.pipelines.adaptive.tree import FAIL, ID, PASS, TOPIC_MARKER, Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import read_tree, write_tree
from slicebeam.transforms.storage.publish import sha256_of
from slicebeam.transforms.storage.storage import open_input, storage_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from slicebeam.metrics.arrays import FloatArray
    from slicebeam.pipelines.config.adapt import AdaptSuggestConfig

# Tests of a topic that are shown, and tests of the tree that are scored.
MOST_SHOWN, _MOST_SCORED = 200, 20_000
# Tests whose classes are looked up in the model before the first view.
_MOST_CHECKED = 2_000
_MOST_UNDONE = 100


@dataclass(frozen=True)
class _State:
    tree: TestTree
    scores: FloatArray  # [rows of the tree], NaN where a row has none.
    # By id, those that fail most first: tests with the output of the model, and failure scores.
    suggested: dict[str, tuple[Test, float]]
    rejected: frozenset[str] = frozenset()


class TestReview:
    """A tree that a person and proposers grow, and the suggestions that wait for a verdict."""

    __test__ = False

    def __init__(
        self, config: AdaptSuggestConfig, baseline: str | None, note: Callable[[str], None]
    ) -> None:
        self.config, self.note = config, note
        self._lock, self._proposing = threading.RLock(), threading.Lock()
        self._undo: deque[_State] = deque(maxlen=_MOST_UNDONE)
        self.remarks: list[str] = []
        self._read, self._state = "", _State(TestTree.of_tests([]), np.zeros(0), {})
        tree = read_tree(config.tree)
        self.target = self._target(config.model, "--tree-model", tree)
        self.baseline: ModelUnderTest | None = None
        if baseline is not None:
            self.baseline = self._target(baseline, "--tree-baseline-model", tree)
        checked = np.flatnonzero(tree.is_test)[:_MOST_CHECKED]
        for target in (self.target, *([self.baseline] if self.baseline else [])):
            if not target.has_pairs:
                target.outputs(PROBES)
            target.row_scores(tree, checked, checks_classes=True)
        self.read()

    def _target(self, model: str, option: str, tree: TestTree) -> ModelUnderTest:
        target = ModelUnderTest(
            text_model(model),
            SharedBudget(None),
            storage_path(self.config.tree),
            self.remarks.append,
            has_pairs=bool((tree.column("second_input") != "").any()),
            names=class_names(self.config, tree),
        )
        if target.is_paid:
            raise InputError(
                f"{option} {model}: its answers cost money, and the page asks it at every key; give a model "
                "that costs nothing, or use slicebeam adapt suggest with --budget"
            )
        return target

    def _digest(self) -> str:
        with open_input(storage_path(self.config.tree)) as stream:
            return sha256_of(stream)

    def read(self) -> None:
        """Read the tree and the suggestions of the last round, unless the tree is as it was read."""
        with self._lock:
            digest = self._digest()
            if digest != self._read:
                # A topic whose last test is moved away stays.
                tree = read_tree(self.config.tree).with_markers()
                scores = self._scores_after(self._state, tree, tree.column(ID).tolist())
                self._state = _State(tree, scores, self._kept(tree), self._state.rejected)
                self._read = digest
                self._undo.clear()

    def _kept(self, tree: TestTree) -> dict[str, tuple[Test, float]]:
        """Return the suggestions in the file, of this program or of adapt suggest."""
        if not storage_path(self.config.suggestions).exists():
            return {}
        kept = read_tree(self.config.suggestions)
        known = tree.known(kept.column(ID).tolist())
        name = score_column(self.config.model)
        found = {}
        for test in kept.rows(kept.is_test):
            if test.id not in known:
                other = {key: value for key, value in test.other.items() if key != name}
                score = _number(test.other.get(name, ""))
                found[test.id] = replace(test, other=other), score
        return found

    def _scores_after(self, before: _State, tree: TestTree, changed: Collection[str]) -> FloatArray:
        """Return the scores of a tree's rows; those that are new or changed are scored."""
        ids = tree.table[ID].combine_chunks()
        places = pc.fill_null(pc.index_in(ids, before.tree.table[ID].combine_chunks()), -1)
        at = places.to_numpy(zero_copy_only=False)
        is_same = (at >= 0) & ~np.isin(tree.column(ID), list(changed))
        scores = np.full(len(tree), np.nan)
        scores[is_same] = before.scores[at[is_same]]
        rows = np.flatnonzero(tree.is_test & ~is_same)[:_MOST_SCORED]
        scores[rows] = self.target.row_scores(tree, rows)
        return scores

    def _become(
        self,
        tree: TestTree | None = None,
        changed: Collection[str] = (),
        suggested: dict[str, tuple[Test, float]] | None = None,
        rejected: Collection[str] = (),
    ) -> None:
        """Write what changes, first the tree; an error leaves all as it was."""
        old = self._state
        new = _State(
            old.tree if tree is None else tree,
            old.scores if tree is None else self._scores_after(old, tree, changed),
            old.suggested if suggested is None else suggested,
            old.rejected | frozenset(rejected),
        )
        self._write(new)
        self._undo.append(old)

    def _write(self, new: _State) -> None:
        if new.tree is not self._state.tree:
            if self._digest() != self._read:
                raise InputError(
                    f"{self.config.tree} was changed by another program, and nothing was written; load the page "
                    "again, and repeat the last step"
                )
            self._read = hashlib.sha256(write_tree(new.tree, self.config.tree)).hexdigest()
        # After a crash here, what is in the tree is not suggested again.
        old, self._state = self._state, new
        if new.suggested != old.suggested:
            write_suggestions(self.config, list(new.suggested.values()))

    def view(self, topic: str) -> dict[str, Any]:
        """Return the topics, the tests of a topic that fail most, and the suggestions that wait."""
        with self._lock:
            state = self._state
        tree = state.tree
        topic = encoded(topic, tree.topics())
        rows = np.flatnonzero(tree.is_test & tree.within(topic))
        order = np.argsort(-np.nan_to_num(state.scores[rows], nan=-1.0), kind="stable")
        shown = rows[order][:MOST_SHOWN]
        tests = self._with_outputs(list(tree.rows(shown)))
        tests_in, failing_in = tree.totals(tree.is_test), tree.totals(fails(state.scores))
        return {
            "topic": topic,
            "topics": [
                {
                    "topic": name,
                    "shown": displayed(name),
                    "tests": tests_in[name],
                    "failing": failing_in[name],
                }
                for name in tree.topics()
            ],
            "tests": self._shown(list(zip(tests, state.scores[shown].tolist(), strict=True))),
            "total": int(rows.size),
            "scored": int(np.isfinite(state.scores[rows]).sum()),
            "suggestions": self._shown(list(state.suggested.values())),
            "undo": bool(self._undo),
            "remarks": self.remarks,
        }

    def _shown(self, scored: Sequence[tuple[Test, float]]) -> list[dict[str, Any]]:
        """Return tests and scores as the page shows them, with what the old model says."""
        before: list[Any] = [None] * len(scored)
        if self.baseline is not None and scored:
            tests = [test for test, _ in scored]
            rows, tree = np.arange(len(tests)), TestTree.of_tests(tests)
            old = self.baseline.row_scores(tree, rows, with_guesses=True).tolist()
            before = list(zip(self.baseline.answers_to(tests), old, strict=True))
        return [_row(*one, old) for one, old in zip(scored, before, strict=True)]

    def _with_outputs(self, tests: list[Test]) -> list[Test]:
        """Return tests with the output that a verdict is about.

        That is what the label says of the output in the file, else what the model says now.
        """
        asked = [one for one in tests if one.expectation or one.output in NO_OUTPUT]
        now = {one.id: said for one, said in zip(asked, self.target.answers_to(asked), strict=True)}
        return [replace(one, output=now.get(one.id, one.output)) for one in tests]

    def suggest(
        self, topic: str, number: int, proposers: Sequence[str], *, topics: bool = False
    ) -> dict[str, Any]:
        """Propose tests in place of those that wait, or topics, and say what each proposer found."""
        if not self._proposing.acquire(blocking=False):
            raise InputError("tests are being proposed in another window; wait for them")
        try:
            update: dict[str, Any] = {"topic": topic, "proposals": number, "topics": topics}
            update["proposer"] = chosen = tuple(proposers) or self.config.proposer
            # Once a suggestion was rejected, other tests are drawn.
            update["seed"] = self.config.seed + len(self._state.rejected)
            if chosen and ENDPOINT not in chosen:
                update |= {"endpoint": None, "budget": None, "ledger": None}
            found = propose(self.config.model_copy(update=update), self.note)
        finally:
            self._proposing.release()
        if not topics:
            with self._lock:
                known = self._state.tree.known([one.test.id for one in found.tests])
                known |= self._state.rejected
                new = [one for one in found.tests if one.test.id not in known]
                self._become(suggested={one.test.id: (one.test, one.score) for one in new})
        return {
            "new_topics": [
                {"topic": name, "shown": displayed(name), "proposer": proposer}
                for name, proposer in found.topics
            ],
            "yields": [asdict(one) | {"per_hundred": one.per_hundred} for one in found.yields],
        }

    def judge(self, id_: str, label: Label, labeler: str) -> None:
        """Take a suggestion into the tree, or change a test of it, so that it expects what a verdict says.

        The verdict is on the output that the page shows.
        """
        with self._lock:
            suggested = dict(self._state.suggested)
            waiting = suggested.pop(id_, None)
            if waiting is not None:
                shown, score = waiting
            else:
                (shown,) = self._with_outputs([self._known(id_)])
                score = self._score(shown)
            columns: dict[str, Any] = judged(shown, shown.output, score, label)
            columns["labeler"] = labeler
            tree = self._state.tree
            if waiting is not None:
                tree = tree.add([replace(shown, **columns)])
            else:
                tree = tree.change([id_], **columns)
            self._become(tree, [id_], suggested)

    def edit(self, id_: str, columns: dict[str, str], labeler: str) -> None:
        """Write other texts into a test or a suggestion, or move it; it is scored anew.

        What a person says that a test expects is no guess any more.
        """
        with self._lock:
            tree, waiting = self._state.tree, self._state.suggested.get(id_)
            before = self._known(id_) if waiting is None else waiting[0]
            changed: dict[str, Any] = dict(columns)
            if "topic" in changed:
                changed["topic"] = encoded(changed["topic"], tree.topics())
            test = replace(before, **changed)
            if {"expectation", "value"} & changed.keys():
                changed |= self._expected(test, labeler, is_in_tree=waiting is None)
                test = replace(before, **changed)
            if waiting is None:
                self._become(tree.change([id_], **changed), [id_])
                return
            scored = self.target.score([test])
            test = replace(test, output=scored.outputs[0] or "")
            suggested = {id_: (test, float(scored.failures[0]))}
            self._become(suggested=self._state.suggested | suggested)

    def _expected(self, test: Test, labeler: str, *, is_in_tree: bool = True) -> dict[str, str]:
        """Return the columns of a test whose expectation a person wrote; in a tree the label agrees."""
        if not test.expectation:
            if test.value:
                raise InputError(
                    f"choose what the test expects of {test.value!r}, or leave it empty"
                )
            return {"label": "", "labeler": ""}
        parse_expectation(test.expectation)
        self.target.refuse_foreign_classes([test])
        scored = self.target.score([replace(test, labeler=labeler, label="")])
        score = float(scored.failures[0])
        if not is_in_tree or math.isnan(score):
            return {"label": "", "labeler": labeler}
        label = FAIL if fails(score) else PASS
        return {"label": label, "labeler": labeler, "output": scored.outputs[0] or ""}

    def add(self, topic: str, texts: dict[str, Any], labeler: str) -> None:
        """Add a test of ``texts`` by hand, by column; one that expects nothing waits for a verdict."""
        with self._lock:
            tree = self._state.tree
            test = Test(encoded(topic, tree.topics()), **texts)
            if bool(test.second_input) != self.target.has_pairs:
                raise InputError(
                    "the tests of this tree are pairs: write a second input"
                    if self.target.has_pairs
                    else "the tests of this tree are single texts: leave the second input empty"
                )
            columns: dict[str, Any] = self._expected(test, labeler)
            if test.expectation:
                self._become(tree.add([replace(test, **columns)]), [test.id])
            else:
                test = replace(test, output=self.target.answers_to([test])[0])
                self._become(suggested={test.id: (test, math.nan)} | self._state.suggested)

    def add_topic(self, topic: str, labeler: str) -> str:
        """Add an empty topic, and return it as the tree writes it."""
        with self._lock:
            tree = self._state.tree
            topic = encoded(topic, tree.topics())
            if topic in tree.topics():
                raise InputError(f"there is a topic {displayed(topic)} already")
            marker = Test(topic, "", label=TOPIC_MARKER, labeler=labeler)
            self._become(tree.add([marker]))
            return topic

    def remove(self, ids: Sequence[str]) -> None:
        """Take tests out of the tree, and reject suggestions."""
        with self._lock:
            suggested = {
                id_: one for id_, one in self._state.suggested.items() if id_ not in set(ids)
            }
            known = self._state.tree.known(ids)
            tree = self._state.tree.remove(known) if known else None
            self._become(tree, (), suggested, self._state.suggested.keys() - suggested.keys())

    def undo(self) -> None:
        """Take the last change back."""
        with self._lock:
            if not self._undo:
                raise InputError("there is nothing to undo since the tree was read")
            self._write(self._undo[-1])
            self._undo.pop()

    def _score(self, test: Test) -> float:
        return float(self.target.row_scores(TestTree.of_tests([test]), np.array([0]))[0])

    def _known(self, id_: str) -> Test:
        try:
            return self._state.tree.test(id_)
        except KeyError:
            raise InputError(
                f"there is no test {id_[:80]!r} any more; load the page again"
            ) from None


def _number(text: str) -> float:
    with suppress(ValueError):
        return float(text)
    return math.nan


def _row(test: Test, score: float, before: tuple[str | None, float] | None) -> dict[str, Any]:
    """Return a test as the page shows it."""
    columns = ("id", "topic", "input", "second_input", "output", "label", "labeler", "expectation")
    row: dict[str, Any] = {name: getattr(test, name) for name in (*columns, "value")}
    row |= {
        "shown_topic": displayed(test.topic),
        "origin": test.other.get(ORIGIN, ""),
        "is_guess": test.is_guess,
        "score": _finite(score),
        "before": before and {"output": before[0] or "", "score": _finite(before[1])},
    }
    return row


def _finite(score: float) -> float | None:
    return None if math.isnan(score) else float(score)
