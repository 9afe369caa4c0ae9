"""Where the groups of a discovery lie to one another: their centres along the two axes that tell most apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.discovery.known import PublishedDiscovery

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.discovery.mixture import Mixture
    from slicebeam.pipelines.changelist.document import ChangeList


def group_maps(uri: str, document: ChangeList) -> list[dict[str, Any]] | None:
    """Return a map of each resolution as JSON values; None where the mixtures are not beside the document."""
    if not isinstance(document, SearchChangeList) or document.discovery is None:
        return []
    try:
        mixtures = PublishedDiscovery(uri, document).clusters.mixtures
    except InputError:
        return None
    kept = document.discovery.kept_variance
    maps = []
    for field, mixture in mixtures.items():
        places, shown = centres(mixture)
        maps.append(
            {
                "field": field,
                "shown": shown * kept,
                "places": [[round(float(one), 6) for one in place] for place in places],
            }
        )
    return maps


def centres(mixture: Mixture) -> tuple[NDArray[np.float64], float]:
    """Return where the components' means lie, and the share of the variance that these axes hold.

    The axes are the first two principal components of the means, each with its component's weight. The
    variance is that of the mixture: within its components, and between their means.

    Returns float64 [components, 2], and the share.
    """
    weights = mixture.weights / mixture.weights.sum()
    apart = mixture.means - weights @ mixture.means
    _, singular, axes = np.linalg.svd(np.sqrt(weights)[:, None] * apart, full_matrices=False)
    # An axis may point either way: it is turned so that its largest part is positive.
    axes = axes[:2] * np.sign(np.take_along_axis(axes[:2], np.abs(axes[:2]).argmax(1)[:, None], 1))
    places = apart @ axes.T
    if places.shape[1] < 2:
        places = np.column_stack([places, np.zeros(len(places))])
    total = float((weights @ (mixture.variances + apart**2)).sum())
    return places, float((singular[:2] ** 2).sum()) / total if total else 0.0
