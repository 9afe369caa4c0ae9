"""TensorFlow Model Analysis inside Beam: its metrics on slices, and slices as its slice keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slicebeam.transforms.tfma.slice_keys import AutoSliceKeyExtractor as AutoSliceKeyExtractor


def __getattr__(name: str) -> Any:
    # The names of metrics are read where a page of help is shown, which is quick without Beam.
    if name == "AutoSliceKeyExtractor":
        from slicebeam.transforms.tfma import slice_keys

        return slice_keys.AutoSliceKeyExtractor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
