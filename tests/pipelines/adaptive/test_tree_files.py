"""Test trees in AdaTest's files: every value that was read is written again."""

import csv
import gzip
import io
import sys
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.adaptive.tree import Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import read_tree, to_csv, write_tree

HOTELS = Path(__file__).parents[3] / "examples" / "adaptive" / "hotel_tree.csv"
NAMES = ["topic", "input", "output", "label", "labeler", "description"]

texts = st.text(
    st.one_of(st.sampled_from(',"\n\r|[ é🙂'), st.characters(exclude_categories=("Cs",))),
    max_size=12,
)
topics = st.sampled_from(["", "/A", "/A/B b", "/A/B%20b", "/Vocabulary+POS", "/C/D/E"])
labels = st.sampled_from(["pass", "fail", "off_topic", "", "Unknown"])
scores = st.sampled_from(["", "0.0", "nan", "0.25|0.5", "1e-7"])
rows = st.lists(st.tuples(topics, texts, texts, labels, texts, texts, scores), max_size=8)


def markers(found):
    """A marker of each topic of a tree, so that none is imputed."""
    every = {""}
    for topic in found:
        every |= {topic[:at] for at, letter in enumerate(topic) if letter == "/"} | {topic}
    return [
        [f"m{number}", topic, "", "", "", "topic_marker", "", ""]
        for number, topic in enumerate(sorted(every))
    ]


@given(rows, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_tree_is_written_with_the_values_that_it_was_read_with(
    tmp_path_factory, found, line_end, quotes_all, has_end
):
    if sys.version_info < (3, 11):
        # Python's writer did not write this character before.
        found = [tuple(text.replace("\0", "") for text in row) for row in found]
    if not quotes_all:
        # Python's writer leaves a carriage return bare, which no reader takes for part of a value.
        found = [tuple(text.replace("\r", "") for text in row) for row in found]
    # Columns that slicebeam does not know stay where they are.
    header = ["", *NAMES[:3], "model score", *NAMES[3:]]
    table = [[f"t{n}", *row[:3], row[6], *row[3:6]] for n, row in enumerate(found)]
    table += markers([row[0] for row in found])
    text = io.StringIO()
    quoting = csv.QUOTE_ALL if quotes_all else csv.QUOTE_MINIMAL
    csv.writer(text, lineterminator=line_end, quoting=quoting).writerows([header, *table])
    data = text.getvalue().encode()
    path = tmp_path_factory.mktemp("tree") / "tree.csv"
    path.write_bytes(data if has_end else data.removesuffix(line_end.encode()))
    tree = read_tree(str(path))
    written = to_csv(tree)
    assert list(csv.reader(io.StringIO(written.decode(), newline=""))) == [header, *table]
    if line_end == "\n" and not quotes_all:
        # What is written as most programs write it stays as it was.
        assert written == data
    path.write_bytes(written)
    assert to_csv(read_tree(str(path))) == written
    if not found:
        return
    # The values are those that AdaTest's own reader finds.
    if quotes_all and "\r" not in data.decode():
        frame = pd.read_csv(io.BytesIO(data), index_col=0, dtype=str, keep_default_na=False)
        assert frame["input"].tolist() == tree.column("input").tolist()
    changed = tree.change(["t0"], description='new, "text"')
    path.write_bytes(to_csv(changed))
    again = read_tree(str(path))
    assert again.test("t0").description == 'new, "text"'
    assert list(again.rows()) == list(changed.rows())


def test_the_hotel_tree_of_adatest(tmp_path):
    tree = read_tree(str(HOTELS))
    assert to_csv(tree) == HOTELS.read_bytes()
    frame = pd.read_csv(HOTELS, index_col=0, dtype=str, keep_default_na=False)
    for name in (*NAMES, "author", "model score"):
        assert tree.column(name).tolist() == frame[name].tolist()
    assert int(tree.is_test.sum()) == (frame.label != "topic_marker").sum() == 190
    inside = frame[(frame.label != "topic_marker") & frame.topic.str.match(r"/Facilities(/|$)")]
    assert dict(tree.outline())["/Facilities"] == len(inside)
    first = str(frame.index[3])
    out = tmp_path / "tree.csv"
    write_tree(tree.change([first], label="fail").remove([str(frame.index[-1])]), str(out))
    before, after = HOTELS.read_text().splitlines(), out.read_text().splitlines()
    assert len(after) == len(before) - 1
    assert [n for n, (old, new) in enumerate(zip(before, after, strict=False)) if old != new] == [4]
    frame.loc[first, "label"] = "fail"
    pd.testing.assert_frame_equal(
        pd.read_csv(out, index_col=0, dtype=str, keep_default_na=False), frame.iloc[:-1]
    )


def test_what_is_added_and_what_is_not_saved(tmp_path):
    tree = TestTree.of_tests(
        [
            Test("/A/B", "line\nbreak", "x", "pass", id="1"),
            Test("/A/__suggestions__", "maybe", id="2"),
            Test("/A", "same", expectation="should have the same output as", value="Same", id="3"),
            Test("/A", "carriage\rreturn", id="4"),
        ]
    )
    path = tmp_path / "new.csv"
    write_tree(tree, str(path))
    frame = pd.read_csv(path, index_col=0, dtype=str, keep_default_na=False)
    assert list(frame) == [*NAMES, "expectation", "value"]
    assert frame.loc["1", "input"] == "line\nbreak"
    assert "2" not in frame.index
    marks = frame[frame.label == "topic_marker"]
    assert sorted(marks.topic) == ["", "/A", "/A/B"]
    assert set(marks.labeler) == {"imputed"}
    again = read_tree(str(path))
    assert to_csv(again) == path.read_bytes()
    assert again.test("4").input == "carriage\rreturn"
    # A column that the file has not is added to each of its rows, which stay as they are.
    wider = read_tree(str(HOTELS)).change(["02076434c5fc4a389f127e542c479c64"], value="neg")
    lines = to_csv(wider).decode().splitlines()
    assert [line for line in lines if not line.endswith(",")] == [
        f"{HOTELS.read_text().splitlines()[0]},value",
        next(line for line in lines if line.startswith("02076434")),
    ]
    with pytest.raises(KeyError):
        again.remove(["nobody"])


def test_the_older_form_is_read_and_written_as_the_newer_one(tmp_path):
    path = tmp_path / "old.csv"
    path.write_text(
        ",topic,type,value1,value2,value3,author\n"
        "0,,topic_marker,,,,\n"
        "1,/A,topic_marker,,,,\n"
        "2,/A,{} should output {},good,pos,,me\n"
        "3,/A,{} should be frobnicated,bad,neg,,me\n"
        "4,/A,{} should not be more {} than {},bad,pos,good,\n"
    )
    tree = read_tree(str(path))
    assert tree.notes == (f"{path} has AdaTest's older form; it is written in the newer one",)
    assert to_csv(tree).decode().splitlines() == [
        ",topic,input,output,label,labeler,description,expectation,value,author",
        "0,,,,topic_marker,,,,,",
        "1,/A,,,topic_marker,,,,,",
        "2,/A,good,,,,,should output,pos,me",
        "3,/A,bad,,,,,should be frobnicated,neg,me",
        "4,/A,bad,,,,,should not score higher than (class=pos),good,",
    ]


@pytest.mark.parametrize(("text", "message"), [
    ("id,topic,input\n", "unknown column 'output'"),
    ("topic,input,output,label\n", "the first column of a test tree has the ids"),
    (",topic,input,output,label\n1,,a,b,pass\n1,,c,d,pass\n", "the id 1 occurs twice"),
    (",input,input,output,label\n", "two columns named 'input'"),
    ("\x80\x04.", "is a pickle, whose code could run; save the tree as CSV in AdaTest: tree.to_csv("),
])  # fmt: skip
def test_files_that_are_no_trees(tmp_path, text, message):
    path = tmp_path / "tree.csv"
    path.write_text(text, "latin-1")
    with pytest.raises(InputError, match=r"tree\.csv") as caught:
        read_tree(str(path))
    assert message in str(caught.value)


def test_a_topic_without_a_slash_is_at_the_root(tmp_path):
    path = tmp_path / "tree.csv"
    path.write_text(",topic,input,output,label\n1,Rooms,a,b,pass\n2,,,,topic_marker\n")
    tree = read_tree(str(path))
    assert tree.test("1").topic == ""
    assert tree.notes == (
        f"{path}: rows at the root since their topic does not begin with a slash: 1; the first is 'Rooms'",
    )
    assert b"1,,a,b,pass\n" in to_csv(tree)


def test_a_quote_within_a_value_without_quotes_is_read(tmp_path):
    path = tmp_path / "tree.csv"
    path.write_text(',topic,input,output,label\n1,,5" wide,b,pass\n2,,c,d,pass\n')
    tree = read_tree(str(path))
    assert tree.column("input").tolist() == ['5" wide', "c"]
    assert b'1,,"5"" wide",b,pass,\n' in to_csv(tree)


def test_what_is_written_as_gzip_is_read_again(tmp_path):
    tree, path = read_tree(str(HOTELS)), str(tmp_path / "tree.csv.gz")
    write_tree(tree, path)
    with gzip.open(path) as stream:
        assert stream.read() == to_csv(tree)
    assert list(read_tree(path).rows()) == list(tree.with_markers().rows())
