"""From labels to the precision and recall of the words, and the next step."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from slicebeam.metrics.attribution.estimates import UNSURE, YES, Draws, alignment, decision
from slicebeam.pipelines.attribution.labels import MISSING
from slicebeam.pipelines.attribution.population import positions_of
from slicebeam.pipelines.changelist.discovered import Attribution, Round
from slicebeam.pipelines.changelist.parts import Estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.attribution.estimates import Alignment, Decision, Interval
    from slicebeam.pipelines.attribution.labels import Labels
    from slicebeam.pipelines.attribution.population import SlicePopulation
    from slicebeam.pipelines.attribution.state import Drawn, State
    from slicebeam.transforms.encode.definitions import Id

_STATES: dict[Decision, Literal["accepted", "rejected", "estimated"]] = {
    "accept": "accepted",
    "update": "rejected",
    "label more": "estimated",
}


@dataclass(frozen=True)
class Evidence:
    """The labels that the estimates use.

    ``inside``: int8 [m_P], of the sample of the slice. ``rounds``: the labels of each, by phase.
    ``waiting``: labels that count only when those of items drawn before them are there.
    """

    inside: NDArray[np.int8]
    outside: Draws
    rounds: tuple[Round, ...]
    open: tuple[Id, ...]
    waiting: int

    @property
    def digest(self) -> str:
        """Identifies these labels: to look at the same ones again is no further look."""
        digest = hashlib.sha256(self.inside.tobytes() + b"/")
        digest.update(self.outside.item.tobytes() + self.outside.label.tobytes())
        return digest.hexdigest()[:16]


def gather(state: State, store: Labels, population: SlicePopulation) -> Evidence:
    """Return the labels of the drawn items.

    Of each phase of a round the draws up to the first one without a label count. However many these
    are, they are a sample as good as any, whereas what somebody picked to label is none.
    """
    inside: list[NDArray[np.int8]] = []
    draws = [_no_draws()]
    rounds: list[Round] = []
    waiting, precision_goes_on = 0, True
    for round_ in state.rounds:
        labels = store.codes(round_.precision)
        # A later round continues with the same order of the slice.
        counted = labels[: _labelled_first(labels) if precision_goes_on else 0]
        precision_goes_on &= counted.size == labels.size
        inside.append(counted)
        waiting += int((labels != MISSING).sum()) - counted.size
        rounds += _round(state, store, round_, "precision", round_.precision[: counted.size])
        labels = store.codes(round_.recall)
        number = _labelled_first(labels)
        waiting += len(
            {item for item, label in zip(round_.recall, labels, strict=True) if label != MISSING}
            - set(round_.recall[:number])
        )
        if number:
            draws.append(_draws(population, round_, labels, number))
        rounds += _round(state, store, round_, "recall", round_.recall[:number])
        trained = tuple(item for item in round_.train if item in store.known)
        rounds += _round(state, store, round_, "train", trained)
    missing = (item for round_ in state.rounds for item in round_.items if item not in store.known)
    return Evidence(
        np.concatenate([np.zeros(0, np.int8), *inside]),
        Draws.merged(draws if len(draws) == 1 else draws[1:]),
        tuple(rounds),
        tuple(dict.fromkeys(missing)),
        waiting,
    )


def _labelled_first(labels: NDArray[np.int8]) -> int:
    """Return how many labels there are before the first one that is missing."""
    missing = labels == MISSING
    return int(np.argmax(missing)) if missing.any() else labels.size


def _no_draws() -> Draws:
    return Draws(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int8), 1.0)


def _draws(population: SlicePopulation, one: Drawn, labels: NDArray[np.int8], number: int) -> Draws:
    # Positions among the examples outside the slice.
    rank = np.cumsum(~population.member) - 1
    item = rank[positions_of(population.data.ids, one.recall[:number])].astype(np.int64)
    return Draws(item, np.array(one.weights[:number]), labels[:number], one.least_weight or 1.0)


def _round(
    state: State,
    store: Labels,
    one: Drawn,
    phase: Literal["train", "precision", "recall"],
    items: Sequence[Id],
) -> list[Round]:
    """Return the round of a phase as the document reports it, none where nothing is labelled."""
    different = tuple(dict.fromkeys(items))
    if not different:
        return []
    labels = store.codes(different)
    of_proposal = phase == "recall"
    return [
        Round(
            phase=phase,
            round=one.number,
            labelled=len(different),
            positive=int((labels == YES).sum()),
            unsure=int((labels == UNSURE).sum()),
            exponent=one.exponent if of_proposal else None,
            uniform_share=one.uniform_share if of_proposal else None,
            seed=state.seed,
            labeler=store.labeler(different),
        )
    ]


@dataclass(frozen=True)
class Assessed:
    """What the labels say."""

    attribution: Attribution
    decision: Decision
    found: Alignment
    notes: tuple[str, ...]


def assess(state: State, evidence: Evidence, labels_uri: str) -> Assessed:
    """Return the estimates and the decision."""
    level = 1 - (1 - state.confidence) / state.looks
    found = alignment(
        evidence.inside,
        state.size,
        evidence.outside,
        state.size_outside,
        confidence=state.confidence,
        looks=state.looks,
    )
    decided = decision(found, precision=state.least_precision, recall=state.least_recall)
    outcome = _STATES[decided]
    attribution = Attribution(
        text=state.text,
        queries=tuple(dict.fromkeys(query for round_ in state.rounds for query in round_.queries)),
        state="labelling" if outcome == "estimated" and evidence.open else outcome,
        precision=_estimate(found.precision, level),
        recall=_estimate(found.recall, level),
        missed=_estimate(found.missed, level),
        least_precision=state.least_precision,
        least_recall=state.least_recall,
        looks=state.looks,
        rounds=evidence.rounds,
        labels_uri=labels_uri,
    )
    return Assessed(attribution, decided, found, _notes(state, evidence))


def _estimate(interval: Interval, confidence: float) -> Estimate:
    value = None if math.isnan(interval.estimate) else interval.estimate
    return Estimate(value=value, lo=interval.low, hi=interval.high, confidence=confidence)


def _notes(state: State, evidence: Evidence) -> tuple[str, ...]:
    notes = []
    taken = len(state.looked)
    if taken > state.looks:
        least = max(0.0, 1 - taken * (1 - state.confidence) / state.looks)
        notes.append(
            f"This is look {taken} at the labels, and {state.looks} "
            f"{'was' if state.looks == 1 else 'were'} planned: the confidence that the intervals "
            f"of all looks hold is only {least:.0%}, not {state.confidence:.0%}. For a valid "
            "decision, set --looks before the first label."
        )
    unsure = sum(round_.unsure for round_ in evidence.rounds if round_.phase != "train")
    if unsure:
        notes.append(
            f"Unsure answers ({unsure:,}) count as no in the estimates, and widen the intervals."
        )
    if evidence.open:
        notes.append(f"{len(evidence.open):,} items have no label yet.")
    if evidence.waiting:
        notes.append(
            f"{evidence.waiting:,} labels don't count yet: items drawn earlier have no label."
        )
    return tuple(notes)
