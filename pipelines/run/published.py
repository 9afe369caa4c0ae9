"""What a run published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.transforms.storage.storage import StoragePath


@dataclass(frozen=True)
class Published:
    """What a run published."""

    changelist: SearchChangeList
    changelist_path: StoragePath
    slices_path: StoragePath
    explanation: tuple[str, ...] = ()  # of the test of a slice, line by line
