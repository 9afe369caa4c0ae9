"""What the document says about discovered slices: how they changed, in words, and by examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from scipy.special import expit

from slicebeam.metrics.discovery.change import of_partition, z_score
from slicebeam.metrics.discovery.descriptions import best_phrases, candidate_phrases, scored
from slicebeam.metrics.discovery.mixture import is_converged
from slicebeam.metrics.errors import FileError, OptionError
from slicebeam.pipelines.changelist.discovered import (
    Discovery,
    Found,
    Overlap,
    Phrase,
    Resolution,
    ShownExample,
)
from slicebeam.pipelines.discovery.discovered import PreparedDiscovery
from slicebeam.pipelines.discovery.llm_phrases import is_model, phrases_of_model, read_phrases_api
from slicebeam.pipelines.prepare.encoded_dataset import pass_over
from slicebeam.pipelines.prepare.source import read_rows
from slicebeam.transforms.discovery.derive_columns import is_cluster_field
from slicebeam.transforms.discovery.describe_slices import DescribeSlices
from slicebeam.transforms.encode.column import python_values
from slicebeam.transforms.encode.extract_predictions import has_losses
from slicebeam.transforms.encode.predicates import json_values
from slicebeam.transforms.storage.storage import matching, storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.config.discover import DiscoverConfig
    from slicebeam.pipelines.discovery.discovered import Discovered
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.stage import Workspace
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.discovery.describe_slices import Description

# Slices of which the document says how many examples improved, and what they share, at most.
_ASSESSED = 100
# Examples of each role, and phrases, of a described slice.
_EXAMPLES, _PHRASES = 10, 5
# Texts of a slice, and of other examples, that a language model is shown.
_SHOWN_TO_MODEL = 30
# What shows an example is cut to so many characters.
_LONGEST_SHOWN = 300
# CPU time of an example in the pass, measured.
_SECONDS_PER_ROW = 1e-5
# How many notes of derived files are read together.
_FILES_PER_GROUP = 8


def with_discovery(
    config: DiscoverConfig, prepared: EncodedDataset, changelist: SearchChangeList, run: Workspace
) -> SearchChangeList:
    """Return a document with what discovery knows of its slices, and how they were found."""
    if not isinstance(prepared, PreparedDiscovery):
        raise TypeError("a discovery that discovered nothing")
    discovered = prepared.discovered
    order = _findings_first(changelist)[: max(_ASSESSED, config.slices)]
    assessed = [changelist.slices[at] for at in order]
    describing = _describing(config, discovered, assessed, run.work)
    description = describing.total(_passed(describing, prepared, run))
    phrases = _phrases(config, discovered, description)
    shown = _shown(config, discovered, description, assessed[: config.slices])
    overall = changelist.global_[0].direction
    slices = [_discovered_slice(slice_) for slice_ in changelist.slices]
    jaccard = description.overlap.jaccard
    for number, at in enumerate(order):
        found = _found(number, config, description, phrases, shown, assessed, jaccard, overall)
        slices[at] = slices[at].model_copy(update={"found": found})
    discovery = _discovery(config, prepared, discovered, description)
    return changelist.model_copy(update={"slices": tuple(slices), "discovery": discovery})


def _findings_first(changelist: SearchChangeList) -> list[int]:
    """Return the positions of the slices, of the findings before the others."""
    places = {one.slice_id: at for at, one in enumerate(changelist.slices)}
    ranked = sorted(changelist.findings, key=lambda finding: finding.rank)
    findings = [places[one.slice_id] for one in ranked]
    return list(dict.fromkeys([*findings, *range(len(changelist.slices))]))


def _discovered_slice(one: Slice) -> Slice:
    """Return a slice that is marked as found by a mixture, if a mixture found it."""
    if not any(is_cluster_field(condition.field) for condition in one.conditions):
        return one
    return one.model_copy(update={"origin": one.origin.model_copy(update={"method": "mixture"})})


def _describing(
    config: DiscoverConfig, discovered: Discovered, slices: Sequence[Slice], work: WorkFolder
) -> DescribeSlices:
    conditions = tuple(slice_.conditions for slice_ in slices if slice_.predicate is not None)
    mixtures = discovered.model.clusters.mixtures
    return DescribeSlices(
        conditions,
        {field: mixture.components for field, mixture in mixtures.items()},
        discovered.files.dimensions,
        work.path_of("embeddings"),
        discovered.beside,
        _EXAMPLES,
        has_losses(config.metric[0]),
        discovered.embedding.encoder is not None and bool(config.text or config.phrases),
        discovered.sample if discovered.embedding.encoder is not None else None,
    )


def _passed(describing: DescribeSlices, prepared: EncodedDataset, run: Workspace) -> list[Any]:
    notes = matching(run.work.path_of("derived"), "*.json")
    groups = [
        [str(path) for path in notes[begin : begin + _FILES_PER_GROUP]]
        for begin in range(0, len(notes), _FILES_PER_GROUP)
    ]
    seconds = prepared.rows * _SECONDS_PER_ROW
    return pass_over(describing, groups, "describing", run, seconds)


def _phrases(
    config: DiscoverConfig, discovered: Discovered, description: Description
) -> list[tuple[Phrase, ...]]:
    """Return the phrases of each described slice."""
    if description.overall is None or discovered.embedding.encoder is None:
        return []
    source: Any = "corpus"
    if config.phrases and is_model(config.phrases):
        source = "llm"
        candidates = phrases_of_model(
            config.phrases,
            _groups(discovered, description, config.slices),
            storage_path(config.output),
        )
    elif config.phrases:
        source = "given"
        candidates = given_phrases(config.phrases)
    else:
        candidates = _of_corpus(discovered, description, config.slices)
    if not candidates:
        return []
    scores = scored(
        description.overall, description.embeddings, discovered.embedding.queries(candidates)
    )
    best = best_phrases(scores, candidates, _PHRASES)
    return [
        tuple(
            Phrase(text=one.text, score=one.score, correlation=one.correlation, source=source)
            for one in own
        )
        for own in best
    ]


def _groups(
    discovered: Discovered, description: Description, described: int
) -> list[tuple[list[str], list[str]]]:
    """Return of each described slice some texts of its examples, and of others."""
    rows, texts = _sampled(discovered, description)
    groups = []
    for inside in description.inside[:described]:
        own = [texts[at][:_LONGEST_SHOWN] for at in rows[inside][:_SHOWN_TO_MODEL].tolist()]
        rest = [texts[at][:_LONGEST_SHOWN] for at in rows[~inside][:_SHOWN_TO_MODEL].tolist()]
        groups.append((own, rest))
    return groups


def _of_corpus(discovered: Discovered, description: Description, described: int) -> list[str]:
    if discovered.sample is None:
        return []
    places, texts = _sampled(discovered, description)
    chosen = [texts[at] for at in places.tolist()]
    return candidate_phrases(chosen, members=description.inside[:described])


def _sampled(discovered: Discovered, description: Description) -> tuple[IntArray, list[str]]:
    """Return where the tested examples of the sample are in it, as `Description.inside` has them."""
    if discovered.sample is None:
        raise TypeError("no texts")
    rows, texts = discovered.sample.read()
    return np.searchsorted(rows, description.sampled), texts


def check_phrases(uri: str) -> None:
    """Raise an InputError where neither a list of phrases nor the file of an API is right."""
    if is_model(uri):
        read_phrases_api(uri)
    else:
        given_phrases(uri)


def given_phrases(uri: str) -> list[str]:
    """Return the phrases of a file, each once."""
    path = storage_path(uri, "--phrases")
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except FileNotFoundError as error:
        raise FileError(f"--phrases {uri}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(
            f"--phrases {uri}: cannot be read; write one phrase per line, as UTF-8"
        ) from error
    phrases = list(dict.fromkeys(filter(None, lines)))
    if not phrases:
        raise OptionError(f"--phrases {uri}: no phrases; write one per line")
    return phrases


def _shown(
    config: DiscoverConfig,
    discovered: Discovered,
    description: Description,
    slices: Sequence[Slice],
) -> list[tuple[ShownExample, ...]]:
    """Return the examples that show each described slice."""
    shift = _shift(config, description)
    chosen = [description.typical.shown(at, shift=shift) for at in range(len(slices))]
    rows = np.unique([one.row for own in chosen for one in own]).astype(np.int64)
    if not rows.size:
        return [() for _ in slices]
    columns = [name for name in (config.text, *config.features) if name]
    read = [*columns, *([config.example_id] if config.example_id else [])]
    table = read_rows(discovered.source, rows, read)
    place = {row: at for at, row in enumerate(rows.tolist())}
    return [
        tuple(
            ShownExample(
                role=one.role,
                id=table.column(config.example_id)[place[one.row]].as_py()
                if config.example_id
                else None,
                row=one.row,
                membership=float(expit(one.log_odds)),
                change=None if np.isnan(one.change) else one.change,
                display=_display(table, columns, place[one.row]),
            )
            for one in own
        )
        for own in chosen
    ]


def _display(table: pa.Table, columns: Sequence[str], at: int) -> dict[str, Any]:
    """Return what shows an example, as JSON has it."""
    shown: dict[str, Any] = {}
    for name in columns:
        value = _value(table.column(name), at)
        if isinstance(value, str) and len(value) > _LONGEST_SHOWN:
            value = value[: _LONGEST_SHOWN - 1] + "…"
        is_plain = isinstance(value, (str, int, float, bool)) and value == value  # noqa: PLR0124
        shown[name] = value if is_plain or value is None else str(value)
    return shown


def _value(column: pa.ChunkedArray, at: int) -> Any:
    """Return a value; of a float that is narrower than a double with its own digits."""
    if pa.types.is_floating(column.type) and column[at].is_valid:
        (value,) = json_values(column.slice(at, 1).combine_chunks())
        return value
    return python_values(column.slice(at, 1))[0]


def _shift(config: DiscoverConfig, description: Description) -> float:
    """Return the offset of D: the mean loss for one model."""
    if config.comparison == "baseline" or description.assessment is None:
        return 0.0
    return -float(description.assessment.mean[-1])


def _found(
    at: int,
    config: DiscoverConfig,
    description: Description,
    phrases: Sequence[tuple[Phrase, ...]],
    shown: Sequence[tuple[ShownExample, ...]],
    assessed: Sequence[Slice],
    jaccard: FloatArray,
    overall: str,
) -> Found:
    """Return what discovery knows of a slice."""
    facts: dict[str, Any] = {}
    own = description.assessment
    baseline = config.comparison == "baseline"
    if own is not None:
        mean = own.mean if baseline else own.difference
        if config.weight is None:
            facts["z"] = float(z_score(mean, own.variance, own.n)[at])
        if baseline:
            facts["improved"] = int(own.improved[at])
            facts["degraded"] = int(own.degraded[at])
            facts["tied"] = int(own.n[at]) - facts["improved"] - facts["degraded"]
    directions = {overall, assessed[at].changes[0].direction}
    facts["opposite_to_global"] = baseline and directions == {"improved", "degraded"}
    facts["overlaps"] = tuple(
        Overlap(slice_id=other.slice_id, jaccard=float(jaccard[at, number]))
        for number, other in enumerate(assessed)
        if number != at and jaccard[at, number] > 0
    )
    if at < config.slices:
        facts["phrases"] = phrases[at] if phrases else ()
        facts["examples"] = shown[at]
    return Found(**facts)


def _discovery(
    config: DiscoverConfig,
    prepared: EncodedDataset,
    discovered: Discovered,
    description: Description,
) -> Discovery:
    axes = discovered.model.clusters.axes
    own = discovered.embedding.encoder
    shaped = sum(discovered.files.shaping)
    return Discovery(
        encoder=config.used_encoder or "none",
        encoder_fingerprint=own.fingerprint if own is not None else f"column {config.embedding}",
        embedding_field=config.embedding,
        text_field=config.text,
        dimensions=discovered.files.dimensions,
        kept_dimensions=discovered.files.dimensions if axes is None else len(axes.variances),
        kept_variance=1.0
        if axes is None or axes.total_variance == 0
        else float(axes.variances.sum() / axes.total_variance),
        loss_weight=config.loss_weight,
        discovery_share=config.discovery_share if config.loss_weight else None,
        discovery_examples=shaped,
        evaluation_examples=prepared.rows,
        mixture_fingerprint=discovered.model.fingerprint,
        resolutions=tuple(_resolutions(discovered, description)),
        described=config.slices,
    )


def _resolutions(discovered: Discovered, description: Description) -> Iterator[Resolution]:
    for field, mixture in discovered.model.clusters.mixtures.items():
        history = discovered.fitted.likelihoods[field]
        facts: dict[str, Any] = {}
        if field in description.components:
            sums = description.components[field]
            coverage = of_partition(sums)
            facts["nonempty"] = int(np.count_nonzero(sums.n))
            facts["r2"] = None if np.isnan(coverage.r2) else float(coverage.r2)
            facts["r2_expected"] = float(coverage.expected)
        yield Resolution(
            field=field,
            components=mixture.components,
            iterations=len(history),
            converged=is_converged(history),
            mean_log_likelihood=float(history[-1]),
            **facts,
        )
