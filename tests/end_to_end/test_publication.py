"""Publication of a whole command that is interrupted, or whose disk is full."""

import signal
import subprocess

import psutil
import pytest

from slicebeam.pipelines.cli import run
from tests.waiting_jobs import command, forked_search_at_work


@pytest.fixture
def small_disk(tmp_path):
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_full_disk_publishes_nothing_and_can_be_resumed(small_disk, adult_path, capfd):
    output = small_disk / "out"
    command = ["search", f"--data={adult_path}", f"--output={output}", "--label=income"]
    command += ["--prediction=prediction", "--features=age,education,occupation", "--quiet"]
    sizes, codes = [150, 250, 350, 3000], []
    for size in sizes:
        subprocess.run(["mount", "-o", f"remount,size={size}k", str(small_disk)], check=True)
        codes.append(run([*command, "--resume"]))
        if codes[-1] == 0:
            break
        message = capfd.readouterr().err
        assert len(message.splitlines()) == 2
        assert "No space left on device" in message
        assert "--resume" in message
        assert not list(output.glob("*.json"))
        assert not list(output.glob("*.parquet"))
    assert (codes[0], codes[-1]) == (3, 0)
    assert (output / "changelist.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["direct", "direct_multi"])
@pytest.mark.parametrize("stage", ["encode", "iteration-1"])
def test_interrupted(commands, tmp_path, adult_path, engine, stage):
    """Ctrl-C ends with 130 and one line, leaves no process, and the run can be resumed."""
    output = tmp_path / "out"
    search, workers = forked_search_at_work(commands, tmp_path, adult_path, engine, stage)
    # Two workers, and the process that they are forked from.
    assert len(workers) == (3 if engine == "direct_multi" else 0)
    search.send(signal.SIGINT)
    ended = search.ended(60)
    assert ended.code == 130, ended
    said = "slicebeam: interrupted; a search continues with the same options and --resume"
    assert ended.said.strip() == said
    assert not (output / "changelist.json").exists()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    if engine == "direct":
        assert run([*command(output, adult_path, engine)[3:], "--resume"]) == 0
        assert (output / "changelist.json").exists()
