"""Has TFMA evaluate what a search or check lists: its metrics, plots and thresholds.

TFMA's own ``ExtractAndEvaluate`` does it, once for a run. Where an EvalConfig names the slices, TFMA
slices by it; otherwise the number of each listed slice is a feature, by whose values TFMA slices.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from slicebeam.pipelines.run.stage import Stage, run_stage
from slicebeam.pipelines.tfma.request import seconds_of
from slicebeam.pipelines.tfma.results import TfmaResults
from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.tfma.evaluation import (
    EvaluatedExamples,
    EvaluateSlices,
    prediction_column,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.pipelines.tfma.messages import TfmaMessage
    from slicebeam.pipelines.tfma.request import Evaluation
    from slicebeam.transforms.encode.extract_predictions import Side


def with_tfma(
    document: SearchChangeList,
    evaluation: Evaluation,
    prepared: EncodedDataset,
    work: WorkFolder,
    engine: Engine,
    say: Callable[[Stage], None],
) -> tuple[SearchChangeList, list[TfmaMessage]]:
    """Return the document with what TFMA says of its slices, and TFMA's messages."""
    config = evaluation.config
    slices = [one for one in document.slices if one.predicate is not None]
    seconds = seconds_of(evaluation, prepared.rows + sum(one.size.n for one in slices))
    say(Stage(f"TFMA evaluates {len(slices):,} slices: about {seconds:.3g} s of CPU"))
    numbers, features = evaluation.numbers(), evaluation.features()
    source = prepared.source
    for name in (*numbers, *features):
        source.column_type(name, "metrics of TFMA")
    keys = {spec.prediction_key for spec in evaluation.message.model_specs}
    sides: tuple[tuple[Side, str | None], ...] = (
        ("prediction", config.model),
        ("baseline", config.baseline_model),
    )
    models = {
        side: model
        for side, model in sides
        if model is not None and prediction_column(side) in keys
    }
    examples = EvaluatedExamples(
        source,
        None
        if evaluation.has_own_slices
        else SliceMembership(tuple(one.conditions for one in slices)),
        numbers,
        features,
        prepared.outcome.positive_class,
        models,
        {side: prepared.model_columns[side] for side in models},
    )
    path = work.folder("tfma") / "messages.parquet"
    serialized = evaluation.message.SerializeToString(deterministic=True)
    run_stage(
        work,
        engine,
        "tfma",
        partial(_build, EvaluateSlices(examples, serialized, config.seed, path)),
        path.is_file,
        job="tfma",
        seconds=seconds,
        reads_data=True,
    )
    with path.open("rb") as stream:
        rows = pq.read_table(stream).to_pylist()
    return TfmaResults(evaluation, slices, rows).document(document)


def _build(transform: EvaluateSlices, pipeline: Any) -> Any:
    return pipeline | "TFMA" >> transform
