"""Parts of patterns that candidates hold, against counts of rows."""

import numpy as np
import pytest

from slicebeam.metrics.findings.inside import PartTables
from slicebeam.metrics.measures.target_sums import Patterns
from tests.encoded_table import EncodedTable
from tests.metrics.findings.test_choice import planted, wrong


def test_parts_of_patterns_equal_counts_of_rows():
    rng, codes, shift = planted(1)
    errors = EncodedTable(codes, wrong(rng, shift), "rate")
    rng, chosen = np.random.default_rng(2), [3, 200, 70, 11]
    weight = rng.integers(1, 5, errors.rows)
    for table in (errors, EncodedTable(errors.codes, errors.target, "rate", weight=weight)):
        positions = np.arange(table.keys.size)
        patterns = Patterns(table.everything, table.layout, np.asarray)
        count = table.counting()
        tables = PartTables(table.sizes, table.layout, lambda at: count(at, positions))  # noqa: B023
        for at in chosen:
            tables.split(patterns.add(tables.count(at, patterns)))
        masks = count.masks
        assert sorted(patterns.masks.tolist()) == sorted(set(masks.tolist()))
        some = np.array([0, 5, 200, 399])
        parts = tables.parts(some)
        by = rng.random(patterns.masks.size)
        weighed, within = tables.weigh(by, 2), tables.within(positions, by, patterns)
        for row, at in enumerate(some):
            own, w = table.members(at), table.row_sizes[:, -1]
            slow = [[(table.row_sizes[own & (masks == m)]).sum(axis=0)] for m in patterns.masks]
            np.testing.assert_array_equal(parts[row], np.concatenate(slow))
            inside = np.array([w[own & (masks == m)].sum() for m in patterns.masks])
            whole = np.array([w[masks == m].sum() for m in patterns.masks])
            assert weighed[at] == pytest.approx(inside @ by)
            assert within[at] == pytest.approx((inside * (1 - inside / whole)) @ by)
