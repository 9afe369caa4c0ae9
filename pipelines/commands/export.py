"""The commands ``slicebeam export …``: a ChangeList in the format of another tool."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from slicebeam.metrics.errors import printable
from slicebeam.pipelines.config.document import Document
from slicebeam.pipelines.config.option_fields import REQUIRED, Folder, Option
from slicebeam.pipelines.config.run_options import Display
from slicebeam.pipelines.search.summary import gate_of
from slicebeam.pipelines.tfma.export import Exported, export_changelist

if TYPE_CHECKING:
    from collections.abc import Callable


class ExportTfmaConfig(Display):
    """Options of ``slicebeam export tfma``."""

    changelist: Annotated[Document, Option(is_argument=True)] = Field(REQUIRED, init=False)
    to: Annotated[Folder, Option("Output")]
    """Folder to write."""


def tfma(config: ExportTfmaConfig, note: Callable[[str], None]) -> Exported:
    """Write a ChangeList as an output folder of TensorFlow Model Analysis."""
    exported = export_changelist(config.changelist, config.to, partial(gate_of, fail_on="worse"))
    for text in exported.notes:
        note(f"note: {text}")
    return exported


def show_exported(exported: Exported, _: ExportTfmaConfig) -> None:
    """Print the written folder."""
    if exported.derived:
        sys.stdout.write(f"derived columns: {printable(', '.join(exported.derived))}\n")
    ok = "ok" if exported.is_ok else "not ok"
    sys.stdout.write(
        f"{exported.slices:,} slices and all examples; validation {ok}\n{printable(exported.folder)}\n"
    )
