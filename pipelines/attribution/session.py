"""The rounds of a slice and a text: what is drawn, read back, estimated and published."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slicebeam.metrics.errors import EngineError, InputError, OptionError
from slicebeam.pipelines.attribution.drawing import draw_round, draw_training
from slicebeam.pipelines.attribution.estimating import assess, gather
from slicebeam.pipelines.attribution.labels import NAME, Labels
from slicebeam.pipelines.attribution.sheets import read_sheet, sheet_of, write_sheet
from slicebeam.pipelines.attribution.state import (
    Plan,
    State,
    check_same,
    folder_name,
    read_state,
    slice_fingerprint,
    text_hash,
    write_state,
)
from slicebeam.pipelines.run.lock_files import lock_of
from slicebeam.transforms.storage.storage import beneath, make_folder, storage_errors, storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.pipelines.attribution.estimating import Assessed, Evidence
    from slicebeam.pipelines.attribution.labelers import Labeler
    from slicebeam.pipelines.attribution.population import SlicePopulation
    from slicebeam.pipelines.attribution.state import Drawn
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.transforms.encode.definitions import ClassifierDefinition
    from slicebeam.transforms.storage.storage import StoragePath

FOLDER = "attribution"
CONFIDENCE = 0.95


class LabelPaths(NamedTuple):
    """The revision that is gone on from, and the folder of all slices' labels."""

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
    labelled: Slice,
    plan: Plan,
    place: LabelPaths,
    *,
    begins: bool = False,
    default_looks: int = 1,
) -> Iterator[Session]:
    """Open the labels of a text, and what was drawn of a slice, for this process alone."""
    if not population.member.any():
        raise InputError(
            f"slice {labelled.slice_id} has no example in this data, so there is nothing to label; "
            "give the --data of the run that found it"
        )
    folder = beneath(place.labels_dir, folder_name(labelled.slice_id, plan.text))
    if read_state(folder) is None and not begins:
        raise InputError(
            f"no items of slice {labelled.slice_id} were drawn for {plan.text!r}; start with "
            "'slicebeam attribute sample', with the same --text"
        )
    words = beneath(place.labels_dir, f"words-{text_hash(plan.text)}")
    for path in (folder, words):
        with storage_errors(path, "make"):
            make_folder(path)
    with _locked(words):
        # Another process may have gone on in the meantime.
        state = read_state(folder)
        if state is None:
            state = _begun(population, labelled, plan, default_looks)
        else:
            check_plan(plan, state)
            check_same(state, population)
        store = Labels(words / NAME, plan.text)
        yield Session(population, document, labelled, plan, place, folder, state, store)


@contextmanager
def _locked(folder: StoragePath) -> Iterator[None]:
    lock = lock_of(folder)
    try:
        lock.acquire()
    except EngineError as error:
        raise EngineError(str(error).replace("--work-dir", "--labels-dir")) from error
    try:
        yield
    finally:
        lock.release()


def _begun(population: SlicePopulation, labelled: Slice, plan: Plan, default_looks: int) -> State:
    size = int(population.member.sum())
    return State(
        slice_id=labelled.slice_id,
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
        planned, kept = getattr(plan, name), getattr(state, name)
        if planned is not None and planned != kept:
            flag = name.replace("_", "-")
            raise OptionError(
                f"--{flag} {planned}, but the first round was drawn with {kept}, and a plan must "
                "not depend on the labels; leave the option out, or start over in another "
                "--labels-dir"
            )


class Sampled(NamedTuple):
    """A round to label, and its sheet."""

    drawn: Drawn
    is_new: bool
    left: int
    sheet: StoragePath


class Finished(NamedTuple):
    """The result of labelling."""

    assessed: Assessed
    slice: Slice
    document: StoragePath | None
    proposed: Slice | None = None


class Stopped(NamedTuple):
    """Labelling stopped before its end."""

    left: int


@dataclass
class Session:
    """A slice, a text and its labels, held by this process; made by `session`."""

    population: SlicePopulation
    document: SearchChangeList
    slice: Slice
    plan: Plan
    place: LabelPaths
    folder: StoragePath
    state: State
    store: Labels
    notes: list[str] = field(default_factory=list)

    @property
    def evidence(self) -> Evidence:
        """What is labelled."""
        return gather(self.state, self.store, self.population)

    @property
    def open_items(self) -> tuple[Any, ...]:
        """Items of the rounds without a label, in the order in which to label them."""
        to_label = (item for drawn in self.state.rounds for item in drawn.asked)
        return tuple(item for item in dict.fromkeys(to_label) if item not in self.store.known)

    def read_back(self) -> None:
        """Store the labels of the sheets."""
        rounds = self.state.rounds
        replaced = sum(self.store.add(read_sheet(self.folder, drawn), "sheet") for drawn in rounds)
        if replaced:
            self.notes.append(f"{replaced:,} labels have changed since they were last read.")

    def draw(self, budget: int, *, is_train: bool = False) -> Drawn | None:
        """Draw a further round, and record it; None if every example was drawn."""
        draw = draw_training if is_train else draw_round
        drawn = draw(self.population, self.state, self.store.known, budget, self.plan)
        if drawn is not None:
            self._record(rounds=(*self.state.rounds, drawn))
        return drawn

    def _record(self, **changes: Any) -> None:
        state = self.state.model_copy(update=changes)
        write_state(self.folder, state)
        self.state = state

    def sample(self, budget: int, *, is_train: bool = False) -> Sampled:
        """Return a round to be labelled: the one before where labels are missing, or a new one."""
        self.read_back()
        waiting = {*self.open_items}
        rounds = self.state.rounds
        drawn = next((drawn for drawn in rounds if not waiting.isdisjoint(drawn.asked)), None)
        is_new = drawn is None
        if drawn is None:
            drawn = self.draw(budget, is_train=is_train)
        if drawn is None:
            raise InputError(
                "every example has been drawn in an earlier round; 'slicebeam attribute "
                "estimate' reports what the labels say"
            )
        sheet = sheet_of(self.folder, drawn.number)
        if is_new or not sheet.is_file():
            write_sheet(self.folder, drawn, self.population)
        return Sampled(drawn, is_new, sum(i not in self.store.known for i in drawn.asked), sheet)

    def look(self) -> Assessed:
        """Return the estimates from the labels, and count the look."""
        evidence = self.evidence
        if not evidence.inside.size and not evidence.outside.item.size:
            number = self.state.rounds[-1].number if self.state.rounds else 0
            sheet = sheet_of(self.folder, number).name if number else ""
            raise InputError(
                f"there are no labels yet; fill in the column label of {self.folder.name}/{sheet}"
            )
        if evidence.digest not in self.state.looked:
            self._record(looked=(*self.state.looked, evidence.digest))
        path, folder = self.store.path, self.place.document.parent
        if isinstance(path, Path) and isinstance(folder, Path):
            uri = os.path.relpath(path, folder)
        else:
            uri = str(path).removeprefix(f"{folder}/")
        return assess(self.state, evidence, uri)

    def updated(self) -> ClassifierDefinition | None:
        """Return the slice that the labels make of this one; None where train labels are missing."""
        items = [item for drawn in self.state.rounds for item in drawn.train]
        if not items or any(item not in self.store.known for item in items):
            return None
        from slicebeam.pipelines.attribution.updating import train

        discovery = self.document.discovery
        encoder = "" if discovery is None else discovery.encoder_fingerprint
        return train(self.population, self.state, self.store, encoder)

    def follow(self, uri: str, document: SearchChangeList) -> None:
        """Go on from another revision of the document, so that what was edited meanwhile stays."""
        same = [other for other in document.slices if other.slice_id == self.slice.slice_id]
        if not same:
            raise InputError(
                f"slice {self.slice.name!r} was removed from the document meanwhile; undo that, and "
                "publish again: no label is lost"
            )
        self.document, self.slice = document, same[0]
        self.place = self.place._replace(document=storage_path(uri))

    def publish(self, assessed: Assessed) -> Finished:
        """Publish the estimates, and propose the slice that complete train labels make."""
        updated, proposed = self.updated(), None
        definitions = [other.definition for other in self.document.slices]
        if updated is not None and updated not in definitions:
            name = f"{self.plan.text} (classifier)"
            proposed = self.population.data.defined(name, updated)
        if proposed is None and self.slice.attribution == assessed.attribution:
            return Finished(assessed, self.slice, None)
        # Imported here, where it is used, since reading documents is not cheap.
        from slicebeam.pipelines.changelist import edits, revisions
        from slicebeam.pipelines.changelist.reading import read_search

        @revisions.from_last
        def published() -> tuple[SearchChangeList, StoragePath]:
            uri, base, slice_id = str(self.place.document), self.document, self.slice.slice_id
            changed = base
            if self.slice.attribution != assessed.attribution:
                changed = edits.attributed(changed, slice_id, assessed.attribution)
            if proposed is not None:
                note = f"a classifier trained on labels of {self.plan.text!r}, from {slice_id}"
                changed = edits.added(changed, proposed, note)
            try:
                return revisions.publish_revision(uri, base, changed, is_last=True)
            except revisions.SupersededError:
                last = str(revisions.latest(self.place.document.parent))
                self.follow(last, read_search(last, "--changelist"))
                raise

        document, path = published()
        self.follow(str(path), document)
        return Finished(assessed, self.slice, path, proposed)


def estimate(session: Session) -> Finished:
    """Return the estimates from the labels in the sheets, and publish them."""
    session.read_back()
    return session.publish(session.look())


def run_rounds(
    session: Session, labeler: Labeler, *, budget: int, rounds: int, train: int = 0
) -> Finished | Stopped:
    """Draw, label and check in turn, until a decision or the end of the budget, and publish.

    A run that was stopped continues where it was: what is drawn stays drawn, and what is labelled
    is not requested again.

    ``budget``: labels of all rounds, those of earlier runs too. ``train``: further labels, to train
    a classifier by where the slice is not what its words say.
    """
    session.read_back()
    while True:
        if not _is_labelled(session, labeler):
            return Stopped(len(session.open_items))
        state = session.state
        left = budget - state.spent
        assessed = session.look() if state.labelled + state.drawn else None
        if assessed is not None and (assessed.decision != "label more" or left <= 0):
            break
        done = sum(not drawn.train for drawn in state.rounds)
        if session.draw(-(-left // max(rounds - done, 1))) is None:
            break
    if assessed is None:
        raise InputError("there is no example to draw")
    has_train = any(drawn.train for drawn in session.state.rounds)
    if assessed.decision == "update" and train and not has_train:
        session.draw(train, is_train=True)
        if not _is_labelled(session, labeler):
            return Stopped(len(session.open_items))
        assessed = session.look()
    return session.publish(assessed)


def _is_labelled(session: Session, labeler: Labeler) -> bool:
    """Have all open items labelled, and say whether they are."""
    if items := session.open_items:
        labeler.label(items, session.population, session.store)
    return not session.open_items
