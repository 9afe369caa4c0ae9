"""Models of texts whose outputs are a hash of the text: classes, probabilities, numbers and texts.

Each kind has two models, `..._1` and `..._2`, and each model gives no output for some texts. Probabilities
and numbers are whole 64ths, so that ties are frequent and no sum is rounded.
"""

import hashlib

import numpy as np

CLASSES = ("neg", "neu", "pos")
WORDS = ("good", "bad", "Café", "the end", "a-b")
KINDS = ("classes", "probabilities", "numbers", "texts")


def number(text, seed, below):
    digest = hashlib.blake2b(repr((text, seed)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % below


def output(kind, seed, text):
    if number(text, f"{seed} none", 40) == 0:
        return None
    if kind == "classes":
        return CLASSES[number(text, seed, 3)]
    if kind == "numbers":
        return number(text, seed, 64) / 64 - 0.5
    if kind == "texts":
        first = text[0] if isinstance(text, tuple) else text
        ends = (", she said", " GOOD", " bad", "")
        return f"{first}{ends[number(text, seed, 4)]}"
    first_share = number(text, seed, 65)
    second_share = number(text, f"{seed} 2", 65 - first_share)
    shares = (first_share, second_share, 64 - first_share - second_share)
    return {name: share / 64 for name, share in zip(CLASSES, shares, strict=True)}


def _model(kind, seed):
    def model(texts):
        outputs = [output(kind, seed, text) for text in texts]
        if kind == "numbers":
            return np.array([np.nan if one is None else one for one in outputs])
        if kind == "probabilities":
            none = [np.nan] * len(CLASSES)
            rows = [none if one is None else [one[name] for name in CLASSES] for one in outputs]
            return np.array(rows).reshape(len(rows), len(CLASSES))
        return outputs

    if kind == "probabilities":
        model.output_names = list(CLASSES)  # type: ignore[attr-defined]
    return model


classes_1, classes_2 = _model("classes", "1"), _model("classes", "2")
probabilities_1, probabilities_2 = _model("probabilities", "1"), _model("probabilities", "2")
numbers_1, numbers_2 = _model("numbers", "1"), _model("numbers", "2")
texts_1, texts_2 = _model("texts", "1"), _model("texts", "2")
classifier_classes, classifier_probabilities = _model("classes", "c"), _model("probabilities", "c")
