"""Two resolutions of one mixture: the report has the same examples once."""

import pytest

from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.show.worst_slices import worst_slices
from tests.discover_runs import discover, examples, written


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folded")
    data = (written(folder / "data.parquet", examples(8, n=2000, apart=2.0)),)
    roles = {"label": "label", "prediction": "new", "embedding": "z"}
    return discover(folder / "out", data=data, components=(8, 20), slices=4, **roles)


@pytest.fixture(scope="module")
def members(found):
    """The examples of each slice; each is in one slice of each mixture."""
    return {key: set(own) for key, own in found.membership.groupby("slice_id")["id"]}


def test_slices_mostly_in_one_above_are_left_out(found, members):
    (shown,) = worst_slices(SearchChangeList.model_validate(found.document))
    kept = []
    folded = 0
    slices = [one["slice_id"] for one in found.document["slices"]]
    for one in slices:
        if len(kept) == 12:
            break
        if any(len(members[one] & members[other]) > len(members[one]) / 2 for other in kept):
            folded += 1
        else:
            kept.append(one)
    assert [one.slice_id for one, _ in shown.rows] == kept
    assert shown.folded == folded >= 3
    assert shown.rest == len(slices) - len(kept) - folded


def test_findings_do_not_repeat_examples(found, members):
    for side in ("worse", "better"):
        findings = [one for one in found.document["findings"] if one["direction"] == side]
        held = [members[one["slice_id"]] for one in findings]
        assert held
        for number, own in enumerate(held):
            shares = [len(own & other) / len(own) for other in held[:number]]
            assert max(shares, default=0.0) <= 0.5


def test_findings_are_described_before_the_others(found):
    """What tables begin with has examples, also where others changed more."""
    slices = found.document["slices"]
    described = {one["slice_id"] for one in slices if one["found"]["examples"]}
    ranked = sorted(found.document["findings"], key=lambda one: one["rank"])
    assert described == {one["slice_id"] for one in ranked[:4]}
    assert described != {one["slice_id"] for one in slices[:4]}
