"""The command ``slicebeam define``. What it needs is imported when it runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from slicebeam.metrics.errors import printable
from slicebeam.pipelines import options as opt
from slicebeam.transforms.plain_http import allow

Document = Annotated[
    str,
    typer.Option(
        "--changelist",
        metavar="<path>",
        help="ChangeList, any revision, or its folder for the last one.",
    ),
]
DataOfSlices = Annotated[
    list[str] | None,
    typer.Option("--data", metavar="<path>", help="Files or globs.  [default: as in --changelist]"),
]


def define(
    changelist: Document,
    name: Annotated[str, typer.Option(help="What the slice is called.")],
    text_filter: Annotated[
        str | None, typer.Option(help="Examples whose embedding is similar to this text's.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Least cosine similarity of --text-filter.  [default: mean + 2 standard deviations "
            "of the similarities of all examples]"
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="<predicate>",
            help="Examples that satisfy it, such as 'age < 25 & sex = Female'.",
        ),
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option(
            metavar="<file>", help="Examples with these ids: one a line, CSV or JSON Lines."
        ),
    ] = None,
    classifier: Annotated[
        str | None,
        typer.Option(
            metavar="<file>",
            help="Examples like those that a CSV of id and label (yes, no) tells: by a logistic "
            "regression on embeddings.",
        ),
    ] = None,
    llm_filter: Annotated[
        str | None,
        typer.Option(
            metavar="<prompt>",
            help="Examples of which a language model says yes; {text} in the prompt stands for the "
            "example's text, best after a few answered ones.",
        ),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option(
            metavar="<file>",
            help="YAML file that tells how the model is asked, as of shift --api; {prompt} in it "
            "stands for the prompt.",
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(help="Most calls of --llm-filter; those of earlier runs count, too."),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            metavar="<column>",
            help="Column of the texts for --llm-filter.  [default: as in --changelist]",
        ),
    ] = None,
    data: DataOfSlices = None,
    model: opt.ConfirmedModel = None,
    baseline_model: opt.ConfirmedBaselineModel = None,
    encoder: opt.ConfirmedEncoder = None,
    allow_http: opt.AllowHttp = False,
    runner_config: opt.RunnerConfig = "direct",
    runner_option: opt.RunnerOption = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Define a slice by hand: words, a predicate, ids or labels.

    Or by a language model, which is asked about every example. The slice is counted on the data, and a new revision of the ChangeList, beside it, has it.
    """
    from slicebeam.pipelines.confirmation import Confirmed
    from slicebeam.pipelines.define.defining import Described, define_slice
    from slicebeam.pipelines.define.new_slices import Counting
    from slicebeam.pipelines.define.showing import show_revision

    allow(allow_http)
    described = Described(
        name=name,
        text_filter=text_filter,
        where=where,
        ids=ids,
        classifier=classifier,
        llm_filter=llm_filter,
        threshold=threshold,
        llm=llm,
        budget=budget,
        text=text,
    )

    def on_start(said: str) -> None:
        if not quiet:
            sys.stderr.write(f"{printable(said)}\n")

    confirmed = Confirmed(model, baseline_model, encoder)
    counting = Counting(tuple(data or ()), runner_config, tuple(runner_option or ()), confirmed)
    published = define_slice(changelist, described, counting, on_start)
    show_revision(published, f"defined slice {name!r}", quiet=quiet, as_json=as_json)
