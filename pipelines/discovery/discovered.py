"""What a discovery knows about its examples, besides the counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset

if TYPE_CHECKING:
    from slicebeam.pipelines.discovery.fitting import EmbeddedFiles, Fitted
    from slicebeam.pipelines.discovery.model import DiscoveryModel
    from slicebeam.transforms.discovery.embeddings import Embedding, TextSample
    from slicebeam.transforms.encode.sources import Source
    from slicebeam.transforms.storage.storage import StoragePath


@dataclass(frozen=True)
class Discovered:
    """What a discovery knows besides what is searched."""

    source: Source
    embedding: Embedding
    files: EmbeddedFiles
    beside: StoragePath
    fitted: Fitted
    model: DiscoveryModel
    sample: TextSample | None


@dataclass(frozen=True, kw_only=True)
class PreparedDiscovery(EncodedDataset):
    """The examples of a discovery, ready to be counted."""

    discovered: Discovered
