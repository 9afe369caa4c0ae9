"""``slicebeam discover``: slices of unstructured data, found by their embeddings."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

import numpy as np

from slicebeam.metrics.discovery.change import z_score
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric
from slicebeam.pipelines.discovery.description import with_discovery
from slicebeam.pipelines.discovery.discovered import PreparedDiscovery
from slicebeam.pipelines.discovery.membership import MEMBERSHIP_FILE, write_membership
from slicebeam.pipelines.discovery.model import MODEL_FILE
from slicebeam.pipelines.discovery.preparation import prepare_discovery
from slicebeam.pipelines.search.results import MetricResult, Results, said_by
from slicebeam.pipelines.search.search import HowToRun, Steps, run_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.config.discover import DiscoverConfig
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.open_run import Published
    from slicebeam.pipelines.search.iterations import SearchObserver


def run_discovery(
    config: DiscoverConfig, engine: Engine, observer: SearchObserver, **how: Unpack[HowToRun]
) -> Published:
    """Discover slices and publish what was found."""
    names = MODEL_FILE, MEMBERSHIP_FILE
    steps = Steps(prepare_discovery, most_changed_first, names, further)
    return run_steps(config, steps, engine, observer, **how)


def further(
    config: DiscoverConfig,
    results: Results,
    changelist: SearchChangeList,
    streams: Sequence[IO[bytes]],
) -> SearchChangeList:
    """Write the model and the membership, and return the document with both."""
    prepared = results.prepared
    if not isinstance(prepared, PreparedDiscovery):
        raise TypeError("a discovery that discovered nothing")
    discovered = prepared.discovered
    model, membership = streams
    discovered.model.write(model)
    clusters = discovered.model.clusters
    write_membership(membership, discovered.beside, clusters, is_split=config.loss_weight > 0)
    return with_discovery(config, prepared, changelist, prepared.run)


def most_changed_first(results: Results, measured: MetricResult) -> IntArray:
    """Return the slices that say more, first those of the largest z: |mean D|/sqrt((variance of D + .05)/n)."""
    chosen = said_by(results, measured)
    n = results.sizes[chosen]
    variance = metric(measured.name).change_variance(
        Slices(results.sums[chosen], results.prepared.space)
    )
    if variance is None:
        # Of an interval of 95 %.
        variance = np.square((measured.ci_high[chosen] - measured.ci_low[chosen]) / 3.92) * n
    z = z_score(measured.delta[chosen], np.nan_to_num(variance), n)
    return chosen[np.lexsort((results.keys[chosen], results.levels[chosen], -z))]
