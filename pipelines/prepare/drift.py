"""Values in new data that the data of the run whose domains are used did not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slicebeam.metrics.significance.count_tests import p_more_frequent
from slicebeam.transforms.encode.predicates import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.pipelines.changelist.dataset import Domain
    from slicebeam.pipelines.changelist.parts import Condition
    from slicebeam.pipelines.prepare.given_domains import GivenDomains
    from slicebeam.transforms.encode.domains import FeatureDomain, FrozenDomain, UnseenValue

# A share that was not zero is noted where chance explains its growth less often than this, and where it
# grew by half: at a million examples any two days differ. Nights of many columns stay quiet.
_SURELY = 1e-4
_GREW = 1.5
_MOST_VALUES = 3


@dataclass(frozen=True)
class _ColumnOfBothRuns:
    """A column in both runs."""

    uri: str
    then: FrozenDomain
    now: FeatureDomain
    examples: int
    smallest: int
    option: str

    def parts(self) -> Iterator[str]:
        """Yield the new values, the most important first."""
        for occurred, where in (
            (False, f"{self.uri} does not have"),
            (True, f"{self.uri} counted among its other values"),
        ):
            new = [one for one in self.now.new_values if one.occurred == occurred]
            if new:
                yield self._named(new, where)
        seen, before = self.now.seen, self.then.domain.seen
        if seen is None:
            return
        largest = self.then.largest_other
        other = before.other if before is not None else (0 if largest == 0 else None)
        what = {
            "categorical": "have other values",
            "numeric": "have a value in none of its bins",
            "list": "contain elements without a predicate",
        }[self.now.kind]
        if self.now.kind == "list":
            if largest == 0 and seen.other >= self.smallest:
                yield f"{seen.other:,} elements without a predicate, none in {self.uri}"
        elif self.now.kind == "numeric":
            if seen.other >= self.smallest and not (before is not None and before.other):
                yield f"{self._share(seen.other)} {what}, none in {self.uri}"
        else:
            grown = [*self._grown(seen.other, other, what)]
            yield from grown
            if grown and self._is_most(seen.other):
                yield self._remedy("--top-values")
        yield from self._grown(seen.missing, self.then.missing, "missing")
        if before is not None:
            for count, end, side in (
                (seen.below, before.low, "below"),
                (seen.above, before.high, "above"),
            ):
                # As many examples beyond the extremes of as many others: half of the nights have one.
                if count is not None and self._is_surely_more(count, 0):
                    yield f"{self._share(count)} {side} {shown(end)}, none in {self.uri}"
                    if self._is_most(count):
                        yield self._remedy("--bins")

    def _named(self, new: Sequence[UnseenValue], where: str) -> str:
        values = "value" if len(new) == 1 else "values"
        ordered = sorted(new, key=lambda one: -one.n)[:_MOST_VALUES]
        more = f", … {len(new) - _MOST_VALUES} more" if len(new) > _MOST_VALUES else ""
        if self.now.kind == "list":
            # An example may hold several: their shares have no sum.
            each = ", ".join(f"{shown(one.value)} in {self._share(one.n)}" for one in ordered)
            return f"{len(new):,} {values} that {where} ({each}{more} of the examples)"
        share = self._share(sum(one.n for one in new))
        names = ", ".join(shown(one.value) for one in ordered)
        return f"{share} of the examples have {len(new):,} {values} that {where} ({names}{more})"

    def _grown(self, now: int, then: int | None, what: str) -> Iterator[str]:
        if now < self.smallest:
            return
        if then is None:
            if what == "missing":
                yield f"{self._share(now)} missing, which {self.uri} does not test"
        elif then == 0:
            yield f"{self._share(now)} {what}, none in {self.uri}"
        elif now * self.then.examples >= _GREW * then * self.examples and self._is_surely_more(
            now, then
        ):
            before = _percent(then / self.then.examples)
            yield f"{self._share(now)} {what}, {before} in {self.uri}"

    def _is_most(self, count: int) -> bool:
        """Return whether this is more than half of the examples with a value."""
        missing = self.now.seen.missing if self.now.seen is not None else 0
        return 2 * count > self.examples - missing

    def _remedy(self, chosen: str) -> str:
        instead = " instead of --domains" if self.option == "--domains" else ""
        return f"that is one slice, so bin the column again with {chosen}{instead}"

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
    given: GivenDomains, domains: Sequence[FeatureDomain], examples: int, smallest: int
) -> tuple[str, ...]:
    """Return a line for each column that is lost or has values without a predicate.

    The latter only where it is material: a value, missing values or a column that are new and make up a slice
    large enough to be tested; a share of *other* or *missing* that grew by half, and more than chance
    explains; more values beyond the earlier run's smallest or largest than chance explains. The line
    names the remedy where more than half of the values are *other*, or beyond one end.
    """
    lines = [
        f"{name}: a feature in {given.uri}, but not a column of this data; its slices can't be tested."
        for name in given.lost
    ]
    for domain in domains:
        if domain.name in given.domains:
            then = given.domains[domain.name]
            parts = [
                *_ColumnOfBothRuns(
                    given.uri, then, domain, examples, smallest, given.option
                ).parts()
            ]
            if parts:
                lines.append(f"{domain.name}: {'; '.join(parts)}.")
        elif domain.name in given.learned:
            reason = given.reasons.get(domain.name, "not in its data")
            lines.append(
                f"{domain.name}: left out in {given.uri} ({reason}); its values are now tested."
            )
    return tuple(lines)


def is_carried_on(then: Domain, now: Domain) -> bool:
    """Return whether a domain has the predicates of an earlier one, *other* aside."""
    kept = [one for one in then.singletons if one.op != "not_in"]
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
    then_named, now_named = (
        [one.value for one in domain.singletons if one.op in ("==", "contains")]
        for domain in (then, now)
    )
    if condition.op == "not_in":
        new = [value for value in now_named if value not in then_named]
        apart = ", ".join(map(shown, new[:_MOST_VALUES]))
        more = f", … {len(new) - _MOST_VALUES} more" if len(new) > _MOST_VALUES else ""
        if when == "now":
            own = "a predicate" if len(new) == 1 else "predicates"
            has = "has" if len(new) == 1 else "have"
            return f"now {apart}{more} {has} {own} apart from the other values of {field}"
        if any(one.op == "not_in" for one in then.singletons):
            return f"then the other values of {field} contained {apart}{more}, too"
        return f"then {field} had no other values"
    others = then.seen is None and (then.kind == "list" or not then.closed)
    others |= any(one.op == "not_in" for one in then.singletons)
    others |= then.seen is not None and then.seen.other > 0
    if others:
        return f"then this value of {field} was among the other values"
    return f"then no example had this value of {field}"
