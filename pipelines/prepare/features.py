"""What the columns are: what is measured of each example, and the features with their predicates."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from slicebeam.metrics.errors import ColumnError, OptionError, percent, unknown_name
from slicebeam.metrics.measures.registry import averaged_column, needs_of
from slicebeam.pipelines.prepare.source import ROLES, SECONDS_PER_VALUE
from slicebeam.transforms.encode.domains import FeatureDomain, LeftOutColumn
from slicebeam.transforms.encode.extract_predictions import Outcome, Predictor, class_type
from slicebeam.transforms.encode.learn_domains import (
    FEW_VALUES,
    DomainOptions,
    learn_domains,
    written_domains,
)
from slicebeam.transforms.encode.sources import VARIES, Source

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from slicebeam.metrics.arrays import BoolArray, IntArray
    from slicebeam.metrics.measures.metric import Needs
    from slicebeam.pipelines.config.search import SearchConfig
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.inherited import InheritedDomains
    from slicebeam.pipelines.run.stage import Workspace
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.encode.extract_predictions import LabelCounts
    from slicebeam.transforms.storage.parts import WriteParts


def resolve_outcome(config: RunConfig, source: Source) -> Outcome:
    """Return the measurements of each example, after checking that the columns match."""
    label_type = source.column_type(config.label, "--label") if config.label else pa.null()
    needs = needs_of(config.measured)
    new, old = (_predictor(config, prefix, needs, source) for prefix in ("", "baseline_"))
    is_paired = config.comparison == "baseline"
    # Else the slice is held against all examples: what the old model said is of no account.
    reads_old = is_paired or needs.two_models
    compared = [
        class_type(config.label, label_type, column, source.schema.field(column).type)
        for column in (new.column, old.column if reads_old else None)
        if column and needs.predicted_classes
    ]
    for name in filter(None, map(averaged_column, needs.values)):
        source.column_type(name, f"--metric mean:{name}")
    if config.weight:
        source.column_type(config.weight, "--weight")
    outcome = Outcome(
        config.label or None,
        "",
        new,
        old if reads_old else None,
        is_paired=is_paired,
        score_classes=tuple(config.score_classes) or _classes_of(config, source),
        threshold=config.threshold,
        needs=needs,
        weight=config.weight,
        cuts_models=config.cuts_models,
    )
    common = ""
    if outcome.uses_classes:
        own = class_type(config.label, label_type, config.label, label_type)
        common = "double" if "double" in [own, *compared] else own
    is_binary = needs.one_class or (config.uses_threshold and needs.predicted_classes)
    positive = _positive_class(config, label_type, common) if is_binary else None
    return replace(outcome, class_type=common, positive_class=positive)


def _predictor(config: RunConfig, prefix: str, needs: Needs, source: Source) -> Predictor:
    column, score, model = (
        getattr(config, prefix + name) for name in ("prediction", "score", "model")
    )
    loss = getattr(config, prefix + "loss") if needs.losses else None
    for name, option in ((column, "prediction"), (score, "score"), (loss, "loss")):
        if name:
            source.column_type(name, "--" + prefix.replace("_", "-") + option)
    # Beside predicted classes the score is only read where a metric is about scores.
    is_read = needs.scores or needs.class_scores or needs.rankings or not (column or model)
    return Predictor(column, score if is_read else None, model, loss)


def _classes_of(config: RunConfig, source: Source) -> tuple[str, ...]:
    """Return the classes that the columns of scores name after their common beginning, which ends in a _."""
    classes: dict[tuple[str, ...], None] = {}
    for name in (config.score, config.baseline_score):
        if columns := source.lists.get(name or ""):
            begin = commonprefix(columns).rfind("_") + 1  # noqa: RUF071  (of texts)
            classes[tuple(column[begin:] for column in columns)] = None
    if len(classes) > 1:
        new, old = (", ".join(names) for names in classes)
        raise OptionError(
            f"--score has the classes {new}, and --baseline-score {old}; name the same ones in the same "
            "order, or give --score-classes"
        )
    return next(iter(classes), ())


def _positive_class(config: RunConfig, label_type: pa.DataType, common: str) -> Any:
    text = config.positive_class
    if common == "string" and text is None:
        about = ", ".join(config.metric) if needs_of(config.metric).one_class else "--parity"
        why = f"{about} is about one class"
        if config.uses_threshold:
            why = "--score does not say which class it refers to"
        raise OptionError(f"--positive-class is missing: label {config.label!r} is text, and {why}")
    if common == "string":
        return text
    if text is None:
        text = "1"
    elif pa.types.is_boolean(label_type) and text.lower() in ("true", "false"):
        return int(text.lower() == "true")
    try:
        return float(text) if common == "double" else int(text)
    except ValueError as error:
        raise OptionError(
            f"--positive-class {text!r} is not a value of label {config.label!r}, which is {label_type}"
        ) from error


_MOST_GROUPS = 200  # of --parity: every pair is compared
_NAMED_OUTPUT = "named like a model's output; --keep-outputs makes features of such"


class ChosenColumns(NamedTuple):
    """The columns that are features, and those that are not because of their names."""

    features: list[str]
    left_out: tuple[LeftOutColumn, ...]


def choose_features(config: RunConfig, source: Source) -> ChosenColumns:
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
    roles = {getattr(config, role) or None for role in ROLES}
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
    outputs = []
    if config.leaves_outputs_out:
        outputs = [name for name in features if is_named_output(name, config.label or "")]
        # Something is left to slice by.
        outputs = outputs if len(outputs) < len(features) else []
    left_out = (*(LeftOutColumn(name, _NAMED_OUTPUT) for name in outputs), *varying)
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

    given: InheritedDomains | None
    top_values: int
    transform: WriteParts


def learning(
    config: SearchConfig, source: Source, features: Sequence[str], work: WorkFolder
) -> Learning:
    """Return what is to be learned of the features."""
    given, top_values = None, config.top_values
    if config.domains:
        from slicebeam.pipelines.prepare.inherited import inherited_domains

        given = inherited_domains(config.domains, source, features, config.domains_option)
        if config.features:
            # A feature that the user did not name is not missed.
            given = replace(given, lost=())
        features = given.features
        if given.top_values and "top_values" not in config.model_fields_set:
            top_values = given.top_values
    options = DomainOptions(
        config.bins,
        top_values,
        frozenset(config.features),
        config.memory,
        {} if given is None else given.domains,
        config.used_min_slice_size,
        config.exact_edges,
    )
    transform = learn_domains(source, features, options, work.folder("domains"))
    return Learning(given, top_values, transform)


def learn(config: SearchConfig, source: Source, features: Sequence[str], run: Workspace) -> Learned:
    """Return the domains of the features: learned, or those of another run with new values."""
    given, top_values, transform = learning(config, source, features, run.work)
    number = sum(map(len, transform.items))
    seconds = source.rows * number * SECONDS_PER_VALUE
    parts = []
    if number:
        parts = run.parts("domains", transform, seconds=seconds, reads_data=True)
    learned = written_domains(parts)
    domains = tuple(domain for domain in learned if isinstance(domain, FeatureDomain))
    left_out = tuple(domain for domain in learned if isinstance(domain, LeftOutColumn))
    if given is None:
        return Learned(domains, left_out, (), top_values)
    from slicebeam.pipelines.prepare.inherited import drift_lines

    drift = drift_lines(given, domains, source.rows, config.used_min_slice_size)
    return Learned(domains, (*given.left_out, *left_out), drift, top_values, given.lost)


LooksLike = Literal["output", "label", "id"]

# The words of a name: runs of capitals, words in lower case or with one capital.
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+")
# `modelscore` and `predclass`, but neither `problem`, `probation` nor `predecessor`.
_OUTPUT = re.compile(
    r"\w*(score[sd]?|scoring|probs?|probas?|probabilit(y|ies)|preds?|predict(ed|ions?)?|logits?)"
    r"|(score|pred|prob)(old|new|class|label|pos|neg)|yhat"
)
# The words of `y_pred_v2`, `score_old` and `predicted_class`, but not all of `credit_score`.
_ONLY_OUTPUT = re.compile(
    r"scores?|probs?|probas?|probabilit(y|ies)|preds?|predict(ed|ions?)|logits?|y|p|y?hat"
    r"|old|new|baseline|prev(ious)?|current|candidate|champion|challenger|prod|model|v|class|label|pos|neg"
)
_ID = frozenset({"id", "uuid", "guid", "idx", "index"})
# Of a column that looks like an id at least this share of the values are distinct; of one that is
# called so, this share. Integers that are all distinct, and text above the second share, are left out.
_ALMOST_ALL = 0.99
_MANY = 0.5
# A column predicts the label almost perfectly where it leaves one in so many of the errors.
ERRORS_PER_LEFT = 20
# With fewer examples outside the most frequent class nothing is said.
FEWEST_OTHERS = 20


@dataclass(frozen=True)
class ColumnHint:
    """A feature that may be better left out, and why."""

    name: str
    looks_like: LooksLike
    reason: str


def feature_hints(
    domains: Sequence[FeatureDomain], labels: LabelCounts | None, rows: int, chosen: Collection[str]
) -> tuple[ColumnHint, ...]:
    """Return the features that look like no property of an example, in their order."""
    tables = labels.tables if labels is not None else (None,) * len(domains)
    return tuple(
        hint
        for domain, table in zip(domains, tables, strict=True)
        if domain.name not in chosen
        for hint in _hints(domain, table, rows)
    )


def _hints(domain: FeatureDomain, table: IntArray | None, rows: int) -> Iterator[ColumnHint]:
    """Yield at most one hint, the one with most behind it."""
    name, seen = domain.name, domain.seen
    if table is not None:
        is_range = np.zeros(len(table), bool)
        ranges = [term.op not in ("==", "not_in", "is_null") for term in domain.singletons]
        is_range[: len(ranges)] = ranges
        predicted = predicts_label(table, is_range)
        if predicted is not None:
            right, share = percent(predicted.right), percent(predicted.most_frequent)
            reason = f"predicts {right} of the labels; {share} are the most frequent one"
            yield ColumnHint(name, "label", reason)
            return
    if looks_like_output(name):
        yield ColumnHint(name, "output", "its name")
    elif (
        seen is not None
        and seen.distinct is not None
        and domain.data_type not in ("string", "bool")
    ):
        present = rows - seen.missing
        needed = _ALMOST_ALL if "int" in domain.data_type else np.inf
        if _ID & set(words_of(name)):
            needed = _MANY
        if present > FEW_VALUES and seen.distinct >= needed * present:
            yield ColumnHint(name, "id", f"{seen.distinct:,} distinct values in {present:,}")


class LabelPrediction(NamedTuple):
    """How well the value of a column alone predicts the label."""

    right: float  # share of examples whose class is predicted from their value
    most_frequent: float  # share of the most frequent class


def predicts_label(table: IntArray, is_range: BoolArray) -> LabelPrediction | None:
    """Return how much of the label the table [values, classes] predicts if almost all; None elsewhere.

    Each example is predicted to be of the most frequent class among the *others* with its value. Almost all: one
    error in `ERRORS_PER_LEFT` is left at most (Goodman and Kruskal's lambda, J. Am. Stat. Assoc. 49, 1954), also
    without the range of most errors, where two classes may meet, if half of the other examples remain.

    >>> nothing = np.zeros(2, bool)
    >>> predicts_label(np.array([[700, 2], [3, 295]]), nothing)
    LabelPrediction(right=0.995, most_frequent=0.703)
    >>> predicts_label(np.array([[600, 150], [100, 150]]), nothing)
    """
    whole = _judged(table)
    if whole is not None or not is_range.any():
        return whole
    rest = np.delete(table, int(np.argmax(np.where(is_range, _errors(table), -1))), axis=0)
    return None if 2 * _others(rest) < _others(table) else _judged(rest)


def _errors(table: IntArray) -> IntArray:
    """Return the wrong predictions among the examples of each value [values]."""
    size = table.sum(axis=1)
    ordered = np.sort(np.pad(table, ((0, 0), (2, 0))), axis=1)
    first, second = ordered[:, -1], ordered[:, -2]
    # Without itself, an example of the first class may find the second one as frequent.
    return np.where(first - 1 > second, size - first, size)


def _others(table: IntArray) -> int:
    """Return the examples that are not of the most frequent class."""
    return int(table.sum() - table.sum(axis=0).max(initial=0))


def _judged(table: IntArray) -> LabelPrediction | None:
    size, others, wrong = int(table.sum()), _others(table), int(_errors(table).sum())
    if others < FEWEST_OTHERS or wrong * ERRORS_PER_LEFT > others:
        return None
    return LabelPrediction((size - wrong) / size, (size - others) / size)


def words_of(name: str) -> list[str]:
    """Return the words of a column's name in lower case.

    >>> words_of("BaselineScore-2_y_pred")
    ['baseline', 'score', 'y', 'pred']
    """
    return [word.lower() for word in _WORDS.findall(name)]


def looks_like_output(name: str) -> bool:
    """Return whether a column's name is that of a score, a probability or a prediction.

    >>> [looks_like_output(name) for name in ("score_old", "P-PROBA", "yPred1", "problem", "predator")]
    [True, True, True, False, False]
    """
    words = words_of(name)
    return any(map(_OUTPUT.fullmatch, words)) or ("y", "hat") in pairwise(words)


def is_named_output(name: str, label: str = "") -> bool:
    """Return whether a name says of a model's output, perhaps with the label's name, and nothing else.

    >>> [is_named_output(name) for name in ("score_old", "y_pred_v2", "Predicted-Class", "credit_score", "y")]
    [True, True, True, False, False]
    >>> is_named_output("score_return", "returned"), is_named_output("credit_score", "default")
    (True, False)
    """
    of_label = set(map(_stem, words_of(label)))
    return looks_like_output(name) and all(
        _ONLY_OUTPUT.fullmatch(word) or _stem(word) in of_label for word in words_of(name)
    )


def _stem(word: str) -> str:
    """Return a word without the ending that a label's name may have: `returned`, `returns`, `return`."""
    return re.sub(r"(?<=...)(e?d|ing|e?s|e)$", "", word)
