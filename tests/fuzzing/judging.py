"""Holds what a run published against an independent reading of its input."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from tests.oracles import predicates

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from tests.fuzzing.case import Reading


_MOST_SLICES = 500


def published(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the document of a run and the rows of its table."""
    document = json.loads((folder / "changelist.json").read_text("utf-8"))
    return document, pq.read_table(folder / "slices.parquet").to_pylist()


def right(frame: pd.DataFrame, label: str, prediction: str) -> np.ndarray | str:
    """Return which predictions are right, or why a run should have been refused."""
    sides = []
    for name in (label, prediction):
        if name not in frame.columns:
            return f"there is no column {name!r}"
        values = [predicates.plain(value) for value in frame[name].tolist()]
        if any(predicates.is_missing(value) for value in values):
            return f"{name!r} has missing values"
        if any(isinstance(value, list) for value in values):
            return f"{name!r} holds lists"
        sides.append(values)
    if len({isinstance(value, str) for values in sides for value in values}) > 1:
        return "label and prediction are text and numbers"
    return np.array([one == other for one, other in zip(*sides, strict=True)], bool)


def misread(document: dict[str, Any], table: list[dict[str, Any]], reading: Reading) -> str:
    """Return what a run says that the reading of its input does not, or nothing.

    Every column must be accounted for with the type that it has, the predicates of a feature must
    divide the examples, and size and accuracy of each slice must be those of the reading.
    """
    frame = reading.frame
    if document["dataset"]["n"] != len(frame):
        return f"{document['dataset']['n']} examples, but {len(frame)} in the file"
    domains = {domain["name"]: domain for domain in document["dataset"]["domains"]}
    config = document["provenance"]["config"]
    is_search = document["provenance"]["command"] == "search"
    if is_search and not {"domains", "features", "exclude_features"} & set(config):
        left_out = {column["name"] for column in document["dataset"]["left_out"]}
        if problem := _columns(reading, {*domains, *left_out}, _roles(config)):
            return problem
    if used := reading.unreadable & {*domains, *_roles(config)}:
        return f"columns {sorted(used)} were used, which the independent reader cannot read"
    if problem := _types(reading, domains):
        return problem
    for name, domain in domains.items():
        held = np.zeros(len(frame), int)
        for single in domain["singletons"]:
            held += predicates.mask(frame, {"all": [single]})
        if domain["closed"] and domain["kind"] != "list" and (held != 1).any():
            return f"{name!r}: {np.count_nonzero(held != 1)} examples are in no slice or in many"
    is_right = None
    if config.get("prediction") and "weight" not in config and "accuracy" in config["metric"]:
        is_right = right(frame, config["label"], config["prediction"])
    if isinstance(is_right, str):
        return is_right
    return _slices(table, frame, is_right)


def _roles(config: dict[str, Any]) -> set[str]:
    """Return the columns that are no features because of what else they are."""
    names = ("label", "prediction", "score", "baseline_prediction", "baseline_score")
    named = {config.get(name) for name in (*names, "example_id", "weight", "group")}
    averaged = {name.removeprefix("mean:") for name in config["metric"] if name.startswith("mean:")}
    return {name for name in named if name is not None} | averaged


def _columns(reading: Reading, told: set[str], roles: set[str]) -> str:
    expected = ({*map(str, reading.frame.columns)} | reading.unreadable) - roles
    if told == expected:
        return ""
    return (
        f"columns {sorted(told - expected)} are not in the file, {sorted(expected - told)} are lost"
    )


def _types(reading: Reading, domains: dict[str, Any]) -> str:
    for name, domain in domains.items():
        expected = reading.types.get(name)
        told = domain["data_type"]
        if domain["kind"] == "list":
            told = f"list {told}"
        if expected is not None and domain["closed"] and told != expected:
            return f"{name!r} is {expected} in the file and was read as {told}"
    return ""


def _slices(table: list[dict[str, Any]], frame: pd.DataFrame, is_right: np.ndarray | None) -> str:
    known: dict[str, np.ndarray] = {}
    for row in table[:_MOST_SLICES]:
        held = np.ones(len(frame), bool)
        for condition in json.loads(row["predicate"])["all"]:
            text = json.dumps(condition)
            if text not in known:
                known[text] = predicates.mask(frame, {"all": [condition]})
            held &= known[text]
        if row["n"] != held.sum():
            return f"{row['slice']}: {row['n']} examples, but {held.sum()} in the file"
        if is_right is not None and row["metric"] == "accuracy" and row["n"]:
            accuracy = float(is_right[held].mean())
            if row["value"] is None or not math.isclose(row["value"], accuracy, abs_tol=1e-9):
                return f"{row['slice']}: accuracy {row['value']}, but {accuracy} in the file"
    return ""


def same(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether two readings hold the same values in the same columns."""
    if list(one.columns) != list(other.columns) or len(one) != len(other):
        return False
    return all(
        _alike(left, right)
        for name in one.columns
        for left, right in zip(
            map(predicates.plain, one[name].tolist()),
            map(predicates.plain, other[name].tolist()),
            strict=True,
        )
    )


def _alike(left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_alike, left, right))
    if predicates.is_missing(left) or predicates.is_missing(right):
        return bool(predicates.is_missing(left) and predicates.is_missing(right))
    return type(left) is type(right) and bool(left == right)


def unlike(frame: pd.DataFrame, columns: dict[str, list[Any]]) -> str:
    """Return where columns that the reading layer gave differ from a reading, or nothing."""
    if set(columns) != set(map(str, frame.columns)):
        return f"columns {sorted(columns)}, but {sorted(map(str, frame.columns))} in the file"
    for name, values in columns.items():
        expected = frame[name].tolist()
        if len(values) != len(expected):
            return f"{name!r}: {len(values)} rows, but {len(expected)} in the file"
        for row, (have, want) in enumerate(zip(values, expected, strict=True)):
            same_value = have == want or (have is None and want is None)
            if not same_value and not (_is_nan(have) and _is_nan(want)):
                return f"{name!r}, row {row + 1}: {have!r}, but {want!r} in the file"
    return ""


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and math.isnan(value)
