"""``--explain``: finds the slice that it names, and says how it got its p-value, to be repeated by hand."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.errors import InputError, OptionError, unknown_name
from slicebeam.metrics.measures.registry import metric
from slicebeam.metrics.significance.outcome_codes import METHODS, REASONS
from slicebeam.transforms.encode.predicates import condition_fields, refuse_empty_intervals

if TYPE_CHECKING:
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.search.results import MetricResult, Results, SliceNames

_ID = re.compile(r"[0-9a-f]{16}")


def check_slice_text(text: str, config: RunConfig) -> None:
    """Refuse text that is neither an id nor a predicate, before any work is done."""
    if config.command == "check" or _ID.fullmatch(text):
        return
    try:
        condition_fields(text)
        refuse_empty_intervals(text)
    except InputError as error:
        raise OptionError(f"--explain {text!r}: {error}, or give the id of a slice") from error


def find_slice_key(text: str, prepared: EncodedDataset, names: SliceNames) -> int | None:
    """Return the key of the slice with a text; None for an id, which is looked for among the results."""
    try:
        if prepared.given is None:
            return None if _ID.fullmatch(text) else _by_text(text, prepared)
        keys, called = prepared.lattice.singleton_keys(), list(prepared.given.names)
        texts = names.texts(keys).to_pylist()
        for known in (names.ids(keys).to_pylist(), texts, called):
            if text in known:
                return int(keys[known.index(text)])
        shown = [name or own for name, own in zip(called, texts, strict=True)]
        raise unknown_name("slice", text, shown)
    except InputError as error:
        raise OptionError(f"--explain {text!r}: {error}") from error


def _by_text(text: str, prepared: EncodedDataset) -> int:
    domains = {domain.name: domain for domain in prepared.domains}
    left_out = {column.name: column.reason for column in prepared.left_out}
    singletons = [single for domain in prepared.domains for single in domain.singletons]
    texts = {str(single): 1 + at for at, single in enumerate(singletons)}
    digits: dict[str, int] = {}
    for part, fields in condition_fields(text):
        if part not in texts:
            known = [field for field in fields if field in domains]
            if not known:
                for field in fields:
                    if field in left_out:
                        raise InputError(f"{field!r} is not a feature here: {left_out[field]}")
                raise unknown_name("feature", fields[0], domains)
            own = [str(single) for single in domains[known[0]].singletons]
            raise unknown_name("predicate", part, own)
        field = singletons[texts[part] - 1].field
        if field in digits:
            raise InputError(
                f"it has two predicates of {field!r}; a slice has at most one per feature"
            )
        digits[field] = texts[part]
    if len(digits) > prepared.lattice.max_cross_size:
        raise InputError(
            f"it has {len(digits)} predicates, and slices here have up to "
            f"{prepared.lattice.max_cross_size}; raise --max-cross-size"
        )
    row = np.array([list(digits.values())], np.int64)
    return int(prepared.lattice.keys_of_sets(row)[0])


def explain(text: str, key: int | None, results: Results) -> tuple[str, ...]:
    """Return the lines that explain the tests of a slice, or say that it was not tested."""
    config, searched = results.config, results.searched
    is_it = results.names.has_id(results.keys, text) if key is None else results.keys == key
    if not is_it.any():
        why = "no slice of this run has this id, or " if key is None else ""
        why += f"it has fewer than {config.used_min_slice_size:,} examples"
        if searched.strategy != "batch":
            why += f", or --strategy {searched.strategy} did not visit it"
        if results.saved == "significant":
            why += ", or it is not significant, and only significant slices were kept"
        return (f"{text}: not tested: {why}.",)
    at = int(np.flatnonzero(is_it)[0])
    level = int(results.prepared.lattice.cross_sizes(results.keys[[at]])[0])
    family = searched.tests_per_level
    # Slices that were not visited are counted by an upper bound.
    bound = "at most " if sum(family) > sum(searched.tested_per_level) else ""
    (name,) = results.names.texts(results.keys[[at]]).to_pylist()
    lines = [f"{name} (n = {int(results.sizes[at]):,}, level {level})"]
    for measured in results.metrics:
        lines += _metric_lines(measured, at, results)
    number = len(results.metrics)
    each = f"; times {number}, the number of metrics" if number > 1 else ""
    lines.append(
        f"  q: {config.used_correction}; {bound}{family[level - 1]:,} slices of level {level} "
        f"could be tested, {sum(family):,} in all; L = {len(family)}; significant where q <= "
        f"{config.used_alpha:g}{each}"
    )
    return tuple(lines)


def _metric_lines(measured: MetricResult, at: int, results: Results) -> list[str]:
    config = results.config
    method, reason = int(measured.method[at]), int(measured.reason[at])
    own = metric(measured.name)
    first = (
        f"  {measured.name}: {measured.value[at]:.6g}, reference {measured.reference[at]:.6g}, delta "
        f"{measured.delta[at]:+.6g} [{measured.ci_low[at]:+.6g}, {measured.ci_high[at]:+.6g}]"
    )
    lines = [first]
    if method:
        lines.append(f"    test: {METHODS[method]}")
    if reason:
        lines.append(f"    p = 1 without a test: {REASONS[reason]}")
    else:
        tail = own.tail(config.alternative)
        lines.append(
            f"    p = {measured.p_value[at]:.6g} (--alternative {config.alternative}: {tail} tail"
            f"{'s' if tail == 'both' else ''}), q = {measured.q_value[at]:.6g}"
        )
    inputs = own.inputs(results.prepared.slices(results.sums[[at]]))
    for name, number in inputs.items():
        shown = f"{number:,.0f}" if float(number).is_integer() else f"{number:.10g}"
        lines.append(f"    {name} = {shown}")
    if config.resamples_examples and measured.name == config.metric[0]:
        lines.append(f"    B = {config.used_replicates} replicates, seed {config.seed}")
    return lines
