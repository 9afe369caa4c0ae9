"""Feature domains from the ChangeList of another run: validated, then matched with this data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from slicebeam.metrics.errors import ColumnError, InputError
from slicebeam.metrics.registry import averaged_column
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.transforms.discovery.derive_columns import is_cluster_field
from slicebeam.transforms.encode.column import arrow_type, plain_type, sortable
from slicebeam.transforms.encode.domains import (
    ColumnSummary,
    FeatureDomain,
    FrozenDomain,
    LeftOutColumn,
)
from slicebeam.transforms.encode.learn_domains import is_categorical
from slicebeam.transforms.encode.predicates import Singleton, arrow_values, shortened
from slicebeam.transforms.encode.value_counts import unsupported
from slicebeam.transforms.formats.schemas import unify_schemas

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.pipelines.changelist.dataset import Domain
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.transforms.encode.sources import Source

# The ops of each kind of domain, the order of bins aside.
_OPS = {
    "categorical": ("==", "not_in", "is_null"),
    "numeric": ("<", ">=", "between", "==", "is_null"),
    "list": ("contains", "is_null"),
}


# Options that give a column a part other than that of a feature.
_ROLES: tuple[str, ...] = (
    "label",
    "prediction",
    "score",
    "baseline_prediction",
    "baseline_score",
    "loss",
)
_ROLES += ("baseline_loss", "weight", "group", "example_id")


@dataclass(frozen=True)
class GivenDomains:
    """The domains in an earlier run's ChangeList for the features of this data."""

    uri: str
    examples: int
    domains: dict[str, FrozenDomain]  # by feature, in their order; checked
    learned: tuple[str, ...]  # features without a domain, which are learned from this data
    left_out: tuple[LeftOutColumn, ...]
    lost: tuple[str, ...]  # features of the earlier run that this data lacks
    reasons: dict[str, str]  # why the earlier run left a column out, by its name
    top_values: int | None  # values of a column that were named; None if unknown
    option: str = "--domains"  # that named the document: ``--domains`` or ``--since``

    @property
    def features(self) -> tuple[str, ...]:
        """The features that have a domain, or may get one."""
        return (*self.domains, *self.learned)


def read_domains_of(
    path: str, option: str = "--domains"
) -> tuple[SearchChangeList, dict[str, FeatureDomain]]:
    """Return the ChangeList of an earlier run, and its domains by feature."""
    document = read_search(path, option, with_slices=False)
    known: dict[str, FeatureDomain] = {}
    for shape in document.dataset.domains:
        if shape.name in known:
            raise InputError(f"{option} {path}: two domains have the name {shape.name!r}; keep one")
        try:
            known[shape.name] = checked_domain(shape)
        except InputError as error:
            raise InputError(f"{option} {path}: domain of {shape.name!r}: {error}") from error
    return document, known


def given_domains(
    path: str, source: Source, features: Sequence[str], option: str = "--domains"
) -> GivenDomains:
    """Return the domains of an earlier run's ChangeList, for the same features of this data.

    A feature without a domain there is learned from this data if the earlier run would have searched
    it: it was not in that data, or nothing was in it to slice by. Otherwise it is left out.
    """
    document, known = read_domains_of(path, option)
    domains: dict[str, FrozenDomain] = {}
    learned = []
    left_out = [
        LeftOutColumn(name, f"in {path} but not in this data")
        for name in known
        if name not in source.schema.names
    ]
    for name in features:
        domain = known.get(name)
        if domain is None:
            if _was_wanted(document, name):
                learned.append(name)
            else:
                left_out.append(LeftOutColumn(name, f"it has no domain in {path}"))
            continue
        given = _held_against(domain, source.schema.field(name).type, f"{option} {path}")
        domains[name] = FrozenDomain(given, max(1, document.dataset.n))
    return GivenDomains(
        path,
        document.dataset.n,
        domains,
        tuple(learned),
        tuple(left_out),
        # Components of embeddings are no columns of any data.
        tuple(
            name for name in known if name not in source.schema.names and not is_cluster_field(name)
        ),
        {one.name: one.reason for one in document.dataset.left_out},
        _values_named(document),
        option,
    )


def _values_named(document: SearchChangeList) -> int | None:
    named = document.provenance.config.get("top_values")
    if not isinstance(named, int) or isinstance(named, bool) or named < 1:
        return None
    return named


def _was_wanted(document: SearchChangeList, name: str) -> bool:
    """Return whether the earlier run would have taken the column for a feature."""
    options = document.provenance.config
    if document.check is not None or document.discovery is not None:
        return False
    roles = {options.get(role) for role in _ROLES}
    roles |= {averaged_column(one.key) for one in document.metrics}
    chosen = options.get("features") or [name]
    return (
        name in chosen and name not in (options.get("exclude_features") or []) and name not in roles
    )


def _held_against(domain: FeatureDomain, kind: pa.DataType, where: str) -> FeatureDomain:
    """Return a domain with the type in which a column of this data is compared with it."""
    name = domain.name
    kind = plain_type(kind)
    is_list = pa.types.is_list(kind)
    kind = kind.value_type if is_list else kind
    common = compared_as(kind, arrow_type(domain.data_type))
    if common is None or is_list != (domain.kind == "list"):
        was = f"list<{domain.data_type}>" if domain.kind == "list" else domain.data_type
        now = f"list<{kind}>" if is_list else kind
        raise ColumnError(
            f"{where}: column {name!r} was {was} and is {now} now; cast it, or leave "
            "it out with --exclude-features"
        )
    given = replace(domain, data_type=str(common))
    try:
        # Values that do not fit are found here, where the file is known.
        given.encode(pa.nulls(0, kind))
    except InputError as error:
        raise ColumnError(f"{where}: column {name!r}: {error}") from error
    return given


def checked_domain(shape: Domain) -> FeatureDomain:
    """Return the domain of a document, whose predicates must divide the values as a run's do."""
    try:
        kind = arrow_type(shape.data_type)
    except (pa.ArrowException, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"data_type {shortened(shape.data_type)!r} is not a type") from error
    column = pa.list_(kind) if shape.kind == "list" else kind
    # A numeric column of few integers is numeric where another run saw more.
    is_right = shape.kind == "list" or (shape.kind == "categorical") == is_categorical(kind, 0, 1)
    is_right |= pa.types.is_integer(kind)
    is_right &= not unsupported(column)
    if not (is_right or _is_of_integers(shape, kind)):
        raise InputError(f"a column of {column} has no {shape.kind} domain")
    singletons = tuple(Singleton(one.field, one.op, one.value) for one in shape.singletons)
    if not singletons:
        raise InputError("it has no predicate")
    at = 0
    try:
        for at, one in enumerate(singletons):  # noqa: B007  (the error reports it)
            _check(one, shape.name, shape.kind, kind)
    except InputError as error:
        raise InputError(f"predicate {at + 1}: {error}") from error
    nulls = [at for at, one in enumerate(singletons) if one.op == "is_null"]
    # Values that a later run named come after it.
    if len(nulls) > 1 or (shape.kind == "numeric" and nulls not in ([], [len(singletons) - 1])):
        raise InputError("'is_null' is not the last predicate, or occurs twice")
    if shape.kind == "numeric":
        _check_bins([one for one in singletons if one.op != "is_null"], kind)
    else:
        _check_values(singletons, kind)
    return FeatureDomain(
        shape.name,
        shape.kind,
        shape.data_type,
        singletons,
        shape.error,
        shape.closed,
        _seen(shape, kind),
    )


def _is_of_integers(shape: Domain, kind: pa.DataType) -> bool:
    """Return whether a domain is of integers that a later run had as doubles, some being missing."""
    if shape.kind == "numeric" or not pa.types.is_floating(kind):
        return False
    op = "contains" if shape.kind == "list" else "=="
    values = [one.value for one in shape.singletons if one.op == op]
    return bool(values) and all(isinstance(one, int) for one in values)


def _seen(shape: Domain, kind: pa.DataType) -> ColumnSummary | None:
    if shape.seen is None:
        return None
    ends = [one for one in (shape.seen.low, shape.seen.high) if one is not None]
    if len(ends) == 1 or (ends and shape.kind != "numeric"):
        raise InputError("its low and high do not fit a numeric column")
    for value in ends:
        if not _is_value(value, kind):
            raise InputError(f"{shortened(repr(value))} is not a value of a column of {kind}")
    arrow_values(ends, kind)
    return ColumnSummary(**shape.seen.model_dump())


def _check(one: Singleton, name: str, kind_of_domain: str, kind: pa.DataType) -> None:
    if one.field != name:
        raise InputError(f"it is a predicate on {one.field!r}")
    if one.op not in _OPS[kind_of_domain]:
        raise InputError(
            f"op {one.op!r} is not one of a {kind_of_domain} domain: {', '.join(_OPS[kind_of_domain])}"
        )
    listed = list(_constants(one))
    for value in listed:
        if not _is_value(value, kind):
            raise InputError(f"{shortened(repr(value))} is not a value of a column of {kind}")
    _typed(listed, kind)


def _typed(listed: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values in the type in which they are compared with a column.

    A rounded edge is a double, and its column may be narrower.
    """
    if pa.types.is_floating(kind):
        return arrow_values(listed, pa.float64()).cast(kind)
    return arrow_values(listed, kind)


def _constants(one: Singleton) -> Iterator[Any]:
    """Yield the values of a predicate."""
    if one.op == "is_null":
        if one.value is not None:
            raise InputError(f"op 'is_null' takes no value, not {shortened(repr(one.value))}")
    elif one.op in ("not_in", "between"):
        pair = one.op == "between"
        if not isinstance(one.value, list) or (pair and len(one.value) != 2):
            wanted = "[low, high]" if pair else "a list of values"
            raise InputError(f"op {one.op!r} needs {wanted}, not {shortened(repr(one.value))}")
        yield from one.value
    else:
        yield one.value


def _is_value(value: Any, kind: pa.DataType) -> bool:
    """Whether a JSON value has the type in which a document writes the values of a column."""
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if pa.types.is_integer(kind):
        return isinstance(value, int)
    if pa.types.is_floating(kind):
        return isinstance(value, (int, float)) or value in ("Infinity", "-Infinity")
    return isinstance(value, str)


def _check_values(singletons: Sequence[Singleton], kind: pa.DataType) -> None:
    """Refuse values that have two predicates, and an *other* of other values."""
    values = [one.value for one in singletons if one.op in ("==", "contains")]
    if len(arrow_values(values, kind).unique()) < len(values):
        raise InputError("two of its predicates have the same value")
    others = [one.value for one in singletons if one.op == "not_in"]
    if others and (len(others) > 1 or others[0] != values):
        raise InputError("'not_in' does not list the values that have predicates of their own")


def _check_bins(bins: Sequence[Singleton], kind: pa.DataType) -> None:
    """Refuse bins that overlap or are not in the order of their values, or none."""
    if not bins:
        raise InputError("it has no bin")
    last = len(bins) - 1
    for at, one in enumerate(bins):
        if (one.op == "<" and at) or (one.op == ">=" and at != last):
            raise InputError(f"op {one.op!r} is not at the right end of the bins")
    pairs = [one.value if one.op == "between" else [one.value, one.value] for one in bins]
    low, high = (sortable(_typed([pair[i] for pair in pairs], kind)) for i in (0, 1))
    empty = np.array([one.op == "between" for one in bins]) & (low >= high)
    point = np.array([one.op == "==" for one in bins])
    meets = np.where(point[:-1], high[:-1] >= low[1:], high[:-1] > low[1:])
    wrong = np.flatnonzero(empty | np.append(meets, False))
    if wrong.size:
        raise InputError(f"bin {wrong[0] + 1} is empty, overlaps the next one, or is out of order")


def compared_as(now: pa.DataType, before: pa.DataType) -> pa.DataType | None:
    """Return the type in which pandas compares a column with values of another type.

    None for types of which no value equals one of the other.
    """
    types = pa.types
    if types.is_null(now):
        return before
    numbers = all(types.is_integer(kind) or types.is_floating(kind) for kind in (now, before))
    if now == before or (numbers and types.is_floating(now)):
        return now
    if numbers and types.is_floating(before):
        return pa.float64()
    if numbers:
        return now if now == pa.uint64() else pa.int64()
    alike = (types.is_decimal, types.is_timestamp, types.is_date, types.is_time)
    if not any(is_kind(now) and is_kind(before) for is_kind in alike):
        return None
    schemas = [(name, pa.schema([(name, kind)])) for name, kind in (("x", now), ("x", before))]
    try:
        return unify_schemas(schemas).field(0).type
    except InputError:
        return None
