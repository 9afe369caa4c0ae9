"""A wide table with one conjunction of three predicates that is worse than all around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Planted:
    """The columns, and the planted conjunction as (field, op, value) with its number of rows."""

    columns: dict[str, Any]
    conditions: frozenset[tuple[str, str, str]]
    n: int

    def place(self, document):
        for one in document["slices"]:
            terms = one["definition"]["predicate"]["all"]
            found = {(term["field"], term["op"], term.get("value")) for term in terms}
            if self.conditions == found:
                ranks = {finding["slice_id"]: finding["rank"] for finding in document["findings"]}
                return ranks.get(one["slice_id"])
        return None


def planted_triple(seed, rows, features, *, least=480, most=500, worse_values=0):
    """Return a table with a triple of ``least`` to ``most`` rows, half of which are wrong."""
    rng, numeric = np.random.default_rng(seed), features // 3
    columns = {f"x{i}": rng.normal(size=rows).astype(np.float32) for i in range(numeric)}
    codes = []
    for i in range(features - numeric):
        values = int(rng.integers(4, 13))
        share = rng.dirichlet(np.full(values, 8.0))
        codes.append(rng.choice(values, rows, p=share).astype(np.int8))
        columns[f"c{i}"] = np.array([f"v{code}" for code in range(values)])[codes[-1]]
    while True:
        chosen = rng.choice(len(codes), 3, replace=False).tolist()
        row, inside = int(rng.integers(rows)), np.ones(rows, bool)
        for feature in chosen:
            inside &= codes[feature] == codes[feature][row]
        n = int(inside.sum())
        if least <= n <= most:
            break
    columns["label"] = rng.integers(0, 2, rows).astype(np.int8)
    worse = np.zeros(rows, bool)
    for feature in [f for f in range(len(codes)) if f not in chosen][:worse_values]:
        worse |= codes[feature] == 0
    wrong = rng.random(rows) < np.where(inside, 0.5, np.where(worse, 0.2, 0.1))
    columns["prediction"] = np.where(wrong, 1 - columns["label"], columns["label"])
    return Planted(columns, frozenset((f"c{f}", "==", f"v{codes[f][row]}") for f in chosen), n)
