"""``slicebeam shift``: from a labelled pool to the document that reports how an API changed."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError, OptionError, nearest_hint
from slicebeam.pipelines.changelist.document import ShiftChangeList
from slicebeam.pipelines.config.shift import parse_budget
from slicebeam.pipelines.prepare.source import read_rows, read_source
from slicebeam.pipelines.prepare.wanted_slices import given_slices, read_given
from slicebeam.pipelines.run.open_run import open_run
from slicebeam.pipelines.run.stage import Stage
from slicebeam.pipelines.search.summary import gate_of, judged_anew, with_gate
from slicebeam.pipelines.shift.answers import NO_RESULT, Classes, LedgerAnswers, RecordedAnswers
from slicebeam.pipelines.shift.assessment import Stopping, assess, check_budget, strata_of
from slicebeam.pipelines.shift.focus import focus_weights, higher_is_better
from slicebeam.pipelines.shift.old_matrix import old_of_document, old_of_pool, read_old
from slicebeam.pipelines.shift.pool import PoolColumns, by_values, read_pool
from slicebeam.pipelines.shift.result import Bill, ShiftResult, money
from slicebeam.transforms.encode.extract_predictions import class_type
from slicebeam.transforms.storage.storage import beneath, storage_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.config.shift import ShiftConfig
    from slicebeam.pipelines.paid_api.api_file import ApiFile
    from slicebeam.pipelines.paid_api.calls import Item
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.stage import Observer, Workspace
    from slicebeam.pipelines.shift.answers import AnswerSource
    from slicebeam.pipelines.shift.model_answers import AnsweringModel
    from slicebeam.pipelines.shift.pool import LabelledPool
    from slicebeam.transforms.encode.conditions import SliceMembership
    from slicebeam.transforms.encode.sources import Source
    from slicebeam.transforms.storage.storage import StoragePath


@dataclass(frozen=True)
class PublishedShift:
    """What a shift published."""

    changelist: ShiftChangeList
    changelist_path: StoragePath


def run_shift(
    config: ShiftConfig,
    engine: Engine,
    observer: Observer,
    *,
    resume: bool = False,
    fail_on: str | None = None,
) -> PublishedShift:
    """Ask as few items as it takes, and publish how the confusion matrix shifted."""
    api = _api(config)
    price, currency = _price(config, api)
    limit = None if config.budget is None else parse_budget(config.budget).calls(price, currency)
    old_document = None if config.old_matrix is None else read_old(config.old_matrix)
    with (
        open_run(config, engine, observer, ShiftChangeList, resume=resume) as run,
        ExitStack() as stack,
    ):
        done = run.published
        if done is not None:
            _check_gate(fail_on, done.shift.focus is None or done.shift.focus.higher_is_better)
            judged = judged_anew(done, run.document, gate_of(done, fail_on))
            return PublishedShift(judged, run.document)
        sliced = read_sliced_pool(config, run, api, limit, old_document)
        pool = sliced.pool
        weights = focus_weights(config.focus, pool)
        strata = strata_of(pool, weights)
        _check_gate(fail_on, weights is None or higher_is_better(weights, strata))
        check_budget(strata, config.used_method, limit)
        # What is wrong with it is said before anything is paid.
        old = (
            old_of_pool(strata)
            if old_document is None
            else old_of_document(strata, pool, old_document, config.old_matrix or "")
        )
        asking = _Asking(config, sliced, api, run.output)
        answers = asking.open(stack)
        stopping = Stopping(limit, config.target_error, config.confidence)
        observer.stage(_asking_stage(asking, stopping, pool.rows, price, currency))
        assessed = assess(pool, config.used_method, answers, stopping, asking.count, weights)
        observer.stage(Stage("describing the results"))
        bill = Bill(limit, price, currency)
        if isinstance(answers, LedgerAnswers):
            bill = bill._replace(
                replayed=answers.replayed,
                unaccounted=answers.ledger.unaccounted,
                without_class=answers.without_class(assessed.items),
            )
        predicates = () if sliced.by is None else sliced.by.predicates
        result = ShiftResult(config, pool, assessed, old, bill, predicates)
        changelist = result.to_changelist(engine.name)
        changelist = with_gate(changelist, gate_of(changelist, fail_on))
        with run.files_to_publish() as files:
            changelist = run.publish(changelist, files)
    return PublishedShift(changelist, run.document)


def _check_gate(fail_on: str | None, better: bool | None) -> None:
    """Raise an OptionError if a gate is to judge a focus of which neither more nor less is better."""
    if fail_on is not None and better is None:
        raise OptionError(
            f"--fail-on {fail_on} cannot judge --focus: right and wrong predictions have weights, so neither "
            "more nor less is worse; weigh only one kind"
        )


def _api(config: ShiftConfig) -> ApiFile | None:
    if config.api is None:
        return None
    from slicebeam.pipelines.paid_api.api_file import ApiFile

    api = ApiFile.read(config.api, os.environ)
    if not api.columns:
        raise InputError(
            f"{config.api}: no {{column}} is in url, params, json or headers, so every call would "
            "be the same; add the column with the input of the request"
        )
    return api


def priced(config: ShiftConfig) -> tuple[float | None, str | None]:
    """Return the price of a call and its currency, from the options or the --api file."""
    return _price(config, _api(config))


def _price(config: ShiftConfig, api: ApiFile | None) -> tuple[float | None, str | None]:
    """Return the price of a call and its currency."""
    currency = None if api is None else api.currency
    if config.price is not None:
        wanted = None if config.budget is None else parse_budget(config.budget).currency
        return config.price, currency or wanted or "USD"
    return (None, None) if api is None or api.price is None else (api.price, api.currency)


@dataclass(frozen=True)
class SlicedPool:
    """The pool, the type of its classes, the slices that are wanted too, and the columns of requests."""

    pool: LabelledPool
    source: Source
    class_type: str
    by: SliceMembership | None
    fields: tuple[str, ...] = ()
    model: AnsweringModel | None = None


def read_sliced_pool(
    config: ShiftConfig,
    run: Workspace,
    api: ApiFile | None,
    limit: int | None,
    old_document: ShiftChangeList | None = None,
) -> SlicedPool:
    """Read the pool with the columns that the options name.

    Of each stratum ``limit`` items may be queried, None for all. The classes of the document of --old-matrix
    are classes of the pool.
    """
    wanted = None
    if config.changelist is not None:
        wanted = read_given(config.changelist, None)
        if not wanted.slices:
            raise OptionError(
                f"--changelist {config.changelist} reports no slice to assess separately; leave "
                "it out, or give --by"
            )
    run.show(Stage("reading the pool"))
    source = read_source(config, run)
    label_type = source.column_type(config.label, "--label")
    common = class_type(config.label, label_type, config.label, label_type)
    for option, name in (
        ("--old-prediction", config.old_prediction),
        ("--replay-prediction", config.replay_prediction),
    ):
        if name is not None:
            kind = class_type(config.label, label_type, name, source.column_type(name, option))
            common = "double" if "double" in (common, kind) else common
    for option, name in (("--difficulty", config.difficulty), ("--example-id", config.example_id)):
        if name is not None:
            source.column_type(name, option)
    by = None
    if config.by is not None:
        by = by_values(source, config.by)
    elif wanted is not None:
        by = given_slices(wanted, source.schema).membership
    model = None
    fields: tuple[str, ...] = ()
    if api is not None:
        fields = api.columns
        for name in fields:
            source.column_type(name, f"--api {config.api}")
    elif config.model is not None:
        from slicebeam.pipelines.shift.model_answers import open_model

        model = open_model(config.model, config.features, source.schema.names)
        fields = model.columns or tuple(
            name
            for name in source.schema.names
            if name not in (config.label, config.old_prediction)
        )
    columns = PoolColumns(
        config.label,
        config.old_prediction,
        config.difficulty,
        config.replay_prediction,
        config.example_id,
        by,
        common,
    )
    earlier: tuple[Any, ...] = ()
    if old_document is not None:
        kinds = (str,) if common == "string" else (bool, int, float)
        # A class of another kind is refused where the matrix is read.
        earlier = tuple(
            value for value in old_document.shift.predictions if isinstance(value, kinds)
        )
    pool = read_pool(
        columns,
        source,
        bins=config.bins,
        signed=config.used_method == "plus",
        seed=config.seed,
        most=limit,
        extra_classes=earlier,
    )
    if api is not None:
        _check_labels(api, Classes(pool.classes, common), pool)
    return SlicedPool(pool, source, common, by, tuple(fields), model)


def _check_labels(api: ApiFile, classes: Classes, pool: LabelledPool) -> None:
    """Raise an InputError where 'labels' maps an answer to a class that the pool does not have."""
    for answer, value in (api.labels or {}).items():
        # An answer that stands for null is "no result".
        if value is not None and classes.code(value) == NO_RESULT:
            near = nearest_hint(str(value), list(map(str, pool.classes)))
            raise InputError(
                f"{api.path}, labels.{answer}: {value!r} is not a class of the data{near} classes: "
                f"{', '.join(map(repr, pool.classes))}; map the answer to one of them, or to null (no result)"
            )


class _Asking:
    """Opens the source of answers, and counts the answers."""

    def __init__(
        self, config: ShiftConfig, sliced: SlicedPool, api: ApiFile | None, output: StoragePath
    ) -> None:
        self.config, self.sliced, self.api, self.output = config, sliced, api, output
        self.answered = 0
        self._bought = 0

    def count(self, answers: int) -> None:
        """Take note of the answers of the batches that are finished."""
        self.answered, self._bought = answers, 0

    def _one(self) -> None:
        self._bought += 1

    def done(self) -> int:
        """Return the answers so far."""
        return self.answered + self._bought

    def open(self, stack: ExitStack) -> AnswerSource:
        """Return what answers; the stack closes it."""
        items = self.sliced.pool.items
        if items.recorded is not None:
            return RecordedAnswers(items.recorded)
        from slicebeam.pipelines.paid_api.ledger import Ledger
        from slicebeam.pipelines.paid_api.questions import buying

        config, api = self.config, self.api
        folder = (
            storage_path(config.ledger, "--ledger")
            if config.ledger
            else beneath(self.output, "ledger")
        )
        classes = Classes(self.sliced.pool.classes, self.sliced.class_type)
        read = partial(read_rows, self.sliced.source, columns=self.sliced.fields)
        identity = self._identity()
        if api is not None:
            bought = buying(api, folder, identity, lambda value: classes.code(value) != NO_RESULT)
            ledger, http = stack.enter_context(bought)

            def buy(wanted: Sequence[Item], most_calls: int | None) -> None:
                http.buy(wanted, ledger, most_calls, lambda _: self._one())

            return LedgerAnswers(items, classes, ledger, read, buy, api.class_of)
        ledger = stack.enter_context(Ledger.open(folder, identity))
        model = self.sliced.model
        if model is None:
            raise TypeError("a shift without a source of answers")

        def compute(wanted: Sequence[Item], _: int | None) -> None:
            model.buy(wanted, ledger, self._one)

        return LedgerAnswers(items, classes, ledger, read, compute, lambda value: value)

    def _identity(self) -> dict[str, str]:
        """Return the identity of the ledger's answers."""
        identity = {"model": self.config.model or ""}
        if self.sliced.model is not None and self.sliced.model.content is not None:
            identity["model file"] = self.sliced.model.content
        if self.api is not None:
            identity = {"api": self.api.identity}
        if self.config.example_id is None:
            # A row's position says which item it is as long as the data stays the same.
            identity["data"] = (
                f"{self.sliced.pool.rows} examples, {self.sliced.pool.fingerprint:016x}"
            )
        else:
            identity["example_id"] = self.config.example_id
        return identity


def _asking_stage(
    asking: _Asking, stopping: Stopping, rows: int, price: float | None, currency: str | None
) -> Stage:
    total = rows if stopping.calls is None else min(stopping.calls, rows)
    most = f"asking up to {total:,} of {rows:,} items"
    if price is not None:
        most += f" for at most {money(total * price)} {currency}"
    if stopping.target_error is not None:
        most += f", until the error is below {stopping.target_error:g}"

    def spent() -> str:
        return "" if price is None else f", {money(asking.done() * price)} {currency}"

    return Stage(most, asking.done, "answers", total, spent)
