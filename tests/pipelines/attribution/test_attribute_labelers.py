"""Labels by a column, a language model behind an API that fails, and a person in a terminal."""

import io
import json

import pyarrow as pa
import pytest

from slicebeam.metrics.attribution.estimates import NO, UNSURE, YES
from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.attribution import asking
from slicebeam.pipelines.attribution.asking import TerminalLabeler, terminal_labeler
from slicebeam.pipelines.attribution.labelers import LanguageModel, RecordedLabels
from slicebeam.pipelines.attribution.session import Finished, Stopped, run_rounds
from tests.attribute_runs import TEXT, labels_file, labels_folder, opened, population
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("quick_calls")
SECRET = "swordfish"


@pytest.fixture
def served(paid_server, tmp_path):
    """A server that answers about a population, and the file that describes it."""

    def serving(people, words=("no", "yes"), **plan):
        texts = people.rows(range(people.truth.size)).column("text").to_pylist()
        truths = zip(texts, people.truth.tolist(), strict=True)
        answers = {text: words[is_true] for text, is_true in truths}
        return paid_server.anew(tmp_path / "llm", answers=answers, **plan)

    return serving


def file(api, **changes):
    prompt = {"id": "{item}", "text": "{text}", "about": "Is it true that {attribution_text}?"}
    return api.file(**{"json": prompt, "price": 0.01, **changes})


def model(path, folder, told=None):
    return LanguageModel(path, None, folder, (told if told is not None else []).append)


def test_a_model_labels_what_a_column_would(served, tmp_path):
    people = population()
    api, told = served(people), []
    with opened(tmp_path / "llm", people) as session:
        labeler = model(file(api), tmp_path / "paid", told)
        by_model = run_rounds(session, labeler, budget=80, rounds=2)
        first, second = (one.asked for one in session.state.rounds)
        asked = {str(item) for item in first + second}
    with opened(tmp_path / "column", people) as session:
        by_column = run_rounds(session, RecordedLabels("truth", ()), budget=80, rounds=2)
    assert isinstance(by_model, Finished)
    assert isinstance(by_column, Finished)
    found, expected = by_model.assessed.attribution, by_column.assessed.attribution
    assert (found.precision, found.recall) == (expected.precision, expected.recall)
    assert sorted(api.charged) == sorted(asked)
    assert {one.labeler for one in found.rounds} == {"llm api.yaml"}
    assert len(told) == 2
    number = len(first)
    assert told[0] == f"asking about {number} of {number} items, for about {number / 100:.2f} USD"
    assert SECRET not in "".join(path.read_text() for path in tmp_path.rglob("*.jsonl"))


def test_a_failure_half_way_keeps_what_was_paid(served, tmp_path):
    people = population()
    with opened(tmp_path / "doc", people) as session:
        session.draw(60)
        items = session.open_items
    api = served(people, always={str(items[40]): "500"})
    path = file(api, retries=1, concurrency=2)
    said, labeler = "HTTP 500 2 times for item", model(path, tmp_path / "paid")
    with opened(tmp_path / "doc", people) as session:
        refuses(EngineError, said, run_rounds, session, labeler, budget=60, rounds=1)
    before = list(api.charged)
    assert 35 <= len(before) < len(items) - 5
    kept = labels_file(tmp_path / "doc").read_text().splitlines()
    assert sorted(str(json.loads(line)["item"]) for line in kept) == sorted(before)
    again, told = served(people), []
    with opened(tmp_path / "doc", people) as session:
        finished = run_rounds(session, model(path, tmp_path / "paid", told), budget=60, rounds=1)
    assert isinstance(finished, Finished)
    charged = [one["item"] for one in again.requests if one["outcome"] == "charged"]
    assert sorted(charged) == sorted(map(str, items))
    left = len(items) - len(before)
    assert told[0].startswith(f"asking about {left} of {left} items")


def test_a_label_that_was_lost_after_it_was_paid_is_not_paid_again(served, tmp_path):
    people, told = population(), []
    api = served(people)
    with opened(tmp_path / "doc", people) as session:
        run_rounds(session, model(file(api), tmp_path / "paid"), budget=30, rounds=1)
    number = len(api.charged)
    # As after a kill between the answer and the label.
    labels_file(tmp_path / "doc").unlink()
    with opened(tmp_path / "doc", people) as session:
        run_rounds(session, model(file(api), tmp_path / "paid", told), budget=30, rounds=1)
    assert len(api.charged) == number
    assert told == [f"asking about 0 of {number} items ({number} already paid), for about 0.00 USD"]


def test_an_answer_that_can_t_be_read_is_unsure(served, tmp_path):
    people = population()
    with opened(tmp_path / "doc", people) as session:
        items = [str(one) for one in session.draw(40).asked]
    bad = {items[3]: "garbage", items[5]: "422", items[8]: "null"}
    api = served(people, ("negative", "positive answer"), always=bad)
    path = file(api, labels={"negative": False, "positive answer": "yes"})
    with opened(tmp_path / "doc", people) as session:
        finished = run_rounds(session, model(path, tmp_path / "paid"), budget=40, rounds=1)
        unsure = [str(x) for x, one in session.store.known.items() if one.label == UNSURE]
    assert sorted(unsure) == sorted(bad)
    assert isinstance(finished, Finished)
    assert "Unsure answers (3) count as no" in finished.assessed.notes[0]
    assert sum(one.unsure for one in finished.assessed.attribution.rounds) == 3


def test_a_call_that_is_lost_and_counts_is_unsure(served, tmp_path):
    people = population()
    with opened(tmp_path / "doc", people) as session:
        items = [str(one) for one in session.draw(20).asked]
    api = served(people, always={items[4]: "drop-after"})
    path = file(api, lost_calls="count")
    with opened(tmp_path / "doc", people) as session:
        finished = run_rounds(session, model(path, tmp_path / "paid"), budget=20, rounds=1)
    assert isinstance(finished, Finished)
    assert sorted(api.charged) == sorted(items)
    assert "Unsure answers (1)" in finished.assessed.notes[0]


@pytest.mark.parametrize(("prompt", "words"), [
    ({"id": "{item}", "text": "{text}"}, r"no \{attribution_text\} is in url"),
    ({"text": "{attribution_text}"}, r"no \{column\} that shows an item"),
    ({"t": "{txt} {attribution_text}"}, "unknown column 'txt'; did you mean 'text'"),
])  # fmt: skip
def test_a_prompt_that_asks_nothing(prompt, words, served, tmp_path):
    people = population(size=30, outside=100)
    api = served(people)
    path = file(api, json=prompt)
    with opened(tmp_path / "doc", people) as session, pytest.raises(InputError, match=words):
        run_rounds(session, model(path, tmp_path / "paid"), budget=20, rounds=1)
    assert not api.charged


@pytest.mark.parametrize(("values", "positive", "first"), [
    (pa.array([1, 0, None]), (), [YES, NO, UNSURE]),
    (pa.array([1.0, 0.0, float("nan")]), (), [YES, NO, UNSURE]),
    (pa.array([True, False, None]), ("true",), [YES, NO, UNSURE]),
    (pa.array(["yes", "no", "unsure"]), (), [YES, NO, UNSURE]),
    (pa.array(["movie", "news", "film"]), ("movie", "film"), [YES, NO, YES]),
    (pa.array([3, 4, 5]), ("4", "5.0"), [NO, YES, YES]),
])  # fmt: skip
def test_a_recorded_column(values, positive, first, tmp_path):
    people = population(size=30, outside=90)
    people.columns["recorded"] = values.take(pa.array([one % 3 for one in range(120)]))
    with opened(tmp_path, people) as session:
        items = people.ids[:3].to_pylist()
        RecordedLabels("recorded", positive).label(items, people, session.store)
        assert session.store.codes(items).tolist() == first


@pytest.mark.parametrize(("column", "positive", "words"), [
    ("nothing", (), "--labels 'nothing': there is no such column"),
    ("source", (), "--labels source: 'movie' is not a label; .* with --positive"),
    ("source", ("Movie",), "--positive 'Movie': column 'source' has no such value; .*'movie'"),
])  # fmt: skip
def test_a_column_that_holds_no_labels(column, positive, words, tmp_path):
    people = population(size=30, outside=90, columns={"source": pa.array(["movie"] * 120)})
    with pytest.raises(InputError, match=words), opened(tmp_path, people) as session:
        run_rounds(session, RecordedLabels(column, positive), budget=20, rounds=1)


def person(keys):
    said, pressed = [], iter(keys)

    def read(prompt):
        said.append(prompt)
        key = next(pressed, None)
        if key is None:
            raise EOFError
        if key == "^C":
            raise KeyboardInterrupt
        return f"{key}\n"

    return TerminalLabeler(read, said.append), said


def test_a_person_answers_and_goes_back(tmp_path):
    people = population(size=30, outside=90)
    labeler, said = person(["b", "y", "what", "N", "b", "u", "", "yes", "q"])
    with opened(tmp_path, people) as session:
        stopped = run_rounds(session, labeler, budget=20, rounds=1)
        items = session.state.rounds[0].asked
        assert session.store.codes(items[:3]).tolist() == [YES, UNSURE, YES]
    assert stopped == Stopped(len(items) - 3)
    assert "this is the first item" in said
    assert any("'what' is not an answer" in one for one in said)
    assert "yes, no, unsure, back, quit [y/n/u/b/q] (was no): " in said
    assert any("\\x1b" not in one and f"  item: {items[1]}" in one for one in said)
    assert TEXT in said[0]


def test_an_interrupt_loses_nothing(tmp_path):
    people = population(size=30, outside=90)
    # The end of the input is quitting.
    with opened(tmp_path, people) as session:
        assert isinstance(run_rounds(session, person([])[0], budget=20, rounds=1), Stopped)
    first, _ = person(["y", "y", "n", "^C"])
    with opened(tmp_path, people) as session:
        refuses(KeyboardInterrupt, "", run_rounds, session, first, budget=20, rounds=1)
    rest, said = person(["y"] * 20)
    with opened(tmp_path, people) as session:
        assert len(session.store.known) == 3
        assert isinstance(run_rounds(session, rest, budget=20, rounds=1), Finished)
        number = len(session.state.rounds[0].asked)
    # Draws with replacement may be fewer items than draws.
    assert sum("quit" in one for one in said) == number - 3
    assert not (labels_folder(tmp_path) / "round-001.csv").exists()


def test_signs_that_a_terminal_obeys_are_not_shown_and_without_one_nobody_is_asked():
    assert asking._shown({"text": "a\x1b[2J" + "b" * 3000}).count("\x1b") == 0
    assert len(asking._shown({"text": "b " * 3000})) < 2100
    refuses(InputError, "standard input is not a terminal; give one of the two", terminal_labeler)


class Tty(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_is_asked_line_by_line(tmp_path, monkeypatch, capsys):
    people = population(size=30, outside=90)
    monkeypatch.setattr("sys.stdin", Tty("y\nn\n"))
    with opened(tmp_path, people) as session:
        stopped = run_rounds(session, terminal_labeler(), budget=20, rounds=1)
        assert sorted(one.label for one in session.store.known.values()) == [NO, YES]
    assert isinstance(stopped, Stopped)
    shown = capsys.readouterr()
    # What is published goes to stdout, and nothing else.
    assert (shown.out, shown.err.count("[y/n/u/b/q]: ")) == ("", 3)
