"""The configuration of ``slicebeam shift``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from slicebeam.metrics.errors import OptionError
from slicebeam.metrics.kinds import Method
from slicebeam.pipelines.config.common import Command, DataConfig, Size
from slicebeam.pipelines.config.option_fields import (
    Column,
    Columns,
    Differs,
    Excludes,
    Model,
    Needed,
    NumberText,
    Option,
    OptionalFile,
    OptionalFolder,
    Output,
    Requires,
    Rule,
    Seed,
    checked,
    default,
)

_MONEY = re.compile(
    r"\s*(?:(?P<before>[A-Za-z]{3}|\$|€|£)\s*)?(?P<number>\d+(?:\.\d+)?)\s*(?P<after>[A-Za-z]{3}|\$|€|£)?\s*"
)
_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP"}
# Where a budget that buys more calls than any pool has items is no different from none.
_MOST_CALLS = 2**53
ACCURACY = "accuracy"


def is_table(focus: str) -> bool:
    """Return whether --focus names a table of weights."""
    return focus.lower().endswith(".csv")


@dataclass(frozen=True)
class CallBudget:
    """The budget: money in a currency of three letters, or calls without one."""

    amount: float
    currency: str | None = None

    def calls(self, price: float | None, currency: str | None) -> int:
        """Return how many calls it buys."""
        if self.currency is None:
            return int(self.amount)
        if price is None:
            raise OptionError(
                f"--budget {self.amount:g} {self.currency} is money, but calls have no price; "
                "give --price, the 'price' of the --api file, or a number of calls"
            )
        if currency is not None and currency != self.currency:
            raise OptionError(
                f"--budget is in {self.currency} and the price in {currency}; give both in one currency"
            )
        if self.amount >= price * _MOST_CALLS:
            return _MOST_CALLS
        # A price of a tenth of a cent buys ten for a cent, whatever binary fractions say.
        calls = int(self.amount / price + 1e-9)
        if calls == 0:
            raise OptionError(
                f"--budget {self.amount:g} {self.currency} buys no call at {price:g} {self.currency}; "
                "give more"
            )
        return calls


def parse_budget(text: str) -> CallBudget:
    """Return a budget as the user writes it.

    >>> parse_budget("2000")
    CallBudget(amount=2000.0, currency=None)
    >>> parse_budget("$2.50")
    CallBudget(amount=2.5, currency='USD')
    """
    match = _MONEY.fullmatch(text)
    if match is None or (match["before"] and match["after"]):
        raise OptionError(f"--budget {text!r}: write calls as 2000, or money as 5USD or $5")
    unit = match["before"] or match["after"]
    amount = min(float(match["number"]), float(_MOST_CALLS))
    if unit is None and not amount.is_integer():
        raise OptionError(
            f"--budget {text!r}: a number of calls is an integer; write money as {text}USD"
        )
    if amount <= 0:
        raise OptionError(f"--budget {text!r} buys nothing; give more")
    return CallBudget(amount, None if unit is None else _SIGNS.get(unit, unit.upper()))


Amount = Annotated[str | None, checked(parse_budget), Option(metavar="<amount>")]


class ShiftConfig(DataConfig):
    """Options of ``slicebeam shift``."""

    command: ClassVar[Command] = "shift"
    rules: ClassVar[tuple[Rule, ...]] = (
        Differs("label", "old_prediction replay_prediction difficulty example_id"),
        Requires("bins", "difficulty", "it divides the values of a column"),
        Excludes("api", "model replay_prediction", "both give answers"),
        Excludes("model", "replay_prediction", "both give answers"),
        Requires("features", "model", "it says what a model reads"),
        Requires("ledger", "api model", "it stores their answers"),
        Requires("plan", "old_prediction", "it simulates updates of the old predictions"),
        Excludes("plan", "replay_prediction model target_error ledger by changelist old_matrix"),
        Excludes("repeat", "by changelist old_matrix"),
        Requires("repeat", "replay_prediction plan", "it measures a method on recorded answers"),
        Requires("by changelist", "old_prediction", "slices have old matrices of their own"),
        Excludes("by", "changelist", "both name slices"),
        Requires(
            "method=plus", "old_prediction", "it compares with the old predictions item by item"
        ),
        Excludes("old_matrix", "old_prediction", "both give the old matrix"),
        Needed("output", "plan repeat", "the folder for the result is missing"),
        Needed("api model replay_prediction", "plan", "no source of answers"),
        Needed("old_prediction old_matrix", "plan repeat", "the old confusion matrix is missing"),
        Needed("budget target_error", "plan", "there is no stopping rule"),
    )

    # Empty for what publishes nothing.
    output: Annotated[Output, Option("Output", comes_first=True)] = default("")
    """Folder for changelist.json and the ledger. Required, except with --plan and --repeat, which
    only print."""
    label: Annotated[Column, Option("Old answers")]
    """Column of the true classes."""
    old_prediction: Annotated[Column | None, Option("Old answers")] = None
    """Column of the API's earlier predictions."""
    old_matrix: Annotated[OptionalFile, Option("Old answers")] = default(None)
    """ChangeList of an earlier shift, whose new confusion matrix is the old one of this run.
    Replaces --old-prediction."""
    difficulty: Annotated[Column | None, Option("Budget")] = None
    """Column of confidence values, from the old API or a cheap model. Its quantile bins are
    strata."""
    bins: Annotated[int, Field(ge=1, le=100), Option("Budget")] = 3
    """Number of quantile bins of --difficulty."""
    api: Annotated[OptionalFile, Option("New answers", is_overridable=True)] = default(None)
    """YAML file that describes the requests to the HTTP API and its answers."""
    model: Annotated[Model | None, Option("New answers")] = None
    """scikit-learn model to call instead of an API, or module:function that returns a Beam model
    handler. Loading a model runs the code in it: give only what you trust."""
    features: Annotated[Columns, Option("New answers")] = ()
    """Columns that --model reads, if the model does not know their names. Repeatable, or separated
    by commas."""
    replay_prediction: Annotated[Column | None, Option("New answers")] = None
    """Column of recorded answers to use instead of calls."""
    method: Annotated[Method | None, Option("Budget")] = None
    """plus: sample most where most changed, with the old predictions as a control variate. masa:
    sample most where answers vary most (Chen et al., 2021; biased). proportional: strata by size.
    [default: plus with --old-prediction, else proportional]"""
    budget: Annotated[
        NumberText, checked(parse_budget), Option("Budget", metavar="<budget>", comes_first=True)
    ] = default(None)
    """Maximum number of calls, such as 2000, or amount of money, such as 5USD."""
    target_error: Annotated[float | None, Field(gt=0, lt=2), Option("Budget", comes_first=True)] = (
        None
    )
    """Stop when the Frobenius error of the new matrix is below this value, with --confidence. With
    --repeat: the error whose number of calls is reported (default 0.01)."""
    focus: Annotated[
        str | None,
        Option("Budget", metavar="accuracy|<label>:<prediction>|<file.csv>", has_placeholders=True),
    ] = None
    """What counts: accuracy (the right predictions), one cell LABEL:PREDICTION, or a table of the
    columns label, prediction and weight. Calls go where its error is largest; --target-error and
    --fail-on judge it alone. [default: all cells alike]"""
    confidence: Annotated[float, Field(ge=0.5, lt=1), Option("Budget", comes_first=True)] = 0.95
    """Confidence of the intervals and of --target-error."""
    price: Annotated[float | None, Field(ge=0, allow_inf_nan=False), Option("Budget")] = None
    """Price of a call, in the currency of the --api file or of --budget, otherwise USD. [default:
    'price' of the --api file]"""
    by: Annotated[Column | None, Option("Slices")] = None
    """Column whose values are slices, to report the shift of each too."""
    changelist: Annotated[OptionalFile, Option("Slices")] = default(None)
    """ChangeList of a search or check, to report the shift of each of its slices too."""
    ledger: Annotated[OptionalFolder, Option("Output")] = default(None)
    """Folder that stores every answer of --api or --model. A stored answer is never requested
    again. [default: OUTPUT/ledger]"""
    plan: Annotated[bool, Option("Budget")] = Field(default=False, init=False)
    """Make no call: simulate updates of the old predictions, and print what each budget and method
    would give."""
    repeat: Annotated[int | None, Field(ge=1, le=100_000), Option("Budget")] = Field(
        default=None, init=False
    )
    """Make no call: print how well the method does on --replay-prediction over this many seeds.
    With --plan: runs of each simulation (default 100)."""
    example_id: Annotated[Column | None, Option("Data")] = None
    """Column that identifies an item. The ledger finds the item by this value, even if the data
    changes. [default: its row in the data]"""
    seed: Annotated[Seed, Option("Budget")] = 0
    """Random seed for drawing items."""
    memory_budget: Annotated[Size, Option("Engine")] = "512MB"
    """Memory that reading the pool may use for a chunk of it."""

    @field_validator("focus")
    @classmethod
    def _is_focus(cls, value: str | None) -> str | None:
        if value is not None and value != ACCURACY and not is_table(value) and ":" not in value:
            raise OptionError(
                f"--focus {value!r} is not a valid focus; give accuracy, a cell LABEL:PREDICTION or a "
                "table, weights.csv"
            )
        return value

    @property
    def simulates(self) -> bool:
        """Whether nothing is queried: a plan, or a study on recorded answers."""
        return self.plan or self.repeat is not None

    @property
    def used_method(self) -> Method:
        """How items are chosen."""
        if self.method is not None:
            return self.method
        return "plus" if self.old_prediction is not None else "proportional"

    @property
    def files_read(self) -> tuple[str, ...]:
        """The files that decide the result, besides the data."""
        model = None if self.model is None or ":" in self.model else self.model
        table = self.focus if self.focus and is_table(self.focus) else None
        return (*super().files_read, *filter(None, (model, table)))

    def resolved(self) -> dict[str, Any]:
        """Return every option that had an effect, defaults too: what repeats the run."""
        options = self.model_dump(mode="json", exclude_none=True) | {"method": self.used_method}
        if self.difficulty is None:
            options.pop("bins")
        # 0 equals False, but a price of 0 is one.
        return {k: value for k, value in options.items() if value is not False and value != []}
