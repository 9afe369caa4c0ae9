"""The configurations of the commands ``slicebeam edit …``."""

from __future__ import annotations

from typing import Annotated, ClassVar

from slicebeam.pipelines.config.document import CountingConfig, DocumentConfig
from slicebeam.pipelines.config.option_fields import Option, Texts

_SLICE = "Slice, given by its slice_id, the start of its slice_id, or its name."


class SliceConfig(DocumentConfig):
    """Options of an edit of one slice."""

    slice: Annotated[str, Option("Slices", _SLICE, metavar="<slice>")]


class RenameConfig(SliceConfig):
    """Options of ``slicebeam edit rename``."""

    name: Annotated[str, Option("Slices")]
    """New name of the slice."""


class DescribeConfig(SliceConfig):
    """Options of ``slicebeam edit describe``."""

    text: Annotated[str, Option("Slices", metavar="<text>")]
    """Description of the slice. An empty one removes it."""


class AnnotateConfig(SliceConfig):
    """Options of ``slicebeam edit annotate``."""

    note: Annotated[str, Option("Slices", metavar="<text>")]
    """Note to add."""


class RemoveConfig(SliceConfig):
    """Options of ``slicebeam edit remove``."""


class MergeConfig(CountingConfig):
    """Options of ``slicebeam edit merge``."""

    slices: Annotated[Texts, Option("Slices", metavar="<slice>", flags=("--slice",))]
    """Slice to merge, given by its slice_id or name. Repeatable."""
    name: Annotated[str, Option("Slices")]
    """Name of the new slice."""


class SplitConfig(CountingConfig):
    """Options of ``slicebeam edit split``."""

    slice: Annotated[str, Option("Slices", _SLICE, metavar="<slice>")]
    where: Annotated[str, Option("Slices", metavar="<predicate>")]
    """Predicate that splits the slice. The examples that satisfy it become one part, the others the
    second."""
    name: Annotated[
        Texts, Option("Slices", metavar="<name>", default="made from the slice and the predicate")
    ] = ()
    """Name of a part. Give it twice, or not at all."""


class UndoConfig(DocumentConfig):
    """Options of ``slicebeam edit undo``."""


class LogConfig(DocumentConfig):
    """Options of ``slicebeam edit log``."""

    without_flag: ClassVar[frozenset[str]] = frozenset({"quiet"})
