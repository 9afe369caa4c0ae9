"""What a run takes over: the domains of an earlier run, and slices of a ChangeList, a YAML file or an EvalConfig."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import (
    ColumnError,
    FileError,
    InputError,
    OptionError,
    shortened,
    unknown_name,
)
from slicebeam.metrics.measures.registry import averaged_column
from slicebeam.metrics.significance.count_tests import p_more_frequent
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.prepare.source import ROLES, SECONDS_PER_VALUE
from slicebeam.transforms.discovery.derive_columns import is_cluster_field
from slicebeam.transforms.encode.column import arrow_type, plain_type, sortable
from slicebeam.transforms.encode.conditions import SliceMembership, check_condition
from slicebeam.transforms.encode.definitions import AnyDefinition, PredicateDefinition
from slicebeam.transforms.encode.domains import (
    ColumnSummary,
    FeatureDomain,
    FrozenDomain,
    LeftOutColumn,
)
from slicebeam.transforms.encode.learn_domains import is_categorical
from slicebeam.transforms.encode.passes import distinct, distinct_rows
from slicebeam.transforms.encode.predicates import (
    OPS,
    Singleton,
    arrow_values,
    json_values,
    parse_predicate,
    shown,
    slice_hashes,
)
from slicebeam.transforms.encode.value_counts import unsupported
from slicebeam.transforms.formats.schemas import unify_schemas
from slicebeam.transforms.storage.storage import storage_path
from slicebeam.transforms.storage.strict_text import parse_yaml
from slicebeam.transforms.tfma.eval_config import eval_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from slicebeam.pipelines.changelist.document import Domain, SearchChangeList
    from slicebeam.pipelines.run.stage import Workspace
    from slicebeam.transforms.encode.definitions import Condition
    from slicebeam.transforms.encode.domains import UnseenValue
    from slicebeam.transforms.encode.sources import Source


# The ops of each kind of domain, the order of bins aside.
_OPS = {
    "categorical": ("==", "not_in", "is_null"),
    "numeric": ("<", ">=", "between", "==", "is_null"),
    "list": ("contains", "is_null"),
}


@dataclass(frozen=True)
class InheritedDomains:
    """The domains in an earlier run's ChangeList for the features of this data."""

    uri: str
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


def inherited_domains(
    path: str, source: Source, features: Sequence[str], option: str = "--domains"
) -> InheritedDomains:
    """Return the domains of an earlier run; a feature without one is learned if that run would have searched it."""
    document, known = read_domains_of(path, option)
    options, dataset = document.provenance.config, document.dataset
    roles = {options.get(role) for role in ROLES}
    roles |= {averaged_column(metric.key) for metric in document.metrics}
    taken = roles | {*(options.get("exclude_features") or ())}
    searched = options.get("features") or features
    if document.check is not None or document.discovery is not None:
        searched = ()
    absent = [name for name in known if name not in source.schema.names]
    left_out = [LeftOutColumn(name, f"in {path} but not in this data") for name in absent]
    domains: dict[str, FrozenDomain] = {}
    learned = []
    for name in features:
        if name in known:
            kind = source.schema.field(name).type
            domain = _held_against(known[name], kind, f"{option} {path}: column {name!r}")
            domains[name] = FrozenDomain(domain, max(1, dataset.n))
        elif name in searched and name not in taken:
            learned.append(name)
        else:
            left_out.append(LeftOutColumn(name, f"it has no domain in {path}"))
    named = options.get("top_values")
    return InheritedDomains(
        path,
        domains,
        tuple(learned),
        tuple(left_out),
        # Components of embeddings are no columns of any data.
        tuple(name for name in absent if not is_cluster_field(name)),
        {column.name: column.reason for column in dataset.left_out},
        named if isinstance(named, int) and named > 0 else None,
        option,
    )


def _held_against(domain: FeatureDomain, kind: pa.DataType, where: str) -> FeatureDomain:
    """Return a domain with the type in which a column of this data is compared with it."""
    kind = plain_type(kind)
    is_list = pa.types.is_list(kind)
    kind = kind.value_type if is_list else kind
    common = compared_as(kind, arrow_type(domain.data_type))
    if common is None or is_list != (domain.kind == "list"):
        was = f"list<{domain.data_type}>" if domain.kind == "list" else domain.data_type
        now = f"list<{kind}>" if is_list else kind
        raise ColumnError(
            f"{where} was {was} and is {now} now; cast it, or leave it out with --exclude-features"
        )
    compared = replace(domain, data_type=str(common))
    try:
        # Values that do not fit are found here, where the file is known.
        compared.encode(pa.nulls(0, kind))
    except InputError as error:
        raise ColumnError(f"{where}: {error}") from error
    return compared


def checked_domain(shape: Domain) -> FeatureDomain:
    """Return the domain of a document, whose predicates must divide the values as a run's do."""
    try:
        kind = arrow_type(shape.data_type)
    except (pa.ArrowException, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"data_type {shortened(shape.data_type)!r} is not a type") from error
    _check_kind(shape, kind)
    singletons = tuple(Singleton(term.field, term.op, term.value) for term in shape.singletons)
    if not singletons:
        raise InputError("it has no predicate")
    number = 0
    try:
        for number, singleton in enumerate(singletons, start=1):  # noqa: B007  (the error reports it)
            _check_predicate(singleton, shape, kind)
    except InputError as error:
        raise InputError(f"predicate {number}: {error}") from error
    nulls = [at for at, singleton in enumerate(singletons) if singleton.op == "is_null"]
    # Values that a later run named come after it.
    if len(nulls) > 1 or (shape.kind == "numeric" and nulls not in ([], [len(singletons) - 1])):
        raise InputError("'is_null' is not the last predicate, or occurs twice")
    seen = None if shape.seen is None else ColumnSummary(**shape.seen.model_dump())
    if seen is not None:
        ends = [end for end in (seen.low, seen.high) if end is not None]
        if len(ends) == 1 or (ends and shape.kind != "numeric"):
            raise InputError("its low and high do not fit a numeric column")
        for end in ends:
            check_condition(Singleton(shape.name, ">=", end), kind)
    domain = FeatureDomain(
        shape.name, shape.kind, shape.data_type, singletons, shape.error, shape.closed, seen
    )
    if shape.kind == "numeric":
        _check_bins(domain)
    else:
        _check_values(domain, kind)
    return domain


def _check_kind(shape: Domain, kind: pa.DataType) -> None:
    """Refuse a kind of domain that no run gives a column of a type."""
    column = pa.list_(kind) if shape.kind == "list" else kind
    is_right = shape.kind == "list" or (shape.kind == "categorical") == is_categorical(kind, 0, 1)
    # A numeric column of few integers is numeric where another run saw more.
    is_right |= pa.types.is_integer(kind)
    # Integers that a later run had as doubles, some being missing.
    values = _named_values(shape)
    was_right = pa.types.is_floating(kind) and shape.kind != "numeric" and bool(values)
    was_right = was_right and all(isinstance(value, int) for value in values)
    if not ((is_right and not unsupported(column)) or was_right):
        raise InputError(f"a column of {column} has no {shape.kind} domain")


def _named_values(domain: Domain | FeatureDomain) -> list[Any]:
    """Return the values that have predicates of their own."""
    return [term.value for term in domain.singletons if term.op in ("==", "contains")]


def _check_predicate(one: Singleton, shape: Domain, kind: pa.DataType) -> None:
    known = _OPS[shape.kind]
    if one.field != shape.name:
        raise InputError(f"it is a predicate on {one.field!r}")
    if one.op not in known:
        raise InputError(f"op {one.op!r} is not one of a {shape.kind} domain: {', '.join(known)}")
    if one.op == "is_null" and one.value is not None:
        raise InputError(f"op 'is_null' takes no value, not {shortened(repr(one.value))}")
    if shape.kind == "numeric" or one.op == "not_in":
        check_condition(one, kind)


def _check_values(domain: FeatureDomain, kind: pa.DataType) -> None:
    """Refuse values that have two predicates, and an *other* of other values."""
    values = _named_values(domain)
    if values:
        check_condition(Singleton(domain.name, "in", values), kind)
    if len(domain.constants(values).unique()) < len(values):
        raise InputError("two of its predicates have the same value")
    others = [singleton.value for singleton in domain.singletons if singleton.op == "not_in"]
    if others not in ([], [values]):
        raise InputError("'not_in' does not list the values that have predicates of their own")


def _check_bins(domain: FeatureDomain) -> None:
    """Refuse bins that overlap or are not in the order of their values, or none."""
    bins = [singleton for singleton in domain.singletons if singleton.op != "is_null"]
    if not bins:
        raise InputError("it has no bin")
    for at, bin_ in enumerate(bins):
        if (bin_.op == "<" and at) or (bin_.op == ">=" and at != len(bins) - 1):
            raise InputError(f"op {bin_.op!r} is not at the right end of the bins")
    pairs = [bin_.value if bin_.op == "between" else [bin_.value] * 2 for bin_ in bins]
    low, high = (sortable(domain.constants([pair[i] for pair in pairs])) for i in (0, 1))
    ops = np.array([bin_.op for bin_ in bins])
    meets = np.where(ops[:-1] == "==", high[:-1] >= low[1:], high[:-1] > low[1:])
    wrong = np.flatnonzero(((ops == "between") & (low >= high)) | np.append(meets, False))
    if wrong.size:
        raise InputError(f"bin {wrong[0] + 1} is empty, overlaps the next one, or is out of order")


def compared_as(now: pa.DataType, before: pa.DataType) -> pa.DataType | None:
    """Return the type in which pandas compares a column with values of another type; None if none can be equal."""
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


# A share that was not zero is noted where chance explains its growth less often than this, and where it
# grew by half: at a million examples any two days differ. Nights of many columns stay quiet.
_SURELY = 1e-4
_GREW = 1.5
_MOST_VALUES = 3


@dataclass(frozen=True)
class _ColumnOfBothRuns:
    """A column in both runs."""

    given: InheritedDomains
    now: FeatureDomain
    examples: int
    smallest: int

    @property
    def then(self) -> FrozenDomain:
        return self.given.domains[self.now.name]

    def parts(self) -> Iterator[str]:
        """Yield the new values, the most important first."""
        uri, kind = self.given.uri, self.now.kind
        for occurred, where in ((False, "does not have"), (True, "counted among its other values")):
            new = [value for value in self.now.new_values if value.occurred == occurred]
            if new:
                yield self._named(new, f"{uri} {where}")
        seen, before = self.now.seen, self.then.domain.seen
        if seen is None:
            return
        has_none = self.then.largest_other == 0
        if kind == "categorical":
            other = before.other if before is not None else (0 if has_none else None)
            grown = [*self._grown(seen.other, other, "have other values")]
            yield from grown
            if grown:
                yield from self._remedies(seen.other, "--top-values")
        elif seen.other >= self.smallest:
            if kind == "list" and has_none:
                yield f"{seen.other:,} elements without a predicate, none in {uri}"
            if kind == "numeric" and not (before is not None and before.other):
                yield f"{self._share(seen.other)} have a value in none of its bins, none in {uri}"
        yield from self._grown(seen.missing, self.then.missing, "missing")
        if before is None:
            return
        for count, end, side in (
            (seen.below, before.low, "below"),
            (seen.above, before.high, "above"),
        ):
            # As many examples beyond the extremes of as many others: half of the nights have one.
            if count is not None and self._is_surely_more(count, 0):
                yield f"{self._share(count)} {side} {shown(end)}, none in {uri}"
                yield from self._remedies(count, "--bins")

    def _named(self, new: Sequence[UnseenValue], where: str) -> str:
        values = f"{len(new):,} value{'' if len(new) == 1 else 's'} that {where}"
        ordered = sorted(new, key=lambda value: -value.n)
        if self.now.kind == "list":
            # An example may hold several: their shares have no sum.
            first = ordered[:_MOST_VALUES]
            each = ", ".join(f"{shown(value.value)} in {self._share(value.n)}" for value in first)
            more = f", … {len(new) - _MOST_VALUES} more" if len(new) > _MOST_VALUES else ""
            return f"{values} ({each}{more} of the examples)"
        share = self._share(sum(value.n for value in new))
        return (
            f"{share} of the examples have {values} ({_first_values([x.value for x in ordered])})"
        )

    def _grown(self, now: int, then: int | None, what: str) -> Iterator[str]:
        uri, examples = self.given.uri, self.then.examples
        if now < self.smallest:
            return
        if then is None:
            if what == "missing":
                yield f"{self._share(now)} missing, which {uri} does not test"
        elif then == 0:
            yield f"{self._share(now)} {what}, none in {uri}"
        elif now * examples >= _GREW * then * self.examples and self._is_surely_more(now, then):
            yield f"{self._share(now)} {what}, {_percent(then / examples)} in {uri}"

    def _remedies(self, count: int, chosen: str) -> Iterator[str]:
        """Yield what to do where this is more than half of the examples with a value."""
        missing = self.now.seen.missing if self.now.seen is not None else 0
        if 2 * count > self.examples - missing:
            instead = " instead of --domains" if self.given.option == "--domains" else ""
            yield f"that is one slice, so bin the column again with {chosen}{instead}"

    def _is_surely_more(self, now: int, then: int) -> bool:
        p = float(p_more_frequent(now, self.examples, then, self.then.examples))
        return now >= self.smallest and p <= _SURELY

    def _share(self, count: int) -> str:
        return _percent(count / self.examples)


def _percent(share: float) -> str:
    """Return a share for a reader.

    >>> _percent(0.1), _percent(0.0004)
    ('10.0%', '0.04%')
    """
    return f"{share:.1%}" if share >= 0.01 else f"{share:.2g}" if share < 1e-4 else f"{share:.2%}"


def drift_lines(
    given: InheritedDomains, domains: Sequence[FeatureDomain], examples: int, smallest: int
) -> tuple[str, ...]:
    """Return a line for each column that is lost, or with values or missing ones that are new or surely more frequent."""
    lines = [
        f"{name}: a feature in {given.uri}, but not a column of this data; its slices can't be tested."
        for name in given.lost
    ]
    for domain in domains:
        name = domain.name
        if name in given.domains:
            parts = "; ".join(_ColumnOfBothRuns(given, domain, examples, smallest).parts())
            lines += [f"{name}: {parts}."] if parts else []
        elif name in given.learned:
            reason = given.reasons.get(name, "not in its data")
            lines.append(f"{name}: left out in {given.uri} ({reason}); its values are now tested.")
    return tuple(lines)


def is_carried_on(then: Domain, now: Domain) -> bool:
    """Return whether a domain has the predicates of an earlier one, *other* aside."""
    kept = [singleton for singleton in then.singletons if singleton.op != "not_in"]
    return then.kind == now.kind and all(one in now.singletons for one in kept)


def why_absent(condition: Condition, then: Domain, now: Domain) -> str:
    """Return why only one of two runs has a predicate."""
    when = "now" if condition in then.singletons else "then"
    field = repr(condition.field)
    if not is_carried_on(then, now):
        return f"{when} the values of {field} were binned differently"
    if condition.op == "is_null":
        held = then.closed if then.seen is None else then.seen.missing == 0
        return (
            f"then no value of {field} was missing" if held else f"then {field} had no such slice"
        )
    if now.kind == "numeric":
        return f"then no value of {field} was in this range"
    had_others = any(singleton.op == "not_in" for singleton in then.singletons)
    if condition.op == "not_in":
        then_named = _named_values(then)
        new = [value for value in _named_values(now) if value not in then_named]
        apart = _first_values(new)
        if when == "now":
            have = "has a predicate" if len(new) == 1 else "have predicates"
            return f"now {apart} {have} apart from the other values of {field}"
        if had_others:
            return f"then the other values of {field} contained {apart}, too"
        return f"then {field} had no other values"
    if then.seen is None:
        had_others |= then.kind == "list" or not then.closed
    else:
        had_others |= then.seen.other > 0
    if had_others:
        return f"then this value of {field} was among the other values"
    return f"then no example had this value of {field}"


def _first_values(values: Sequence[Any]) -> str:
    more = f", … {len(values) - _MOST_VALUES} more" if len(values) > _MOST_VALUES else ""
    return f"{', '.join(map(shown, values[:_MOST_VALUES]))}{more}"


Conditions = tuple[Singleton, ...]
_OPTIONS = {"changelist": "--changelist", "file": "--slices", "eval_config": "--eval-config"}


@dataclass(frozen=True)
class SliceRequest:
    """A slice as it was written."""

    place: str
    # Of a slice that no predicate describes, a condition on the column that is derived for it.
    predicate: str | Conditions
    name: str | None = None  # the user's name for it; None for its predicate
    definition: AnyDefinition | None = None
    slice_id: str | None = None

    @property
    def column(self) -> str:
        """The column of the members of a slice that no predicate describes."""
        return f"member of {self.slice_id}"


@dataclass(frozen=True)
class WantedSlices:
    """The slices given to a check, before the columns are known."""

    source: Literal["changelist", "file", "eval_config"]
    uri: str
    slices: tuple[SliceRequest, ...]
    changelist_id: str | None = None  # of the document; None for a file
    data: tuple[str, ...] = ()  # of the document, in which its slices were found; empty for a file


@dataclass(frozen=True)
class GivenSlices:
    """The slices of a check."""

    wanted: WantedSlices
    membership: SliceMembership  # their conditions; a slice's position is its code

    @property
    def texts(self) -> tuple[str, ...]:
        """The slices as text: their predicates, or the names of those that no predicate describes."""
        return tuple(
            (one.name or one.column)
            if one.definition is not None
            else " & ".join(map(str, conditions))
            for one, conditions in zip(self.wanted.slices, self.membership.predicates, strict=True)
        )

    @property
    def names(self) -> tuple[str | None, ...]:
        """What the user calls the slices."""
        return tuple(slice_.name for slice_ in self.wanted.slices)


def wanted_slice(name: str, definition: AnyDefinition, slice_id: str) -> SliceRequest:
    """Return a slice of a document as a check looks for it."""
    place = f"slice {shortened(name)!r}"
    if not isinstance(definition, PredicateDefinition):
        wanted = SliceRequest(place, (), name, definition, slice_id)
        return replace(wanted, predicate=(Singleton(wanted.column, "==", True),))
    conditions = definition.predicate.singletons
    is_text = name == " & ".join(map(str, conditions))
    return SliceRequest(place, conditions, None if is_text else name)


def read_given(changelist: str | None, slices: str | None) -> WantedSlices:
    """Return the slices of a ChangeList or of a YAML file, whichever is given."""
    if changelist is not None:
        document = read_search(changelist, "--changelist")
        wanted = [
            wanted_slice(slice_.name, slice_.definition, slice_.slice_id)
            for slice_ in document.slices
        ]
        found_in = document.dataset.uri if document.provenance.command != "check" else ()
        return WantedSlices(
            "changelist", changelist, tuple(wanted), document.changelist_id, found_in
        )
    if slices is None:
        raise TypeError("a check without slices")
    return read_slices(slices)


def read_slices(uri: str) -> WantedSlices:
    """Return the slices of a YAML file: a list of predicates, as text or as conditions, or of ``name`` and ``predicate``."""
    where = f"--slices {uri}"
    try:
        content, _ = parse_yaml(storage_path(uri, "--slices").read_text("utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"{where}: no such file") from error
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise OptionError(f"{where}: not readable as YAML ({reason})") from error
    if isinstance(content, dict) and "schema_version" in content:
        raise OptionError(f"{where} is a ChangeList; use --changelist")
    place, wanted = where, []
    try:
        if isinstance(content, dict):
            _check_keys(content, "slices")
            content = content.get("slices")
        for number, written in enumerate(content if isinstance(content, list) else (), start=1):
            place = f"{where}, slice {number}"
            wanted.append(SliceRequest(f"slice {number}", *_predicate_and_name(written)))
    except InputError as error:
        raise OptionError(f"{place}: {error}") from error
    if not wanted:
        raise OptionError(f"{where}: a list of slices is expected, such as '- age < 25'")
    return WantedSlices("file", uri, tuple(wanted))


def _predicate_and_name(written: Any) -> tuple[str | Conditions, str | None]:
    name, predicate = None, written
    if isinstance(written, dict) and ("predicate" in written or "name" in written):
        _check_keys(written, "name", "predicate")
        name, predicate = written.get("name"), written.get("predicate")
        if name is not None and not (isinstance(name, str) and name.strip()):
            raise InputError(f"name {name!r} is not text; put it in quotes")
        if "predicate" not in written:
            raise InputError("key 'predicate' is missing next to 'name'")
    if isinstance(predicate, str) and predicate.strip():
        return predicate, name
    # A single condition needs no list.
    conditions = [predicate]
    if isinstance(predicate, dict) and "all" in predicate:
        _check_keys(predicate, "all")
        conditions = predicate["all"]
    if not (conditions and isinstance(conditions, list)) or not all(
        isinstance(condition, dict) for condition in conditions
    ):
        raise InputError(
            f"{shortened(repr(predicate))} is not a predicate; write text such as 'age < 25', "
            "or all: [{field: age, op: '<', value: 25}]"
        )
    return tuple(map(_condition, conditions)), name


def _condition(written: Mapping[Any, Any]) -> Singleton:
    _check_keys(written, "field", "op", "value")
    field, op, value = (written.get(key) for key in ("field", "op", "value"))
    for key in ("field", "op"):
        if not isinstance(written.get(key), str):
            raise InputError(f"{key} {written.get(key)!r} is not text")
    if op not in OPS:
        raise unknown_name("op", str(op), OPS)
    if op == "is_null" and value is not None:
        raise InputError(f"op 'is_null' takes no value, not {value!r}")
    if op != "is_null" and "value" not in written:
        raise InputError(f"op {op!r} of {field!r} has no value")
    return Singleton(str(field), str(op), _json_value(value))


def _check_keys(written: Mapping[Any, Any], *known: str) -> None:
    for key in written:
        if key not in known:
            raise unknown_name("key", str(key), known)


def _json_value(value: Any) -> Any:
    """Return a value of YAML as JSON has it: dates and times as ISO text, infinities as text."""
    if isinstance(value, list):
        return list(map(_json_value, value))
    if isinstance(value, (dt.date, dt.datetime)):
        return value.isoformat()
    is_infinite = isinstance(value, float) and abs(value) == float("inf")
    return ("Infinity" if value > 0 else "-Infinity") if is_infinite else value


def given_slices(wanted: WantedSlices, schema: pa.Schema) -> GivenSlices:
    """Return the slices with their conditions, after checking that the columns fit them."""
    columns = dict(zip(schema.names, schema.types, strict=True))
    places: dict[int, str] = {}
    predicates: list[Conditions] = []
    for slice_ in wanted.slices:
        where = f"{_OPTIONS[wanted.source]} {wanted.uri}, {slice_.place}"
        try:
            conditions = _checked(slice_, columns, wanted.source)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        place = places.setdefault(int(slice_hashes([conditions])[0]), slice_.place)
        if len(places) == len(predicates):
            raise InputError(f"{where}: the same predicate as {place}; leave one out")
        predicates.append(conditions)
    return GivenSlices(wanted, SliceMembership(tuple(predicates)))


def _checked(wanted: SliceRequest, columns: Mapping[str, pa.DataType], source: str) -> Conditions:
    """Return each condition once, after holding it against an empty column."""
    conditions = wanted.predicate
    if isinstance(conditions, str):
        conditions = parse_predicate(conditions, columns)
    checked: dict[str, Singleton] = {}
    for condition in conditions:
        if condition.field not in columns:
            if wanted.definition is None and not is_cluster_field(condition.field):
                raise unknown_name("column", condition.field, columns)
            raise InputError(
                "it is defined by embeddings, ids or other slices, which only slicebeam check "
                "--changelist supports"
            )
        kind = columns[condition.field]
        try:
            check_condition(condition, kind)
        except InputError as error:
            raise ColumnError(f"column {condition.field!r}: {error}") from error
        # A document's predicates keep their form, and so the ids by which runs are compared.
        canonical = condition if source == "changelist" else _canonical(condition, kind)
        checked.setdefault(canonical.json_text(), canonical)
    return tuple(checked.values())


def _canonical(condition: Singleton, kind: pa.DataType) -> Singleton:
    """Return a condition as a search would write it: its values of the column's own JSON type."""
    types = pa.types
    kind = kind.value_type if types.is_list(kind) or types.is_dictionary(kind) else kind
    if condition.op == "is_null" or types.is_null(kind):
        return condition
    is_list = isinstance(condition.value, list)
    listed = condition.value if is_list else [condition.value]
    if types.is_integer(kind):
        listed = [int(x) if isinstance(x, float) and x.is_integer() else x for x in listed]
    try:
        # A rounded edge is a double, and its column may be narrower.
        array = arrow_values(listed, pa.float64() if types.is_floating(kind) else kind)
    except InputError:
        # A fraction that a column of integers is compared with.
        return condition
    if condition.op in ("in", "not_in"):
        array = array.unique().take(pc.sort_indices(array.unique()))
    values = json_values(array)
    return Singleton(condition.field, condition.op, values if is_list else values[0])


# More given slices than this are a search: each takes memory of every chunk.
MOST_SLICES = 10_000


def value_slices(uri: str, source: Source, run: Workspace) -> WantedSlices:
    """Return the slices of an EvalConfig that have examples, in the order of its specs."""
    found: dict[str, SliceRequest] = {}
    for number, spec in enumerate(eval_plan(uri).specs):
        columns = tuple(sorted({*spec.keys, *(name for name, _ in spec.values)}))
        ops = {
            name: "contains"
            if pa.types.is_list(source.column_type(name, f"--eval-config {uri}, slicing_specs"))
            else "=="
            for name in columns
        }
        stage = f"values-{number}"
        transform = distinct_rows(source, columns, run.work.folder(stage))
        seconds = source.rows * len(columns) * SECONDS_PER_VALUE
        table = distinct(run.parts(stage, transform, seconds=seconds, reads_data=True))
        arrays = [json_values(table.column(name).combine_chunks()) for name in table.column_names]
        is_empty = True
        for row in zip(*arrays, strict=True):
            values = dict(zip(table.column_names, row, strict=True))
            # The numbers of a spec are texts as well.
            if all(
                values[name] == (str(value) if isinstance(values[name], str) else value)
                for name, value in spec.values
            ):
                conditions = tuple(Singleton(name, ops[name], values[name]) for name in values)
                key = str(sorted(condition.json_text() for condition in conditions))
                found.setdefault(key, SliceRequest(f"slicing_specs {spec}", conditions))
                is_empty = False
        if is_empty:
            run.observer.note(
                f"--eval-config {uri}: no example is in slicing_specs {spec}; nothing is checked there"
            )
        if len(found) > MOST_SLICES:
            raise OptionError(
                f"--eval-config {uri}: slicing_specs {spec} has {len(found):,} slices so far, "
                f"more than {MOST_SLICES:,}; name fewer values, or use slicebeam search"
            )
    return WantedSlices("eval_config", uri, tuple(found.values()))
