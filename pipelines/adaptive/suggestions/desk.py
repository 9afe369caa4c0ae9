"""The desk where a person judges suggestions: what was judged is on the disk before the next one comes.

Each key appends a line to a journal, which is synced. The tree's file is written a moment later, all
of it at once. After a crash the journal is applied to the file again; every change names the ids of
its tests, so that applying it twice, or to a file that another program has changed, does no harm.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.errors import InputError, SlicebeamError
from slicebeam.pipelines.adaptive.expectations import NO_OUTPUT
from slicebeam.pipelines.adaptive.failure_scores import fails
from slicebeam.pipelines.adaptive.paid_outputs import SharedBudget
from slicebeam.pipelines.adaptive.proposers.families import ORIGIN
from slicebeam.pipelines.adaptive.scoring import scorable_tests
from slicebeam.pipelines.adaptive.suggestions.suggest import (
    PROBES,
    class_names,
    score_column,
    suggest,
)
from slicebeam.pipelines.adaptive.suggestions.target import ModelUnderTest
from slicebeam.pipelines.adaptive.suggestions.verdicts import Label, judged
from slicebeam.pipelines.adaptive.text_models import text_model
from slicebeam.pipelines.adaptive.topics import displayed, is_topic
from slicebeam.pipelines.adaptive.tree import ID, Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import read_tree, write_tree
from slicebeam.transforms.storage.publish import sha256_of
from slicebeam.transforms.storage.storage import open_input, storage_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicebeam.pipelines.config.adapt import AdaptSuggestConfig

# Tests of a topic that are shown, and scored for it: those that fail most.
MOST_SHOWN, _MOST_SCORED = 200, 20_000
# Tests whose classes are looked up in the model before the desk is opened.
_MOST_CHECKED = 2_000
# Keys that can be undone, and seconds after the last one until the tree's file is written.
_UNDONE, _IDLE = 1_000, 1.0
_JOURNAL, _SUGGESTED = "judged.jsonl", "suggestions.csv"


@dataclass(frozen=True)
class TreeChange:
    """A change of a tree that may be made twice."""

    add: tuple[Test, ...] = ()  # Tests; those whose id is there already are left.
    remove: tuple[str, ...] = ()  # Ids; those that are not there are passed over.
    columns: dict[str, dict[str, str]] | None = None  # Of tests, by id and name.

    def of(self, tree: TestTree) -> TestTree:
        """Return the tree with the change."""
        known = self._known(tree)
        gone = [one for one in self.remove if one in known]
        if gone:
            tree = tree.remove(gone)
        new = [one for one in self.add if one.id not in known]
        if new:
            tree = tree.add(new)
        for id_, columns in (self.columns or {}).items():
            if id_ in known:
                tree = tree.change([id_], **columns)
        return tree

    def _known(self, tree: TestTree) -> set[str]:
        """Return the ids, of those that it names, that are in a tree."""
        return tree.known([*self.remove, *(one.id for one in self.add), *(self.columns or {})])

    def inverse(self, tree: TestTree) -> TreeChange:
        """Return what undoes the change of a tree."""
        known = self._known(tree)
        before = {
            id_: {name: getattr(tree.test(id_), name) for name in columns}
            for id_, columns in (self.columns or {}).items()
            if id_ in known
        }
        return TreeChange(
            tuple(tree.test(one) for one in self.remove if one in known),
            tuple(one.id for one in self.add if one.id not in known),
            before,
        )

    def line(self) -> bytes:
        """Return it as a line of the journal."""
        parts = {
            "add": [asdict(one) for one in self.add],
            "remove": list(self.remove),
            "columns": self.columns or {},
        }
        return json.dumps(parts).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> TreeChange:
        """Return the change of a line."""
        parts = json.loads(line)
        return cls(
            tuple(Test(**one) for one in parts["add"]), tuple(parts["remove"]), parts["columns"]
        )


@dataclass(frozen=True)
class Waiting:
    """A suggestion that nobody has judged."""

    # Its ``output`` is what the model said.
    test: Test
    score: float  # Failure score in [0, 1]; NaN where nobody knows.


class TestDesk:
    """A tree that a person edits, and its suggestions."""

    __test__ = False

    def __init__(
        self, config: AdaptSuggestConfig, state: Path, note: Callable[[str], None]
    ) -> None:
        self.config, self.note, self._state = config, note, state
        self._lock, self._proposing = threading.RLock(), threading.Lock()
        self._undo: deque[tuple[TreeChange, Waiting | None]] = deque(maxlen=_UNDONE)
        self._timer: threading.Timer | None = None
        self.trouble, self._remarks = "", list[str]()
        self.tree, self._read = read_tree(config.tree), self._digest()
        has_pairs = bool((self.tree.column("second_input") != "").any())
        ledger = storage_path(config.ledger or str(state / "ledger"), "--ledger")
        self.target = ModelUnderTest(
            text_model(config.model),
            SharedBudget(config.budget),
            ledger,
            self._remarks.append,
            has_pairs=has_pairs,
            names=class_names(config, self.tree),
        )
        if self.target.is_paid:
            raise InputError(
                f"--tree-model {config.model}: its answers cost money; the desk asks a model at every key, so "
                "give one that costs nothing, or use slicebeam adapt suggest with --budget"
            )
        self._journal = state / _JOURNAL
        self._recover()
        self._waiting = self._suggested()
        if not has_pairs:
            self.target.outputs(PROBES)
        checked = scorable_tests(self.tree).table.slice(0, _MOST_CHECKED)
        if checked.num_rows:
            self.target.score_tree(checked)

    def _digest(self) -> str:
        with open_input(storage_path(self.config.tree)) as stream:
            return sha256_of(stream)

    def _recover(self) -> None:
        """Apply what a server before this one could not write into the tree's file."""
        changes = self._changes()
        for one in changes:
            self.tree = one.of(self.tree)
        if changes:
            self.save()

    def _changes(self) -> list[TreeChange]:
        if not self._journal.exists():
            return []
        *whole, last = self._journal.read_bytes().split(b"\n")
        if last:
            # The key was not confirmed when the machine stopped.
            os.truncate(self._journal, self._journal.stat().st_size - len(last))
        return [TreeChange.from_line(line) for line in whole]

    def _suggested(self) -> dict[str, Waiting]:
        """Return the suggestions of an earlier server that nobody has judged."""
        path = self._state / _SUGGESTED
        if not path.exists():
            return {}
        found = read_tree(str(path))
        known = self.tree.known(found.column(ID).tolist())
        tests = [one for one in found.rows(found.is_test) if one.id not in known]
        name = score_column(self.config.model)
        return {one.id: Waiting(_without(one, name), _number(one.other.get(name))) for one in tests}

    def topics(self) -> list[dict[str, Any]]:
        """Return the topics with the number of tests in and below each."""
        with self._lock:
            tree = self.tree
        names = tree.topics()
        return [
            {"topic": topic, "shown": shown, "tests": number}
            for topic, (shown, number) in zip(names, tree.outline(), strict=True)
        ]

    def topic(self, topic: str) -> dict[str, Any]:
        """Return the tests of a topic that fail most, and the suggestions that wait."""
        if not is_topic(topic):
            raise InputError(f"{topic!r} is no topic; write it as /Price/Taxes")
        with self._lock:
            tree, waiting = self.tree, list(self._waiting.values())
        rows = np.flatnonzero(tree.is_test & tree.within(topic))
        scores = self._scores(tree, rows[:_MOST_SCORED])
        order = np.argsort(-np.nan_to_num(scores, nan=-1.0), kind="stable")[:MOST_SHOWN]
        tests = list(tree.rows(rows[:_MOST_SCORED][order]))
        return {
            "topic": topic,
            "shown": displayed(topic),
            "tests": [
                _shown(test, score)
                for test, score in zip(self._with_outputs(tests), scores[order], strict=True)
            ],
            "total": int(rows.size),
            "scored": int(np.isfinite(scores).sum()),
            "failing": int(fails(scores).sum()),
            "suggestions": [_shown(one.test, one.score) for one in waiting],
            "undo": bool(self._undo),
            "trouble": self.trouble,
            "remarks": self._remarks,
        }

    def _scores(self, tree: TestTree, rows: Any) -> Any:
        scores = np.full(rows.size, np.nan)
        table = scorable_tests(TestTree(tree.table.take(rows))).table
        if table.num_rows:
            place = {id_: at for at, id_ in enumerate(tree.column(ID)[rows].tolist())}
            at = [place[id_] for id_ in table[ID].to_pylist()]
            scores[at] = self.target.score_table(table).failures
        return scores

    def _score(self, test: Test) -> float:
        return float(self._scores(TestTree.of_tests([test]), np.array([0]))[0])

    def _with_outputs(self, tests: list[Test]) -> list[Test]:
        """Return tests with the output that a verdict is about.

        That is what the label says of the output in the file, else what the model says now.
        """
        asked = [one for one in tests if one.expectation or one.output in NO_OUTPUT]
        now = {one.id: said for one, said in zip(asked, self.target.answers_to(asked), strict=True)}
        return [replace(one, output=now.get(one.id, one.output)) for one in tests]

    def suggest(self, topic: str, number: int, proposers: Sequence[str]) -> dict[str, Any]:
        """Propose tests in place of those that wait, and return them with what each proposer found."""
        if not self._proposing.acquire(blocking=False):
            raise InputError("tests are being proposed in another window; wait for them")
        try:
            self.save()
            path = self._state / _SUGGESTED
            drawn = path.with_suffix(".drawn.csv")
            config = self.config.model_copy(
                update={
                    "topic": topic,
                    "proposals": number,
                    "proposer": tuple(proposers) or self.config.proposer,
                    "output": str(drawn),
                }
            )
            found = suggest(config, self.note)
            drawn.replace(path)
            with self._lock:
                self._waiting = {one.test.id: Waiting(one.test, one.score) for one in found.tests}
        finally:
            self._proposing.release()
        return {
            "suggestions": [_shown(one.test, one.score) for one in found.tests],
            "yields": [asdict(one) | {"per_hundred": one.per_hundred} for one in found.yields],
        }

    def judge(self, id_: str, label: Label, labeler: str) -> dict[str, Any]:
        """Take a suggestion into the tree, or change a test of the tree, so that it agrees with a verdict.

        The verdict is on the output that the page shows.
        """
        with self._lock:
            waiting = self._waiting.get(id_)
            if waiting is not None:
                shown, score = waiting.test, waiting.score
            else:
                (shown,) = self._with_outputs([self._known(id_)])
                score = self._score(shown)
            columns: dict[str, Any] = judged(shown, shown.output, score, label)
            columns["labeler"] = labeler
            test = replace(shown, **columns)
            if waiting is not None:
                self._make(TreeChange(add=(test,)), waiting)
                del self._waiting[id_]
            else:
                self._make(TreeChange(columns={id_: columns}))
            return self._after() | {"test": _shown(test, self._score(test))}

    def edit(self, id_: str, columns: dict[str, str]) -> dict[str, Any]:
        """Write other texts into a test or a suggestion, or move it, and return it with its new score."""
        topic = columns.get("topic")
        if topic is not None and not is_topic(topic):
            raise InputError(f"{topic!r} is no topic; write it as /Price/Taxes")
        with self._lock:
            waiting = self._waiting.get(id_)
            before = self._known(id_) if waiting is None else waiting.test
            changed: dict[str, Any] = dict(columns)
            test = replace(before, **changed)
            if waiting is None:
                self._make(TreeChange(columns={id_: columns}))
                (test,) = self._with_outputs([test])
                score = self._score(test)
            else:
                scored = self.target.score([test])
                score = float(scored.failures[0])
                test = replace(test, output=scored.outputs[0] or "")
                self._waiting[id_] = Waiting(test, score)
            return self._after() | {"test": _shown(test, score)}

    def remove(self, ids: Sequence[str]) -> dict[str, Any]:
        """Take tests out of the tree, and pass over suggestions."""
        with self._lock:
            for id_ in ids:
                self._waiting.pop(id_, None)
            known = self.tree.known(ids)
            gone = tuple(id_ for id_ in ids if id_ in known)
            if gone:
                self._make(TreeChange(remove=gone))
            return self._after()

    def undo(self) -> dict[str, Any]:
        """Take the last change back."""
        with self._lock:
            if not self._undo:
                raise InputError("there is nothing to undo since this server was started")
            change, waiting = self._undo.pop()
            self._append(change)
            self.tree = change.of(self.tree)
            if waiting is not None:
                self._waiting = {waiting.test.id: waiting} | self._waiting
            shown = None if waiting is None else _shown(waiting.test, waiting.score)
            return self._after() | {"suggestion": shown}

    def _known(self, id_: str) -> Test:
        try:
            return self.tree.test(id_)
        except KeyError:
            raise InputError(
                f"there is no test {id_[:80]!r} any more; load the page again"
            ) from None

    def _make(self, change: TreeChange, waiting: Waiting | None = None) -> None:
        inverse = change.inverse(self.tree)
        tree = change.of(self.tree)
        self._append(change)
        self.tree = tree
        self._undo.append((inverse, waiting))

    def _append(self, change: TreeChange) -> None:
        with self._journal.open("ab") as stream:
            stream.write(change.line())
            stream.flush()
            os.fsync(stream.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(_IDLE, self._save_later)
        self._timer.daemon = True
        self._timer.start()

    def _save_later(self) -> None:
        try:
            self.save()
        except (SlicebeamError, OSError) as error:
            # It stays in the journal; the page says so, and the next key tries again.
            self.trouble = f"{self.config.tree} can't be written: {error}"

    def _after(self) -> dict[str, Any]:
        return {"undo": bool(self._undo), "waiting": len(self._waiting), "trouble": self.trouble}

    def save(self) -> None:
        """Write the tree's file, with what another program has changed in it meanwhile."""
        with self._lock:
            changes = self._changes()
            if not changes:
                return
            if self._digest() != self._read:
                tree = read_tree(self.config.tree)
                for one in changes:
                    tree = one.of(tree)
                self.tree = tree
            write_tree(self.tree, self.config.tree)
            self._read, self.trouble = self._digest(), ""
            os.truncate(self._journal, 0)

    def close(self) -> None:
        """Write what is not in the tree's file yet."""
        if self._timer is not None:
            self._timer.cancel()
        self.save()


def _without(test: Test, name: str) -> Test:
    return replace(test, other={key: value for key, value in test.other.items() if key != name})


def _number(text: str | None) -> float:
    with suppress(ValueError, TypeError):
        return float(text or "nan")
    return math.nan


def _shown(test: Test, score: float) -> dict[str, Any]:
    number = None if math.isnan(score) else float(score)
    return {
        "id": test.id,
        "topic": test.topic,
        "input": test.input,
        "second_input": test.second_input,
        "output": test.output,
        "label": test.label,
        "labeler": test.labeler,
        "expectation": test.expectation,
        "value": test.value,
        "origin": test.other.get(ORIGIN, ""),
        "score": number,
    }
