"""The configurations of the commands ``slicebeam edit …``."""

from __future__ import annotations

from typing import Annotated, ClassVar

from slicebeam.pipelines.config.document import CountingConfig, DocumentConfig
from slicebeam.pipelines.config.option_fields import Option

_SLICE = "Slice, given by its slice_id, the start of its slice_id, or its name."


class SliceConfig(DocumentConfig):
    """Options of an edit of one slice."""

    slice: Annotated[str, Option(_SLICE, "Slices", metavar="<slice>")]


class RenameConfig(SliceConfig):
    """Options of ``slicebeam edit rename``."""

    name: Annotated[str, Option("New name of the slice.", "Slices")]


class DescribeConfig(SliceConfig):
    """Options of ``slicebeam edit describe``."""

    text: Annotated[
        str,
        Option("Description of the slice. An empty one removes it.", "Slices", metavar="<text>"),
    ]


class AnnotateConfig(SliceConfig):
    """Options of ``slicebeam edit annotate``."""

    note: Annotated[str, Option("Note to add.", "Slices", metavar="<text>")]


class RemoveConfig(SliceConfig):
    """Options of ``slicebeam edit remove``."""


class MergeConfig(CountingConfig):
    """Options of ``slicebeam edit merge``."""

    slices: Annotated[
        tuple[str, ...],
        Option(
            "Slice to merge, given by its slice_id or name. Repeatable.",
            "Slices",
            metavar="<slice>",
            flags=("--slice",),
        ),
    ]
    name: Annotated[str, Option("Name of the new slice.", "Slices")]


class SplitConfig(CountingConfig):
    """Options of ``slicebeam edit split``."""

    slice: Annotated[str, Option(_SLICE, "Slices", metavar="<slice>")]
    where: Annotated[
        str,
        Option(
            "Predicate that splits the slice. The examples that satisfy it become one part, the others the second.",
            "Slices",
            metavar="<predicate>",
        ),
    ]
    name: Annotated[
        tuple[str, ...],
        Option(
            "Name of a part. Give it twice, or not at all.",
            "Slices",
            metavar="<name>",
            default="made from the slice and the predicate",
        ),
    ] = ()


class UndoConfig(DocumentConfig):
    """Options of ``slicebeam edit undo``."""


class LogConfig(DocumentConfig):
    """Options of ``slicebeam edit log``."""

    without_flag: ClassVar[frozenset[str]] = frozenset({"quiet"})
