"""The findings of one metric in one direction, as the document and the table hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from slicebeam.pipelines.changelist import findings as document

Direction = Literal["worse", "better"]


@dataclass(frozen=True)
class FindingList:
    """The findings of one metric in one direction."""

    metric: str
    direction: Direction  # ``worse`` or ``better``
    positions: NDArray[np.int64]  # int64 [findings] of their slices among the results, by rank
    findings: tuple[document.Finding, ...]
    model: document.FindingModel
