"""``--domains`` and ``--since``: what the earlier run's data did not hold is found in new data."""

from __future__ import annotations

import json
import runpy
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from slicebeam.pipelines.changelist.document import json_schema
from slicebeam.pipelines.cli import run
from tests.running import Found, read, search
from tests.transforms.test_inputs import check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROLES = {"label": "label", "prediction": "prediction"}
FLAGS = ["--label=label", "--prediction=prediction", "--max-cross-size=2"]
SCRIPT = Path(__file__).parents[2] / "examples" / "scheduled" / "make_nights.py"
ROWS = 2000


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of the two nights of the documentation, and the first night's result."""
    folder = tmp_path_factory.mktemp("nights")
    module = runpy.run_path(str(SCRIPT))
    module["main"](str(folder))
    pq.write_table(module["night"](7, has_drifted=False), folder / "quiet.parquet")
    search(folder / "then", data=(str(folder / "first.parquet"),), max_cross_size=2, **ROLES)
    return folder


@pytest.fixture(scope="module")
def now(nights: Path) -> Found:
    return search_since(nights / "now", nights, "second")


def search_since(output: Path, nights: Path, night: str, **options: Any) -> Found:
    since = str(nights / "then" / "changelist.json")
    given = {"max_cross_size": 2, "since": since, **ROLES, **options}
    return search(output, data=(str(nights / f"{night}.parquet"),), **given)


def singletons(found: Found, name: str) -> list[tuple[str, Any]]:
    """Op and value of each predicate of a feature."""
    return [(one["all"][0]["op"], one["all"][0].get("value")) for one in found.domains()[name]]


def domain(found: Found, name: str) -> dict[str, Any]:
    (own,) = (one for one in found.document["dataset"]["domains"] if one["name"] == name)
    return dict(own)


def row(found: Found, text: str) -> Any:
    (own,) = found.table[found.table["slice"] == text].itertuples()
    return own


def in_pairs(
    folder: Path, then: dict[str, Any], new: dict[str, Any], **options: Any
) -> tuple[Found, Found]:
    """Search two tables, the second with the first one's domains, and check all of its counts."""
    found: list[Found] = []
    for name, columns in (("then", then), ("now", new)):
        rows = len(next(iter(columns.values())))
        rng = np.random.default_rng(3)
        label = rng.integers(0, 2, rows)
        prediction = np.where(rng.random(rows) < 0.8, label, 1 - label)
        table = pa.table({**columns, "label": label, "prediction": prediction})
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}.parquet"
        pq.write_table(table, path)
        given = {"max_cross_size": 1, **ROLES, **options}
        if found:
            given = {k: v for k, v in given.items() if k not in ("bins", "top_values")}
            given["domains"] = str(folder / "out-then" / "changelist.json")
        found.append(search(folder / f"out-{name}", data=(str(path),), **given))
        frame = table.to_pandas(types_mapper=pd.ArrowDtype)
        check(found[-1], frame, (frame["label"] == frame["prediction"]).to_numpy(bool))
    return found[0], found[1]


def drift(found: Found) -> list[str]:
    """The lines about drift, the document's path being DOC."""
    path = found.document["provenance"]["config"]["domains"]
    return [one.replace(path, "DOC") for one in found.document["dataset"]["drift"]]


@pytest.mark.parametrize("option", ["since", pytest.param("domains", marks=pytest.mark.slow)])
def test_new_and_missing_values_are_found(
    option: str, nights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["search", f"--data={nights}/second.parquet", *FLAGS, "--fail-on=worse"]
    given = f"--{option}={nights}/then/changelist.json"
    assert run([*flags, given, f"--output={tmp_path}"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    found = read(tmp_path)
    frame = pd.read_parquet(nights / "second.parquet")
    frame["right"] = frame["label"] == frame["prediction"]
    for text, held in (
        ("country = PL", frame["country"] == "PL"),
        ("speed is missing", frame["speed"].isna()),
    ):
        one = row(found, text)
        assert (one.n, one.value) == (held.sum(), frame["right"][held].mean())
        # The hypergeometric mid-p of so many right ones among the slice's.
        law = stats.hypergeom(len(frame), frame["right"].sum(), held.sum())
        hits = frame["right"][held].sum()
        assert one.p_value == pytest.approx(law.cdf(hits) - law.pmf(hits) / 2, rel=1e-6)
        assert one.significant
        assert one.q_value < 1e-50
    share = (frame["country"] == "PL").mean()
    lost = frame["speed"].isna().mean()
    path = f"{nights}/then/changelist.json"
    assert drift(found) == [
        f"country: {share:.1%} of the examples have 1 value that DOC does not have (PL).",
        f"speed: {lost:.1%} missing, none in DOC.",
    ]
    for line in found.document["dataset"]["drift"]:
        assert line in printed
    # A program reads them, too.
    assert run([*flags, given, f"--output={tmp_path}", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["drift"] == found.document["dataset"]["drift"]
    assert run([*flags, given, f"--output={tmp_path}", "--log-format=json"]) == 1
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    warnings = [one["text"] for one in events if one["event"] == "warning"]
    assert warnings[:2] == found.document["dataset"]["drift"]
    assert path in warnings[0]


def test_the_documentation_shows_what_is_printed(
    nights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (SCRIPT.parents[2] / "docs" / "how-to" / "scheduled.md").read_text("utf-8")
    _, _, section = page.partition("## What the earlier run did not have\n")
    commands, shown = section.split("```bash\n")[1].split("```text\n")
    lines = commands.replace("\\\n", " ").splitlines()
    (tmp_path / "nights").symlink_to(nights)
    monkeypatch.chdir(tmp_path)
    for line in (one for one in lines if one.startswith("slicebeam ")):
        command, _, code = line.partition("  # exit code ")
        assert run(shlex.split(command)[1:]) == int(code)
    printed = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    expected = [" ".join(line.split()) for line in shown.split("```")[0].splitlines()]
    assert len(expected) == 6
    assert [line for line in expected if line not in printed] == []


def test_every_slice_against_pandas(nights: Path, tmp_path: Path) -> None:
    """Each example is in one predicate of each feature, and each slice has its very examples."""
    found = search_since(tmp_path, nights, "second", min_slice_size=1)
    frame = pq.read_table(nights / "second.parquet").to_pandas(types_mapper=pd.ArrowDtype)
    check(found, frame, (frame["label"] == frame["prediction"]).to_numpy(bool))
    jsonschema.validate(found.document, json_schema())


def test_as_if_the_values_had_been_in_the_domains(nights: Path, now: Found, tmp_path: Path) -> None:
    """Every number is that of a run whose domains a person has completed."""
    document = json.loads((nights / "then" / "changelist.json").read_text())
    country, _, speed = document["dataset"]["domains"]
    country["singletons"].append({"field": "country", "op": "==", "value": "PL"})
    speed["singletons"].append({"field": "speed", "op": "is_null"})
    (tmp_path / "edited.json").write_text(json.dumps(document))
    edited = search(
        tmp_path / "out",
        data=(str(nights / "second.parquet"),),
        domains=str(tmp_path / "edited.json"),
        max_cross_size=2,
        **ROLES,
    )
    assert edited.slices_bytes == now.slices_bytes
    assert domain(edited, "country")["new_values"] == []


def test_old_predicates_keep_their_places_and_ids(nights: Path, now: Found) -> None:
    then = read(nights / "then")
    assert singletons(now, "country") == [*singletons(then, "country"), ("==", "PL")]
    assert singletons(now, "speed") == [*singletons(then, "speed"), ("is_null", None)]
    assert singletons(now, "device") == singletons(then, "device")
    ids = dict(zip(then.table["slice"], then.table["slice_id"], strict=True))
    both = now.table[now.table["slice"].isin(ids)]
    assert len(both) > 30
    assert (both["slice"].map(ids) == both["slice_id"]).all()


def test_what_the_document_says(nights: Path, now: Found) -> None:
    frame = pd.read_parquet(nights / "second.parquet")
    new = [{"value": "PL", "n": int((frame["country"] == "PL").sum()), "occurred": False}]
    assert domain(now, "country")["new_values"] == new
    assert domain(now, "speed")["new_values"] == []
    seen, before = domain(now, "speed")["seen"], domain(read(nights / "then"), "speed")["seen"]
    first = pd.read_parquet(nights / "first.parquet")["speed"]
    assert before == {
        "missing": 0,
        "other": 0,
        "largest_other": 0,
        "low": first.min(),
        "high": first.max(),
        "distinct": first.nunique(),
    }
    assert (seen["low"], seen["high"]) == (frame["speed"].min(), frame["speed"].max())
    assert seen["missing"] == frame["speed"].isna().sum()
    assert seen["below"] == (frame["speed"] < first.min()).sum()
    assert seen["above"] == (frame["speed"] > first.max()).sum()


def test_what_is_new_since_then(now: Found) -> None:
    listed = {one["name"]: one for one in now.document["since"]["slices"]}
    reasons = {
        "country = PL": "then no example had this value of 'country'",
        "speed is missing": "then no value of 'speed' was missing",
    }
    for name, reason in reasons.items():
        assert (listed[name]["status"], listed[name]["missing"]) == ("new", reason)
        assert "then" not in listed[name]
    assert "binned differently" not in " ".join(now.document["since"]["warnings"])


def test_the_night_after_has_nothing_new(nights: Path, now: Found, tmp_path: Path) -> None:
    """What was new is known, and its slices are compared."""
    since = str(now.folder / "changelist.json")
    data = (str(nights / "second.parquet"),)
    again = search(tmp_path, data=data, since=since, max_cross_size=2, **ROLES)
    assert again.domains() == now.domains()
    assert drift(again) == []
    assert again.document["since"]["new"] == 0
    assert again.slices_bytes == now.slices_bytes


def test_an_ordinary_night_is_quiet(nights: Path, tmp_path: Path) -> None:
    """Nothing is added where nothing is new, and a record of a continuous column is no news."""
    found = search_since(tmp_path, nights, "quiet")
    assert found.domains() == read(nights / "then").domains()
    assert drift(found) == []


def test_documents_of_older_versions(nights: Path, now: Found, tmp_path: Path) -> None:
    document = json.loads((nights / "then" / "changelist.json").read_text())
    del document["dataset"]["drift"]
    for one in document["dataset"]["domains"]:
        del one["seen"]
        del one["new_values"]
    (tmp_path / "old.json").write_text(json.dumps(document))
    options = {"data": (str(nights / "second.parquet"),), "max_cross_size": 2, **ROLES}
    old = search(tmp_path / "out", since=str(tmp_path / "old.json"), **options)
    assert old.slices_bytes == now.slices_bytes
    assert drift(old) == drift(now)
    reasons = [one.get("missing") for one in old.document["since"]["slices"]]
    assert "the earlier document does not list it" in reasons[0]


@pytest.mark.parametrize(
    "cut", [{"chunk_rows": 333, "memory_budget": "16MB"}, {"runner_config": "direct_multi"}]
)
def test_the_same_however_it_is_cut(
    cut: dict[str, Any], nights: Path, now: Found, tmp_path: Path
) -> None:
    table = pq.read_table(nights / "second.parquet")
    order = np.random.default_rng(1).permutation(table.num_rows)
    pq.write_table(table.take(order), tmp_path / "mixed.parquet", row_group_size=700)
    (nights / "mixed.parquet").write_bytes((tmp_path / "mixed.parquet").read_bytes())
    found = search_since(tmp_path / "out", nights, "mixed", **cut)
    assert found.slices_bytes == now.slices_bytes
    assert found.document["dataset"]["domains"] == now.document["dataset"]["domains"]
    assert drift(found) == drift(now)


@pytest.mark.slow
def test_as_one_job_and_repeated(nights: Path, now: Found, tmp_path: Path) -> None:
    flags = ["search", f"--data={nights}/second.parquet", *FLAGS, "--quiet"]
    flags += [f"--since={nights}/then/changelist.json", "--strategy=batch", "--single-job"]
    assert run([*flags, f"--output={tmp_path}/job"]) == 0
    assert read(tmp_path / "job").slices_bytes == now.slices_bytes
    document = f"{now.folder}/changelist.json"
    assert run(["run", document, "--quiet", f"--output={tmp_path}/again"]) == 0
    assert read(tmp_path / "again").slices_bytes == now.slices_bytes


def test_a_dry_run_knows_the_domains_of_since(
    nights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["search", f"--data={nights}/second.parquet", *FLAGS, f"--output={tmp_path}/out"]
    assert run([*flags, f"--since={nights}/then/changelist.json", "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    known = read(nights / "then").domains()
    assert planned["singletons"] == sum(map(len, known.values()))
    assert [job["stage"] for job in planned["jobs"]] == ["domains", "encode", "iteration-1"]
    assert not planned["is_guessed"]


def drawn(values: Sequence[Any], shares: Sequence[float], rows: int = ROWS) -> list[Any]:
    """Values, each as often as its share says."""
    listed: list[Any] = []
    for value, share in zip(values, shares, strict=True):
        listed += [value] * round(share * rows)
    return [listed[i] for i in np.random.default_rng(2).permutation(len(listed))]


def test_lists(tmp_path: Path) -> None:
    then = {"tags": drawn([["a"], ["a", "b"], []], [0.4, 0.4, 0.2])}
    new = {
        "tags": drawn([["a"], ["b", "n"], None, ["n", "n"], ["r"]], [0.5, 0.2, 0.1, 0.198, 0.002])
    }
    _, found = in_pairs(tmp_path, then, new)
    assert singletons(found, "tags") == [
        ("contains", "a"),
        ("contains", "b"),
        ("contains", "n"),
        ("is_null", None),
    ]
    assert row(found, "tags contains n").n == 796
    assert row(found, "tags is missing").n == 200
    assert drift(found) == [
        "tags: 1 value that DOC does not have (n in 39.8% of the examples); 10.0% missing, none in DOC."
    ]


def test_rare_new_values_are_other_values(tmp_path: Path) -> None:
    """They are too few to be tested each, and enough together."""
    rare = [f"rare {i}" for i in range(10)]
    then = {"word": drawn(["a", "b"], [0.5, 0.5])}
    new = {"word": drawn(["a", "b", "c", *rare], [0.5, 0.35, 0.1, *[0.005] * 10])}
    _, found = in_pairs(tmp_path, then, new)
    assert singletons(found, "word") == [
        ("==", "a"),
        ("==", "b"),
        ("==", "c"),
        ("not_in", ["a", "b", "c"]),
    ]
    assert row(found, "word not in {a, b, c}").n == 100
    assert domain(found, "word")["seen"] == {"missing": 0, "other": 100, "largest_other": 10}
    assert drift(found) == [
        (
            "word: 10.0% of the examples have 1 value that DOC does not have (c); 5.0% have other "
            "values, none in DOC."
        )
    ]


def test_a_value_that_outgrows_the_others(tmp_path: Path) -> None:
    """It is named where it is surely more frequent than any of the others was; *other* then is split."""
    long = [f"v{i}" for i in range(10)]
    then = {"word": drawn(["a", "b", *long], [0.5, 0.3, *[0.02] * 10])}
    shares = [0.5, 0.3, 0.06, 0.025, *[0.115 / 8] * 8]
    earlier, found = in_pairs(
        tmp_path, then, {"word": drawn(["a", "b", *long], shares)}, top_values=2
    )
    assert singletons(earlier, "word")[2] == ("not_in", ["a", "b"])
    # Among the two most frequent are but the old ones.
    assert singletons(found, "word") == singletons(earlier, "word")
    assert found.document["provenance"]["config"]["top_values"] == 2
    options = {"data": (str(tmp_path / "now.parquet"),), "max_cross_size": 1, **ROLES}
    document = str(tmp_path / "out-then" / "changelist.json")
    more = search(tmp_path / "more", domains=document, since=document, top_values=4, **options)
    # v1 is among four, too, but no more frequent than chance makes it.
    assert singletons(more, "word") == [
        ("==", "a"),
        ("==", "b"),
        ("not_in", ["a", "b", "v0"]),
        ("==", "v0"),
    ]
    assert domain(more, "word")["new_values"] == [{"value": "v0", "n": 120, "occurred": True}]
    assert drift(more) == [
        "word: 6.0% of the examples have 1 value that DOC counted among its other values (v0)."
    ]


def test_since_says_that_other_was_split(tmp_path: Path) -> None:
    """The others of then are bad, and have no like now; what was new is told from what was hidden."""
    rng = np.random.default_rng(8)
    for name, shares in (("then", [0.5, 0.3, 0.1, 0.1, 0]), ("now", [0.5, 0.2, 0.1, 0.1, 0.1])):
        word = drawn(["a", "b", "c", "d", "e"], shares)
        bad = ~np.isin(word, ["a", "b"])
        label = rng.integers(0, 2, ROWS)
        right = rng.random(ROWS) < np.where(bad, 0.4, 0.9)
        table = pa.table(
            {"word": word, "label": label, "prediction": np.where(right, label, 1 - label)}
        )
        pq.write_table(table, tmp_path / f"{name}.parquet")
    first = search(
        tmp_path / "first", data=(str(tmp_path / "then.parquet"),), top_values=2, **ROLES
    )
    document = str(first.folder / "changelist.json")
    found = search(
        tmp_path / "second",
        data=(str(tmp_path / "now.parquet"),),
        since=document,
        domains=document,
        top_values=3,
        **ROLES,
    )
    listed = {one["name"]: one for one in found.document["since"]["slices"]}
    # c, d and e are as frequent; c comes first by its value, and was no rarer then.
    assert singletons(found, "word") == singletons(first, "word")
    assert listed["word not in {a, b}"]["status"] == "stays"
    grown = pq.read_table(tmp_path / "now.parquet").to_pandas()
    grown["word"] = grown["word"].replace("e", "c")
    grown.to_parquet(tmp_path / "now.parquet")
    found = search(
        tmp_path / "third",
        data=(str(tmp_path / "now.parquet"),),
        since=document,
        domains=document,
        top_values=3,
        **ROLES,
    )
    listed = {one["name"]: one for one in found.document["since"]["slices"]}
    assert listed["word = c"]["missing"] == "then this value of 'word' was among the other values"
    gone, came = listed["word not in {a, b}"], listed["word not in {a, b, c}"]
    assert (gone["status"], gone["missing"]) == (
        "gone",
        "now c has a predicate apart from the other values of 'word'",
    )
    assert (came["status"], came["missing"]) == (
        "new",
        "then the other values of 'word' contained c, too",
    )


def test_truth_values(tmp_path: Path) -> None:
    """There is no other value than two; one that came late is a new one."""
    then = {"both": drawn([True, False], [0.5, 0.5]), "one": drawn([True, None], [0.5, 0.5])}
    new = {
        "both": drawn([True, False, None], [0.5, 0.4, 0.1]),
        "one": drawn([True, False, None], [0.4, 0.1, 0.5]),
    }
    _, found = in_pairs(tmp_path, then, new)
    assert singletons(found, "both") == [("==", False), ("==", True), ("is_null", None)]
    assert singletons(found, "one") == [("==", True), ("is_null", None), ("==", False)]
    assert row(found, "one = false").n == 200
    third = search(
        tmp_path / "third",
        data=(str(tmp_path / "now.parquet"),),
        domains=str(found.folder / "changelist.json"),
        max_cross_size=1,
        **ROLES,
    )
    assert third.slices_bytes == found.slices_bytes


def test_integers_that_are_doubles_once_some_are_missing(tmp_path: Path) -> None:
    """As pandas writes them; the document of such a run is read, too."""
    then = {"k": pa.array(drawn([0, 1, 2], [0.4, 0.3, 0.3]), pa.int64())}
    values = drawn([0.0, 1.0, 2.0, 7.0, None, 0.5], [0.4, 0.2, 0.1, 0.1, 0.1, 0.1])
    _, found = in_pairs(tmp_path, then, {"k": pa.array(values, pa.float64())})
    assert singletons(found, "k") == [
        ("==", 0),
        ("==", 1),
        ("==", 2),
        ("==", 7),
        ("not_in", [0, 1, 2, 7]),
        ("is_null", None),
    ]
    assert row(found, "k not in {0, 1, 2, … 1 more}").n == 200
    third = search(
        tmp_path / "third",
        data=(str(tmp_path / "then.parquet"),),
        domains=str(found.folder / "changelist.json"),
        max_cross_size=1,
        **ROLES,
    )
    assert row(third, "k = 0").n == 800
    assert third.domains() == found.domains()


def test_numbers_beside_the_bins(tmp_path: Path) -> None:
    """A value with a bin of its own leaves gaps, which get bins where an example is in them."""
    rng = np.random.default_rng(4)
    then = {"gain": drawn([0, 5], [0.9, 0]) + rng.integers(100, 999, 200).tolist()}
    new = {
        "gain": drawn([0, -3, 40], [0.7, 0.1, 0.1])
        + rng.integers(100, 999, 100).tolist()
        + [5000] * 100
    }
    earlier, found = in_pairs(tmp_path, then, new)
    # The next value is 103; between it and 0 there is nothing.
    low = 100
    assert singletons(earlier, "gain")[0] == ("==", 0)
    first, *rest = singletons(found, "gain")
    assert first == ("<", 0)
    assert rest == [("==", 0), ("between", [1, low]), *singletons(earlier, "gain")[1:]]
    assert row(found, "gain < 0").n == 200
    assert row(found, f"gain in [1, {low})").n == 200
    high = max(then["gain"])
    assert drift(found) == [
        (
            "gain: 20.0% have a value in none of its bins, none in DOC; 10.0% below 0, none in DOC; "
            f"5.0% above {high}, none in DOC."
        )
    ]
    third = search(
        tmp_path / "third",
        data=(str(tmp_path / "now.parquet"),),
        domains=str(found.folder / "changelist.json"),
        max_cross_size=1,
        **ROLES,
    )
    assert third.slices_bytes == found.slices_bytes
    assert drift(third) == []


def test_missing_values_that_become_more(tmp_path: Path) -> None:
    """A share that grew by chance, or by little, is no news."""

    def column(missing: float) -> dict[str, Any]:
        rest = (1 - missing) / 4
        return {"word": drawn(["a", "b", "c", "d", None], [*[rest] * 4, missing])}

    noted = []
    for place, share in enumerate((0.04, 0.055, 0.1)):
        _, found = in_pairs(tmp_path / str(place), column(0.04), column(share))
        noted.append(drift(found))
    assert noted == [[], [], ["word: 10.0% missing, 4.0% in DOC."]]


def test_columns_that_had_no_domain(tmp_path: Path) -> None:
    """One that had but one value then, or was not there, is searched now; an excluded one is not."""
    then = {"a": drawn([1, 2], [0.5, 0.5]), "one": ["US"] * ROWS, "out": drawn([1, 2], [0.5, 0.5])}
    new = {
        "out": then["out"],
        "one": drawn(["US", "CA"], [0.9, 0.1]),
        "fresh": drawn(["x", "y"], [0.5, 0.5]),
        "still": ["z"] * ROWS,
    }
    for name, columns in (("then", then), ("now", {**new, "a": then["a"]})):
        rng = np.random.default_rng(3)
        label, prediction = rng.integers(0, 2, ROWS), rng.integers(0, 2, ROWS)
        table = pa.table({**columns, "label": label, "prediction": prediction})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    options = {"max_cross_size": 1, **ROLES}
    first = search(
        tmp_path / "first",
        data=(str(tmp_path / "then.parquet"),),
        exclude_features=("out",),
        **options,
    )
    document = str(first.folder / "changelist.json")
    found = search(
        tmp_path / "second", data=(str(tmp_path / "now.parquet"),), domains=document, **options
    )
    assert row(found, "one = CA").n == 200
    assert row(found, "fresh = x").n == 1000
    assert drift(found) == [
        "one: left out in DOC (one value only ('US')); its values are now tested.",
        "fresh: left out in DOC (not in its data); its values are now tested.",
    ]
    left = {one["name"]: one["reason"] for one in found.document["dataset"]["left_out"]}
    assert left == {"out": f"it has no domain in {document}", "still": "one value only ('z')"}


DEGENERATE: dict[str, Callable[[], tuple[list[Any], list[Any], dict[str, int]]]] = {
    "all new": lambda: (
        drawn(["a", "b"], [0.5, 0.5]),
        drawn(["c", "d"], [0.5, 0.5]),
        {"x = c": 1000, "x = d": 1000},
    ),
    "all new and rare": lambda: (
        drawn(["a", "b"], [0.5, 0.5]),
        [f"v{i % 400}" for i in range(ROWS)],
        {"x not in {a, b}": 2000},
    ),
    "one value": lambda: (
        drawn(["a", None], [0.5, 0.5]),
        drawn(["a", "b"], [0.5, 0.5]),
        {"x = a": 1000, "x = b": 1000},
    ),
    "one element": lambda: (
        drawn([["a"], []], [0.5, 0.5]),
        drawn([["a"], ["b"]], [0.5, 0.5]),
        {"x contains a": 1000, "x contains b": 1000},
    ),
    "all missing": lambda: (
        drawn(["a", "b"], [0.5, 0.5]),
        [None] * ROWS,
        {"x is missing": 2000},
    ),
    "two points": lambda: (
        drawn([0.25, 0.5], [0.5, 0.5]),
        drawn([0.125, 0.375, 0.75, float("nan")], [0.25, 0.25, 0.25, 0.25]),
        {"x < 0.25": 500, "x in [0.25000000000000006, 0.5)": 500, "x >= 0.5000000000000001": 500},
    ),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_domains(name: str, tmp_path: Path) -> None:
    then, new, sizes = DEGENERATE[name]()
    beside = {"beside": drawn(["u", "v"], [0.5, 0.5])}
    _, found = in_pairs(tmp_path, {"x": then, **beside}, {"x": new, **beside})
    held = dict(zip(found.table["slice"], found.table["n"], strict=True))
    assert {text: held.get(text) for text in sizes} == sizes
    assert sum(n for text, n in held.items() if text.startswith("x ")) == ROWS
