"""A page as a real browser draws it, and what it contains."""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
needs_browser = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")
TIMEOUT_S = 120
# what goes wrong in a page is written into it, where --dump-dom shows it
TRAP = (
    "<script>window.wrong=[];const note=(what)=>{window.wrong.push(String(what));"
    "document.documentElement.dataset.wrong=window.wrong.join('; ')};"
    "addEventListener('error',(e)=>note(e.message),true);"
    "addEventListener('unhandledrejection',(e)=>note(e.reason));"
    "addEventListener('securitypolicyviolation',(e)=>note('refused '+e.blockedURI));"
    "console.error=note;console.warn=note;window.alert=note;</script>"
)


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


def drawn(html: str, folder: Path) -> Page:
    """The page after its scripts have run in Chromium; nothing may have gone wrong in it."""
    path = folder / "page.html"
    path.write_text(html.replace("<title>", TRAP + "<title>", 1))
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=20000",
        "--enable-logging=stderr", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    page = Page(done.stdout)
    assert "data-wrong" not in page.root, page.root["data-wrong"]
    assert "CONSOLE" not in done.stderr
    return page
