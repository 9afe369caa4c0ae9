"""A few examples of the slices that the page shows first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.metrics.randomness import splitmix64
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.define.examples import open_examples
from slicebeam.pipelines.page.overview import shown_slices
from slicebeam.transforms.encode.column_values import python_values
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.pipelines.changelist.document import ChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.define.examples import Examples

_LONGEST = 2_000
# What is worth a look first, of one model and of two; "better" findings of two models begin with fixed ones.
_WRONG, _RIGHT = "wrong", "right"
_BROKEN, _FIXED, _BOTH_WRONG, _BOTH_RIGHT = "broken", "fixed", "both wrong", "both right"
# Of an example that the model, of two the new one, gets wrong.
FAILING = (_BROKEN, _BOTH_WRONG, _WRONG)


def examples_of(
    uri: str, document: ChangeList, data: tuple[str, ...], number: int
) -> dict[str, list[dict[str, Any]]]:
    """Return examples of the findings, and of the worst slices of metrics that have none.

    Of a discovery it is all slices that it described, whose examples are in the document. Examples of
    other documents are read from the data: first what the model gets wrong, or what the update broke.

    Parameters
    ----------
    uri : of the document
    data : files or globs; none for those of the document
    number : of examples of each slice

    Returns
    -------
    dict
        Of slices, by their ids: a role, an id where the document has a column of ids, and the fields
        with their values as text.

    Raises
    ------
    InputError
        The document has no slices; the data is on another machine, is missing, or is not what the
        document is about.
    """
    if not isinstance(document, SearchChangeList):
        raise OptionError("--examples: the document of a shift has no findings to show examples of")
    if document.discovery is not None and not data:
        return {one.slice_id: list(_of_document(one, number)) for one in described(document)}
    wanted = set(shown_slices(document))
    slices = [one for one in document.slices if one.slice_id in wanted]
    for path in data or document.dataset.uri:
        if not isinstance(storage_path(path, "--data"), Path):
            raise OptionError(
                f"--examples: {path} is not on this machine; name a copy that is with --data"
            )
    ranked = RankedExamples.of(open_examples(uri, document, data or None), document)
    better = {one.slice_id for one in document.findings if one.direction == "better"}
    return {
        one.slice_id: _read(ranked, one, number, is_better=one.slice_id in better) for one in slices
    }


def described(document: SearchChangeList) -> list[Slice]:
    """Return the slices that a discovery described, in their order; none of other documents."""
    return [one for one in document.slices if one.found is not None]


@dataclass(frozen=True)
class RankedExamples:
    """The examples of a document, in the order in which those of a slice are worth a look.

    Attributes
    ----------
    roles : of each example, whether the models are right; None where no class is predicted
    order : int64 [n], random and for one seed always the same
    """

    examples: Examples
    roles: NDArray[np.str_] | None
    order: IntArray

    @classmethod
    def of(cls, examples: Examples, document: SearchChangeList, seed: int = 0) -> RankedExamples:
        """Return them; ``seed`` is of the order, 0 to 2³² - 1."""
        order = np.argsort(splitmix64(examples.hashes ^ np.uint64(seed << 32)), kind="stable")
        return cls(examples, roles_of(examples, document), order)

    def tiers(self, one: Slice, first: Sequence[str], option: str) -> list[IntArray]:
        """Return the positions of a slice's examples: those of each of the first roles, and the others.

        Parameters
        ----------
        first : roles that are worth a look first; they are nothing where no class is predicted
        option : that asks for examples, for the errors

        Raises
        ------
        InputError
            The slice has another number of examples in the document.
        """
        member = self.examples.counted(one.definition)
        check_size(one, int(member.sum()), option)
        places = self.order[member[self.order]]
        if self.roles is None:
            return [places]
        roles = self.roles[places]
        rest = places[~np.isin(roles, list(first))]
        return [*(places[roles == role] for role in first), rest]


def check_size(one: Slice, held: int, option: str) -> None:
    """Refuse data in which a slice has another number of examples than in the document."""
    if held != one.size.n:
        raise InputError(
            f"{option}: {one.name} has {held:,} examples in this data and {one.size.n:,} in the "
            "document; name the data that the document is about with --data"
        )


def _of_document(one: Slice, number: int) -> Iterator[dict[str, Any]]:
    """Yield the examples that a discovery found typical, worst or best, by turns."""
    found = () if one.found is None else one.found.examples
    by_role: dict[str, list[Any]] = {}
    for example in found:
        by_role.setdefault(example.role, []).append(example)
    turns = max(map(len, by_role.values()), default=0)
    ordered = [some[at] for at in range(turns) for some in by_role.values() if at < len(some)]
    for example in ordered[:number]:
        fields = [(name, _text(value)) for name, value in example.display.items()]
        yield _entry(example.role, example.id, fields)


def _read(
    ranked: RankedExamples, one: Slice, number: int, *, is_better: bool
) -> list[dict[str, Any]]:
    first = (_FIXED, _RIGHT) if is_better else FAILING
    return entries(ranked, np.concatenate(ranked.tiers(one, first, "--examples"))[:number])


def entries(ranked: RankedExamples, places: IntArray) -> list[dict[str, Any]]:
    """Return the role, the id and the fields, of which long values are cut, of some examples."""
    examples, roles = ranked.examples, ranked.roles
    table = examples.rows(places)
    shown = {name: python_values(table.column(name)) for name in table.column_names}
    for name in _outcome_columns(examples.known.document):
        shown[name] = python_values(examples.column(name).take(pa.array(places)))
    ids = [None] * len(places)
    if examples.id_field is not None:
        ids = examples.ids.take(pa.array(places)).to_pylist()
    return [
        _entry(
            "example" if roles is None else str(roles[place]),
            ids[at],
            [(name, _text(values[at])) for name, values in shown.items()],
        )
        for at, place in enumerate(places)
    ]


def _entry(role: str, own_id: Any, fields: list[tuple[str, str]]) -> dict[str, Any]:
    return {"role": role, "fields": fields, **({} if own_id is None else {"id": own_id})}


def _outcome_columns(document: SearchChangeList) -> list[str]:
    """Return the columns of the label and of what the models predict, those that there are."""
    models = sorted(document.models, key=lambda one: one.role == "after")
    found = [document.dataset.label_field]
    found += [one.prediction_field or one.score_field or one.loss_field for one in models]
    return [name for name in found if name is not None]


def roles_of(examples: Examples, document: SearchChangeList) -> NDArray[np.str_] | None:
    """Return of each example whether the models are right; None where no class is predicted."""
    label = document.dataset.label_field
    fields = {one.role: one.prediction_field for one in document.models}
    after, before = fields.get("after"), fields.get("before")
    if label is None or after is None or not document.dataset.classes:
        return None
    truth = examples.column(label).cast(pa.string())
    now = _equal(truth, examples.column(after))
    if before is None:
        return np.where(now, _RIGHT, _WRONG)
    then = _equal(truth, examples.column(before))
    ways = [then & ~now, ~then & now, ~then & ~now]
    return np.select(ways, [_BROKEN, _FIXED, _BOTH_WRONG], _BOTH_RIGHT)


def _equal(truth: pa.Array, predicted: pa.Array) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = np.asarray(
        pc.equal(truth, predicted.cast(pa.string())).fill_null(False)
    )
    return same


def _text(value: Any) -> str:
    if value is None:
        return "missing"
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
