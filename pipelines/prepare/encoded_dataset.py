"""The examples of a run, encoded and ready to be counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.metric import Slices

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.counting.lattice import Lattice
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.pipelines.changelist.dataset import Within
    from slicebeam.pipelines.prepare.feature_hints import ColumnHint
    from slicebeam.pipelines.prepare.given_slices import GivenSlices
    from slicebeam.transforms.encode.domains import FeatureDomain, LeftOutColumn
    from slicebeam.transforms.encode.extract_predictions import LabelCounts, Outcome, Side
    from slicebeam.transforms.encode.shards import Scaling
    from slicebeam.transforms.encode.sources import Source


@dataclass(frozen=True)
class RepeatedIds:
    """Ids that several examples have."""

    number: int
    one: Any


@dataclass(frozen=True)
class EncodedDataset:
    """The examples, ready to be counted.

    ``repeated_ids``: ids that several examples have, where they are named and not to be groups.
    ``drift``: values in the data that the data of the given domains did not have. ``top_values``:
    how many values of a column were named at most; None if there are no domains. ``label_counts``:
    examples by class, alone and with each feature; None if labels are no classes. ``hints``:
    features that look like no property of an example, such as a model's output. ``model_columns``:
    what each model reads, by side. ``within``: findings that the examples are within; None for all
    examples of the data. ``reserved``: the examples with which findings are confirmed.
    """

    source: Source
    outcome: Outcome
    domains: tuple[FeatureDomain, ...]
    left_out: tuple[LeftOutColumn, ...]
    lattice: Lattice
    scaling: Scaling
    totals: IntArray  # int64 [raw columns and total terms] the statistics of all examples
    shards: tuple[str, ...]
    labels: tuple[Any, ...]
    content: int  # a hash of all examples' codes and measurements, in any order
    of_all: IntArray  # int64 [columns and total terms] what the metrics know of all examples
    repeated_ids: RepeatedIds | None = None
    models_agree: bool = False  # whether two models are compared that differ on no example
    given: GivenSlices | None = None  # the slices of a check, which has no domains
    drift: tuple[str, ...] = ()
    top_values: int | None = None
    lost: tuple[str, ...] = ()  # features of the given domains that the data has not
    label_counts: LabelCounts | None = None
    hints: tuple[ColumnHint, ...] = ()
    model_columns: dict[Side, tuple[str, ...]] = field(default_factory=dict)
    within: Within | None = None
    reserved: EncodedDataset | None = None

    @property
    def rows(self) -> int:
        """Number of examples."""
        return int(self.space.sizes(self.totals))

    @property
    def space(self) -> StatisticSpace:
        """The statistics."""
        return self.scaling.space

    def slices(self, sums: IntArray | None = None) -> Slices:
        """Return sums [slices, columns] as parts of all examples; all of these as one slice without any."""
        of_all = self.of_all
        return Slices(
            of_all[None, : self.space.columns] if sums is None else sums, self.space, of_all
        )
