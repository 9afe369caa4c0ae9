"""The configuration of a search: every option with its type, default and meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from slicebeam.metrics.errors import OptionError, flag
from slicebeam.metrics.kinds import OF_NUMBERS, is_tfma, split_outside
from slicebeam.pipelines.config.common import Command, validated
from slicebeam.pipelines.config.option_fields import (
    Columns,
    Count,
    Excludes,
    Option,
    OptionalFile,
    Rule,
    default,
)
from slicebeam.pipelines.config.slices import RunConfig, needs_of

if TYPE_CHECKING:
    from slicebeam.transforms.encode.sources import ReservedRows

Strategy = Literal["batch", "iterative", "priority"]
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
        Excludes("baseline_data", "confirm parity since"),
        Excludes("domains", "bins exact_edges"),
        Excludes("parity", "weight group", "have no test together"),
        Excludes("strategy=batch", "iterations max_candidates prune_significant"),
        Excludes("strategy=iterative", "iterations max_candidates"),
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
    strategy: Annotated[Strategy | None, Option("Search")] = None
    """batch: every conjunction. iterative: level by level. priority: the most promising ones.
    [default: batch; priority where that is estimated to take more than a minute]"""
    iterations: Annotated[Count, Option("Search")] = 5
    """Iterations of --strategy priority."""
    max_candidates: Annotated[Count | None, Option("Search")] = 50_000
    """Maximum number of candidates in an iteration of --strategy priority."""
    prune_significant: Annotated[bool, Option("Search")] = False
    """Visit no slices within significant slices, as AutoSlicer does."""
    confirm: Annotated[float | None, Field(gt=0, le=0.5), Option("Statistics")] = None
    """Share of the examples to reserve for measuring the findings. The others are searched."""
    save_slices: Annotated[Literal["tested", "significant"] | None, Option("Output")] = None
    """Slices to write into slices.parquet: tested or significant. [default: tested, up to a million
    slices]"""

    @model_validator(mode="after")
    def _searches(self) -> SearchConfig:
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

    def resolved_strategy(self, space: int, *, batch_fits: bool) -> Strategy:
        """Return the strategy for a number of conjunctions; batch is the default where all of them fit."""
        strategy = self.strategy or ("batch" if batch_fits else "priority")
        for name in filter(self.has, STRATEGIES_OF) if strategy == "batch" else ():
            raise OptionError(
                f"{flag(name)} has no effect on --strategy batch, which is the default for these "
                f"{space:,} conjunctions; add --strategy priority"
            )
        return strategy

    @property
    def follows_data(self) -> bool:
        """Whether the data of the run that ``--since`` names may be compared, not only its slices."""
        return self.compare is None and self.comparison == "overall"

    def with_domains_of_since(self) -> SearchConfig:
        """Return the search with the bins and values of the run that it is compared with, unless others are chosen."""
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
        """Whether columns that are named like a model's output are no features; not of a discovery."""
        return self.command == "search" and not (self.keep_outputs or self.features)

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
    return validated(SearchConfig, with_eval_config(options))


def with_eval_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's options with those that ``eval_config`` adds."""
    uri = options.get("eval_config")
    if not isinstance(uri, str) or not uri:
        return dict(options)
    from slicebeam.transforms.tfma.eval_config import eval_plan

    chosen = {key: value for key, value in options.items() if value is not None}
    added = dict(eval_plan(uri).options)
    _join_metrics(uri, added, chosen)
    for prefix in ("", "baseline_"):
        roles = [f"{prefix}{name}" for name in ("prediction", "score", "model")]
        named = [name for name in roles if name in added]
        others = [name for name in roles if name in chosen and name not in added]
        if named and others:
            raise OptionError(
                f"{flag(others[0])} {chosen[others[0]]!r} contradicts prediction_key "
                f"{added[named[0]]!r} of --eval-config {uri}; leave one out"
            )
    if "threshold" in added:
        cut = chosen.get("threshold")
        if chosen.get("prediction"):
            # The predictions are classes: no score is cut.
            del added["threshold"]
        elif isinstance(cut, (int, float)) and abs(cut - added["threshold"]) < 1e-9:
            chosen.pop("threshold")
    for name, value in added.items():
        other = chosen.get(name, value)
        other = tuple(other) if isinstance(other, list) else other
        if other != value:
            raise _contradiction(uri, name, other, value)
    return {**added, **chosen}


def _join_metrics(uri: str, added: dict[str, Any], chosen: dict[str, Any]) -> None:
    """Join the metrics of a user and a file; the user's order says what steers the search."""
    listed = chosen.get("metric", ())
    listed = split_outside(listed) if isinstance(listed, str) else list(listed)
    of_user = tuple(name for name in listed if not is_tfma(name))
    of_file = added.pop("metric", ())
    if of_user and of_file and set(of_user) != set(of_file):
        raise _contradiction(uri, "metric", of_user, of_file)
    are_of_numbers = OF_NUMBERS.issuperset(name.split(":")[0] for name in of_user)
    if of_user and are_of_numbers and not of_file and "score" in added:
        for prefix in ("", "baseline_"):
            if (column := added.pop(f"{prefix}score", None)) is not None:
                added[f"{prefix}prediction"] = column
    if first := of_user or of_file:
        chosen["metric"] = (*first, *(name for name in listed if is_tfma(name)))


def _contradiction(uri: str, name: str, option: Any, value: Any) -> OptionError:
    shown = [",".join(side) if isinstance(side, tuple) else side for side in (option, value)]
    return OptionError(
        f"{flag(name)} {shown[0]} contradicts {shown[1]} of --eval-config {uri}; leave one out"
    )
