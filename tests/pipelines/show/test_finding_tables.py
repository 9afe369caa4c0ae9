"""What a reader sees of findings, slices and examples, whatever the width of the terminal, and of events in a log."""

import datetime as dt
import hashlib
import json
import re
import shutil
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import counted
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.changelist.slices import Finding
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.config.run_options import RunOptions
from slicebeam.pipelines.run.open_run import Published
from slicebeam.pipelines.show.finding_tables import Numbers, lines_of
from slicebeam.pipelines.show.result import show
from slicebeam.pipelines.show.result_notes import summary_line
from tests.conftest import slow
from tests.discovered import embedded, topics
from tests.running import read

ADULT = ("--label=income", "--prediction=prediction", "--max-cross-size=2")
FEATURES = "--features=age,education,marital-status,occupation,relationship,capital-gain"


@pytest.fixture(scope="module")
def found(adult_path, tmp_path_factory):
    out = tmp_path_factory.mktemp("found")
    command = ["search", f"--data={adult_path}", f"--output={out}", *ADULT, FEATURES]
    assert run([*command, "--quiet"]) == 0
    return out


def show_again(out):
    paths = [out / name for name in ("changelist.json", "slices.parquet")]
    show(Published(read_search(str(paths[0]), "--changelist"), *paths), RunOptions())


def rows_of(printed):
    """The cells of numbers and the slice of each row, whose lines are joined again."""
    lines = printed.splitlines()
    rows, at = [], -1
    for line in lines:
        if re.search(r"^ *n +(value|change) ", line):
            at = line.index("slice")
        elif not line.strip() or line.startswith("and "):
            at = -1
        elif at >= 0 and not line.startswith("─"):
            numbers, text = line[:at], line[at:].strip()
            if numbers.strip():
                rows.append((re.split(r" {2,}", numbers.strip()), text))
            else:
                cells, begun = rows[-1]
                rows[-1] = cells, f"{begun} {text}"
    return rows


def number(text):
    return float(text.replace(",", ""))


@pytest.mark.parametrize("width", [80, 100, 120, None])
def test_nothing_of_a_finding_is_cut(width, found, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    show_again(found)
    printed, document = capsys.readouterr().out, read(found).document
    findings = document["findings"]
    names = {one["slice_id"]: one["name"] for one in document["slices"]}
    rows = rows_of(printed)
    assert len(findings) > len(rows) > 5
    header = next(line for line in printed.splitlines() if re.search(r"^ *n +value ", line))
    headers = ["rank", *re.split(r" {2,}", header.strip())]
    assert headers[1:3] + headers[-1:] == ["n", "value", "slice"]
    assert "corrected [95%]" in headers
    assert ("outside" in headers) == (width is None or width >= 120)
    for (cells, text), one in zip(rows, findings, strict=False):
        assert text == names[one["slice_id"]]
        texts = dict(zip(headers, cells, strict=False))
        assert (number(texts["rank"]), number(texts["n"])) == (one["rank"], one["n"])
        assert number(texts["value"]) == pytest.approx(one["value"], abs=5.01e-4)
        difference = re.fullmatch(r"(\S+) \[(\S+), (\S+)\]", texts["corrected [95%]"])
        shown = [number(part) for part in difference.groups()]
        wanted = [one["corrected"][name] for name in ("difference", "low", "high")]
        assert shown == pytest.approx(wanted, abs=5.01e-4)
        if "observed" in texts:
            assert number(texts["observed"]) == pytest.approx(one["difference"], abs=5.01e-4)
        if "expected" in texts:
            assert number(texts["expected"]) == pytest.approx(one["expected"], abs=5.01e-4)
        if "held" in texts:
            assert texts["held"] == f"{one['held_share']:.0%}"
        if "outside" in texts:
            assert number(texts["outside"]) == pytest.approx(one["rate_outside"], abs=5.01e-4)
    assert all(len(line) <= (width or 10_000) for line in printed.splitlines()[:-1])
    hidden = [name for name in ("expected", "observed", "held", "outside") if name not in headers]
    said = " ".join(printed.split())
    assert ("No room for" in said) == bool(hidden)
    assert "see findings in the document" in said or not hidden
    assert "without what selecting the worst slices adds" in said
    assert "Accuracy, worse than expected (over all examples .872):" in printed


def test_three_lines_at_the_end(found, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    show_again(found)
    printed, document = capsys.readouterr().out, read(found).document
    blank, counts, corrected, files = printed.splitlines()[-4:]
    significant, findings = document["testing"]["significant"], len(document["findings"])
    tested = sum(document["testing"]["tested_per_level"])
    assert [one["stop"] for one in document["finding_models"]] == ["small differences"]
    assert counts == (
        f"{significant:,} significant slices of {tested:,} tested; {findings} findings; others "
        "differ too little to list."
    )
    assert (blank, corrected) == ("", document["testing"]["corrected_for"])
    paths = [found / name for name in ("changelist.json", "slices.parquet")]
    assert files == f"Ids and all numbers: {paths[0]}; all slices: {paths[1]}"
    held = document["findings"][-1]["held_share"]
    assert document["summary"].endswith(f" {findings} findings hold {held:.0%} of all errors.")
    assert "say more" not in printed


def test_two_sides(adult_path, tmp_path, capsys):
    command = ["search", f"--data={adult_path}", f"--output={tmp_path}/out", *ADULT, FEATURES]
    assert run([*command, "--max-cross-size=1", "--alternative=both"]) == 0
    worse, better = capsys.readouterr().out.split("Accuracy, better than expected")
    assert "Accuracy, worse than expected" in worse
    assert re.search(r"^ *n +value .* held +outside +slice", worse, re.MULTILINE)
    assert re.search(r"^ *n +value .*\] +observed +outside +slice", better, re.MULTILINE)
    assert "selecting the most extreme" in " ".join(better.split())
    document = read(tmp_path / "out").document
    findings = document["findings"]
    assert document["summary"].endswith(f"significantly different; {len(findings)} findings.")
    of = {side: sum(one["direction"] == side for one in findings) for side in ("worse", "better")}
    assert f"{len(findings)} findings ({of['worse']} worse, {of['better']} better)." in better


def test_the_only_one_and_none(adult_path, tmp_path, capsys):
    assert counted(0, "finding") == "no findings"
    given = tmp_path / "slices.yaml"
    given.write_text("- sex = Male\n")
    roles = [f"--data={adult_path}", "--label=income", "--prediction=prediction"]
    assert run(["check", f"--slices={given}", f"--output={tmp_path}/one", *roles]) == 0
    said = capsys.readouterr().out
    assert "The checked slice is significantly worse." in said
    assert "1 slice of at least 20 examples tested" in said
    assert run(["search", *roles, "--features=sex", f"--output={tmp_path}/sex"]) == 0
    assert "1 significant slice of 2 tested; 1 finding." in capsys.readouterr().out


@pytest.mark.parametrize(("values", "shown"), [
    ((0.5, 0.25, (0.2, 0.3)), (".500", "+.250 [+.200, +.300]")),
    ((43398.2, 33797.4, (9207.0, 10002.0)), ("43,398", "+9,601 [+9,207, +10,002]")),
    ((60.137, 38.767, (20.382, 22.394)), ("60.1", "+21.4 [+20.4, +22.4]")),
    ((0.50001, 0.5, (5e-6, 1.5e-5)), (".500010", "+.000010 [+.000005, +.000015]")),
    ((3e-9, 1e-9, (1e-9, 3e-9)), ("3.000e-09", "+2.000e-09 [+1.000e-09, +3.000e-09]")),
    ((-0.5, -0.75, (None, 0.3)), ("-.500", "+.250 [-∞, +.300]")),
])  # fmt: skip
def test_numbers_have_the_digits_worth_reading(values, shown):
    value, expected, interval = values
    of_slice = {"metric": "loss", "direction": "worse", "rank": 1, "slice_id": "a", "n": 20}
    low, high = interval
    corrected = {"difference": value - expected, "low": low, "high": high}
    difference = {"difference": 0.0, "interval": interval, "p_value": 0.001, "corrected": corrected}
    one = Finding(value=value, expected=expected, **of_slice, **difference)
    numbers = Numbers([one])
    assert (numbers.text(one.value), numbers.difference(one.corrected)) == shown


@pytest.mark.parametrize(
    ("column", "has_share"), [("loss", True), slow("mean:cost", True), ("mean:gain", False)]
)
def test_losses_and_means_say_what_is_outside(column, has_share, tmp_path, capsys):
    random = np.random.default_rng(0)
    kind, site = random.choice(list("abcd"), 2000), random.choice(list("xyz"), 2000)
    cost = random.gamma(2.0, 0.3, 2000) + (kind == "b") * 0.8 + (site == "y") * 0.3
    frame = pd.DataFrame({"kind": kind, "site": site, "cost": cost, "gain": cost - 1.0})
    frame.to_parquet(tmp_path / "data.parquet")
    options = ["--loss=cost"] if column == "loss" else [f"--metric={column}"]
    command = ["search", f"--data={tmp_path}/data.parquet", f"--output={tmp_path}/out"]
    assert run([*command, *options, "--features=kind,site"]) == 0
    printed = capsys.readouterr().out
    first = read(tmp_path / "out").document["findings"][0]
    values, inside = (frame["gain"] if "gain" in column else frame["cost"]), kind == "b"
    assert first["n"] == inside.sum()
    assert first["rate_outside"] == pytest.approx(values[~inside].mean(), rel=1e-9)
    (row, *_) = (cells for cells, _ in rows_of(printed))
    assert row[-1] == f"{values[~inside].mean():.3f}".replace("0.", ".")
    if has_share:
        assert first["held_share"] == pytest.approx(cost[inside].sum() / cost.sum(), rel=1e-9)
        assert row[-2] == f"{cost[inside].sum() / cost.sum():.0%}"
        assert "held: share of the sum of all values" in " ".join(printed.split())
    else:
        assert "held_share" not in first
        assert "held" not in printed


def test_the_table_of_all(adult_path, tmp_path, capsys):
    command = ["search", f"--data={adult_path}", f"--output={tmp_path}/out", *ADULT, FEATURES]
    assert run([*command, "--report=all"]) == 0
    printed = capsys.readouterr().out
    assert "than expected" not in printed
    assert re.search(r"^ *n +accuracy +delta +95% interval +q +slice", printed, re.MULTILINE)
    assert run([*command, "--report=some"]) == 2
    assert "findings" in capsys.readouterr().err


def test_more_findings_than_lines(found, capsys, monkeypatch):
    monkeypatch.setattr("slicebeam.pipelines.show.finding_tables.MOST_LINES", 6)
    show_again(found)
    printed, findings = capsys.readouterr().out, read(found).document["findings"]
    assert len(rows_of(printed)) == 6
    more = len(findings) - 6
    excess = np.array([one["n"] * abs(one["difference"]) for one in findings])
    rest = f"{excess[6:].sum() / excess.sum():.0%}"
    assert (
        f"and {more} more finding{'' if more == 1 else 's'} with {rest} of the excess, " in printed
    )


def test_findings_end_where_nearly_all_of_the_excess_is_held():
    def lines(*excess, most=20):
        findings = [SimpleNamespace(n=10, difference=one / 10) for one in excess]
        return lines_of(findings, most)

    assert lines(60, -20, 4, 4, 4, 4, 4) == (5, pytest.approx(0.92))
    assert lines(*[10] * 20) == (18, pytest.approx(0.9))
    assert lines(*[1] * 30) == (20, pytest.approx(2 / 3))
    assert lines(90, 10) == (2, 1.0)
    assert lines(0, 0) == (2, 1.0)


def test_metrics_without_findings_say_why(adult_path, tmp_path, capsys):
    command = ["search", f"--data={adult_path}", f"--output={tmp_path}/out", *ADULT, FEATURES]
    command += ["--score=score", "--metric=auc,precision", "--max-cross-size=1"]
    old = ["--baseline-prediction=prediction_old", "--baseline-score=score_old"]
    assert run(command) == 0
    printed = capsys.readouterr().out
    said = "No findings of auc: it compares pairs of examples, so no example has a share of its own"
    assert said in printed
    assert "n of precision: examples predicted positive" in " ".join(printed.split())
    # Its table is shown in any case.
    assert re.search(r"^ *n +auc +delta", printed, re.MULTILINE)
    assert "No findings of precision" not in printed
    assert run([*command, *old]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "No findings of precision: the difference of two ratios" in printed
    models = {one["metric"]: one for one in read(tmp_path / "out").document["finding_models"]}
    stops = {name: one["stop"] for name, one in models.items()}
    assert stops == {"auc": "not possible", "precision": "not possible"}


PRUNED = "within significant slices (leave --prune-significant out)"
QUEUED = "below the end of the queue (more --iterations, a larger --max-candidates)"


@pytest.mark.parametrize(("options", "left_out"), [
    (["--strategy=batch"], []),
    (["--strategy=iterative"], []),
    (["--strategy=iterative", "--prune-significant"], [PRUNED]),
    (["--strategy=priority", "--max-candidates=20"], [QUEUED]),
    (["--strategy=priority", "--max-candidates=20", "--prune-significant"], [PRUNED, QUEUED]),
    # The queue is empty after the last iteration.
    (["--strategy=priority", "--iterations=3"], []),
])  # fmt: skip
def test_a_strategy_that_skips_some_says_so(options, left_out, adult_path, tmp_path, capsys):
    command = ["search", f"--data={adult_path}", f"--output={tmp_path}/out", *ADULT, FEATURES]
    assert run([*command, *options]) == 0
    said = " ".join(capsys.readouterr().out.split())
    testing = read(tmp_path / "out").document["testing"]
    most = testing["family_size"] - sum(testing["tested_per_level"])
    line = f"Up to {most:,} slices of at least 20 examples were not visited: "
    assert ("not visited:" in said) == bool(left_out)
    assert not left_out or f"{line}{' and '.join(left_out)}." in said


@pytest.mark.parametrize(("stop", "end"), [
    ("nothing left", " findings."),
    ("small differences", " findings; others differ too little to list."),
    ("most findings", " findings, the maximum of a list."),
])  # fmt: skip
def test_why_a_list_ends(found, stop, end):
    document = read_search(str(found / "changelist.json"), "--changelist")
    (model,) = document.finding_models
    models = [model.model_copy(update={"stop": stop})]
    ended = document.model_copy(update={"finding_models": models})
    assert summary_line(ended).endswith(f"{len(document.findings)}{end}")


def arguments(adult_path, output, *more):
    roles = ["--label=income", "--prediction=prediction", "--features=sex,race,row_id"]
    return ["search", f"--data={adult_path}", f"--output={output}", *roles, *more]


def events(capsys):
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_search_tells_what_it_did(adult_path, tmp_path, capsys):
    more = ["--log-format=json", "--strategy=iterative", "--fail-on=worse"]
    command = arguments(adult_path, tmp_path, *more, "--group=native-country")
    assert run([one.replace(",row_id", "") for one in command]) in (0, 1)
    told, document = events(capsys), read(tmp_path).document
    assert len({one["run"] for one in told}) == 1
    times = [dt.datetime.fromisoformat(one["time"].replace("Z", "+00:00")) for one in told]
    assert times == sorted(times)
    assert {one.utcoffset() for one in times} == {dt.timedelta(0)}
    kinds = [one["event"] for one in told]
    assert (kinds[0], kinds[-1]) == ("begin", "published")
    assert (told[0]["command"], told[0]["data"]) == ("search", [str(adult_path)])
    others, own = ("time", "event", "run"), [one for one in told if one["event"] == "iteration"]
    records = [{key: one[key] for key in one if key not in others} for one in own]
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
        f"command: search\ndata: {adult_path}\nlog_format: json\nlabel: income\noutput: o\n"
    )
    assert run(["run", str(file), "--output", str(tmp_path / "o")]) == 2
    (told,) = events(capsys)
    assert told["message"].startswith("--metric accuracy needs --prediction, --score or --model")
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
    fault = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("slicebeam.pipelines.search.search.build", fault)
    assert run(arguments(adult_path, tmp_path, "--log-format=json")) == 130
    told = events(capsys)[-1]
    assert told["message"] == "interrupted; a search continues with the same options and --resume"
    assert (told["event"], told["exit_code"]) == ("error", 130)


TEXT = "a camera for the scene"


@pytest.fixture(scope="module")
def defined(tmp_path_factory):
    """A discovery of which a part of the examples shaped the groups, with a slice defined by words."""
    folder = tmp_path_factory.mktemp("show")
    done = topics(folder, loss_weight=0.5)
    for name in ("director", "battery"):
        command = ["define", "--changelist", str(folder / "out"), "--name", f"the {name}"]
        assert run([*command, "--text-filter", name, "--quiet"]) == 0
    return done


def listed(capsys, *arguments):
    assert run(["show", *map(str, arguments), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def cosine(vector, query):
    return vector @ query / (np.linalg.norm(vector) * np.linalg.norm(query))


def test_slices_are_ordered_by_the_cosine_of_their_centroid(defined, capsys):
    z, query = embedded(defined, TEXT)
    rows = listed(capsys, defined.folder, "--text", TEXT)
    document = json.loads((defined.folder / "changelist.r2.json").read_text())
    membership = defined.membership
    tested = membership.loc[membership["split"] == "evaluation", "id"].unique() // 10
    expected = {}
    for one in document["slices"]:
        if "query" in one["definition"]:
            _, word = embedded(defined, one["definition"]["query"])
            near = z @ word / (np.linalg.norm(z, axis=1) * np.linalg.norm(word))
            inside = np.flatnonzero(near >= one["definition"]["threshold"])
        else:
            inside = membership.loc[membership["slice_id"] == one["slice_id"], "id"] // 10
            # Examples that shaped the components count for other slices only.
            inside = np.intersect1d(inside, tested)
        assert len(inside) == one["size"]["n"]
        expected[one["slice_id"]] = cosine(z[inside].mean(axis=0), query)
    order = sorted(expected, key=expected.__getitem__, reverse=True)
    assert len(order) >= 3
    assert [one["slice_id"] for one in rows] == order
    shown = [one["similarity"] for one in rows]
    np.testing.assert_allclose(shown, [expected[one] for one in order], atol=1e-6)


def test_examples_are_ordered_by_their_cosine(defined, capsys):
    z, query = embedded(defined, TEXT)
    membership = defined.membership
    (slice_id,) = {one["slice_id"] for one in defined.document["slices"][:1]}
    is_in = (membership["slice_id"] == slice_id) & (membership["split"] == "evaluation")
    places = (membership.loc[is_in, "id"] // 10).to_numpy()
    near = {int(at) * 10: cosine(z[at], query) for at in places}
    rows = listed(capsys, defined.folder, "--slice", slice_id, "--text", TEXT, "--limit", 10_000)
    assert sorted(one["id"] for one in rows) == sorted(near)
    shown = [one["similarity"] for one in rows]
    assert shown == sorted(shown, reverse=True)
    np.testing.assert_allclose(shown, [near[one["id"]] for one in rows], atol=1e-6)
    # Without a text those that the model gets wrong come first.
    roles = [one["role"] for one in listed(capsys, defined.folder, "--slice", slice_id)]
    assert (roles, len(roles)) == (sorted(roles, reverse=True), 20)


def test_words_filter_names_and_phrases(defined, capsys):
    shown = listed(capsys, defined.folder, "--words", "BATTERY & the")
    assert [one["slice"] for one in shown] == ["the battery"]
    assert run(["show", str(defined.folder), "--limit", "1"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1
    assert "--limit shows more" in said.err


@pytest.mark.parametrize(("arguments", "message"), [
    (["--text", "xyzzy"], "--text 'xyzzy': the encoder knows none of its words; use other words"),
    (["--text", " "], "--text is empty; write a text like the examples that you look for"),
    (["--words", "a", "--slice", "b"], "--slice has no effect with --words; leave one out"),
    (["--slice", "nothing"], "--slice: unknown slice 'nothing'"),
])  # fmt: skip
def test_wrong_options(defined, capsys, arguments, message):
    assert run(["show", str(defined.folder), *arguments]) == 2
    assert message in capsys.readouterr().err


def changed(defined, folder, **discovery):
    shutil.copytree(defined.folder, folder)
    path = folder / "changelist.json"
    document = json.loads(path.read_text())
    document["discovery"] = {**document["discovery"], **discovery}
    path.write_text(json.dumps(document))
    return path


def test_runs_without_an_encoder_and_other_encoders_are_refused(defined, tmp_path, capsys):
    vectors = pa.array(list(np.eye(3)[np.arange(360) % 3]), pa.list_(pa.float64()))
    data = tmp_path / "vectors.parquet"
    table = pq.read_table(defined.folder.parent / "data.parquet")
    pq.write_table(table.append_column("z", vectors), data)
    cases = (
        ("words need the encoder that made column 'z'", {"encoder": "none", "text_field": None, "embedding_field": "z"}),
        ("has changed since the discovery", {"encoder_fingerprint": "sha256:0"}),
        ("confirm it with --encoder openai:http://127.0.0.1:9", {"encoder": "openai:http://127.0.0.1:9"}),
    )  # fmt: skip
    for at, (message, discovery) in enumerate(cases):
        path = changed(defined, tmp_path / str(at), **discovery)
        assert run(["show", str(path), "--data", str(data), "--text", "soup"]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert len(said.strip().splitlines()) == 1
    searched = tmp_path / "0" / "changelist.json"
    document = json.loads(searched.read_text())
    del document["discovery"]
    searched.write_text(json.dumps(document))
    assert run(["show", str(searched), "--data", str(data), "--text", "soup"]) == 2
    assert "is not the document of a discovery" in capsys.readouterr().err
    other = tmp_path / "half.parquet"
    pq.write_table(table.slice(0, 100), other)
    assert run(["show", str(defined.folder), "--data", str(other), "--text", "soup"]) == 2
    assert "name the data that the document is about with --data" in capsys.readouterr().err
