"""What the commands ``slicebeam attribute …`` do, each with its validated options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slicebeam.pipelines.attribution import session as sessions
from slicebeam.pipelines.attribution.session import Finished, Sampled, Stopped
from slicebeam.pipelines.attribution.state import Plan
from slicebeam.pipelines.changelist.revisions import base_of
from slicebeam.pipelines.config import document as options
from slicebeam.transforms.storage.storage import StoragePath

if TYPE_CHECKING:
    from slicebeam.pipelines.attribution.labelers import Labeler

Note = Callable[[str], None]


def sample(config: options.SampleConfig, note: Note) -> Sampled:
    """Draw a round, and write the items to label as CSV."""
    with _opened(config, note, begins=True) as opened:
        return opened.sample(config.budget, is_train=config.train)


def estimate(config: options.AttributionConfig, note: Note) -> Finished:
    """Read the labels back, estimate precision and recall, and publish a revision with them."""
    with _opened(config, note) as opened:
        return sessions.estimate(opened)


def run(config: options.RoundsConfig, note: Note) -> Finished | Stopped:
    """Label in rounds until it is decided, or the budget is used up."""
    place = sessions.LabelPaths.of(base_of(config.changelist), config.labels_dir)
    labeler = _labeler(config, place.labels_dir, note)
    with _opened(config, note, begins=True, rounds=config.rounds) as opened:
        result = sessions.run_rounds(
            opened, labeler, budget=config.budget, rounds=config.rounds, train=config.train
        )
    if isinstance(result, Stopped):
        note(f"{result.left:,} items have no label yet; run the same command to continue")
    return result


@contextmanager
def _opened(
    config: options.AttributionConfig, note: Note, *, begins: bool = False, rounds: int = 1
) -> Iterator[sessions.Session]:
    """Open the labels of the slice, and print its notes in the end."""
    from slicebeam.pipelines.define.document_data import open_population

    planned = {"looks", "seed", "least_precision", "least_recall", "exponent", "uniform_share"}
    settings = config.model_dump(include=planned)
    if isinstance(config, options.DrawingConfig):
        settings["queries"] = config.query
    plan = Plan(config.text, **settings)
    uri = base_of(config.changelist)
    place = sessions.LabelPaths.of(uri, config.labels_dir)
    population, document, labelled = open_population(
        uri, config.slice, data=config.data or None, confirmed=config.confirmed
    )
    with sessions.session(
        population, document, labelled, plan, place, begins=begins, default_looks=rounds
    ) as opened:
        yield opened
        for text in opened.notes:
            note(text)


def _labeler(config: options.RoundsConfig, labels_dir: StoragePath, note: Note) -> Labeler:
    from slicebeam.pipelines.attribution.asking import terminal_labeler
    from slicebeam.pipelines.attribution.labelers import LanguageModel, RecordedLabels

    if config.labels is not None:
        return RecordedLabels(config.labels, config.positive)
    if config.llm is not None:
        return LanguageModel(config.llm, config.ledger, labels_dir, note)
    return terminal_labeler()
