"""Processes of ours that are started in a stranger's folder import nothing from it."""

import subprocess
import sys

from slicebeam.runner_configs.guarded_process import python_module


def test_a_process_looks_into_the_working_folder_only_where_this_one_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("json", "runpy", "linecache", "tokenize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'came')!r}, 'w').close()\n")

    def done():
        command = [*python_module("json.tool"), "--compact"]
        return subprocess.run(command, input="[ 1 ]", capture_output=True, text=True, check=False)

    elsewhere = [one for one in sys.path if one not in ("", str(tmp_path))]
    monkeypatch.setattr(sys, "path", elsewhere)
    found = done()
    assert (found.returncode, found.stdout) == (0, "[1]\n"), found.stderr
    assert not (tmp_path / "came").exists()
    # In a notebook, modules of the user's own lie there.
    monkeypatch.setattr(sys, "path", ["", *elsewhere])
    done()
    assert (tmp_path / "came").exists()
