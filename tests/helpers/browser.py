"""A page as a real browser draws it, and what it contains."""

from __future__ import annotations

import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

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


# polls until all plots are drawn, then acts and hands the result to the page around the frame
DRIVER = """<script>(function () {
const begun = setInterval(async () => {
  const count = Object.keys(JSON.parse(document.getElementById("figures").textContent)).length;
  if (document.documentElement.dataset.plotsDrawn !== String(count)) return;
  clearInterval(begun);
  let result;
  try { result = await (async () => { %s })(); } catch (error) { result = { failed: String(error) }; }
  result.wrong = window.wrong;
  result.requests = performance.getEntriesByType("resource").map((one) => one.name);
  parent.postMessage(JSON.stringify(result), "*");
}, 50); })();</script>"""
FRAME = """<!DOCTYPE html><title>frame</title><body style="margin:0">
<script>addEventListener("message", (event) => {
  document.getElementById("result").textContent = event.data;
});</script>
<pre id="result"></pre><iframe src="page.html" style="border:0;width:%dpx;height:%dpx"></iframe>"""


def drawn(html: str, folder: Path) -> Page:
    """The page after its scripts have run in Chromium; nothing may have gone wrong in it."""
    path = folder / "page.html"
    path.write_text(html.replace("<title>", TRAP + "<title>", 1))
    printed, said = _dom(path, folder)
    page = Page(printed)
    assert "data-wrong" not in page.root, page.root["data-wrong"]
    assert "CONSOLE" not in said
    return page


def _dom(path: Path, folder: Path, *more: str) -> tuple[str, str]:
    """A page as Chromium prints it after its scripts have run, and what Chromium says of it."""
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=20000",
        "--enable-logging=stderr", *more, "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return done.stdout, done.stderr


def driven(html: str, folder: Path, script: str, width: int = 1200, dark: bool = False) -> Any:
    """What `script` (the body of an async function) returns in the page, all plots drawn.

    The page is in a frame of `width` pixels: a window of Chromium is 500 wide at least. Nothing may
    have gone wrong in it, and it may have asked for nothing.
    """
    html = html.replace("<title>", TRAP + "<title>", 1).replace(
        "</body>", DRIVER % script + "</body>"
    )
    (folder / "page.html").write_text(html)
    frame = folder / "frame.html"
    frame.write_text(FRAME % (width, 800))
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    printed, said = _dom(frame, folder, *scheme)
    page = Page(printed)
    result = json.loads("".join(page.text).strip().removeprefix("frame"))
    assert "CONSOLE" not in said
    assert "failed" not in result, result["failed"]
    assert result.pop("wrong") == [] and result.pop("requests") == []
    return result
