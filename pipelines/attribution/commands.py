"""The commands ``slicebeam attribute sample``, ``estimate`` and ``run``."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines import options as opt
from slicebeam.pipelines.confirmation import Confirmed
from slicebeam.pipelines.terminal_text import harmless
from slicebeam.transforms.plain_http import allow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.pipelines.attribution.labelers import Labeler
    from slicebeam.pipelines.attribution.session import Plan, Session
    from slicebeam.pipelines.attribution.showing import Asked
    from slicebeam.transforms.storage import StoragePath

app = typer.Typer(
    name="attribute",
    help="Tell by a few labels whether a slice is what words say.\n\n"
    "The precision and the recall of the words, with intervals.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Changelist = Annotated[
    str,
    typer.Option(
        metavar="<path>", help="The changelist.json, or its folder for the last revision."
    ),
]
SliceName = Annotated[
    str,
    typer.Option(
        "--slice",
        metavar="<slice>",
        help="The slice: its slice_id or the beginning of it, or its name.",
    ),
]
Text = Annotated[str, typer.Option(help="The words that are said to be true of its examples.")]
Query = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<text>",
        help="What examples look like of which the words are true, to find those that the slice "
        "misses. Repeatable.  [default: --text]",
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(metavar="<path>", help="Files or globs.  [default: as in --changelist]"),
]
LabelsDir = Annotated[
    str | None,
    typer.Option(help="Folder of the labels.  [default: attribution, beside --changelist]"),
]
LeastPrecision = Annotated[
    float | None,
    typer.Option(help="Precision to accept, kept from the first round.  [default: 0.8]"),
]
LeastRecall = Annotated[
    float | None, typer.Option(help="Recall to accept, kept from the first round.  [default: 0.8]")
]
Exponent = Annotated[
    float, typer.Option(help="How much draws outside the slice prefer what the queries are like.")
]
UniformShare = Annotated[
    float, typer.Option(help="Share of these draws that prefer nothing, above 0.")
]
Looks = Annotated[
    int | None,
    typer.Option(
        help="How often you will look whether the labels suffice, which the intervals allow for; "
        "kept from the first round.  [default: 1, or --rounds]"
    ),
]
Seed = Annotated[int | None, typer.Option(help="Kept from the first round.  [default: 0]")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")]


@app.command()
def sample(
    changelist: Changelist,
    slice_name: SliceName,
    text: Text,
    budget: Annotated[int, typer.Option(help="Labels that the round may ask for.")],
    query: Query = None,
    train: Annotated[
        bool,
        typer.Option("--train", help="Items to train a classifier by, instead of to estimate by."),
    ] = False,
    data: Data = None,
    labels_dir: LabelsDir = None,
    least_precision: LeastPrecision = None,
    least_recall: LeastRecall = None,
    exponent: Exponent = 4.0,
    uniform_share: UniformShare = 0.2,
    looks: Looks = None,
    seed: Seed = None,
    model: opt.ConfirmedModel = None,
    baseline_model: opt.ConfirmedBaselineModel = None,
    encoder: opt.ConfirmedEncoder = None,
    allow_http: opt.AllowHttp = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write the items to label, as CSV and as JSON Lines.

    Fill the column label with yes, no or unsure in either. Called again, it draws a further round.
    """
    from slicebeam.pipelines.attribution.session import Plan
    from slicebeam.pipelines.attribution.showing import show_sampled

    allow(allow_http)
    plan = Plan(
        text,
        tuple(query or ()),
        looks,
        seed,
        least_precision,
        least_recall,
        exponent,
        uniform_share,
    )
    confirmed = Confirmed(model, baseline_model, encoder)
    with _opened(changelist, slice_name, plan, data, labels_dir, confirmed, begins=True) as opened:
        sampled = opened.sample(budget, is_train=train)
        _tell(opened.notes, quiet=quiet)
    if not quiet or as_json:
        asked = _asked(changelist, slice_name, text, labels_dir, data)
        show_sampled(sampled, asked, as_json=as_json)


@app.command()
def estimate(
    changelist: Changelist,
    slice_name: SliceName,
    text: Text,
    data: Data = None,
    labels_dir: LabelsDir = None,
    least_precision: LeastPrecision = None,
    least_recall: LeastRecall = None,
    looks: Looks = None,
    seed: Seed = None,
    model: opt.ConfirmedModel = None,
    baseline_model: opt.ConfirmedBaselineModel = None,
    encoder: opt.ConfirmedEncoder = None,
    allow_http: opt.AllowHttp = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Read the labels back, tell precision and recall, and write them into a new revision."""
    from slicebeam.pipelines.attribution.rounds import estimate as estimated
    from slicebeam.pipelines.attribution.session import Plan
    from slicebeam.pipelines.attribution.showing import show_finished

    allow(allow_http)
    plan = Plan(text, (), looks, seed, least_precision, least_recall)
    confirmed = Confirmed(model, baseline_model, encoder)
    with _opened(changelist, slice_name, plan, data, labels_dir, confirmed) as opened:
        finished = estimated(opened)
        _tell(opened.notes, quiet=quiet)
    if not quiet or as_json:
        asked = _asked(changelist, slice_name, text, labels_dir, data)
        show_finished(finished, opened.slice, asked, as_json=as_json)


@app.command()
def run(
    changelist: Changelist,
    slice_name: SliceName,
    text: Text,
    budget: Annotated[int, typer.Option(help="Labels of all rounds, those of earlier runs too.")],
    rounds: Annotated[
        int, typer.Option(help="Rounds, after each of which it is looked whether they suffice.")
    ] = 1,
    train: Annotated[
        int,
        typer.Option(
            help="Further labels, to propose a better slice by a classifier where this one is not "
            "what its words say."
        ),
    ] = 0,
    labels: Annotated[
        str | None, typer.Option(metavar="<column>", help="Column that holds the labels.")
    ] = None,
    positive: Annotated[
        list[str] | None,
        typer.Option(metavar="<value>", help="Value of it that means yes. Repeatable."),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option(
            metavar="<file>",
            help="YAML file of a language model's API, as of slicebeam shift --api, with "
            "{attribution_text} and the columns that show an item in its prompt.",
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(help="Folder of what was paid to it.  [default: in the folder of labels]"),
    ] = None,
    query: Query = None,
    data: Data = None,
    labels_dir: LabelsDir = None,
    least_precision: LeastPrecision = None,
    least_recall: LeastRecall = None,
    exponent: Exponent = 4.0,
    uniform_share: UniformShare = 0.2,
    looks: Looks = None,
    seed: Seed = None,
    model: opt.ConfirmedModel = None,
    baseline_model: opt.ConfirmedBaselineModel = None,
    encoder: opt.ConfirmedEncoder = None,
    allow_http: opt.AllowHttp = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Label in rounds until it is decided, by a column, a language model, or you.

    Stopped and begun again with the same options, it goes on; nothing labelled is asked again.
    """
    from slicebeam.pipelines.attribution.rounds import Stopped, run_rounds
    from slicebeam.pipelines.attribution.session import Place, Plan
    from slicebeam.pipelines.attribution.showing import show_finished

    allow(allow_http)
    plan = Plan(
        text,
        tuple(query or ()),
        looks,
        seed,
        least_precision,
        least_recall,
        exponent,
        uniform_share,
    )
    place = Place.of(_base(changelist), labels_dir)
    labeler = _labeler(labels, positive or (), llm, ledger, place.labels_dir, quiet=quiet)
    confirmed = Confirmed(model, baseline_model, encoder)
    with _opened(
        changelist, slice_name, plan, data, labels_dir, confirmed, begins=True, rounds=rounds
    ) as opened:
        came = run_rounds(opened, labeler, budget=budget, rounds=rounds, train=train)
        _tell(opened.notes, quiet=quiet)
    if isinstance(came, Stopped):
        _tell([f"{came.left:,} items have no label yet; the same command goes on"], quiet=quiet)
    elif not quiet or as_json:
        asked = _asked(changelist, slice_name, text, labels_dir, data)
        show_finished(came, opened.slice, asked, as_json=as_json)


def _base(changelist: str) -> str:
    from slicebeam.pipelines.revisions import base_of

    return base_of(changelist)


@contextmanager
def _opened(
    changelist: str,
    slice_name: str,
    plan: Plan,
    data: Sequence[str] | None,
    labels_dir: str | None,
    confirmed: Confirmed,
    *,
    begins: bool = False,
    rounds: int | None = None,
) -> Iterator[Session]:
    from slicebeam.pipelines.attribution.session import Place, session
    from slicebeam.pipelines.discovery.population import open_population

    uri = _base(changelist)
    place = Place.of(uri, labels_dir)
    population, document, one = open_population(
        uri, slice_name, data=None if data is None else tuple(data), confirmed=confirmed
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
    *,
    quiet: bool,
) -> Labeler:
    """Return who labels.

    Raises
    ------
    InputError
        The options name several, or what they name can't be used.
    """
    from slicebeam.pipelines.attribution.asking import terminal_labeler
    from slicebeam.pipelines.attribution.labelers import LanguageModel, RecordedLabels

    if labels is not None and llm is not None:
        raise InputError(f"--labels {labels} and --llm {llm} both give labels; choose one")
    if positive and labels is None:
        raise InputError(
            f"--positive {positive[0]!r} says which values of a column mean yes; name it by --labels"
        )
    if ledger is not None and llm is None:
        raise InputError(f"--ledger {ledger} is of a language model; name its file by --llm")
    if labels is not None:
        return RecordedLabels(labels, positive)
    if llm is not None:
        return LanguageModel(llm, ledger, labels_dir, lambda text: _tell([text], quiet=quiet))
    return terminal_labeler()


def _asked(
    changelist: str,
    slice_name: str,
    text: str,
    labels_dir: str | None,
    data: Sequence[str] | None,
) -> Asked:
    from slicebeam.pipelines.attribution.showing import Asked

    more = [] if labels_dir is None else ["--labels-dir", labels_dir]
    for path in data or ():
        more += ["--data", path]
    return Asked(changelist, slice_name, text, tuple(more))


def _tell(notes: Sequence[str], *, quiet: bool) -> None:
    for note in () if quiet else notes:
        sys.stderr.write(f"{harmless(note)}\n")
