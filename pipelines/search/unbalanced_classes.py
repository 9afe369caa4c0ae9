"""A warning if a metric counts right predictions and nearly all examples have one class."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.metric import Needs
from slicebeam.metrics.registry import metric
from slicebeam.transforms.encode.predicates import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.metrics.metric import Metric
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.transforms.encode.extract_predictions import LabelCounts

# Where the most frequent class has this share, a model that misses all examples of all others keeps
# an accuracy of 80 %, and of a slice's accuracy four fifths or so are about that class.
_MOST_FREQUENT = 0.8
# Macro averages are counted for so many classes.
_MOST_MACRO = 64
# Metrics that need no more count the wrong predictions, of whichever class: accuracy, error rate, and
# the micro averages, which equal accuracy.
_ONLY_WRONG = Needs(indicators=("wrong",))


def unbalanced_classes(config: RunConfig, prepared: EncodedDataset) -> Iterator[str]:
    """Yield a line where accuracy, or what equals it, says little of the model.

    At least 80 % of the examples have one class, or always predicting the most frequent class would be right
    as often. Not with other metrics, which show what accuracy hides, nor of two models, whose difference
    such a constant cancels from, nor with weights.
    """
    counts = prepared.label_counts
    names = [name for name in config.metric if metric(name).needs == _ONLY_WRONG]
    if not names or counts is None or config.comparison == "baseline" or config.weight:
        return
    if any(_tells_classes_apart(metric(name).needs) for name in config.metric):
        return
    own, total = metric(names[0]), int(counts.sizes.sum())
    at = int(counts.sizes.argmax())
    largest, most_frequent = int(counts.sizes[at]), _shown(counts.classes[at])
    of_all = prepared.space.counts(prepared.of_all[: prepared.space.columns])
    wrong = int(of_all[prepared.space.holds("wrong")].sum())
    if largest == total:
        yield (
            f"Every label is {most_frequent}: {own.title.lower()} says nothing about any other "
            "class."
        )
        return
    no_better = total - wrong <= largest
    if not no_better and largest < _MOST_FREQUENT * total:
        return
    value, constant = _value(own, wrong, total), _value(own, total - largest, total)
    what = (
        f"is no better than always predicting {most_frequent} ({constant})"
        if no_better
        else f"is mostly about one class: {most_frequent} is the label of {_percent(largest, total)} of "
        f"the examples, and always predicting it has {constant}"
    )
    yield f"{own.title} ({value}) {what}. {_remedy(prepared, counts)}"


def _tells_classes_apart(needs: Needs) -> bool:
    """Return whether a metric holds predictions against one class, or against each of them."""
    return {"positive", "predicted"} <= {*needs.indicators} or needs.classes or needs.ranked


def _remedy(prepared: EncodedDataset, counts: LabelCounts) -> str:
    """Return which metrics say more, with the flags that they take here."""
    rarest = counts.classes[int(counts.sizes.argmin())]
    positive = prepared.outcome.positive_class
    name, flag = "recall,precision", ""
    if positive is not None:
        # Scores speak of this class already.
        name = "recall,precision" if positive == rarest else "specificity,npv"
    elif rarest != 1:
        number = isinstance(rarest, float) and rarest.is_integer()
        flag = f" --positive-class {shlex.quote(str(int(rarest) if number else rarest))}"
    of_rarest = f"--metric {name}{flag} is about class {_shown(rarest)} alone"
    if len(counts.classes) == 2:
        return f"--metric balanced_accuracy{flag} weighs both classes alike, {of_rarest}."
    macro = "--metric recall_macro weighs all classes alike"
    if positive is not None:
        return f"{macro}."
    if len(counts.classes) > _MOST_MACRO:
        return f"{of_rarest}."
    return f"{macro}, {of_rarest}."


def _value(own: Metric, wrong: int, total: int) -> str:
    return _percent(total - wrong if own.higher_is_better else wrong, total)


def _percent(count: int, total: int) -> str:
    """Return a share such that neither none nor all is reached by rounding."""
    text = f"{count / total:.1%}"
    if text == "100.0%" and count < total:
        return "over 99.9%"
    return "below 0.1%" if text == "0.0%" and count else text


def _shown(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return shortened(repr(value))
