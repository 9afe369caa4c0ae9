"""What discovery has to find, and what it must not: the bars, on data of our own making."""

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from slicebeam.pipelines.api import discover
from tests.discovered import COLUMNS, planted_table

pytestmark = pytest.mark.slow
# As large as the published benchmark's sets: 10 planted slices of 100 points, 10 decoys.
LARGE = {"rows": 5000, "dimensions": 64, "planted": 10, "size": 100, "background": 20}
LARGE |= {"decoys": 10, "apart": 1.5}


def precision_at_ten(table, loss_weight):
    """Mean over planted slices of the best share among shown examples; planted share of each slice."""
    planted = table["planted"].to_numpy()
    how = {"components": 50, "loss_weight": loss_weight}
    document = discover(table.drop_columns(["planted"]), **COLUMNS, **how).changelist
    shown = [
        np.array([e.row for e in one.found.examples if e.role == "representative"])
        for one in document.slices[:10]
        if one.found is not None
    ]
    best = [max(np.mean(planted[rows] == k) for rows in shown) for k in range(10)]
    return float(np.mean(best)), [float(np.mean(planted[rows] >= 0)) for rows in shown]


@pytest.mark.parametrize(("loss_weight", "least"), [(0.0, 0.92), (1.0, 0.85)])
def test_planted_slices_are_found(loss_weight, least):
    found = [precision_at_ten(planted_table(**LARGE, seed=seed), loss_weight) for seed in range(4)]
    assert np.mean([precision for precision, _ in found]) >= least
    shares = np.array([share for _, some in found for share in some])
    # One in twenty of what is significant may be false; of so few that is more than two by chance.
    assert np.count_nonzero(shares < 0.02) <= stats.binom.ppf(0.995, shares.size, 0.05)


@pytest.mark.parametrize("loss_weight", [0.0, 10.0])
def test_nothing_is_found_where_losses_are_permuted(loss_weight):
    """Of 30 data sets level-wise correction at 0.05 expects 1.5, and hardly ever 6."""
    false = 0
    for seed in range(30):
        table = planted_table(1500, dimensions=12, planted=6, size=60, background=8, seed=seed)
        order = pa.array(np.random.default_rng(seed).permutation(table.num_rows))
        for name in ("loss_old", "loss_new"):
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, table[name].take(order))
        how = {"components": 20, "loss_weight": loss_weight, "slices": 0}
        report = discover(table.drop_columns(["planted"]), **COLUMNS, **how)
        false += bool(report.changelist.testing.significant)
    assert false <= 5
