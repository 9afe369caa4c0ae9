"""Runs discoveries for the tests, and the data that they are about."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.pipelines.config.common import validated
from slicebeam.pipelines.config.discover import DiscoverConfig
from slicebeam.pipelines.run.engine import Engine, runner_config
from slicebeam.pipelines.search.discover import run_discovery
from slicebeam.pipelines.show.terminal import Terminal
from tests.running import Found, read


@dataclass
class Discovered(Found):
    @cached_property
    def membership(self):
        return pq.read_table(self.folder / "membership.parquet").to_pandas()

    @cached_property
    def mixture(self):
        with np.load(self.folder / "mixture.npz") as loaded:
            return {name: loaded[name] for name in loaded.files}

    @property
    def resolutions(self):
        """What the document tells of each mixture, by its column."""
        return {one["field"]: one for one in self.document["discovery"]["resolutions"]}


def discover(output, *, resume=False, engine_seen=None, **options):
    """Run a discovery in this process, after ``engine_seen`` was called with its engine."""
    config = validated(DiscoverConfig, {"output": str(output), **options})
    with Engine(runner_config(config.runner_config, config.runner_option, config.beam)) as engine:
        if engine_seen is not None:
            engine_seen(engine)
        run_discovery(config, engine, Terminal(quiet=True), resume=resume)
    return read_discovery(output)


def read_discovery(folder):
    return Discovered(**vars(read(folder)))


def examples(seed, *, n=600, dimensions=6, groups=5, apart=1.6):
    """Return examples of overlapping groups; of group 0 the new model is better than the old, of 1 worse."""
    rng = np.random.default_rng(seed)
    of = rng.integers(groups, size=n)
    z = apart * rng.standard_normal((groups, dimensions))[of] + rng.standard_normal((n, dimensions))
    z = np.round((z + 0.5) * 64) / 64
    often = np.array([[0.65, 0.10], [0.05, 0.60], *[[0.2, 0.2]] * (groups - 2)])[of]
    old_wrong, new_wrong = (rng.random((n, 2)) < often).T
    label = rng.integers(3, size=n)
    old = (label + old_wrong * rng.integers(1, 3, size=n)) % 3
    new = (label + new_wrong * rng.integers(1, 3, size=n)) % 3
    names = np.array(["ant", "bee", "cat"])
    loss_old = np.round(rng.gamma(2, 0.2, n) + old_wrong, 6)
    loss_new = np.where(rng.random(n) < 0.1, loss_old, rng.gamma(2, 0.2, n) + new_wrong)
    source = np.where(rng.random(n) < 0.3 + 0.1 * of, "mail", "web")
    order = rng.permutation(n)
    return pa.table(
        {
            "id": pa.array([f"x{number}" for number in order]),
            "z": pa.array(list(z.astype(np.float64)), pa.list_(pa.float64())),
            "label": names[label],
            "old": names[old],
            "new": names[new],
            "loss_old": loss_old,
            "loss_new": np.round(loss_new, 6),
            "wrong_old": old_wrong.astype(np.float64),
            "wrong_new": new_wrong.astype(np.float64),
            "source": source,
            "length": rng.integers(1, 5, size=n),
            "author": order // 4,
            "weight": rng.choice([0.5, 1.0, 2.0], size=n),
        }
    )


def embeddings(table, column="z"):
    return np.array(table.column(column).to_pylist(), np.float64)


def written(path, table, **how):
    pq.write_table(table, path, **how)
    return str(path)
