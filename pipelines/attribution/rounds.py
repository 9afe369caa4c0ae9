"""Rounds with a labeler: draw, label and check, until a decision or the end of the budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import InputError

if TYPE_CHECKING:
    from slicebeam.pipelines.attribution.estimating import Assessed
    from slicebeam.pipelines.attribution.labelers import Labeler
    from slicebeam.pipelines.attribution.session import Session
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.transforms.storage.storage import StoragePath


@dataclass(frozen=True)
class Finished:
    """The result of labelling.

    Attributes
    ----------
    assessed : what the labels say
    document : the published revision; None if nothing changed
    proposed : the slice that labels made of this one, if they did
    """

    assessed: Assessed
    slice: Slice
    document: StoragePath | None
    proposed: Slice | None = None


@dataclass(frozen=True)
class Stopped:
    """Labelling stopped before its end."""

    left: int


def estimate(session: Session) -> Finished:
    """Return the estimates from the labels in the sheets, and publish them.

    Where the labels of a train round are all there, the slice that they make is proposed too.
    """
    session.read_back()
    return _published(session, session.look())


def _published(session: Session, assessed: Assessed) -> Finished:
    updated = session.updated() if session.may_train else None
    path, proposed = session.publish(assessed.attribution, updated)
    return Finished(assessed, session.slice, path, proposed)


def run_rounds(
    session: Session, labeler: Labeler, *, budget: int, rounds: int, train: int = 0
) -> Finished | Stopped:
    """Draw, label and check in turn, and publish the result.

    A run that was stopped continues where it was: what is drawn stays drawn, and what is labelled
    is not requested again.

    Parameters
    ----------
    budget : labels of all rounds, those of earlier runs too
    train : further labels, to train a classifier by where the slice is not what its words say

    Raises
    ------
    InputError
        An option is out of its range, or what the labeler raises.
    """
    for flag, value, least in (
        ("--budget", budget, 1),
        ("--rounds", rounds, 1),
        ("--train", train, 0),
    ):
        if value < least:
            raise InputError(f"{flag} {value}: give a whole number that is at least {least}")
    session.read_back()
    while True:
        if not _is_labelled(session, labeler):
            return Stopped(len(session.open_items))
        state = session.state
        left = budget - state.spent
        assessed = session.look() if state.labelled + state.drawn else None
        if assessed is not None and (assessed.decision != "label more" or left <= 0):
            break
        done = sum(not one.train for one in state.rounds)
        if session.draw(-(-left // max(rounds - done, 1))) is None:
            break
    if assessed is None:
        raise InputError("there is no example to draw")
    has_train = any(one.train for one in session.state.rounds)
    if assessed.decision == "update" and train and not has_train:
        session.draw(train, is_train=True)
        if not _is_labelled(session, labeler):
            return Stopped(len(session.open_items))
        assessed = session.look()
    return _published(session, assessed)


def _is_labelled(session: Session, labeler: Labeler) -> bool:
    """Have all open items labelled, and say whether they are."""
    items = session.open_items
    if items:
        labeler.label(items, session.population, session.store)
    return not session.open_items
