"""The words that options choose from: what is compared, how it is tested, how it is corrected."""

from __future__ import annotations

# No expensive ones here, so that a page of help is quick.
from typing import Literal, TypeAlias

Comparison = Literal["overall", "baseline", "earlier"]
Alternative = Literal["worse", "better", "both"]
Tail = Literal["upper", "lower", "both"]
Test = Literal["auto", "bootstrap-rows", "paper"]
Correction: TypeAlias = Literal["fdr-level", "fwer-level", "bh", "by", "none"]
# How the items of a shift are chosen.
Method = Literal["plus", "masa", "proportional"]

REPLICATES: dict[Test, int] = {"auto": 200, "bootstrap-rows": 200, "paper": 20}
# Metrics that compare a label and a prediction as numbers, without a parameter.
OF_NUMBERS = frozenset(
    ("bias", "mae", "mse", "rmse", "r2", "mape", "smape", "pinball", "poisson_deviance")
)
# Values of the scores of all classes, and of lists of labels.
OF_CLASS_SCORES = frozenset(("log_loss_multiclass", "brier_multiclass"))
OF_LISTS = frozenset(("jaccard", "hamming"))
# The indicator ``top:3``: the label is among the three classes of the highest scores.
TOP = "top:"
# Values of the probability of the positive class, without a parameter.
OF_PROBABILITIES = frozenset(("log_loss", "brier", "calibration_in_the_large", "calibration_error"))
# The indicator ``above:0.05``: the score is above the cut that 5 % of all negatives are above.
ABOVE = "above:"
# Values of a query's ranking, without a parameter.
OF_RANKINGS = frozenset(("ndcg", "map", "mrr", "precision_at"))
# Metrics of TensorFlow Model Analysis are named ``tfma:NDCG(gain_key=gain)``.
TFMA = "tfma:"


def is_tfma(name: str) -> bool:
    """Return whether the name of a metric is of TFMA."""
    return name.startswith(TFMA)


def split_outside(text: str) -> list[str]:
    """Return what commas separate that are in no brackets and no quotes, such as ``tfma:A(b=[1,2])``."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if sign in "'\"":
            quote = "" if sign == quote else quote or sign
        elif not quote:
            depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth <= 0 and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return [part for part in parts if part.strip()] if text.strip() else []
