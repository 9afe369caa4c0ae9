"""The rounds of a slice and a text: what is drawn, read back, estimated and published."""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError, InputError, OptionError
from slicebeam.pipelines.attribution.drawing import draw_round, draw_training
from slicebeam.pipelines.attribution.estimating import assess, gather
from slicebeam.pipelines.attribution.labels import LabelStore
from slicebeam.pipelines.attribution.sheets import paths, read_sheets, write_sheets
from slicebeam.pipelines.attribution.state import (
    State,
    check_same,
    folder_name,
    read_state,
    slice_fingerprint,
    text_hash,
    write_state,
)
from slicebeam.pipelines.changelist.discovered import Edit
from slicebeam.pipelines.config.attribute import EXPONENT, UNIFORM_SHARE
from slicebeam.pipelines.run.lock_files import lock_file
from slicebeam.pipelines.run.run_lock import RunLock
from slicebeam.transforms.storage.storage import beneath, make_folder, storage_errors, storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.pipelines.attribution.estimating import Assessed, Evidence
    from slicebeam.pipelines.attribution.population import SlicePopulation
    from slicebeam.pipelines.attribution.state import Drawn
    from slicebeam.pipelines.attribution.updating import Updated
    from slicebeam.pipelines.changelist.discovered import Attribution
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.transforms.storage.storage import StoragePath

FOLDER = "attribution"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Plan:
    """The user's options for a slice; None means the value of an earlier round, or the default.

    Attributes
    ----------
    queries : texts similar to examples for which the words are true; none for the text itself
    exponent, uniform_share : of the proposal of the rounds to come
    """

    text: str
    queries: tuple[str, ...] = ()
    looks: int | None = None
    seed: int | None = None
    least_precision: float | None = None
    least_recall: float | None = None
    exponent: float = EXPONENT
    uniform_share: float = UNIFORM_SHARE

    def __post_init__(self) -> None:
        """Validate the given options.

        Raises
        ------
        InputError
            A value is out of its range.
        """
        if not self.text.strip():
            raise OptionError("--text is empty; write a description of the slice")
        if self.looks is not None and self.looks < 1:
            raise OptionError(f"--looks {self.looks}: give a whole number that is at least 1")
        if not (math.isfinite(self.exponent) and self.exponent >= 0):
            raise OptionError(f"--exponent {self.exponent}: give a number that is at least 0")
        if not 0 < self.uniform_share <= 1:
            raise OptionError(
                f"--uniform-share {self.uniform_share}: give a number above 0, so that every example "
                "can be drawn, and at most 1"
            )
        for name in ("least_precision", "least_recall"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                flag = name.replace("_", "-")
                raise OptionError(f"--{flag} {value}: give a number from 0 to 1")


@dataclass(frozen=True)
class LabelPaths:
    """Where the document and the labels are.

    Attributes
    ----------
    document : the revision that is gone on from
    labels_dir : folder of all slices' labels
    """

    document: StoragePath
    labels_dir: StoragePath

    @classmethod
    def of(cls, document: str, labels_dir: str | None) -> LabelPaths:
        """Return the places that the options name."""
        path = storage_path(document, "--changelist")
        if labels_dir is not None:
            return cls(path, storage_path(labels_dir, "--labels-dir"))
        return cls(path, beneath(path.parent, FOLDER))


@contextmanager
def session(
    population: SlicePopulation,
    document: SearchChangeList,
    one: Slice,
    plan: Plan,
    place: LabelPaths,
    *,
    begins: bool = False,
    default_looks: int = 1,
) -> Iterator[Session]:
    """Open the labels of a slice and a text for this process alone.

    Raises
    ------
    InputError
        The slice is empty, there is no round where one is needed, or the plan or the examples are
        others than those of the first round.
    EngineError
        Another process has them, they are damaged, or storage fails.
    """
    if not population.member.any():
        raise InputError(
            f"slice {one.slice_id} has no example in this data, so there is nothing to label; "
            "give the --data of the run that found it"
        )
    name = folder_name(one.slice_id, plan.text)
    folder = beneath(place.labels_dir, name)
    state = read_state(folder)
    if state is None and not begins:
        raise InputError(
            f"no items of slice {one.slice_id} were drawn for {plan.text!r}; start with "
            "'slicebeam attribute sample', with the same --text"
        )
    with storage_errors(folder, "make"):
        make_folder(folder)
    with _locked(folder):
        # Another process may have gone on in the meantime.
        state = read_state(folder)
        if state is None:
            state = _begun(population, one, plan, default_looks)
        else:
            check_plan(plan, state)
            check_same(state, population)
        ending = f"-{text_hash(plan.text)}"
        siblings = [
            path
            for path in place.labels_dir.iterdir()
            if path.name.endswith(ending) and path.name != name
        ]
        store = LabelStore(folder, siblings, plan.text)
        yield Session(population, document, one, plan, place, folder, state, store)


@contextmanager
def _locked(folder: StoragePath) -> Iterator[None]:
    lock = RunLock(folder, lock_file(folder))
    try:
        lock.acquire()
    except EngineError as error:
        raise EngineError(str(error).replace("--work-dir", "--labels-dir")) from error
    try:
        yield
    finally:
        lock.release()


def _begun(population: SlicePopulation, one: Slice, plan: Plan, default_looks: int) -> State:
    size = int(population.member.sum())
    return State(
        slice_id=one.slice_id,
        text=plan.text,
        slice_fingerprint=slice_fingerprint(population),
        size=size,
        size_outside=population.member.size - size,
        seed=plan.seed or 0,
        confidence=CONFIDENCE,
        looks=plan.looks or default_looks,
        least_precision=0.8 if plan.least_precision is None else plan.least_precision,
        least_recall=0.8 if plan.least_recall is None else plan.least_recall,
    )


def check_plan(plan: Plan, state: State) -> None:
    """Refuse another plan than that of the first round, which labels may have suggested."""
    for name in ("looks", "seed", "least_precision", "least_recall"):
        given, kept = getattr(plan, name), getattr(state, name)
        if given is not None and given != kept:
            flag = name.replace("_", "-")
            raise OptionError(
                f"--{flag} {given}, but the first round was drawn with {kept}, and a plan must "
                "not depend on the labels; leave the option out, or start over in another "
                "--labels-dir"
            )


@dataclass(frozen=True)
class Sampled:
    """A round to label.

    Attributes
    ----------
    sheet, lines : the CSV and the JSON Lines
    """

    drawn: Drawn
    is_new: bool
    left: int
    sheet: StoragePath
    lines: StoragePath


@dataclass
class Session:
    """The labels of a slice and a text, held by this process; made by `session`."""

    population: SlicePopulation
    document: SearchChangeList
    slice: Slice
    plan: Plan
    place: LabelPaths
    folder: StoragePath
    state: State
    store: LabelStore
    notes: list[str] = field(default_factory=list)

    @property
    def evidence(self) -> Evidence:
        """What is labelled."""
        return gather(self.state, self.store, self.population)

    @property
    def open_items(self) -> tuple[Any, ...]:
        """Items of the rounds without a label, in the order in which to label them."""
        to_label = (item for one in self.state.rounds for item in one.asked)
        return tuple(item for item in dict.fromkeys(to_label) if item not in self.store.known)

    def read_back(self) -> None:
        """Store the labels of the sheets.

        Raises
        ------
        InputError
            A sheet is wrong.
        """
        replaced = 0
        for one in self.state.rounds:
            replaced += self.store.add(read_sheets(self.folder, one), "sheet")
        if replaced:
            self.notes.append(f"{replaced:,} labels have changed since they were last read.")

    def draw(self, budget: int, *, is_train: bool = False) -> Drawn | None:
        """Draw a further round, and record it; None if every example was drawn."""
        if budget < 1:
            raise OptionError(f"--budget {budget}: give a whole number that is at least 1")
        make = draw_training if is_train else draw_round
        drawn = make(
            self.population,
            self.state,
            self.store.known,
            budget,
            queries=self.plan.queries or (self.plan.text,),
            exponent=self.plan.exponent,
            uniform_share=self.plan.uniform_share,
        )
        if drawn is not None:
            self.store.adopt(drawn.items)
            self._record(self.state.model_copy(update={"rounds": (*self.state.rounds, drawn)}))
        return drawn

    def _record(self, state: State) -> None:
        write_state(self.folder, state)
        self.state = state

    def sample(self, budget: int, *, is_train: bool = False) -> Sampled:
        """Return a round to be labelled: the one before where labels are missing, or a new one.

        Raises
        ------
        InputError
            Every example was drawn before.
        """
        self.read_back()
        waiting = {*self.open_items}
        drawn = next((one for one in self.state.rounds if not waiting.isdisjoint(one.asked)), None)
        is_new = drawn is None
        if drawn is None:
            drawn = self.draw(budget, is_train=is_train)
        if drawn is None:
            raise InputError(
                "every example has been drawn in an earlier round; 'slicebeam attribute "
                "estimate' reports what the labels say"
            )
        sheet, lines = paths(self.folder, drawn.number)
        if is_new or not (sheet.is_file() or lines.is_file()):
            write_sheets(self.folder, drawn, self.population)
        left = sum(item not in self.store.known for item in drawn.asked)
        return Sampled(drawn, is_new, left, sheet, lines)

    def look(self) -> Assessed:
        """Return the estimates from the labels, and count the look.

        Raises
        ------
        InputError
            There is no label.
        """
        evidence = self.evidence
        if not evidence.inside.size and not evidence.outside.item.size:
            sheet = (
                paths(self.folder, self.state.rounds[-1].number)[0].name
                if self.state.rounds
                else ""
            )
            raise InputError(
                f"there are no labels yet; fill in the column label of {self.folder.name}/{sheet}"
            )
        if evidence.digest not in self.state.looked:
            looked = (*self.state.looked, evidence.digest)
            self._record(self.state.model_copy(update={"looked": looked}))
        return assess(self.state, evidence, self._labels_uri())

    def _labels_uri(self) -> str:
        path, folder = self.store.path, self.place.document.parent
        if isinstance(path, Path) and isinstance(folder, Path):
            return os.path.relpath(path, folder)
        return str(path).removeprefix(f"{folder}/")

    @property
    def may_train(self) -> bool:
        """Whether there are labels to train by, and none of them is missing."""
        items = [item for one in self.state.rounds for item in one.train]
        return bool(items) and all(item in self.store.known for item in items)

    def updated(self) -> Updated:
        """Return the slice that the labels make of this one."""
        from slicebeam.pipelines.attribution.updating import train

        discovery = self.document.discovery
        encoder = "" if discovery is None else discovery.encoder_fingerprint
        return train(self.population, self.state, self.store, encoder)

    def follow(self, uri: str, document: SearchChangeList) -> None:
        """Go on from another revision of the document, so that what was edited meanwhile stays.

        Raises
        ------
        InputError
            The slice is not in it any more.
        """
        found = [one for one in document.slices if one.slice_id == self.slice.slice_id]
        if not found:
            raise InputError(
                f"slice {self.slice.name!r} was removed from the document meanwhile; undo that, and "
                "publish again: no label is lost"
            )
        self.document, self.slice = document, found[0]
        self.place = replace(self.place, document=storage_path(uri))

    def publish(
        self, attribution: Attribution, updated: Updated | None = None
    ) -> tuple[StoragePath | None, Slice | None]:
        """Write a revision of the document, and return where it is, and the slice that is proposed.

        Returns
        -------
        path : None if the document says it all already
        proposed : None without an update, or where the document has that slice
        """
        proposed = None
        if updated is not None and not any(
            one.definition == updated.definition for one in self.document.slices
        ):
            name = f"{self.plan.text} (classifier)"
            proposed = self.population.defined(name, updated.definition, updated.member)
        if proposed is None and self.slice.attribution == attribution:
            return None, None
        # Imported here, where it is used, since reading documents is not cheap.
        from slicebeam.pipelines.changelist import revisions
        from slicebeam.pipelines.changelist.reading import read_search

        @revisions.from_last
        def published() -> tuple[SearchChangeList, StoragePath]:
            changed, edits = _changed(self.document, self.slice, attribution, proposed)
            uri = str(self.place.document)
            try:
                return revisions.publish_revision(uri, self.document, changed, edits, is_last=True)
            except revisions.SupersededError:
                last = str(revisions.latest(self.place.document.parent))
                self.follow(last, read_search(last, "--changelist"))
                raise

        document, path = published()
        self.document, self.place = document, replace(self.place, document=path)
        self.slice = next(one for one in document.slices if one.slice_id == self.slice.slice_id)
        return path, proposed


def _changed(
    document: SearchChangeList, one: Slice, attribution: Attribution, proposed: Slice | None
) -> tuple[SearchChangeList, tuple[Edit, ...]]:
    """Return the document with an attribution and perhaps one more slice, and the edits."""
    at = datetime.now(timezone.utc)
    with_attribution = one.model_copy(update={"attribution": attribution})
    slices = [with_attribution if each is one else each for each in document.slices]
    before = one.attribution
    edits = []
    if before != attribution:
        edits.append(
            Edit(
                at=at,
                op="attribute",
                target=one.slice_id,
                before=None if before is None else _as_json(before),
                after=_as_json(attribution),
            )
        )
    if proposed is not None:
        slices.append(proposed)
        edits.append(
            Edit(
                at=at,
                op="add_slice",
                target=proposed.slice_id,
                after=_as_json(proposed),
                note=f"a classifier trained on labels of {attribution.text!r}, from {one.slice_id}",
            )
        )
    return document.model_copy(update={"slices": tuple(slices)}), tuple(edits)


def _as_json(part: Attribution | Slice) -> dict[str, Any]:
    return part.model_dump(mode="json", exclude_none=True)
