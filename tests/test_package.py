"""`import slicebeam`: the commands as functions, which are imported when they are used."""

import pydoc
import subprocess
import sys
from importlib.metadata import version

import pytest

import slicebeam
from slicebeam.pipelines import api


def test_the_package_has_the_commands_as_functions():
    assert sorted(slicebeam.__all__) == sorted(api.__all__)
    assert all(getattr(slicebeam, name) is getattr(api, name) for name in api.__all__)
    assert {*api.__all__, "__version__"} <= {*dir(slicebeam)}
    assert slicebeam.__version__ == version("slicebeam")


def test_help_shows_the_way():
    text = pydoc.plain(pydoc.render_doc(slicebeam))
    assert 'slicebeam.search(frame, label="income", prediction="prediction")' in text
    assert "search(data" in text


def test_what_is_not_there_is_named():
    with pytest.raises(AttributeError, match="module 'slicebeam' has no attribute 'serch'"):
        slicebeam.serch  # noqa: B018


def test_the_package_alone_imports_nothing():
    code = (
        "import sys; import slicebeam; from slicebeam.metrics import errors;"
        "print(sorted({one.partition('.')[0] for one in sys.modules} & {'apache_beam', 'numpy', 'pyarrow'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
