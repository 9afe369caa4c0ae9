"""No row of a file is lost without a word, and no number of a document is one that JSON does not have."""

import json
import math
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.reading import read_changelist
from slicebeam.transforms.formats.json_lines import read_json_blocks
from tests.fuzzing import changelist_cases, json_reading
from tests.fuzzing.case import UnreadableError

few = settings(
    max_examples=80,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
# Objects, nothing, and what a reader may take for one row, for many or for none.
PIECES = (
    *('{"a": 1}', '{"a": 2}', '{"b": "x"}', '{"a": 3, "b": "}\\n{"}', "{}"),
    *("", "  ", "\r", "\t", "null", '{"a": 1} {"a": 2}', '{"a":\n1}', '{\n"a": 1}', "[]"),
    *('{"a": 1}\r', ' {"a": 1} ', '{"b": "y"}null', '{"a": 1} null', '{"a": 1}\n\n'),
)


@few
@given(
    pieces=st.lists(st.sampled_from(PIECES[:8]) | st.sampled_from(PIECES), min_size=1, max_size=12),
    has_end=st.booleans(),
    block_bytes=st.sampled_from((8, 24, 64, 4096)),
)
def test_as_many_rows_are_read_as_the_file_has(pieces, has_end, block_bytes, tmp_path):
    content = ("\n".join(pieces) + "\n" * has_end).encode()
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    try:
        read = sum(block.num_rows for block in read_json_blocks(str(path), block_bytes=block_bytes))
    except InputError:
        return
    try:
        rows = len(json_reading.objects(content))
    except UnreadableError as error:
        pytest.fail(f"{read} rows of a file of which the independent reader says: {error}")
    assert read == rows


@cache
def document():
    return changelist_cases.base(odd_types=False)[1]


@few
@given(data=st.data(), odd=st.sampled_from((math.nan, math.inf, -math.inf)))
def test_no_document_holds_what_is_no_number(data, odd, tmp_path):
    """Written it is JSON all the same, and one that someone else has written is refused."""
    changed = json.loads(document())
    numbers = [
        (part, key)
        for part, key in changelist_cases.places(changed)
        if isinstance(part[key], float)
    ]
    part, key = numbers[data.draw(st.integers(0, len(numbers) - 1))]
    part[key] = odd
    path = tmp_path / "changelist.json"
    path.write_text(json.dumps(changed))
    with pytest.raises(InputError, match="is not a number in JSON"):
        read_changelist(str(path), "--changelist")
    try:
        made = SearchChangeList.model_validate(changed)
    except ValidationError:
        # It has bounds.
        return
    path.write_text(made.to_json())
    changelist_cases.read(path)
