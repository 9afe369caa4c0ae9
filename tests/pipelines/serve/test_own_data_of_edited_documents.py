"""Own data beside a document to which a person added a slice that no search makes."""

import pytest

from slicebeam.pipelines.cli import run
from tests.conftest import ADULT
from tests.pipelines.serve.asking import asks, served_page
from tests.pipelines.serve.test_features import wait_for_end


@pytest.mark.slow
def test_own_data_after_a_slice_on_a_searched_number(tmp_path):
    output = tmp_path / "out"
    command = ["search", f"--data={ADULT}", "--label=income", "--prediction=prediction", "--quiet"]
    assert run([*command, "--features=age,sex", f"--output={output}"]) == 0
    young = ["define", f"--changelist={output}", "--name=young", "--where=age < 30", "--quiet"]
    assert run(young) == 0
    page = served_page(output, ADULT)
    asks(page)("own/start", file=0)
    status = wait_for_end(page)
    assert status["state"] == "done", status
    reasons = {one["name"]: one["missing"] for one in status["slices"]}
    assert reasons.pop("young") == "then the search had no predicate 'age < 30'"
    assert len(reasons) > 5
    assert set(reasons.values()) == {None}
