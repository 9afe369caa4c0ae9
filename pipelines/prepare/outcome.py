"""What is measured of each example, and from which columns: label, predictions, scores, losses."""

from __future__ import annotations

from dataclasses import replace
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from slicebeam.metrics.errors import OptionError
from slicebeam.metrics.registry import averaged_column, needs_of
from slicebeam.transforms.encode.extract_predictions import Outcome, Predictor, class_type

if TYPE_CHECKING:
    from slicebeam.metrics.metric import Needs
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.transforms.encode.sources import Source


def resolve_outcome(config: RunConfig, source: Source) -> Outcome:
    """Return the measurements of each example, after checking that the columns match."""
    label_type = source.column_type(config.label, "--label") if config.label else pa.null()
    needs = needs_of(config.measured)
    new, old = (_predictor(config, prefix, needs, source) for prefix in ("", "baseline_"))
    is_paired = config.comparison == "baseline"
    # Else the slice is held against all examples: what the old model said is of no account.
    reads_old = is_paired or needs.two_models
    used = [new, old] if reads_old else [new]
    compared = [
        class_type(config.label, label_type, column, source.schema.field(column).type)
        for column in (predictor.column for predictor in used)
        if column and needs.predicted_classes
    ]
    for name in filter(None, map(averaged_column, needs.values)):
        source.column_type(name, f"--metric mean:{name}")
    if config.weight:
        source.column_type(config.weight, "--weight")
    outcome = Outcome(
        config.label or None,
        "",
        new,
        old if reads_old else None,
        is_paired=is_paired,
        score_classes=tuple(config.score_classes) or _classes_of(config, source),
        threshold=config.threshold,
        needs=needs,
        weight=config.weight,
        cuts_models=config.cuts_models,
    )
    common = ""
    if outcome.uses_classes:
        own = class_type(config.label, label_type, config.label, label_type)
        common = "double" if "double" in [own, *compared] else own
    is_binary = needs.one_class or (config.uses_threshold and needs.predicted_classes)
    positive = _positive_class(config, label_type, common) if is_binary else None
    return replace(outcome, class_type=common, positive_class=positive)


def _predictor(config: RunConfig, prefix: str, needs: Needs, source: Source) -> Predictor:
    """Return where a model's predictions come from, after checking that the columns are there."""
    column, score, model = (
        getattr(config, prefix + name) for name in ("prediction", "score", "model")
    )
    loss = getattr(config, prefix + "loss") if needs.losses else None
    for name, option in ((column, "prediction"), (score, "score"), (loss, "loss")):
        if name:
            source.column_type(name, "--" + prefix.replace("_", "-") + option)
    # Beside predicted classes the score is only read where a metric is about scores.
    is_read = needs.scores or needs.class_scores or needs.rankings or not (column or model)
    return Predictor(column, score if is_read else None, model, loss)


def _classes_of(config: RunConfig, source: Source) -> tuple[str, ...]:
    """Return the classes that the columns of scores name after their common beginning, which ends in a _."""
    classes: list[tuple[str, ...]] = []
    for name in (config.score, config.baseline_score):
        if columns := source.lists.get(name or ""):
            begin = commonprefix(columns).rfind("_") + 1  # noqa: RUF071  (of texts)
            classes.append(tuple(column[begin:] for column in columns))
    if len(set(classes)) > 1:
        new, old = (", ".join(names) for names in classes)
        raise OptionError(
            f"--score has the classes {new}, and --baseline-score {old}; name the same ones in the same "
            "order, or give --score-classes"
        )
    return classes[0] if classes else ()


def _positive_class(config: RunConfig, label_type: pa.DataType, common: str) -> Any:
    text = config.positive_class
    if text is None:
        if common == "string":
            of_metrics = needs_of(config.metric).one_class
            about = ", ".join(config.metric) if of_metrics else "--parity"
            why = (
                "--score does not say which class it refers to"
                if config.uses_threshold
                else f"{about} is about one class"
            )
            raise OptionError(
                f"--positive-class is missing: label {config.label!r} is text, and {why}"
            )
        return 1.0 if common == "double" else 1
    if common == "string":
        return text
    if pa.types.is_boolean(label_type) and text.lower() in ("true", "false"):
        return int(text.lower() == "true")
    try:
        return float(text) if common == "double" else int(text)
    except ValueError as error:
        raise OptionError(
            f"--positive-class {text!r} is not a value of label {config.label!r}, which is {label_type}"
        ) from error
