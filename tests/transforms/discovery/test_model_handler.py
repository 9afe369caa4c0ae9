"""Model handlers of a user's own as encoders of text."""

import pickle

import cloudpickle
import numpy as np
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.discovery.encoders import encoder
from tests.refusals import refuses

# Notes each load and batch in a file beside it, as several processes may.
MODULE = """
from pathlib import Path

import numpy as np
from apache_beam.ml.inference.base import KeyedModelHandler, ModelHandler, PredictionResult

NOTES = Path(__file__).with_suffix(".notes")


def note(text):
    with NOTES.open("a") as stream:
        stream.write(text + "\\n")


class Letters(ModelHandler):
    def __init__(self, change=lambda vectors: vectors, **more):
        super().__init__(**more)
        self.change = change

    def batch_elements_kwargs(self):
        return {"max_batch_size": 3}

    def load_model(self):
        note("load")
        return "aeiou"

    def run_inference(self, batch, model, inference_args=None):
        note("|".join(batch))
        vectors = self.change([np.array([text.count(one) for one in model]) for text in batch])
        return [PredictionResult(text, vector) for text, vector in zip(batch, vectors)]


class Tensor:
    def __init__(self, values):
        self.values = values

    def detach(self):
        return self

    def cpu(self):
        return self.values


def broken():
    raise RuntimeError("no weights\\nhere")


def changed(change):
    return lambda: Letters(lambda vectors: [change(*one) for one in enumerate(vectors)])


letters, few = lambda: Letters(), lambda: Letters(lambda vectors: vectors[1:])
lists = changed(lambda _, vector: vector.tolist())
tensors = changed(lambda _, vector: Tensor(vector))
ragged = changed(lambda index, vector: vector[: index + 1])
scalars = changed(lambda _, vector: vector.sum())
infinite = changed(lambda _, vector: vector / 0.0)
words = changed(lambda *_: "positive")
fails = changed(lambda *_: {}["nothing"])
keyed, none = lambda: KeyedModelHandler(Letters()), lambda: None
lowered = lambda: (
    Letters().with_preprocess_fn(str.lower).with_postprocess_fn(lambda one: one.inference * 2)
)


class Unloadable(Letters):
    def load_model(self):
        raise OSError("no weights")


number = 3
"""
TEXTS = ["banana", "kiwi", "", "banana", "cherry", "aubergine", "fig"]
COUNTS = [[text.count(vowel) for vowel in "aeiou"] for text in TEXTS]


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    # A name of its own: what is imported or loaded stays.
    name = f"handlers_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def _notes(tmp_path, module):
    return (tmp_path / f"{module}.notes").read_text().splitlines()


@pytest.mark.parametrize("function", ["letters", "lists", "tensors"])
def test_inferences_are_vectors(tmp_path, module, function):
    made = encoder(f"{module}:{function}", cache=None)
    vectors = made.encode(TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, COUNTS)
    # Each text once, three at a time as the handler asks, by a model that is loaded once.
    made.encode(["plum"])
    assert _notes(tmp_path, module) == ["load", "banana|kiwi|", "cherry|aubergine|fig", "plum"]


def test_functions_before_and_after(module):
    made = encoder(f"{module}:lowered", cache=None)
    np.testing.assert_array_equal(made.encode(["BANANA"]), [[6, 0, 0, 0, 0]])


def test_what_was_embedded_is_kept(tmp_path, module):
    made = encoder(f"{module}:letters", cache=tmp_path / "cache")
    assert made.encode([]).shape == (0, 0)
    made.encode(TEXTS)
    before = _notes(tmp_path, module)
    assert made.encode([]).shape == (0, 5)
    sent = cloudpickle.dumps(made)
    assert len(sent) < 1000
    np.testing.assert_array_equal(pickle.loads(sent).encode(TEXTS[::-1]), COUNTS[::-1])
    assert _notes(tmp_path, module) == before
    other = encoder(f"{module}:lowered", cache=tmp_path / "cache")
    assert other.fingerprint != made.fingerprint
    np.testing.assert_array_equal(other.encode(TEXTS), 2 * np.array(COUNTS))


@pytest.mark.parametrize(("function", "told"), [
    ("few", "the model gives 2 inferences for 3 texts"),
    ("ragged", r"shape \(1,\) and \(2,\) and \(3,\); each must be one vector"),
    ("scalars", r"shape \(\); each must be one vector"),
    ("infinite", "the vector of the text 'banana' contains numbers that are not finite"),
    ("words", "the model failed on 3 texts: ValueError: could not convert"),
    ("fails", "the model failed on 3 texts: KeyError: 'nothing'"),
    ("Unloadable", "loading the model failed: OSError: no weights"),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*encountered in divide")
def test_no_vectors(module, function, told):
    refuses(InputError, told, encoder(f"{module}:{function}", cache=None).encode, TEXTS)


@pytest.mark.parametrize(("function", "told"), [
    ("keyed", r"keyed\(\) returns a KeyedModelHandler, not a ModelHandler"),
    ("none", r"none\(\) returns a NoneType, not a ModelHandler"),
    ("broken", r"broken\(\) failed: RuntimeError: no weights here$"),
    ("number", "number is not a function"),
    ("missing", "has no attribute 'missing'; write module:function"),
])  # fmt: skip
def test_no_handler(module, function, told):
    refuses(InputError, told, encoder, f"{module}:{function}", cache=None)


def test_no_module(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="No module named 'nowhere_at_all'"):
        encoder("nowhere_at_all:function", cache=None)
    (tmp_path / "broken_on_import.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="importing broken_on_import failed: ZeroDivisionError"):
        encoder("broken_on_import:function", cache=None)
