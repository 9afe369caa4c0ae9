"""Slices that are known to be worse: a file of ``--known``, and what its entries are in a run.

A known slice, and every slice within it, fails no gate; a fall over all examples still does.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from slicebeam.metrics.errors import InputError, OptionError, shortened
from slicebeam.pipelines.changelist.changes import has_fallen
from slicebeam.pipelines.changelist.testing import KnownInRun, KnownSlice
from slicebeam.transforms.encode.predicates import condition_readings
from slicebeam.transforms.storage.storage import named_content, storage_path, written_whole
from slicebeam.transforms.storage.strict_text import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from slicebeam.pipelines.changelist.document import ChangeList
    from slicebeam.pipelines.changelist.slices import Slice

KNOWN = "--known"
# Of each condition, every way to read it.
Readings = list[frozenset[tuple[str, str, tuple[str, ...]]]]
_EXAMPLE = "'- slice: age in [37, 41) & sex = Female'"


def read_known(uri: str, option: str = KNOWN) -> tuple[KnownSlice, ...]:
    """Return the entries of a YAML or JSON file; OptionError where it is not a list of them."""
    where = f"{option} {uri}"
    text = named_content(storage_path(uri, option), where)
    try:
        content, _ = parse_yaml(text.decode("utf-8"))
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise OptionError(f"{where} is not readable as YAML or JSON ({reason})") from error
    if not isinstance(content, list | None):
        raise OptionError(f"{where} is not a list of slices; write entries such as {_EXAMPLE}")
    return tuple(
        _entry(written, f"{where}, entry {at}") for at, written in enumerate(content or (), 1)
    )


def _entry(written: Any, where: str) -> KnownSlice:
    if isinstance(written, str):
        written = {"slice": written}
    if not isinstance(written, dict):
        raise OptionError(f"{where}: {shortened(repr(written))} is not an entry; write {_EXAMPLE}")
    if others := sorted(map(str, set(written) - set(KnownSlice.model_fields))):
        keys = ", ".join(KnownSlice.model_fields)
        raise OptionError(f"{where}: {others[0]!r} is not a valid key; the keys are {keys}")
    try:
        return KnownSlice.model_validate(written)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        if first["type"] == "missing":
            raise OptionError(f"{where}: the key {key!r} is missing; write {_EXAMPLE}") from error
        shown = shortened(repr(first["input"]))
        raise OptionError(f"{where}: {shown} is not a valid {key} ({first['msg']})") from error


def write_known(uri: str, entries: Sequence[KnownSlice], option: str = KNOWN) -> None:
    """Replace the file as a whole: by JSON where its name says so, else by YAML."""
    content = [entry.model_dump(mode="json", exclude_none=True) for entry in entries]
    if uri.endswith(".json"):
        text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    else:
        text = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
    with written_whole(storage_path(uri, option)) as stream:
        stream.write(text.encode("utf-8"))


def known_in_run(
    document: ChangeList, entries: Sequence[KnownSlice], today: date | None = None
) -> tuple[KnownInRun, ...]:
    """Return what known slices are in a run; ``today`` is that of UTC where it is absent."""
    now = datetime.now(timezone.utc).date() if today is None else today
    metrics = {metric.key for metric in document.metrics}
    judged = []
    for entry in entries:
        is_expired = entry.until is not None and now > entry.until
        is_measured = entry.metric in {None, *metrics}
        covered = _covered(document, entry) if is_measured and not is_expired else []
        worse = [slice_.slice_id for slice_ in covered if _worse_metrics(slice_, entry.metric)]
        state = "worse" if worse else "not worse" if covered else "absent"
        content = {"state": "expired" if is_expired else state, "slices": worse}
        judged.append(KnownInRun.model_validate(entry.model_dump() | content))
    return tuple(judged)


def _covered(document: ChangeList, entry: KnownSlice) -> list[Slice]:
    """Return the slices that an entry names, and those within it."""
    named = [slice_ for slice_ in document.slices if entry.slice in (slice_.slice_id, slice_.name)]
    try:
        wanted = condition_readings(entry.slice)
    except InputError:
        wanted = []
    # The name of a slice of groups of texts, or of a renamed one, is no predicate.
    wanted = wanted if all(wanted) else []
    for slice_ in named:
        wanted = wanted or _readings(slice_)
    return [slice_ for slice_ in document.slices if slice_ in named or _is_within(slice_, wanted)]


def _is_within(slice_: Slice, wanted: Readings) -> bool:
    """Return whether each of some conditions is one of a slice's."""
    held = _readings(slice_)
    return bool(wanted) and all(any(one & other for other in held) for one in wanted)


def slice_text(slice_: Slice) -> str:
    """Return what a file of known slices calls a slice: its conditions, or its slice_id where it has none."""
    return " & ".join(one.whole_text() for one in slice_.conditions) or slice_.slice_id


def _readings(slice_: Slice) -> Readings:
    texts = [condition.whole_text() for condition in slice_.conditions]
    return [readings for text in texts for readings in condition_readings(text)]


def _worse_metrics(slice_: Slice, metric: str | None = None) -> set[str]:
    """Return the metrics that are significantly worse on a slice."""
    return {
        change.metric
        for change in slice_.changes
        if has_fallen(change) and metric in (None, change.metric)
    }


def known_slices(document: ChangeList, metric: str | None = None) -> set[str]:
    """Return the slice_ids of the significantly worse slices that are known, for a metric or for any."""
    return {
        slice_id
        for entry in document.known
        for slice_id in entry.slices
        if metric is None or entry.metric in (None, metric)
    }


def unknown_count(document: ChangeList, metric: str, count: int) -> int:
    """Return on how many of the slices on which a metric is significantly worse that is not known.

    Of a search with findings they are the findings: whatever else is worse is so as these let
    expect, or by too little to be listed.
    """
    covered = known_slices(document, metric)
    models = [
        model
        for model in document.finding_models
        if (model.metric, model.direction) == (metric, "worse")
    ]
    findings = [finding for model in models for finding in model.listed(document.findings)]
    is_whole = all(model.stop in ("nothing left", "small differences") for model in models)
    is_search = document.check is None
    if is_search and findings and is_whole and not any(model.removed for model in models):
        return sum(finding.slice_id not in covered for finding in findings)
    worse = [slice_ for slice_ in document.slices if slice_.slice_id in covered]
    return count - sum(metric in _worse_metrics(slice_) for slice_ in worse)
