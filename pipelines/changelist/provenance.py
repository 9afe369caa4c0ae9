"""What made the document, and the files that were published with it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from slicebeam.pipelines.changelist.parts import Part, Sha256
from slicebeam.transforms.storage.publish import NAME_PATTERN


class PublishedFile(Part):
    """A file next to the document, published with it."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)] = Field(
        description="of the file in the document's folder; its content never changes"
    )
    sha256: Sha256
    size: Annotated[int, Field(ge=0)] = Field(description="bytes")


class Run(Part):
    """The run that published the document, by which the same command sees that it is done."""

    config: Sha256 = Field(description="of all options that decide the result, as given")
    data: Sha256 = Field(description="of size and time, or version, of each file that was read")
    content: Sha256 | None = Field(default=None, description="of the document without this entry")


class Provenance(Part):
    """What made the document."""

    tool: Literal["slicebeam"] = "slicebeam"
    tool_version: str
    command: Literal["search", "check", "shift", "discover"] = "search"
    runner: str
    seed: int
    config: dict[str, Any] = Field(
        description="every option that had an effect, by name, including defaults; it repeats the run"
    )
    run: Run | None = Field(default=None, description="absent in documents of older versions")
