"""Labelling, examples, edits and own data in a browser: by keyboard alone, and for everyone."""

import json
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.tree import DecisionTreeClassifier

from tests.conftest import ADULT
from tests.discovered import topics
from tests.pipelines.page import results
from tests.pipelines.page.in_browser import violations
from tests.pipelines.page.results import HOSTILE, search_result
from tests.pipelines.serve.served_outputs import serving, shown

pytestmark = pytest.mark.browser
HOLDS = "text => document.querySelector('PLACE').innerText.includes(text)"


def show(page, view, ready):
    page.evaluate("view => { location.hash = view }", view)
    page.wait_for_selector(ready)


def tab_to(page, name):
    for _ in range(60):
        page.keyboard.press("Tab")
        element = "(document.activeElement.closest('label') ?? document.activeElement)"
        if name in page.evaluate(f"{element}.textContent"):
            return
    raise AssertionError(f"the keyboard does not reach {name!r}")


def test_labelling_by_keyboard_alone(browser, tmp_path):
    result = results.discovery_result(tmp_path)
    with serving(result) as served, shown(browser, served) as page:
        tab_to(page, "Labelling")
        page.keyboard.press("Enter")
        page.wait_for_selector("form")
        assert violations(page) == []
        tab_to(page, "Words that may")
        page.keyboard.press("Control+A")
        page.keyboard.type("soup <b>or</b> bread")
        tab_to(page, "Labels in this round")
        page.keyboard.press("Control+A")
        page.keyboard.type("12")
        tab_to(page, "Your name")
        page.keyboard.type("yuna")
        tab_to(page, "Begin")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Is this true of the item: “soup <b>or</b> bread”?")
        drawn = int(page.inner_text(".item [role=status]").split(" of ")[1].split()[0])
        for at, key in enumerate("ynuyn" + "y" * (drawn - 5), 1):
            page.keyboard.press(key)
            page.wait_for_selector(f"text={drawn - at} of {drawn} left")
            if at == 2:
                # The last label is taken back, and given otherwise.
                page.keyboard.press("z")
                page.wait_for_selector(f"text={drawn - 1} of {drawn} left")
                page.keyboard.press("u")
                page.wait_for_selector(f"text={drawn - 2} of {drawn} left")
                assert violations(page) == []
        page.wait_for_selector("text=look 1 of 1 planned")
        page.set_viewport_size({"width": 400, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert "Precision" in page.inner_text("table")
        assert violations(page) == []
        (path,) = (result / "attribution").glob("words-*/labels.jsonl")
        kept = {one["item"]: one for one in map(json.loads, path.read_text().splitlines())}
        expected = ["yes", "unsure", "unsure", "yes", "no", *["yes"] * (drawn - 5)]
        assert sorted(one["label"] for one in kept.values()) == sorted(expected)
        assert {one["labeler"] for one in kept.values()} == {"yuna"}
        tab_to(page, "Write the estimates")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Written to changelist.r1.json")
    first = json.loads((result / "changelist.r1.json").read_text())["slices"][0]
    assert first["attribution"]["text"] == "soup <b>or</b> bread"


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_a_new_slice_of_words_marked_examples_and_an_attribute(browser, tmp_path, width, scheme):
    topics(tmp_path, features=("topic",))
    with serving(tmp_path / "out") as served, shown(browser, served, width, scheme) as page:
        dialog = page.get_by_role("dialog", name="New slice")

        def define(name, revision):
            dialog.get_by_label("Name; without one").fill(name)
            dialog.get_by_role("button", name="Define and count it").click()
            page.wait_for_selector(f"h1:has-text('{name}')")
            assert dialog.count() == 0
            assert f"Written to changelist.r{revision}.json" in page.inner_text("main")

        show(page, "slices", "[role=table]")
        page.get_by_role("button", name="New slice").click()
        assert violations(page) == []
        dialog.get_by_label("Words; examples").fill("the battery")
        define("about <b>batteries</b>", 1)
        page.get_by_role("button", name="Show them").click()
        page.wait_for_selector(".cells tbody tr")
        for at, mark in enumerate(("yes", "yes", "no")):
            page.locator("select[aria-label^=Mark]").nth(at).select_option(mark)
        assert "2 marked yes, 1 no" in page.inner_text("main")
        page.locator("section").get_by_role("button", name="New slice").click()
        assert "2 examples marked yes, 1 no." in dialog.inner_text()
        assert violations(page) == []
        define("like the marked", 2)
        show(page, "edits", ".journal li")
        page.get_by_role("button", name="New slice").click()
        dialog.get_by_label("an attribute").check()
        dialog.get_by_label("Predicate, such").fill("topics = food")
        dialog.get_by_role("button", name="Define and count it").click()
        page.wait_for_selector("dialog [role=alert]:has-text(\"did you mean 'topic'\")")
        assert violations(page) == []
        dialog.get_by_label("Predicate, such").fill("topic = food")
        define("all of food", 3)
        show(page, "slices", "[role=table]")
        made = page.get_by_role("complementary", name="Slices made by hand")
        names = ["about <b>batteries</b>", "like the marked", "all of food"]
        assert made.get_by_role("link").all_inner_texts() == names
        assert "all of food, 120 examples" in made.inner_text()
        page.get_by_label("Text", exact=True).fill("batteries")
        page.wait_for_function("document.querySelectorAll('aside li').length == 1")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert violations(page) == []


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_examples_edits_and_own_data(browser, tmp_path, width, scheme):
    result = search_result(tmp_path, baseline=True)
    data = ("--data", str(ADULT))
    with serving(result, *data) as served, shown(browser, served, width, scheme) as page:
        page.click('a[href^="#slice/"]')
        page.get_by_role("button", name="Show them").click()
        page.wait_for_selector(".cells tbody tr")
        assert "has the fingerprint" in page.inner_text("main")
        broken, fixed = (page.get_by_role("button", name=name) for name in ("broken", "fixed"))
        broken.or_(fixed).first.click()
        page.wait_for_selector(".cells tbody tr")
        assert violations(page) == []
        page.click("text=Rename, describe, note")
        page.get_by_label("Note").fill("<img src=x onerror=alert(1)>")
        page.get_by_role("button", name="Add the note").click()
        page.wait_for_selector("text=Written to changelist.r1.json")
        assert "Note: <img src=x onerror=alert(1)>" in page.inner_text("main")
        show(page, "edits", ".journal li")
        page.get_by_role("button", name="New slice").click()
        page.get_by_label("an attribute").check()
        page.get_by_label("Predicate, such").fill("age < 25 & sex = Female")
        page.get_by_role("button", name="Define and count").click()
        page.wait_for_selector("h1:has-text('age < 25 & sex = Female')")
        # The run tested no ages below 25, but women: they are there to compare with.
        above = page.get_by_role("region", name="With one condition less")
        assert above.get_by_role("link", name="age < 25").count() == 1
        show(page, "edits", ".journal li")
        page.get_by_role("button", name="Undo edit 2").click()
        page.wait_for_selector("text=Written to changelist.r3.json")
        assert violations(page) == []
        show(page, "own", "select")
        assert violations(page) == []
        half = tmp_path / "half <b>.parquet"
        pq.write_table(pq.read_table(ADULT).slice(0, 9_000), half)
        page.get_by_label("File: Parquet").set_input_files(half)
        page.get_by_role("button", name="Send it").click()
        page.wait_for_selector("text=half <b>.parquet is being checked")
        page.wait_for_selector(".cells tbody tr", timeout=60_000)
        assert "half <b>.parquet is checked: 9,000 examples" in page.inner_text("main")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert (result / "changelist.r3.json").exists()


def test_markup_in_data_is_text_and_wide_texts_are_cut(browser, tmp_path):
    result, data, wide = results.hostile_data(tmp_path), tmp_path / "wide.parquet", HOSTILE * 30
    columns = pq.read_table(tmp_path / "hostile.parquet").to_pydict()
    columns[HOSTILE] = [wide if one == HOSTILE else one for one in columns[HOSTILE]]
    pq.write_table(pa.table(columns), data)
    other = results.search(data, tmp_path / "wide")
    with serving(result) as served, shown(browser, served) as page:
        page.click('a[href^="#slice/"]')
        page.get_by_role("button", name="Show them").click()
        page.wait_for_selector(".cells tbody tr")
        assert HOSTILE in page.inner_text(".cells thead")
        show(page, "edits", "main button:has-text('New slice')")
        page.get_by_role("button", name="New slice").click()
        page.get_by_label("an attribute").check()
        # The columns to choose from come after the form.
        page.wait_for_function(HOLDS.replace("PLACE", "dialog"), arg=HOSTILE)
    with serving(other) as served, shown(browser, served) as page:
        page.click(".bars li:nth-child(2) a")
        page.get_by_role("button", name="Show them").click()
        more = page.get_by_role("button", name=f"Show all {len(wide):,} characters").first
        more.wait_for()
        assert wide not in page.inner_text(".cells tbody")
        assert violations(page) == []
        more.click()
        page.wait_for_function(HOLDS.replace("PLACE", ".cells tbody"), arg=wide)


def test_examples_of_other_data_are_refused(browser, tmp_path):
    result, other = search_result(tmp_path), tmp_path / "other.parquet"
    pq.write_table(pq.read_table(ADULT).slice(5), other)
    with serving(result, "--data", str(other)) as served, shown(browser, served) as page:
        page.click('a[href^="#slice/"]')
        page.get_by_role("button", name="Show them").click()
        page.wait_for_selector("text=is not what the document is about")


def test_playground_by_keyboard(browser, tmp_path):
    rows, read = pq.read_table(ADULT).to_pandas(), ["age", "education-num"]
    for name, depth in (("old", 1), ("new", 4)):
        model = DecisionTreeClassifier(max_depth=depth, random_state=0)
        model.fit(rows[read], rows["income"])
        (tmp_path / f"{name}.pickle").write_bytes(pickle.dumps(model))
    models = [f"--model={tmp_path}/new.pickle", f"--baseline-model={tmp_path}/old.pickle"]
    result = search_result(tmp_path)
    with serving(result, *models) as served, shown(browser, served, 400, "dark") as page:
        tab_to(page, "Playground")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=old model")
        assert violations(page) == []
        tab_to(page, "age int")
        page.keyboard.press("Control+A")
        page.keyboard.type("seventy")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=age: 'seventy' is no int")
        page.keyboard.press("Control+A")
        page.keyboard.type("17")
        page.keyboard.press("Enter")
        page.wait_for_selector("[role=alert]", state="detached")
        page.wait_for_selector("text=Both say the same.")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        # From an example to what the models say of it.
        page.go_back()
        page.click('.bars a[href^="#slice/"]')
        page.get_by_role("button", name="Show them").click()
        row = page.locator(".cells tbody th a").first
        number = row.inner_text()
        row.click()
        page.wait_for_selector(f"text=It begins as row {number} of the data")
