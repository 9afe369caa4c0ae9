"""What ``module:function`` names."""

import re

import pytest

from slicebeam.metrics.errors import OptionError
from slicebeam.metrics.imported import imported
from tests.refusals import refuses


@pytest.mark.parametrize(("name", "said"), [
    ("absent_module:f", "--model absent_module:f: No module named 'absent_module'; write module:function"),
    ("json:absent", "module 'json' has no attribute 'absent'; write module:function"),
    (":f", "Empty module name; write module:function"),
    ("theirs:f", "importing theirs failed: ZeroDivisionError: division by zero"),
])  # fmt: skip
def test_what_cannot_be_imported(name, said, tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    refuses(OptionError, re.escape(said), imported, name, "--model")
    assert imported("json:JSONDecoder.decode", "--model").__name__ == "decode"
