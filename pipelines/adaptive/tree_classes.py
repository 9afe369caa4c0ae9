"""The classes that the tests of a tree name, looked up in the models that score them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.adaptive.class_names import (
    ClassNames,
    Mentions,
    Role,
    Vocabulary,
    check_classes,
    mentioned,
)
from slicebeam.pipelines.paid_api.questions import read_api

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from slicebeam.pipelines.adaptive.scoring import Models, Scored
    from slicebeam.pipelines.adaptive.text_models import Text, TextModel


@dataclass(frozen=True)
class TreeClasses:
    """What is known of the classes before and after tests are scored."""

    # Which class of the models a name in the tree means.
    names: ClassNames
    # The classes that the tests name.
    mentions: Mentions
    # The classes of each model, by the option that names it; empty where nobody knows.
    known: dict[str, frozenset[str]]

    @classmethod
    def of(cls, tests: pa.Table, names: ClassNames, models: Models) -> TreeClasses:
        """Return the classes of scorable tests."""
        mentions = mentioned(tests)
        known = {}
        for model, option, role in _with_roles(models):
            known[option] = frozenset(_classes_of(model, option))
            if known[option]:
                vocabulary = Vocabulary(f"{option} {model.name}", known[option])
                check_classes(names, mentions, vocabulary, role=role)
        return cls(names, mentions, known)

    def check_first(self, model: TextModel, option: str, answers: dict[Text, str | None]) -> None:
        """Refuse tests whose classes are not among the first answers of an endpoint."""
        vocabulary = Vocabulary.of(f"{option} {model.name}", self.known[option], answers)
        check_classes(self.names, self.mentions, vocabulary)

    def never_given(
        self,
        tests: pa.Table,
        models: Models,
        results: Sequence[Scored],
        further: Mapping[Any, str | None] | None = None,
    ) -> dict[str, int]:
        """Return the number of tests by each class that they name, and that a model may not have."""
        found: list[tuple[Vocabulary, Role]] = []
        for model, option, role in _with_roles(models):
            name, known = f"{option} {model.name}", self.known[option]
            vocabulary = Vocabulary(name, known, known)
            if not known and self.mentions[role]:
                answers: dict[Any, str | None] = {}
                if role == "classifier":
                    for one in results:
                        answers |= zip(one.outputs.tolist(), one.second.tolist(), strict=True)
                else:
                    answers |= {_key(text): said for text, said in (further or {}).items()}
                    inputs = (tests[one].to_pylist() for one in ("input", "second_input"))
                    said = results[models.scored.index(model)].outputs.tolist()
                    answers |= zip(map(_key, zip(*inputs, strict=True)), said, strict=True)
                vocabulary = Vocabulary.of(name, known, answers)
            found.append((vocabulary, role))
        counts: dict[str, int] = {}
        scored = [one for one, role in found if role == "output"]
        for vocabulary, role in found:
            others = [one for one in scored if one is not vocabulary] if role == "output" else []
            counts |= check_classes(self.names, self.mentions, vocabulary, others, role)
        return counts


def _key(text: Text) -> Text:
    """Return a text itself for a pair without a second one."""
    return text[0] if isinstance(text, tuple) and not text[1] else text


def _with_roles(models: Models) -> list[tuple[TextModel, str, Role]]:
    """Return the models whose classes tests name, with the options that name them."""
    roles: tuple[tuple[TextModel | None, str, Role], ...] = (
        (models.new, "--model", "output"),
        (models.old, "--baseline-model", "output"),
        (models.classifier, "--output-classifier", "classifier"),
    )
    return [(model, option, role) for model, option, role in roles if model is not None]


def _classes_of(model: TextModel, option: str) -> Sequence[str]:
    if not model.is_paid:
        return model.classes
    labels = read_api(model.name, option).labels
    return [] if labels is None else [str(one) for one in labels.values() if one is not None]
