"""A page opened in a browser, where any request, dialog, error or violation of its policy fails."""

from contextlib import contextmanager
from pathlib import Path

AXE = Path(__file__).parents[3] / "pipelines" / "page" / "node_modules" / "axe-core" / "axe.min.js"


@contextmanager
def opened(browser, result, width=1280, scheme="light", view=""):
    address = (result / "report.html").as_uri()
    with watched(browser, address, width, 800, scheme) as page:
        page.goto(f"{address}{view}")
        page.wait_for_selector("main")
        page.wait_for_selector("[data-ready=yes]")
        yield page


@contextmanager
def watched(browser, origin, width, height, scheme, refusals=()):
    """Yield a new page; at its end no request elsewhere, dialog, error or message was there."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page, wrong = context.new_page(), []

    def requested(request):
        if not request.url.startswith((origin, "blob:")):
            wrong.append(request.url)

    def logged(message):
        if not any(text in message.text for text in refusals):
            wrong.append(message.text)

    def refuse(dialog):
        wrong.append(f"dialog {dialog}")
        dialog.dismiss()

    page.on("request", requested)
    page.on("console", logged)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", refuse)
    yield page
    context.close()
    assert wrong == []


def violations(page):
    # Evaluated from outside, which the page's own policy has no say in.
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("axe.run().then(one => one.violations)")
    return [(one["id"], one["nodes"][0]["html"]) for one in found]
