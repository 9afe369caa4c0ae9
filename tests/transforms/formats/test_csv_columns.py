import csv
import gzip
import io
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicebeam.transforms.formats import csv_columns
from slicebeam.transforms.formats.csv_columns import read_csv_blocks
from tests.transforms.formats.reading import refused, write

error_of = partial(refused, read_csv_blocks)


def read(path, **options):
    return pa.concat_tables(read_csv_blocks(path, **options))


def test_values_are_kept_as_written(tmp_path):
    path = write(tmp_path / "a.csv", 'a,b\n 1,""\n,007\n\n"x\ny","q""q"\n')
    assert read(path).to_pydict() == {"a": [" 1", None, "x\ny"], "b": ["", "007", 'q"q']}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_byte_order_mark(tmp_path, end, mark):
    path = write(tmp_path / "a.csv", mark + end.join(["", "a,b", "1,2", "3,4"]).encode())
    assert read(path).to_pydict() == {"a": ["1", "3"], "b": ["2", "4"]}


def test_names_given_and_lines_left_out(tmp_path):
    path = write(tmp_path / "a.csv", "|a remark, with commas, in it\n1,2\n3,4\n")
    table = read(path, column_names=["a", "b"], skip_rows=1)
    assert table.to_pydict() == {"a": ["1", "3"], "b": ["2", "4"]}
    headed = write(tmp_path / "b.csv", "# one\n# two\na,b\n1,2\n")
    assert read(headed, skip_rows=2).to_pydict() == {"a": ["1"], "b": ["2"]}


@pytest.mark.parametrize("data", ["a,b\n", "a,b", '"a","b"\r\n\r\n\n'])
def test_header_only_gives_an_empty_table(tmp_path, data):
    table = read(write(tmp_path / "a.csv", data))
    assert table.num_rows == 0
    assert table.schema == pa.schema([("a", pa.string()), ("b", pa.string())])


def test_header_over_lines_and_long(tmp_path):
    names = ["one\ntwo", *[f"column number {i} é" for i in range(9000)]]
    stream = io.StringIO()
    csv.writer(stream).writerows([names, range(9001)])
    table = read(write(tmp_path / "a.csv", stream.getvalue()))
    assert (table.column_names, table.num_rows) == (names, 1)


def test_gzip(tmp_path):
    path = write(tmp_path / "a.csv.gz", gzip.compress(b"a,b\n1,2\n" * 1))
    assert read(path).to_pydict() == {"a": ["1"], "b": ["2"]}


def test_blocks_are_bounded_and_in_order(tmp_path):
    rows = [str(i) for i in range(20000)]
    path = write(tmp_path / "a.csv", "a,b\n" + "".join(f"{r},x\n" for r in rows))
    blocks = list(read_csv_blocks(path, block_bytes=4096))
    assert len(blocks) > 20
    assert max(block.nbytes for block in blocks) < 1 << 15
    assert pa.concat_tables(blocks)["a"].to_pylist() == rows


def test_reading_may_stop_early(tmp_path):
    blocks = read_csv_blocks(write(tmp_path / "a.csv", "a,b\n" + "1,2\n" * 20000), block_bytes=1024)
    assert next(blocks).num_rows
    blocks.close()


def test_row_longer_than_a_block(tmp_path):
    rows = [("a", "b"), *[(str(i), "x") for i in range(500)], ("y" * 70000, "z"), ("1", "2")]
    path = write(tmp_path / "a.csv", "".join(",".join(row) + "\n" for row in rows))
    assert list(zip(*read(path, block_bytes=1024).to_pydict().values(), strict=True)) == rows[1:]


cells = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(2, 4).flatmap(
        lambda n: st.lists(
            st.lists(cells | st.sampled_from(["", '"', "\n", " "]), min_size=n, max_size=n),
            max_size=12,
        )
    ),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n"]),
    block=st.sampled_from([64, 1 << 20]),
)
def test_what_csv_writes_is_read_back(tmp_path_factory, rows, quoting, end, block):
    width = len(rows[0]) if rows else 2
    stream = io.StringIO()
    writer = csv.writer(stream, quoting=quoting, lineterminator=end)
    writer.writerows([[f"c{i}" for i in range(width)], *rows])
    path = write(tmp_path_factory.mktemp("csv") / "a.csv", stream.getvalue())
    table = read(path, block_bytes=block)
    empty = "" if quoting == csv.QUOTE_ALL else None
    expected = [[cell or empty for cell in row] for row in rows]
    assert [list(row.values()) for row in table.to_pylist()] == expected


def test_a_value_amid_the_file_does_not_look_like_a_quote_that_never_closes(tmp_path, monkeypatch):
    """Arrow has read on, up to a quote that opens, when it gives a block that ends in a line end."""
    inner = csv_columns._arrow_blocks

    def reading_ahead(body, *given):
        blocks, end = [*inner(body, *given)], body.tail
        for block in blocks:
            body.tail = b'c,"\n'
            yield block
        body.tail = end

    monkeypatch.setattr(csv_columns, "_arrow_blocks", reading_ahead)
    rows = [["a" * 40, "\n"], ["b" * 40, "\n"], ["c", "\n"], ["d" * 40, "e"]]
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([["x", "y"], *rows])
    table = read(write(tmp_path / "a.csv", stream.getvalue()), block_bytes=64)
    assert [list(row.values()) for row in table.to_pylist()] == rows


NAMED = {"column_names": ["a", "b"], "skip_rows": 2}
SEMICOLON = {"delimiter": ";"}
UNCLOSED = "a quote opened here is never closed"


@pytest.mark.parametrize(("data", "options", "message"), [
    *[(data, {}, "the file is empty") for data in ("", "\n\n", "\ufeff")],
    *[(data, {"column_names": ["a"]}, "the file is empty") for data in ("", "\n\n", "\ufeff")],
    ("a,b\n" + '"x\ny",2\n' * 300 + "1,2,3\n4,5\n", {"block_bytes": 512}, "a.csv, line 602: 3 fields where the header has 2: '1,2,3'"),
    ("#\n#\n1,2\n3\n", NAMED, "line 4: 1 field where --column-names has 2: '3'"),
    ("|1x3 Cross validator\n1,2,3\n", {}, "line 2: 3 fields where the header has 1 ... --skip-rows"),
    ("a,b,a\n", {}, "two columns named 'a'"),
    ("a,,b\n", {}, "no name for column 2 of 3"),
    (",a\n", {}, "column 1"),
    (gzip.compress(b"a,b\n1,2\n", mtime=0), {}, "name it .gz"),
    *[(data, {}, UNCLOSED) for data in ('a\n"', 'a\n"\n', 'a\n1\n"\n', 'a\r\n1\r\n"\r\n')],
    *[(f'a,b\n1,2\n3,"{rest}', {}, f"line 3: {UNCLOSED}") for rest in ("", "abc", "abc\n3,4\n5,6", 'a""b')],
    *[(f'a,b\n1,2\n3,"{rest}\n', {}, f"line 3: {UNCLOSED}") for rest in ("", "abc", "abc\n3,4\n5,6", 'a""b')],
    *[(f'a,b\n1,2\n3,"{rest}\r\n', {}, f"line 3: {UNCLOSED}") for rest in ("", "abc", "abc\n3,4\n5,6", 'a""b')],
    ("a;b\n1;2\n3;4;5\n", SEMICOLON, "line 3: 3 fields where the header has 2: ... contains ';' in"),
    ('a;b\n1;2\n3;"4\n5;6\n', SEMICOLON, f"line 3: {UNCLOSED}"),
    (b'a,"b\n', {}, "a quote in the header is never closed"),
    (b'a,"b\n1,2,"x",3,"y,z\n', {}, "a quote in the header is never closed"),
    (b'a,b\r1,"x\r', {}, "a quote opened here is never closed"),
    ("a;b\n1,5;2\n", {}, "are values separated by ';'? give --delimiter ';'"),
])  # fmt: skip
def test_files_that_are_refused(tmp_path, data, options, message):
    error = error_of(write(tmp_path / "a.csv", data), **options)
    assert all(part in error for part in message.split(" ... ")), error


@pytest.mark.parametrize("before", ["", "\n", "#,#\n"])
def test_remark_before_the_data(tmp_path, before):
    path = write(tmp_path / "a.csv", f"{before}|1x3 Cross validator\n1,2,3\n")
    message = error_of(path, column_names=["a", "b", "c"], skip_rows=before.count("#,#"))
    line = before.count("\n") + 1
    assert f"line {line}: 1 field where --column-names has 3" in message
    assert message.endswith(f"the first line may not be data: --skip-rows {line}")
    assert read(path, column_names=["a", "b", "c"], skip_rows=line).num_rows == 1


@pytest.mark.parametrize("cell", ["", '"', "\n", '"\n', "\n\n", 'a"\n', '"\n"\n', "a\n"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_last_value_in_quotes_is_read(tmp_path, cell, end):
    quoted = cell.replace('"', '""')
    path = write(tmp_path / "a.csv", f'a,b\n1,2\n3,"{quoted}"{end}')
    assert read(path)["b"].to_pylist() == ["2", cell]


def test_a_short_row_that_is_no_text_is_told_without_noise(tmp_path, capfd):
    assert "x.csv, line 3: not UTF-8" in error_of(write(tmp_path / "x.csv", b"a,b\nc,d\n\xa9\n"))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("data", [b'a\n"\n"\n', b'a\n1\n"\n"', b'a\n"x"\n"\n"\n'])
def test_a_line_end_in_quotes_is_a_value(tmp_path, data):
    assert list(read_csv_blocks(write(tmp_path / "x.csv", data)))[-1].to_pydict()["a"][-1] == "\n"


@pytest.mark.parametrize("begin", range(8))
def test_a_line_end_in_quotes_is_kept_wherever_a_block_ends(tmp_path, begin):
    rows = [("x" * begin, "1"), *(("a\r\nb", "\r\n\r"), ("\r\r\n", "é")) * 40]
    text = "".join(f'"{one}","{other}"\r\n' for one, other in rows)
    path = write(tmp_path / "a.csv", "first,second\r\n" + text)
    for block in (64, 65, 67):
        table = pa.concat_tables(read_csv_blocks(str(path), block_bytes=block))
        assert list(zip(*(column.to_pylist() for column in table.columns), strict=True)) == rows


@pytest.mark.parametrize("delimiter", [";", "\t", "|", " "])
def test_other_delimiters(tmp_path, delimiter):
    rows = [["a", "b, c", "d"], ["1,5", "x;y\t|z w", 'q"q']]
    rows += [["", "two\nlines", "é"], ["3", "4", "5"]]
    stream = io.StringIO()
    csv.writer(stream, delimiter=delimiter).writerows(rows)
    table = read(write(tmp_path / "a.csv", stream.getvalue()), delimiter=delimiter)
    assert table.column_names == rows[0]
    assert [[value or "" for value in row.values()] for row in table.to_pylist()] == rows[1:]


@pytest.mark.parametrize(("head", "skip"), [("", 0), ("# made by hand\n", 1), ("\ufeff", 0)])
def test_names_that_are_the_header_are_refused(tmp_path, head, skip):
    path = write(tmp_path / "a.csv", f'{head}"a",b\n1,2\n')
    assert error_of(path, column_names=["a", "b"], skip_rows=skip) == (
        f"{path}, line {skip + 1}: the file starts with the names given by --column-names; leave "
        f"--column-names out, or give --skip-rows {skip + 1}"
    )
    remedied = read(path, column_names=["a", "b"], skip_rows=skip + 1)
    assert remedied.to_pydict() == {"a": ["1"], "b": ["2"]}
    assert read(path, column_names=["b", "a"], skip_rows=skip).num_rows == 2
