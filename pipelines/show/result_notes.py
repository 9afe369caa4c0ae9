"""The lines around the tables of a result: how it came about, what was left out, and what options add."""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from slicebeam.metrics.errors import counted, printable, shortened
from slicebeam.metrics.measures.registry import metric
from slicebeam.pipelines.changelist.changes import SinceSlice
from slicebeam.pipelines.changelist.discovered import Discovery
from slicebeam.pipelines.changelist.document import Dataset, SearchChangeList
from slicebeam.pipelines.changelist.parts import Estimate, ParityGap, SliceCoverage
from slicebeam.pipelines.changelist.slices import FindingModel, Slice
from slicebeam.pipelines.changelist.testing import Noticeable, TfmaMetric
from slicebeam.pipelines.search.summary import overall_text
from slicebeam.pipelines.show.earlier import drift_lines
from slicebeam.pipelines.show.finding_tables import Numbers
from slicebeam.pipelines.show.worst_slices import LEAST_ROWS, number_text, signed_text

_MOST_CHANGES = 10
# Of groups left out so many are named; a metric of TFMA may have thousands of numbers and slices.
_MOST_NAMES, _MOST_NUMBERS, _MOST_SLICES = 5, 3, 10
# Shares below have two digits.
_SMALL_SHARE = 0.01
_LOOKS = {"output": "a model's output", "label": "the label", "id": "an id"}
_TEXT = Numbers([]).text


def note_blocks(document: SearchChangeList, *, is_short: bool) -> list[list[str]]:
    """Return the lines below the tables, block by block; the last one has the `notes`."""
    return [
        list(dict.fromkeys([*coverage_lines(document), *_list_lines(document)])),
        list(sensitivity_lines(document)),
        list(_parity_lines(document)),
        list(_tfma_lines(document)),
        discovery_lines(document),
        list(_since_lines(document)),
        [entry.line() for entry in document.known],
        list(drift_lines(document)),
        notes(document, is_short=is_short),
    ]


def closing_lines(document: SearchChangeList, *, has_findings: bool) -> list[str]:
    """Return how many slices were tested, how this was corrected, and how often a gate fails by chance."""
    testing, gate = document.testing, document.gate
    lines = [
        summary_line(document) if has_findings else _tested_line(document),
        testing.corrected_for,
    ]
    if gate is not None and gate.fail_on == "worse" and testing.correction != "none":
        often = f"about 1 run in {round(1 / testing.alpha):,} fails by chance, at most"
        lines.append(f"Where nothing is worse, {often} (--alpha {testing.alpha:g}).")
    return lines


def _since_lines(document: SearchChangeList) -> Iterator[str]:
    """Yield what changed since an earlier run: the metrics over all examples, then slices, the worst first."""
    since = document.since
    if since is None:
        return
    yield since.summary
    yield from (f"  {overall_text(change)}" for change in since.overall)
    most = max(LEAST_ROWS, _MOST_CHANGES // max(len(since.metrics), 1))
    for of in since.metrics:
        # Those that changed come first.
        rows = [row for row in since.slices if row.metric == of.metric and _what_changed(row)]
        alike = Counter(row.like for row in rows)
        rows = [row for row in rows if row.like is None]
        named = f"{of.metric}: " if len(since.metrics) > 1 else ""
        for row in rows[:most]:
            moments = row.then, row.now
            then, now = (number_text(None if at is None else at.value) or "?" for at in moments)
            was, is_ = (
                signed_text(None if at is None else at.delta.value) or "?" for at in moments
            )
            values = f"{named}{then:>5} → {now:<5}  delta {was:>6} → {is_:<6}"
            like = f" (and {alike[row.slice_id]:,} like it)" if alike[row.slice_id] else ""
            yield f"  {_what_changed(row):<11} {values}  {row.name}{like}"
        if len(rows) > most:
            yield f"  and {len(rows) - most:,} more in the document"
    yield from since.warnings


def _what_changed(slice_: SinceSlice) -> str:
    words = {"degraded": "worse", "improved": "better"}
    what: list[str] = [slice_.status] if slice_.status in ("new", "gone") else []
    if slice_.significant:
        what.append(words.get(slice_.direction, "changed"))
    elif slice_.value_change is not None and slice_.value_change.significant:
        # The slice moved with all examples, or no further from them than chance allows.
        what.append(f"value {words.get(slice_.value_change.direction, 'changed')}")
    return ", ".join(what)


def notes(document: SearchChangeList, *, is_short: bool = False) -> list[str]:
    """Return the basis of the table and what was left out, unless ``is_short`` with what it does not show."""
    testing, search = document.testing, document.search
    lines = [*_untested(document), *_thresholds(document), *_unvisited(document)]
    lines += document.dataset.drift
    if document.adaptive is not None and (trained := document.adaptive.trained_text()):
        lines.append(trained)
    lines += testing.warnings
    if testing.expected_false is not None:
        lines.append(
            f"If no slice differed, about {testing.expected_false:,.0f} would be called significant"
            f"{', over all metrics' if len(testing.metrics) > 1 else ''}."
        )
    hidden = []
    if search.inherited:
        them = "it" if search.inherited == 1 else "them"
        slices = counted(search.inherited, "significant slice")
        hidden.append(f"{slices} that a slice above {them} explains")
    if search.duplicates:
        hidden.append(f"{search.duplicates:,} with the same examples as a shorter one")
    if hidden and not is_short:
        lines.append(f"Not shown: {', '.join(hidden)}.")
    if search.saved_slices == "significant":
        lines.append("The table of slices holds the significant slices and the singletons only.")
    sketched = [domain.name for domain in document.dataset.domains if domain.error]
    if sketched:
        lines.append(f"Bins and values from sketches, not exact: {', '.join(sketched)}.")
    reasons: dict[str, list[str]] = {}
    for column in document.dataset.left_out:
        reasons.setdefault(column.reason, []).append(column.name)
    lines += [f"Left out: {', '.join(names)}: {reason}." for reason, names in reasons.items()]
    lines += hint_lines(document.dataset)
    return lines


def _thresholds(document: SearchChangeList) -> Iterator[str]:
    validation = document.validation
    if validation is None:
        return
    if not (reasons := validation.reasons()):
        yield f"TFMA finds all thresholds met, on {validation.checked:,} slices."
        return
    yield f"TFMA finds {counted(len(reasons), 'threshold')} not met:"
    yield from (f"  {reason}" for reason in reasons[:_MOST_CHANGES])
    if len(reasons) > _MOST_CHANGES:
        yield f"  and {len(reasons) - _MOST_CHANGES:,} more in the document"


def _tested_line(document: SearchChangeList) -> str:
    testing = document.testing
    smallest = testing.min_slice_size
    of = f" of at least {smallest} examples" if smallest > 1 else ""
    tests = testing.test
    if len(testing.metrics) > 1:
        tests = "; ".join(f"{tested.metric}: {tested.test}" for tested in testing.metrics)
    noun = "slice" if testing.tested == 1 else "slices"
    return f"{testing.tested:,} {noun}{of} tested ({document.search.strategy}; {tests})."


def summary_line(document: SearchChangeList) -> str:
    """Return how many slices are significant, and are findings, by metric or side where there are several."""
    significant = counted(document.testing.significant, "significant slice")
    findings = counted(len(document.findings), "finding")
    metrics = Counter(finding.metric for finding in document.findings)
    sides = Counter(finding.direction for finding in document.findings)
    parts = [f"{number:,} of {name}" for name, number in metrics.items() if len(metrics) > 1]
    parts = parts or [f"{number:,} {side}" for side, number in sides.items() if len(sides) > 1]
    listed = f" ({', '.join(parts)})" if parts else ""
    stops = {model.stop for model in document.finding_models}
    why = "; others differ too little to list" if "small differences" in stops else ""
    why = ", the maximum of a list" if "most findings" in stops else why
    return f"{significant} of {document.testing.tested:,} tested; {findings}{listed}{why}."


def _unvisited(document: SearchChangeList) -> Iterator[str]:
    search, testing = document.search, document.testing
    most = testing.family_size - testing.tested
    where = []
    if document.provenance.config.get("prune_significant") and any(
        slice_.cross_size < search.max_cross_size for slice_ in document.slices
    ):
        where.append("within significant slices (leave --prune-significant out)")
    if search.stopped == "iterations":
        where.append("below the end of the queue (more --iterations, a larger --max-candidates)")
    if most and where:
        yield (
            f"Up to {counted(most, 'slice')} of at least {testing.min_slice_size} examples "
            f"{'was' if most == 1 else 'were'} not visited: {' and '.join(where)}."
        )


def _untested(document: SearchChangeList) -> Iterator[str]:
    check = document.check
    if check is not None and check.too_small:
        yield f"Too small to be tested: {check.too_small:,} of the given slices."
    if check is not None and check.empty:
        yield f"Without any example in this data: {check.empty:,} of the given slices."


def _list_lines(document: SearchChangeList) -> Iterator[str]:
    """Yield why metrics have no findings, where they could have some, and which slices were not considered."""
    for model in document.finding_models:
        reason = None
        if model.stop == "not possible":
            reason = metric(model.metric).indivisible or model.reason
        elif model.candidates and not model.listed(document.findings):
            slices = f"{counted(model.candidates, 'slice')} significantly {model.direction}"
            reason = f"of {slices} none differs clearly from the value expected of its examples"
        if reason is not None:
            yield f"No findings of {model.metric}: {reason}."
        if model.left_out:
            yield (
                f"The findings of {model.metric} were chosen from the {model.candidates:,} slices with "
                f"the strongest effects of their own; {model.left_out:,} others were not considered."
            )


def coverage_lines(document: SearchChangeList, *, of_list: bool = False) -> Iterator[str]:
    """Yield how much the findings of each metric and the listed slices (``of_list``: these alone) explain."""
    parts: list[tuple[FindingModel | SliceCoverage, int, str]] = [
        (model, len(model.listed(document.findings)), "finding")
        for model in (() if of_list else document.finding_models)
        if not model.removed
    ]
    parts += [(part, len(document.slices), "listed slice") for part in document.coverage]
    change = "the change of " if document.comparison.kind == "baseline" else ""
    for part, number, noun in parts:
        if part.r2 is None or part.r2_expected is None:
            continue
        whose = ""
        if isinstance(part, SliceCoverage) and part.slices < number:
            whose = f"first {part.slices:,} of "
        whose += noun if number == 1 else counted(number, noun)
        share = f"{part.r2:.1%}" if part.r2 >= _SMALL_SHARE else f"{100 * part.r2:.2g}%"
        yield (
            f"The {whose} explain{'s' if number == 1 else ''} {share} of the variance of {change}"
            f"{part.metric} between examples ({100 * part.r2_expected:.2g}% by chance)."
        )


def sensitivity_lines(document: SearchChangeList) -> Iterator[str]:
    """Yield the lines of all metrics that are significantly worse nowhere."""
    only = document.search.saved_slices == "significant"
    # Several metrics have a line each.
    most = None if len(document.testing.metrics) == 1 else 1
    for tested in document.testing.metrics:
        if tested.nearest:
            of = ", of single conditions" if only else ""
            yield f"Nearest to significantly worse in {tested.metric}{of}:"
        for miss in tested.nearest[:most]:
            change, delta = miss.change, miss.change.delta or Estimate()
            interval = "" if delta.lo is None else f" [{_TEXT(delta.lo)}, {_TEXT(delta.hi)}]"
            yield (
                f"  n {change.n:,}: {_TEXT(change.after.value)} against {_TEXT(change.compared_with)}, "
                f"{_TEXT(delta.value)}{interval}, q {_short(change.p_adjusted)}: {miss.name}"
            )
        if tested.noticeable:
            yield _noticeable_text(tested.metric, tested.noticeable)


def _noticeable_text(name: str, falls: Sequence[Noticeable]) -> str:
    measured = metric(name)
    lower = "lower" if measured.higher_is_better else "higher"
    parts = [f"by {_short(fall.fall)} over all examples" for fall in falls if fall.n is None]
    of = f"on slices of {{}} {measured.counted or 'examples'}"
    for fall in falls:
        if fall.n is not None:
            parts.append(f"by {_short(fall.fall)} {of.format(f'{fall.n:,}')}")
            of = "of {}"
    return f"Noticed with a probability of {falls[0].power:.0%}: {name} {lower} {', '.join(parts)}."


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:.2g}".removeprefix("0")


def _parity_lines(document: SearchChangeList) -> Iterator[str]:
    for column in dict.fromkeys(row.column for row in document.parity):
        gaps = [row for row in document.parity if row.column == column]
        bins = ", in bins" if gaps[0].kind == "bins" else ""
        yield f"Largest gaps between groups of {column}{bins}:"
        for gap in gaps:
            yield f"  {_gap_text(gap, names_model=document.comparison.kind == 'baseline')}"
        for names in filter(None, dict.fromkeys(gap.left_out for gap in gaps)):
            measures = dict.fromkeys(gap.measure for gap in gaps if gap.left_out == names)
            more = f" and {len(names) - _MOST_NAMES:,} more" * (len(names) > _MOST_NAMES)
            yield (
                f"  Left out of {', '.join(measures).replace('_', ' ')}, with fewer than {gaps[0].least} "
                f"examples: {', '.join(names[:_MOST_NAMES])}{more}."
            )


def _gap_text(gap: ParityGap, *, names_model: bool) -> str:
    what = gap.measure.replace("_", " ")
    if names_model:
        what += ", old model" if gap.model == "before" else ", new model"
    if gap.lowest is None or gap.highest is None or gap.gap is None:
        return f"{what}: {counted(gap.groups, 'group')} of at least {gap.least} examples; nothing to compare"
    lowest, highest = (
        f"{_TEXT(group.value)} in {group.name} (n {group.n:,})"
        for group in (gap.lowest, gap.highest)
    )
    return (
        f"{what}: lowest {lowest}, highest {highest}: gap {_TEXT(gap.gap.value)}, "
        f"95 % {_TEXT(gap.gap.lo)} to {_TEXT(gap.gap.hi)}, p {_short(gap.p_value)}"
    )


def discovery_lines(document: SearchChangeList) -> list[str]:
    """Return what the findings, or where there are none the first slices, are like, and how they were found."""
    if document.discovery is None:
        return []
    by_id = {slice_.slice_id: slice_ for slice_ in document.slices}
    # A slice may be a finding of several metrics.
    first = list(dict.fromkeys(finding.slice_id for finding in document.findings)) or list(by_id)
    shown = [by_id[slice_id] for slice_id in first[:_MOST_SLICES]]
    lines = [line for slice_ in shown for line in _described(slice_)]
    if lines:
        has_words = any(slice_.found and slice_.found.phrases for slice_ in shown)
        words = " (words, and their correlation with membership)" if has_words else ""
        lines = [f"What they are like{words}:", *lines, ""]
    return [*lines, *_fitted(document.discovery)]


def _described(slice_: Slice) -> Iterator[str]:
    """Yield the words of a slice, and how its examples changed with a typical one."""
    about = slice_.found
    if about is None or not (about.phrases or about.examples):
        return
    words = [
        phrase.text if phrase.correlation is None else f"{phrase.text} ({phrase.correlation:.2f})"
        for phrase in about.phrases
    ]
    yield printable(f"  {slice_.name}{': ' if words else ''}{', '.join(words)}")
    facts = []
    if about.improved is not None and about.degraded is not None:
        facts.append(f"{about.improved:,} improved, {about.degraded:,} degraded")
    if about.opposite_to_global:
        facts.append("opposite to all examples")
    typical = next((row for row in about.examples if row.role == "representative"), None)
    if typical is not None and slice_.origin.method == "mixture":
        texts = [value for value in typical.display.values() if isinstance(value, str)]
        named = f"{typical.row if typical.id is None else typical.id}"
        if texts:
            named = "" if typical.id is None else f" ({named})"
            facts.append(f"such as “{shortened(' '.join(texts[0].split()))}”{named}")
        else:
            facts.append(f"such as example {named}")
    if facts:
        yield printable("    " + "; ".join(facts))


def _fitted(discovery: Discovery) -> Iterator[str]:
    kept = ""
    if discovery.kept_dimensions < discovery.dimensions:
        kept = f", of which {discovery.kept_variance:.0%} of the variance in {discovery.kept_dimensions}"
    encoder = "" if discovery.encoder == "none" else f" ({discovery.encoder})"
    yield f"Embeddings{encoder} of {discovery.dimensions} dimensions{kept}."
    if discovery.discovery_share is not None:
        yield (
            f"{discovery.discovery_examples:,} examples shaped the mixtures; "
            f"{discovery.evaluation_examples:,} others were tested."
        )
    for resolution in discovery.resolutions:
        line = f"{resolution.field}: EM of {resolution.iterations} iterations"
        line += "" if resolution.converged else ", not converged"
        if resolution.r2 is not None and resolution.r2_expected is not None:
            line += f"; membership explains {resolution.r2:.1%} of the change ({resolution.r2_expected:.1%} by chance)"
        yield line + "."


def _tfma_lines(document: SearchChangeList) -> Iterator[str]:
    names = {slice_.slice_id: shortened(slice_.name) for slice_ in document.slices}
    chosen = list(dict.fromkeys(finding.slice_id for finding in document.findings)) or list(names)
    numbers: dict[str, list[TfmaMetric]] = {}
    for number in document.tfma_metrics:
        # A metric may have many numbers: of classes, ranks and thresholds.
        numbers.setdefault(re.split(r"[@.\[]", number.name)[0], []).append(number)
    for name, listed in numbers.items():
        for number in listed[:_MOST_NUMBERS]:
            drawn = f", 95% intervals of {number.replicates} replicates" * bool(number.replicates)
            yield f"TFMA {number.name}: {number.overall.text()} over all examples{drawn}"
            by_slice = {value.slice_id: value for value in number.slices}
            for value in filter(None, map(by_slice.get, chosen[:_MOST_SLICES])):
                before = "" if value.before is None else f", before {value.before.text()}"
                p = "" if value.p_value is None else f", p {value.p_value:.2g}"
                yield f"  {value.after.text()}{before}{p}  {names[value.slice_id]}"
        if len(listed) > _MOST_NUMBERS:
            more = len(listed) - _MOST_NUMBERS
            yield f"and {more:,} more numbers of {name} in the document"
    if "tfma" in (document.files or {}):
        yield "slicebeam export tfma writes what TFMA computed, plots included, for its viewer"


def hint_lines(dataset: Dataset) -> Iterator[str]:
    """Yield the line with the flag that leaves the features out, if there are any."""
    if not dataset.hints:
        return
    groups: dict[str, list[str]] = {}
    for hint in dataset.hints:
        because = "" if hint.looks_like == "output" else f": {hint.reason}"
        groups.setdefault(hint.looks_like, []).append(hint.name + because)
    looks = "; ".join(f"{_LOOKS[kind]} ({', '.join(names)})" for kind, names in groups.items())
    if len(dataset.hints) == len(dataset.domains):
        # Without them nothing would be left to slice by.
        yield f"All features look like {looks}."
        return
    if list(groups) == ["output"]:
        looks = f"{_LOOKS['output']}, by their names"
    names = io.StringIO()
    csv.writer(names, lineterminator="").writerow(hint.name for hint in dataset.hints)
    option = f"--exclude-features={shlex.quote(names.getvalue())}"
    yield f"{option} leaves out the columns that look like {looks}."
