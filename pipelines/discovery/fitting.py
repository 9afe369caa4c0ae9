"""Fits mixtures to embeddings: the driver loop of EM, with one combine per iteration."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.discovery import pca
from slicebeam.metrics.discovery.mixture import MOST_ITERATIONS, initial, is_converged, updated
from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.pipelines.discovery.model import mixture_arrays, mixture_from
from slicebeam.pipelines.prepare.encoded_dataset import pass_over
from slicebeam.pipelines.run.stage import Stage
from slicebeam.transforms.discovery.derive_columns import Clusters, cluster_field
from slicebeam.transforms.discovery.embeddings import EmbeddedChunk
from slicebeam.transforms.discovery.mixture_passes import (
    Project,
    SumForMixtures,
    SumForPca,
    shaping,
)
from slicebeam.transforms.encode.passes import RowGroup, one_thread, read_found, write_found
from slicebeam.transforms.storage.storage import holds, matching

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.discovery.mixture import Mixture
    from slicebeam.metrics.discovery.pca import Pca
    from slicebeam.pipelines.config.discover import DiscoverConfig
    from slicebeam.pipelines.run.stage import Workspace
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.encode.passes import Found
    from slicebeam.transforms.storage.storage import StoragePath

# Rows that are summed together, whatever the number of workers and the size of files: what is added
# up then depends neither on the engine nor on the files.
_GROUP_ROWS = 1 << 17
# CPU seconds, measured: of a product of an embedding and a matrix, per number in it; of an iteration,
# per number and component.
_SECONDS_PER_PRODUCT = 1.2e-10
_SECONDS_PER_TERM = 2.5e-10
# How often the state is written, in seconds, where iterations take less.
_SAVED_EVERY = 2.0


@dataclass(frozen=True)
class EmbeddedFiles:
    """The files that hold the embeddings of all examples, in their order.

    ``shaping``: those of each that shape the mixtures. ``is_zero_one``: whether losses are of a
    right or a wrong class.
    """

    paths: tuple[StoragePath, ...]
    rows: tuple[int, ...]
    shaping: tuple[int, ...]
    dimensions: int
    is_zero_one: bool

    def within(self, folder: StoragePath, dimensions: int) -> EmbeddedFiles:
        """Return the files of the same names in another folder."""
        paths = tuple(folder / path.name for path in self.paths)
        return EmbeddedFiles(paths, self.rows, self.shaping, dimensions, self.is_zero_one)

    def groups(self) -> list[RowGroup]:
        """Return the rows in groups of equal size, which may begin and end within a file."""
        ends = np.cumsum(self.rows, dtype=np.int64)
        begins = ends - self.rows
        found = []
        for start in range(0, int(ends[-1]) if ends.size else 0, _GROUP_ROWS):
            stop = start + _GROUP_ROWS
            own = np.flatnonzero((begins < stop) & (ends > start))
            first, last = begins[own], ends[own]
            found.append(
                RowGroup(
                    tuple(str(self.paths[at]) for at in own),
                    tuple((np.maximum(first, start) - first).tolist()),
                    tuple((np.minimum(last, stop) - first).tolist()),
                )
            )
        return found

    def groups_of_files(self) -> list[list[str]]:
        """Return the files in groups of about as many rows."""
        groups: list[list[str]] = []
        rows = 0
        for path, own in zip(self.paths, self.rows, strict=True):
            if not groups or rows + own > _GROUP_ROWS:
                groups.append([])
                rows = 0
            groups[-1].append(str(path))
            rows += own
        return groups


@dataclass
class _FittingState:
    """The progress of EM, by the names of the mixtures' columns."""

    mixtures: dict[str, Mixture]
    likelihoods: dict[str, list[float]] = field(default_factory=dict)

    def open(self) -> list[str]:
        """Return the mixtures that need another iteration."""
        return [
            name
            for name, history in self.likelihoods.items()
            if len(history) < MOST_ITERATIONS and not is_converged(history)
        ]

    def to_found(self) -> Found:
        """Return all of it as arrays of one dimension."""
        found: Found = {}
        for name, mixture in self.mixtures.items():
            for part, values in mixture_arrays(mixture):
                found[f"{name}/{part}"] = np.atleast_1d(values).ravel()
            found[f"{name}/likelihoods"] = np.array(self.likelihoods[name], np.float64)
        return found

    @classmethod
    def from_found(cls, found: Found) -> _FittingState:
        """Return what `to_found` gave."""
        parts: dict[str, dict[str, NDArray[Any]]] = {}
        for key, values in found.items():
            name, _, part = key.partition("/")
            parts.setdefault(name, {})[part] = values
        mixtures, likelihoods = {}, {}
        for name, arrays in parts.items():
            likelihoods[name] = arrays.pop("likelihoods").tolist()
            K = arrays["weights"].size
            shaped = {
                part: values.reshape(K, -1)
                if part in ("means", "variances") or part.startswith("shares")
                else values[0]
                if part == "loss_weight" or part.startswith("loss_floor")
                else values
                for part, values in arrays.items()
            }
            mixtures[name] = mixture_from(shaped)
        return cls(mixtures, likelihoods)


@dataclass(frozen=True)
class Fitted:
    """Mixtures as EM left them.

    ``likelihoods``: by column: the mean log likelihood before each iteration, in nats.
    """

    clusters: Clusters
    likelihoods: Mapping[str, Sequence[float]]


def fit_mixtures(
    config: DiscoverConfig, files: EmbeddedFiles, samples: StoragePath, run: Workspace
) -> Fitted:
    """Fit the mixtures of all resolutions."""
    over = partial(pass_over, run=run)
    axes = None
    if files.dimensions > config.dimensions:
        run.show(Stage(f"finding {config.dimensions} principal components"))
        axes = _axes(config, files, over)
        files = _projected(files, axes, run.work, over)
    state = _read_state(run.work)
    if state is None:
        run.show(Stage("finding initial clusters"))
        with one_thread():
            state = _started(config, files, samples, axes)
        _write_state(run.work, state)
    iterations = [0]
    most = max(map(len, state.likelihoods.values()))
    iterations[0] = most
    run.show(Stage("fitting the mixtures", lambda: iterations[0], "iterations", MOST_ITERATIONS))
    saved = time.monotonic()
    rows, groups = sum(files.shaping), files.groups()
    while True:
        names = state.open()
        if not names:
            break
        step = SumForMixtures(tuple(state.mixtures[name] for name in names))
        terms = sum(mixture.components * mixture.dimensions for mixture in step.mixtures)
        number = max(len(state.likelihoods[name]) for name in names)
        seconds = rows * terms * _SECONDS_PER_TERM
        parts = over(step, groups, f"em-{number}", seconds=seconds)
        for name, sums in zip(names, step.total(parts), strict=True):
            state.likelihoods[name].append(sums.mean_log_likelihood)
            state.mixtures[name] = updated(sums)
        iterations[0] += 1
        if time.monotonic() - saved > _SAVED_EVERY or not state.open():
            _write_state(run.work, state)
            saved = time.monotonic()
    return Fitted(Clusters(axes, state.mixtures), state.likelihoods)


def _axes(config: DiscoverConfig, files: EmbeddedFiles, over: Callable[..., list[Found]]) -> Pca:
    D = files.dimensions
    summing = SumForPca(D)
    seconds = sum(files.shaping) * D * D * _SECONDS_PER_PRODUCT
    parts = over(summing, files.groups(), "pca", seconds=seconds)
    total = summing.total(parts)
    if total.n == 0:
        raise InputError("no example is left for fitting the mixtures; raise --discovery-share")
    return pca.components(total, config.dimensions)


def _projected(
    files: EmbeddedFiles, axes: Pca, work: WorkFolder, over: Callable[..., list[Found]]
) -> EmbeddedFiles:
    kept = axes.axes.shape[0]
    folder = work.folder("projected")
    projected = files.within(folder, kept)
    if work.done("projected") is None:
        seconds = sum(files.rows) * files.dimensions * kept * _SECONDS_PER_PRODUCT
        over(
            Project(axes, folder),
            files.groups_of_files(),
            "projecting",
            seconds=seconds,
            has_written=lambda: holds(folder, (path.name for path in projected.paths)),
        )
        work.finish("projected", {})
    return projected


def _started(
    config: DiscoverConfig, files: EmbeddedFiles, samples: StoragePath, axes: Pca | None
) -> _FittingState:
    """Return the mixtures that EM starts from, by k-means on a sample."""
    pieces = [shaping(EmbeddedChunk(path)) for path in matching(samples, "*.arrow")]
    pieces = [piece for piece in pieces if len(piece[0])]
    if not pieces:
        raise InputError(
            "no example is left for fitting the mixtures; raise --discovery-share, or give more data"
        )
    z = np.concatenate([own for own, _ in pieces])
    losses = [np.concatenate(column) for column in zip(*(own for _, own in pieces), strict=True)]
    if axes is not None:
        z = pca.projected(z, axes)
    most = max(config.components)
    if len(z) < most:
        raise OptionError(
            f"--components {most} cannot be initialised from {len(z):,} examples; give fewer "
            "components or more data"
        )
    mixtures = {
        cluster_field(components): initial(
            z,
            losses,
            components=components,
            seed=config.seed,
            classes=[2 if files.is_zero_one else None] * len(losses),
            loss_weight=config.loss_weight,
        )
        for components in config.components
    }
    return _FittingState(mixtures, {name: [] for name in mixtures})


def _write_state(work: WorkFolder, state: _FittingState) -> None:
    work.check()
    write_found(work.folder("mixtures") / "state.arrow", state.to_found())


def _read_state(work: WorkFolder) -> _FittingState | None:
    path = work.folder("mixtures") / "state.arrow"
    return _FittingState.from_found(read_found(path)) if path.is_file() else None
