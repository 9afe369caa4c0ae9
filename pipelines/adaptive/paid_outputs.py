"""Outputs that an HTTP endpoint sells: each input is paid once, whatever happens to the run."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.adaptive.class_names import PROBED
from slicebeam.pipelines.adaptive.text_models import AnsweredModel
from slicebeam.pipelines.changelist.shifted import PaidAnswers
from slicebeam.pipelines.config.shift import parse_budget
from slicebeam.pipelines.paid_api.calls import Item
from slicebeam.pipelines.paid_api.questions import announcement, buying, read_api, text_key
from slicebeam.pipelines.run.stage import Stage
from slicebeam.transforms.storage.storage import beneath, make_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from slicebeam.pipelines.adaptive.text_models import Text, TextModel
    from slicebeam.pipelines.paid_api.api_file import ApiFile
    from slicebeam.pipelines.paid_api.calls import Answer
    from slicebeam.pipelines.paid_api.http_api import HttpApi
    from slicebeam.pipelines.paid_api.ledger import Ledger
    from slicebeam.transforms.storage.storage import StoragePath

_COLUMNS = ("input", "second_input")
_NOT_BOUGHT = "not bought, because the budget does not suffice"
_LOST = "a call without an outcome, which counts as paid (lost_calls: count)"


class SharedBudget:
    """What may be spent in all, over several APIs; None for any number of calls."""

    def __init__(self, amount: str | None) -> None:
        self.total = None if amount is None else parse_budget(amount)
        # What the calls of each API cost, by the identity of its requests.
        self.spent: dict[str, float] = {}

    def calls(self, api: ApiFile) -> int | None:
        """Return how many calls of an API it buys, earlier ones too; None for any number."""
        if self.total is None:
            return None
        if self.total.currency is not None and api.price is None:
            raise OptionError(
                f"--budget is money, and {api.path} gives no price; add 'price' there, or give a number of calls"
            )
        others = sum(cost for one, cost in self.spent.items() if one != api.identity)
        left = replace(self.total, amount=max(self.total.amount - others, 0.0))
        if others and left.amount < self.price(api) * (1 - 1e-9):
            return 0
        return left.calls(api.price, api.currency)

    def price(self, api: ApiFile) -> float:
        """Return what a call of an API takes out of it."""
        if self.total is None or self.total.currency is None:
            return 1.0
        return api.price or 0.0

    def spend(self, api: ApiFile, calls: int) -> None:
        """Note how many calls of an API are paid, in all."""
        self.spent[api.identity] = calls * self.price(api)


def read_endpoint(model: TextModel, option: str, *, has_pairs: bool) -> ApiFile:
    """Return what the file of an endpoint says."""
    api = read_api(model.name, option)
    known = _COLUMNS if has_pairs else _COLUMNS[:1]
    for name in api.columns:
        if name not in known:
            raise OptionError(
                f"{option} {model.name}: tests have no {name!r}; its requests are made of "
                + " and ".join(f"{{{one}}}" for one in known)
            )
    if "input" not in api.columns:
        raise OptionError(
            f"{option} {model.name}: no {{input}} is in url, params, json or headers, so that every call "
            "would be the same; write it where the text belongs"
        )
    if has_pairs and "second_input" not in api.columns:
        raise OptionError(
            f"{option} {model.name}: tests are pairs of texts, and no {{second_input}} is in url, params, "
            "json or headers; write it where the second text belongs"
        )
    api.take_texts()
    return api


def affordable(
    apis: Sequence[ApiFile],
    inputs: Sequence[Text],
    budget: SharedBudget,
    ledger_folder: StoragePath,
) -> int:
    """Return how many of the first inputs all endpoints can answer, within what they may cost together.

    A test says nothing of two models if only one of them has answered.
    """
    for api in apis:
        budget.calls(api)
    if budget.total is None:
        return len(inputs)
    keys = [_key(one) for one in inputs]
    costs, left = [0.0] * len(keys), budget.total.amount
    for api in {one.identity: one for one in apis}.values():
        with _buying(api, ledger_folder) as (ledger, _):
            known = {*ledger.answers, *(ledger.lost if ledger.count_lost else ())}
            left -= ledger.calls * budget.price(api)
        costs = [
            cost + (0.0 if key in known else budget.price(api))
            for cost, key in zip(costs, keys, strict=True)
        ]
    within = left + 1e-9 * budget.total.amount
    return next(
        (
            place
            for place, (so_far, cost) in enumerate(zip(accumulate(costs), costs, strict=True))
            if cost > 0 and so_far > within
        ),
        len(keys),
    )


def _buying(
    api: ApiFile, ledger_folder: StoragePath
) -> AbstractContextManager[tuple[Ledger, HttpApi]]:
    # One folder for each request, whatever the file is called.
    own = beneath(ledger_folder, api.identity[:12])
    make_folder(own)
    return buying(api, own, {"api": api.identity}, lambda value: value is not None)


def buy_outputs(
    model: TextModel,
    option: str,
    inputs: Sequence[Text],
    budget: SharedBudget,
    ledger_folder: StoragePath,
    on_stage: Callable[[Stage], None],
    *,
    has_pairs: bool,
    most: int | None = None,
    check_first: Callable[[dict[Text, str | None]], None] | None = None,
) -> tuple[TextModel, PaidAnswers, dict[Text, str]]:
    """Buy the outputs that the ledger has not.

    Returns the model with its answers, what they cost, and why inputs have none.
    """
    api = read_endpoint(model, option, has_pairs=has_pairs)
    items = [Item(_key(one), _fields(one)) for one in inputs]
    with _buying(api, ledger_folder) as (ledger, http):
        # Two files may describe one endpoint: what its ledger holds is paid once.
        is_counted = api.identity in budget.spent
        before = ledger.calls
        limit = budget.calls(api)
        bought = [0]

        def count(_: Any) -> None:
            bought[0] += 1

        lost = ledger.lost if ledger.count_lost else {}
        missing = len({one.key for one in items[:most]} - {*ledger.answers, *lost})
        if limit is not None:
            missing = min(missing, max(limit - before, 0))
        if missing:
            on_stage(
                Stage(
                    announcement(api, missing, f"{len(items):,} inputs by {model.name}"),
                    lambda: bought[0],
                    "answers",
                    missing,
                )
            )
        if check_first is not None:
            first = items[:most][:PROBED]
            http.buy(first, ledger, limit, count)
            found = [_answer(api, ledger.answers.get(one.key)) for one in first]
            check_first(
                {
                    text: None if one is None else str(one)
                    for text, one in zip(inputs, found, strict=False)
                }
            )
        http.buy(items[:most], ledger, limit, count)
        budget.spend(api, ledger.calls)
        answers = [ledger.answers.get(one.key) for one in items]
        said = {text: _answer(api, answer) for text, answer in zip(inputs, answers, strict=True)}
        calls = 0 if is_counted else ledger.calls
        paid = PaidAnswers(
            model=model.name,
            calls=calls,
            replayed=0 if is_counted else before,
            unaccounted=0 if is_counted else ledger.unaccounted,
            price=api.price,
            currency=None if api.price is None else api.currency,
            spent=None if api.price is None else calls * api.price,
        )
        lost = ledger.lost if ledger.count_lost else {}
        why = {
            text: _LOST if item.key in lost else _no_answer(api, answer)
            for text, item, answer in zip(inputs, items, answers, strict=True)
            if said[text] is None
        }
    return AnsweredModel(model.name, model.kind, answers=said), paid, why


def _no_answer(api: ApiFile, answer: Answer | None) -> str:
    """Return why there is no output."""
    if answer is None:
        return _NOT_BOUGHT
    if answer.problem is not None:
        return f"the endpoint's answer holds no output ({api.redact(answer.problem)})"
    return "the endpoint's answer is no key of 'labels'"


def _fields(one: Text) -> dict[str, str]:
    texts = one if isinstance(one, tuple) else (one,)
    return dict(zip(_COLUMNS, texts, strict=False))


def _key(one: Text) -> str:
    return text_key(one if isinstance(one, str) else json.dumps(list(one)))


def _answer(api: ApiFile, answer: Any) -> Any:
    if answer is None or answer.problem is not None:
        return None
    return api.class_of(answer.value)
