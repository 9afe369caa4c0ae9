"""The Tests view in a browser: suggestions are judged by the keyboard alone, and none is lost."""

import signal

import pytest

from slicebeam.pipelines.adaptive.tree_files import read_tree
from tests.pipelines.page.in_browser import violations
from tests.pipelines.page.results import search_result
from tests.pipelines.serve.served_outputs import serving, shown
from tests.pipelines.serve.test_feature_views import tab_to
from tests.pipelines.serve.test_judging import MODEL, tree_in

pytestmark = pytest.mark.browser


def judged(path):
    tree = read_tree(str(path))
    known = {"0a", "0b", "0c"}
    return {one.id: one.label for one in tree.rows(tree.is_test) if one.id not in known}


def test_twenty_suggestions_by_keyboard_alone(browser, tmp_path):
    path = tree_in(tmp_path)
    result = search_result(tmp_path)
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
    with serving(search_result(tmp_path), *more) as served, shown(browser, served) as page:
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
