"""CSV files with odd cells, rows, line ends and damaged bytes, plain and gzip."""

from hypothesis import strategies as st

from slicebeam.transforms.formats.csv_columns import read_csv_blocks
from tests.fuzzing import csv_reading, strategies
from tests.fuzzing.case import Case
from tests.fuzzing.strategies import COLUMNS, chance, in_column, in_row, insert, pick, words

# The second line holds cells with blanks, which are divided by bars.
ODD_CELLS = (
    *words('"" NA nan NaN None null - +7 007 -0 0x10 1_000 1,5 1. .5 -.5 5e3 1e999 1e-999 inf'),
    *(" ", " 5 ", "\t5", "5\x0b", "\xa05", "1 000"),
    *("2024-01-01 10:11:12.123456", "2024-01-01 10:11:12.1234567"),
    *words("-Infinity INF nan(1) 9223372036854775807 9223372036854775808 -9223372036854775809"),
    *words("9007199254740993 0.1e --1 ١٢ TRUE tRue yes 2024-02-29 2023-02-29 24-01-01 0000-01-01"),
    *words("2024-01-01T00:00:00Z 2024-01-01T10:11+01:00 2024-01-01T10 ' \\ \\N #N/A =1+1 \x00"),
    *words('\ufeff5 é \x1b[31m "a"b a"b "a""b" " "a,b" \x7f'),
    *("", "2024-01-01 24:00:00", "\u2028", '"a\nb"', '"a\r\nb"'),
)
ODD_NAMES = (*words('age label Label é "a,b" a\x00 7 \x1b[2J'), "", " ", '"a\nb"')


def _long(sign, times, quoted):
    return f'"{sign * times}"' if quoted else sign * times


_ODD = pick(*ODD_CELLS)
_LONG = st.builds(_long, pick(*"x90é", '""'), pick(1_000, 200_000), chance(70))


def _header(draw, cells):
    if cells:
        strategies.replace(pick(*ODD_NAMES))(draw, cells[0])


def _lose_column(draw, cells):
    at = strategies.place(draw, COLUMNS)
    for row in cells:
        del row[at : at + 1]


EDITS = (
    *(in_row(strategies.replace(_ODD)),) * 3,
    *(in_column(st.lists(_ODD, min_size=2, max_size=2)),) * 2,
    *(in_row(strategies.lose), in_row(insert(_ODD)), _lose_column, _header),
    *(in_row(strategies.replace(_LONG)), insert(pick([], [""], [" "])), strategies.few_rows),
    # A column with a value of its own in each row.
    in_column(st.just([f"v{number}" for number in range(1000)])),
)


def text(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else "|".join(value) if isinstance(value, list) else str(value)


def _cell(value, always):
    if always or any(sign in value for sign in ',"\r\n'):
        return '"' + value.replace('"', '""') + '"'
    return value


@st.composite
def cases(draw):
    always = draw(chance(20))
    rows = [[_cell(text(row[c]), always) for c in COLUMNS] for row in draw(strategies.tables())]
    cells = [list(COLUMNS), *rows]
    whole = "".join(",".join(row) + "\n" for row in cells).encode()
    end, delimiter = draw(pick("\n", "\n", "\n", "\r\n", "\r")), draw(pick(*"," * 60, *";\t|"))
    lines = [delimiter.join(row) + end for row in draw(strategies.edited(cells, EDITS))]
    data = "".join(lines).encode("utf-8", "surrogatepass")
    for _ in range(draw(pick(0, 0, 0, 0, 1, 2))):
        data = draw(strategies.recoded(data))
    data, name = draw(strategies.damaged_at_times(data, [whole])), "data.csv"
    if draw(chance(30)):
        name, data = "data.csv.gz", draw(strategies.packed(data))
    skip = draw(pick(1, 2, 500)) if draw(chance(6)) else 0
    given = None
    if draw(chance(8)):
        given = [f"c{place}" for place in range(len(COLUMNS) - 2)] + ["label", "pred"]
        given = given[: draw(pick(8, 8, 8, 7))]
    options = ["--skip-rows", str(skip)] if skip else []
    options += ["--column-names", ",".join(given)] if given else []
    layout = {"skip_rows": skip, "column_names": given}
    block_bytes = draw(pick(64, 256, 1024, 16 << 20))

    def reading(folder):
        return csv_reading.read(csv_reading.stored(folder / name), names=given, skip_rows=skip)

    def direct(folder):
        blocks = list(read_csv_blocks(str(folder / name), block_bytes=block_bytes, **layout))
        content = csv_reading.stored(folder / name)
        names, found = csv_reading.rows(content, names=given, skip_rows=skip)
        assert blocks[0].column_names == names
        columns = [block.to_pydict().values() for block in blocks]
        assert [list(row) for one in columns for row in zip(*one, strict=True)] == found

    arguments = ["search", "--data", "{folder}/" + name, *options, *draw(strategies.flags())]
    return Case(arguments, {name: data}, reading, direct)
