"""The model that tests are grown against, and what its answers and the completions may cost together."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.pipelines.adaptive.paid_outputs import SharedBudget, buy_outputs
from slicebeam.pipelines.adaptive.scoring import (
    NEEDED,
    Models,
    Scored,
    needed_inputs,
    scorable_tests,
    score_block,
)
from slicebeam.pipelines.adaptive.tree import ID, TestTree
from slicebeam.pipelines.adaptive.tree_classes import TreeClasses
from slicebeam.pipelines.changelist.shifted import never_given_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.pipelines.adaptive.class_names import ClassNames
    from slicebeam.pipelines.adaptive.outputs import Outputs
    from slicebeam.pipelines.adaptive.text_models import Text, TextModel
    from slicebeam.pipelines.adaptive.tree import Test
    from slicebeam.transforms.storage.storage import StoragePath


class ModelUnderTest:
    """Asks the model, and scores tests by what it answers."""

    def __init__(
        self,
        model: TextModel,
        budget: SharedBudget,
        ledger: StoragePath,
        note: Callable[[str], None],
        *,
        has_pairs: bool,
        names: ClassNames,
    ) -> None:
        self.model, self.has_pairs, self.names = model, has_pairs, names
        self._budget, self._ledger, self._note = budget, ledger, note
        self._texts: dict[Text, str | None] = {}

    @property
    def is_paid(self) -> bool:
        """Whether its answers are bought."""
        return self.model.is_paid

    def outputs(self, texts: Sequence[Text]) -> Outputs:
        """Return the outputs for texts; of an endpoint none where the budget is spent."""
        found = self._asked(texts).outputs(texts)
        self._texts.update(zip(texts, found.texts.tolist(), strict=True))
        return found

    def _asked(
        self,
        texts: Sequence[Text],
        check_first: Callable[[dict[Text, str | None]], None] | None = None,
    ) -> TextModel:
        """Return the model, of an endpoint with its answers to texts."""
        if not self.model.is_paid:
            return self.model
        answered, _, _ = buy_outputs(
            self.model,
            "--model",
            list(dict.fromkeys(texts)),
            self._budget,
            self._ledger,
            lambda stage: self._note(stage.text),
            has_pairs=self.has_pairs,
            check_first=check_first,
        )
        return answered

    def answers(self, texts: Sequence[Text]) -> list[str]:
        """Return the outputs for texts as the tree names them; empty where there is none."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._texts]
        if missing:
            self.outputs(missing)
        return [self.names.in_tree(self._texts[text] or "") for text in texts]

    def answers_to(self, tests: Sequence[Test]) -> list[str]:
        """Return the outputs for the inputs of tests as the tree names them; empty where there is none."""
        texts: list[Text] = [test.input for test in tests]
        pairs: list[Text] = [(test.input, test.second_input) for test in tests]
        return self.answers(pairs if self.has_pairs else texts)

    def score(self, tests: Sequence[Test]) -> Scored:
        """Return failure scores of tests, NaN where nobody knows what to expect, and outputs.

        The outputs are as the tree names them.
        """
        table = _table(tests)
        expects = np.array([bool(test.expectation) for test in tests], bool)
        outputs, failures = np.full(len(tests), None, object), np.full(len(tests), np.nan)
        reasons, second = np.zeros(len(tests), np.int64), outputs.copy()
        if expects.any():
            found = self.score_table(table.filter(pa.array(expects)))
            outputs[expects] = [one and self.names.in_tree(one) for one in found.outputs.tolist()]
            failures[expects], reasons[expects] = found.failures, found.reasons
        if not expects.all():
            outputs[~expects] = self.answers_to([test for test in tests if not test.expectation])
        return Scored(outputs, failures, reasons, second)

    def score_table(
        self, table: pa.Table, check_first: Callable[[dict[Text, str | None]], None] | None = None
    ) -> Scored:
        """Return the outputs and failure scores of the rows of a table of tests."""
        model = self._asked(needed_inputs(table, has_pairs=self.has_pairs), check_first)
        tests = self.names.applied(table)
        return score_block(tests, model, Models(model), has_pairs=self.has_pairs)

    def row_scores(
        self,
        tree: TestTree,
        rows: IntArray,
        *,
        with_guesses: bool = False,
        checks_classes: bool = False,
    ) -> FloatArray:
        """Return the failure scores of rows of a tree, NaN of those of which nobody knows what is right."""
        scores = np.full(rows.size, np.nan)
        table = scorable_tests(TestTree(tree.table.take(rows)), with_guesses=with_guesses).table
        if table.num_rows:
            score = self._score_tree if checks_classes else self.score_table
            at = pc.index_in(table[ID], tree.table[ID].take(rows).combine_chunks())
            scores[at.to_numpy()] = score(table).failures
        return scores

    def _score_tree(self, table: pa.Table) -> Scored:
        """Return the outputs and failure scores of tests, whose classes should be those of the model."""
        models = Models(self.model)
        classes = TreeClasses.of(table, self.names, models)
        scored = self.score_table(table, partial(classes.check_first, self.model, "--model"))
        never_given = classes.never_given(table, models, [scored], self._texts)
        if never_given:
            self._note(never_given_text(never_given))
        return scored

    def refuse_foreign_classes(self, tests: Sequence[Test]) -> None:
        """Refuse tests that name a class which the model is known not to have."""
        TreeClasses.of(
            _table([one for one in tests if one.expectation]), self.names, Models(self.model)
        )


def _table(tests: Sequence[Test]) -> pa.Table:
    columns = {name: [getattr(test, name) for test in tests] for name in NEEDED}
    return pa.table({name: pa.array(one, pa.string()) for name, one in columns.items()})
