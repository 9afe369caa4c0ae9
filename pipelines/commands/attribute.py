"""What the commands ``slicebeam attribute …`` do, each with its validated options."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from slicebeam.pipelines.attribution.session import (
    Finished,
    LabelPaths,
    Sampled,
    Stopped,
    run_rounds,
    session,
)
from slicebeam.pipelines.attribution.session import estimate as estimated
from slicebeam.pipelines.attribution.state import Plan
from slicebeam.pipelines.changelist.revisions import base_of
from slicebeam.pipelines.config.document import DrawingConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slicebeam.pipelines.attribution.labelers import Labeler
    from slicebeam.pipelines.attribution.session import Session
    from slicebeam.pipelines.config.document import AttributionConfig, RoundsConfig, SampleConfig
    from slicebeam.transforms.storage.storage import StoragePath

    Note = Callable[[str], None]


def sample(config: SampleConfig, note: Note) -> Sampled:
    """Draw a round, and write the items to label as CSV."""
    with _opened(config, note, begins=True) as opened:
        return opened.sample(config.budget, is_train=config.train)


def estimate(config: AttributionConfig, note: Note) -> Finished:
    """Read the labels back, estimate precision and recall, and publish a revision with them."""
    with _opened(config, note) as opened:
        return estimated(opened)


def run(config: RoundsConfig, note: Note) -> Finished | Stopped:
    """Label in rounds until it is decided, or the budget is used up."""
    place = LabelPaths.of(base_of(config.changelist), config.labels_dir)
    labeler = _labeler(config, place.labels_dir, note)
    with _opened(config, note, begins=True, rounds=config.rounds) as opened:
        result = run_rounds(
            opened, labeler, budget=config.budget, rounds=config.rounds, train=config.train
        )
    if isinstance(result, Stopped):
        note(f"{result.left:,} items have no label yet; run the same command to continue")
    return result


@contextmanager
def _opened(
    config: AttributionConfig, note: Note, *, begins: bool = False, rounds: int | None = None
) -> Iterator[Session]:
    """Open the labels of the slice, and print its notes in the end."""
    from slicebeam.pipelines.define.document_data import open_population

    planned = {"looks", "seed", "least_precision", "least_recall", "exponent", "uniform_share"}
    options = config.model_dump(include=planned)
    if isinstance(config, DrawingConfig):
        options["queries"] = config.query
    plan = Plan(config.text, **options)
    uri = base_of(config.changelist)
    place = LabelPaths.of(uri, config.labels_dir)
    population, document, labelled = open_population(
        uri, config.slice, data=config.data or None, confirmed=config.confirmed
    )
    with session(
        population, document, labelled, plan, place, begins=begins, default_looks=rounds or 1
    ) as opened:
        yield opened
        for text in opened.notes:
            note(text)


def _labeler(config: RoundsConfig, labels_dir: StoragePath, note: Note) -> Labeler:
    """Return the labeler."""
    from slicebeam.pipelines.attribution.asking import terminal_labeler
    from slicebeam.pipelines.attribution.labelers import LanguageModel, RecordedLabels

    if config.labels is not None:
        return RecordedLabels(config.labels, config.positive)
    if config.llm is not None:
        return LanguageModel(config.llm, config.ledger, labels_dir, note)
    return terminal_labeler()
