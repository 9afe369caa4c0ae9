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
from slicebeam.pipelines.changelist.discovered import AnyDefinition, PredicateDefinition
from slicebeam.pipelines.changelist.document import (
    Dataset,
    Domain,
    FeatureHint,
    LeftOut,
    Provenance,
    SearchChangeList,
)
from slicebeam.pipelines.changelist.parts import CONFIDENCE, Estimate, Predicate, estimate, finite
from slicebeam.pipelines.changelist.slices import Origin, Refinement, Size, Slice
from slicebeam.pipelines.changelist.testing import Check, Search
from slicebeam.pipelines.search.iterations import adjusted_overall
from slicebeam.pipelines.search.refinement_labels import LABELS, NO_LABEL, says_more
from slicebeam.pipelines.search.results import direction_of, stretched_interval
from slicebeam.pipelines.search.summary import summary
from slicebeam.transforms.encode.sources import ReservedRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.measures.metric import Metric, Movement, Slices
    from slicebeam.pipelines.changelist.parts import Confusion
    from slicebeam.pipelines.changelist.testing import Testing
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.search.findings import FindingList, ListedCounts
    from slicebeam.pipelines.search.results import MetricResult, Results
    from slicebeam.pipelines.search.slices_table import Reported

# Options that do not decide the result.
_PRESENTATION = {"data", "output", "work_dir", "runner_config", "runner_option", "beam"}
_PRESENTATION |= {"chunk_rows", "memory_budget"}


def build(
    results: Results,
    order: Reported,
    listed: NDArray[np.int64],
    lists: Sequence[FindingList],
    counted: ListedCounts,
    tests: Testing,
    slices_fingerprint: str,
) -> SearchChangeList:
    """Return the document of a search, with the slices at ``listed`` positions in their order."""
    config, prepared, searched = results.config, results.prepared, results.searched
    slices = _slices(results, order, listed, counted.confusions)
    is_check = prepared.given is not None
    fingerprint = fingerprint_of(prepared)
    options = config.resolved(searched.strategy)
    if "top_values" in options and prepared.top_values is not None:
        # Beside --domains it is the earlier run's.
        options["top_values"] = prepared.top_values
    decisive = {name: value for name, value in options.items() if name not in _PRESENTATION}
    identity = json.dumps([fingerprint, decisive], sort_keys=True).encode()
    changes = _overall(config, prepared)
    return SearchChangeList(
        changelist_id=hashlib.sha256(identity).hexdigest()[:16],
        title=_title(config),
        summary=summary(config, prepared, changes, tests, lists),
        created_at=datetime.now(timezone.utc),
        dataset=_dataset(config, prepared, fingerprint),
        models=tuple(_models(prepared)),
        comparison=Comparison(
            kind=config.comparison,
            before=None if config.comparison == "overall" else "before",
            after="after",
        ),
        metrics=tuple(
            MetricEntry(
                key=name,
                name=metric(name).title,
                kind=metric(name).kind,
                range=_limits(metric(name)),
                higher_is_better=metric(name).higher_is_better,
                primary=name == config.metric[0],
                counted=metric(name).counted,
            )
            for name in config.metric
        ),
        global_=changes,
        testing=tests,
        search=Search(
            strategy=searched.strategy,
            max_cross_size=int(results.levels.max(initial=1))
            if is_check
            else prepared.lattice.max_cross_size,
            stopped=searched.stopped,
            iterations=searched.records,
            reported=order.positions.size,
            inherited=0
            if is_check
            else int(np.count_nonzero(results.significant & ~results.says_more)),
            duplicates=int(np.count_nonzero(results.says_more & (results.same_as != results.keys))),
            saved_slices=_literal(results.saved),
            slices_fingerprint=slices_fingerprint,
        ),
        check=_check(results),
        confirmation=_confirmation(config, prepared),
        findings=tuple(finding for list_ in lists for finding in list_.findings),
        finding_models=tuple(list_.model for list_ in lists),
        slices=slices,
        coverage=counted.coverage,
        provenance=Provenance(
            tool_version=version("slicebeam"),
            command=config.command,
            runner=results.counter.engine.name,
            seed=config.seed,
            config=options,
        ),
    )


def _limits(own: Metric) -> tuple[float | None, float | None]:
    low, high = (limit if math.isfinite(limit) else None for limit in own.range)
    return low, high


def _literal(value: str | None) -> Any:
    # pydantic checks that the text is one of the known ones.
    return value


def fingerprint_of(prepared: EncodedDataset) -> str:
    """Return the fingerprint of the examples as a document has it."""
    # What the codes mean, and not where a domain came from.
    coded = [domain.singletons for domain in prepared.domains]
    if prepared.given is not None:
        coded = list(prepared.given.membership.predicates)
    shapes: list[Any] = [[condition.to_json() for condition in conditions] for conditions in coded]
    if prepared.given is not None:
        shapes += [
            slice_.definition.model_dump(mode="json")
            for slice_ in prepared.given.wanted.slices
            if slice_.definition is not None
        ]
    content = json.dumps([prepared.rows, prepared.content, shapes], sort_keys=True)
    return "sha256:" + hashlib.sha256(content.encode()).hexdigest()


def _confirmation(config: RunConfig, prepared: EncodedDataset) -> Confirmation | None:
    if prepared.reserved is None:
        return None
    rows, overall = prepared.reserved.source.within, _overall(config, prepared.reserved)
    if not isinstance(rows, ReservedRows):
        raise TypeError("reserved examples that no hash chose")
    n = prepared.reserved.rows
    return Confirmation(share=rows.share, column=rows.column, n=n, overall=overall)


def _check(results: Results) -> Check | None:
    if results.prepared.given is None:
        return None
    wanted = results.prepared.given.wanted
    reasons = np.stack([measured.reason for measured in results.metrics])
    return Check(
        source=wanted.source,
        uri=wanted.uri,
        changelist_id=wanted.changelist_id,
        slices=len(wanted.slices),
        too_small=int(np.count_nonzero((reasons == Reason.SMALL_SLICE).all(axis=0))),
        empty=int(np.count_nonzero((reasons == Reason.NO_EXAMPLES).all(axis=0))),
    )


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


def _dataset(config: RunConfig, prepared: EncodedDataset, fingerprint: str) -> Dataset:
    return Dataset(
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
    )


def _models(prepared: EncodedDataset) -> Iterator[Model]:
    roles = {"before": prepared.outcome.old, "after": prepared.outcome.new}
    for role, predictor in roles.items():
        if predictor is not None:
            # A metric of the examples alone, such as the mean of a column, asks no model.
            of_model = Path(predictor.model or "no model").name
            yield Model(
                key=role,
                role=_literal(role),
                name=predictor.column or predictor.score or predictor.loss or of_model,
                prediction_field=predictor.column,
                score_field=predictor.score,
                model_uri=predictor.model,
                loss_field=predictor.loss,
            )


def _overall(config: RunConfig, prepared: EncodedDataset) -> tuple[Change, ...]:
    """Return the metrics on all examples; the changes between two models are one family of tests."""
    changes = [_global(name, prepared, grouped=bool(config.group)) for name in config.metric]
    p = [
        math.nan if change.reason or change.p_value is None else change.p_value
        for change in changes
    ]
    adjusted = adjusted_overall(config, np.array(p)).tolist()
    return tuple(
        one
        if math.isnan(q)
        else one.model_copy(update={"p_adjusted": q, "significant": q <= config.used_alpha})
        for one, q in zip(changes, adjusted, strict=True)
    )


def _global(name: str, prepared: EncodedDataset, *, grouped: bool) -> Change:
    """Return the metric on all examples and its change between two models, without intervals where rows are grouped."""
    own, slices = metric_on(name, prepared.space), prepared.slices()
    stretch = np.array([math.nan if grouped else 1.0])
    (after,) = _values(own, slices, stretch)
    undefined = own.undefined_reason(slices)
    facts: dict[str, Any] = {"reason": undefined, "direction": "none"}
    if slices.is_paired:
        (facts["before"],) = _values(own, slices.old, stretch)
        delta = float(own.delta(slices)[0])
        (moved,) = _movements(own, slices, stretch)
        facts |= {"direction": direction_of(own, delta), **moved}
        if grouped:
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
    return Change(metric=name, n=prepared.rows, after=after, **facts)


def _values(own: Metric, slices: Slices, stretch: NDArray[np.float64]) -> list[Estimate]:
    """Return a model's metric on each slice."""
    ends = stretched_interval(own, slices, stretch)
    return [estimate(*one) for one in np.stack([own.value(slices), *ends], axis=1).tolist()]


def _slices(
    results: Results, reported: Reported, order: NDArray[np.int64], confusions: Sequence[Confusion]
) -> tuple[Slice, ...]:
    prepared, names = results.prepared, results.names
    keys = results.keys[order]
    ids, texts = names.ids(keys).to_pylist(), names.texts(keys).to_pylist()
    origin = Origin()
    if prepared.given is not None:
        wanted = prepared.given.wanted
        method: Any = "imported" if wanted.source == "changelist" else "manual"
        origin = Origin(method=method, derived_from=wanted.changelist_id)
        # Slices are numbered from 1 in the order in which they were given.
        called = [prepared.given.names[key - 1] for key in keys.tolist()]
        texts = [name or text for name, text in zip(called, texts, strict=True)]
    predicates = names.predicates(keys).to_pylist()
    first = results.metrics[0]
    refinements = _refinements(results, order)
    copies = _copies(results)
    sizes = results.sizes
    by_metric = [
        changes_on(results, measured, order, by_it)
        for measured, by_it in zip(results.metrics, reported.by_metric, strict=True)
    ]
    return tuple(
        Slice(
            slice_id=ids[place],
            name=texts[place],
            origin=origin,
            definition=_definition(prepared, int(keys[place]), predicates[place]),
            cross_size=int(results.levels[at]),
            size=Size(n=int(sizes[at]), share=float(sizes[at] / prepared.rows)),
            impact=finite(sizes[at] * first.delta[at]),
            refinement=refinements[place],
            same_examples_as=copies.get(int(keys[place]), ()),
            confusion=confusions[place] if confusions else None,
            changes=tuple(changes[place] for changes in by_metric),
        )
        for place, at in enumerate(order.tolist())
    )


def _definition(prepared: EncodedDataset, key: int, predicate: str | None) -> AnyDefinition:
    """Return the definition of a slice; one without a predicate is a given slice."""
    if predicate is not None:
        return PredicateDefinition(predicate=Predicate.model_validate_json(predicate))
    given = prepared.given.wanted.slices[key - 1].definition if prepared.given else None
    if given is None:
        raise TypeError("a slice without a definition")
    return given


def _refinements(results: Results, order: NDArray[np.int64]) -> list[Refinement | None]:
    """Return how each slice refines those above it: by the first metric in which it says more, or is significant."""
    labels = np.stack([measured.label[order] for measured in results.metrics])
    by = np.argmax(2 * says_more(labels) + (labels != NO_LABEL), axis=0)
    places = np.arange(order.size)
    label = labels[by, places]
    parent = np.stack([measured.parent[order] for measured in results.metrics])[by, places]
    p = np.stack([measured.p_refine[order] for measured in results.metrics])[by, places]
    parents = results.names.ids(np.where(label == NO_LABEL, 0, parent)).to_pylist()
    return [
        None
        if code == NO_LABEL
        else Refinement(
            label=_literal(LABELS[code]), parent=parents[place], p_refine=finite(p[place])
        )
        for place, code in enumerate(label.tolist())
    ]


def _copies(results: Results) -> dict[int, tuple[str, ...]]:
    """Return by the key of a slice the ids of the longer ones with the same examples."""
    copies: dict[int, tuple[str, ...]] = {}
    at = np.flatnonzero(results.same_as != results.keys)
    ids = results.names.ids(results.keys[at]).to_pylist()
    for key, slice_id in zip(results.same_as[at].tolist(), ids, strict=True):
        copies[key] = (*copies.get(key, ()), slice_id)
    return copies


def changes_on(
    results: Results, measured: MetricResult, order: NDArray[np.int64], reported: NDArray[np.int64]
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
                label=_literal(LABELS[measured.label[at]]),
                place=int(place_of[at]) or None,
                **moved[place],
            )
        )
    return changes


def _movements(own: Metric, slices: Slices, stretch: NDArray[np.float64]) -> list[dict[str, Any]]:
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


def _moved(
    counts: NDArray[np.int64] | None, found: Movement, independent: NDArray[np.bool_]
) -> list[Moved | None]:
    if counts is None or found.counted is None:
        return [None] * found.inconsistency.size
    ends = agresti_coull(counts, found.counted, CONFIDENCE)
    low, high = (np.where(independent, end, np.nan).tolist() for end in ends)
    rows = zip(counts.tolist(), found.counted.tolist(), low, high, strict=True)
    return [Moved(n=n, share=estimate(n / of, lo, hi)) if of else None for n, of, lo, hi in rows]
