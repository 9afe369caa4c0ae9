"""The stored model of a discovery: the mixtures, the principal axes, the fitted encoder."""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.discovery.mixture import CategoricalHead, Mixture, NormalHead
from slicebeam.metrics.discovery.pca import Pca
from slicebeam.metrics.errors import FileError, InputError
from slicebeam.transforms.discovery.derive_columns import Clusters
from slicebeam.transforms.storage.storage import storage_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from slicebeam.metrics.discovery.mixture import LossHead
    from slicebeam.transforms.storage.storage import StoragePath

    Arrays = dict[str, NDArray[Any]]

MODEL_FILE = "mixture.npz"
_AXES, _ENCODER = "axes", "encoder"
# What reading raises where single bytes of a file are others.
_DAMAGE = (
    *(ValueError, KeyError, IndexError, TypeError, SyntaxError, OSError, EOFError),
    *(ArithmeticError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error),
)


@dataclass(frozen=True)
class DiscoveryModel:
    """What assigns new examples to discovered slices.

    ``clusters``: the mixtures, and the axes that they are fitted along. ``encoder``: arrays of the
    encoder fitted to texts; empty if there is none.
    """

    clusters: Clusters
    encoder: Mapping[str, NDArray[Any]]

    def to_arrays(self) -> Arrays:
        """Return all parameters by name, such as ``cluster@25/means``."""
        arrays: Arrays = {}
        axes = self.clusters.axes
        if axes is not None:
            arrays |= {
                f"{_AXES}/mean": axes.mean,
                f"{_AXES}/axes": axes.axes,
                f"{_AXES}/variances": axes.variances,
                f"{_AXES}/total_variance": np.array(axes.total_variance),
            }
        for field, mixture in self.clusters.mixtures.items():
            arrays |= {f"{field}/{name}": values for name, values in mixture_arrays(mixture)}
        return arrays | {f"{_ENCODER}/{name}": values for name, values in self.encoder.items()}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> DiscoveryModel:
        """Return what `to_arrays` gave."""
        parts: dict[str, Arrays] = {}
        for name, values in arrays.items():
            part, _, rest = name.partition("/")
            parts.setdefault(part, {})[rest] = values
        encoder = parts.pop(_ENCODER, {})
        own = parts.pop(_AXES, None)
        axes = None
        if own is not None:
            total = float(own["total_variance"])
            axes = Pca(own["mean"], own["axes"], own["variances"], total)
        # In the order of their resolution.
        order = sorted(parts, key=lambda field: int(field.partition("@")[2]))
        mixtures = {field: mixture_from(parts[field]) for field in order}
        return cls(Clusters(axes, mixtures), encoder)

    @property
    def fingerprint(self) -> str:
        """A hash of all parameters, independent of the file format."""
        digest = hashlib.sha256()
        for name, values in sorted(self.to_arrays().items()):
            header = f"{name} {values.dtype.str} {values.shape}".encode()
            digest.update(header + np.ascontiguousarray(values).tobytes())
        return f"sha256:{digest.hexdigest()}"

    def write(self, stream: IO[bytes]) -> None:
        """Write ``mixture.npz``."""
        np.savez_compressed(stream, **self.to_arrays())  # type: ignore[arg-type]

    @classmethod
    def read(cls, path: StoragePath, fingerprint: str) -> DiscoveryModel:
        """Read ``mixture.npz``, which must be the one that the document speaks of."""
        with storage_errors(path, "read"):
            if not path.is_file():
                raise FileError(
                    f"{path}: no such file; it belongs next to the ChangeList of a discovery"
                )
            content = path.read_bytes()
        try:
            # What is not an array would need a pickle, which is not loaded.
            with np.load(io.BytesIO(content), allow_pickle=False) as loaded:
                model = cls.from_arrays({name: loaded[name] for name in loaded.files})
        except _DAMAGE as error:
            raise InputError(
                f"{path} is damaged: its content has changed; run the discovery again"
            ) from error
        if model.fingerprint != fingerprint:
            raise InputError(
                f"{path} belongs to another run than the ChangeList next to it; keep the two together"
            )
        return model


def mixture_arrays(mixture: Mixture) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the parameters of a mixture by name."""
    yield "weights", mixture.weights
    yield "means", mixture.means
    yield "variances", mixture.variances
    yield "loss_weight", np.array(mixture.loss_weight)
    for number, head in enumerate(mixture.heads):
        if isinstance(head, CategoricalHead):
            yield f"shares{number}", head.shares
        else:
            yield f"loss_means{number}", head.means
            yield f"loss_variances{number}", head.variances
            yield f"loss_floor{number}", np.array(head.floor)


def mixture_from(arrays: Arrays) -> Mixture:
    """Return the mixture with these parameters."""
    heads: list[LossHead] = []
    for number in range(2):
        if f"shares{number}" in arrays:
            heads.append(CategoricalHead(arrays[f"shares{number}"]))
        elif f"loss_means{number}" in arrays:
            variances = arrays[f"loss_variances{number}"]
            floor = float(arrays[f"loss_floor{number}"])
            heads.append(NormalHead(arrays[f"loss_means{number}"], variances, floor))
    weight = float(arrays["loss_weight"])
    return Mixture(arrays["weights"], arrays["means"], arrays["variances"], tuple(heads), weight)
