"""The configuration of ``slicebeam shift``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator, model_validator

from slicebeam.metrics.errors import InputError
from slicebeam.metrics.kinds import METHODS, Method
from slicebeam.pipelines.data_config import Command, DataConfig, flag, validated

_MONEY = re.compile(
    r"\s*(?:(?P<before>[A-Za-z]{3}|\$|€|£)\s*)?(?P<number>\d+(?:\.\d+)?)\s*(?P<after>[A-Za-z]{3}|\$|€|£)?\s*"
)
_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP"}
# Where a budget that buys more calls than any pool has items is no different from none.
_MOST_CALLS = 2**53
_SOURCES = ("api", "model", "replay_prediction")


@dataclass(frozen=True)
class Budget:
    """What may be spent.

    Attributes
    ----------
    amount : calls, or money
    currency : three letters; None for calls
    """

    amount: float
    currency: str | None = None

    def calls(self, price: float | None, currency: str | None) -> int:
        """Return how many calls it buys.

        Raises
        ------
        InputError
            It is money, and there is no price in its currency.
        """
        if self.currency is None:
            return int(self.amount)
        if price is None:
            raise InputError(
                f"--budget {self.amount:g} {self.currency} is money, and no call has a price; give "
                "--price, the 'price' of the --api file, or a number of calls"
            )
        if currency is not None and currency != self.currency:
            raise InputError(
                f"--budget is in {self.currency} and the price in {currency}; give both in one"
            )
        if self.amount >= price * _MOST_CALLS:
            return _MOST_CALLS
        # A price of a tenth of a cent buys ten for a cent, whatever binary fractions say.
        calls = int(self.amount / price + 1e-9)
        if calls == 0:
            raise InputError(
                f"--budget {self.amount:g} {self.currency} buys no call at {price:g} {self.currency}; "
                "give more"
            )
        return calls


def parse_budget(text: str) -> Budget:
    """Return a budget as the user writes it.

    >>> parse_budget("2000")
    Budget(amount=2000.0, currency=None)
    >>> parse_budget("$2.50")
    Budget(amount=2.5, currency='USD')
    """
    found = _MONEY.fullmatch(text)
    unit = (found["before"] or found["after"]) if found else None
    if found is None or (found["before"] and found["after"]):
        raise InputError(f"--budget {text!r}: write calls as 2000, or money as 5USD or $5")
    amount = min(float(found["number"]), float(_MOST_CALLS))
    if unit is None and not amount.is_integer():
        raise InputError(f"--budget {text!r}: a number of calls is whole; write money as {text}USD")
    if amount <= 0:
        raise InputError(f"--budget {text!r} buys nothing; give more")
    return Budget(amount, None if unit is None else _SIGNS.get(unit, unit.upper()))


class ShiftConfig(DataConfig):
    """Options of ``slicebeam shift``."""

    command: ClassVar[Command] = "shift"
    choices: ClassVar[dict[str, tuple[str, ...]]] = {**DataConfig.choices, "method": METHODS}

    # Empty for what publishes nothing.
    output: str = ""
    label: str
    old_prediction: str | None = None
    old_matrix: str | None = None
    difficulty: str | None = None
    bins: Annotated[int, Field(ge=1, le=100)] = 3
    api: str | None = None
    model: str | None = None
    features: tuple[str, ...] = ()
    replay_prediction: str | None = None
    method: Method | None = None
    budget: str | None = None
    target_error: Annotated[float, Field(gt=0, lt=2)] | None = None
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.95
    price: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    by: str | None = None
    changelist: str | None = None
    ledger: str | None = None
    plan: bool = False
    repeat: Annotated[int, Field(ge=1, le=100_000)] | None = None
    replacement: bool = False

    @field_validator("budget")
    @classmethod
    def _known_budget(cls, value: str | None) -> str | None:
        if value is not None:
            parse_budget(value)
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> ShiftConfig:
        if not self.output and not self.simulates:
            raise InputError(
                "--output is missing: name a folder for changelist.json (only --plan and --repeat need "
                "none)"
            )
        self._check_columns()
        self._check_source()
        self._check_simulation()
        if self.used_method == "plus" and self.old_prediction is None:
            raise InputError(
                "--method plus compares with the old predictions item by item: give "
                "--old-prediction, or choose --method proportional"
            )
        if (self.by or self.changelist) and self.old_prediction is None:
            name = "by" if self.by else "changelist"
            raise InputError(
                f"{flag(name)} compares slices with their own old matrices: give --old-prediction"
            )
        if (self.by or self.changelist) and self.used_method == "uniform":
            raise InputError(
                "--method uniform tells nothing of slices; choose plus, masa or proportional"
            )
        if self.by and self.changelist:
            raise InputError("--by and --changelist both name slices; choose one")
        if self.old_matrix and self.old_prediction:
            raise InputError(
                "--old-matrix has no effect beside --old-prediction, which tells the old matrix too"
            )
        return self

    def _check_columns(self) -> None:
        for name in ("old_prediction", "replay_prediction", "difficulty", "example_id"):
            if getattr(self, name) == self.label:
                raise InputError(f"{flag(name)} {self.label!r} is the label; name another column")
        if self.difficulty is None and "bins" in self.model_fields_set:
            raise InputError("--bins cuts --difficulty, which is not given; leave it out")

    def _check_source(self) -> None:
        given = [name for name in _SOURCES if getattr(self, name)]
        if len(given) > 1:
            raise InputError(f"{flag(given[0])} and {flag(given[1])} both give answers; choose one")
        if not given and not self.plan:
            raise InputError(
                "nothing answers: give --api, --model or --replay-prediction (or --plan, which asks "
                "nothing)"
            )
        if self.features and not self.model:
            raise InputError(
                "--features are what a --model reads, which is not given; leave it out"
            )
        if self.ledger and not (self.api or self.model):
            raise InputError("--ledger keeps the answers of --api or --model; leave it out")

    def _check_simulation(self) -> None:
        if self.plan:
            if self.old_prediction is None:
                raise InputError(
                    "--plan simulates updates of the old predictions: give --old-prediction"
                )
            if self.replay_prediction or self.model:
                raise InputError(
                    "--plan simulates answers: leave --replay-prediction and --model out"
                )
            for name in ("replacement", "target_error", "ledger"):
                if getattr(self, name):
                    raise InputError(f"{flag(name)} has no effect on --plan; leave it out")
        elif self.repeat is not None and self.replay_prediction is None:
            raise InputError(
                "--repeat measures a method on recorded answers: give --replay-prediction"
            )
        if self.simulates:
            for name in ("by", "changelist", "old_matrix"):
                if getattr(self, name):
                    raise InputError(
                        f"{flag(name)} has no effect on --plan and --repeat; leave it out"
                    )
        elif self.replacement:
            raise InputError(
                "--replacement, which asks an item again, is for studies of a method: add --repeat"
            )
        elif self.old_prediction is None and self.old_matrix is None:
            raise InputError(
                "the old confusion matrix is not known: give --old-prediction, or --old-matrix, the "
                "document of an earlier shift"
            )
        if not self.plan and self.budget is None and self.target_error is None:
            raise InputError("when to stop is not said: give --budget, --target-error or both")

    @property
    def simulates(self) -> bool:
        """Whether nothing is asked: a plan, or a study on recorded answers."""
        return self.plan or self.repeat is not None

    @property
    def used_method(self) -> Method:
        """How items are chosen."""
        if self.method is not None:
            return self.method
        return "plus" if self.old_prediction is not None else "proportional"

    @property
    def files_read(self) -> tuple[str, ...]:
        """The files that decide what is found, besides the data."""
        model = None if self.model is None or ":" in self.model else self.model
        return tuple(filter(None, (self.old_matrix, self.api, model, self.changelist)))

    def resolved(self) -> dict[str, Any]:
        """Return every option that had an effect, defaults too: what repeats the run."""
        options = self.model_dump(mode="json", exclude_none=True) | {"method": self.used_method}
        if self.difficulty is None:
            options.pop("bins")
        # 0 equals False, but a price of 0 is one.
        return {k: value for k, value in options.items() if value is not False and value != []}


def shift_config(options: dict[str, Any]) -> ShiftConfig:
    """Return the validated configuration of a shift.

    Raises
    ------
    InputError
        One line: the first option that is wrong, its value and the remedy.
    """
    return validated(ShiftConfig, options)
