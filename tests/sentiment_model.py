"""A model of texts that takes no notice of negation: a word of praise makes a text positive."""

import re

_GOOD = {"good", "great", "excellent", "lovely", "perfect", "amazing", "happy", "nice", "enjoy"}
_BAD = {"bad", "awful", "terrible", "horrible", "dreadful", "sad", "poor", "hate", "boring"}


def sentiment(texts):
    found = []
    for text in texts:
        words = set(re.findall(r"[a-z]+", text.casefold()))
        balance = len(words & _GOOD) - len(words & _BAD)
        found.append("positive" if balance > 0 else "negative" if balance < 0 else "neutral")
    return found


def kind(texts):
    """Find everything positive."""
    return ["positive"] * len(texts)
