"""A slice to count, and where slices are counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.config.common import IN_PROCESS, EngineChoice
from slicebeam.pipelines.config.confirmation import NOTHING, Confirmed

if TYPE_CHECKING:
    from slicebeam.pipelines.config.document import CountingConfig
    from slicebeam.transforms.encode.definitions import AnyDefinition


@dataclass(frozen=True)
class DefinedSlice:
    """A slice to count."""

    name: str
    definition: AnyDefinition
    method: Any = "manual"


@dataclass(frozen=True)
class Counting:
    """Where slices are counted; ``other_data``: whether it may be other data than the document's."""

    data: tuple[str, ...] = ()
    engine: EngineChoice = IN_PROCESS
    confirmed: Confirmed = NOTHING
    other_data: bool = False

    @classmethod
    def of(cls, config: CountingConfig) -> Counting:
        """Return where a command's options say."""
        engine = config.runner_config, config.runner_option, config.beam
        return cls(config.data, engine, config.confirmed, config.other_data)
