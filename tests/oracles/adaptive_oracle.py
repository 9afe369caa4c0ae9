"""Test trees by the words of the documentation: one test after another, with scipy and pandas.

Nothing here is imported from the code under test.
"""

import json
import re

import pandas as pd
from scipy import stats

_NO_OUTPUT = ("", "__TOEVAL__", "[no output]")
_SYNONYMS = {
    "should be": "should output",
    "should not be": "should not output",
    "should be the same as for": "should have the same output as",
    "should not be less than for": "should not score lower than",
}


def failed(test, model, classifier=None):
    """Return whether a model, a function of an input, fails a test; None where that can't be said."""
    if test["label"] in ("off_topic", "topic_marker") or "/__suggestions__" in test["topic"]:
        return None
    phrase, value = test["expectation"], test["value"]
    if not phrase:
        if test["label"] not in ("pass", "fail") or test["output"] in _NO_OUTPUT:
            return None
        phrase = "should output" if test["label"] == "pass" else "should not output"
        value = test["output"]
    written = re.fullmatch(r"([^(]*?)\s*(?:\((.*)\))?", phrase)
    assert written is not None
    name = _SYNONYMS.get(written[1], written[1])
    given = dict(part.strip().split("=") for part in (written[2] or "").split(",") if part)
    tolerance = float(given.get("tolerance", 0))
    if not value:
        return None
    second = test.get("second_input", "")
    asked = (test["input"], second) if second else test["input"]
    now = model(asked)
    if now is None:
        return None
    if "unless" in given and _said(now) == given["unless"]:
        return None
    if name.startswith(("should have the same", "should not score")):
        others = [model(other) for other in _inputs(value)]
        compared = []
        for other in others:
            if other is None:
                return None
            if name == "should have the same output as":
                compared.append(_differ(now, other, tolerance))
                continue
            change = _change(now, other, given.get("class"))
            if change is None:
                return None
            fall = -change if name == "should not score lower than" else change
            compared.append(fall > tolerance)
        return any(compared)
    if name == "should output":
        return not _is(now, value, at_least_tied=True)
    if name == "should not output":
        return _said(now) == value
    text = _said(now)
    if name == "should not be classified as":
        found = classifier(text) if classifier is not None else None
        return None if found is None else _is(found, value, at_least_tied=False)
    holds = value in text if "contain" in name else text.startswith(value)
    assert name.endswith(("contain", "start with")), name
    return holds if " not " in name else not holds


def _said(output):
    """The class of an output, or its text."""
    if isinstance(output, dict):
        return max(output, key=lambda name: output[name])
    return str(output)


def _is(output, value, *, at_least_tied):
    """Whether an output is a class: of probabilities the largest, or one of those that share it."""
    if not isinstance(output, dict):
        return str(output) == value
    if value not in output:
        return False
    best = max(other for name, other in output.items() if name != value)
    return output[value] >= best if at_least_tied else output[value] > best


def _differ(now, other, tolerance):
    """Whether outputs differ: classes, by more than the tolerance where they have a probability."""
    if isinstance(now, dict) and isinstance(other, dict):
        named = _said(now)
        is_other = not _is(other, named, at_least_tied=True)
        return is_other and abs(other[named] - now[named]) > tolerance
    if isinstance(now, float) and isinstance(other, float):
        return abs(other - now) > tolerance
    return now != other


def _change(now, other, named):
    if isinstance(now, float) and isinstance(other, float):
        return now - other
    if not isinstance(now, dict) or not isinstance(other, dict):
        return None
    first, _, second = (_said(now) if named is None else named).partition(" - ")
    if first not in now or (second and second not in now):
        return None
    ends = [one[first] - (one[second] if second else 0.0) for one in (now, other)]
    return ends[0] - ends[1]


def _inputs(value):
    if not value.startswith("["):
        return [value]
    return [tuple(one) if isinstance(one, list) else one for one in json.loads(value)]


def topics_of(tests):
    """Return what became of each topic with those below it, by whether ``new`` and ``old`` fail each test."""
    two, rows = "old" in tests, {}
    for topic in sorted({one for full in tests.topic for one in _above(full)}):
        some = tests[[topic in _above(one) for one in tests.topic]]
        n, new = len(some), int(some.new.sum())
        old = int(some.old.sum()) if two else new
        # A fifth, in whole numbers.
        was, now = old * 5 >= n, new * 5 >= n
        rule = "failing" if was and now else "broken" if now else "fixed" if was else "passing"
        rows[topic] = {"tests": n, "failures": new, "rule": rule}
        if two:
            b, c = int((some.new & ~some.old).sum()), int((some.old & ~some.new).sum())
            p = 1.0
            if b + c:
                law = stats.binom(b + c, 0.5)
                p = min(1.0, 2 * law.cdf(min(b, c)) - law.pmf(min(b, c)))
            rows[topic] |= {"failures_before": old, "newly_failing": b, "newly_passing": c, "p": p}
    found = pd.DataFrame.from_dict(rows, orient="index")
    if two:
        found["q"] = stats.false_discovery_control(found.p, method="bh")
        found["significant"] = [
            "" if row.q > 0.05 else "broken" if row.newly_failing > row.newly_passing else "fixed"
            for row in found.itertuples()
        ]
    return found


def _above(topic):
    parts = topic.split("/")
    return ["/".join(parts[:end]) for end in range(2, len(parts) + 1)]
