"""Metrics of TFMA on what a search found: all examples, findings and reported slices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy.special import stdtr, stdtrit

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.changelist.discovered import PredicateDefinition
from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.changelist.tfma import TfmaMetric, TfmaValue
from slicebeam.pipelines.eval_config.plan import eval_plan
from slicebeam.pipelines.run.run_stage import run_stage
from slicebeam.pipelines.run.stage import Stage
from slicebeam.pipelines.tfma.plots import Plotted
from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.encode.predicates import Singleton
from slicebeam.transforms.tfma.computations import Computations
from slicebeam.transforms.tfma.examples import MeasuredExamples, needed_features
from slicebeam.transforms.tfma.measure_slices import EVERYTHING, MeasureSlices, read_measured
from slicebeam.transforms.tfma.metric_specs import parse_metric

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.encode.extract_predictions import Side
    from slicebeam.transforms.tfma.measure_slices import SliceValues
    from slicebeam.transforms.tfma.metric_specs import MetricSpec

CONFIDENCE = 0.95
Values: TypeAlias = "dict[int, SliceValues]"
# CPU seconds of an example, slice and replicate: of metrics that are counts of scores, and others.
SECONDS_OF_HISTOGRAM, SECONDS_OF_LOOP = 1.5e-7, 6e-5
# Of a slice and replicate besides: TFMA derives the metric from thousands of thresholds.
SECONDS_OF_SLICE = 2e-2


@dataclass(frozen=True)
class MetricsJob:
    """What is about to be computed of one metric.

    Attributes
    ----------
    computations : of the metric
    seconds : CPU seconds that it takes, about
    """

    computations: Computations
    seconds: float


def check_metrics(config: RunConfig) -> list[Computations]:
    """Return the computations of all metrics of TFMA, after they were made once.

    Raises
    ------
    InputError
        TFMA is not installed, or a metric is not possible.
    """
    specs = [parse_metric(name, config.tfma_module) for name in config.tfma_metric]
    found = [Computations(spec, _weight(config, spec) is not None) for spec in specs]
    for one in found:
        one.check()
    _check_thresholds(config, {one.spec.text: one for one in found})
    return found


def _weight(config: RunConfig, spec: MetricSpec) -> str | None:
    """Return the column of weights that a metric takes."""
    return None if spec.is_unweighted else spec.columns.weight or config.weight


def _check_thresholds(config: RunConfig, computed: Mapping[str, Computations]) -> None:
    """Refuse thresholds for numbers that metrics of TFMA do not have."""
    uri = getattr(config, "eval_config", None)
    if uri is None or config.command != "check":
        return
    plan = eval_plan(uri, has_baseline=config.comparison == "baseline")
    held = {one.metric for one in plan.thresholds} - {one.key for one in plan.metrics}
    for one in plan.found:
        if one.key in held and one.number not in computed[one.text].names():
            raise no_number(uri, one.text, one.number)


def no_number(uri: str, text: str, key: str) -> OptionError:
    """Return the error that a metric has nothing that a threshold is for."""
    return OptionError(
        f"--eval-config {uri}: {text} has a threshold, but no single number {key!r} to hold it "
        "against; leave the threshold out"
    )


def seconds_of(computations: Computations, rows: int, slices: int, replicates: int) -> float:
    """Return about how many CPU seconds a metric takes on slices of so many examples in all."""
    is_counted = computations.histograms is not None
    each = SECONDS_OF_HISTOGRAM if is_counted else SECONDS_OF_LOOP
    return (rows * each + slices * SECONDS_OF_SLICE * is_counted) * (replicates + 1)


def cost_lines(config: RunConfig, rows: int) -> list[str]:
    """Return what metrics of TFMA cost, for what is said before anything runs."""
    lines = []
    for one in check_metrics(config):
        replicates = _replicates(config, one)
        seconds = seconds_of(one, rows, 1, replicates) * len(_sides(config, one.spec))
        lines.append(
            f"{one.spec.text}: about {seconds:.3g} s of CPU over all examples, and as much times its "
            f"share for each slice found ({replicates} replicates)"
        )
    return lines


def _replicates(config: RunConfig, computations: Computations) -> int:
    return 0 if computations.is_plot else config.tfma_replicates


def with_tfma_metrics(
    document: SearchChangeList,
    config: RunConfig,
    prepared: EncodedDataset,
    work: WorkFolder,
    engine: Engine,
    say: Callable[[Stage], None],
) -> tuple[SearchChangeList, list[Plotted]]:
    """Return the document with the metrics of TFMA of its slices, and their plots.

    Raises
    ------
    InputError
        A metric is not possible, or a column is not there or holds no numbers.
    EngineError
        The engine or the storage failed.
    """
    if not config.tfma_metric:
        return document, []
    slices = [one for one in document.slices if isinstance(one.definition, PredicateDefinition)]
    found: list[TfmaMetric] = []
    plots: list[Plotted] = []
    for number, computations in enumerate(check_metrics(config)):
        spec = computations.spec
        rows = prepared.rows + sum(one.size.n for one in slices)
        replicates = _replicates(config, computations)
        seconds = seconds_of(computations, rows, len(slices) + 1, replicates)
        sides = _sides(config, spec)
        say(
            Stage(
                f"{spec.text} on {len(slices):,} slices with {replicates} replicates: "
                f"about {seconds * len(sides):.3g} s of CPU"
            )
        )
        values = []
        for side, prediction in sides.items():
            measured = _measured(config, prepared, slices, computations, side, prediction)
            stage = f"tfma-{number}-{side}"
            path = work.folder(stage) / "values.json"
            transform = MeasureSlices(computations, measured, path)
            run_stage(
                work,
                engine,
                stage,
                partial(_build, transform),
                path.is_file,
                job=stage,
                seconds=seconds,
                reads_data=True,
            )
            values.append(read_measured(path))
        if computations.is_plot:
            for side, by_code in zip(sides, values, strict=True):
                for code, one in sorted(by_code.items()):
                    slice_id = None if code == EVERYTHING else slices[code].slice_id
                    plots.append(Plotted(spec.text, slice_id, side, one.plots))
            continue
        unit = "queries" if spec.query_key else "groups" if config.group else "rows"
        old = values[1] if len(values) > 1 else None
        found += _entries(spec, config.tfma_replicates, unit, slices, values[0], old)
    return document.model_copy(update={"tfma_metrics": tuple(found)}), plots


def _sides(config: RunConfig, spec: MetricSpec) -> dict[Side, str]:
    """Return the columns of predictions, by side; an empty name where a model predicts."""
    sides: dict[Side, str] = {
        "prediction": spec.columns.prediction or config.score or config.prediction or ""
    }
    if config.comparison == "baseline":
        own = spec.columns.baseline_prediction
        sides["baseline"] = own or config.baseline_score or config.baseline_prediction or ""
    return sides


def _build(transform: MeasureSlices, pipeline: Any) -> Any:
    return pipeline | "Measure slices" >> transform


def _measured(
    config: RunConfig,
    prepared: EncodedDataset,
    slices: Sequence[Slice],
    computations: Computations,
    side: Side,
    prediction: str,
) -> MeasuredExamples:
    predicates = [
        tuple(Singleton(c.field, c.op, c.value) for c in one.definition.predicate.all)
        for one in slices
        if isinstance(one.definition, PredicateDefinition)
    ]
    source = prepared.source
    spec = computations.spec
    label, weight = spec.columns.label or config.label, _weight(config, spec)
    source.column_type(label, "--label")
    if weight:
        source.column_type(weight, "--weight")
    model = None
    if prediction:
        source.column_type(prediction, "--score")
    else:
        model = config.baseline_model if side == "baseline" else config.model
    return MeasuredExamples(
        source,
        SliceMembership(tuple(predicates)),
        label,
        prediction,
        weight,
        config.group or config.example_id,
        needed_features(computations, source),
        prepared.outcome.positive_class,
        _replicates(config, computations),
        config.seed,
        model,
        prepared.model_columns[side] if model else (),
        side,
        bool(spec.query_key),
    )


def _entries(
    spec: MetricSpec,
    replicates: int,
    unit: Any,
    slices: Sequence[Slice],
    values: Values,
    old: Values | None,
) -> list[TfmaMetric]:
    """Return an entry of each number that a metric has over all examples.

    Parameters
    ----------
    old : of the baseline; None for one model
    """
    entries = []
    for name in values[EVERYTHING].numbers[0]:
        whole = _row(values[EVERYTHING], name)
        of_old = None if old is None else _row(old[EVERYTHING], name)
        of_all = values[EVERYTHING].units
        listed = []
        for code, one in enumerate(slices):
            if code not in values:
                continue
            own = _row(values[code], name)
            before = None if old is None else _row(old[code], name)
            # Both models have the same replicates, so that what they share cancels out.
            units = values[code].units
            delta, p = tested(own - (whole if before is None else before), units)
            listed.append(
                TfmaValue(
                    slice_id=one.slice_id,
                    after=tested(own, units)[0],
                    before=None if before is None else tested(before, units)[0],
                    delta=delta,
                    p_value=p,
                )
            )
        entries.append(
            TfmaMetric(
                metric=spec.text,
                name=name,
                output=spec.output or None,
                replicates=replicates,
                unit=unit,
                overall=tested(whole, of_all)[0],
                overall_before=None if of_old is None else tested(of_old, of_all)[0],
                overall_delta=None if of_old is None else tested(whole - of_old, of_all)[0],
                slices=tuple(listed),
            )
        )
    return entries


def _row(values: SliceValues, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([one.get(name, math.nan) for one in values.numbers])


def tested(
    values: np.ndarray[Any, np.dtype[np.float64]], units: int
) -> tuple[Estimate, float | None]:
    """Return a value with its interval, and the two-sided p of 0, by t over the replicates.

    The variance of a bootstrap of few units is too small, by (n - 1) / n, and as uncertain as that of n
    units is; so it is enlarged, and its degrees of freedom are those of n units and of the replicates
    together (Satterthwaite). Source: Hesterberg, "What Teachers Should Know About the Bootstrap", The
    American Statistician 69 (2015), which expands percentile intervals by the same two factors.

    Parameters
    ----------
    values : float64 [1 + replicates] the value, then that of each replicate; NaN where there is none
    units : how many examples, groups or queries are resampled
    """
    value, drawn = float(values[0]), values[1:][np.isfinite(values[1:])]
    if not math.isfinite(value):
        return Estimate(), None
    # Where some replicates have no value, the others say too little of how it varies.
    if units < 2 or drawn.size < max(2, 0.9 * (values.size - 1)):
        return Estimate(value=value), None
    # Around the value of the data, as Hall has it: around their mean the spread is smaller.
    variance = float(np.sum((drawn - drawn.mean()) ** 2) / (drawn.size - 1))
    if variance == 0.0:
        # Nothing varies, which does not say that nothing could.
        return Estimate(value=value), 1.0 if value == 0.0 else None
    error = math.sqrt(variance * units / (units - 1))
    freedom = 1 / (1 / (drawn.size - 1) + 1 / (units - 1))
    reach = float(stdtrit(freedom, 0.5 + CONFIDENCE / 2)) * error
    estimate = Estimate(value=value, lo=value - reach, hi=value + reach, confidence=CONFIDENCE)
    return estimate, float(2 * stdtr(freedom, -abs(value) / error))
