"""A page as a real browser draws it, and what it contains."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
needs_browser = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")
TIMEOUT_MS = 120_000
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic")
DRAWN = """() => document.documentElement.dataset.plotsDrawn ===
  String(Object.keys(JSON.parse(document.getElementById("figures").textContent)).length)"""


class Page(HTMLParser):
    """Tags with their attributes, and the text outside of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(html)

    @property
    def root(self) -> dict[str, str | None]:
        """Attributes of the html element."""
        return next(attributes for tag, attributes in self.tags if tag == "html")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.text.append(data)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The installed Chromium, for all pages of a file: each start takes seconds."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield browser
        browser.close()


def driven(
    browser: Browser, html: str, folder: Path, script: str, width: int = 1200, dark: bool = False
) -> Any:
    """What `script` (the body of an async function) returns in the page, all plots drawn.

    Nothing may have gone wrong in the page, and it may have asked for nothing but itself.
    """
    (folder / "page.html").write_text(html)
    here = (folder / "page.html").as_uri()
    wrong: list[str] = []
    asked: list[str] = []
    page = browser.new_page(
        viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
    )
    page.set_default_timeout(TIMEOUT_MS)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text))
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(here)
    page.wait_for_function(DRAWN)
    result = page.evaluate(f"async () => {{ {script} }}")
    page.close()
    assert wrong == [] and asked == [here]
    return result
