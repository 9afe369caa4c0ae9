"""Results that pages are made of."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.pipelines.commands.cli import run
from tests.conftest import ADULT
from tests.discovered import TOPICS

HOSTILE = """<img src=x onerror="alert(1)"></script><script>alert(2)</script><!--"""
FORMULA = "=cmd|' /C calc'!A0"
_NO_FEATURES = "row_id,fnlwgt,score,score_old,prediction_old"
# What steers the page, or is an id that other parts refer to, or a date or hash by its pattern.
_KEPT = {
    "schema_version", "changelist_id", "created_at", "fingerprint", "slices_fingerprint", "kind",
    "op", "metric", "key", "role", "slice_id", "parent", "label", "direction", "strategy", "stop",
    "stopped", "saved_slices", "correction", "alternative", "tool", "command", "method", "after",
    "before", "sha256", "config", "data", "content", "looks_like", "same_examples_as",
}  # fmt: skip


def search(data, output, *flags, codes=(0,)):
    roles = ("--label", "label", "--prediction", "prediction")
    command = ["search", "--data", str(data), *roles, "--quiet", "--output", str(output), *flags]
    assert run(command) in codes
    return output


def search_result(folder, *more, baseline=False, metric="accuracy"):
    excluded = _NO_FEATURES.removesuffix(",prediction_old") if baseline else _NO_FEATURES
    old = ("--baseline-prediction", "prediction_old", "--alternative", "both") if baseline else ()
    flags = ("--label", "income", "--metric", metric, "--exclude-features", excluded, *old)
    output = folder / ("baseline" if baseline else "overall")
    return search(ADULT, output, *flags, "--max-cross-size", "2", *more)


def next_night(folder, days):
    flags = ("--label", "income", "--exclude-features", "prediction_old", "--max-cross-size", "2")
    first, second = (days / f"date=2026-11-{day}" / "*.parquet" for day in (18, 19))
    published = str(search(first, folder / "2026-11-18", *flags) / "changelist.json")
    since = ("--since", published, "--compare", "overall")
    return search(second, folder / "2026-11-19", *flags, *since)


def discovery_result(folder):
    rng, rows = np.random.default_rng(5), []
    for at in range(1_500):
        topic = list(TOPICS)[at % 3]
        text, label = " ".join(rng.choice(TOPICS[topic].split(), 6)), int(rng.random() < 0.5)
        wrong = (rng.random() < (0.6 if topic == "food" else 0.1), rng.random() < 0.1)
        new, old = (1 - label if one else label for one in wrong)
        rows.append({"id": at, "text": f"{text} {at % 7}", "label": label, "new": new, "old": old})
    data, output = folder / "reviews.parquet", folder / "discovery"
    pq.write_table(pa.Table.from_pylist(rows), data)
    command = ["discover", f"--data={data}", "--text=text", "--components=3", "--quiet"]
    command += ["--label=label", "--example-id=id", "--prediction=new", "--baseline-prediction=old"]
    assert run([*command, "--output", str(output)]) == 0
    return output


def shift_result(folder, *flags):
    rng = np.random.default_rng(6)
    label = rng.integers(0, 2, 4_000)
    old = np.where(rng.random(4_000) < 0.1, 1 - label, label)
    new = np.where(rng.random(4_000) < np.where(label == 1, 0.3, 0.1), 1 - label, label)
    data, output = folder / "pool.parquet", folder / "shift"
    columns = {"label": label, "old": old, "new": new, "sure": rng.random(4_000)}
    columns["group"] = rng.choice(["a", "b"], 4_000)
    pq.write_table(pa.table(columns), data)
    command = ["shift", "--data", str(data), "--label", "label", "--old-prediction", "old"]
    command += ["--replay-prediction", "new", "--budget", "2000", "--difficulty", "sure", "--quiet"]
    assert run([*command, *flags, "--output", str(output)]) == 0
    return output


def nothing_found(folder):
    """Search data in which errors have nothing to do with the features, and return the output's folder."""
    rng = np.random.default_rng(8)
    label = rng.integers(0, 2, 1_000)
    columns = {"a": rng.choice(["x", "y", "z"], 1_000), "b": rng.choice(["u", "v"], 1_000)}
    columns |= {"label": label, "prediction": np.where(rng.random(1_000) < 0.2, 1 - label, label)}
    pq.write_table(pa.table(columns), folder / "nothing.parquet")
    return search(folder / "nothing.parquet", folder / "nothing")


def earlier_result(folder):
    """Search data of which one value became worse and another more frequent, and return the output's folder."""
    rng = np.random.default_rng(10)
    folder.mkdir()
    for name, share, wrong in (("then", 0.2, 0.1), ("now", 0.5, 0.5)):
        label = rng.integers(0, 2, 4_000)
        a = np.where(rng.random(4_000) < share, "x", rng.choice(["y", "z"], 4_000))
        b = rng.choice(["u", "v", "w"], 4_000)
        errors = np.where(b == "u", wrong, np.where(a == "x", 0.3, 0.1))
        flipped = rng.random(4_000) < errors
        columns = {
            "a": a,
            "b": b,
            "label": label,
            "prediction": np.where(flipped, 1 - label, label),
        }
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return search(
        folder / "now.parquet",
        folder / "out",
        f"--baseline-data={folder / 'then.parquet'}",
        "--fail-on=any",
        codes=(1,),
    )


def long_values(folder):
    """Search data whose values begin with the same hundred letters, and return the output's folder."""
    rng, n = np.random.default_rng(9), 2_000
    url = rng.choice([f"https://example.org/{'path/' * 20}{end}" for end in "abcd"], n)
    label = rng.integers(0, 2, n)
    wrong = rng.random(n) < np.where(np.char.endswith(url, "a"), 0.5, 0.1)
    columns = {"url": url, "label": label, "prediction": np.where(wrong, 1 - label, label)}
    pq.write_table(pa.table(columns), folder / "long.parquet")
    return search(folder / "long.parquet", folder / "long")


def hostile_data(folder):
    """Search data whose columns and values are markup and formulas, and return the output's folder."""
    rng, n = np.random.default_rng(7), 2_000
    place = rng.choice([HOSTILE, FORMULA, "plain"], n)
    sex, label = rng.choice(["+1", "-1"], n), rng.integers(0, 2, n)
    wrong = rng.random(n) < np.where(place == "plain", 0.05, np.where(sex == "+1", 0.5, 0.3))
    columns = {HOSTILE: place, "@sex": sex, "label": label}
    columns["prediction"] = np.where(wrong, 1 - label, label)
    pq.write_table(pa.table(columns), folder / "hostile.parquet")
    return search(folder / "hostile.parquet", folder / "hostile_data")


def hostile_document(folder):
    """Put markup into every text of a document that a data set, a person or a tool can fill."""
    path = folder / "changelist.json"
    document = json.loads(path.read_text())
    config = document["provenance"].pop("config")
    document["testing"]["warnings"] = ["a"]
    document["dataset"]["left_out"] = [{"name": "a", "reason": "b"}]
    document = _hostile(document)
    document["provenance"]["config"] = config
    for number, domain in enumerate(document["dataset"]["domains"]):
        domain["name"] += str(number)
    document.pop("files")
    path.write_text(json.dumps(document))


def _hostile(part, name=""):
    if isinstance(part, dict):
        return {key: _hostile(value, key) for key, value in part.items()}
    if isinstance(part, list):
        return [_hostile(value, name) for value in part]
    return HOSTILE if isinstance(part, str) and name not in _KEPT else part
