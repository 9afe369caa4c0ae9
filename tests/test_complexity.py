"""The functions that ruff's complexity rules find too complex are listed, and nothing else is."""

import json
import subprocess

from tests.base_install import ROOT, tomllib

RULES = ("C901", "PLR0911", "PLR0912", "PLR0913", "PLR0915")


def test_every_exception_from_the_complexity_rules_is_needed():
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["ruff"]["lint"]
    assert not set(RULES) & set(lint["ignore"])
    files = {name: codes for name, codes in lint["per-file-ignores"].items() if "*" not in name}
    listed = {(name, code) for name in files for code in set(files[name]) & set(RULES)}
    command = ["ruff", "check", "--isolated", "--exit-zero", "--output-format", "json"]
    command += ["--select", ",".join(RULES)]
    command += ["--config", f"lint.pylint.max-args={lint['pylint']['max-args']}"]
    command += {name for name, _ in listed}
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    records = [(one["filename"], one["code"]) for one in json.loads(listing)]
    assert listed <= {(name.removeprefix(f"{ROOT}/"), code) for name, code in records}
