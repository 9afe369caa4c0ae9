"""One search by a peer on prepared data, in the peers' own environment; started by ``peers.py``.

    python peer_search.py PEER FILE ROWS

Prints a JSON line: CPU and wall seconds of the search call alone, and how many slices it told.
Imports nothing of slicebeam, which is not installed where this runs.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    # A search, to be timed, and how many slices its result tells and, where known, it evaluated.
    Search = Callable[[], tuple[int, "int | None"]]

MEMORY = 16 << 30
SHARE, MOST, TOP = 0.01, 3, 10


def pysubgroup(
    algorithm: str, names: list[str], codes: NDArray[np.int16], wrong: NDArray[np.bool_]
) -> Search:
    """Return the search for the top slices by weighted relative accuracy, over bit sets.

    Quality and representation are those of the package's own example. A quality that favours
    smaller slices, such as StandardQF(0.5), has a bound that leaves out less and takes three times
    as long.
    """
    import pandas as pd
    import pysubgroup as ps

    data = pd.DataFrame({**dict(zip(names, codes, strict=True)), "wrong": wrong})
    task = ps.SubgroupDiscoveryTask(
        data,
        ps.BinaryTarget("wrong", True),
        [
            ps.EqualitySelector(name, int(code))
            for name in names
            for code in sorted(data[name].unique())
        ],
        result_set_size=TOP,
        depth=MOST,
        qf=ps.WRAccQF(),
        constraints=[ps.MinSupportConstraint(least(wrong.size))],
    )
    chosen = getattr(ps, algorithm)()
    return lambda: (len(chosen.execute(task).results), None)


def divexplorer(names: list[str], codes: NDArray[np.int16], wrong: NDArray[np.bool_]) -> Search:
    """Return the search for the divergence of all frequent slices by FP-growth."""
    import divexplorer.divexplorer as module
    import pandas as pd

    # The public call has no bound of length, the function it calls has: without it the search
    # would tell conjunctions of up to fourteen predicates.
    module.fpgrowth_cm = partial(module.fpgrowth_cm, max_len=MOST)
    data = pd.DataFrame({**dict(zip(names, codes, strict=True)), "wrong": wrong.astype(int)})

    def search() -> tuple[int, int]:
        explorer = module.DivergenceExplorer(data)
        found = explorer.get_pattern_divergence(min_support=SHARE, boolean_outcomes=["wrong"])
        # The row of all examples is not a slice.
        return len(found) - 1, len(found) - 1

    return search


def sliceline(names: list[str], codes: NDArray[np.int16], wrong: NDArray[np.bool_]) -> Search:
    """Return the search for the top slices by SliceLine's score."""
    from sliceline.slicefinder import Slicefinder

    rows, errors = codes.T.copy(), wrong.astype(float)
    finder = Slicefinder(alpha=0.95, k=TOP, max_l=MOST, min_sup=least(wrong.size), verbose=True)
    evaluated: list[int] = []

    class Counts(logging.Handler):
        """Adds up what the finder logs of a level, the only place where it says so."""

        def emit(self, record: logging.LogRecord) -> None:
            _, found, counts = record.getMessage().partition("valid slices after eval: ")
            if found:
                evaluated.append(int(counts.split("/")[1]))

    logger = logging.getLogger("sliceline.slicefinder")
    logger.addHandler(Counts())

    def search() -> tuple[int, int]:
        finder.fit(rows, errors)
        singletons = sum(int(code.max()) + 1 for code in codes)
        return len(finder.top_slices_), singletons + sum(evaluated)

    return search


PEERS = {
    "pysubgroup-apriori": partial(pysubgroup, "Apriori"),
    "pysubgroup-dfs": partial(pysubgroup, "DFS"),
    "divexplorer": divexplorer,
    "sliceline": sliceline,
}


def least(rows: int) -> int:
    """Return the smallest slice that everyone is asked for."""
    return -int(-rows * SHARE // 1)


def main(peer: str, file: str, rows: str) -> None:
    """Search the first rows of a file and print what it took."""
    import numpy as np

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    told: dict[str, object] = {}
    try:
        with np.load(file) as held:
            names = held["names"].tolist()
            codes = np.ascontiguousarray(held["codes"][:, : int(rows)])
            wrong = held["wrong"][: int(rows)]
        search = PEERS[peer](names, codes, wrong)
        wall, cpu = time.monotonic(), time.process_time()
        slices, evaluated = search()
        told["cpu_search"] = time.process_time() - cpu
        told["wall_search"] = time.monotonic() - wall
        told |= {"slices": slices, "evaluated": evaluated}
    except MemoryError:
        told["failed"] = f"MemoryError at {MEMORY >> 30} GiB"
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
