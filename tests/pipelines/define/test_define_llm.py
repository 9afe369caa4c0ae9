"""``slicebeam define --llm-filter``: what is asked, paid and kept, against a paid API."""

import pyarrow as pa
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.define.llm_filter import llm_filter
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("quick_calls")
PROMPT = 'Is it food? Yes or no.\n{"weather": no}\n{text} is'
TEXTS = ["bread", "rain", "bread", None, "soup", "rain {text}", "???", "soup"]
IDS = pa.array([f"n{at}" for at in range(len(TEXTS))])
ANSWERS = {"bread": "Yes.", "rain": "no", "soup": " YES ", "rain {text}": "**No**"}
ANSWERS |= {"???": "perhaps"}
TEMPLATE = {"id": "{prompt}", "text": "{prompt}"}


def filled(text):
    return PROMPT.replace("{text}", text)


def plan(paid_server, folder, **changes):
    answers = {filled(text): answer for text, answer in ANSWERS.items()}
    return paid_server.anew(folder, answers=answers, default="no", **changes)


def ask(folder, api, *, budget=5, **changes):
    told = {"ids": IDS, "texts": pa.array(TEXTS), "prompt": PROMPT, **changes}
    file = api.file(json=TEMPLATE) if "llm" not in told else told["llm"]
    said = []
    given = (told["prompt"], file, told["ids"], told["texts"], folder)
    return *llm_filter(*given, budget, said.append), said


def test_members_are_those_of_which_it_says_yes(paid_server, tmp_path):
    api = plan(paid_server, tmp_path / "api")
    definition, notes, said = ask(tmp_path, api)
    assert definition.ids == ("n0", "n2", "n4", "n7")
    assert (definition.prompt, definition.model) == (PROMPT, api.file(json=TEMPLATE))
    # Each different text is asked about once.
    assert sorted(api.charged) == sorted(filled(text) for text in ANSWERS)
    assert said == ["asking about 5 of 5 different texts"]
    assert notes == (
        "the model answers yes for 4 of 8 examples",
        "of 1 it answers neither yes nor no; they are not in the slice",
        "1 examples without text are not in the slice",
    )
    (ledger,) = tmp_path.glob("llm-filter-*")
    assert ledger.is_dir()


def test_nothing_is_paid_twice(paid_server, tmp_path):
    api = plan(paid_server, tmp_path / "api")
    first = ask(tmp_path, api)[0]
    definition, _, said = ask(tmp_path, api)
    assert (definition, said) == (first, ["asking about 0 of 5 different texts"])
    assert len(api.charged) == 5
    more, ids = pa.array(["soup", "cake", "rain"]), pa.array([3, 1, 2])
    definition, _, said = ask(tmp_path, api, texts=more, ids=ids, budget=6)
    assert (said, definition.ids) == (["asking about 1 of 3 different texts"], (3,))
    assert len(api.charged) == 6
    other = {"prompt": "{text}?", "texts": pa.array(["soup"]), "ids": pa.array([1])}
    refuses(InputError, "the model answers yes for no example", ask, tmp_path, api, **other)
    assert (len(list(tmp_path.glob("llm-filter-*"))), len(api.charged)) == (2, 7)


def test_budget_is_held_against_all_calls_before_any_is_made(paid_server, tmp_path):
    api = plan(paid_server, tmp_path / "api")
    said = "5 more calls are needed, 0 are paid; give --budget 5"
    refuses(InputError, said, ask, tmp_path, api, budget=4)
    assert api.requests == []
    ask(tmp_path, api, budget=5)
    with pytest.raises(InputError, match="1 more calls are needed, 5 are paid; give --budget 6"):
        ask(tmp_path, api, texts=pa.array(["cake"]), ids=pa.array([1]), budget=5)
    refuses(InputError, "--budget 0: give at least 1", ask, tmp_path, api, budget=0)


def test_lost_calls_that_count(paid_server, tmp_path):
    api = plan(paid_server, tmp_path / "api", always={filled("soup"): "drop-after"})
    file = api.file(json=TEMPLATE, lost_calls="count")
    definition, notes, _ = ask(tmp_path, api, llm=file)
    assert definition.ids == ("n0", "n2")
    assert notes[-1].startswith("1 calls may have been charged but got no answer")
    # Nor is it asked again, or taken out of the budget twice.
    definition, _, said = ask(tmp_path, api, llm=file)
    assert definition.ids == ("n0", "n2")
    assert (said, len(api.charged)) == (["asking about 0 of 5 different texts"], 5)


@pytest.mark.parametrize(("template", "reason"), [
    ({"id": "1", "text": "{prompt} {topic}"}, "there is no column 'topic' here; write {prompt}"),
    ({"id": "1", "text": "x"}, "it has no place for the prompt; write {prompt}"),
])  # fmt: skip
def test_wrong_files(paid_server, tmp_path, template, reason):
    api = plan(paid_server, tmp_path / "api")
    refuses(InputError, reason, ask, tmp_path, api, llm=api.file(json=template))
    assert api.requests == []


def test_wrong_prompt_and_missing_file(paid_server, tmp_path):
    api = plan(paid_server, tmp_path / "api")
    refuses(InputError, r"the prompt has no {text}", ask, tmp_path, api, prompt="Is it food?")
    with pytest.raises(InputError, match=r"none\.yaml: no such file"):
        ask(tmp_path, api, llm=str(tmp_path / "none.yaml"))
