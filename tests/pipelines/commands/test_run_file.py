"""``slicebeam run FILE``, files that options name, and data and documents of strangers."""

import datetime as dt
import io
import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml
from rich.table import Table

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.attribution.asking import _shown as shown_item
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.commands.run_file import read_run
from slicebeam.pipelines.run.engine import Engine
from slicebeam.pipelines.show.terminal_text import guarded_console, harmless, json_line
from tests.discover_runs import examples
from tests.refusals import refusal
from tests.running import read, refused

ROOT = Path(__file__).parents[3]
DATA = str(ROOT / "pipelines" / "demo_data" / "adult_scored.parquet")
ROLES = {"label": "income", "prediction": "prediction", "features": "sex,race"}
GOOD = {"command": "search", "data": DATA, "output": "out", **ROLES}


def written(folder, content, name="run.yaml"):
    text = content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_file_runs_as_the_flags_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more = {"metric": ["accuracy", "recall"], "positive_class": 1, "alpha": 0.01, "quiet": True}
    more |= {"runner_config": "direct_multi", "runner_option": {"workers": 1}}
    assert run(["run", written(tmp_path, {**GOOD, **more})]) == 0
    flags = ["search", f"--data={DATA}", "--label=income", "--prediction=prediction", "--quiet"]
    flags += ["--features=sex,race", "--metric=accuracy,recall", "--positive-class=1"]
    assert run([*flags, "--alpha=0.01", "--output=flags"]) == 0
    one, two = read(tmp_path / "out"), read(tmp_path / "flags")
    assert one.slices_bytes == two.slices_bytes
    config = one.document["provenance"]["config"]
    assert (config["runner_option"], config["features"]) == (["workers=1"], ["sex", "race"])


def test_json_files_and_checks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text("- sex = Male\n")
    content = {**GOOD, "command": "check", "slices": "{here}/s.yaml", "fail_on": "worse"}
    del content["features"]
    assert run(["run", written(tmp_path, json.dumps(content), "run.json"), "--quiet"]) == 1
    assert read(tmp_path / "out").document["check"]["uri"] == f"{tmp_path}/s.yaml"


def test_flags_on_the_command_line_go_before_those_of_the_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = written(tmp_path, {**GOOD, "json": False})
    assert run(["run", file, "--json", "--output", "other"]) == 0
    assert json.loads(capsys.readouterr().out)["dataset"]["n"] == 16281
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "other" / "changelist.json").exists()


@pytest.mark.parametrize("command", ["search", "check"])
def test_a_document_repeats_its_run(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = {**GOOD, "max_cross_size": 1, "metric": ["auc", "f1"], "score": "score", "seed": 3}
    if command == "check":
        (tmp_path / "s.yaml").write_text("- sex = Male\n- {name: n, predicate: age >= 30}\n")
        first = {**GOOD, "command": "check", "slices": "s.yaml", "alternative": "both"}
        del first["features"]
    assert run(["run", written(tmp_path, first), "--quiet"]) == 0
    assert run(["run", "out/changelist.json", "--output", "again", "--quiet"]) == 0
    one, two = read(tmp_path / "out"), read(tmp_path / "again")
    assert (one.slices_bytes, one.timeless()) == (two.slices_bytes, two.timeless())


def test_placeholders(tmp_path):
    more = {
        "data": ["${DATA}/date={date}/*.parquet", "x/{date-1}", "y/{date+31:%Y%m%d}/{{a}}"],
        "output": "${RESULTS:-results}/{date:%Y}/{date-365}",
        "since_if_exists": "${DATA}/{date-1}",
        "work_dir": "{here}/work",
        "label": "{date}",
        "runner_option": {"workers": "${CORES}"},
    }
    environment = {"DATA": "gs://bucket/a{b}", "CORES": "3", "OTHER": ""}
    found = read_run(written(tmp_path, {**GOOD, **more}), "2026-03-01", environment).options
    files = ("gs://bucket/a{b}/date=2026-03-01/*.parquet", "x/2026-02-28", "y/20260401/{a}")
    assert (found["data"], found["output"]) == (files, "results/2026/2025-03-01")
    assert found["since_if_exists"] == "gs://bucket/a{b}/2026-02-28"
    assert found["work_dir"] == f"{tmp_path}/work"
    # Names of columns are taken as they stand.
    assert found["label"] == "{date}"
    # Options of the engine keep the name; the value is looked up where the engine is made.
    assert found["runner_option"] == ("workers=${CORES}",)


def test_the_date_is_today_in_utc(tmp_path):
    file = written(tmp_path, {**GOOD, "output": "{date}"})
    before = dt.datetime.now(dt.timezone.utc).date()
    found = read_run(file, None, {}).options["output"]
    after = dt.datetime.now(dt.timezone.utc).date()
    assert found in (before.isoformat(), after.isoformat())


def test_every_flag_has_a_key(tmp_path, capsys):
    """The flags of the help, by their names, are the keys that are known."""
    for command in ("search", "check"):
        run([command, "--help-all"])
        lines = capsys.readouterr().out.splitlines()
        flags = {line.split()[0] for line in lines if line.startswith("  --")} - {"--help-all"}
        assert len(flags) > 30
        for flag in flags:
            key = flag.removeprefix("--").replace("-", "_")
            content = {"command": command, key: {"a": {"b": "c"}}}
            if key == "tolerance":
                # By metric; what is wrong with its number is said when the run begins.
                continue
            error = refusal(InputError, read_run, written(tmp_path, content), None, {})
            # What is wrong is the value, not the key.
            assert f"run.yaml, {key}: " in error or key == "runner_option"


WRONG = {
    "no mapping": ("- a\n", "DIR/run.yaml: 'command: search', 'check', 'shift' or 'discover' is expected"),
    "empty": ("", "DIR/run.yaml: 'command: search', 'check', 'shift' or 'discover' is expected"),
    "no yaml": ("a: [", "DIR/run.yaml: cannot be read (while parsing"),
    "no text": ("\x00", "DIR/run.yaml: cannot be read"),
    "twice": ("command: search\nlabel: a\nlabel: b\n", "the key 'label' occurs twice, again in line 3"),
    "no command": ({"data": "x"}, "key 'command' is missing; add 'command: search', 'check', 'shift' or 'discover'"),
    "command": ({**GOOD, "command": "serach"}, "unknown command 'serach'; did you mean 'search'?"),
    "key": ({**GOOD, "lable": "x"}, "DIR/run.yaml: unknown key 'lable'; did you mean 'label'?"),
    "dashes": ({**GOOD, "max-cross-size": 2}, "unknown key 'max-cross-size'; did you mean 'max_cr"),
    "of search": ({**GOOD, "command": "check", "bins": 5}, "DIR/run.yaml: unknown key 'bins'"),
    "nothing": ({**GOOD, "since": None}, "run.yaml, since: the key has no value; give one or leave"),
    "bool": ({**GOOD, "label": False}, "run.yaml, label: False is not text; put it in quotes"),
    "number": ({**GOOD, "label": 5}, "run.yaml, label: 5 is not text; put it in quotes"),
    "date": ("command: search\noutput: 2026-11-20\n", "2026, 11, 20) is not text; put it in quotes"),
    "word": ({**GOOD, "quiet": "yes"}, "run.yaml, quiet: 'yes' is neither true nor false"),
    "flag": ({**GOOD, "prune_significant": 1}, "prune_significant: 1 is neither true nor false"),
    "list": ({**GOOD, "alpha": [0.1]}, "run.yaml, alpha: [0.1] is not a number"),
    "true": ({**GOOD, "bins": True}, "run.yaml, bins: True is not a number"),
    "range": ({**GOOD, "alpha": 2}, "--alpha 2: it must be less than 1"),
    "float": ({**GOOD, "bins": 2.5}, "--bins 2.5: it must be a valid integer"),
    "choice": ({**GOOD, "alternative": "wors"}, "--alternative 'wors'; did you mean 'worse'?"),
    "fail on": ({**GOOD, "fail_on": "worst"}, "--fail-on 'worst'; did you mean 'worse'? choose from worse, drift, any"),
    "log": ({**GOOD, "log_format": "jsn"}, "--log-format 'jsn'; did you mean 'json'?"),
    "variable": ({**GOOD, "output": "${NO_SUCH}/x"}, "output: the environment variable NO_SUCH is"),
    "variable name": ({**GOOD, "output": "${A B}"}, "output: ${A B} does not name an environment variable"),
    "placeholder": ({**GOOD, "data": "{dat}/x"}, "data: {dat} is not a placeholder; write {date},"),
    "arithmetic": ({**GOOD, "data": "{date - 1}"}, "data: {date - 1} is not a placeholder"),
    "brace": ({**GOOD, "data": "a{b"}, "data: { is not a placeholder"),
    "no data": ({**GOOD, "data": "none.parquet"}, "--data none.parquet: no such file"),
    "column": ({**GOOD, "label": "incom"}, "--label: unknown column 'incom'; did you mean 'income'?"),
    "missing": ({"command": "search", "data": DATA}, "is missing"),
    "no output": ({"command": "shift", "data": DATA, "label": "income", "old_prediction": "prediction_old"}, "the folder for the result is missing: give --output"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_in_a_file(case, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_SUCH", raising=False)
    content, message = WRONG[case]
    assert message in refused(["run", written(tmp_path, content)], capsys, folder=tmp_path)


@pytest.mark.parametrize(("given", "message"), [
    (["none.yaml"], "none.yaml: no such file"),
    (["."], ". is a folder; name a file"),
    ([], "missing argument '<file>'"),
    (["run.yaml", "--date", "20.11.2026"], "--date '20.11.2026' is not a date; write it as 2026-"),
    (["run.yaml", "--bins", "5"], "no such option: --bins"),
    (["half.json"], "run half.json: not a valid ChangeList"),
    (["half.json", "--date", "2026-11-20"], "--date 2026-11-20: half.json is the document of"),
])  # fmt: skip
def test_wrong_use(given, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, GOOD)
    (tmp_path / "half.json").write_text('{"schema_version": "1.0", "provenance": {}}')
    assert message in refused(["run", *given], capsys, folder=tmp_path)


MODELS = ["--label=label", "--prediction=new"]
COMMANDS = {
    "search": ["search", *MODELS, "--features=source"],
    "check": ["check", *MODELS],
    "discover": ["discover", *MODELS, "--baseline-prediction=old", "--text=source", "--example-id=id"],
    "shift": ["shift", "--label=label", "--budget=10"],
}  # fmt: skip
OLD, REPLAY = "--old-prediction=old", "--replay-prediction=new"
NOT_AN_API = "url: [not, an, api]\n"
CASES = {
    "--phrases, an API": ("discover", ["--phrases=DIR/wrong.yaml"]),
    "--phrases, no prompt": ("discover", ["--phrases=DIR/no_prompt.yaml"]),
    "--phrases, a list": ("discover", ["--phrases=DIR/empty.txt"]),
    "--phrases": ("discover", ["--phrases=DIR/none.yaml"]),
    "--domains": ("search", ["--domains=DIR/wrong.json"]),
    "--domains, none": ("search", ["--domains=DIR/none.json"]),
    "--since": ("search", ["--since=DIR/wrong.json"]),
    "--eval-config": ("search", ["--eval-config=DIR/wrong.json"]),
    "--slices": ("check", ["--slices=DIR/wrong.yaml"]),
    "--changelist": ("check", ["--changelist=DIR/wrong.json"]),
    "check --since": ("check", ["--slices=DIR/slices.yaml", "--since=DIR/wrong.json"]),
    "--api": ("shift", ["--api=DIR/wrong.yaml", OLD]),
    "--old-matrix": ("shift", ["--old-matrix=DIR/wrong.json", REPLAY]),
    "shift --changelist": ("shift", ["--changelist=DIR/wrong.json", OLD, REPLAY]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrong")
    examples(1, n=60).drop_columns(["z"]).to_pandas().to_csv(folder / "data.csv", index=False)
    (folder / "wrong.yaml").write_text(NOT_AN_API)
    (folder / "wrong.json").write_text('{"no": "document"}')
    (folder / "empty.txt").write_text("\n")
    (folder / "slices.yaml").write_text("- source = web\n")
    no_prompt = "url: https://api.example.com\njson: {text: '{text}'}\nanswer: label\n"
    (folder / "no_prompt.yaml").write_text(no_prompt)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_it_is_said_before_any_job(case, folder, tmp_path, monkeypatch, capsys):
    def refuse(*_, **told):
        pytest.fail("a job ran")

    monkeypatch.setattr(Engine, "run", refuse)
    command, flags = CASES[case]
    flags = [one.replace("DIR", str(folder)) for one in flags]
    data = [f"--data={folder}/data.csv", f"--output={tmp_path}/out"]
    assert run([*COMMANDS[command], *data, *flags]) == 2
    said = capsys.readouterr().err
    assert next(one for one in reversed(flags) if str(folder) in one).partition("=")[2] in said
    assert not (tmp_path / "out").exists()


# A title of the window, colours, a C1 control, a change of direction, a line that is none.
ESCAPES = "\x1b]0;owned\x07\x1b[31m\x9b31m\u202e\r\u2028"
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
ROWS = 600
ABOVE = "../../../above"


def assert_harmless(found):
    for text in (found.out, found.err):
        steering = STEERING.search(text)
        assert steering is None, repr(text[max(0, steering.start() - 80) :][:160])


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture
def data(tmp_path):
    label = f"y{ESCAPES}"
    columns = {
        f"c{ESCAPES}": [f"v{n % 5}{ESCAPES}" for n in range(ROWS)],
        ABOVE: [f"/above/{n % 3}" for n in range(ROWS)],
        "=cmd|' /C calc'!A0": ["=1+1" if n % 2 else "@x" for n in range(ROWS)],
        "[bold]m[/]": ["[link=http://there]x[/link]" if n % 2 else "[/]" for n in range(ROWS)],
        "big": [2**62 + 10**18 * (n % 3) for n in range(ROWS)],
        label: [f"l{n % 2}{ESCAPES}" for n in range(ROWS)],
        "p": [f"l{(n + (n % 5 == 1 or n % 7 == 2)) % 2}{ESCAPES}" for n in range(ROWS)],
    }
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / f"d{ESCAPES}.parquet"
    pd.DataFrame(columns).to_parquet(path)
    return path


@pytest.fixture
def found(data, tmp_path, capfd):
    assert run([*search(data), "--output", str(tmp_path / "out")]) == 0
    assert_harmless(capfd.readouterr())
    return tmp_path / "out" / "changelist.json"


def search(data):
    return ["search", "--data", str(data), "--label", f"y{ESCAPES}", "--prediction", "p"]


def test_names_and_values_of_a_data_set(found, data, tmp_path, capfd):
    slice_id = json.loads(found.read_text())["slices"][0]["slice_id"]
    output = ["--output", str(tmp_path / "next")]
    for more, code in (
        (["--json"], 0),
        (["--log-format", "json"], 0),
        (["--dry-run"], 0),
        (["--since", str(found), "--explain", slice_id, "--fail-on", "worse"], 1),
        (["--features", f"nope{ESCAPES}"], 2),
    ):
        assert run([*search(data), *output, *more]) == code
        assert_harmless(capfd.readouterr())
    # Nothing is written but where the user said.
    told = [json.loads((tmp_path / one / "changelist.json").read_text()) for one in ("out", "next")]
    names = [one["files"]["slices"]["name"] for one in told]
    assert all(re.fullmatch(r"slices\.[0-9a-f]{12}\.parquet", name) for name in names)
    assert files_in(tmp_path) == {
        "in",
        f"in/{data.name}",
        *(name for one in ("out", "next") for name in (one, f"{one}/changelist.json")),
        *(f"{one}/slices.parquet" for one in ("out", "next")),
        *map("/".join, zip(("out", "next"), names, strict=True)),
    }
    assert not (tmp_path.parent.parent / "above").exists()


@pytest.mark.slow
def test_words_of_a_document(found, data, tmp_path, capfd):
    content = json.loads(found.read_text())
    for number, one in enumerate(content["slices"]):
        one["name"] = f"{number}{ESCAPES}"
    content["summary"] += ESCAPES
    content["dataset"]["name"] = ESCAPES
    content["testing"]["warnings"] = [ESCAPES]
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    shutil.copy(found.parent / "slices.parquet", theirs)
    document = theirs / "changelist.json"
    document.write_text(json.dumps(content))
    slice_id, output = content["slices"][0]["slice_id"], ["--output", str(tmp_path / "next")]
    for command in (
        ["check", "--data", str(data), "--changelist", str(document), *output],
        [*search(data), "--since", str(document), *output],
        ["edit", "annotate", "--changelist", str(document), "--slice", slice_id, "--note", "n"],
        ["edit", "log", "--changelist", str(theirs)],
        ["edit", "log", "--changelist", str(theirs), "--json"],
        ["edit", "remove", "--changelist", str(document), "--slice", slice_id],
        ["edit", "merge", "--changelist", str(document), "--slice", "nobody", "--name", "m"],
        ["run", str(document), *output],
    ):
        assert run(command) in (0, 2), capfd.readouterr().err
        assert_harmless(capfd.readouterr())


@pytest.mark.slow
def test_an_id_is_no_path(found, tmp_path, capfd, data):
    content = json.loads(found.read_text())
    content["slices"][0]["slice_id"] = ABOVE
    content["changelist_id"] = ABOVE
    theirs = tmp_path / "a" / "b" / "c" / "theirs"
    theirs.mkdir(parents=True)
    document = theirs / "changelist.json"
    document.write_text(json.dumps(content))
    before, words = files_in(tmp_path), ["--text", "words", "--budget", "3"]
    output = ["--output", str(theirs / "next")]
    for command in (
        ["edit", "annotate", "--changelist", str(document), "--slice", ABOVE, "--note", "n"],
        ["attribute", "sample", "--changelist", str(document), "--slice", ABOVE, *words],
        ["check", "--data", str(data), "--changelist", str(document), *output],
    ):
        run(command)
    new = files_in(tmp_path) - before
    assert all(name.startswith("a/b/c/theirs/") for name in new), new


def test_an_item_that_is_labelled():
    assert STEERING.search(shown_item({f"name{ESCAPES}": f"text{ESCAPES}"})) is None


def test_a_console_keeps_its_own_colours():
    stream = io.StringIO()
    how = {"force_terminal": True, "color_system": "standard"}
    console, table = guarded_console(file=stream, **how), Table("name")
    table.add_row(f"a{ESCAPES}b")
    console.print(table)
    console.print(f"[{ESCAPES}", markup=False, style="red")
    said = stream.getvalue()
    assert "\x1b[31m[" in said
    own = re.sub(r"\x1b\[[0-9;]*m", "", said)
    assert STEERING.search(own) is None
    assert "a\ufffd" in own


def test_harmless_texts():
    assert harmless("a\nb é") == "a\nb é"
    assert harmless(f"a{ESCAPES}") == ("a\\x1b]0;owned\\x07\\x1b[31m\\x9b31m\\u202e\\r\\u2028")
    line = json_line({ESCAPES: [ESCAPES, "é"]})
    assert STEERING.search(line) is None
    assert json.loads(line) == {ESCAPES: [ESCAPES, "é"]}
    assert "é" in line
