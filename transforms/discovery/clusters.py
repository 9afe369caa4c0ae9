"""Components of mixtures as columns: ``cluster@25`` of an example is the component it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from scipy.special import expit

from slicebeam.metrics.discovery import pca
from slicebeam.metrics.discovery.mixture import log_responsibilities, most_likely
from slicebeam.transforms.encode.domains import FeatureDomain
from slicebeam.transforms.encode.predicates import Singleton

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray
    from slicebeam.metrics.discovery.mixture import Mixture
    from slicebeam.metrics.discovery.pca import Pca


def one_thread() -> AbstractContextManager[Any]:
    """Return a context in which matrix products take one thread of this process.

    On small blocks a second thread saves a third of the time where a processor is free, and takes ten times
    as long where none is. And sums are the same to the byte, however many processors there are.
    """
    limits: AbstractContextManager[Any] = _controller().limit(limits=1)
    return limits


@cache
def _controller() -> Any:
    # Looking for the libraries takes longer than an iteration on little data.
    import scipy.linalg  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


_PREFIX = "cluster@"


def cluster_field(components: int) -> str:
    """Return the name of the column of components of a mixture of this size.

    >>> cluster_field(25)
    'cluster@25'
    """
    return f"{_PREFIX}{components}"


def is_cluster_field(name: str) -> bool:
    """Return whether a column is one of components.

    >>> is_cluster_field("cluster@25"), is_cluster_field("cluster")
    (True, False)
    """
    return name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isdecimal()


class Assigned(NamedTuple):
    """Which component each example belongs to (of several the first), and its share r of the example.

    Members are ranked by log(r/(1 − r)), which is finite: most have r = 1.
    """

    component: NDArray[np.int32]
    responsibility: NDArray[np.float32]
    log_odds: FloatArray

    def column(self, components: int) -> pa.DictionaryArray:
        """Return the components as text, since they are names and no numbers."""
        names = pa.array([str(number) for number in range(components)], pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(self.component), names)


@dataclass(frozen=True)
class Clusters:
    """Mixtures of several resolutions, by their column, and the principal axes that they are fitted along.

    Without axes they are of the embeddings themselves.
    """

    axes: Pca | None
    mixtures: Mapping[str, Mixture]

    @property
    def dimensions(self) -> int:
        """How many an embedding has."""
        if self.axes is not None:
            return int(self.axes.mean.size)
        return next(iter(self.mixtures.values())).dimensions

    @cached_property
    def domains(self) -> tuple[FeatureDomain, ...]:
        """The columns as features, of which each component is a predicate."""
        return tuple(
            FeatureDomain(
                field,
                "categorical",
                "string",
                tuple(Singleton(field, "==", str(j)) for j in range(mixture.components)),
            )
            for field, mixture in self.mixtures.items()
        )

    def assigned(self, z: NDArray[np.float32], first_row: int = 0) -> dict[str, Assigned]:
        """Return which component of each mixture examples (embeddings [rows, D]) belong to."""
        x = z if self.axes is None else pca.projected(z, self.axes, first_row)
        found = {}
        for field, mixture in self.mixtures.items():
            log_r, _ = log_responsibilities(mixture, x, None, first_row)
            component, odds = most_likely(log_r)
            found[field] = Assigned(
                component.astype(np.int32), expit(odds).astype(np.float32), odds
            )
        return found
