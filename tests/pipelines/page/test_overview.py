"""The first view of the page, in chromium, from a file: what is seen, reached and asked for."""

import json
import re
from itertools import pairwise

import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.page.content import framed, page_in_memory
from tests.pipelines.page import results as results_module
from tests.pipelines.page.in_browser import opened, violations

pytestmark = pytest.mark.browser

FINDINGS = "section[aria-label=Findings] table"


def test_the_verdict_is_seen_without_a_click(browser, results):
    document = json.loads((results["overall"] / "changelist.json").read_text())
    findings, (tests,) = document["findings"], document["testing"]["metrics"]
    with opened(browser, results["overall"]) as page:
        said = page.locator("main").inner_text()
        held = f"{100 * findings[-1]['held_share']:.0f}% of the errors"
        assert page.locator("h1").inner_text() == f"{len(findings)} groups hold {held}"
        assert page.locator(".verdict-line .badge.worse").inner_text() == "Worse"
        assert f"{tests['tested']:,} tested slices, {tests['significant']:,} signif" in said
        whole = document["global"][0]["after"]
        value, low, high = (f"{100 * whole[name]:.1f}%" for name in ("value", "lo", "hi"))
        tile = page.locator(".tile").inner_text()
        assert value in tile
        assert f"{low} to {high}" in tile
        header = page.locator("header").inner_text()
        for fact in (document["dataset"]["name"], f"{document['dataset']['n']:,}", "search"):
            assert fact in header
        assert document["created_at"][:10] in header
        page.get_by_text("What was compared").click()
        assert "Label\nincome" in page.locator("main").inner_text()
        assert page.locator("button").count() <= 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_are_seen_against_the_page(browser, results, scheme):
    with opened(browser, results["overall"], scheme=scheme) as page:
        ratios = page.evaluate(CONTRASTS)
        assert len(ratios) == 6
        assert min(ratios) >= 3, ratios


# Of marks on the page, and of the whisker on its bar.
CONTRASTS = """() => {
  const names = ['--worse-mark', '--better-mark', '--grey-mark', '--rule', '--ink'];
  const value = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const channel = (part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const light = (name) => {
    const text = value(name);
    const long = text.length === 4 ? '#' + [...text.slice(1)].map((one) => one + one).join('') : text;
    const [r, g, b] = [1, 3, 5].map((at) => channel(parseInt(long.slice(at, at + 2), 16) / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  return [...names.map((name) => ratio(name, '--bg')), ratio('--ink', '--worse-mark')];
}"""


def test_the_page_of_the_demo_data(browser, tmp_path):
    result = results_module.search_result(tmp_path, "--max-cross-size", "3")
    assert run(["report", str(result), "--quiet"]) == 0
    document = json.loads((result / "changelist.json").read_text())
    assert document["testing"]["metrics"][0]["tested"] == 26_176
    assert (result / "report.html").stat().st_size <= 1_500_000
    with opened(browser, result) as page:
        page.set_viewport_size({"width": 1440, "height": 900})
        title = page.locator("h1")
        box = title.bounding_box()
        assert box["y"] + box["height"] <= 200
        assert title.evaluate("one => parseFloat(getComputedStyle(one).fontSize)") >= 24
        rows = [row.bounding_box() for row in page.locator(FINDINGS).locator("tbody tr").all()]
        assert sum(row["y"] + row["height"] <= 900 for row in rows) >= 10
        # The axis stays where the rows are read.
        page.mouse.wheel(0, 500)
        page.wait_for_function("() => scrollY > 200")
        head = page.locator(FINDINGS).locator("thead th.plot").bounding_box()
        assert head["y"] == pytest.approx(0, abs=1)
        # Those that hold most of the excess are shown, others on demand.
        shown = len(rows)
        more = page.get_by_role("button", name="more finding")
        assert shown + int(more.inner_text().split()[1]) == len(document["findings"])
        more.click()
        assert page.locator(FINDINGS).locator("tbody tr").count() == len(document["findings"])
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_examples_of_a_finding_are_those_that_the_metric_counts(browser, results):
    document = json.loads((results["precision"] / "changelist.json").read_text())
    with opened(browser, results["precision"]) as page:
        first = page.locator(FINDINGS).locator("tbody tr").first
        assert first.get_by_text(f"{document['findings'][0]['n']:,}", exact=True).count() == 1
        assert first.locator("[title='examples predicted positive']").count() == 1
        again = document["findings"][0]["confirmed"]
        size = f"{100 * abs(again['difference']):.1f}"
        label = first.get_by_role("img").get_attribute("aria-label")
        assert re.search(rf"on {again['examples']:,} reserved examples .?{size} points \(", label)


def test_every_finding_has_a_bar_with_its_interval(browser, results):
    for name in ("overall", "baseline"):
        document = json.loads((results[name] / "changelist.json").read_text())
        with opened(browser, results[name]) as page:
            for more in page.get_by_role("button", name="more finding").all():
                more.click()
            rows = page.locator(FINDINGS).locator("tbody tr:not(.group)")
            assert rows.count() == len(document["findings"]) > 0
            assert rows.locator("rect.bar").count() == rows.count()
            # A bar is of the corrected difference, and says in words what was observed.
            for row, one in zip(rows.all(), document["findings"], strict=True):
                both = (one["corrected"]["difference"], one["difference"])
                corrected, observed = (f"{100 * abs(each):.1f}" for each in both)
                label = row.get_by_role("img").get_attribute("aria-label")
                assert re.search(rf"^.?{corrected} points .*, observed .?{observed} ", label)


def test_what_came_nearest_and_would_have_been_noticed(browser, results):
    document = json.loads((results["nothing"] / "changelist.json").read_text())
    (tests,) = document["testing"]["metrics"]
    with opened(browser, results["nothing"]) as page:
        assert page.locator("h1").inner_text() == "No slice is significantly worse"
        rows = page.locator(".misses tbody tr")
        for row, miss in zip(rows.all(), tests["nearest"], strict=True):
            change, cells = miss["change"], row.locator("td").all_inner_texts()
            value, reference = (
                f"{100 * one:.1f}" for one in (change["after"]["value"], change["reference"])
            )
            assert cells[:2] == [value, reference]
            assert cells[-2:] == [str(change["n"]), f"{change['p_adjusted']:.2}"]
        (fall,) = tests["noticeable"]
        said = f"Noticed with a probability of 80%: Accuracy lower by {100 * fall['fall']:.2g} points on slices of 100"
        assert said in page.locator(".noticed").inner_text()
        assert page.locator(".noticed tbody tr").count() == 1
        page.evaluate("navigator.clipboard.writeText = async text => { window.copied = text }")
        page.get_by_role("button", name="Copy as text").click()
        copied = page.evaluate("window.copied")
        assert said in copied
        assert copied.count("Nearest to significantly worse: ") == len(tests["nearest"])
        rows.first.get_by_role("link").click()
        page.get_by_text("slice_id").wait_for()
        shown = page.locator("main .chips").first.get_attribute("title")
        assert shown == tests["nearest"][0]["name"]


def test_the_keyboard_reaches_everything(browser, results):
    with opened(browser, results["overall"]) as page:
        reached = []
        for _ in range(40):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.textContent"))
            if reached[-1] == "Expected":
                tip = page.locator("dfn:focus + [role=tooltip]")
                assert tip.is_visible()
                page.keyboard.press("Escape")
                assert not tip.is_visible()
        assert {"Copy as text", "Expected", "What was compared"} <= set(reached)


def test_a_failure_has_its_reasons_the_surest_first(browser, results):
    document = json.loads((results["earlier"] / "changelist.json").read_text())
    gate, (whole,) = document["gate"], document["global"]
    slices = min(
        change["p_adjusted"]
        for one in document["slices"]
        for change in one["changes"]
        if change["direction"] == "degraded"
    )
    drift = {one["feature"]: one["p_adjusted"] for one in document["earlier_data"]["drift"]}

    def doubt(reason):
        if " has drifted " in reason:
            return drift[reason.split(" has drifted ")[0]]
        return whole["p_value"] if "over all examples" in reason else slices

    with opened(browser, results["earlier"]) as page:
        assert page.locator(".verdict-line .badge.failed").inner_text() == "Failed"
        assert page.locator("h1").inner_text().startswith("Accuracy fell from ")
        shown = page.locator(".reasons li").all_inner_texts()
        assert shown == sorted(gate["reasons"], key=doubt)
        assert len(shown) == 3


def test_why_a_metric_moved_and_which_features_drifted(browser, results):
    document = json.loads((results["earlier"] / "changelist.json").read_text())
    earlier = document["earlier_data"]
    (moved,) = earlier["moved"]
    with opened(browser, results["earlier"]) as page:
        rows = page.locator(".why tbody tr")
        parts = {
            row.locator("th").inner_text(): row.locator("td").last.inner_text()
            for row in rows.all()
        }
        wanted = {"New kinds of examples": moved["new_kinds"], "The model": moved["model"]["value"]}
        wanted["The mix of the data"] = moved["mix"]["value"]
        wanted |= {one["name"]: one["change"]["value"] for one in moved["by_mix"]}
        wanted |= {one["name"]: one["change"]["value"] for one in moved["by_model"]}
        assert set(parts) == set(wanted)
        for name, change in wanted.items():
            assert parts[name].lstrip("+\N{MINUS SIGN}") == f"{100 * abs(change):.1f}"
        drift = page.locator(".drift tbody tr")
        assert drift.count() == len(earlier["drift"]) > 0
        for row, one in zip(drift.all(), earlier["drift"], strict=True):
            text = row.inner_text()
            assert one["feature"] in text
            assert f"{one['stability_index']:.3f}" in text
            assert ("no drift found" in text) != one["significant"]
        page.get_by_text("What was compared").click()
        assert (
            f"{earlier['uri'][0]}, {earlier['n']:,} examples" in page.locator("main").inner_text()
        )


def test_the_overview_is_copied_as_text(browser, results):
    document = json.loads((results["overall"] / "changelist.json").read_text())
    with opened(browser, results["overall"]) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy as text").click()
        page.get_by_text("Copied.").wait_for()
        text = page.evaluate("navigator.clipboard.readText()")
        assert text.startswith(document["title"])
        assert text.count("where") >= len(document["findings"])
    with opened(browser, results["overall"]) as page:
        page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject() }")
        page.get_by_role("button", name="Copy as text").click()
        assert page.locator("textarea").input_value() == text


def test_what_changed_since_the_earlier_run(browser, results):
    since = json.loads((results["since"] / "changelist.json").read_text())["since"]
    with opened(browser, results["since"]) as page:
        (counts,) = since["metrics"]
        said = page.locator(".since").inner_text()
        assert f"is significantly worse than then on {counts['value_worse']:,}" in said
        assert f"Of {counts['value_compared']:,} slices tested in both runs" in said
        order = ("worse", "better", "new", "gone")
        changed = [one for one in since["slices"] if kind_of(one)]
        changed.sort(key=lambda one: order.index(kind_of(one)))
        summary = page.locator(".since summary")
        summary.click()
        assert summary.inner_text() == f"{len(changed)} slices changed"
        rows = page.locator(".since tbody tr")
        firsts = [slice_ for slice_ in changed[:100] if slice_.get("like") is None]
        assert len(changed) > rows.count() == len(firsts) > 10
        note = page.locator(".since .note").inner_text()
        assert f"{min(100, len(changed)) - len(firsts)} that hold mostly the same examples" in note
        for row, one in zip(rows.all(), firsts, strict=True):
            cells = row.locator("td, th").all_inner_texts()
            assert cells[1] == one["name"]
            assert (one["status"] == "new") == ("significant now" in cells[0])
            assert f"n = {one['now']['n']:,}" in cells[3]
            for cell, test in ((cells[4], one["value_change"]), (cells[5], one)):
                shown_q = float(cell.split("q ")[1].replace("\N{MINUS SIGN}", "-"))
                assert shown_q == pytest.approx(test["p_adjusted"], rel=0.06)
                assert f"{abs(100 * test['difference']['value']):.1f} points" in cell
        page.evaluate("navigator.clipboard.writeText = async text => { window.copied = text }")
        page.get_by_role("button", name="Copy as text").click()
        copied = page.evaluate("window.copied")
        assert f"significantly worse than then on {counts['value_worse']:,}" in copied
        # The view of a slice says the same of it; of one that the document does not compare, that too.
        rows = pq.read_table(results["since"] / "slices.parquet").to_pylist()
        one = next(one for one in changed if one["significant"] and one["value_change"])
        known = {each["slice_id"] for each in since["slices"]}
        other = next(each for each in rows if each["slice_id"] not in known)
        page.evaluate("id => { location.hash = `slice/${id}` }", one["slice_id"])
        page.get_by_text("slice_id").wait_for()
        said = page.locator(".since").inner_text()
        assert f"n = {one['then']['n']:,}" in said
        assert f"n = {one['now']['n']:,}" in said
        assert f"{100 * abs(one['value_change']['difference']['value']):.1f} points" in said
        page.evaluate("id => { location.hash = `slice/${id}` }", other["slice_id"])
        page.get_by_text("The document says nothing of this slice").wait_for()


def kind_of(one):
    own = one["value_change"]
    tested = one if one["significant"] else own
    if tested["significant"]:
        return "better" if tested["direction"] == "improved" else "worse"
    return one["status"] if one["status"] in ("new", "gone") else ""


def ticks_apart(axis):
    """Check that no two ticks of an axis touch, and return how many there are."""
    boxes = [tick.bounding_box() for tick in axis.locator("text").all()]
    places = sorted((box["x"], box["x"] + box["width"]) for box in boxes if box)
    assert all(end < begin for (_, end), (begin, _) in pairwise(places))
    return len(places)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_without_findings_the_surest_slices_are_shown(browser, results, tmp_path, scheme):
    document = read_search(str(results["baseline"] / "changelist.json"), "")
    slices = pq.read_table(results["baseline"] / "slices.parquet")
    assert {one.changes[0].direction for one in document.slices} == {"improved"}
    bare = document.model_copy(update={"findings": ()})
    (tmp_path / "report.html").write_text(page_in_memory(bare, slices), "utf-8")
    with opened(browser, tmp_path, scheme=scheme) as page:
        table = page.locator(FINDINGS)
        assert table.locator("tbody tr.group").all_inner_texts() == [
            "Accuracy, better: the surest; they may overlap"
        ]
        assert table.locator("tbody a").count() == 10
        assert violations(page) == []
    for name in ("baseline", "overall", "nothing"):
        with opened(browser, results[name]) as page:
            for axis in page.locator("svg.axis").all():
                assert ticks_apart(axis) > 1


@pytest.mark.parametrize("name", ["overall", "hostile"])
def test_a_notebook_shows_the_page_in_a_frame(browser, results, name):
    document = read_search(str(results[name] / "changelist.json"), "")
    shown = framed(page_in_memory(document, pq.read_table(results[name] / "slices.parquet")))
    page, wrong = browser.new_page(), []
    page.on("request", lambda one: wrong.append(one.url))
    page.on("dialog", lambda one: wrong.append(str(one)))
    page.on("console", lambda one: wrong.append(one.text))
    page.set_content(f"<!doctype html>{shown}")
    frame = page.frame_locator("iframe")
    frame.locator(".verdict-line").wait_for()
    # The frame has an origin of its own: nothing in it reaches the notebook.
    reach = "(() => { try { return String(parent.document) } catch { return 'refused' } })()"
    assert page.frames[1].evaluate(reach) == "refused"
    # All views are there, though the frame has no address.
    frame.get_by_role("link", name="Slices", exact=True).click()
    frame.locator(".virtual .what a").first.click()
    frame.get_by_text("slice_id").wait_for()
    assert [one for one in wrong if not one.startswith("about:")] == []
    page.close()
