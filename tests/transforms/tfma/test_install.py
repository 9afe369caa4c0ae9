"""TensorFlow is imported only where somebody names TFMA."""

import subprocess
import sys

import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.tfma.install import tfma_module


def test_what_is_missing_is_named_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_model_analysis", None)
    with pytest.raises(InputError, match=r"in the checkout, run pip install '\.\[tfma\]'"):
        tfma_module("proto.config_pb2", "slicebeam export tfma")


def test_nothing_else_imports_tensorflow():
    code = (
        "import sys; from slicebeam.pipelines.commands.cli import run; run(['demo', '--quiet']);"
        "import slicebeam.transforms.tfma;"
        "print([n for n in sys.modules if n.partition('.')[0] in"
        " ('tensorflow', 'tensorflow_model_analysis', 'tfx_bsl')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"
