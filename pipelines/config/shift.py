"""The configuration of ``slicebeam shift``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator, model_validator

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.metrics.kinds import Method
from slicebeam.pipelines.config.common import Command, DataConfig
from slicebeam.pipelines.config.option_fields import (
    COLUMN,
    COLUMNS,
    FILE,
    FOLDER,
    NumberText,
    Option,
    OptionalPath,
    OutputPath,
    Texts,
    default,
    flag,
)

_MONEY = re.compile(
    r"\s*(?:(?P<before>[A-Za-z]{3}|\$|€|£)\s*)?(?P<number>\d+(?:\.\d+)?)\s*(?P<after>[A-Za-z]{3}|\$|€|£)?\s*"
)
_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP"}
# Where a budget that buys more calls than any pool has items is no different from none.
_MOST_CALLS = 2**53
_SOURCES = ("api", "model", "replay_prediction")
ACCURACY = "accuracy"


def is_table(focus: str) -> bool:
    """Return whether --focus names a table of weights."""
    return focus.lower().endswith(".csv")


@dataclass(frozen=True)
class CallBudget:
    """The budget: calls or money.

    ``currency``: three letters; None for calls.
    """

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
    found = _MONEY.fullmatch(text)
    unit = (found["before"] or found["after"]) if found else None
    if found is None or (found["before"] and found["after"]):
        raise OptionError(f"--budget {text!r}: write calls as 2000, or money as 5USD or $5")
    amount = min(float(found["number"]), float(_MOST_CALLS))
    if unit is None and not amount.is_integer():
        raise OptionError(
            f"--budget {text!r}: a number of calls is an integer; write money as {text}USD"
        )
    if amount <= 0:
        raise OptionError(f"--budget {text!r} buys nothing; give more")
    return CallBudget(amount, None if unit is None else _SIGNS.get(unit, unit.upper()))


def known_budget(value: str | None) -> str | None:
    """Return the text of a budget, if any, that can be read."""
    if value is not None:
        parse_budget(value)
    return value


class ShiftConfig(DataConfig):
    """Options of ``slicebeam shift``."""

    command: ClassVar[Command] = "shift"

    # Empty for what publishes nothing.
    output: Annotated[
        OutputPath,
        Option(
            "Output", metavar=FOLDER, comes_first=True, has_placeholders=True, stands_instead=True
        ),
    ] = default("")
    """Folder for changelist.json and the ledger. Required, except with --plan and --repeat, which
    only print."""
    label: Annotated[str, Option("Old answers", metavar=COLUMN)]
    """Column of the true classes."""
    old_prediction: Annotated[str | None, Option("Old answers", metavar=COLUMN)] = None
    """Column of the API's earlier predictions."""
    old_matrix: Annotated[
        OptionalPath, Option("Old answers", metavar=FILE, has_placeholders=True)
    ] = default(None)
    """ChangeList of an earlier shift, whose new confusion matrix is the old one of this run.
    Replaces --old-prediction."""
    difficulty: Annotated[str | None, Option("Budget", metavar=COLUMN)] = None
    """Column of confidence values, from the old API or a cheap model. Its quantile bins are
    strata."""
    bins: Annotated[int, Field(ge=1, le=100), Option("Budget")] = 3
    """Number of quantile bins of --difficulty."""
    api: Annotated[
        OptionalPath,
        Option("New answers", metavar=FILE, has_placeholders=True, stands_instead=True),
    ] = default(None)
    """YAML file that describes the requests to the HTTP API and its answers."""
    model: Annotated[
        str | None,
        Option("New answers", metavar="<model>", has_placeholders=True, stands_instead=True),
    ] = None
    """scikit-learn model to call instead of an API, or module:function that returns a Beam model
    handler. Loading a model runs the code in it: give only what you trust."""
    features: Annotated[Texts, Option("New answers", metavar=COLUMNS, by_commas=True)] = ()
    """Columns that --model reads, if the model does not know their names. Repeatable, or separated
    by commas."""
    replay_prediction: Annotated[str | None, Option("New answers", metavar=COLUMN)] = None
    """Column of recorded answers to use instead of calls."""
    method: Annotated[
        Method | None, Option("Budget", default="plus with --old-prediction, else proportional")
    ] = None
    """plus: sample most where most changed, with the old predictions as a control variate. masa:
    sample most where answers vary most (Chen et al., 2021; biased). proportional: strata by
    size."""
    budget: Annotated[
        NumberText, Option("Budget", metavar="<budget>", comes_first=True, takes_numbers=True)
    ] = default(None)
    """Maximum number of calls, such as 2000, or amount of money, such as 5USD."""
    target_error: Annotated[
        Annotated[float, Field(gt=0, lt=2)] | None, Option("Budget", comes_first=True)
    ] = None
    """Stop when the Frobenius error of the new matrix is below this value, with --confidence. With
    --repeat: the error whose number of calls is reported (default 0.01)."""
    focus: Annotated[
        str | None,
        Option(
            "Budget",
            metavar="accuracy|<label>:<prediction>|<file.csv>",
            default="all cells alike",
            has_placeholders=True,
        ),
    ] = None
    """What counts: accuracy (the right predictions), one cell LABEL:PREDICTION, or a table of the
    columns label, prediction and weight. Calls go where its error is largest; --target-error and
    --fail-on judge it alone."""
    confidence: Annotated[float, Field(ge=0.5, lt=1), Option("Budget", comes_first=True)] = 0.95
    """Confidence of the intervals and of --target-error."""
    price: Annotated[
        Annotated[float, Field(ge=0, allow_inf_nan=False)] | None,
        Option("Budget", default="'price' of the --api file"),
    ] = None
    """Price of a call, in the currency of the --api file or of --budget, otherwise USD."""
    by: Annotated[str | None, Option("Slices", metavar=COLUMN)] = None
    """Column whose values are slices, to report the shift of each too."""
    changelist: Annotated[OptionalPath, Option("Slices", metavar=FILE, has_placeholders=True)] = (
        default(None)
    )
    """ChangeList of a search or check, to report the shift of each of its slices too."""
    ledger: Annotated[
        OptionalPath,
        Option("Output", metavar=FOLDER, default="OUTPUT/ledger", has_placeholders=True),
    ] = default(None)
    """Folder that stores every answer of --api or --model. A stored answer is never requested
    again."""
    plan: Annotated[bool, Option("Budget")] = Field(default=False, init=False)
    """Make no call: simulate updates of the old predictions, and print what each budget and method
    would give."""
    repeat: Annotated[Annotated[int, Field(ge=1, le=100_000)] | None, Option("Budget")] = Field(
        default=None, init=False
    )
    """Make no call: print how well the method does on --replay-prediction over this many seeds.
    With --plan: runs of each simulation (default 100)."""
    example_id: Annotated[
        str | None, Option("Data", metavar=COLUMN, default="its row in the data")
    ] = None
    """Column that identifies an item. The ledger finds the item by this value, even if the data
    changes."""
    seed: Annotated[int, Field(ge=0, lt=2**63), Option("Budget")] = 0
    """Random seed for drawing items."""
    memory_budget: Annotated[str, Option("Engine", metavar="<size>")] = "512MB"
    """Memory that reading the pool may use for a chunk of it."""

    _known_budget = field_validator("budget")(known_budget)

    @field_validator("focus")
    @classmethod
    def _known_focus(cls, value: str | None) -> str | None:
        if value is not None and value != ACCURACY and not is_table(value) and ":" not in value:
            raise OptionError(
                f"--focus {value!r} is not a valid focus; give accuracy, a cell LABEL:PREDICTION or a "
                "table, weights.csv"
            )
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> ShiftConfig:
        if not self.output and not self.simulates:
            raise OptionError(
                "--output is missing: name a folder for changelist.json (only --plan and --repeat need "
                "none)"
            )
        self._check_columns()
        self._check_source()
        self._check_simulation()
        if self.used_method == "plus" and self.old_prediction is None:
            raise OptionError(
                "--method plus compares with the old predictions item by item: give "
                "--old-prediction, or choose --method proportional"
            )
        if (self.by or self.changelist) and self.old_prediction is None:
            name = "by" if self.by else "changelist"
            raise OptionError(
                f"{flag(name)} compares slices with their own old matrices: give --old-prediction"
            )
        if self.by and self.changelist:
            raise OptionError("--by and --changelist both name slices; choose one")
        if self.old_matrix and self.old_prediction:
            raise OptionError(
                "--old-matrix has no effect with --old-prediction, which also gives the old matrix"
            )
        return self

    def _check_columns(self) -> None:
        for name in ("old_prediction", "replay_prediction", "difficulty", "example_id"):
            if getattr(self, name) == self.label:
                raise OptionError(f"{flag(name)} {self.label!r} is the label; name another column")
        if self.difficulty is None and "bins" in self.model_fields_set:
            raise OptionError("--bins divides --difficulty, which is not given; leave --bins out")

    def _check_source(self) -> None:
        given = [name for name in _SOURCES if getattr(self, name)]
        if len(given) > 1:
            raise OptionError(
                f"{flag(given[0])} and {flag(given[1])} both give answers; choose one"
            )
        if not given and not self.plan:
            raise InputError(
                "no source of answers: give --api, --model or --replay-prediction (or --plan, "
                "which needs none)"
            )
        if self.features and not self.model:
            raise OptionError(
                "--features are the columns that --model reads, but --model is not given; leave --features out"
            )
        if self.ledger and not (self.api or self.model):
            raise OptionError(
                "--ledger stores the answers of --api or --model, and neither is given; leave --ledger out"
            )

    def _check_simulation(self) -> None:
        if self.plan:
            if self.old_prediction is None:
                raise OptionError(
                    "--plan simulates updates of the old predictions: give --old-prediction"
                )
            if self.replay_prediction or self.model:
                raise OptionError(
                    "--plan simulates answers: leave --replay-prediction and --model out"
                )
            for name in ("target_error", "ledger"):
                if getattr(self, name):
                    raise OptionError(f"{flag(name)} has no effect on --plan; leave it out")
        elif self.repeat is not None and self.replay_prediction is None:
            raise OptionError(
                "--repeat measures a method on recorded answers: give --replay-prediction"
            )
        if self.simulates:
            for name in ("by", "changelist", "old_matrix"):
                if getattr(self, name):
                    raise OptionError(
                        f"{flag(name)} has no effect on --plan and --repeat; leave it out"
                    )
        elif self.old_prediction is None and self.old_matrix is None:
            raise InputError(
                "the old confusion matrix is missing: give --old-prediction, or --old-matrix, "
                "the document of an earlier shift"
            )
        if not self.plan and self.budget is None and self.target_error is None:
            raise InputError("there is no stopping rule: give --budget, --target-error or both")

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
        return tuple(filter(None, (self.old_matrix, self.api, model, self.changelist, table)))

    def resolved(self) -> dict[str, Any]:
        """Return every option that had an effect, defaults too: what repeats the run."""
        options = self.model_dump(mode="json", exclude_none=True) | {"method": self.used_method}
        if self.difficulty is None:
            options.pop("bins")
        # 0 equals False, but a price of 0 is one.
        return {k: value for k, value in options.items() if value is not False and value != []}
