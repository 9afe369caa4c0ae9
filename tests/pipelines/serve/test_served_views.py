"""Tested slices, the runs of a folder, and the Tests view in a browser: for everyone, by keyboard alone."""

import json
import re
import shutil
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.adaptive.tree_files import read_tree
from tests.pipelines.page import results
from tests.pipelines.page.in_browser import violations
from tests.pipelines.serve.served_outputs import serving, shown
from tests.pipelines.serve.test_feature_views import tab_to
from tests.pipelines.serve.test_judging import MODEL, tree_in

pytestmark = pytest.mark.browser
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


def test_all_tested_slices_are_filtered_and_walked(browser, served, table):
    unexplained = table[table.significant & ((table.label != "inherited") | table.finding.notna())]
    with shown(browser, served) as page:
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
        page.locator(".virtual .body").evaluate("one => { one.scrollTop = 64 * 2000 }")
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
        page.get_by_text("Show it among its neighbours").click()
        page.locator(".lattice .focus").wait_for()
        before = page.locator(".lattice .focus").inner_text()
        page.locator(".lattice a").first.click()
        is_other = "![before, undefined].includes(document.querySelector('.focus')?.innerText)"
        page.wait_for_function(f"before => {is_other}", arg=before)


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_axe_finds_nothing(browser, served, width, scheme):
    with shown(browser, served, width, scheme) as page:
        assert violations(page) == []
        to_slices(page)
        for one in page.locator("summary").all():
            one.click()
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator(".virtual .what a").first.click()
        page.get_by_text("Show it among its neighbours").wait_for()
        assert violations(page) == []
        page.get_by_text("Show it among its neighbours").click()
        page.locator(".lattice .focus").wait_for()
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
            assert text in page.locator("h1").inner_text()
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
          await tried("/api/edits/undo", { method: "POST", headers: json, body: "{}", credentials: "include" }),
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
    assert "holds the token" in bare.get_by_role("alert").inner_text()
    bare.close()


@pytest.mark.parametrize(("width", "scheme"), VIEWS[:2])
def test_a_folder_of_runs(browser, result, tmp_path, width, scheme):
    folder = tmp_path / "nights"
    for day in (1, 2, 3):
        path = Path(shutil.copytree(result, folder / f"night {day}")) / "changelist.json"
        document = json.loads(path.read_text())
        document["created_at"] = f"2026-11-0{day}T00:00:00Z"
        path.write_text(json.dumps(document))
    for one in (folder / "night 2").glob("*.parquet"):
        one.unlink()
    with serving(folder) as served:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page, wrong = context.new_page(), []
        page.on("pageerror", lambda one: wrong.append(str(one)))
        page.goto(served.address)
        page.get_by_role("heading", name="3 runs").wait_for()
        assert page.locator(".runs h2").all_inner_texts() == ["night 3", "night 2", "night 1"]
        assert violations(page) == []
        page.get_by_role("link", name="night 3").click()
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
        page.get_by_role("heading", name="3 runs").wait_for()
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
        part = page.get_by_role("region", name=f"{newest.name}: since the earlier run")
        part.wait_for()
        (counts,) = since["metrics"]
        assert f"worse than then on {counts['value_worse']:,} and better on" in part.inner_text()
        assert (page.locator("section.since").count(), violations(page)) == (1, [])
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        # One click leads to the slice that changed most: what it was, and its value over the runs.
        worst = part.locator(".biggest", has_text="for the worse").get_by_role("link")
        name = worst.inner_text()
        worst.click()
        page.get_by_role("heading", name=name).wait_for()
        page.locator(".over-runs circle").nth(1).wait_for()
        assert "significantly worse" in page.locator(".since").inner_text()
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
        assert "Failures per 100" in page.inner_text("table")
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
