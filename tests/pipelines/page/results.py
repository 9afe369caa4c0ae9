"""Results that pages are made of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.cli import run
from tests.conftest import ADULT

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = """<img src=x onerror="alert(1)"></script><script>alert(2)</script><!--"""
_NO_FEATURES = "row_id,fnlwgt,score,score_old,prediction_old"
# What steers the page, or is an id that other parts refer to, or a date or hash by its pattern.
_KEPT = {
    *("schema_version", "changelist_id", "created_at", "fingerprint", "slices_fingerprint", "kind"),
    *(
        "op",
        "metric",
        "key",
        "role",
        "slice_id",
        "parent",
        "label",
        "direction",
        "strategy",
        "stop",
    ),
    *("stopped", "saved_slices", "correction", "alternative", "tool", "command", "method", "after"),
    *("before", "sha256", "config", "data", "content", "looks_like", "same_examples_as"),
}


def search_result(folder: Path, *, baseline: bool = False) -> Path:
    """Search the census data, and return the output's folder."""
    output = folder / ("baseline" if baseline else "overall")
    excluded = _NO_FEATURES.removesuffix(",prediction_old") if baseline else _NO_FEATURES
    old = ("--baseline-prediction", "prediction_old", "--alternative", "both") if baseline else ()
    command = ["search", "--data", str(ADULT), "--label", "income", "--prediction", "prediction"]
    command += [*old, "--exclude-features", excluded, "--max-cross-size", "2", "--quiet"]
    assert run([*command, "--output", str(output)]) == 0
    return output


def next_night(folder: Path, days: Path) -> Path:
    """Search two of the scheduled days, the second against the first, and return its folder."""
    outputs = []
    for day in ("2026-11-18", "2026-11-19"):
        data = str(days / f"date={day}" / "*.parquet")
        command = ["search", "--data", data, "--label", "income", "--prediction", "prediction"]
        command += ["--exclude-features", "prediction_old", "--max-cross-size", "2", "--quiet"]
        if outputs:
            command += ["--since", str(outputs[-1] / "changelist.json")]
        outputs.append(folder / day)
        assert run([*command, "--output", str(outputs[-1])]) == 0
    return outputs[-1]


def hostile_document(folder: Path) -> None:
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


def _hostile(part: Any, name: str = "") -> Any:
    if isinstance(part, dict):
        return {key: _hostile(value, key) for key, value in part.items()}
    if isinstance(part, list):
        return [_hostile(value, name) for value in part]
    return HOSTILE if isinstance(part, str) and name not in _KEPT else part
