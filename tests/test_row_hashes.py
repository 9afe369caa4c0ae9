"""Slices with the same examples have the same sum of row hashes, others have not."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from slicebeam.metrics.row_hashes import RowHashSums
from tests.test_counting import CUTS, SEEDS, Table


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, cuts=CUTS)
def test_sums_tell_slices_apart(seed: int, cuts: list[int]) -> None:
    table = Table(seed, rows=12)
    members = {
        table.key(features, codes): frozenset(table.members(features, codes))
        for features in table.tuples()
        for codes in table.slices(features)
    }
    keys = np.random.default_rng(seed).permutation(np.array(list(members), np.int64))
    hashed = RowHashSums(keys, table.lattice)
    for block in table.blocks(cuts):
        hashed.add(block)
    assert sorted(hashed.keys.tolist()) == sorted(members)
    by_members: dict[frozenset[int], set[int]] = {}
    for key, total in zip(hashed.keys.tolist(), hashed.sums.tolist(), strict=True):
        by_members.setdefault(members[key], set()).add(total)
    assert all(len(sums) == 1 for sums in by_members.values())
    assert len(set.union(*by_members.values())) == len(by_members)
    assert by_members.get(frozenset(), {0}) == {0}
