"""Models that tests name as ``tests.python_models:function``."""

from pathlib import Path

import numpy as np
from apache_beam.ml.inference.base import ModelHandler, PredictionResult

NOT_CALLABLE = 3


def probability(frame):
    """The probability of class 1."""
    older = (frame["age"] - 40) / 15 + (frame["hours"] - 40) / 20
    return np.asarray(1 / (1 + np.exp(-older - (frame["sex"] == "Male"))), np.float64)


probability.feature_names_in_ = ["age", "hours", "sex"]  # type: ignore[attr-defined]


def old_probability(frame):
    return np.asarray(np.clip(frame["age"] / 80, 0, 1), np.float64)


def of_each_class(frame):
    found = np.stack([frame["age"] + 1, frame["hours"] + 1, 90 - frame["age"]], 1).astype(float)
    return np.asarray(found / found.sum(1, keepdims=True))


def predicted_class(frame):
    return np.asarray(probability(frame) >= 0.3).astype(int)


def hours(frame):
    return np.asarray(27.0 + frame["age"] / 2)


def loaded():
    return probability


def too_few(frame):
    return np.zeros(len(frame) - 1)


def words(frame):
    return np.array(["a"] * len(frame))


def failing(frame):
    raise RuntimeError("no such\nlayer")


class _Handler(ModelHandler):
    def load_model(self):
        return probability

    def run_inference(self, batch, model, inference_args=None):
        import pandas as pd

        found = model(pd.DataFrame(list(batch)))
        return [PredictionResult(one, value) for one, value in zip(batch, found, strict=True)]


def handler():
    return _Handler()


def torch_model():
    """Return a model of PyTorch, as a function of a frame."""
    import torch

    torch.manual_seed(4)
    layers = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

    def predict(frame):
        given = torch.tensor(frame[["age", "hours"]].to_numpy(), dtype=torch.float32) / 50
        return torch.sigmoid(layers(given)).squeeze(1)

    return predict


class Trap:
    """A pickle that leaves a file behind when it is loaded."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)
