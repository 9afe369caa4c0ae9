"""The other views of the page, in chromium: what they show, how they are reached, what may stand in them."""

import csv
import io
import json
import shutil
import socket
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.commands.cli import run
from tests.pipelines.page.in_browser import opened, violations
from tests.pipelines.page.results import FORMULA, HOSTILE, long_values, shift_result

pytestmark = pytest.mark.browser
# Of each view a result that has it; SLICE stands for the first finding's id.
VIEWS = {
    "overall": ["", "#slices", "#slices?significant=no&inherited=yes", "#slice/SLICE"],
    "baseline": ["", "#slices", "#slice/SLICE"],
    "hostile": ["", "#slices", "#slice/SLICE"],
    "hostile data": ["#slices", "#slice/SLICE"],
    "discovery": ["#clusters", "#slice/SLICE", "#slices"],
    "shift": ["#shift", "#overview"],
    "since": ["", "#slice/SLICE"],
    "nothing": [""],
    "earlier": ["", "#slice/SLICE"],
}  # fmt: skip
EVERY = [(name, view) for name, views in VIEWS.items() for view in views]


def document(result):
    return json.loads((result / "changelist.json").read_text())


def first_finding(result):
    findings = document(result)["findings"]
    return str(findings[0]["slice_id"]) if findings else ""


def slice_of(result, slice_id):
    return next(one for one in document(result)["slices"] if one["slice_id"] == slice_id)


def table(result):
    return pq.read_table(result / "slices.parquet")


def says_more(rows):
    is_new = pc.is_in(rows["label"], pc.cast(["new", "refines"], "string"))
    return rows.filter(pc.or_(is_new, rows["finding"].is_valid()))


def shown_count(page):
    return int(page.locator(".found [role=status]").inner_text().split()[0].replace(",", ""))


@pytest.mark.parametrize(("name", "view"), EVERY)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_accessible_and_fits(browser, results, name, view, scheme):
    address = view.replace("SLICE", first_finding(results[name]))
    with opened(browser, results[name], 1280, scheme, address) as page:
        for one in page.locator("summary").all() if not view else []:
            one.click()
        assert violations(page) == []
        for width in (390, 800, 2560):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.set_viewport_size({"width": 400, "height": 800})
        assert violations(page) == []
        assert page.locator("img, main script, iframe").count() == 0


def test_the_table_has_the_slices_of_the_run_in_order(browser, results):
    rows = says_more(table(results["overall"]))
    with opened(browser, results["overall"], view="#slices") as page:
        assert shown_count(page) == rows.num_rows > 50
        body = page.locator(".virtual .body")
        # Only what is in sight is there.
        assert page.locator(".virtual .body [role=row]").count() < 30
        names = [one.get_attribute("title") for one in body.locator(".what .chips").all()]
        findings = document(results["overall"])["findings"]
        by_id = dict(zip(rows["slice_id"].to_pylist(), rows["slice"].to_pylist(), strict=True))
        ranked = [by_id[one["slice_id"]] for one in findings]
        assert names[: len(ranked)] == ranked[: len(names)]
        page.get_by_role("button", name="n", exact=True).click()
        page.get_by_role("button", name="n", exact=True).click()
        largest = max(rows["n"].to_pylist())
        assert f"{largest:,}" in body.locator("[role=row]").first.inner_text()
        sorted_by = page.locator("[role=columnheader][aria-sort=descending]").inner_text()
        assert sorted_by.startswith("n")
        # The last row is reached by scrolling.
        body.evaluate("one => { one.scrollTop = one.scrollHeight }")
        last = page.locator(f"[aria-rowindex='{rows.num_rows + 1}']")
        last.wait_for()
        assert f"{min(rows['n'].to_pylist()):,}" in last.inner_text()


def test_filters_are_those_of_the_table_and_stand_in_the_address(browser, results):
    rows = says_more(table(results["overall"]))
    has = pc.match_substring(rows["predicate"], '"value": "Married-civ-spouse"')
    with opened(browser, results["overall"], view="#slices") as page:
        page.get_by_label("Feature").select_option("marital-status")
        page.get_by_label("Value").select_option("marital-status = Married-civ-spouse")
        assert shown_count(page) == pc.sum(has).as_py() > 5
        page.get_by_label("Text").fill("EDUCATION")
        both = pc.and_(has, pc.match_substring(rows["slice"], "education"))
        assert shown_count(page) == pc.sum(both).as_py() > 0
        page.get_by_label("Text").fill("")
        page.get_by_text("Size and delta", exact=True).click()
        page.get_by_label("n from").fill("1000")
        large = pc.and_(has, pc.greater_equal(rows["n"], 1000))
        assert shown_count(page) == pc.sum(large).as_py() > 0
        address = page.url
        assert "least=1000" in address
        page.get_by_label("Without marital-status = Married-civ-spouse").click()
        assert shown_count(page) == pc.sum(pc.greater_equal(rows["n"], 1000)).as_py()
    with opened(browser, results["overall"], view=address[address.index("#") :]) as page:
        assert shown_count(page) == pc.sum(large).as_py()
    everything = table(results["overall"])
    with opened(browser, results["overall"], view="#slices?significant=no&inherited=yes") as page:
        assert shown_count(page) == everything.num_rows
        page.get_by_label("Direction").select_option("better")
        assert shown_count(page) == pc.sum(pc.greater(everything["delta"], 0)).as_py()
        page.get_by_role("button", name="2 conditions").click()
        two = pc.and_(pc.greater(everything["delta"], 0), pc.equal(everything["cross_size"], 2))
        assert shown_count(page) == pc.sum(two).as_py()


def test_facets_count_the_rows_and_filter(browser, results):
    rows = says_more(table(results["overall"]))
    with opened(browser, results["overall"], view="#slices") as page:
        facets = {
            parts[0]: (facet, int(parts[-1].replace(",", "")))
            for facet in page.locator(".facet").all()
            if (parts := facet.inner_text().split("\n"))
        }
        for level, name in ((1, "1 condition"), (2, "2 conditions")):
            wanted = pc.sum(pc.equal(rows["cross_size"], level)).as_py()
            assert facets[name][1] == wanted > 0
        large = pc.sum(pc.greater_equal(rows["n"], 1000)).as_py()
        assert facets["1,000 or more"][1] == large
        facets["1,000 or more"][0].click()
        assert shown_count(page) == large
        page.get_by_role("button", name="2 conditions").click()
        both = pc.and_(pc.greater_equal(rows["n"], 1000), pc.equal(rows["cross_size"], 2))
        assert shown_count(page) == pc.sum(both).as_py()
        page.get_by_role("button", name="2 conditions").click()
        assert shown_count(page) == large


def test_a_table_without_significant_slices_does_not_open_empty(browser, results):
    rows = table(results["nothing"])
    assert pc.sum(rows["significant"]).as_py() == 0
    with opened(browser, results["nothing"]) as page:
        assert "none significantly worse" in page.locator(".lead").inner_text()
        page.get_by_role("link", name="Slices", exact=True).click()
        assert shown_count(page) == rows.num_rows > 0
        page.get_by_label("significant only").check()
        text = page.locator("main").inner_text()
        assert "No slice satisfies these filters." in text
        assert f"{rows.num_rows} slices without “significant only”" in text
        page.get_by_role("button", name="Show them").click()
        assert shown_count(page) == rows.num_rows


def test_bounds_are_typed_in_points_key_by_key(browser, results):
    rows = says_more(table(results["overall"]))
    with opened(browser, results["overall"], view="#slices") as page:
        total = page.locator(".found [role=status]").inner_text()
        significant = pc.sum(table(results["overall"])["significant"]).as_py()
        assert f"of {significant:,} significant" in total
        assert "are folded" in total
        page.get_by_text("Size and delta", exact=True).click()
        box = page.get_by_label("delta to, points")
        box.press_sequentially("-10.05")
        assert box.input_value() == "-10.05"
        assert shown_count(page) == pc.sum(pc.less_equal(rows["delta"], -0.1005)).as_py() > 0
        for _ in "-10.05":
            box.press("Backspace")
        # Nothing is bounded any more, and the box is still there to type in.
        assert box.evaluate("one => one === document.activeElement")
        box.press_sequentially("-0.05")
        assert box.input_value() == "-0.05"
        assert "high=-0.0005" in page.url


def test_long_values_are_told_apart(browser, tmp_path):
    result = long_values(tmp_path)
    assert run(["report", str(result), "--quiet"]) == 0
    rows = table(result)
    single = rows.filter(pc.equal(rows["cross_size"], 1)).to_pylist()
    with opened(browser, result, view="#slices?significant=no&inherited=yes&level=1") as page:
        names = [one.get_attribute("title") for one in page.locator(".what .chips").all()]
        assert len(set(names)) == len(names) == len(single) == 4
        for number in range(4):
            page.get_by_label("Feature").select_option("url")
            values = page.get_by_label("Value").locator("option")
            whole = values.nth(number + 1).get_attribute("title") or ""
            values.nth(number + 1).evaluate(
                "one => { one.selected = true; one.parentElement.dispatchEvent(new Event('change', {bubbles: true})) }"
            )
            assert shown_count(page) == 1
            (row,) = csv.DictReader(io.StringIO(downloaded(page)))
            assert row["slice"] == whole
            own = next(one for one in single if one["slice_id"] == row["slice_id"])
            assert json.loads(own["predicate"])["all"][0]["value"] in whole
            assert page.locator(".what .chips").get_attribute("title") == whole
            assert "…" in page.locator(".what .chip").inner_text()
            page.locator(".chosen button").click()
        page.locator(".what a").first.click()
        page.locator(".elsewhere").wait_for()
        assert "…" not in page.locator("main .chips").first.get_attribute("title")


def test_a_slice_is_found_by_what_people_call_it(browser, results, tmp_path):
    place = Path(shutil.copytree(results["overall"], tmp_path / "called"))
    slice_id = json.loads((place / "changelist.json").read_text())["slices"][3]["slice_id"]
    for edit in (["rename", "--name=Night shift"], ["describe", "--text=Old scanners"]):
        asked = [edit[0], f"--changelist={place}", f"--slice={slice_id}", edit[1], "--quiet"]
        assert run(["edit", *asked]) == 0
    assert run(["report", str(place)]) == 0
    with opened(browser, place, view="#slices") as page:
        for text in ("night SHIFT", "scanners", "shift & old"):
            page.get_by_label("Text").fill(text)
            assert shown_count(page) == 1
            assert slice_id in page.locator(".what a").first.get_attribute("href")


def test_a_rectangle_in_the_map_filters(browser, results):
    with opened(browser, results["overall"], view="#slices") as page:
        before, chart = shown_count(page), page.locator(".density")
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 10)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.95 * box["width"], box["y"] + 0.8 * box["height"])
        page.mouse.up()
        least = int(page.get_by_label("n from").input_value())
        low = float(page.get_by_label("delta from, points").input_value()) / 100
        rows = says_more(table(results["overall"]))
        most = int(page.get_by_label("n to").input_value())
        high = float(page.get_by_label("delta to, points").input_value()) / 100
        inside = [
            low <= delta <= high and least <= n <= most
            for n, delta in zip(rows["n"].to_pylist(), rows["delta"].to_pylist(), strict=True)
        ]
        assert 0 < shown_count(page) < before
        assert abs(shown_count(page) - sum(inside)) <= 1


def test_the_back_button_goes_back(browser, results):
    with opened(browser, results["overall"]) as page:
        page.locator("section[aria-label=Findings] tbody a").first.click()
        name = page.locator("main .chips").first.get_attribute("title")
        page.locator(".conditions a").first.click()
        page.wait_for_function(
            "name => document.querySelector('main .chips').title !== name", arg=name
        )
        page.go_back()
        page.wait_for_function(
            "name => document.querySelector('main .chips').title === name", arg=name
        )
        page.go_back()
        page.locator(".tiles").wait_for()
        page.go_forward()
        page.locator(".elsewhere").first.wait_for()
        assert page.locator("main .chips").first.get_attribute("title") == name


def cells(row):
    return [cell.inner_text() for cell in row.locator("th, td").all()]


@pytest.mark.parametrize("name", ["overall", "baseline"])
def test_a_slice_shows_its_numbers(browser, results, name):
    slice_id = first_finding(results[name])
    rows = table(results[name]).filter(pc.equal(table(results[name])["slice_id"], slice_id))
    (row,) = rows.to_pylist()
    finding = document(results[name])["findings"][0]
    with opened(browser, results[name], view=f"#slice/{slice_id}") as page:
        said = page.locator(".verdict").inner_text()
        assert f"{100 * row['value']:.1f}%" in page.locator("h1").inner_text()
        assert f"{100 * abs(finding['corrected']['difference']):.1f} points" in said
        assert f"{row['n']:,}" in said
        places = {cells(one)[0]: cells(one)[1] for one in page.locator(".elsewhere tbody tr").all()}
        if name == "overall":
            assert places["Expected here"] == f"{100 * finding['expected']:.1f}"
            assert places["All other examples"] == f"{100 * row['complement']:.1f}"
        else:
            assert places["Before"] == f"{100 * row['reference']:.1f}"
        statistics = page.locator("details", has_text="Statistics")
        assert statistics.get_attribute("open") is None
        statistics.locator("summary").click()
        text = statistics.inner_text()
        for number in ("value", "value_low", "value_high", "reference"):
            assert f"{100 * row[number]:.1f}%" in text
        for number in ("delta", "ci_low", "ci_high"):
            assert f"{abs(100 * row[number]):.1f}" in text
        assert row["test"] in text
        assert "e+" not in text
        (change,) = slice_of(results[name], slice_id)["changes"]
        assert all(each in text for each in change["inputs"])


@pytest.mark.parametrize("name", ["overall", "baseline"])
def test_a_slice_has_its_confusion_matrix_beside_another(browser, results, name):
    slice_id = first_finding(results[name])
    confusion = slice_of(results[name], slice_id)["confusion"]
    other = confusion["inside_before" if name == "baseline" else "outside"]
    with opened(browser, results[name], view=f"#slice/{slice_id}") as page:
        matrices = page.locator(".confusion .matrix")
        most, title = 0, ""
        for matrix, counts in zip(matrices.all(), (confusion["inside"], other), strict=True):
            shown = matrix.locator("td small").all_inner_texts()
            assert shown == [f"{count:,}" for row in counts for count in row]
        for label, row in enumerate(confusion["inside"]):
            for said, count in enumerate(row if sum(row) and sum(other[label]) else ()):
                here, there = count / sum(row), other[label][said] / sum(other[label])
                if label != said and here - there > most:
                    most = here - there
                    title = f"{confusion['classes'][label]} called {confusion['classes'][said]}: "
        assert page.locator(".confusion h2").inner_text().startswith(title)


def test_what_each_condition_does(browser, results):
    rows = table(results["overall"])
    held = {
        frozenset(json.dumps(part) for part in json.loads(predicate)["all"]): row
        for row, predicate in enumerate(rows["predicate"].to_pylist())
    }
    single = [one for one in held if len(one) == 1]
    parts = max(single, key=lambda one: rows["n"][held[one]].as_py())
    children = [other for other in held if parts < other and len(other) == len(parts) + 1]
    slice_id = rows["slice_id"][held[parts]].as_py()
    with opened(browser, results["overall"], view=f"#slice/{slice_id}") as page:
        shown = page.locator(".conditions tbody tr:not(.group)")
        assert shown.count() == 10
        worst = min(children, key=lambda one: rows["delta"][held[one]].as_py())
        value, own = (rows["value"][held[one]].as_py() for one in (worst, parts))
        first = cells(shown.first)
        assert first[1] == f"{100 * value:.1f}"
        assert first[3].lstrip("+\N{MINUS SIGN}") == f"{100 * abs(value - own):.1f}"
        assert page.get_by_text(f"All {len(children):,} with one more condition").count() == 1
        shown.first.get_by_role("link").click()
        # Without either of its conditions.
        page.locator(".conditions tr.group", has_text="Without one condition").wait_for()
        without = page.locator(".conditions tbody").first.locator("tr:not(.group)")
        assert without.count() == 2


def downloaded(page):
    with page.expect_download() as coming:
        page.get_by_role("button", name="Download as CSV").click()
    return Path(coming.value.path()).read_text("utf-8-sig")


def test_the_file_for_spreadsheets_has_the_rows(browser, results):
    with opened(browser, results["overall"], view="#slices?text=Bachelors") as page:
        rows = list(csv.DictReader(io.StringIO(downloaded(page))))
        assert len(rows) == shown_count(page)
    whole = {one["slice_id"]: one for one in table(results["overall"]).to_pylist()}
    for row in rows:
        own = whole[row["slice_id"]]
        assert (row["slice"], int(row["n"])) == (own["slice"], own["n"])
        for name in ("value", "value_low", "delta", "ci_low", "ci_high"):
            assert float(row[name]) == pytest.approx(own[name], rel=1e-6, abs=1e-7)
        for name in ("p_value", "q_value"):
            assert float(row[name]) == pytest.approx(own[name], rel=1e-4)


def test_no_spreadsheet_runs_what_a_stranger_wrote(browser, results):
    with opened(browser, results["hostile data"], view="#slices") as page:
        text = downloaded(page)
        rows = list(csv.DictReader(io.StringIO(text)))
        assert any(FORMULA in row["slice"] for row in rows)
        assert any("@sex" in row["slice"] for row in rows)
        for reader in (",", ";", "\t"):
            for line in csv.reader(io.StringIO(text), delimiter=reader):
                for cell in line:
                    assert cell.strip()[:1] not in tuple("=+@\t\r"), cell


@pytest.mark.parametrize("name", ["hostile", "hostile data"])
def test_no_view_runs_what_a_stranger_wrote(browser, results, name):
    slice_id = first_finding(results[name])
    with opened(browser, results[name]) as page:
        for view in ("#slices", f"#slice/{slice_id}", "#slices?text=<img src=x>"):
            page.evaluate("one => { location.hash = one }", view)
            page.wait_for_timeout(50)
            assert page.locator("img, main script, main style").count() == 0
        page.evaluate("one => { location.hash = one }", f"#slice/{slice_id}")
        page.locator(".elsewhere").first.wait_for()
        assert HOSTILE.split('"')[0] in page.locator("main").inner_text()
        page.evaluate("one => { location.hash = one }", "#slice/%E0%A4%A<script>alert(3)</script>")
        page.get_by_text("does not contain the slice").wait_for()


def test_the_policy_refuses_what_is_not_its_own(browser, results):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.settimeout(0.5)
        refused, ran = _tried(browser, results["overall"], listening.getsockname()[1])
        # What the browser refuses, it does not ask for.
        with pytest.raises(TimeoutError):
            listening.accept()
    assert not ran
    kinds = {"script-src-elem", "script-src-attr", "style-src-attr", "img-src", "connect-src"}
    assert kinds <= set(refused)


def _tried(browser, result, port):
    """Do in a page what a stranger's markup would, and return what was refused, and if anything ran."""
    page = browser.new_page()
    page.goto((result / "report.html").as_uri())
    page.wait_for_selector("[data-ready=yes]")
    refused, ran = page.evaluate(
        """async (port) => {
          const refused = [];
          addEventListener('securitypolicyviolation', (one) => refused.push(one.effectiveDirective));
          const script = document.createElement('script');
          script.textContent = 'window.ran = true';
          document.body.append(script);
          const image = document.createElement('img');
          image.src = `http://127.0.0.1:${port}/pixel`;
          document.body.append(image);
          document.body.insertAdjacentHTML('beforeend', '<p style="color: red" onclick="window.ran = true">');
          document.body.lastElementChild.click();
          await fetch(`http://127.0.0.1:${port}/data`).catch(() => 0);
          await new Promise((done) => setTimeout(done, 200));
          return [refused, window.ran === true];
        }""",
        port,
    )
    page.close()
    return refused, ran


def test_a_discovery_shows_its_groups(browser, results):
    described = [one for one in document(results["discovery"])["slices"] if "found" in one]
    with opened(browser, results["discovery"], view="#clusters") as page:
        groups = page.locator(".clusters > li")
        assert groups.count() == len(described) > 0
        for shown, one in zip(groups.all(), described, strict=True):
            phrases = shown.locator(".chip").all_inner_texts()
            assert phrases == [phrase["text"] for phrase in one["found"]["phrases"]]
            texts = [example["display"]["text"] for example in one["found"]["examples"]]
            assert shown.locator("blockquote").inner_text() in texts
        for word in ("embeddings", "mixture", "variance"):
            term = page.locator("dfn", has_text=word).first
            term.focus()
            assert page.locator(f"#{term.get_attribute('aria-describedby')}").is_visible()
        assert "Share of the change between the models" in page.locator("main").inner_text()


def test_the_map_has_a_circle_for_each_group(browser, results):
    rows = table(results["discovery"]).to_pylist()
    with opened(browser, results["discovery"], view="#clusters") as page:
        circles = page.locator(".map a")
        assert circles.count() == len(rows) == 3
        labels = [one.get_attribute("aria-label") or "" for one in circles.all()]
        for row in rows:
            (label,) = [one for one in labels if one.startswith(f"{row['slice']}:")]
            assert f"{row['n']:,} examples" in label
            assert ("not significantly" in label) != row["significant"]
        assert page.locator(".map text").count() == sum(row["significant"] for row in rows)
        assert "% of the variance" in page.locator("main").inner_text()
        circles.first.press("Enter")
        page.locator("main dl").first.wait_for()


def test_a_shift_shows_its_matrices(browser, results):
    shift = document(results["shift"])["shift"]
    with opened(browser, results["shift"]) as page:
        page.get_by_role("link", name="Shift").click()
        matrices = page.locator(".matrix")
        assert matrices.locator("caption").all_inner_texts() == ["New minus old", "Old", "New"]
        new = matrices.nth(2).locator("tbody td").all_inner_texts()
        flat = [one for row in shift["new_matrix"] for one in row]
        assert [text.split("%")[0] for text in new] == [f"{100 * one:.1f}" for one in flat]
        changed = page.locator("td.changed")
        assert changed.count() == len(shift["changed"]) > 0
        assert all("changed" in text for text in changed.all_inner_texts())
        said = page.locator("main").inner_text()
        assert "The budget was spent." in said
        # What the error means stands in a sentence, and each word of the field is explained.
        bound = 100 * shift["frobenius_bound"]
        assert f"each cell of the new matrix is within {bound:.2g} points" in said
        for word in ("Frobenius error", "confusion matrix"):
            term = page.locator("dfn", has_text=word)
            term.focus()
            assert page.locator(f"#{term.get_attribute('aria-describedby')}").is_visible()


def test_a_shift_shows_the_optimal_calls_of_its_strata(browser, results):
    strata = document(results["shift"])["shift"]["strata"]
    # Of 2,000 calls, in proportion to the size times σ.
    best = [one["size"] * one["variance"] ** 0.5 for one in strata]
    with opened(browser, results["shift"], view="#shift") as page:
        table = page.locator("table.strata")
        head = table.locator("thead th").all_inner_texts()
        assert head == ["Label", "Confidence", "Items", "Calls", "Optimal calls", "Variance"]
        rows = [row.locator("th, td").all_inner_texts() for row in table.locator("tbody tr").all()]
        assert len(rows) == len(strata) == 6
        for row, one, wanted in zip(rows, strata, best, strict=True):
            assert row[0] == str(one["label"])
            for edge in (one.get("low"), one.get("high")):
                assert edge is None or f"{edge:.6g}".replace("-", "\u2212") in row[1]
            assert row[2:4] == [f"{one['size']:,}", f"{one['calls']:,}"]
            assert row[4] == f"{2000 * wanted / sum(best):,.0f}"
            assert float(row[5]) == pytest.approx(one["variance"], rel=0.005)
        assert "negative where the old answer was wrong" in page.locator("main").inner_text()


def test_a_shift_says_what_its_focus_is(browser, tmp_path):
    result = shift_result(tmp_path, "--focus", "1:0")
    assert run(["report", str(result), "--quiet"]) == 0
    shift = document(result)["shift"]
    focus = shift["focus"]
    with opened(browser, result, view="#shift") as page:
        said = page.locator("main").inner_text()
        assert f"--focus 1:0: from {focus['before']:.3g} to {focus['after']['value']:.3g}: " in said
        assert "significantly worse." in said
        # The bound is that of the weighted cells, not of each cell.
        bound = f"is below {shift['frobenius_bound']:.2g}, each cell times its weight"
        assert f"{bound} of --focus 1:0" in said
        assert "each cell of the new matrix is within" not in said
        assert violations(page) == []


def test_examples_are_those_of_the_slice(browser, results):
    slice_id = first_finding(results["baseline"])
    found = slice_of(results["baseline"], slice_id)
    with opened(browser, results["baseline"], view=f"#slice/{slice_id}") as page:
        names = page.locator(".examples thead th").all_inner_texts()
        shown = page.locator(".examples tbody tr")
        assert shown.count() == 3
        for one in shown.all():
            values = dict(zip(names, cells(one), strict=True))
            for part in found["definition"]["predicate"]["all"]:
                if part["op"] == "==":
                    assert values[part["field"]] == str(part["value"])
            right, was = (
                values[name] == values["income"] for name in ("prediction", "prediction_old")
            )
            assert values["What"] == [["both wrong", "fixed"], ["broken", "both right"]][was][right]
    view = f"#slice/{first_finding(results['overall'])}"
    with opened(browser, results["overall"], view=view) as page:
        assert page.locator(".examples").count() == 0


def test_a_view_that_the_page_has_not_says_so(browser, results):
    for view in ("#shift", "#clusters", "#slice"):
        with opened(browser, results["overall"], view=view) as page:
            assert len(page.locator("main h1").inner_text()) > 4
            assert len(page.locator("main p").first.inner_text()) > 10
            page.locator("main").get_by_role("link", name="Overview").click()
            page.locator(".verdict-line").wait_for()


def test_the_way_back_leads_to_the_row_and_the_focus_to_the_heading(browser, results):
    with opened(browser, results["overall"], view="#slices") as page:
        body = page.locator(".virtual .body")
        body.evaluate("one => { one.scrollTop = 2800 }")
        page.locator("[aria-rowindex='53'] .what a").focus()
        there = body.evaluate("one => one.scrollTop")
        page.keyboard.press("Enter")
        page.locator("main dl").first.wait_for()
        page.wait_for_function("document.activeElement.matches('main h1')", timeout=5000)
        page.go_back()
        scrolled = "there => document.querySelector('.virtual .body')?.scrollTop === there"
        page.wait_for_function(scrolled, arg=there, timeout=5000)
        assert there > 1800


FOCUSED = (
    "(one => one.textContent.trim() || one.closest('label')?.textContent)(document.activeElement)"
)


def test_the_keyboard_alone_filters_and_opens(browser, results):
    with opened(browser, results["overall"]) as page:
        for _ in range(5):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent") == "Slices":
                break
        page.keyboard.press("Enter")
        page.locator(".virtual").wait_for()
        reached = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(page.evaluate(FOCUSED))
            if page.evaluate("document.activeElement.matches('.what a')"):
                break
        assert {"Download as CSV", "n", "Delta", "q"} <= {(one or "").strip() for one in reached}
        page.keyboard.press("Enter")
        page.locator("main dl").first.wait_for()


def test_what_is_printed_has_no_controls(browser, results):
    with opened(browser, results["overall"], view="#slices") as page:
        page.emulate_media(media="print")
        for one in ("nav", ".filters", ".found button"):
            assert not page.locator(one).first.is_visible()
        assert page.locator(".virtual").is_visible()
        assert page.locator(".virtual .body").evaluate("one => one.scrollHeight") < 56 * 40
        assert page.locator(".only-print").is_visible()


def test_without_scripts_the_result_is_said(browser, results):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((results["overall"] / "report.html").as_uri())
    text = page.locator("main").inner_text()
    assert str(document(results["overall"])["summary"]) in text
    assert "open it in a browser" in text
    context.close()


def credit_table(path):
    """Write 30,000 customers with 24 features; a model is wrong where payments are late."""
    rng, n = np.random.default_rng(3), 30_000
    late, wealth = rng.normal(size=n), rng.normal(size=n)
    limit = np.round(np.exp(11.5 + 0.8 * wealth - 0.3 * late) / 1e4) * 1e4
    columns = {"limit": limit}
    for month in range(1, 7):
        paid = np.round(late + rng.normal(scale=0.6, size=n))
        used = np.clip(0.3 + 0.25 * late + rng.normal(scale=0.2, size=n), 0, 1)
        columns[f"pay_{month}"] = np.clip(paid, -2, 4).astype(int)
        columns[f"bill_{month}"] = np.round(limit * used)
        columns[f"paid_{month}"] = np.round(np.exp(7 + wealth - 0.8 * late + rng.normal(size=n)))
    columns["age"] = np.clip(np.round(35 + 9 * rng.normal(size=n)), 21, 75).astype(int)
    columns["sex"] = rng.choice(["female", "male"], n)
    columns["education"] = rng.choice(["school", "university", "graduate", "other"], n)
    columns["marriage"] = rng.choice(["single", "married", "other"], n)
    columns["region"] = rng.choice([f"region {one}" for one in range(8)], n)
    columns["default"] = (rng.random(n) < 1 / (1 + np.exp(1.6 - 1.2 * late))).astype(int)
    columns["prediction"] = (late + rng.normal(scale=0.4, size=n) > 1.1).astype(int)
    pq.write_table(pa.table(columns), path)


def test_a_credit_table_is_small(browser, tmp_path):
    credit_table(tmp_path / "credit.parquet")
    output = tmp_path / "out"
    command = ["search", "--data", str(tmp_path / "credit.parquet"), "--label", "default"]
    command += ["--prediction", "prediction", "--max-cross-size", "3", "--quiet"]
    assert run([*command, "--output", str(output)]) == 0
    assert run(["report", str(output), "--quiet"]) == 0
    assert read_search(str(output / "changelist.json"), "").testing.significant >= 64_000
    assert (output / "report.html").stat().st_size <= 5_000_000
    # Neither significant ones only, nor without the inherited ones.
    with opened(browser, output, view="#slices?significant=no&inherited=yes") as page:
        assert page.locator(".found [role=status]").inner_text().startswith("40,000 of 40,000")
