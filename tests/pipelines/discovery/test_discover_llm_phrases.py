"""Phrases that a language model names: what it is shown, what is paid, and what becomes of answers."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.api import discover
from slicebeam.pipelines.discovery.llm_phrases import phrases_of_model
from slicebeam.pipelines.show.discovery import found_lines
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("quick_calls")
TEMPLATE = {"id": "{prompt}", "text": "{prompt}"}
ANSWER = '1. sour soup\n- "fresh bread"\n\n* rain of the north\n' + "word " * 9 + "\n" + "x" * 81
GROUPS = [(["soup", "more\nsoup"], ["rain"]), (["rain"], ["soup"]), ([], ["soup"])]


def test_a_list_of_any_kind_is_read_and_each_group_is_asked_about_once(paid_server, tmp_path):
    api = paid_server.anew(tmp_path / "api", default=ANSWER)
    file = api.file(json=TEMPLATE)
    found = phrases_of_model(file, GROUPS, tmp_path)
    # What is longer than a phrase is none.
    assert found == ["sour soup", "fresh bread", "rain of the north"]
    assert len(api.charged) == 2
    assert any("Of the group:\n- soup\n- more soup\n" in asked for asked in api.charged)
    assert all("Not of the group:\n- " in asked for asked in api.charged)
    assert phrases_of_model(file, GROUPS, tmp_path) == found
    assert len(api.charged) == 2


@pytest.mark.parametrize(("changes", "message"), [
    ({"json": {"text": "{text}"}}, r"write \{prompt\} where"),
    ({"json": TEMPLATE, "labels": {"a": 1}}, "answers are phrases; leave 'labels' out"),
])  # fmt: skip
def test_files_that_ask_otherwise(paid_server, tmp_path, changes, message):
    api = paid_server.anew(tmp_path / "api")
    refuses(InputError, message, phrases_of_model, api.file(**changes), GROUPS, tmp_path)
    assert api.requests == []


def test_they_describe_slices_and_the_user_is_shown_them(paid_server, tmp_path):
    """The model that answers in this test always says the same; the scores tell whom it fits."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 3, 600)
    words = [["sour", "soup", "hot"], ["heavy", "rain", "wind"], ["old", "car", "road"]]
    texts = [" ".join(rng.permutation(words[kind])[:2]) for kind in kinds]
    old = rng.random(600) < np.where(kinds == 0, 0.1, 0.3)
    new = rng.random(600) < np.where(kinds == 0, 0.9, 0.3)
    data = tmp_path / "data.parquet"
    pq.write_table(pa.table({"t": texts, "old": old * 1.0, "new": new * 1.0}), data)
    api = paid_server.anew(tmp_path / "api", default="sour soup\nheavy rain")
    how = {"text": "t", "loss": "new", "baseline_loss": "old", "components": 3}
    out, file = str(tmp_path / "out"), api.file(json=TEMPLATE)
    report = discover(str(data), phrases=file, output=out, **how)
    first = report.changelist.slices[0]
    assert [(one.text, one.source) for one in first.found.phrases] == [("sour soup", "llm")]
    assert len(api.charged) == len(report.changelist.slices)
    assert list((tmp_path / "out").glob("phrases-*"))
    lines, correlation = found_lines(report.changelist), first.found.phrases[0].correlation
    assert f"  {first.name}: sour soup ({correlation:.2f})" in lines
    told = f"{first.found.improved:,} improved, {first.found.degraded:,} degraded"
    assert any(line.startswith(f"    {told}; such as “") for line in lines)
    assert lines[-2].startswith("Embeddings (lsa) of ")
