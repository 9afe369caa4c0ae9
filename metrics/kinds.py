"""What is compared, and which way a difference counts: the words that all other modules share."""

from __future__ import annotations

from typing import Literal, get_args

Comparison = Literal["overall", "baseline"]
Alternative = Literal["worse", "better", "both"]
Tail = Literal["upper", "lower", "both"]

COMPARISONS: tuple[Comparison, ...] = get_args(Comparison)
ALTERNATIVES: tuple[Alternative, ...] = get_args(Alternative)
