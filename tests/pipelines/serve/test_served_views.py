"""All tested slices and the runs of a folder in a browser: for everyone, and whatever the data holds."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from tests.pipelines.page.in_browser import violations
from tests.pipelines.page.results import (
    FORMULA,
    HOSTILE,
    hostile_data,
    hostile_document,
    search_result,
)
from tests.pipelines.serve.served_outputs import Served, serving, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
VIEWS = [(1280, "light"), (400, "dark"), (2560, "dark")]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return search_result(tmp_path_factory.mktemp("served"), baseline=True)


@pytest.fixture(scope="module")
def served(result: Path) -> Iterator[Served]:
    with serving(result) as one:
        yield one


@pytest.fixture(scope="module")
def table(result: Path) -> Any:
    return pq.read_table(result / "slices.parquet").to_pandas()


def to_slices(page: Page) -> None:
    page.get_by_role("link", name="Slices", exact=True).click()
    page.locator(".virtual .what a").first.wait_for()


def found(page: Page, number: int) -> None:
    page.get_by_text(f"{number:,} of 3,363 tested slices", exact=True).wait_for()


def test_all_tested_slices_are_filtered_and_walked(
    browser: Browser,
    served: Served,
    table: Any,
) -> None:
    unexplained = table[table.significant & ((table.label != "inherited") | table.finding.notna())]
    with shown(browser, served) as page:
        # The token is out of the address, the history and what the page sends.
        assert "token" not in page.url
        to_slices(page)
        found(page, len(unexplained))
        page.get_by_label("significant only").uncheck()
        page.get_by_label("with those that a slice above explains").check()
        found(page, len(table))
        body = page.locator(".virtual .body")
        body.evaluate("one => { one.scrollTop = 64 * 2000 }")
        page.locator(".virtual .row[aria-rowindex='2003'] .what a").wait_for()
        page.get_by_label("Text").fill("female & white")
        said = table.slice.str.lower()
        found(page, int((said.str.contains("female") & said.str.contains("white")).sum()))
        page.get_by_label("Text").fill("")
        page.get_by_label("Feature").select_option("sex")
        page.get_by_label("Value").select_option("sex = Female")
        found(page, int(table.slice.str.contains("sex = Female").sum()))
        # The address has it all: it is the same after a reload, for which the cookie is enough.
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
        page.wait_for_function(
            "before => ![before, undefined].includes(document.querySelector('.focus')?.innerText)",
            arg=before,
        )


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_axe_finds_nothing(
    browser: Browser,
    served: Served,
    width: int,
    scheme: str,
) -> None:
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


def test_without_the_table_the_slices_of_the_document_are_shown(
    browser: Browser,
    result: Path,
    tmp_path: Path,
) -> None:
    copy = Path(shutil.copytree(result, tmp_path / "copy"))
    for one in [*copy.glob("*.parquet"), *copy.glob(".serve/slices-*")]:
        one.unlink()
    listed = len(json.loads((copy / "changelist.json").read_text())["slices"])
    with serving(copy) as served, shown(browser, served) as page:
        to_slices(page)
        assert "slices.parquet is not beside" in page.get_by_role("alert").inner_text()
        page.get_by_label("with those that a slice above explains").check()
        page.get_by_text(re.compile(rf"^{listed} of [\d,]+ significant slices")).wait_for()
        assert violations(page) == []


def test_what_a_stranger_wrote_is_text_in_every_view(browser: Browser, tmp_path: Path) -> None:
    document = search_result(tmp_path)
    hostile_document(document)
    data = hostile_data(tmp_path)
    for one, text in ((document, HOSTILE), (data, FORMULA)):
        with serving(one) as served, shown(browser, served) as page:
            to_slices(page)
            page.get_by_label("significant only").uncheck()
            page.get_by_label("with those that a slice above explains").check()
            page.locator(".virtual .what a", has_text=text).first.click()
            page.get_by_text("slice_id").wait_for()
            assert text in page.locator("h1").inner_text()
            assert page.locator("main img, main script").count() == 0


def test_the_policy_and_the_cookie_keep_other_pages_out(browser: Browser, served: Served) -> None:
    origin = served.address.partition("/#")[0]
    context = browser.new_context()
    page = context.new_page()
    page.goto(served.address)
    page.wait_for_selector("[data-ready=yes]")
    assert context.cookies()[0]["httpOnly"]
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
        return [said.sort(), document.body.dataset.ran ?? "", document.cookie];
        }"""
    )
    assert set(came[0]) >= {"connect-src", "img-src", "script-src-elem", "style-src-attr"}
    assert came[1:] == ["", ""]
    # Another site in the same browser: it reads nothing, frames nothing, and changes nothing.
    other = context.new_page()
    other.route(
        "http://evil.example/**",
        lambda one: one.fulfill(body="<p>evil</p>", content_type="text/html"),
    )
    other.goto("http://evil.example/")
    read = other.evaluate(
        """async origin => {
        const tried = async (path, how) => {
          try { return (await fetch(origin + path, how)).status } catch { return "refused" }
        };
        const json = { "content-type": "application/json" };
        return [
          await tried("/api/page", { credentials: "include" }),
          await tried("/api/session", { method: "POST", headers: json, body: "{}", credentials: "include" }),
          (await fetch(origin + "/api/page", { mode: "no-cors", credentials: "include" }).catch(() => ({ type: "refused" }))).type,
        ];
        }""",
        origin,
    )
    assert read[:2] == ["refused", "refused"]
    assert read[2] in ("opaque", "refused")
    other.set_content(f'<iframe src="{origin}/"></iframe>')
    other.wait_for_timeout(300)
    assert all(
        "slicebeam" not in frame.content() or frame == other.main_frame for frame in other.frames
    )
    context.close()
    # Without the token there is nothing to see.
    bare = browser.new_page()
    bare.goto(f"{origin}/#slices")
    bare.get_by_role("alert").wait_for()
    assert "holds the token" in bare.get_by_role("alert").inner_text()
    bare.close()


@pytest.mark.parametrize(("width", "scheme"), VIEWS[:2])
def test_a_folder_of_runs(
    browser: Browser,
    result: Path,
    tmp_path: Path,
    width: int,
    scheme: str,
) -> None:
    folder = tmp_path / "nights"
    for day in (1, 2, 3):
        copy = Path(shutil.copytree(result, folder / f"night {day}"))
        path = copy / "changelist.json"
        document = json.loads(path.read_text())
        document["created_at"] = f"2026-11-0{day}T00:00:00Z"
        path.write_text(json.dumps(document))
    for one in (folder / "night 2").glob("*.parquet"):
        one.unlink()
    with serving(folder) as served:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        wrong: list[str] = []
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
        # No line leads over the gap.
        assert page.locator(".over-runs .over").get_attribute("d").count("L") == 0  # type: ignore[union-attr]
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("link", name="All runs").click()
        page.get_by_role("heading", name="3 runs").wait_for()
        context.close()
        assert wrong == []
