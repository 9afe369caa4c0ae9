"""The section of the examples: their columns, and how they are divided into predicates."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from slicebeam.pipelines.changelist.parts import Condition, Part, Predicate, Sha256


class Seen(Part):
    """The content of a column outside its predicates; later data is compared with it."""

    missing: Annotated[int, Field(ge=0)] = Field(description="examples without a value")
    other: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="examples whose value has no predicate of its own; for a list column, "
        "elements; for numbers, those outside the earlier run's bins",
    )
    largest_other: Annotated[int, Field(ge=0)] = Field(
        default=0, description="examples with the most frequent of these values"
    )
    low: Any = Field(default=None, description="smallest value of a numeric column")
    high: Any = Field(default=None, description="largest value of a numeric column")
    below: int | None = Field(
        default=None, description="examples with a value smaller than any of the earlier run"
    )
    above: int | None = Field(
        default=None, description="examples with a value larger than any of the earlier run"
    )
    distinct: int | None = Field(
        default=None, description="number of distinct values; absent for lists and given bins"
    )


class NewValue(Part):
    """A value without a predicate in the run whose domains are used."""

    value: Any
    n: int = Field(description="examples with it")
    occurred: bool = Field(
        description="whether it may have been among the other values in the earlier run"
    )


class Domain(Part):
    """The singleton predicates of a feature; ``search --domains`` takes them over."""

    name: str
    kind: Literal["categorical", "numeric", "list"]
    data_type: str
    singletons: tuple[Condition, ...]
    error: float = Field(description="relative error of a sketch that counted it; 0 means exact")
    closed: bool = Field(description="whether every value of this data satisfies one of them")
    seen: Seen | None = Field(default=None, description="absent in documents of older versions")
    new_values: tuple[NewValue, ...] = Field(
        default=(), description="values with a predicate now, but not in the run of config.domains"
    )


class LeftOut(Part):
    """A column that is not a feature, and why."""

    name: str
    reason: str


class FeatureHint(Part):
    """A feature that does not look like a property of an example, and why."""

    name: str
    looks_like: Literal["output", "label", "id"] = Field(
        description="output: of a model, by its name; label: its values predict the label; id: it has "
        "about as many values as there are examples"
    )
    reason: str


class Within(Part):
    """The findings of another document that the examples are within; others were left out."""

    uri: str
    sha256: Sha256 = Field(description="of the document")
    slices: tuple[Predicate, ...] = Field(description="an example is in at least one")
    n: Annotated[int, Field(ge=0)] = Field(description="examples in them")
    of: Annotated[int, Field(ge=0)] = Field(description="examples of the data")


class Dataset(Part):
    """The examples."""

    name: str
    uri: tuple[str, ...]
    fingerprint: Sha256 = Field(
        description="hash of all examples' values as far as slices distinguish them, labels and "
        "predictions, in any order"
    )
    n: Annotated[int, Field(ge=0)]
    id_field: str | None = None
    label_field: str | None = Field(default=None, description="absent where losses are given")
    weight_field: str | None = None
    group_field: str | None = None
    classes: tuple[Any, ...]
    domains: tuple[Domain, ...]
    left_out: tuple[LeftOut, ...]
    hints: tuple[FeatureHint, ...] = Field(
        default=(), description="features that --exclude-features should perhaps leave out"
    )
    within: Within | None = None
    drift: tuple[str, ...] = Field(
        default=(),
        description="values that this data has and that of config.domains did not, if material: "
        "one sentence per column",
    )
