"""The model that tests are grown against, and what its answers and the completions may cost together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from slicebeam.pipelines.adaptive.paid_outputs import Purse, buy_outputs, read_endpoint
from slicebeam.pipelines.adaptive.scoring import NEEDED, Models, Scored, needed_inputs, score_block
from slicebeam.pipelines.config.shift import parse_budget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicebeam.pipelines.adaptive.outputs import Outputs
    from slicebeam.pipelines.adaptive.text_models import Text, TextModel
    from slicebeam.pipelines.adaptive.tree import Test
    from slicebeam.pipelines.config.shift import CallBudget
    from slicebeam.pipelines.paid_api.api_file import ApiFile
    from slicebeam.transforms.storage.storage import StoragePath


class Spending:
    """One budget for the calls of several APIs.

    Parameters
    ----------
    budget : as the user wrote it; None for any number of calls
    """

    def __init__(self, budget: str | None) -> None:
        self._budget: CallBudget | None = None if budget is None else parse_budget(budget)
        self._spent: dict[str, float] = {}

    def purse(self, api: ApiFile) -> Purse:
        """Return what an API may cost in all, beside what the others have cost."""
        if self._budget is None:
            return Purse(None)
        others = sum(cost for key, cost in self._spent.items() if key != api.identity)
        left = max(self._budget.amount - others, 0.0)
        return Purse(replace(self._budget, amount=left), is_opened=others > 0)

    def note(self, api: ApiFile, calls: int) -> None:
        """Note how many calls of an API are paid, in all."""
        money = self._budget is not None and self._budget.currency is not None
        self._spent[api.identity] = calls * ((api.price or 0.0) if money else 1.0)


class ModelUnderTest:
    """Asks the model, and scores tests by what it answers.

    Parameters
    ----------
    model : of an endpoint too, whose answers are bought
    spending : the budget
    ledger : folder of the paid answers
    note : receives a line about what is bought
    has_pairs : whether inputs are pairs of texts
    """

    def __init__(
        self,
        model: TextModel,
        spending: Spending,
        ledger: StoragePath,
        note: Callable[[str], None],
        *,
        has_pairs: bool,
    ) -> None:
        self.model, self.has_pairs = model, has_pairs
        self._spending, self._ledger, self._note = spending, ledger, note
        self._texts: dict[Text, str] = {}

    @property
    def is_paid(self) -> bool:
        """Whether its answers are bought."""
        return self.model.is_paid

    def outputs(self, texts: Sequence[Text]) -> Outputs:
        """Return the outputs for texts; of an endpoint none where the budget is spent."""
        return self._asked(texts).outputs(texts)

    def _asked(self, texts: Sequence[Text]) -> TextModel:
        """Return the model, of an endpoint with its answers to texts."""
        if not self.model.is_paid:
            return self.model
        api = read_endpoint(self.model, "--model", has_pairs=self.has_pairs)
        answered, paid, _ = buy_outputs(
            self.model,
            "--model",
            list(dict.fromkeys(texts)),
            self._spending.purse(api),
            self._ledger,
            self._ledger / "answers.parquet",
            lambda stage: self._note(stage.text),
            has_pairs=self.has_pairs,
        )
        self._spending.note(api, paid.calls)
        return answered

    def answers(self, texts: Sequence[str]) -> list[str]:
        """Return the outputs for texts, as texts; empty where there is none."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._texts]
        if missing:
            found = self.outputs(missing).texts.tolist()
            self._texts.update((text, one or "") for text, one in zip(missing, found, strict=True))
        return [self._texts[text] for text in texts]

    def score(self, tests: Sequence[Test]) -> Scored:
        """Return the outputs and failure scores of tests, NaN where nobody knows what to expect."""
        columns = {name: [getattr(test, name) for test in tests] for name in NEEDED}
        table = pa.table({name: pa.array(one, pa.string()) for name, one in columns.items()})
        expects = np.array([bool(test.expectation) for test in tests], bool)
        outputs, failures = np.full(len(tests), None, object), np.full(len(tests), np.nan)
        reasons = np.zeros(len(tests), np.int64)
        if expects.any():
            found = self.score_table(table.filter(pa.array(expects)))
            outputs[expects], failures[expects] = found.outputs, found.failures
            reasons[expects] = found.reasons
        if not expects.all():
            inputs = table["input"].filter(pa.array(~expects)).to_pylist()
            outputs[~expects] = self.answers(inputs)
        return Scored(outputs, failures, reasons)

    def score_table(self, table: pa.Table) -> Scored:
        """Return the outputs and failure scores of the rows of a table of tests."""
        model = self._asked(needed_inputs(table, has_pairs=self.has_pairs))
        return score_block(table, model, Models(model), has_pairs=self.has_pairs)
