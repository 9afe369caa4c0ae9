"""Mutated inputs: drawn by Hypothesis, run through the command, and judged by independent readers.

A run that succeeds must have used what the independent reader says that the file holds. Where a
reader is free to be lenient, both are lenient alike, for these reasons:

- CSV: ``"a"b`` is ``ab``, as in Python's csv module and in Arrow; a null byte is a character; lines
  without anything are no rows; zeros behind a gzip are padding, as of a tape.
- JSON Lines: NaN and Infinity are numbers, as Python and pandas write them; blank lines are no rows.
- TFRecord: unknown fields are passed over, the last of two features of one name counts, and parts
  of one message add up, as the protobuf specification has it. Checksums are verified.
- YAML: a number may be given as its text, one value for a list, and names in one text with commas,
  as on a command line; merge keys and aliases stand for what they stand for.
- ChangeLists: keys that begin with ``x_`` are notes of other tools.

What nobody can notice is no failure: a digit of a CSV or JSON file
that became another digit, lines that are missing at a line end, a TFRecord of right checksums
without its last records, and a flip in a Parquet file that was written without page checksums, or
outside of its pages. The run is then right about what the file says now.
"""

import pytest

# So that what they assert is shown with its values.
for _name in ("changelist", "csv", "json", "parquet", "tfrecord", "yaml"):
    pytest.register_assert_rewrite(f"{__name__}.{_name}_cases")
