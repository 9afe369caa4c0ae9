import pytest

from slicebeam.metrics.kinds import TFMA, is_tfma, split_outside


def test_the_prefix_says_whose_a_metric_is():
    assert is_tfma(f"{TFMA}NDCG(gain_key=gain)")
    assert not is_tfma("accuracy")
    assert not is_tfma("a,tfma:NDCG")


@pytest.mark.parametrize(("text", "parts"), [
    ("", []),
    (" , ", []),
    ("accuracy,f1", ["accuracy", "f1"]),
    ("tfma:A(b=[1,2],c=(3,4)),auc", ["tfma:A(b=[1,2],c=(3,4))", "auc"]),
    ("tfma:A(b='x,)'),\"y,z\",auc", ["tfma:A(b='x,)')", '"y,z"', "auc"]),
    ("a),b", ["a)", "b"]),
])  # fmt: skip
def test_commas_in_brackets_and_quotes_separate_nothing(text, parts):
    assert split_outside(text) == parts
