"""The documentation site in a real browser, on a phone and on a desk, in both themes.

`make docs` builds it.  Without it, Playwright and a Chromium these tests are skipped.  They leave a
picture of each page in the folder of the test's output.
"""

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.pages import ROOT
from tools.bench_dashboard.__main__ import browser

SITE = Path(os.environ.get("REMOTELY_SITE") or ROOT / "build" / "docs")
if not (browser() and (SITE / "index.html").exists()):
    pytest.skip(
        "the site is not looked at: `make docs` has not built it, or there is no Playwright here,"
        " or no Chromium on PATH",
        allow_module_level=True,
    )

from playwright.sync_api import Browser, Page, expect, sync_playwright  # noqa: E402 - see above

PAGES = (
    "index",
    "guide",
    "training",
    "environments",
    "agents",
    "hooks",
    "own_algorithm",
    "coming_from",
    "launch",
    "dashboard",
    "gallery",
    "reliability",
)
PHONE, DESK = 390, 1440
# Elements of the article that are cut: beyond the window, in nothing that scrolls.
CUT = """() => [...document.querySelectorAll('article td, article p, article img')].filter(cell => {
    for (let box = cell; box; box = box.parentElement)
        if (/auto|scroll/.test(getComputedStyle(box).overflowX)) return false;
    const { left, right, width } = cell.getBoundingClientRect();
    return width && (left < -1 || right > innerWidth + 1);
}).map(cell => cell.textContent.slice(0, 60))"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=browser(), args=sandbox)
        yield launched
        launched.close()


@contextlib.contextmanager
def opened(chromium: Browser, width: int, theme: str) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    page.add_init_script(f"localStorage.setItem('theme', '{theme}')")
    yield page
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_nothing_of_a_page_is_cut(
    chromium: Browser, width: int, theme: str, tmp_path: Path
) -> None:
    with opened(chromium, width, theme) as page:
        for name in PAGES:
            page.goto((SITE / f"{name}.html").as_uri())
            page.screenshot(path=tmp_path / f"{name}-{width}-{theme}.png", full_page=True)
            assert page.evaluate(CUT) == [], name
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name


def test_a_row_of_a_table_is_a_card_on_a_phone(chromium: Browser) -> None:
    with opened(chromium, PHONE, "light") as page:
        page.goto((SITE / "coming_from.html").as_uri())
        row = page.locator("tr", has_text="ray.init(address)")
        first, second = row.locator("td").nth(0), row.locator("td").nth(1)
        tops = [(cell.bounding_box() or {"y": 0.0})["y"] for cell in (first, second)]
        assert tops[0] < tops[1]
        assert second.get_attribute("data-head") == "remotely"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def served() -> Iterator[str]:
    """Yield the address of the site: a browser runs no search on files."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("words", ["kill actor", "restart", "shared memory"])
def test_a_search_finds_pages_for_users_before_decisions(
    chromium: Browser, served: str, words: str
) -> None:
    with opened(chromium, DESK, "light") as page:
        page.goto(f"{served}/search.html?q={words}")
        found = page.locator("#search-results ul.search li a")
        expect(found.first).to_be_visible()
        expect(page.get_by_text("Search finished")).to_be_visible()
        links = [link.get_attribute("href") or "" for link in found.all()]
        assert len(links) >= 8
        assert not [link for link in links[:8] if "decisions/" in link]
