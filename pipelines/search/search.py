"""``slicebeam search``: from files to a published ChangeList, with the steps that other commands have too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Generic, TypedDict

import numpy as np

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.reading import TABLE, TFMA_TABLE
from slicebeam.pipelines.config.slices import Config
from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset, prepare
from slicebeam.pipelines.run.open_run import Published, RunContext, open_run
from slicebeam.pipelines.run.stage import Stage, Workspace
from slicebeam.pipelines.search.building import build, parity_gaps
from slicebeam.pipelines.search.counter import SliceCounter
from slicebeam.pipelines.search.findings import finding_lists
from slicebeam.pipelines.search.iterations import Iterations, SearchObserver
from slicebeam.pipelines.search.listed_counts import count_listed
from slicebeam.pipelines.search.results import (
    Results,
    SliceNames,
    collect,
    given_order,
    joined,
    worst_first,
)
from slicebeam.pipelines.search.slices_table import write_slices
from slicebeam.pipelines.search.summary import gate_of, judged_anew, with_gate, with_known
from slicebeam.pipelines.search.testing_section import testing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Unpack

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.pipelines.changelist.testing import Gate, KnownSlice
    from slicebeam.pipelines.config.check import CheckConfig
    from slicebeam.pipelines.config.search import SearchConfig
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.search.earlier_run import BaselineRun
    from slicebeam.pipelines.search.results import MetricResult
    from slicebeam.pipelines.tfma.request import Evaluation


@dataclass(frozen=True)
class Steps(Generic[Config]):
    """The steps that differ between commands."""

    prepare: Callable[[Config, Workspace], EncodedDataset]
    order: Callable[[Results, MetricResult], IntArray] = worst_first
    # The files that are published besides, which `write` fills and adds to the document.
    further: tuple[str, ...] = ()
    write: (
        Callable[[Config, Results, SearchChangeList, Sequence[IO[bytes]]], SearchChangeList] | None
    ) = None
    # Whether the run passes ``--fail-on``.
    judge: Callable[[SearchChangeList, str | None], Gate | None] = gate_of


class HowToRun(TypedDict, total=False):
    """How a command runs, which does not decide its result."""

    resume: bool
    explained_slice: str | None
    fail_on: str | None
    tolerance: Mapping[str, float]
    known: Sequence[KnownSlice]


def run_steps(
    config: Config,
    steps: Steps[Config],
    engine: Engine,
    observer: SearchObserver,
    earlier: BaselineRun | None = None,
    **how: Unpack[HowToRun],
) -> Published:
    """Run a command's steps within the common ones, and publish the result."""
    explained_slice, fail_on = how.get("explained_slice"), how.get("fail_on")
    if explained_slice is not None:
        from slicebeam.pipelines.search.explain import check_slice_text

        check_slice_text(explained_slice, config)
    # What is wrong with a metric is said before anything is read.
    evaluation = None
    if config.tfma_metric or config.eval_config:
        from slicebeam.pipelines.tfma.request import evaluation_of

        evaluation = evaluation_of(config)
    explanation: tuple[str, ...] = ()
    resume = how.get("resume", False)
    with open_run(
        config, engine, observer, SearchChangeList, resume=resume, shares_output=True
    ) as run:
        changelist = run.published
        if changelist is None:
            changelist, explanation = _find_and_publish(
                run, config, steps, observer, earlier, evaluation, how
            )
        elif explained_slice is not None:
            raise OptionError(
                f"--explain {explained_slice!r}: the run is published, and its intermediate "
                "results are gone; leave --resume out to run it again"
            )
        else:
            if fail_on is not None:
                from slicebeam.pipelines.search.tolerance import check_published

                check_published(changelist, how.get("tolerance", {}))
            known = how.get("known", ())
            gate = steps.judge(with_known(changelist, known), fail_on)
            changelist = judged_anew(changelist, run.document, gate, known)
    return Published(changelist, run.document, run.table, explanation)


def _find_and_publish(
    run: RunContext[SearchChangeList],
    config: Config,
    steps: Steps[Config],
    observer: SearchObserver,
    earlier: BaselineRun | None,
    evaluation: Evaluation | None,
    how: HowToRun,
) -> tuple[SearchChangeList, tuple[str, ...]]:
    """Do all steps that the work folder does not hold; return document and explanation."""
    explained_slice = how.get("explained_slice")
    prepared = steps.prepare(config, run)
    observer.prepared(prepared)
    names = SliceNames(prepared)
    key = None
    if explained_slice is not None:
        from slicebeam.pipelines.search.explain import find_slice_key

        key = find_slice_key(explained_slice, prepared, names)
    searched = Iterations(SliceCounter(config, prepared), observer).search()
    observer.stage(Stage("describing the results"))
    results = collect(searched, names)
    order = (
        joined([steps.order(results, measured) for measured in results.metrics])
        if prepared.given is None
        else given_order(results)
    )
    observer.stage(Stage("choosing findings"))
    if prepared.space.comparison == "earlier":
        from slicebeam.pipelines.search.change_findings import change_findings

        lists = change_findings(results)
    else:
        lists = finding_lists(results)
    listed = order.listed(
        np.concatenate([np.zeros(0, np.int64), *(one.positions for one in lists)])
    )
    counted = count_listed(config, prepared, results.keys[listed], results.sums[listed])
    of_tfma = () if evaluation is None else (TFMA_TABLE,)
    with run.files_to_publish(*steps.further, *of_tfma, TABLE) as files:
        write_slices(files.streams[TABLE], results, lists)
        fingerprint = f"sha256:{files.sha256(TABLE)}"
        tests = testing(results, order)
        changelist = build(results, order, listed, lists, counted, tests, fingerprint)
        if prepared.space.comparison == "earlier":
            from slicebeam.pipelines.search.earlier_data import earlier_data

            more = {"earlier_data": earlier_data(results, lists)}
            changelist = changelist.model_copy(update=more)
        changelist = _with_comparisons(changelist, results, earlier, how.get("tolerance"))
        if evaluation is not None:
            from slicebeam.pipelines.tfma.evaluate import with_tfma

            changelist = with_tfma(changelist, evaluation, prepared, files.streams[TFMA_TABLE])
        if steps.write is not None:
            others = [files.streams[name] for name in steps.further]
            changelist = steps.write(config, results, changelist, others)
        changelist = with_known(changelist, how.get("known", ()))
        changelist = with_gate(changelist, steps.judge(changelist, how.get("fail_on")))
        changelist = run.publish(changelist, files)
    if explained_slice is None:
        return changelist, ()
    from slicebeam.pipelines.search.explain import explain

    return changelist, explain(explained_slice, key, results)


def _with_comparisons(
    changelist: SearchChangeList,
    results: Results,
    earlier: BaselineRun | None,
    tolerance: Mapping[str, float] | None,
) -> SearchChangeList:
    """Return the document with what the user asks to compare besides: groups, an earlier run, tolerances."""
    more: dict[str, object] = {}
    if getattr(results.config, "parity", ()):
        more["parity"] = parity_gaps(results)
    if earlier is not None:
        from slicebeam.pipelines.search.since import compare_runs

        more["since"] = compare_runs(earlier, changelist, results)
    changelist = changelist.model_copy(update=more)
    if not tolerance:
        return changelist
    from slicebeam.pipelines.search.tolerance import with_tolerances

    return with_tolerances(changelist, tolerance, results)


def run_search(
    config: SearchConfig, engine: Engine, observer: SearchObserver, **how: Unpack[HowToRun]
) -> Published:
    """Search the slices and publish what was found."""
    asked, (config, earlier) = config, compared(config)
    if earlier is not None and asked.follows_data:
        from slicebeam.pipelines.search.fingerprints import against_data_of

        against = against_data_of(asked, earlier.document, engine, observer)
        config, earlier = (config, earlier) if against is None else (against, None)
    return run_steps(config, Steps(prepare), engine, observer, earlier, **how)


def run_check(
    config: CheckConfig, engine: Engine, observer: SearchObserver, **how: Unpack[HowToRun]
) -> Published:
    """Test the given slices, which are one family for the correction, and publish the result."""
    from slicebeam.pipelines.search.check import prepare_check
    from slicebeam.pipelines.search.earlier_run import earlier_run

    return run_steps(config, Steps(prepare_check), engine, observer, earlier_run(config), **how)


def compared(
    config: SearchConfig, *, is_published: bool = False
) -> tuple[SearchConfig, BaselineRun | None]:
    """Return a search as it is run and the earlier run that it is compared with, by its slices if ``is_published``."""
    if config.since is None:
        return config, None
    from slicebeam.pipelines.search.earlier_run import earlier_run

    earlier = earlier_run(config, by_data=config.follows_data and not is_published)
    if earlier is not None and earlier.document.discovery is not None:
        raise OptionError(
            f"--since {config.since} is the document of a discovery, whose slices are not columns "
            "of the data; follow them with slicebeam check --changelist, or name the document of "
            "a search"
        )
    if earlier is not None and earlier.document.dataset.domains:
        config = config.with_domains_of_since()
    return config, earlier
