"""Makes data with planted slices: embeddings, and the losses of two models.

    python examples/make_planted_slices.py planted.parquet

5,000 examples lie in 40 clusters of a space of 64 dimensions. In five clusters of 100 the new model
is wrong on half of the examples (``planted`` 0 to 4), on all others on a tenth, as the old model is
everywhere. Needs pyarrow and numpy, which slicebeam needs too.
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

EXAMPLES, DIMENSIONS, CLUSTERS, PLANTED, PLANTED_SIZE = 5000, 64, 40, 5, 100
USUAL_ERROR, PLANTED_ERROR = 0.1, 0.5
# A cluster's spread is 1 in each dimension.
SPREAD_OF_CENTERS = 1.5


def main(path: str) -> None:
    """Draw the examples, and write them as Parquet."""
    random = np.random.default_rng(0)
    others = random.integers(PLANTED, CLUSTERS, EXAMPLES - PLANTED * PLANTED_SIZE)
    cluster = np.concatenate([np.repeat(np.arange(PLANTED), PLANTED_SIZE), others])
    cluster = random.permutation(cluster)
    centers = random.normal(0, SPREAD_OF_CENTERS, (CLUSTERS, DIMENSIONS))
    embeddings = centers[cluster] + random.normal(size=(EXAMPLES, DIMENSIONS))
    error = np.where(cluster < PLANTED, PLANTED_ERROR, USUAL_ERROR)
    vectors = pa.FixedSizeListArray.from_arrays(embeddings.astype(np.float32).ravel(), DIMENSIONS)
    table = pa.table(
        {
            "id": np.arange(EXAMPLES),
            "embedding": vectors,
            "loss_old": (random.random(EXAMPLES) < USUAL_ERROR).astype(np.int8),
            "loss_new": (random.random(EXAMPLES) < error).astype(np.int8),
            "planted": np.where(cluster < PLANTED, cluster, -1),
        }
    )
    pq.write_table(table, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
