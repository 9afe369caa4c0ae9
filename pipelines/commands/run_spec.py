"""What a run file, or the document of an earlier run, says of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slicebeam.pipelines.config.common import Command


@dataclass(frozen=True)
class RunSpec:
    """The content of a run file.

    ``run_options``: options outside the configuration, by the names of `RunOptions`. ``steps``: the
    runs of a file with several, in order; the command and the options are then nobody's.
    """

    command: Command
    options: dict[str, Any]
    run_options: dict[str, Any]
    steps: tuple[RunSpec, ...] = ()
