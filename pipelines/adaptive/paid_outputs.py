"""Outputs that an HTTP endpoint sells: each input is paid once, whatever happens to the run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.changelist.adaptive import PaidAnswers
from slicebeam.pipelines.config.shift import CallBudget
from slicebeam.pipelines.paid_api.calls import Item
from slicebeam.pipelines.paid_api.questions import announcement, buying, read_api, text_key
from slicebeam.pipelines.run.stage import Stage
from slicebeam.transforms.storage.storage import make_folder, written_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicebeam.pipelines.adaptive.text_models import Text, TextModel
    from slicebeam.pipelines.paid_api.api_file import ApiFile
    from slicebeam.transforms.storage.storage import StoragePath

_COLUMNS = ("input", "second_input")


@dataclass
class Purse:
    """What may still be spent, over all endpoints of a run.

    Attributes
    ----------
    budget : None for any number of calls
    is_opened : whether something was taken out
    """

    budget: CallBudget | None
    is_opened: bool = False

    def calls(self, api: ApiFile) -> int | None:
        """Return how many calls of an endpoint it buys; None for any number.

        Raises
        ------
        InputError
            It is money, and the calls have no price in its currency, or it buys not one.
        """
        if self.budget is None:
            return None
        if self.budget.currency is not None and api.price is None:
            raise OptionError(
                f"--budget is money, and {api.path} gives no price; add 'price' there, or give a number of calls"
            )
        price = 1.0 if self.budget.currency is None else api.price or 0.0
        if self.is_opened and self.budget.amount < price * (1 - 1e-9):
            return 0
        return self.budget.calls(api.price, api.currency)

    def spend(self, calls: int, api: ApiFile) -> None:
        """Take out what calls cost."""
        self.is_opened = True
        if self.budget is not None:
            cost = calls if self.budget.currency is None else calls * (api.price or 0.0)
            self.budget = replace(self.budget, amount=max(self.budget.amount - cost, 0.0))


def read_endpoint(model: TextModel, option: str, *, has_pairs: bool) -> ApiFile:
    """Return what the file of an endpoint says.

    Raises
    ------
    InputError
        The file is wrong, or its requests are made of something else than inputs.
    """
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
    return api


def buy_outputs(
    model: TextModel,
    option: str,
    inputs: Sequence[Text],
    purse: Purse,
    ledger_folder: StoragePath,
    answers_file: StoragePath,
    on_stage: Callable[[Stage], None],
    *,
    has_pairs: bool,
) -> tuple[TextModel, PaidAnswers]:
    """Buy the outputs that the ledger has not, and return the model with its answers.

    Parameters
    ----------
    inputs : all texts, or pairs of texts, that are asked
    purse : what may be spent; is spent
    ledger_folder : keeps the answers, of each endpoint in a folder within
    answers_file : table of the answers, which the engine's workers see

    Raises
    ------
    InputError
        The file of the endpoint is wrong, or it refuses the requests.
    EngineError
        An input got no answer despite all retries; what was answered is in the ledger.
    """
    api = read_endpoint(model, option, has_pairs=has_pairs)
    items = [Item(_key(one), _fields(one)) for one in inputs]
    # One folder for each request, whatever the file is called.
    own = ledger_folder / api.identity[:12]
    make_folder(own)
    with buying(api, own, {"api": api.identity}, lambda value: value is not None) as (
        ledger,
        http,
    ):
        before = sum(item.key in ledger.answers for item in items)
        limit = purse.calls(api)
        bought = [0]

        def count(_: Any) -> None:
            bought[0] += 1

        missing = len({item.key for item in items} - set(ledger.answers))
        if missing:
            on_stage(
                Stage(
                    announcement(api, missing, f"{len(items):,} inputs by {model.name}"),
                    lambda: bought[0],
                    "answers",
                    missing if limit is None else min(missing, max(limit - ledger.calls, 0)),
                )
            )
        http.buy(items, ledger, limit, count)
        purse.spend(ledger.calls, api)
        _write(answers_file, inputs, [_answer(api, ledger.answers.get(one.key)) for one in items])
        paid = PaidAnswers(
            model=model.name,
            calls=ledger.calls,
            replayed=before,
            unaccounted=ledger.unaccounted,
            price=api.price,
            currency=None if api.price is None else api.currency,
        )
    return replace(model, path=str(answers_file), content=_content(answers_file)), paid


def _fields(one: Text) -> dict[str, str]:
    texts = one if isinstance(one, tuple) else (one,)
    return dict(zip(_COLUMNS, texts, strict=False))


def _key(one: Text) -> str:
    return text_key(one if isinstance(one, str) else json.dumps(list(one)))


def _answer(api: ApiFile, answer: Any) -> Any:
    if answer is None or answer.problem is not None:
        return None
    return api.class_of(answer.value)


def _write(path: StoragePath, inputs: Sequence[Text], values: Sequence[Any]) -> None:
    rows = [_fields(one) for one in inputs]
    names = list(rows[0]) if rows else ["input"]
    numbers = [
        float(one) if isinstance(one, (int, float)) and not isinstance(one, bool) else None
        for one in values
    ]
    table = pa.table(
        {
            **{name: pa.array([row[name] for row in rows], pa.string()) for name in names},
            "answer": pa.array([None if one is None else str(one) for one in values], pa.string()),
            "number": pa.array(numbers, pa.float64()),
        }
    )
    make_folder(path.parent)
    with written_whole(path) as stream:
        pq.write_table(table, stream)


def _content(path: StoragePath) -> str:
    with path.open("rb") as stream:
        return hashlib.sha256(stream.read()).hexdigest()
