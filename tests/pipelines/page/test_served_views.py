"""Views of a served output in a browser: by keyboard alone, and for everyone."""

import json
import pickle
import re
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from sklearn.tree import DecisionTreeClassifier

from slicebeam.pipelines.adaptive.tree_files import read_tree
from tests.conftest import ADULT
from tests.discovered import topics
from tests.pipelines.adaptive.completions_server import completions_server
from tests.pipelines.page import results
from tests.pipelines.page.in_browser import violations
from tests.pipelines.page.results import HOSTILE, search_result
from tests.pipelines.page.served_outputs import serving, shown
from tests.pipelines.page.test_judging import MODEL, labelled_completion, tree_in

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
            page.wait_for_selector(f".verdict .chips:has-text('{name}')")
            assert dialog.count() == 0
            assert f"Written to changelist.r{revision}.json" in page.inner_text("main")

        show(page, "slices", "[role=table]")
        page.get_by_role("button", name="New slice").click()
        assert violations(page) == []
        dialog.get_by_label("Words; examples").fill("the battery")
        define("about <b>batteries</b>", 1)
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
        # Of a finding: what came near to being one is not in the document.
        page.click("section[aria-label=Findings] tbody a")
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
        page.wait_for_selector(".verdict .chips[title='age < 25 & sex = Female']")
        # The run tested no ages below 25, but women: they are there to compare with.
        page.locator(".conditions a").first.wait_for()
        assert page.locator(".conditions a .chips[title='age < 25']").count() == 1
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


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_finding_is_marked_as_known_and_unmarked(browser, tmp_path, width, scheme):
    result, known = search_result(tmp_path), tmp_path / "known.yaml"
    with (
        serving(result, "--known", str(known)) as served,
        shown(browser, served, width, scheme) as page,
    ):
        page.click("section[aria-label=Findings] tbody a")
        page.get_by_label("Why it is known").fill("ticket <b>41</b>")
        page.get_by_label("Last day on which it counts").fill("2999-01-31")
        page.get_by_role("button", name="Mark as known").click()
        page.wait_for_selector("text=Marked as known. Written to")
        assert "; ticket <b>41</b>" in page.inner_text("section[aria-label=Known]")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        (entry,) = yaml.safe_load(known.read_text())
        assert (entry["note"], entry["until"]) == ("ticket <b>41</b>", "2999-01-31")
        page.get_by_role("button", name="No longer known").click()
        page.wait_for_selector("text=No longer known. Written to")
        assert yaml.safe_load(known.read_text()) == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_the_overview_lists_what_is_known(browser, tmp_path, width, scheme):
    (tmp_path / "known.yaml").write_text(
        "- {slice: relationship = Husband, note: ticket <b>41</b>}\n- sex = Nowhere\n"
    )
    result = search_result(tmp_path, "--known", str(tmp_path / "known.yaml"))
    with serving(result) as served, shown(browser, served, width, scheme) as page:
        lines = page.locator("section[aria-label='Known slices'] li").all_inner_texts()
        assert lines[0].startswith("relationship = Husband: significantly worse on ")
        assert "ticket <b>41</b>" in lines[0]
        assert lines[1] == "sex = Nowhere: matches no slice of this result"
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_markup_in_data_is_text_and_wide_texts_are_cut(browser, tmp_path):
    result, data, wide = results.hostile_data(tmp_path), tmp_path / "wide.parquet", HOSTILE * 30
    columns = pq.read_table(tmp_path / "hostile.parquet").to_pydict()
    columns[HOSTILE] = [wide if one == HOSTILE else one for one in columns[HOSTILE]]
    pq.write_table(pa.table(columns), data)
    other = results.search(data, tmp_path / "wide")
    with serving(result) as served, shown(browser, served) as page:
        page.click('a[href^="#slice/"]')
        page.wait_for_selector(".cells tbody tr")
        assert HOSTILE in page.inner_text(".cells thead")
        show(page, "edits", "main button:has-text('New slice')")
        page.get_by_role("button", name="New slice").click()
        page.get_by_label("an attribute").check()
        # The columns to choose from come after the form.
        page.wait_for_function(HOLDS.replace("PLACE", "dialog"), arg=HOSTILE)
    with serving(other) as served, shown(browser, served) as page:
        page.click("section[aria-label=Findings] tbody tr:nth-child(2) a")
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
        page.click('section[aria-label=Findings] a[href^="#slice/"]')
        row = page.locator(".cells tbody th a").first
        number = row.inner_text()
        row.click()
        page.wait_for_selector(f"text=It begins as row {number} of the data")


VIEWS = [(1280, "light"), (400, "dark"), (2560, "dark")]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return results.search_result(tmp_path_factory.mktemp("served"), baseline=True)


@pytest.fixture(scope="module")
def served(result):
    with serving(result) as one:
        yield one


@pytest.fixture(scope="module")
def table(result):
    return pq.read_table(result / "slices.parquet").to_pandas()


def to_slices(page):
    page.get_by_role("link", name="Slices", exact=True).click()
    page.locator(".virtual .what a").first.wait_for()


def found(page, number, *, folded=0):
    more = f"; {folded:,} more are folded, as a more general slice explains them" if folded else ""
    page.get_by_text(f"{number:,} of 3,363 tested slices{more}", exact=True).wait_for()


def test_all_tested_slices_are_filtered_and_walked(browser, result, table):
    unexplained = table[table.significant & ((table.label != "inherited") | table.finding.notna())]
    with serving(result) as served, shown(browser, served) as page:
        # The token is out of the address, the history and what the page sends.
        assert "token" not in page.url
        to_slices(page)
        found(page, len(unexplained), folded=int(table.significant.sum()) - len(unexplained))
        # Each list of findings counts from one: a row says which it is of.
        first = page.locator(".virtual .row[aria-rowindex='2'] .label").inner_text()
        assert first.startswith("finding 1, better")
        # Where no row is left, it says how many there are without the filters that come by themselves.
        page.get_by_label("Text").fill("never-married & masters")
        said = table.slice.str.lower()
        all_said = said.str.contains("never-married") & said.str.contains("masters")
        assert not (all_said & table.significant & (table.label != "inherited")).any()
        page.get_by_text(f"{all_said.sum()} slice").get_by_role("button", name="Show").click()
        found(page, int(all_said.sum()))
        page.get_by_label("Text").fill("")
        # A size below zero bounds nothing, and is no error.
        page.get_by_text("Size and delta", exact=True).click()
        page.get_by_label("n from").fill("-5")
        found(page, len(table))
        page.get_by_label("n from").fill("")
        page.get_by_label("significant only").uncheck()
        page.get_by_label("with those that a slice above explains").check()
        found(page, len(table))
        page.locator(".virtual .body").evaluate("one => { one.scrollTop = 56 * 2000 }")
        page.locator(".virtual .row[aria-rowindex='2003'] .what a").wait_for()
        page.get_by_label("Text").fill("female & white")
        said = table.slice.str.lower()
        found(page, int((said.str.contains("female") & said.str.contains("white")).sum()))
        page.get_by_label("Text").fill("")
        page.get_by_label("Feature").select_option("sex")
        page.get_by_label("Value").select_option("sex = Female")
        found(page, int(table.slice.str.contains("sex = Female").sum()))
        # The address has it all: it is the same after a reload, for which the tab keeps the token.
        page.reload()
        found(page, int(table.slice.str.contains("sex = Female").sum()))
        page.get_by_role("button", name="n", exact=True).click()
        page.get_by_role("button", name="n", exact=True).click()
        largest = table[table.slice.str.contains("sex = Female")].n.max()
        page.locator(".virtual .row[aria-rowindex='2']", has_text=f"{largest:,}").wait_for()
        with page.expect_download() as download:
            page.get_by_role("button", name="Download as CSV").click()
        lines = Path(download.value.path()).read_text("utf-8-sig").splitlines()
        assert len(lines) == 1 + table.slice.str.contains("sex = Female").sum()
        # A slice that no document lists, its neighbours, and one of these.
        page.locator(".virtual .row[aria-rowindex='12'] .what a").click()
        page.locator(".conditions a").first.wait_for()
        before = page.locator("main .chips").first.get_attribute("title")
        page.locator(".conditions a").first.click()
        is_other = "![before, undefined].includes(document.querySelector('main .chips')?.title)"
        page.wait_for_function(f"before => {is_other}", arg=before)


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_axe_finds_nothing(browser, result, width, scheme):
    # An address opens one tab.
    with serving(result) as served, shown(browser, served, width, scheme) as page:
        assert violations(page) == []
        to_slices(page)
        for one in page.locator("summary").all():
            one.click()
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator(".virtual .what a").first.click()
        page.locator(".elsewhere").first.wait_for()
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_without_the_table_the_slices_of_the_document_are_shown(browser, result, tmp_path):
    copy = Path(shutil.copytree(result, tmp_path / "copy"))
    for one in copy.glob("*.parquet"):
        one.unlink()
    listed = len(json.loads((copy / "changelist.json").read_text())["slices"])
    with serving(copy) as served, shown(browser, served) as page:
        to_slices(page)
        assert "slices.parquet is not beside" in page.get_by_role("alert").inner_text()
        page.get_by_label("with those that a slice above explains").check()
        page.get_by_text(re.compile(rf"^{listed} of [\d,]+ significant slices")).wait_for()
        assert violations(page) == []


def test_what_a_stranger_wrote_is_text_in_every_view(browser, tmp_path):
    document = results.search_result(tmp_path)
    results.hostile_document(document)
    for one, text in (
        (document, results.HOSTILE),
        (results.hostile_data(tmp_path), results.FORMULA),
    ):
        with serving(one) as served, shown(browser, served) as page:
            to_slices(page)
            page.get_by_label("significant only").uncheck()
            page.get_by_label("with those that a slice above explains").check()
            page.locator(".virtual .what a", has_text=text).first.click()
            page.get_by_text("slice_id").wait_for()
            assert text in page.locator(".verdict").inner_text()
            assert page.locator("main img, main script").count() == 0


def test_the_policy_and_the_token_keep_other_pages_out(browser, served):
    origin = served.address.partition("/#")[0]
    context = browser.new_context()
    page = context.new_page()
    page.goto(served.address)
    page.wait_for_selector("[data-ready=yes]")
    assert context.cookies() == []
    assert "token" not in page.url
    # What got into the page all the same runs nothing, loads nothing and sends nothing.
    came = page.evaluate(
        """async () => {
        const said = [];
        document.addEventListener("securitypolicyviolation", one => said.push(one.effectiveDirective));
        document.body.insertAdjacentHTML("beforeend", '<img src="http://127.0.0.1:1/x"><p style="color: red">x</p>');
        const script = document.createElement("script");
        script.textContent = "document.body.dataset.ran = 'yes'";
        document.body.append(script);
        await fetch("http://127.0.0.1:1/").catch(() => 0);
        try { new WebSocket("ws://127.0.0.1:1/") } catch { said.push("socket") }
        await new Promise(done => setTimeout(done, 100));
        return [said.sort(), document.body.dataset.ran ?? ""];
        }"""
    )
    assert set(came[0]) >= {"connect-src", "img-src", "script-src-elem", "style-src-attr"}
    assert came[1] == ""
    # Another site in the same browser: it reads nothing, frames nothing, and changes nothing.
    other = context.new_page()
    evil = {"body": "<p>evil</p>", "content_type": "text/html"}
    other.route("http://evil.example/**", lambda one: one.fulfill(**evil))
    other.goto("http://evil.example/")
    read = other.evaluate(
        """async origin => {
        const tried = async (path, how) => {
          try { return (await fetch(origin + path, how)).status } catch { return "refused" }
        };
        const json = { "content-type": "application/json" };
        return [
          await tried("/api/page", { credentials: "include" }),
          await tried("/api/edits", { method: "POST", headers: json, body: "{}", credentials: "include" }),
          (await fetch(origin + "/api/page", { mode: "no-cors", credentials: "include" }).catch(() => ({ type: "refused" }))).type,
        ];
        }""",
        origin,
    )
    assert read[:2] == ["refused", "refused"]
    assert read[2] in ("opaque", "refused")
    other.set_content(f'<iframe src="{origin}/"></iframe>')
    other.wait_for_timeout(300)
    frames = [one for one in other.frames if one != other.main_frame]
    assert all("slicebeam" not in one.content() for one in frames)
    context.close()
    # Without the token there is nothing to see.
    bare = browser.new_page()
    bare.goto(f"{origin}/#slices")
    bare.get_by_role("alert").wait_for()
    assert "open the address" in bare.get_by_role("alert").inner_text()
    bare.close()


@pytest.mark.parametrize(("width", "scheme"), VIEWS[:2])
def test_a_folder_of_runs(browser, result, tmp_path, width, scheme):
    folder = tmp_path / "nights"
    for day in (1, 2, 3):
        path = Path(shutil.copytree(result, folder / f"night {day}")) / "changelist.json"
        document = json.loads(path.read_text())
        document["created_at"] = f"2026-11-0{day}T00:00:00Z"
        if day != 2:
            failed = {
                "fail_on": "worse",
                "passed": False,
                "exit_code": 1,
                "reasons": ["it is worse"],
            }
            document["gate"] = failed
        path.write_text(json.dumps(document))
    for one in (folder / "night 2").glob("*.parquet"):
        one.unlink()
    with serving(folder) as served:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page, wrong = context.new_page(), []
        page.on("pageerror", lambda one: wrong.append(str(one)))
        page.goto(served.address)
        page.get_by_role("heading", name="3 runs", exact=True).wait_for()
        nights = [f"night {day}" for day in (3, 2, 1)]
        assert page.locator(".runs tbody th").all_inner_texts() == nights
        # A mark for each, the oldest first, and the metric over all of them.
        marks = page.locator(".strip a").evaluate_all("all => all.map(one => one.ariaLabel)")
        assert marks == [
            f"night {day}: {word}" for day, word in ((1, "Failed"), (2, "Better"), (3, "Failed"))
        ]
        assert page.locator("h1").inner_text() == "The last run, night 3"
        assert "2 of 3 runs failed" in page.locator(".lead").inner_text()
        tile = page.get_by_role("region", name="Accuracy")
        assert (tile.locator(".failed").count(), tile.locator("circle").count()) == (2, 1)
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("link", name="night 3", exact=True).click()
        to_slices(page)
        # Of a slice that the documents do not list, the run without its table knows nothing.
        page.get_by_label("significant only").uncheck()
        page.get_by_role("button", name="q", exact=True).click()
        page.get_by_role("button", name="q", exact=True).click()
        page.wait_for_timeout(500)
        page.locator(".virtual .row[aria-rowindex='9'] .what a").click()
        rows = page.locator(".over-runs tbody tr")
        rows.first.wait_for()
        texts = rows.all_inner_texts()
        assert [one.split("\t")[0] for one in texts] == ["night 1", "night 2", "night 3"]
        assert "slices.parquet is not beside" in texts[1]
        assert page.locator(".over-runs circle").count() == 2
        assert page.locator(".over-runs .whisker").count() == 2
        assert page.locator(".over-runs .over").get_attribute("d").count("L") == 0
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("link", name="All runs").click()
        page.get_by_role("heading", name="3 runs", exact=True).wait_for()
        context.close()
        assert wrong == []


@pytest.mark.parametrize(("width", "scheme"), VIEWS[:2])
def test_the_runs_of_a_folder_say_what_changed(browser, tmp_path, days, width, scheme):
    newest = results.next_night(tmp_path / "nights", days)
    since = json.loads((newest / "changelist.json").read_text())["since"]
    with serving(tmp_path / "nights") as served:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.goto(served.address)
        page.locator(".runs").get_by_role("link", name=newest.name).click()
        part = page.locator("section.since")
        part.wait_for()
        (counts,) = since["metrics"]
        assert f"worse than then on {counts['value_worse']:,} and better on" in part.inner_text()
        assert (page.locator("section.since").count(), violations(page)) == (1, [])
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        # A slice that changed: what it was, and its value over the runs.
        page.locator(".since summary").click()
        worst = page.locator(".since tbody tr", has_text="worse").get_by_role("link").first
        worst.click()
        page.locator(".over-runs circle").nth(1).wait_for()
        assert "worse" in page.locator(".since tbody").inner_text()
        # The words of the chart are legible on a phone too, and none lies outside.
        chart = page.locator(".over-runs svg").bounding_box()
        words = [one.bounding_box() for one in page.locator(".over-runs svg text").all()]
        assert all(one and one["height"] >= 11 and one["x"] >= chart["x"] for one in words)
        # What a search of columns can't have labelled is not offered.
        assert page.get_by_role("link", name="Labelling").count() == 0
        assert page.get_by_text("Label its examples").count() == 0
        assert violations(page) == []
        context.close()


def test_slices_without_a_test_are_not_called_tested(browser, tmp_path):
    result = results.search_result(tmp_path, metric="fpr")
    (tests,) = json.loads((result / "changelist.json").read_text())["testing"]["metrics"]
    rows = pq.read_table(result / "slices.parquet").num_rows
    assert tests["tested"] < rows
    with serving(result) as served, shown(browser, served) as page:
        to_slices(page)
        page.get_by_text(f"of {rows:,} slices, {tests['tested']:,} of them tested").wait_for()


def judged(path):
    tree, known = read_tree(str(path)), {"0a", "0b", "0c"}
    return {one.id: one.label for one in tree.rows(tree.is_test) if one.id not in known}


def test_twenty_suggestions_by_keyboard_alone(browser, tmp_path):
    path, result = tree_in(tmp_path), results.search_result(tmp_path)
    more = ("--tree", str(path), "--tree-model", MODEL)
    with serving(result, *more) as served, shown(browser, served) as page:
        tab_to(page, "Tests")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=3 tests in /")
        assert violations(page) == []
        tab_to(page, "Suggest tests")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=20 suggestions, those that fail first.")
        assert violations(page) == []
        page.click("text=What each proposer found")
        assert "Failures per 100" in page.inner_text("table")
        page.focus(".judged li[data-place='0']")
        presses = 0
        for at in range(20):
            page.wait_for_selector(".judged li[data-place='0']:focus >> nth=0")
            page.keyboard.press("vbc"[at % 3])
            presses += 1
            left = f"{20 - at - 1} suggestion{'s' * (at != 18)}"
            page.wait_for_selector(f"#waiting:text-is('{left}')")
            if at == 9:
                page.keyboard.press("z")
                page.wait_for_selector("#waiting:text-is('11 suggestions')")
                page.wait_for_selector(".judged li[data-place='0']:focus")
                page.keyboard.press("b")
                presses += 2
                page.wait_for_selector("#waiting:text-is('10 suggestions')")
                page.reload()
                page.wait_for_selector("#waiting:text-is('10 suggestions')")
        assert presses < 30
        served.process.send_signal(signal.SIGKILL)
        served.process.wait(20)
    with serving(result, *more) as served, shown(browser, served, scheme="dark") as page:
        page.evaluate("location.hash = 'tests'")
        page.wait_for_selector("text=23 tests in /")
        page.wait_for_selector("#waiting:text-is('0 suggestions')")
        assert violations(page) == []
        page.click("text=Suggest tests")
        page.wait_for_selector(".judged li[data-place='0']")
        assert violations(page) == []
    labels = list(judged(path).values())
    assert len(labels) == 20
    expected = ["pass", "fail", "off_topic"] * 6 + ["pass", "fail"]
    expected[9] = "fail"
    assert sorted(labels) == sorted(expected)


def test_a_suggestion_is_edited_and_moved(browser, tmp_path):
    path = tree_in(tmp_path)
    more = ("--tree", str(path), "--tree-model", MODEL)
    with serving(results.search_result(tmp_path), *more) as served, shown(browser, served) as page:
        page.evaluate("location.hash = 'tests'")
        page.wait_for_selector("text=3 tests in /")
        page.click("text=Suggest tests")
        page.wait_for_selector(".judged li[data-place='0']:focus")
        page.keyboard.press("ArrowDown")
        page.wait_for_selector(".judged li[data-place='1']:focus")
        page.keyboard.press("Enter")
        page.wait_for_selector("textarea:focus")
        assert violations(page) == []
        page.keyboard.press("Control+A")
        page.keyboard.type("<b>Not</b> a great day.")
        page.keyboard.press("Tab")
        page.keyboard.press("Control+A")
        page.keyboard.type("/Negation/Bold")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Saved, and scored again.")
        page.wait_for_selector("text=<b>Not</b> a great day.")
        page.wait_for_selector(".judged li[data-place='1']:focus")
        page.keyboard.press("b")
        page.wait_for_selector("text=Saved: fail.")
    tree = read_tree(str(path))
    (made,) = [one for one in tree.rows() if one.topic == "/Negation/Bold" and one.input]
    assert (made.input, made.label) == ("<b>Not</b> a great day.", "fail")


def test_a_tree_grows_from_an_empty_topic_with_a_language_model(browser, tmp_path):
    path, result = tree_in(tmp_path), results.search_result(tmp_path)
    with completions_server() as model:
        model.text = labelled_completion
        more = (
            "--tree",
            str(path),
            "--tree-model",
            MODEL,
            "--tree-baseline-model",
            "tests.sentiment_model:kind",
        )
        more += ("--endpoint", model.url, "--budget", "30")
        with serving(result, *more) as served, shown(browser, served) as page:
            page.evaluate("location.hash = 'tests'")
            page.wait_for_selector("text=3 tests in /")
            page.click("text=Add a test or a topic")
            page.fill("details [list=topics]", "/Places/Not bad")
            page.click("text=Add the topic")
            page.wait_for_selector("text=0 tests in /Places/Not bad")
            assert violations(page) == []
            page.select_option("select", "endpoint")
            page.fill("input[type=number]", "10")
            page.click("text=Suggest tests")
            page.wait_for_selector("#waiting:text-is('10 suggestions')")
            # The guesses of a language model are no failures, and each was paid.
            assert page.locator(".judged li", has_text="(a guess)").count() == 10
            assert page.locator(".topics li", has_text="Not bad").inner_text().count("0 of 0 fail")
            assert page.locator("text=The old model: positive").count() == 10
            assert sum(model.charged.values()) == 10
            assert violations(page) == []
            for at in range(10):
                page.wait_for_selector(".judged li[data-place='0']:focus >> nth=0")
                page.keyboard.press("b")
                left = f"{10 - at - 1} suggestion{'s' * (at != 8)}"
                page.wait_for_selector(f"#waiting:text-is('{left}')")
            page.wait_for_selector(".topics li:has-text('Not bad'):has-text('10 of 10 fail')")
            page.emulate_media(color_scheme="dark")
            assert violations(page) == []
    tree = read_tree(str(path))
    grown = [one for one in tree.rows(tree.is_test) if one.topic == "/Places/Not%20bad"]
    assert [one.label for one in grown] == ["fail"] * 10
    # What a test expects is what the person said of the output.
    said = {(one.output, one.expectation, one.value) for one in grown}
    assert said == {("negative", "should not output", "negative")}
