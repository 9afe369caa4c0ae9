"""The configuration of ``slicebeam define``: a slice that a person describes."""

from __future__ import annotations

from typing import Annotated

from pydantic import model_validator

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.pipelines.config.document import CountingConfig
from slicebeam.pipelines.config.option_fields import (
    COLUMN,
    FILE,
    Option,
    OptionalPath,
    default,
    flag,
)

# What defines a slice, one of these; with the method of its origin.
METHODS: dict[str, str] = {
    "text_filter": "text_filter",
    "where": "manual",
    "ids": "manual",
    "classifier": "classifier",
    "llm_filter": "lm_filter",
}
# What has an effect beside one of them only.
_BESIDE = {
    "threshold": "text_filter",
    "llm": "llm_filter",
    "budget": "llm_filter",
    "text": "llm_filter",
}


class DefineConfig(CountingConfig):
    """Options of ``slicebeam define``."""

    name: Annotated[str, Option("Definition")]
    """Name of the slice."""
    text_filter: Annotated[str | None, Option("Definition", metavar="<text>")] = None
    """Examples whose embedding is similar to that of this text."""
    threshold: Annotated[
        float | None,
        Option(
            "Definition", default="mean + 2 standard deviations of the similarities of all examples"
        ),
    ] = None
    """Smallest cosine similarity for --text-filter."""
    where: Annotated[str | None, Option("Definition", metavar="<predicate>", comes_first=True)] = (
        None
    )
    """Examples that satisfy a predicate, such as 'age < 25 & sex = Female'."""
    ids: Annotated[OptionalPath, Option("Definition", metavar=FILE)] = default(None)
    """Examples with the ids in this file: one a line, CSV or JSON Lines."""
    classifier: Annotated[OptionalPath, Option("Definition", metavar=FILE)] = default(None)
    """Examples that a classifier selects: a logistic regression on embeddings, trained on this CSV
    of id and label (yes, no)."""
    llm_filter: Annotated[str | None, Option("Definition", metavar="<prompt>")] = None
    """Examples for which a language model answers yes to this prompt. {text} stands for the text of
    the example. It works best after a few answered examples."""
    llm: Annotated[OptionalPath, Option("Definition", metavar=FILE)] = default(None)
    """YAML file that describes the language model's API, as for shift --api. {prompt} stands for
    the prompt."""
    budget: Annotated[int | None, Option("Definition")] = None
    """Maximum number of calls for --llm-filter, including those of earlier runs."""
    text: Annotated[
        str | None, Option("Definition", metavar=COLUMN, default="as in --changelist")
    ] = None
    """Column of the texts for --llm-filter."""

    @model_validator(mode="after")
    def _is_defined_once(self) -> DefineConfig:
        given = [name for name in METHODS if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"not {' and '.join(map(flag, given))}" if given else "none of them is given"
            raise InputError(
                f"a slice needs exactly one of {', '.join(map(flag, METHODS))}; {found}"
            )
        for name, beside in _BESIDE.items():
            if getattr(self, name) is not None and given[0] != beside:
                raise OptionError(
                    f"{flag(name)} goes with {flag(beside)}, not with {flag(given[0])}"
                )
        for name in ("llm", "budget"):
            if self.llm_filter is not None and getattr(self, name) is None:
                raise OptionError(f"--llm-filter needs {flag(name)}")
        return self

    @property
    def way(self) -> str:
        """The option that defines the slice."""
        return next(name for name in METHODS if getattr(self, name) is not None)
