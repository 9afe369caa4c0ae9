"""``--parity``: how far the groups of a column are apart, from the counts of the search."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.measures.parity import LEAST_EXAMPLES, largest_gap, shares
from slicebeam.pipelines.changelist.parts import CONFIDENCE, ParityGap, ParityGroup, estimate
from slicebeam.pipelines.search.iterations import looked_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.search.results import Results


def parity_gaps(results: Results) -> tuple[ParityGap, ...]:
    """Return the largest gaps of each column of ``--parity``, in each measure and of each model."""
    config, prepared = results.config, results.prepared
    cells = prepared.space.cells
    # Slices that are too small may be in no part.
    counts = looked_up(
        results.searched.parts,
        prepared.lattice.singleton_keys(),
        lambda table: table.stacked("c", range(cells)),
        cells,
    )
    least = max(LEAST_EXAMPLES, config.used_min_slice_size)
    columns: tuple[str, ...] = getattr(config, "parity", ())
    return tuple(gap for name in columns for gap in _gaps_of(name, prepared, counts, least))


def _gaps_of(
    name: str, prepared: EncodedDataset, counts: IntArray, least: int
) -> Iterator[ParityGap]:
    feature = next(at for at, one in enumerate(prepared.domains) if one.name == name)
    domain, space = prepared.domains[feature], prepared.space
    start = int(prepared.lattice.offsets[feature])
    texts = [str(singleton) for singleton in domain.singletons]
    positive = space.holds("positive")
    for old in (True, False) if space.comparison == "baseline" else (False,):
        cells = counts[start : start + domain.size]
        measured = shares(cells, positive, space.holds("predicted", old=old))
        for measure, (marked, sizes) in measured.items():
            compared = np.flatnonzero(sizes >= least)
            gap = ParityGap(
                column=name,
                kind="bins" if domain.kind == "numeric" else "values",
                measure=measure,
                model="before" if old else "after",
                groups=compared.size,
                left_out=tuple(text for text, n in zip(texts, sizes, strict=True) if n < least),
                least=least,
            )
            if compared.size > 1:
                found = largest_gap(marked[compared], sizes[compared], CONFIDENCE)
                ends = {
                    end: ParityGroup(name=texts[at], n=sizes[at], value=marked[at] / sizes[at])
                    for end, at in (
                        ("lowest", compared[found.lowest]),
                        ("highest", compared[found.highest]),
                    )
                }
                interval = estimate(found.gap, found.low, found.high)
                gap = gap.model_copy(update={**ends, "gap": interval, "p_value": found.p})
            yield gap
