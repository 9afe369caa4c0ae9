"""The first view of the page, in chromium, from a file: what is seen, reached and asked for."""

import json
import re
from collections import Counter
from itertools import pairwise

import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.page.content import framed, page_in_memory
from slicebeam.pipelines.page.overview import overview_of
from tests.pipelines.page.in_browser import opened, violations

pytestmark = pytest.mark.browser

FINDINGS = ".bars:not(.misses .bars)"


def test_the_worst_is_seen_without_a_click(browser, results):
    document = json.loads((results["overall"] / "changelist.json").read_text())
    first = document["findings"][0]
    with opened(browser, results["overall"]) as page:
        worst = page.locator(".worst")
        box = worst.bounding_box()
        assert box["y"] + box["height"] < 800
        chips = worst.locator(".chip").all_inner_texts()
        (slice_,) = [one for one in document["slices"] if one["slice_id"] == first["slice_id"]]
        assert " & ".join(chips) == slice_["name"]
        text = worst.inner_text()
        assert f"{100 * first['value']:.1f}%" in text
        assert f"{100 * first['expected']:.1f}% is expected" in text
        assert f"{first['n']:,} examples" in text
        assert f"of all errors in {100 * slice_['size']['share']:.0f}% of the examples" in text
        assert "Label\nincome" in page.locator("main").inner_text()
        assert page.locator(".axis text").first.bounding_box()["height"] >= 11
        verdict = page.locator("header").inner_text()
        tests = document["testing"]["metrics"][0]
        assert f"{tests['tested']:,} tested slices" in verdict
        assert f"{tests['significant']:,} significantly worse" in verdict
        whole = document["global"][0]["after"]
        ends = [f"{100 * whole[name]:.1f}%" for name in ("value", "lo", "hi")]
        assert f"{ends[0]} ({ends[1]} to {ends[2]})" in verdict
        assert page.locator("button").count() <= 3


def test_examples_of_a_finding_are_those_that_the_metric_counts(browser, results):
    document = json.loads((results["precision"] / "changelist.json").read_text())
    with opened(browser, results["precision"]) as page:
        text = page.locator(".worst").inner_text()
        assert f"{document['findings'][0]['n']:,} examples predicted positive" in text
        again = document["findings"][0]["confirmed"]
        size = f"{100 * abs(again['difference']):.1f}"
        assert re.search(rf"on {again['examples']:,} reserved examples .?{size} points \(", text)


def test_every_finding_has_a_bar_with_its_interval(browser, results):
    for name in ("overall", "baseline"):
        document = json.loads((results[name] / "changelist.json").read_text())
        with opened(browser, results[name]) as page:
            for one in page.locator("summary").all():
                one.click()
            bars = page.locator(FINDINGS).locator("li:not(.axis)")
            assert bars.count() == len(document["findings"]) > 0
            assert bars.locator(".whisker").count() == bars.count()
            assert bars.locator(".expected").count() == bars.count()
            # A bar ends at the value, and says in words how far that is: corrected, and as observed.
            images = bars.get_by_role("img").all()
            for image, one in zip(images, document["findings"], strict=True):
                both = (one["corrected"]["difference"], one["difference"])
                corrected, observed = (f"{100 * abs(each):.1f}" for each in both)
                label = image.get_attribute("aria-label")
                assert re.search(rf"difference .?{corrected} .*, observed .?{observed} ", label)


def test_what_came_nearest_and_would_have_been_noticed(browser, results):
    document = json.loads((results["nothing"] / "changelist.json").read_text())
    (tests,) = document["testing"]["metrics"]
    with opened(browser, results["nothing"]) as page:
        bars = page.locator(".misses li:not(.axis)")
        for bar, miss in zip(bars.all(), tests["nearest"], strict=True):
            change, text = miss["change"], bar.inner_text()
            value, reference = (
                100 * one for one in (change["after"]["value"], change["reference"])
            )
            assert f"{value:.1f}% against {reference:.1f}% overall" in text
            assert f"{change['n']} examples, q {change['p_adjusted']:.2}" in text
        (fall,) = tests["noticeable"]
        said = f"Noticed with a probability of 80%: Accuracy lower by {100 * fall['fall']:.2g} points on slices of 100"
        assert said in page.locator("main").inner_text()
        page.evaluate("navigator.clipboard.writeText = async text => { window.copied = text }")
        page.get_by_role("button", name="Copy as text").click()
        copied = page.evaluate("window.copied")
        assert said in copied
        assert copied.count("Nearest to significantly worse: ") == len(tests["nearest"])
        bars.first.get_by_role("link").click()
        assert page.locator("h1").inner_text() == tests["nearest"][0]["name"]


def test_the_keyboard_reaches_everything(browser, results):
    with opened(browser, results["overall"]) as page:
        reached = []
        for _ in range(24):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.textContent"))
            if reached[-1] == "expected":
                tip = page.locator("dfn:focus + [role=tooltip]")
                assert tip.is_visible()
                page.keyboard.press("Escape")
                assert not tip.is_visible()
        assert {"Copy as text", "expected", "interval"} <= set(reached)
        assert any("more finding" in one for one in reached)


def test_which_findings_hold_the_same_examples(browser, results):
    document = json.loads((results["overall"] / "changelist.json").read_text())
    (model,) = document["finding_models"]
    with opened(browser, results["overall"]) as page:
        page.get_by_text("Which findings hold the same examples").click()
        rows = page.locator(".upset tbody tr")
        assert rows.count() == len(model["intersections"])
        first = document["findings"][0]
        for shown, one in zip(rows.all(), model["intersections"], strict=True):
            cells = shown.locator("td").all_inner_texts()
            dots = [rank for rank, cell in enumerate(cells[:-2], 1) if cell]
            assert dots == list(one["findings"])
            assert cells[-1] == f"{100 * one['value']:.1f}%"
        assert violations(page) == []
        # A finding's own view has the sets that it holds.
        page.goto(page.url.split("#")[0] + f"#slice/{first['slice_id']}")
        page.locator(".upset").wait_for()
        held = [one for one in model["intersections"] if 1 in one["findings"]]
        assert page.locator(".upset tbody tr").count() == len(held)


def test_the_overview_is_copied_as_text(browser, results):
    document = json.loads((results["overall"] / "changelist.json").read_text())
    with opened(browser, results["overall"]) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button").click()
        page.get_by_text("Copied.").wait_for()
        text = page.evaluate("navigator.clipboard.readText()")
        assert text.startswith(document["title"])
        assert text.count("where") >= len(document["findings"])
    with opened(browser, results["overall"]) as page:
        page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject() }")
        page.get_by_role("button").click()
        assert page.locator("textarea").input_value() == text


def test_what_changed_since_the_earlier_run(browser, results):
    since = json.loads((results["since"] / "changelist.json").read_text())["since"]
    with opened(browser, results["since"]) as page:
        (counts,) = since["metrics"]
        said = page.locator(".since").inner_text()
        assert f"is significantly worse than then on {counts['value_worse']:,}" in said
        assert f"Of {counts['value_compared']:,} slices tested in both runs" in said
        assert f"worse than then on {counts['worse']:,} and better on {counts['better']:,}" in said
        changed = [one for one in since["slices"] if kind_of(one)]
        shown = 0
        for number, kinds in enumerate((("worse", "better"), ("new", "gone"))):
            own = [one for kind in kinds for one in changed if kind_of(one) == kind]
            part = page.locator(".since details").nth(number)
            part.locator("summary").click()
            assert part.locator("summary").inner_text().startswith(f"{len(own)} slice")
            rows = part.locator("tbody tr")
            assert rows.count() == len(own) > 0
            shown += len(own)
            for row, one in zip(rows.all(), own, strict=True):
                cells = row.locator("td, th").all_inner_texts()
                assert cells[1] == one["name"]
                assert (one["status"] == "new") == ("new" in cells[0])
                assert (kinds[0] == "worse") == (cells[0].split()[-1] in ("worse", "better"))
                assert f"n = {one['now']['n']:,}" in cells[3]
                for cell, test in ((cells[4], one["value_change"]), (cells[5], one)):
                    shown_q = float(cell.split("q ")[1].replace("\N{MINUS SIGN}", "-"))
                    assert shown_q == pytest.approx(test["p_adjusted"], rel=0.06)
                    assert f"{abs(100 * test['difference']['value']):.1f} points" in cell
        assert shown == len(changed) > 10
        for kind in ("worse", "better"):
            tested = [
                (own if (own := one["value_change"])["significant"] else one)["difference"]["value"]
                for one in changed
                if kind_of(one) == kind
            ]
            biggest = page.locator(".biggest", has_text=f"for the {kind}").inner_text()
            assert f"{100 * max(map(abs, tested)):.1f} points" in biggest
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
        assert "The delta is significantly " in said
        page.evaluate("id => { location.hash = `slice/${id}` }", other["slice_id"])
        page.get_by_text("The document says nothing of this slice").wait_for()


def kind_of(one):
    own = one["value_change"]
    tested = one if one["significant"] else own
    if tested["significant"]:
        return "better" if tested["direction"] == "improved" else "worse"
    return one["status"] if one["status"] in ("new", "gone") else ""


def test_every_kind_of_change_has_its_place(results):
    document = read_search(str(results["since"] / "changelist.json"), "")
    same = {"significant": False, "value_change": None, "status": "stays", "direction": "none"}
    one = document.since.slices[0].model_copy(update=same)
    kinds = {
        "worse": (90, {"significant": True, "direction": "degraded"}),
        "new": (60, {"status": "new"}),
        "gone": (10, {"status": "gone"}),
        "better": (30, {"significant": True, "direction": "improved"}),
    }
    updates = [update for number, update in kinds.values() for _ in range(number)]
    slices = tuple(one.model_copy(update=update) for update in updates)
    since = document.since.model_copy(update={"slices": slices})
    content = overview_of(document.model_copy(update={"since": since}), [])["since"]
    shown = Counter(one["kind"] for one in content["slices"])
    assert shown == {"worse": 40, "better": 25, "new": 25, "gone": 10}
    assert content["more"] == {"worse": 50, "better": 5, "new": 35, "gone": 0}


def ticks_apart(axis):
    """Check that no two ticks of an axis touch, and return how many there are."""
    boxes = [tick.bounding_box() for tick in axis.locator("text").all()]
    places = sorted((box["x"], box["x"] + box["width"]) for box in boxes if box)
    assert all(end < begin for (_, end), (begin, _) in pairwise(places))
    return len(places)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_without_findings_each_direction_has_its_own_slices(browser, results, tmp_path, scheme):
    document = read_search(str(results["baseline"] / "changelist.json"), "")
    slices = pq.read_table(results["baseline"] / "slices.parquet")
    direction = {one.slice_id: one.changes[0].direction for one in document.slices}
    bare = document.model_copy(update={"findings": ()})
    (tmp_path / "report.html").write_text(page_in_memory(bare, slices), "utf-8")
    with opened(browser, tmp_path, scheme=scheme) as page:
        assert set(direction.values()) == {"improved"}
        worse = page.locator("section", has=page.locator("h2", has_text="degraded"))
        assert worse.locator(FINDINGS).count() == 0
        better = page.locator("section", has=page.locator("h2", has_text="improved"))
        assert better.locator(".bars a").count() == 10
        assert "most certainly better" in better.inner_text()
        # Ticks of an axis stand apart, and none lies where no value can.
        for axis in page.locator(".bars .axis").all():
            assert ticks_apart(axis) > 2
            texts = axis.locator("text").all_text_contents()
            assert all(0 <= float(text.rstrip("%")) <= 100 for text in texts)
        assert violations(page) == []
    with opened(browser, results["baseline"]) as page:
        for axis in page.locator(".bars .axis").all():
            ticks_apart(axis)


def test_what_was_not_looked_for_is_a_click_away(browser, results):
    rows = pq.read_table(results["overall"] / "slices.parquet")
    better = [one for one in rows["delta"].to_pylist() if one is not None and one > 0]
    with opened(browser, results["overall"]) as page:
        page.get_by_role("link", name=f"Show the {len(better):,} slices whose Accuracy is").click()
        page.get_by_text(f"{len(better):,} of {rows.num_rows:,} slices in this page").wait_for()
        assert page.locator(".virtual .what a").count() > 0
    # Where both directions were looked for, both lists are there.
    with opened(browser, results["baseline"]) as page:
        assert page.get_by_role("link", name="Show the ").count() == 0


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
    frame.locator(".worst").wait_for()
    assert frame.locator("h1").inner_text() == document.title
    # The frame has an origin of its own: nothing in it reaches the notebook.
    reach = "(() => { try { return String(parent.document) } catch { return 'refused' } })()"
    assert page.frames[1].evaluate(reach) == "refused"
    # All views are there, though the frame has no address.
    frame.get_by_role("link", name="Slices", exact=True).click()
    frame.locator(".virtual .what a").first.click()
    frame.get_by_text("Show it among its neighbours").click()
    frame.locator(".lattice .focus").wait_for()
    assert [one for one in wrong if not one.startswith("about:")] == []
    page.close()
