"""What every kind of input is made of: small tables, edits of rows and lines, damaged bytes."""

import copy
import datetime as dt
import gzip
import random

from hypothesis import strategies as st

COLUMNS = ("age", "hours", "job", "night", "day", "tags", "label", "pred")
JOBS = ("nurse", "clerk, senior", 'the "boss"', "ärztin", "NA", "x")
FLAGS = ["--label", "label", "--prediction", "pred", "--max-cross-size", "1"]
ODD_BYTES = bytes((0x00, 0x0A, 0x0D, 0x22, 0x2C, 0x7F, 0x80, 0xC3, 0xFE, 0xFF))


def words(text, between=None):
    return tuple(text.split(between))


def pick(*values):
    return st.sampled_from(values)


def chance(percent):
    return st.integers(0, 99).map(lambda number: number >= 100 - percent)


def flags():
    """Options of a search that tests every slice and prints in one of the three ways."""
    printing = pick(["--quiet"], ["--quiet"], ["--json"], [])
    return printing.map(lambda one: [*FLAGS, "--min-slice-size", "1", *one])


@st.composite
def tables(draw, least=2, most=120):
    """Examples of numbers, texts, dates, booleans and classes; four predictions of five are right."""
    count = draw(pick(*(n for n in (2, 5, 20) if n >= least), most, most))
    classes = draw(pick(("no", "yes"), (0, 1), (False, True), ("a", "b", "c")))
    rng, made = random.Random(draw(st.integers(0, 9999))), []
    for at in range(count):
        label = classes[at % len(classes)]
        made.append(
            {
                "age": rng.randint(18, 80),
                "hours": None if rng.random() < 0.1 else round(rng.gauss(40, 10), 2),
                "job": rng.choice(JOBS),
                "night": rng.random() < 0.3,
                "day": dt.date(2024, 1, 1) + dt.timedelta(rng.randrange(9)),
                "tags": rng.sample(("red", "green", "blue"), rng.randrange(3)),
                "label": label,
                # Of the first, too, else no prediction might be a label, which is refused.
                "pred": label if not at or rng.random() < 0.8 else rng.choice(classes),
            }
        )
    return made


@st.composite
def edited(draw, items, edits, times=(0, 0, 0, 1, 1, 2)):
    items = copy.deepcopy(items)
    for _ in range(draw(st.sampled_from(times))):
        draw(st.sampled_from(edits))(draw, items)
    return items


def place(draw, items, *, more=0):
    return draw(st.integers(0, max(0, len(items) - 1 + more)))


def lose(draw, items):
    at = place(draw, items)
    del items[at : at + 1]


def repeat(draw, items):
    if items:
        items.insert(place(draw, items, more=1), copy.copy(items[place(draw, items)]))


def insert(values):
    return lambda draw, items: items.insert(place(draw, items, more=1), draw(values))


def replace(values, put=lambda _, new: new):
    def edit(draw, items):
        if items:
            at = place(draw, items)
            items[at] = put(items[at], draw(values))

    return edit


def in_row(edit):
    return lambda draw, rows: edit(draw, rows[place(draw, rows)]) if rows else None


def in_column(pairs, put=lambda _, new: new):
    """Give each row one of few values in one column, which then may have another type."""

    def edit(draw, rows):
        at, values = draw(st.integers(0, len(COLUMNS) - 1)), draw(pairs)
        rng = random.Random(draw(st.integers(0, 99)))
        # The first row may be names.
        for row in rows[draw(st.integers(0, 1)) :]:
            if at < len(row):
                row[at] = put(row[at], rng.choice(values))

    return edit


def few_rows(draw, rows):
    del rows[draw(pick(0, 1, 1, 2)) :]


def _damage(draw, data, others):
    at = place(draw, data)
    end = min(len(data), at + draw(st.integers(1, 64)))
    head, block, tail = data[:at], data[at:end], data[end:]
    odd = bytes([draw(st.sampled_from(ODD_BYTES))])
    kinds = ["flip", "flip", "overwrite", "scramble", "insert", "cut", "cut", "delete", "double"]
    kind = draw(st.sampled_from([*kinds, "swap", "append", *["splice"][: len(others)]]))
    if kind == "flip":
        return head + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
    if kind == "overwrite":
        return head + odd + data[at + 1 :]
    if kind == "scramble":
        return head + draw(st.binary(min_size=len(block), max_size=len(block))) + tail
    if kind == "insert":
        return head + odd * draw(st.integers(1, 3)) + data[at:]
    if kind == "cut":
        # A copy that stopped misses little or much, of the end or the beginning.
        lost = draw(pick(1, 2, 8, at + 1))
        return data[:-lost] if draw(st.booleans()) else data[lost:]
    if kind == "append":
        return data + draw(st.binary(min_size=1, max_size=64))
    if kind == "splice":
        other = draw(st.sampled_from(others))
        return head + other[place(draw, other) :]
    cut = draw(st.integers(0, len(tail)))
    swapped = head + tail[:cut] + block + tail[cut:]
    return {"delete": head + tail, "double": head + block + block + tail}.get(kind, swapped)


@st.composite
def damaged(draw, data, times=(1, 1, 1, 2, 2, 3, 4), others=()):
    """The bytes after some damage that knows nothing of what they mean."""
    for _ in range(draw(st.sampled_from(times))):
        data = _damage(draw, data, others) if data else data
    return data


def damaged_at_times(data, others=()):
    return chance(22).flatmap(lambda hit: damaged(data, others=others) if hit else st.just(data))


@st.composite
def packed(draw, data):
    cut = draw(st.integers(0, len(data)))
    members = [data] if draw(chance(60)) else [data[:cut], data[cut:]]
    gz = b"".join(gzip.compress(one, draw(pick(0, 1, 9)), mtime=0) for one in members)
    fate = draw(st.integers(0, 99))
    if fate < 45:
        return gz
    if fate < 80:
        return draw(damaged(gz))
    if fate < 90:
        return gz + draw(pick(b"\0" * 9, b"\0" * 9 + b"x", b"\x1f\x8b", b"garbage", gz[:11]))
    return gzip.compress(gz, mtime=0) if fate < 95 else data


@st.composite
def recoded(draw, data):
    """The bytes of a text with other line ends, encodings or marks."""
    kind = draw(pick(*(words("lines lines mark encoding latin last quote quote null"))))
    text = data.decode("utf-8", "replace")
    if kind == "lines":
        rng = random.Random(draw(st.integers(0, 99)))
        ends = (b"\n", b"\n", b"\r\n", b"\r", b"\n\n")
        lines = data.replace(b"\r\n", b"\n").split(b"\n")
        return b"".join(line + rng.choice(ends) for line in lines)
    if kind == "mark":
        return b"\xef\xbb\xbf" * draw(pick(1, 1, 2)) + data
    if kind == "encoding":
        return text.encode(draw(st.sampled_from(words("utf-16 utf-16-le utf-16-be utf-32"))))
    if kind == "latin":
        return text.encode("latin-1", "replace")
    if kind == "last":
        return data.rstrip(b"\r\n")
    if kind == "null":
        at = draw(st.integers(0, len(data)))
        return data[:at] + b"\0" + data[at:]
    breaks = [at + 1 for at, byte in enumerate(data) if byte in b",\n"] or [0]
    # A quote that opens near the end makes no row longer.
    at = draw(st.sampled_from(breaks[-4:]) | st.sampled_from(breaks))
    return data[:at] + b'"' + data[at:]
