"""The configuration of discovery: the source of embeddings, and how they become slices."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator, model_validator

from slicebeam.metrics.errors import OptionError
from slicebeam.metrics.kinds import Alternative
from slicebeam.pipelines.config.common import CHUNK_OPTIONS, Command
from slicebeam.pipelines.config.option_fields import (
    Column,
    Columns,
    Differs,
    Integers,
    Needed,
    Option,
    OptionalFile,
    Requires,
    Rule,
    Share,
    Texts,
    default,
)
from slicebeam.pipelines.config.search import SearchConfig

LSA = "lsa"
_MOST_COMPONENTS = 10_000


class DiscoverConfig(SearchConfig):
    """Options of ``slicebeam discover``."""

    command: ClassVar[Command] = "discover"
    # In membership.parquet.
    names_examples: ClassVar[bool] = True
    rules: ClassVar[tuple[Rule, ...]] = (
        Needed("embedding text", why="no embeddings and no texts to embed"),
        Requires("discovery_share", "loss_weight", "without losses all examples are tested"),
        Differs("label prediction baseline_prediction loss baseline_loss", "embedding text"),
    )
    baseline_data: tuple[str, ...] = Field(default=(), init=False, exclude=True)

    # Those of a search that a discovery has not.
    exclude_features: Texts = Field(default=(), init=False, exclude=True)
    domains: str | None = Field(default=None, init=False, exclude=True)
    since: str | None = Field(default=None, init=False, exclude=True)
    since_if_exists: str | None = Field(default=None, init=False, exclude=True)
    tfma_module: Texts = Field(default=(), init=False, exclude=True)
    keep_outputs: bool = Field(default=False, init=False, exclude=True)
    confirm: float | None = Field(default=None, init=False, exclude=True)
    parity: Texts = Field(default=(), init=False, exclude=True)

    embedding: Annotated[Column | None, Option("Embeddings")] = None
    """Column of embeddings: a vector for each example."""
    text: Annotated[Column | None, Option("Embeddings")] = None
    """Column of texts to embed. With --embedding, the texts are only displayed."""
    encoder: Annotated[
        str | None, Option("Embeddings", metavar="<encoder>", is_overridable=True)
    ] = None
    """Encoder of texts: lsa (fitted to them), minilm, openai:URL (an endpoint), or module:function
    (which returns a Beam model handler). With --embedding, the encoder that made the vectors.
    [default: lsa with --text]"""
    components: Annotated[Integers, Option("Embeddings")] = default((50,))
    """Number of components of the mixture. Several numbers, such as 25,100, fit several mixtures.
    [default: 50]"""
    dimensions: Annotated[int, Field(ge=1, le=4096), Option("Embeddings")] = 128
    """Maximum number of principal components to which mixtures are fitted."""
    loss_weight: Annotated[
        float, Field(ge=0, le=1000, allow_inf_nan=False), Option("Embeddings")
    ] = 0.0
    """Weight of the losses in the fit of the mixture. Above 0, only examples outside the fit are
    tested."""
    discovery_share: Annotated[Share, Option("Embeddings")] = 0.7
    """Share of the examples that the mixture is fitted to, with --loss-weight."""
    slices: Annotated[int, Field(ge=0, le=1000), Option("Embeddings")] = 10
    """Number of slices to describe by phrases and examples."""
    phrases: Annotated[OptionalFile, Option("Embeddings", is_overridable=True)] = default(None)
    """File of phrases that may describe slices, one per line; or YAML file of an API whose model
    suggests phrases. [default: taken from the texts]"""
    within_findings: Annotated[OptionalFile, Option("Data")] = default(None)
    """ChangeList of a search. Only the examples in at least one of its findings are read."""
    features: Annotated[Columns, Option("Features")] = ()
    """Columns to slice by, besides components. Repeatable, or separated by commas. [default:
    none]"""
    example_id: Annotated[Column | None, Option("Data", flags=("--example-id", "--id"))] = None
    """Column that identifies an example in the result."""
    alternative: Annotated[Alternative, Option("Statistics", comes_first=True)] = "both"
    max_cross_size: Annotated[int, Field(ge=1, le=10), Option("Search", comes_first=True)] = 1

    @field_validator("components")
    @classmethod
    def _countable(cls, numbers: tuple[int, ...]) -> tuple[int, ...]:
        for number in numbers:
            if not 2 <= number <= _MOST_COMPONENTS:
                raise OptionError(
                    f"--components {number} is not between 2 and {_MOST_COMPONENTS:,}; give numbers such as 25,100"
                )
        if not numbers:
            raise OptionError("--components is empty; give a number such as 50, or 25,100")
        return tuple(sorted(set(numbers)))

    @model_validator(mode="after")
    def _discovers(self) -> DiscoverConfig:
        if self.encoder == LSA and self.embedding:
            raise OptionError(
                "--encoder lsa is fitted to texts and did not make the embeddings; leave "
                "--embedding out, or name the encoder that made them"
            )
        if self.phrases and self.used_encoder is None:
            raise OptionError(
                "--phrases must be embedded like the examples; name the --encoder that embedded them"
            )
        if self.phrases and not self.text and self.phrases.lower().endswith((".yaml", ".yml")):
            raise OptionError(
                "--phrases from a language model needs texts to show to the model; give --text"
            )
        return self

    @property
    def used_encoder(self) -> str | None:
        """What embeds texts; None if embeddings are given and nobody says what made them."""
        return self.encoder or (None if self.embedding else LSA)

    @property
    def non_identity(self) -> frozenset[str]:
        """The options that do not change the result, so a run may resume with others."""
        return super().non_identity - CHUNK_OPTIONS

    def options_used(self) -> dict[str, Any]:
        """Return every option that has an effect with any strategy, including defaults."""
        options = super().options_used()
        if self.used_encoder is not None:
            options["encoder"] = self.used_encoder
        if self.loss_weight == 0:
            del options["discovery_share"]
        return options
