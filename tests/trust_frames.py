"""Tables on which a run once said too little, made anew by every test."""

import numpy as np
import pandas as pd


def only_recall_is_worse(n=6000, seed=11):
    """Slice ``f = a`` misses positives as often more as it takes negatives for positives less."""
    rng = np.random.default_rng(seed)
    feature, label = rng.choice(list("abcd"), n), rng.integers(0, 2, n)
    wrong = np.where((feature == "a") & (label == 1), 0.4, np.where(feature == "a", 0.0, 0.2))
    prediction = np.where(rng.random(n) < wrong, 1 - label, label)
    return pd.DataFrame({"f": feature, "y": label, "p": prediction})


def night(accuracy, n=4000, seed=1):
    """A model that is right as often on every slice."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, n)
    frame = pd.DataFrame({"f": rng.choice(list("abc"), n), "k": rng.choice(list("uvw"), n)})
    return frame.assign(y=label, p=np.where(rng.random(n) < accuracy, label, 1 - label))


def few_groups(groups=10, n=4000, seed=5):
    """Slice ``f = a`` is right half of the time, the others four times of five."""
    rng = np.random.default_rng(seed)
    feature, label = rng.choice(list("abcd"), n), rng.integers(0, 2, n)
    right = rng.random(n) < np.where(feature == "a", 0.5, 0.9)
    users = [f"u{number}" for number in rng.integers(0, groups, n)]
    columns = {"f": feature, "y": label, "p": np.where(right, label, 1 - label), "u": users}
    return pd.DataFrame(columns)
