"""What the commands ``slicebeam attribute …`` do, each with its validated options."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.attribution.session import (
    Finished,
    LabelPaths,
    Plan,
    Sampled,
    Stopped,
    run_rounds,
    session,
)
from slicebeam.pipelines.attribution.session import estimate as estimated
from slicebeam.pipelines.changelist.revisions import base_of
from slicebeam.pipelines.config.document import DrawingConfig
from slicebeam.pipelines.show.attribution import CommandHint, show_finished, show_sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from slicebeam.pipelines.attribution.labelers import Labeler
    from slicebeam.pipelines.attribution.session import Session
    from slicebeam.pipelines.config.document import AttributionConfig, RoundsConfig, SampleConfig
    from slicebeam.transforms.storage.storage import StoragePath

    Note = Callable[[str], None]


def sample(config: SampleConfig, note: Note) -> Sampled:
    """Draw a round, and write the items to label as CSV."""
    with _opened(config, _plan(config), begins=True) as opened:
        sampled = opened.sample(config.budget, is_train=config.train)
        _note_all(opened, note)
    return sampled


def show_round(sampled: Sampled, config: SampleConfig) -> None:
    """Print where the items to label are."""
    if not config.quiet or config.as_json:
        show_sampled(sampled, _command_hint(config), as_json=config.as_json)


def estimate(config: AttributionConfig, note: Note) -> Finished:
    """Read the labels back, estimate precision and recall, and publish a revision with them."""
    with _opened(config, _plan(config)) as opened:
        finished = estimated(opened)
        _note_all(opened, note)
    return finished


def run(config: RoundsConfig, note: Note) -> Finished | Stopped:
    """Label in rounds until it is decided, or the budget is used up."""
    plan = _plan(config)
    place = LabelPaths.of(base_of(config.changelist), config.labels_dir)
    labeler = _labeler(
        config.labels, config.positive, config.llm, config.ledger, place.labels_dir, note
    )
    with _opened(config, plan, begins=True, rounds=config.rounds) as opened:
        came = run_rounds(
            opened, labeler, budget=config.budget, rounds=config.rounds, train=config.train
        )
        _note_all(opened, note)
    if isinstance(came, Stopped):
        note(f"{came.left:,} items have no label yet; run the same command to continue")
    return came


def show_estimate(came: Finished | Stopped, config: AttributionConfig) -> None:
    """Print the estimates, the decision and what to do next."""
    if isinstance(came, Finished) and (not config.quiet or config.as_json):
        show_finished(came, _command_hint(config), as_json=config.as_json)


def _plan(config: AttributionConfig) -> Plan:
    """Return the user's options for the slice."""
    plan = Plan(
        config.text,
        looks=config.looks,
        seed=config.seed,
        least_precision=config.least_precision,
        least_recall=config.least_recall,
    )
    if isinstance(config, DrawingConfig):
        return replace(
            plan, queries=config.query, exponent=config.exponent, uniform_share=config.uniform_share
        )
    return plan


@contextmanager
def _opened(
    config: AttributionConfig, plan: Plan, *, begins: bool = False, rounds: int | None = None
) -> Iterator[Session]:
    from slicebeam.pipelines.define.document_data import open_population

    uri = base_of(config.changelist)
    place = LabelPaths.of(uri, config.labels_dir)
    population, document, one = open_population(
        uri, config.slice, data=config.data or None, confirmed=config.confirmed
    )
    with session(
        population, document, one, plan, place, begins=begins, default_looks=rounds or 1
    ) as opened:
        yield opened


def _labeler(
    labels: str | None,
    positive: Sequence[str],
    llm: str | None,
    ledger: str | None,
    labels_dir: StoragePath,
    note: Note,
) -> Labeler:
    """Return the labeler."""
    from slicebeam.pipelines.attribution.asking import terminal_labeler
    from slicebeam.pipelines.attribution.labelers import LanguageModel, RecordedLabels

    if labels is not None and llm is not None:
        raise OptionError(f"--labels {labels} and --llm {llm} both give labels; choose one")
    if positive and labels is None:
        raise OptionError(
            f"--positive {positive[0]!r} names a value of a column that means yes; name the column with --labels"
        )
    if ledger is not None and llm is None:
        raise OptionError(
            f"--ledger {ledger} stores the answers of a language model; name its file with --llm"
        )
    if labels is not None:
        return RecordedLabels(labels, positive)
    if llm is not None:
        return LanguageModel(llm, ledger, labels_dir, note)
    return terminal_labeler()


def _command_hint(config: AttributionConfig) -> CommandHint:
    more = [] if config.labels_dir is None else ["--labels-dir", config.labels_dir]
    for path in config.data:
        more += ["--data", path]
    return CommandHint(config.changelist, config.slice, config.text, tuple(more))


def _note_all(opened: Session, note: Note) -> None:
    for one in opened.notes:
        note(one)
