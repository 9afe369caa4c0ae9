"""Test trees in AdaTest's files: what nobody touched is written byte for byte."""

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


def markers(found, width):
    """A marker of each topic of a tree, so that none is imputed."""
    every = {""}
    for topic in found:
        every |= {topic[:at] for at, letter in enumerate(topic) if letter == "/"} | {topic}
    blank = [""] * (width - 2)
    return [[f"m{number}", topic, *blank] for number, topic in enumerate(sorted(every))]


def as_csv(table, line_end, quoting):
    text = io.StringIO()
    csv.writer(text, lineterminator=line_end, quoting=quoting).writerows(table)
    return text.getvalue().encode()


@given(
    rows,
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_tree_is_written_as_it_was_read(
    tmp_path_factory, found, line_end, quoting, is_older, has_end
):
    if sys.version_info < (3, 11):
        # Python's writer did not write this character before.
        found = [tuple(text.replace("\0", "") for text in row) for row in found]
    if quoting == csv.QUOTE_MINIMAL:
        # Python's writer leaves a carriage return bare, which no reader takes for part of a value.
        found = [tuple(text.replace("\r", "") for text in row) for row in found]
    if is_older:
        header = ["", "topic", "type", "value1", "value2", "value3", "author", "model score"]
        kinds = ("{} should not output {}", "{} should output {}")
        table = [
            [f"t{n}", row[0], kinds[n % 2], *row[1:3], "", row[4], row[6]]
            for n, row in enumerate(found)
        ]
        table += [
            [*row[:2], "topic_marker", *row[3:]] for row in markers([row[0] for row in found], 8)
        ]
    else:
        header = ["", *NAMES, "model score"]
        table = [[f"t{n}", *row] for n, row in enumerate(found)]
        table += [
            [*row[:4], "topic_marker", *row[5:]] for row in markers([row[0] for row in found], 8)
        ]
    data = as_csv([header, *table], line_end, quoting)
    if not has_end:
        data = data.removesuffix(line_end.encode())
    path = tmp_path_factory.mktemp("tree") / "tree.csv"
    path.write_bytes(data)
    tree = read_tree(str(path))
    assert to_csv(tree) == data
    if not found:
        return
    # The values are those that AdaTest's own reader finds.
    if quoting == csv.QUOTE_ALL and "\r" not in data.decode():
        frame = pd.read_csv(io.BytesIO(data), index_col=0, dtype=str, keep_default_na=False)
        name = "value1" if is_older else "input"
        assert frame[name].tolist() == tree.column("input").tolist()
    changed = tree.change(["t0"], description='new, "text"')
    lines = to_csv(changed)
    again = TestTree.of(changed.table)
    path.write_bytes(lines)
    reread = read_tree(str(path))
    assert reread.test("t0").description == 'new, "text"'
    assert set(reread.column("id")) == set(again.column("id"))
    # All other records stand there as before.
    for place in range(1, len(found)):
        record = tree.source.records[place].as_py().rstrip(b"\r\n")
        assert record in lines


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
    # A column that the file has not is added to each of its rows, which stay as they are.
    wider = read_tree(str(HOTELS)).change(["02076434c5fc4a389f127e542c479c64"], value="neg")
    lines = to_csv(wider).decode().splitlines()
    assert [line for line in lines if not line.endswith(",")] == [
        f"{HOTELS.read_text().splitlines()[0]},value",
        next(line for line in lines if line.startswith("02076434")),
    ]
    moved = again.move_topic("/A/B", "/C")
    assert moved.test("1").topic == "/C"
    with pytest.raises(KeyError):
        again.remove(["nobody"])


def test_a_changed_row_of_the_older_form_keeps_its_form(tmp_path):
    path = tmp_path / "old.csv"
    path.write_text(
        ",topic,type,value1,value2,value3,author\n"
        "0,,topic_marker,,,,\n"
        "1,/A,topic_marker,,,,\n"
        "2,/A,{} should output {},good,pos,,me\n"
        "3,/A,{} should be frobnicated,bad,neg,,me\n"
    )
    tree = read_tree(str(path))
    assert tree.test("2").expectation == "should output"
    assert tree.test("2").value == "pos"
    assert tree.test("3").expectation == "should be frobnicated"
    added = tree.add([Test("/A", "awful", "pos", "fail", id="4")]).change(["2"], value="neg")
    lines = to_csv(added).decode().splitlines()
    assert lines[1:4] == [
        "0,,topic_marker,,,,",
        "1,/A,topic_marker,,,,",
        "2,/A,{} should output {},good,neg,,me",
    ]
    assert "4,/A,{} should not output {},awful,pos,," in lines[5]


@pytest.mark.parametrize(("text", "message"), [
    ("id,topic,input\n", "unknown column 'output'"),
    ("topic,input,output,label\n", "the first column of a test tree has the ids"),
    (",topic,input,output,label\n1,,a,b,pass\n1,,c,d,pass\n", "the id 1 occurs twice"),
    (',topic,input,output,label\n1,,5" wide,b,pass\n2,,c,d,pass\n', "a quote stands within a value"),
    (",input,input,output,label\n", "two columns named 'input'"),
])  # fmt: skip
def test_files_that_are_no_trees(tmp_path, text, message):
    path = tmp_path / "tree.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=r"tree\.csv") as caught:
        read_tree(str(path))
    assert message in str(caught.value)


def test_a_topic_without_a_slash_is_at_the_root(tmp_path):
    path = tmp_path / "tree.csv"
    path.write_text(",topic,input,output,label\n1,Rooms,a,b,pass\n2,,,,topic_marker\n")
    tree = read_tree(str(path))
    assert tree.test("1").topic == ""
    assert tree.source.notes == (
        f"{path}: rows at the root since their topic does not begin with a slash: 1; the first is 'Rooms'",
    )
    assert b"1,Rooms,a,b,pass\n" in to_csv(tree)


def test_what_is_written_as_gzip_is_read_again(tmp_path):
    tree, path = read_tree(str(HOTELS)), str(tmp_path / "tree.csv.gz")
    write_tree(tree, path)
    with gzip.open(path) as stream:
        assert stream.read() == to_csv(tree)
    assert list(read_tree(path).rows()) == list(tree.with_markers().rows())
