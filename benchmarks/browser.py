"""How long a page takes to open in Chromium, by its own clock, over the browser's debugging pipe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
# the browser reads its commands from descriptor 3 and answers on 4
BROWSER = (
    "exec {chromium} --headless --no-sandbox --disable-gpu --no-first-run --window-size=1200,900 "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--user-data-dir={profile} --remote-debugging-pipe about:blank 3<&{commands} 4>&{answers}"
)
LONGEST_S = 60.0
# milliseconds since the navigation began; null while it has not come to that
TIMES = """JSON.stringify({
  painted: performance.getEntriesByName("first-contentful-paint").map((of) => of.startTime)[0] ?? null,
  loaded: performance.getEntriesByType("navigation")[0].loadEventEnd || null,
  first: window.firstPlot ?? null, drawn: window.lastPlot ?? null,
})"""
# notes when the first figure is drawn, and when all that the page has are
WATCH = """(() => {
  const look = () => {
    const drawn = Number(document.documentElement.dataset.plotsDrawn ?? 0);
    const code = document.getElementById("figures");
    const all = code ? Object.keys(JSON.parse(code.textContent))
      .filter((id) => document.getElementById(id)).length : 0;
    if (drawn || !all) window.firstPlot ??= performance.now();
    if (drawn >= all) { window.lastPlot = performance.now(); } else { setTimeout(look, 20); }
  };
  addEventListener("load", () => setTimeout(look, 0));
})()"""


@dataclass(frozen=True)
class Opened:
    """Seconds from the start of the navigation until something is painted, all is loaded, the first
    figure is drawn, and the last one, which a reader must scroll to, is.
    """

    painted: float
    loaded: float
    first_plot: float
    all_plots: float


class _Pipe:
    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._number, self._rest = 0, b""

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """The answer to one command of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._next())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> bytes:
        while b"\0" not in self._rest:
            got = os.read(self._answers, 2**16)
            if not got:
                raise RuntimeError("the browser ended")
            self._rest += got
        message, _, self._rest = self._rest.partition(b"\0")
        return message


@contextmanager
def _browser(folder: Path) -> Iterator[_Pipe]:
    theirs, commands = os.pipe()
    answers, ours = os.pipe()
    line = BROWSER.format(chromium=CHROMIUM, profile=folder, commands=theirs, answers=ours)
    process = subprocess.Popen(
        ["bash", "-c", line], pass_fds=(theirs, ours), stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    os.close(ours)
    pipe = _Pipe(commands, answers)
    try:
        yield pipe
        pipe.call("Browser.close")
    finally:
        os.close(commands)
        os.close(answers)
        process.wait(timeout=LONGEST_S)


def opened(page: Path, times: int) -> list[Opened]:
    """Open a page so many times, each in a new tab of one browser that is already running."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        _browser(Path(folder)) as pipe,
    ):
        return [_opened(pipe, page.resolve().as_uri()) for _ in range(times)]


def _opened(pipe: _Pipe, url: str) -> Opened:
    target = pipe.call("Target.createTarget", url="about:blank")["targetId"]
    session = pipe.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    pipe.call("Page.enable", session)
    pipe.call("Page.addScriptToEvaluateOnNewDocument", session, source=WATCH)
    pipe.call("Page.navigate", session, url=url)
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until:
        time.sleep(0.1)
        answer = pipe.call("Runtime.evaluate", session, expression=TIMES)
        found = json.loads(answer["result"].get("value") or "{}")
        if found and None not in found.values():
            pipe.call("Target.closeTarget", targetId=target)
            return Opened(*(1e-3 * found[x] for x in ("painted", "loaded", "first", "drawn")))
    raise RuntimeError(f"{url} was not drawn in {LONGEST_S:g} s: {found}")
