"""``--log-format json``: every line is an event, also where a run fails."""

import datetime as dt
import hashlib
import json

import pytest

from slicebeam.pipelines.cli import run
from tests.running import read


def arguments(adult_path, output, *more):
    roles = ["--label=income", "--prediction=prediction", "--features=sex,race,row_id"]
    return ["search", f"--data={adult_path}", f"--output={output}", *roles, *more]


def events(capsys):
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_search_tells_what_it_did(adult_path, tmp_path, capsys):
    more = ["--log-format=json", "--strategy=iterative", "--fail-on=worse"]
    command = arguments(adult_path, tmp_path, *more, "--group=native-country")
    assert run([one.replace(",row_id", "") for one in command]) in (0, 1)
    told = events(capsys)
    document = read(tmp_path).document
    assert len({one["run"] for one in told}) == 1
    times = [dt.datetime.fromisoformat(one["time"].replace("Z", "+00:00")) for one in told]
    assert times == sorted(times)
    assert {one.utcoffset() for one in times} == {dt.timedelta(0)}
    kinds = [one["event"] for one in told]
    assert kinds[0] == "begin"
    assert kinds[-1] == "published"
    assert (told[0]["command"], told[0]["data"]) == ("search", [str(adult_path)])
    records = [
        {key: value for key, value in one.items() if key not in ("time", "event", "run")}
        for one in told
        if one["event"] == "iteration"
    ]
    assert len(records) == 2
    assert [
        {key: value for key, value in one.items() if value is not None} for one in records
    ] == document["search"]["iterations"]
    warnings = [one["text"] for one in told if one["event"] == "warning"]
    assert warnings == document["testing"]["warnings"]
    published = told[-1]
    content = (tmp_path / "changelist.json").read_bytes()
    assert published["changelist_hash"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert published["slices_hash"] == document["search"]["slices_fingerprint"]
    assert published["exit_code"] == int(document["testing"]["degraded"] > 0)


def test_columns_that_are_left_out(adult_path, tmp_path, capsys):
    command = [one for one in arguments(adult_path, tmp_path) if "features" not in one]
    command += ["--max-cross-size=1", "--log-format", "json"]
    assert run(command) == 0
    (domains,) = [one for one in events(capsys) if one["event"] == "domains"]
    assert domains["examples"] == 16281
    assert "an id" in domains["left_out"]["row_id"]
    left_out = read(tmp_path).document["dataset"]["left_out"]
    assert domains["left_out"] == {one["name"]: one["reason"] for one in left_out}


@pytest.mark.parametrize(("more", "message"), [
    (["--metric=acuracy"], "unknown metric 'acuracy'; did you mean 'accuracy'?"),
    (["--lable=x"], "no such option: --lable; did you mean --label?"),
    (["--label=incom"], "unknown column 'incom'; did you mean 'income'?"),
])  # fmt: skip
def test_errors_are_events_too(more, message, adult_path, tmp_path, capsys):
    assert run(arguments(adult_path, tmp_path, "--log-format", "json", *more)) == 2
    told = events(capsys)
    assert told[-1]["event"] == "error"
    assert message in told[-1]["message"]
    assert told[-1]["exit_code"] == 2


def test_of_a_file(tmp_path, adult_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text(
        f"command: search\ndata: {adult_path}\nlog_format: json\nlabel: incom\noutput: o\n"
    )
    assert run(["run", str(file), "--output", str(tmp_path / "o")]) == 2
    (told,) = events(capsys)
    assert told["message"].startswith("no predictions: give --prediction")
    # The flag also tells what is wrong with the file itself.
    assert run(["run", str(tmp_path / "none.yaml"), "--log-format=json"]) == 2
    (told,) = events(capsys)
    assert told["message"].endswith("none.yaml: no such file")


def test_quiet_tells_errors_only(adult_path, tmp_path, capsys):
    quiet = ["--quiet", "--log-format=json", "--max-cross-size=1"]
    assert run(arguments(adult_path, tmp_path, *quiet)) == 0
    assert capsys.readouterr() == ("", "")
    assert run(arguments(adult_path, tmp_path, *quiet, "--label=none")) == 2
    (told,) = events(capsys)
    assert told["event"] == "error"


def test_interrupted(adult_path, tmp_path, capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("slicebeam.pipelines.search.search.build", stop)
    assert run(arguments(adult_path, tmp_path, "--log-format=json")) == 130
    told = events(capsys)[-1]
    assert told["message"] == "interrupted; a search continues with the same options and --resume"
    assert (told["event"], told["exit_code"]) == ("error", 130)
