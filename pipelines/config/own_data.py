"""What the command line adds where a user names little: the output, and columns by their names.

A run file and Python have neither: what a scheduler repeats does not depend on names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from slicebeam.metrics.errors import ColumnError, OptionError, flag, unknown_name
from slicebeam.pipelines.config.common import DataConfig, validated
from slicebeam.pipelines.config.option_fields import COLUMN, COLUMNS, declared

OUTPUTS = "slicebeam-out"
# Names of columns, in any case; docs/how-to/data.md lists them.
NAMES = {
    "label": ("label", "labels", "target", "truth", "y", "y_true", "true_label", "ground_truth"),
    "prediction": ("prediction", "predictions", "predicted", "pred", "y_pred", "y_hat", "yhat"),
    "score": ("score", "y_score", "probability", "prob", "proba", "y_prob", "y_proba"),
}
NAMES |= {
    f"baseline_{role}": tuple(
        text
        for name in NAMES[role]
        for old in ("old", "baseline")
        for text in (f"{name}_{old}", f"{old}_{name}")
    )
    for role in ("prediction", "score")
}
_OF_MODELS = ("prediction", "score", "model", "loss")
_MOST_COLUMNS, _MOST_FILES = 100, 10


def default_output(command: str, data: Sequence[str]) -> str:
    """Return the folder for the result of a command on data; a check does not replace a search.

    >>> default_output("search", ["gs://bucket/eval.csv.gz"])
    'slicebeam-out/eval'
    >>> default_output("check", ["days/2026-11-18/*.parquet"])
    'slicebeam-out/2026-11-18-check'
    """
    path = PurePosixPath(next(iter(data), ""))
    while re.search(r"[*?\[]", path.name):
        path = path.parent
    name = path.name.removesuffix(".gz").rsplit(".", 1)[0] or "data"
    return f"{OUTPUTS}/{name}" if command == "search" else f"{OUTPUTS}/{name}-{command}"


def with_guesses(
    model: type[DataConfig], options: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """Return options with the label and the predictions that no option names, and which they are."""
    if not _is_open(model, options):
        return dict(options), None
    # A file that is missing is answered before the metrics are imported, which takes longest.
    data, files = _files(options)
    needs = _needs(options)
    if not any(needs.values()):
        return dict(options), None
    names = _columns(files[0], data)
    taken = {name for columns in _named_columns(model, options).values() for name in columns}
    fits = {
        role: [name for name in names if name.casefold() in usual and name not in taken]
        for role, usual in NAMES.items()
    }
    roles = ["label"] if needs["label"] else []
    kinds = ["prediction"] if needs["prediction"] and fits["prediction"] else []
    if needs["score"] or (needs["prediction"] and not kinds):
        kinds.append("score")
    missing = [role for role in [*roles, *kinds] if len(fits[role]) != 1]
    if missing:
        raise OptionError(_missing(missing, fits, names, needs))
    old = [f"baseline_{kind}" for kind in kinds]
    if options.get("compare") != "overall" and all(len(fits[role]) == 1 for role in old):
        kinds += old
    guessed = {role: fits[role][0] for role in [*roles, *kinds]}
    line = ", ".join(f"{flag(role)} {name}" for role, name in guessed.items())
    return {**options, **guessed}, f"guessed by the names of columns: {line}"


def check_columns(model: type[DataConfig], options: Mapping[str, Any]) -> None:
    """Refuse data that is not there, and columns that none of its files has, before anything is started."""
    from slicebeam.transforms.storage.files import file_format

    data, files = _files(options)
    # Those of JSON Lines and TFRecord are known when all of a file is read.
    kinds = {file_format(path, data.format) for path in files[:_MOST_FILES]}
    if len(files) > _MOST_FILES or not kinds <= {"parquet", "csv"}:
        return
    names = dict.fromkeys(name for path in files for name in _columns(path, data))
    for option, columns in _named_columns(model, options).items():
        # Features of a discovery may be components, which are no columns.
        is_of_data = option != "features" or model.command != "discover"
        # Scores may be a column for each class.
        has_parts = option in ("score", "baseline_score") and columns[0] not in names
        wanted = columns[0].split(",") if has_parts else columns
        for name in wanted if is_of_data else ():
            if name and name not in names:
                raise ColumnError(f"{flag(option)}: {unknown_name('column', name, names)}")


def _files(options: Mapping[str, Any]) -> tuple[DataConfig, list[str]]:
    from slicebeam.transforms.storage.files import expand_paths

    keys = DataConfig.model_fields.keys() & options.keys()
    data = validated(DataConfig, {"output": OUTPUTS, **{key: options[key] for key in keys}})
    return data, expand_paths(data.data)


def _columns(path: str, data: DataConfig) -> list[str]:
    from slicebeam.transforms.encode.convert import first_columns

    return first_columns(path, data.format, data.csv_layout)


def _named_columns(
    model: type[DataConfig], options: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    return {
        key: (options[key],) if isinstance(options[key], str) else tuple(options[key])
        for key, field in declared(model).items()
        if field.option.metavar in (COLUMN, COLUMNS) and options.get(key) and key != "column_names"
    }


def _is_open(model: type[DataConfig], options: Mapping[str, Any]) -> bool:
    """Return whether a label or predictions may have to be guessed, which no file or other run gives."""
    return {"label", "prediction", "metric"} <= model.model_fields.keys() and not (
        {"eval_config", "changelist", "loss"} & options.keys()
        or ("label" in options and _has_predictions(options))
    )


def _has_predictions(options: Mapping[str, Any]) -> bool:
    return any(old + name in options for old in ("", "baseline_") for name in _OF_MODELS)


def _needs(options: Mapping[str, Any]) -> dict[str, bool]:
    from slicebeam.metrics.kinds import is_tfma
    from slicebeam.metrics.measures.registry import needs_of, user_named

    metrics = options.get("metric") or ("accuracy",)
    needs = needs_of([user_named(name) for name in metrics if not is_tfma(name)])
    has_predictions = _has_predictions(options)
    return {
        "label": needs.labels and "label" not in options,
        "prediction": needs.predictions and not has_predictions,
        "score": needs.scores and not has_predictions,
    }


def _missing(
    missing: Sequence[str],
    fits: Mapping[str, Sequence[str]],
    names: Sequence[str],
    needs: Mapping[str, bool],
) -> str:
    model = "--score" if needs["score"] else "--prediction (or --score, or --model)"
    flags = ["--label" if role == "label" else model for role in missing]
    several = "".join(
        f"; each of {', '.join(fits[role])} could be the {role}"
        for role in (*missing, *(["prediction"] if missing[-1] == "score" else []))
        if len(fits[role]) > 1
    )
    rest = f", … ({len(names):,} in all)" if len(names) > _MOST_COLUMNS else ""
    return (
        f"{' and '.join(flags)} {'are' if len(flags) > 1 else 'is'} missing{several}; "
        f"columns: {', '.join(names[:_MOST_COLUMNS])}{rest}"
    )
