"""The ids, texts and predicates of slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.randomness import splitmix64

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.prepare.given_slices import GivenSlices
    from slicebeam.transforms.encode.domains import FeatureDomain


class SliceNames:
    """The identity, the text and the predicate of slices."""

    def __init__(self, lattice: Lattice, domains: tuple[FeatureDomain, ...]) -> None:
        self.lattice = lattice
        self.singletons = [single for domain in domains for single in domain.singletons]
        self._hashes = np.array([0, *(s.identity() for s in self.singletons)], np.uint64)
        self._texts = pa.array([None, *(str(s) for s in self.singletons)], pa.string())
        self._json = pa.array([None, *(s.json_text() for s in self.singletons)], pa.string())

    def ids(self, keys: Keys) -> pa.Array:
        """Return the ids [slices]: 16 hexadecimal digits from the singletons, in any order.

        Key 0, no slice, has none.
        """
        digits = self._numbers(keys).astype(">u8").tobytes().hex().encode("ascii")
        texts = np.frombuffer(digits, dtype="S16").astype(str)
        return pa.array(texts, pa.string(), mask=keys == 0)

    def has_id(self, keys: Keys, slice_id: str) -> NDArray[np.bool_]:
        """Return which slices [slices] have an id, given as its 16 hexadecimal digits."""
        found: NDArray[np.bool_] = self._numbers(keys) == np.uint64(int(slice_id, 16))
        return found

    def _numbers(self, keys: Keys) -> NDArray[np.uint64]:
        sums = self._hashes[self.lattice.digits(keys)].sum(axis=1, dtype=np.uint64)
        return splitmix64(sums)

    def texts(self, keys: Keys) -> pa.Array:
        """Return the predicates [slices] as a reader would say them."""
        return self._joined(keys, self._texts, " & ")

    def predicates(self, keys: Keys) -> pa.Array:
        """Return the predicates [slices] as JSON texts."""
        joined = self._joined(keys, self._json, ", ")
        return pc.binary_join_element_wise('{"all": [', joined, "]}", "")

    def _joined(self, keys: Keys, texts: pa.Array, separator: str) -> pa.Array:
        digits = self.lattice.digits(keys)
        columns = [texts.take(pa.array(digits[:, i])) for i in range(digits.shape[1])]
        return pc.binary_join_element_wise(*columns, separator, null_handling="skip")


class GivenNames(SliceNames):
    """The names of given slices, as a search has them, or of their document where no predicate describes them."""

    def __init__(self, lattice: Lattice, given: GivenSlices) -> None:
        super().__init__(lattice, ())
        slices, wanted = given.membership.predicates, given.wanted.slices
        # Of a conjunction the sum of its conditions' identities is hashed.
        sums = [sum(one.identity() for one in conditions) % 2**64 for conditions in slices]
        json = [", ".join(one.json_text() for one in conditions) for conditions in slices]
        self._hashes = np.array([0, *sums], np.uint64)
        self._texts = pa.array([None, *given.texts], pa.string())
        self._json = pa.array([None, *json], pa.string())
        self._own = pa.array([None, *(one.slice_id for one in wanted)], pa.string())

    def ids(self, keys: Keys) -> pa.Array:
        """See `SliceNames.ids`."""
        return pc.coalesce(self._own.take(pa.array(keys)), super().ids(keys))

    def predicates(self, keys: Keys) -> pa.Array:
        """See `SliceNames.predicates`; null where no predicate describes the slice."""
        is_own = self._own.take(pa.array(keys)).is_valid()
        return pc.if_else(is_own, pa.scalar(None, pa.string()), super().predicates(keys))


def slice_names(prepared: EncodedDataset) -> SliceNames:
    """Return the names of the slices of a run."""
    if prepared.given is not None:
        return GivenNames(prepared.lattice, prepared.given)
    return SliceNames(prepared.lattice, prepared.domains)
