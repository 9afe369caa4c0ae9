"""Puts the ChangeList of a search together."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.measures.parity import LEAST_EXAMPLES, largest_gap, shares
from slicebeam.metrics.measures.registry import metric, metric_on
from slicebeam.metrics.significance.intervals import agresti_coull
from slicebeam.metrics.significance.outcome_codes import METHODS, REASONS, Reason
from slicebeam.pipelines.changelist.changes import (
    Change,
    Comparison,
    Confirmation,
    MetricEntry,
    Model,
    Moved,
)
from slicebeam.pipelines.changelist.document import (
    Dataset,
    Domain,
    FeatureHint,
    LeftOut,
    Provenance,
    SearchChangeList,
)
from slicebeam.pipelines.changelist.parts import (
    CONFIDENCE,
    Estimate,
    ParityGap,
    ParityGroup,
    estimate,
    finite,
)
from slicebeam.pipelines.changelist.slices import Origin, Refinement, Size, Slice
from slicebeam.pipelines.changelist.testing import Check, Search, Testing
from slicebeam.pipelines.search.counter import looked_up
from slicebeam.pipelines.search.refinement_labels import LABELS, NO_LABEL, says_more
from slicebeam.pipelines.search.results import direction_of, stretched_interval
from slicebeam.pipelines.search.significance import adjusted_overall
from slicebeam.pipelines.search.summary import summary
from slicebeam.transforms.encode.definitions import Predicate, PredicateDefinition
from slicebeam.transforms.encode.sources import ReservedRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.measures.metric import Metric, Movement, Slices
    from slicebeam.pipelines.changelist.parts import Confusion
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.search.listed_counts import ListedCounts
    from slicebeam.pipelines.search.results import FindingList, MetricResult, Reported, Results
    from slicebeam.transforms.encode.extract_predictions import Predictor
    from slicebeam.transforms.encode.predicates import Singleton


# Options that do not decide the result.
_PRESENTATION = {"data", "output", "work_dir", "runner_config", "runner_option", "beam"}
_PRESENTATION |= {"chunk_rows", "memory_budget"}


def build(
    results: Results,
    order: Reported,
    listed: IntArray,
    lists: Sequence[FindingList],
    counted: ListedCounts,
    tests: Testing,
    slices_fingerprint: str,
) -> SearchChangeList:
    """Return the document of a search, with the slices at ``listed`` positions in their order."""
    config, prepared, searched = results.config, results.prepared, results.searched
    given, check = prepared.given, None
    if given is not None:
        reasons = np.stack([measured.reason for measured in results.metrics])
        check = Check(
            source=given.wanted.source,
            uri=given.wanted.uri,
            changelist_id=given.wanted.changelist_id,
            slices=len(given.wanted.slices),
            too_small=int(np.count_nonzero((reasons == Reason.SMALL_SLICE).all(axis=0))),
            empty=int(np.count_nonzero((reasons == Reason.NO_EXAMPLES).all(axis=0))),
        )
    confirmation = None
    if prepared.reserved is not None:
        rows, n = prepared.reserved.source.within, prepared.reserved.rows
        if not isinstance(rows, ReservedRows):
            raise TypeError("reserved examples that no hash chose")
        overall = _overall(config, prepared.reserved)
        confirmation = Confirmation(share=rows.share, column=rows.column, n=n, overall=overall)
    fingerprint = fingerprint_of(prepared)
    options = config.resolved(searched.strategy)
    if "top_values" in options and prepared.top_values is not None:
        # Beside --domains it is the earlier run's.
        options["top_values"] = prepared.top_values
    decisive = {name: value for name, value in options.items() if name not in _PRESENTATION}
    identity = json.dumps([fingerprint, decisive], sort_keys=True).encode()
    changes = _overall(config, prepared)
    roles: dict[Any, Predictor | None] = {
        "before": prepared.outcome.old,
        "after": prepared.outcome.new,
    }
    return SearchChangeList(
        changelist_id=hashlib.sha256(identity).hexdigest()[:16],
        title=_title(config),
        summary=summary(config, prepared, changes, tests, lists),
        created_at=datetime.now(timezone.utc),
        dataset=Dataset(
            name=Path(config.data[0]).name,
            uri=config.data,
            fingerprint=fingerprint,
            n=prepared.rows,
            id_field=config.example_id,
            label_field=config.label or None,
            weight_field=config.weight,
            group_field=config.group,
            classes=prepared.labels,
            domains=tuple(Domain(**asdict(domain)) for domain in prepared.domains),
            left_out=tuple(LeftOut(**asdict(column)) for column in prepared.left_out),
            hints=tuple(FeatureHint(**vars(hint)) for hint in prepared.hints),
            drift=prepared.drift,
            within=prepared.within,
        ),
        models=tuple(
            Model(
                key=role,
                role=role,
                # A metric of the examples alone, such as the mean of a column, asks no model.
                name=predictor.column
                or predictor.score
                or predictor.loss
                or Path(predictor.model or "no model").name,
                prediction_field=predictor.column,
                score_field=predictor.score,
                model_uri=predictor.model,
                loss_field=predictor.loss,
            )
            for role, predictor in roles.items()
            if predictor is not None
        ),
        comparison=Comparison(
            kind=config.comparison,
            before=None if config.comparison == "overall" else "before",
            after="after",
        ),
        metrics=tuple(
            MetricEntry(
                key=own.name,
                name=own.title,
                kind=own.kind,
                range=(finite(own.range[0]), finite(own.range[1])),
                higher_is_better=own.higher_is_better,
                primary=own.name == config.metric[0],
                counted=own.counted,
            )
            for own in map(metric, config.metric)
        ),
        global_=changes,
        testing=tests,
        search=Search(
            strategy=searched.strategy,
            max_cross_size=prepared.lattice.max_cross_size
            if given is None
            else int(results.levels.max(initial=1)),
            stopped=searched.stopped,
            iterations=searched.records,
            reported=order.positions.size,
            inherited=int(np.count_nonzero(results.significant & ~results.says_more))
            if given is None
            else 0,
            duplicates=int(np.count_nonzero(results.says_more & (results.same_as != results.keys))),
            saved_slices=results.saved,
            slices_fingerprint=slices_fingerprint,
        ),
        check=check,
        confirmation=confirmation,
        findings=tuple(finding for list_ in lists for finding in list_.findings),
        finding_models=tuple(list_.model for list_ in lists),
        slices=_slices(results, order, listed, counted.confusions),
        coverage=counted.coverage,
        provenance=Provenance(
            tool_version=version("slicebeam"),
            command=config.command,
            runner=results.prepared.run.engine.name,
            seed=config.seed,
            config=options,
        ),
    )


def fingerprint_of(prepared: EncodedDataset) -> str:
    """Return the fingerprint of the examples as a document has it."""
    # What the codes mean, and not where a domain came from.
    coded: Sequence[Sequence[Singleton]] = [domain.singletons for domain in prepared.domains]
    definitions = []
    if prepared.given is not None:
        coded = prepared.given.membership.predicates
        definitions = [slice_.definition for slice_ in prepared.given.wanted.slices]
    shapes: list[Any] = [[condition.to_json() for condition in conditions] for conditions in coded]
    shapes += [one.model_dump(mode="json") for one in definitions if one is not None]
    content = json.dumps([prepared.rows, prepared.content, shapes], sort_keys=True)
    return "sha256:" + hashlib.sha256(content.encode()).hexdigest()


def _title(config: RunConfig) -> str:
    titles = [metric(name).title for name in config.metric]
    if len(titles) > 1:
        where = {"worse": "are worse than", "better": "are better than", "both": "differ from"}
        named = f"{', '.join(titles[:-1])} and {titles[-1]}: where they"
    else:
        where = {"worse": "is worse than", "better": "is better than", "both": "differs from"}
        named = f"{titles[0]}: where it"
    reference = "over all examples" if config.comparison == "overall" else "before"
    if config.alternative == "both" and config.comparison == "overall":
        reference = "its overall value" if len(titles) == 1 else "their overall values"
    return f"{named} {where[config.alternative]} {reference}"


def _overall(config: RunConfig, prepared: EncodedDataset) -> tuple[Change, ...]:
    """Return the metrics on all examples, without intervals where rows are grouped; changes are one family of tests."""
    slices, changes = prepared.slices(), []
    stretch = np.array([math.nan if config.group else 1.0])
    for name in config.metric:
        own = metric_on(name, prepared.space)
        undefined = own.undefined_reason(slices)
        facts: dict[str, Any] = {"reason": undefined, "direction": "none"}
        if slices.is_paired:
            (facts["before"],) = _values(own, slices.old, stretch)
            delta = float(own.delta(slices)[0])
            (moved,) = _movements(own, slices, stretch)
            facts |= {"direction": direction_of(own, delta), **moved}
            if config.group:
                why = "examples are grouped, and only slices are resampled by groups"
                facts |= {"delta": Estimate(value=finite(delta)), "reason": undefined or why}
            else:
                low, high = own.delta_interval(slices, CONFIDENCE)
                tested = own.test(slices, "both")
                method = METHODS[tested.methods[0]]
                facts |= {
                    "delta": estimate(delta, low[0], high[0]),
                    "p_value": float(tested.p[0]),
                    "test": f"{method}, two-sided" if method else None,
                    "reason": undefined or REASONS[tested.reasons[0]] or None,
                }
        (after,) = _values(own, slices, stretch)
        changes.append(Change(metric=name, n=prepared.rows, after=after, **facts))
    p = [math.nan if one.reason or one.p_value is None else one.p_value for one in changes]
    adjusted = adjusted_overall(config, np.array(p)).tolist()
    return tuple(
        change
        if math.isnan(q)
        else change.model_copy(update={"p_adjusted": q, "significant": q <= config.used_alpha})
        for change, q in zip(changes, adjusted, strict=True)
    )


def _values(own: Metric, slices: Slices, stretch: FloatArray) -> list[Estimate]:
    ends = stretched_interval(own, slices, stretch)
    return [estimate(*one) for one in np.stack([own.value(slices), *ends], axis=1).tolist()]


def _slices(
    results: Results, reported: Reported, order: IntArray, confusions: Sequence[Confusion]
) -> tuple[Slice, ...]:
    given, names = results.prepared.given, results.names
    keys = results.keys[order]
    ids, texts = names.ids(keys).to_pylist(), names.texts(keys).to_pylist()
    definitions: list[Any] = [
        text and PredicateDefinition(predicate=Predicate.model_validate_json(text))
        for text in names.predicates(keys).to_pylist()
    ]
    origin = Origin()
    if given is not None:
        wanted = given.wanted
        method: Any = "imported" if wanted.source == "changelist" else "manual"
        origin = Origin(method=method, derived_from=wanted.changelist_id)
        # Slices are numbered from 1 in the order in which they were given.
        written = [wanted.slices[key - 1] for key in keys.tolist()]
        texts = [slice_.name or text for slice_, text in zip(written, texts, strict=True)]
        both = zip(written, definitions, strict=True)
        definitions = [predicate or slice_.definition for slice_, predicate in both]
    first = results.metrics[0]
    refinements = _refinements(results, order)
    # By the key of a slice the ids of the longer ones with the same examples.
    copies: dict[int, tuple[str, ...]] = {}
    longer = np.flatnonzero(results.same_as != results.keys)
    ids_of_copies = names.ids(results.keys[longer]).to_pylist()
    for key, slice_id in zip(results.same_as[longer].tolist(), ids_of_copies, strict=True):
        copies[key] = (*copies.get(key, ()), slice_id)
    by_metric = [
        changes_on(results, measured, order, by_it)
        for measured, by_it in zip(results.metrics, reported.by_metric, strict=True)
    ]
    return tuple(
        Slice(
            slice_id=ids[place],
            name=texts[place],
            origin=origin,
            definition=definitions[place],
            cross_size=int(results.levels[at]),
            size=Size(
                n=int(results.sizes[at]), share=float(results.sizes[at] / results.prepared.rows)
            ),
            impact=finite(results.sizes[at] * first.delta[at]),
            refinement=refinements[place],
            same_examples_as=copies.get(int(keys[place]), ()),
            confusion=confusions[place] if confusions else None,
            changes=tuple(changes[place] for changes in by_metric),
        )
        for place, at in enumerate(order.tolist())
    )


def _refinements(results: Results, order: IntArray) -> list[Refinement | None]:
    """Return how each slice refines those above it: by the first metric in which it says more, or is significant."""
    labels, parents, p = (
        np.stack([getattr(measured, name)[order] for measured in results.metrics])
        for name in ("label", "parent", "p_refine")
    )
    by = np.argmax(2 * says_more(labels) + (labels != NO_LABEL), axis=0)
    label, parent, p = (column[by, np.arange(order.size)] for column in (labels, parents, p))
    ids = results.names.ids(np.where(label == NO_LABEL, 0, parent)).to_pylist()
    return [
        None
        if code == NO_LABEL
        else Refinement(label=LABELS[code], parent=slice_id, p_refine=finite(p_refine))
        for code, slice_id, p_refine in zip(label.tolist(), ids, p.tolist(), strict=True)
    ]


def changes_on(
    results: Results, measured: MetricResult, order: IntArray, reported: IntArray
) -> list[Change]:
    """Return a metric's change on each slice of the report."""
    own = metric_on(measured.name, results.prepared.space)
    place_of = np.zeros(results.keys.size, np.int64)
    place_of[reported] = np.arange(1, reported.size + 1)
    slices, stretch = results.prepared.slices(results.sums[order]), measured.stretch[order]
    after = _values(own, slices, stretch)
    before = _values(own, slices.old, stretch) if slices.is_paired else None
    moved = _movements(own, slices, stretch)
    changes = []
    for place, at in enumerate(order.tolist()):
        delta = float(measured.delta[at])
        inputs = own.inputs(slices.rows(slice(place, place + 1)))
        changes.append(
            Change(
                metric=measured.name,
                n=int(results.sizes[at]),
                after=after[place],
                before=before[place] if before else None,
                reference=None if slices.is_paired else finite(measured.reference[at]),
                complement=finite(measured.complement[at]),
                delta=estimate(delta, measured.ci_low[at], measured.ci_high[at]),
                p_value=finite(measured.p_value[at]),
                p_adjusted=finite(measured.q_value[at]),
                test=METHODS[measured.method[at]] or None,
                inputs={name: number for name, number in inputs.items() if math.isfinite(number)},
                reason=REASONS[measured.reason[at]] or None,
                significant=bool(measured.significant[at]),
                direction=direction_of(own, delta),
                label=LABELS[measured.label[at]],
                place=int(place_of[at]) or None,
                **moved[place],
            )
        )
    return changes


def _movements(own: Metric, slices: Slices, stretch: FloatArray) -> list[dict[str, Any]]:
    """Return the fields of `Change` that say how examples changed; shares have intervals where ``stretch`` is 1."""
    found = own.movement(slices)
    if found is None:
        return [{}] * len(slices)
    columns = {
        "inconsistency": map(finite, found.inconsistency.tolist()),
        "improved": _moved(found.improved, found, stretch == 1.0),
        "degraded": _moved(found.degraded, found, stretch == 1.0),
    }
    return [dict(zip(columns, facts, strict=True)) for facts in zip(*columns.values(), strict=True)]


def _moved(counts: IntArray | None, found: Movement, independent: BoolArray) -> list[Moved | None]:
    if counts is None or found.counted is None:
        return [None] * found.inconsistency.size
    ends = agresti_coull(counts, found.counted, CONFIDENCE)
    low, high = (np.where(independent, end, np.nan).tolist() for end in ends)
    rows = zip(counts.tolist(), found.counted.tolist(), low, high, strict=True)
    return [Moved(n=n, share=estimate(n / of, lo, hi)) if of else None for n, of, lo, hi in rows]


def parity_gaps(results: Results) -> tuple[ParityGap, ...]:
    """Return the largest gaps of each column of ``--parity``, in each measure and of each model."""
    config, prepared = results.config, results.prepared
    cells = prepared.space.cells
    # Slices that are too small may be in no part.
    counts = looked_up(
        results.searched.parts,
        prepared.lattice.singleton_keys(),
        lambda table: table.stacked("c", range(cells)),
        cells,
    )
    least = max(LEAST_EXAMPLES, config.used_min_slice_size)
    columns: tuple[str, ...] = getattr(config, "parity", ())
    return tuple(gap for name in columns for gap in _gaps_of(name, prepared, counts, least))


def _gaps_of(
    name: str, prepared: EncodedDataset, counts: IntArray, least: int
) -> Iterator[ParityGap]:
    feature = next(at for at, one in enumerate(prepared.domains) if one.name == name)
    domain, space = prepared.domains[feature], prepared.space
    start = int(prepared.lattice.offsets[feature])
    texts = [str(singleton) for singleton in domain.singletons]
    positive = space.holds("positive")
    for old in (True, False) if space.comparison == "baseline" else (False,):
        cells = counts[start : start + domain.size]
        measured = shares(cells, positive, space.holds("predicted", old=old))
        for measure, (marked, sizes) in measured.items():
            compared = np.flatnonzero(sizes >= least)
            gap = ParityGap(
                column=name,
                kind="bins" if domain.kind == "numeric" else "values",
                measure=measure,
                model="before" if old else "after",
                groups=compared.size,
                left_out=tuple(text for text, n in zip(texts, sizes, strict=True) if n < least),
                least=least,
            )
            if compared.size > 1:
                found = largest_gap(marked[compared], sizes[compared], CONFIDENCE)
                ends = {
                    end: ParityGroup(name=texts[at], n=sizes[at], value=marked[at] / sizes[at])
                    for end, at in (
                        ("lowest", compared[found.lowest]),
                        ("highest", compared[found.highest]),
                    )
                }
                interval = estimate(found.gap, found.low, found.high)
                gap = gap.model_copy(update={**ends, "gap": interval, "p_value": found.p})
            yield gap
