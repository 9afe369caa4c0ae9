"""Slices that a person makes, counted on the data, and the revision that holds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError, nearest, shortened
from slicebeam.pipelines.changelist.discovered import PredicateDefinition
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.changelist.revisions import base_of, later_revision, publish_revision
from slicebeam.pipelines.changelist.rules import slice_id_of
from slicebeam.pipelines.changelist.slices import Origin
from slicebeam.pipelines.config.common import IN_PROCESS, EngineChoice
from slicebeam.pipelines.config.confirmation import NOTHING, Confirmed
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.changelist.discovered import AnyDefinition
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.edits import Edited
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.config.document import CountingConfig
    from slicebeam.transforms.storage.storage import StoragePath


@dataclass(frozen=True)
class DefinedSlice:
    """A slice to count."""

    name: str
    definition: AnyDefinition
    method: Any = "manual"


@dataclass(frozen=True)
class Counting:
    """Where slices are counted; ``other_data``: whether it may be other data than the document's."""

    data: tuple[str, ...] = ()
    engine: EngineChoice = IN_PROCESS
    confirmed: Confirmed = NOTHING
    other_data: bool = False

    @classmethod
    def of(cls, config: CountingConfig) -> Counting:
        """Return where a command's options say."""
        engine = config.runner_config, config.runner_option, config.beam
        return cls(config.data, engine, config.confirmed, config.other_data)


# A slice that somebody made after looking at the result has an interval, and no test: the correction
# of the others does not count it.
_UNTESTED: dict[str, Any] = {
    "p_value": None,
    "p_adjusted": None,
    "test": None,
    "inputs": None,
    "reason": "it was made by hand, so it is not tested",
    "significant": False,
    "label": None,
    "place": None,
}


@dataclass
class EditSession:
    """The document that is edited.

    ``uri``: its path. ``is_last``: whether the edit is to follow the last revision; else it may
    follow any.
    """

    uri: str
    document: SearchChangeList
    is_last: bool = True
    notes: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, changelist: str) -> EditSession:
        """Return the document of a path, or the last revision of that in a folder."""
        uri = base_of(changelist)
        base = cls(uri, read_search(uri, "--changelist"))
        if uri != changelist:
            return base
        base.is_last = False
        later = later_revision(storage_path(uri).parent, base.document)
        if later is not None:
            base.notes.append(
                f"{later.name} is a later revision; this command started from revision "
                f"{base.document.revision}"
            )
        return base

    def data(self, counting: Counting) -> tuple[str, ...]:
        """Return the files or globs of the examples."""
        return counting.data or self.document.dataset.uri

    def counted(self, wanted: Sequence[DefinedSlice], counting: Counting) -> list[Slice]:
        """Return new slices with their sizes and changes."""
        from slicebeam.pipelines.define.measuring import measured
        from slicebeam.pipelines.search.fingerprints import check_same_data

        known = {slice_.slice_id: slice_.name for slice_ in self.document.slices}
        ids = [slice_id_of(one.definition) for one in wanted]
        for slice_id in ids:
            if slice_id in known:
                raise InputError(
                    f"slice {slice_id}, {shortened(known[slice_id])!r}, has the same definition; "
                    "there is nothing to add"
                )
        if counting.data and not counting.other_data:
            check_same_data(self.uri, self.document, counting.data, counting.confirmed)
        found = measured(
            self.document,
            [(one.name, one.definition) for one in wanted],
            data=counting.data or None,
            changelist_uri=self.uri,
            engine=counting.engine,
            confirmed=counting.confirmed,
        )
        slices = []
        for slice_id, one, counted in zip(ids, wanted, found, strict=True):
            if counted.size.n == 0:
                raise InputError(
                    f"slice {shortened(one.name)!r} would have no examples; change its definition"
                    f"{_nearest_value(self.document, one.definition)}"
                )
            update = {
                "slice_id": slice_id,
                "name": one.name,
                "definition": one.definition,
                "origin": Origin(method=one.method),
                "changes": tuple(change.model_copy(update=_UNTESTED) for change in counted.changes),
            }
            slices.append(counted.model_copy(update=update))
        return slices

    def publish(self, edited: Edited, summary: str, counting: Counting | None = None) -> Revision:
        """Write the edited document as the next revision, with a summary of the edit."""
        revised = edited.document
        if edited.edit.coverage is not None:
            revised = self._with_coverage(revised, counting)
        document, path = publish_revision(
            self.uri, self.document, revised, (edited.edit,), is_last=self.is_last
        )
        kept = {(finding.metric, finding.direction, finding.rank) for finding in document.findings}
        gone = [
            f"{finding.rank} of {finding.metric} ({finding.direction})"
            for finding in self.document.findings
            if (finding.metric, finding.direction, finding.rank) not in kept
        ]
        if gone:
            self.notes.append(
                f"removing its slice also removed finding {', '.join(gone)}; the expected values "
                "of findings of higher rank still include it"
            )
        before = {slice_.slice_id: slice_ for slice_ in self.document.slices}
        changed = tuple(
            slice_ for slice_ in document.slices if before.get(slice_.slice_id) != slice_
        )
        return Revision(document, path, changed, tuple(self.notes), summary)

    def _with_coverage(
        self, document: SearchChangeList, counting: Counting | None
    ) -> SearchChangeList:
        """Return an edited document with how much its slices explain, or note why this is unknown."""
        reason = "this edit does not read the examples"
        if counting is not None:
            from slicebeam.pipelines.define.measuring import coverage_of

            try:
                coverage = coverage_of(
                    document,
                    data=counting.data or None,
                    changelist_uri=self.uri,
                    engine=counting.engine,
                    confirmed=counting.confirmed,
                )
            except InputError as error:
                # The edit itself needs less of the data than all slices do.
                reason = str(error)
            else:
                return document.model_copy(update={"coverage": coverage})
        if self.document.coverage:
            self.notes.append(
                f"how much the slices explain together is not known: {reason}; slicebeam check "
                "--changelist with this revision counts it"
            )
        return document


@dataclass(frozen=True)
class Revision:
    """A revision."""

    document: SearchChangeList
    path: StoragePath
    changed: tuple[Slice, ...]
    notes: tuple[str, ...]
    summary: str


def _nearest_value(document: SearchChangeList, definition: AnyDefinition) -> str:
    """Return which known value a condition may have meant, or nothing."""
    known: dict[str, list[str]] = {}
    for domain in document.dataset.domains:
        for singleton in domain.singletons:
            if isinstance(singleton.value, str):
                known.setdefault(singleton.field, []).append(singleton.value)
    conditions = definition.predicate.all if isinstance(definition, PredicateDefinition) else ()
    for condition in conditions:
        near = nearest(str(condition.value), known.get(condition.field, ()))
        if near not in (None, condition.value):
            return f"; did you mean '{condition.field} = {near}'?"
    return ""
