"""The ids, texts and predicates of slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.randomness import splitmix64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.transforms.encode.predicates import Singleton


class SliceNames:
    """The identity, the text and the predicate of slices.

    Given slices that no predicate describes have the id of their document, and no predicate.
    """

    def __init__(self, prepared: EncodedDataset) -> None:
        self.lattice, given = prepared.lattice, prepared.given
        # What the digits of a key stand for: singletons, or the conditions of given slices.
        conditions: Sequence[Sequence[Singleton]]
        if given is None:
            conditions = [(one,) for domain in prepared.domains for one in domain.singletons]
            texts: Sequence[str] = [str(one) for (one,) in conditions]
            ids: list[str | None] = [None] * len(texts)
        else:
            conditions, texts = given.membership.predicates, given.texts
            ids = [one.slice_id for one in given.wanted.slices]
        # Of a conjunction the sum of its conditions' identities is hashed.
        hashes = [sum(one.identity() for one in some) % 2**64 for some in conditions]
        json = [", ".join(one.json_text() for one in some) for some in conditions]
        self._hashes = np.array([0, *hashes], np.uint64)
        self._texts = pa.array([None, *texts], pa.string())
        self._json = pa.array([None, *json], pa.string())
        self._ids = None if given is None else pa.array([None, *ids], pa.string())

    def ids(self, keys: Keys) -> pa.Array:
        """Return the ids [slices]: 16 hexadecimal digits from the singletons, in any order.

        Key 0, no slice, has none.
        """
        digits = self._numbers(keys).astype(">u8").tobytes().hex().encode("ascii")
        texts = np.frombuffer(digits, dtype="S16").astype(str)
        ids = pa.array(texts, pa.string(), mask=keys == 0)
        return ids if self._ids is None else pc.coalesce(self._ids.take(pa.array(keys)), ids)

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
        """Return the predicates [slices] as JSON texts; null where none describes the slice."""
        joined = self._joined(keys, self._json, ", ")
        texts = pc.binary_join_element_wise('{"all": [', joined, "]}", "")
        if self._ids is None:
            return texts
        has_id = self._ids.take(pa.array(keys)).is_valid()
        return pc.if_else(has_id, pa.scalar(None, pa.string()), texts)

    def _joined(self, keys: Keys, texts: pa.Array, separator: str) -> pa.Array:
        digits = self.lattice.digits(keys)
        columns = [texts.take(pa.array(digits[:, i])) for i in range(digits.shape[1])]
        return pc.binary_join_element_wise(*columns, separator, null_handling="skip")
