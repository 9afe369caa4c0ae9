"""The section of the ChangeList about the tests, with its warnings, and what they would have noticed."""

from __future__ import annotations

import shlex
from decimal import ROUND_UP, Context
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slicebeam.metrics.counting.membership import ENOUGH_GROUPS
from slicebeam.metrics.counting.statistic_space import BUCKETS
from slicebeam.metrics.errors import counted, percent, shortened
from slicebeam.metrics.measures.metric import Needs
from slicebeam.metrics.measures.registry import metric, metric_on
from slicebeam.metrics.significance.outcome_codes import METHODS, REASONS, Reason
from slicebeam.pipelines.changelist.parts import CONFIDENCE
from slicebeam.pipelines.changelist.testing import (
    Bootstrap,
    MetricTests,
    NearMiss,
    Noticeable,
    Testing,
)
from slicebeam.pipelines.config.search import SearchConfig
from slicebeam.pipelines.search.building import changes_on
from slicebeam.pipelines.search.refinement_labels import nested_classes
from slicebeam.pipelines.search.significance import LEAST_GROUPS, q_values
from slicebeam.pipelines.search.summary import of_metrics, promise

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.kinds import Alternative
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.prepare.wanted_slices import GivenSlices
    from slicebeam.pipelines.search.results import MetricResult, Reported, Results
    from slicebeam.transforms.encode.extract_predictions import LabelCounts

# So many slices that could not be tested are named.
_MOST_LINES = 10
SLICE_SIZES = (100, 1_000, 10_000)
_MOST_MISSES = 3
# So many slices are looked at for misses of which none is a part of another.
_CANDIDATES = 200
_TINY = 1e-30


def testing(results: Results, reported: Reported) -> Testing:
    """Return the section about the tests."""
    config, searched = results.config, results.searched
    metrics = tuple(
        _metric_tests(results, number, positions.size)
        for number, positions in enumerate(reported.by_metric)
    )
    degraded = [measured.significant & measured.worse for measured in results.metrics]
    expected = None
    if config.used_correction == "none":
        expected = config.used_alpha * sum(searched.tested_per_level) * len(config.metric)
    unseen, lost, prepared = [], [], results.prepared
    if prepared.lost and isinstance(config, SearchConfig):
        names = ", ".join(map(repr, prepared.lost))
        columns = "feature" if len(prepared.lost) == 1 else "features"
        lost.append(
            f"slices of {columns} {names}, which {config.domains_option} {config.domains} has and "
            "this data does not have"
        )
    if config.alternative != "better":
        for measured, reasons in zip(results.metrics, results.reasons, strict=True):
            surely_better = (measured.reason == Reason.UNVARYING) & (measured.gain >= 0)
            count = int(reasons[Reason.UNVARYING]) - int(np.count_nonzero(surely_better))
            if count:
                of = counted(count, "slice")
                unseen.append(f"{measured.name} on {of}: {Reason.UNVARYING.text}")
    replicates = None
    if config.resamples_examples:
        unit: Literal["rows", "groups"] = "groups" if config.group else "rows"
        replicates = Bootstrap(replicates=config.used_replicates, unit=unit, seed=config.seed)
    return Testing(
        test=metrics[0].test,
        alternative=config.alternative,
        alpha=config.used_alpha,
        correction=config.used_correction,
        corrected_for=_corrected_for(results),
        confidence=CONFIDENCE,
        bootstrap=replicates,
        min_slice_size=config.used_min_slice_size,
        family_size=sum(searched.tests_per_level),
        family_per_level=searched.tests_per_level,
        tested_per_level=searched.tested_per_level,
        significant=int(np.count_nonzero(results.significant)),
        degraded=int(np.count_nonzero(np.any(degraded, axis=0))),
        metrics=metrics,
        expected_false=expected,
        warnings=tuple(_warnings(results, metrics, unseen)),
        unseen=(*lost, *unseen),
    )


def _corrected_for(results: Results) -> str:
    """Return the promise of the correction as a sentence, and the number of metrics."""
    config, searched = results.config, results.searched
    correction, alpha, levels = config.used_correction, config.used_alpha, searched.tests_per_level
    if correction == "none":
        return "Exploratory: no correction for testing many slices."
    of_levels = " of all levels together" if correction == "fdr-level" else ""
    over = f"at {alpha:g}/{config.families(len(levels))} within each level"
    if correction in ("bh", "by"):
        over = "over all levels"
    family, tested = sum(levels), sum(searched.tested_per_level)
    unvisited = ""
    if results.prepared.given is not None:
        # All given slices are one family.
        of_levels, over = "", f"over the {family:,} checked slices"
    elif family != tested:
        unvisited = (
            f" The correction counts {family:,} slices: {tested:,} that were tested and, with p = 1, at "
            f"most {family - tested:,} that were not visited (an upper bound)."
        )
    among = f"Among the significant slices{of_levels}"
    false = "false, however the tests depend on each other" if correction == "by" else "false"
    text = promise(correction, alpha, over, among, "no significant slice", false)
    return f"{text}{unvisited}{of_metrics(len(config.metric))}"


def _metric_tests(results: Results, number: int, reported: int) -> MetricTests:
    config, measured, reasons = results.config, results.metrics[number], results.reasons[number]
    untested = {
        REASONS[code]: int(reasons[code])
        for code in range(1, len(REASONS))
        if reasons[code] and code not in _ANSWERS
    }
    own = metric_on(measured.name, results.prepared.space)
    blind = own.undefined_reason(results.prepared.slices())
    if blind is None:
        blind = _blind(results, measured, reasons, untested)
    degraded = int(np.count_nonzero(measured.significant & measured.worse))
    looks = blind is None and not degraded and config.alternative != "better"
    test = f"AutoSlicer's t over {config.used_replicates} Poisson replicates, uncalibrated"
    if not config.is_paper:
        # The most frequent one first.
        counts = results.methods[number][1:]
        used = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist()
        test = "; ".join(METHODS[1 + code] for code in used) or "none: there was nothing to test"
    return MetricTests(
        metric=measured.name,
        test=test,
        tested=0 if blind is not None else int(reasons.sum()) - sum(untested.values()),
        untested=untested,
        blind=blind,
        significant=int(np.count_nonzero(measured.significant)),
        degraded=degraded,
        reported=reported,
        nearest=tuple(_nearest_misses(results, measured)) if looks else (),
        noticeable=tuple(_noticeable(results, measured.name)) if looks else (),
    )


# Reasons against a test that answer its question: the metric surely is not worse on the slice.
_ANSWERS = (Reason.CONSTANT, Reason.UNCHANGED, Reason.NOT_RESAMPLED)


def _blind(
    results: Results, measured: MetricResult, reasons: IntArray, untested: dict[str, int]
) -> str | None:
    """Return why no slice at all could be tested; None if some could, or none was given."""
    searched = results.searched
    most = searched.second_tests.most_groups
    if most is not None and most < LEAST_GROUPS:
        return f"no slice has more than {counted(most, 'group')}, and {LEAST_GROUPS} are needed"
    if reasons.sum() == 0:
        if searched.strategy != "given":
            return f"no slice has at least {results.config.smallest_slice_of(measured.name):,} examples"
        return None
    # The quick test takes examples of a group for independent: it may tell that a slice is far from
    # significant, and does not tell which one is significant.
    if reasons[0] or (reasons[Reason.NOT_RESAMPLED] and not reasons[Reason.FEW_GROUPS]):
        return None
    certain = np.isin(measured.reason, (Reason.CONSTANT, Reason.UNCHANGED, Reason.NO_VARIANCE)) & (
        measured.delta == 0
    )
    if certain.any():
        return None
    # An answer that is none: the value differs from the reference.
    answers = {REASONS[code]: int(reasons[code]) for code in _ANSWERS if reasons[code]}
    every = {**untested, **answers}
    return "; ".join(f"{counted(count, 'slice')}: {reason}" for reason, count in every.items())


def _noticeable(results: Results, name: str) -> Iterator[Noticeable]:
    """Yield the smallest fall that is noticed with probability `POWER`, over all examples and on a single significant slice."""
    from slicebeam.metrics.measures.slice_test import POWER, smallest_fall

    config, prepared = results.config, results.prepared
    if config.group or config.resamples_examples or config.comparison == "earlier":
        return
    everything, family = prepared.slices(), results.searched.tests_per_level
    tests: list[tuple[int | None, float, Alternative]] = []
    if everything.is_paired:
        tests.append((None, config.used_alpha / len(config.metric), "both"))
    alpha = config.used_alpha / _strictness(config, family)
    tests += [(n, alpha, config.alternative) for n in SLICE_SIZES if n < prepared.rows]
    for n, threshold, side in tests:
        fall = smallest_fall(metric(name), everything, n, threshold, side)
        if fall is not None:
            yield Noticeable(n=n, fall=fall, power=POWER)


def _strictness(config: RunConfig, family: tuple[int, ...]) -> float:
    """Return by how much the correction raises the p-value of a slice that alone is significant, at most."""
    levels = [np.array([level]) for level in np.flatnonzero(family) + 1]
    q = [q_values(config, np.array([_TINY]), level, family).item() for level in levels]
    return max(q, default=_TINY) / _TINY


def _nearest_misses(results: Results, measured: MetricResult) -> Iterator[NearMiss]:
    """Yield the nearest misses among the worse slices, none a part of another or with the same examples; none of given ones."""
    if results.prepared.given is not None:
        return
    lattice, names = results.prepared.lattice, results.names
    possible = np.flatnonzero(measured.worse & (measured.p_value < 1))
    nearest = possible[np.argsort(measured.p_value[possible], kind="stable")[:_CANDIDATES]]
    conditions = [
        set(digits[digits > 0].tolist()) for digits in lattice.digits(results.keys[nearest])
    ]
    examples = np.arange(nearest.size)
    # Only slices with equal sums can be the same.
    if len(np.unique(results.sums[nearest], axis=0)) < nearest.size:
        examples = nested_classes(results.keys, results.sizes, nearest, lattice)
    chosen: list[int] = []
    for at, mine in enumerate(conditions):
        parts = (mine <= conditions[other] or mine >= conditions[other] for other in chosen)
        if not any(parts) and examples[at] not in examples[chosen]:
            chosen.append(at)
            if len(chosen) == _MOST_MISSES:
                break
    if not chosen:
        return
    order = nearest[chosen]
    ids, texts = (of(results.keys[order]).to_pylist() for of in (names.ids, names.texts))
    changes = changes_on(results, measured, order, order[:0])
    for slice_id, text, change in zip(ids, texts, changes, strict=True):
        yield NearMiss(slice_id=slice_id, name=text, change=change)


def _not_tested(given: GivenSlices, results: Results) -> Iterator[str]:
    lines: list[str] = []
    for at, (name, text) in enumerate(zip(given.names, given.texts, strict=True)):
        title = text if name in (None, text) else f"{name} ({text})"
        by_reason: dict[int, list[str]] = {}
        for measured in results.metrics:
            code = int(measured.reason[at])
            if code and code not in _ANSWERS:
                by_reason.setdefault(code, []).append(measured.name)
        for code, metrics in by_reason.items():
            why, of = REASONS[code], f" for {', '.join(metrics)}"
            if code == Reason.NO_EXAMPLES:
                why, of = "no examples now", ""
            elif code == Reason.SMALL_SLICE:
                why = f"{int(results.sizes[at]):,} examples are too few"
                of = of if len(metrics) < len(results.metrics) else ""
            lines.append(f"Slice {title} was not tested{of}: {why}.")
    yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield f"… {len(lines) - _MOST_LINES:,} more: column reason of the table of slices."


def _warnings(
    results: Results, metrics: tuple[MetricTests, ...], unseen: Sequence[str]
) -> Iterator[str]:
    config, prepared = results.config, results.prepared
    for tests in metrics:
        if metric_on(tests.metric, prepared.space).undefined_reason(prepared.slices()) is not None:
            yield f"{tests.metric} could not be tested: {tests.blind}."
        elif tests.blind is not None:
            yield f"No slice could be tested for {tests.metric}: {tests.blind}."
    if prepared.given is not None:
        yield from _not_tested(prepared.given, results)
    for one in unseen:
        yield f"Perhaps worse, but cannot be judged: {one}."
    if prepared.given is not None and not prepared.given.wanted.slices:
        yield f"{prepared.given.wanted.uri} reports no slice: there was nothing to check."
    if prepared.given is not None and config.data == prepared.given.wanted.data:
        yield (
            "This is the data in which the slices were found: slices chosen for their p-values "
            "have small ones here too. Check on new data."
        )
    yield from unbalanced_classes(config, prepared)
    if prepared.models_agree:
        yield "The two models agree on every example, so nothing can have changed."
    elif config.group and config.comparison != "overall":
        what = "model" if config.comparison == "baseline" else "metric"
        yield (
            f"Whether the {what} changed over all examples is not tested: examples are grouped, and only slices are "
            "resampled by groups."
        )
    if prepared.repeated_ids is not None:
        number, example = prepared.repeated_ids.number, prepared.repeated_ids.one
        values = "1 value occurs" if number == 1 else f"{number:,} values occur"
        yield f"--example-id {config.example_id}: {values} more than once, such as {example!r}" + (
            "; such examples are resampled together. If they belong together, name the column as "
            "--group, which also requires enough groups in a slice."
            if config.resamples_examples
            else "."
        )
    called = results.keys[results.significant]
    few_groups = np.concatenate(results.searched.second_tests.few_groups)
    few = int(np.count_nonzero(np.isin(few_groups, called)))
    if few:
        yield (
            f"{'1 significant slice has' if few == 1 else f'{few:,} significant slices have'} fewer than "
            f"{ENOUGH_GROUPS} groups: intervals and p-values are rough there."
        )
    for tests in metrics:
        untested = tests.untested.get(Reason.FEW_GROUPS.text, 0)
        if untested and tests.blind is None:
            yield (
                f"{counted(untested, 'slice')} that may be significant in {tests.metric} could not be "
                f"tested, because they have fewer than {LEAST_GROUPS} groups."
            )
    for name in prepared.scaling.rough:
        yield (
            f"{name}: the largest value or weight dwarfs the others, so sums without it are "
            "rough; bound it."
        )
    error = np.max([measured.value_error for measured in results.metrics], axis=0)
    rough = int(np.count_nonzero(error))
    if not prepared.space.ranked or not rough:
        return
    ranked = [metric(name).title for name in config.metric if metric(name).needs.ranked]
    named = " and ".join(ranked)
    titles = named if len(ranked) == 1 else f"Each of {named}"
    which = f"that can't be significant whatever the {named}"
    if config.resamples_examples:
        which = "that a first, quick test finds far from significant"
    if config.is_paper:
        which = "that are not reported"
    slices = "slice" if rough == 1 else "slices"
    exact = f"{titles} is exact except for {rough:,} listed {slices} {which}: there scores are"
    if config.comparison == "earlier":
        exact = f"{titles} is taken of scores that are"
    # Rounded up to two digits.
    off = float(Context(prec=2, rounding=ROUND_UP).create_decimal(float(error.max())))
    yield (
        f"{exact} counted in {BUCKETS} buckets, and it is off by at most {off:g} (each slice's own "
        "bound: value_error in the table of slices)."
    )


# Where the most frequent class has this share, a model that misses all examples of all others keeps
# an accuracy of 80 %, and of a slice's accuracy four fifths or so are about that class.
_MOST_FREQUENT = 0.8
# Macro averages are counted for so many classes.
_MOST_MACRO = 64
# Metrics that need no more count the wrong predictions, of whichever class: accuracy, error rate, and
# the micro averages, which equal accuracy.
_ONLY_WRONG = Needs(indicators=("wrong",))


def unbalanced_classes(config: RunConfig, prepared: EncodedDataset) -> Iterator[str]:
    """Yield a line where accuracy, or what equals it, says little: one class prevails, and no other metric shows more."""
    counts = prepared.label_counts
    names = [name for name in config.metric if metric(name).needs == _ONLY_WRONG]
    if not names or counts is None or config.comparison == "baseline" or config.weight:
        return
    # These hold predictions against one class, or against each of them.
    if any(
        {"positive", "predicted"} <= {*needs.indicators} or needs.classes or needs.ranked
        for needs in (metric(name).needs for name in config.metric)
    ):
        return
    own, total = metric(names[0]), int(counts.sizes.sum())
    at = int(counts.sizes.argmax())
    largest, most_frequent = int(counts.sizes[at]), _shown(counts.classes[at])
    of_all = prepared.space.counts(prepared.of_all[: prepared.space.columns])
    wrong = int(of_all[prepared.space.holds("wrong")].sum())
    if largest == total:
        yield (
            f"Every label is {most_frequent}: {own.title.lower()} says nothing about any other "
            "class."
        )
        return
    no_better = total - wrong <= largest
    if not no_better and largest < _MOST_FREQUENT * total:
        return
    value, constant = (
        percent((total - missed if own.higher_is_better else missed) / total)
        for missed in (wrong, total - largest)
    )
    what = (
        f"is no better than always predicting {most_frequent} ({constant})"
        if no_better
        else f"is mostly about one class: {most_frequent} is the label of {percent(largest / total)} of "
        f"the examples, and always predicting it has {constant}"
    )
    yield f"{own.title} ({value}) {what}. {_remedy(prepared, counts)}"


def _remedy(prepared: EncodedDataset, counts: LabelCounts) -> str:
    """Return which metrics say more, with the flags that they take here."""
    rarest = counts.classes[int(counts.sizes.argmin())]
    positive = prepared.outcome.positive_class
    name, flag = "recall,precision", ""
    if positive is not None:
        # Scores speak of this class already.
        name = "recall,precision" if positive == rarest else "specificity,npv"
    elif rarest != 1:
        number = isinstance(rarest, float) and rarest.is_integer()
        flag = f" --positive-class {shlex.quote(str(int(rarest) if number else rarest))}"
    of_rarest = f"--metric {name}{flag} is about class {_shown(rarest)} alone"
    if len(counts.classes) == 2:
        return f"--metric balanced_accuracy{flag} weighs both classes alike, {of_rarest}."
    macro = "--metric recall_macro weighs all classes alike"
    if positive is not None:
        return f"{macro}."
    if len(counts.classes) > _MOST_MACRO:
        return f"{of_rarest}."
    return f"{macro}, {of_rarest}."


def _shown(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return shortened(repr(value))
