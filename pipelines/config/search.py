"""The configuration of a search: every option with its type, default and meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.common import Command, validated
from slicebeam.pipelines.config.option_fields import (
    Columns,
    Count,
    Excludes,
    Option,
    OptionalFile,
    Rule,
    default,
    flag,
)
from slicebeam.pipelines.config.slices import RunConfig, needs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.transforms.encode.sources import ReservedRows

Strategy = Literal["batch", "iterative", "priority"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
# Options that have an effect on some strategies only.
STRATEGIES_OF = {
    "iterations": ("priority",),
    "max_candidates": ("priority",),
    "prune_significant": ("iterative", "priority"),
}


class SearchConfig(RunConfig):
    """Options of ``slicebeam search``."""

    command: ClassVar[Command] = "search"
    rules: ClassVar[tuple[Rule, ...]] = (
        Excludes("domains", "bins exact_edges"),
        Excludes("parity", "weight group", "have no test together"),
    )

    bins: Annotated[int, Field(ge=2, le=1000), Option("Features")] = 10
    """Quantile bins of a numeric column."""
    exact_edges: Annotated[bool, Option("Features")] = False
    """Use values of the data as the edges of bins, not round numbers."""
    top_values: Annotated[int, Field(ge=1, le=1_000_000), Option("Features")] = 100
    """Values of a categorical column that get a predicate of their own."""
    domains: Annotated[OptionalFile, Option("Features")] = default(None)
    """ChangeList of an earlier run whose bins and values to use. New values are added."""
    keep_outputs: Annotated[bool, Option("Features")] = False
    """Slice by columns named like a model's output (score_old, y_pred)."""
    parity: Annotated[Columns, Option("Statistics")] = ()
    """Columns of groups, such as sex, to compare in prediction rate, true and false positive rate
    and accuracy: the largest gap of each. Repeatable, or separated by commas."""
    max_cross_size: Annotated[int, Field(ge=1, le=10), Option("Search", comes_first=True)] = 3
    """Maximum number of predicates in a slice."""
    strategy: Annotated[
        Strategy | None,
        Option(
            "Search", default="batch; priority where that is estimated to take more than a minute"
        ),
    ] = None
    """batch: every conjunction. iterative: level by level. priority: the most promising ones."""
    iterations: Annotated[Count, Option("Search")] = 5
    """Iterations of --strategy priority."""
    max_candidates: Annotated[Count | None, Option("Search")] = 50_000
    """Maximum number of candidates in an iteration of --strategy priority."""
    prune_significant: Annotated[bool, Option("Search")] = False
    """Visit no slices within significant slices, as AutoSlicer does."""
    confirm: Annotated[float | None, Field(gt=0, le=0.5), Option("Statistics")] = None
    """Share of the examples to reserve for measuring the findings. The others are searched."""
    save_slices: Annotated[
        Literal["tested", "significant"] | None,
        Option("Output", default="tested, up to a million slices"),
    ] = None
    """Slices to write into slices.parquet: tested or significant."""

    @model_validator(mode="after")
    def _searches(self) -> SearchConfig:
        if self.strategy is not None:
            for name in self._without_effect(self.strategy):
                users = " and ".join(STRATEGIES_OF[name])
                raise OptionError(f"{flag(name)} is for --strategy {users}, not {self.strategy}")
        for name in self.metric if self.parity else ():
            needs = needs_of([name])
            if needs.predicted_numbers or needs.class_scores or needs.label_lists or needs.rankings:
                raise OptionError(
                    f"--parity compares predicted classes, and --metric {name} has none; leave one out"
                )
        return self

    @property
    def measured(self) -> Sequence[str]:
        """See `RunConfig.measured`; recall counts labels and predictions of the positive class."""
        return (*self.metric, "recall") if self.parity else self.metric

    def _without_effect(self, strategy: str) -> list[str]:
        """Return the options that were given and have no effect on a strategy."""
        return [
            name
            for name, users in STRATEGIES_OF.items()
            if strategy not in users and name in self.model_fields_set and getattr(self, name)
        ]

    def resolved_strategy(self, space: int, *, batch_fits: bool) -> Strategy:
        """Return the strategy for a lattice with this number of conjunctions.

        ``batch_fits``: whether visiting all of them is cheap enough to be the default.
        """
        strategy = self.strategy or ("batch" if batch_fits else "priority")
        for name in self._without_effect("batch") if strategy == "batch" else ():
            raise OptionError(
                f"{flag(name)} has no effect on --strategy batch, which is the default for these "
                f"{space:,} conjunctions; add --strategy priority"
            )
        return strategy

    def with_domains_of_since(self) -> SearchConfig:
        """Return the search with the bins and values of the run that it is compared with.

        Unless the user chose others: slices with other bins can't be compared.
        """
        if self.exact_edges or {"domains", "bins", "top_values"} & self.model_fields_set:
            return self
        return self.model_copy(update={"domains": self.since})

    @property
    def reserved(self) -> ReservedRows | None:
        """The examples that are reserved: whole groups, or by their ids or positions."""
        if self.confirm is None:
            return None
        from slicebeam.transforms.encode.sources import ReservedRows

        option = "--group" if self.group else "--example-id"
        column = self.group or self.example_id
        return ReservedRows(self.confirm, self.seed, column, option, is_reserved=True)

    @property
    def leaves_outputs_out(self) -> bool:
        """Whether columns that are named like a model's output are no features."""
        return not (self.keep_outputs or self.features)

    @property
    def domains_option(self) -> str:
        """The option that named the file of domains."""
        return "--since" if self.domains == self.since else "--domains"

    def resolved(self, strategy: str) -> dict[str, Any]:
        """Return every option that had an effect, defaults too: what repeats the run."""
        # Of the values that are new beside --domains, as many are named as --top-values says.
        unused = dict.fromkeys(("bins", "exact_edges"), self.domains is not None)
        unused |= {name: strategy not in users for name, users in STRATEGIES_OF.items()}
        options = {**self.options_used(), "strategy": strategy}
        return {name: value for name, value in options.items() if not unused.get(name, False)}


def search_config(options: dict[str, Any]) -> SearchConfig:
    """Return the validated configuration of a search."""
    if options.get("eval_config"):
        from slicebeam.pipelines.config.eval_options import with_eval_config

        options = with_eval_config(options)
    return validated(SearchConfig, options)
