"""What must fail: a call, or a command, which says why in a line or two and publishes nothing."""

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import slow
from tests.running import refused

OLD = '{"old": "document"}'


def refusal(error, call, /, *given, **options):
    """Return what a call says that fails with an error."""
    with pytest.raises(error) as caught:
        call(*given, **options)
    return str(caught.value)


def refuses(error, match, call, /, *given, **options):
    """Check that a call fails with an error whose text has a match of a pattern."""
    with pytest.raises(error, match=match):
        call(*given, **options)


def refusing(command, folder, capsys, data, **defaults):
    """Return a function that runs a command with changed options, and tables as data, and returns its message."""
    out = folder / "out"

    def refuse(*flags, data=data, code=2, **options):
        if isinstance(data, pd.DataFrame):
            data = pa.Table.from_pandas(data)
        if isinstance(data, pa.Table):
            pq.write_table(data, folder / "data.parquet")
            data = "data.parquet"
        out.mkdir(exist_ok=True)
        (out / "changelist.json").write_text(OLD)
        named = {"data": folder / data, "output": out, **defaults, **options}
        pairs = [(name.replace("_", "-"), value) for name, value in named.items()]
        arguments = [f"--{name}={value}" for name, value in pairs if value is not None]
        said = refused([command, *arguments, *map(str, flags)], capsys, folder=folder, code=code)
        assert (out / "changelist.json").read_text() == OLD
        assert {path.name for path in out.iterdir()} <= {"changelist.json", "_work"}
        return said

    return refuse


def slow_where(cases, seldom):
    """Return the names of cases, of which some are for the longer run."""
    return [slow(name) if name in seldom else name for name in cases]
