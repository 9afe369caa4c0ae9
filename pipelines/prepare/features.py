"""Which columns are features, and how they are divided into predicates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from slicebeam.metrics.errors import ColumnError, OptionError, unknown_name
from slicebeam.metrics.registry import averaged_column
from slicebeam.pipelines.prepare.feature_hints import is_named_output
from slicebeam.pipelines.prepare.source import SECONDS_PER_VALUE
from slicebeam.pipelines.run.run_stage import run_stage
from slicebeam.transforms.encode.domains import FeatureDomain, LeftOutColumn
from slicebeam.transforms.encode.learn_domains import (
    DomainOptions,
    domain_from_json,
    learn_domains,
    written_domains,
)
from slicebeam.transforms.encode.sources import VARIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.config.search import SearchConfig
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.given_domains import GivenDomains
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.encode.extract_predictions import Outcome
    from slicebeam.transforms.encode.sources import Source
    from slicebeam.transforms.storage.parts import WriteParts


_MOST_GROUPS = 200  # of --parity: every pair is compared
_OUTPUT = "named like a model's output; --keep-outputs makes features of such"


class ChosenColumns(NamedTuple):
    """The columns that are features, and those that are not because of their names."""

    features: list[str]
    left_out: tuple[LeftOutColumn, ...]


def choose_features(config: RunConfig, source: Source, outcome: Outcome) -> ChosenColumns:
    """Return the columns that are features: those named, or all that are nothing else."""
    names = [*source.schema.names, *source.varying]
    for option, given in (
        ("features", config.features),
        ("exclude-features", config.exclude_features),
        ("parity", getattr(config, "parity", ())),
    ):
        for name in given:
            if name not in names:
                raise ColumnError(f"--{option}: {unknown_name('column', name, names)}")
    for option, column in (("--example-id", config.example_id), ("--group", config.group)):
        if column:
            source.column_type(column, option)
    roles = {outcome.label, config.prediction, config.score, config.baseline_prediction}
    roles |= {config.baseline_score, config.example_id, config.weight, config.group}
    roles |= {config.query, config.loss, config.baseline_loss}
    roles |= {name for parts in source.lists.values() for name in parts}
    roles |= set(map(averaged_column, config.metric))
    for name in config.features:
        if name in config.exclude_features:
            raise OptionError(
                f"--features and --exclude-features both name {name!r}; remove it from one"
            )
        if name in roles:
            raise OptionError(
                f"--features: {name!r} is the label, a prediction, a score, a loss, a weight, a "
                "group, an id or the averaged column; a slice of it would be meaningless"
            )
        source.column_type(name, "--features")
    chosen = config.features or tuple(name for name in names if name not in roles)
    features = [name for name in dict.fromkeys(chosen) if name not in set(config.exclude_features)]
    varying = tuple(LeftOutColumn(name, VARIES) for name in features if name in source.varying)
    features = [name for name in features if name not in source.varying]
    outputs = _outputs(features) if config.leaves_outputs_out else []
    left_out = (*(LeftOutColumn(name, _OUTPUT) for name in outputs), *varying)
    return ChosenColumns([name for name in features if name not in outputs], left_out)


def check_parity_columns(
    config: SearchConfig, domains: Sequence[FeatureDomain], left_out: Sequence[LeftOutColumn]
) -> None:
    """Refuse columns of ``--parity`` that do not divide the examples into groups."""
    known = {domain.name: domain for domain in domains}
    reasons = {column.name: column.reason for column in left_out}
    for name in config.parity:
        if name not in known:
            reason = reasons.get(name, "not a feature; add it to --features")
            raise OptionError(f"--parity {name!r} has no groups: {reason}")
        if known[name].kind == "list":
            raise OptionError(f"--parity {name!r} is a column of lists, whose groups overlap")
        if known[name].size > _MOST_GROUPS:
            raise OptionError(
                f"--parity {name!r} has {known[name].size:,} groups, more than {_MOST_GROUPS}; lower --top-values or --bins"
            )


def _outputs(names: list[str]) -> list[str]:
    """Return what is named like a model's output, unless nothing would be left to slice by."""
    outputs = [name for name in names if is_named_output(name)]
    return outputs if len(outputs) < len(names) else []


@dataclass(frozen=True)
class Learned:
    """How the features are cut."""

    domains: tuple[FeatureDomain, ...]
    left_out: tuple[LeftOutColumn, ...]
    drift: tuple[str, ...]  # what the data of the given domains had not, a line a column
    top_values: int  # how many values of a column were named at most
    lost: tuple[str, ...] = ()  # features of the given domains that this data has not


class Learning(NamedTuple):
    """What is to be learned: the features without a domain of an earlier run, and new values."""

    given: GivenDomains | None
    options: DomainOptions
    transform: WriteParts | None

    def read(self) -> dict[str, Any]:
        """Return the facts of the stage, once the parts are written."""
        if self.transform is None:
            return {"learned": []}
        return {"learned": written_domains(self.transform.read(len(self.transform.items)))}


def learning(
    config: SearchConfig, source: Source, features: Sequence[str], work: WorkFolder
) -> Learning:
    """Return what is to be learned of the features."""
    given = None
    if config.domains:
        from slicebeam.pipelines.prepare.given_domains import given_domains

        given = given_domains(config.domains, source, features, config.domains_option)
        if config.features:
            # A feature that the user did not name is not missed.
            given = replace(given, lost=())
        features = given.features
    options = domain_options(config, given)
    folder = work.folder("domains")
    return Learning(
        given, options, learn_domains(source, features, options, folder) if features else None
    )


def learn(
    config: SearchConfig, source: Source, features: Sequence[str], work: WorkFolder, engine: Engine
) -> Learned:
    """Return the domains of the features: learned, or those of another run with new values."""
    wanted = learning(config, source, features, work)
    given, transform = wanted.given, wanted.transform
    facts: dict[str, Any] = {"learned": []}
    if transform is not None:
        learns = len(features if given is None else given.features)
        facts = run_stage(
            work,
            engine,
            "domains",
            lambda pipeline: pipeline | "Learn domains" >> transform,
            transform.is_written,
            seconds=source.rows * learns * SECONDS_PER_VALUE,
            reads_data=True,
            facts=lambda _: wanted.read(),
        )
    learned = [domain_from_json(shape) for shape in facts["learned"]]
    domains = tuple(domain for domain in learned if isinstance(domain, FeatureDomain))
    left_out = tuple(domain for domain in learned if isinstance(domain, LeftOutColumn))
    if given is None:
        return Learned(domains, left_out, (), wanted.options.top_values)
    from slicebeam.pipelines.prepare.drift import drift_lines

    return Learned(
        domains,
        (*given.left_out, *left_out),
        drift_lines(given, domains, source.rows, config.used_min_slice_size),
        wanted.options.top_values,
        given.lost,
    )


def domain_options(config: SearchConfig, given: GivenDomains | None) -> DomainOptions:
    """Return how columns are divided, with the number of values of the given run unless chosen."""
    top_values = config.top_values
    if given is not None and given.top_values and "top_values" not in config.model_fields_set:
        top_values = given.top_values
    return DomainOptions(
        config.bins,
        top_values,
        frozenset(config.features),
        config.memory,
        given.domains if given is not None else {},
        config.used_min_slice_size,
        config.exact_edges,
    )
