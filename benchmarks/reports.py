"""How long reports of a year of nights take: 365 x 60 points of `tests/helpers/year.py`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from tests.helpers import year_runs

from benchmarks.browser import CHROMIUM, opened
from calib.foundation.run_files import HISTORY_FILE, REPORT_HTML
from calib.reports.drift.judge import drift
from calib.scoring.findings import remembered
from calib.scoring.run import scored

REPEATS = 5
REPORT_S, OPENING_S, PAGE_BYTES = 5.0, 3.0, 8e6  # targets


def reports() -> list[str]:
    """Seconds of `calib report` on a year, by parts, and of opening its page; ratios beside them."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [year_runs.write(night, Path(folder)) for night in year_runs.nights()]
        empty = median(_seconds([sys.executable, "-c", "pass"])[0] for _ in range(REPEATS))
        lines = _parts(runs, empty)
        newest = [sys.executable, "-m", "calib", "report", str(runs[-1])]
        times = [_seconds(newest) for _ in range(REPEATS)]
        wall, cpu = (median(each) for each in zip(*times, strict=True))
        lines.append(
            f"calib report of the newest of {len(runs)} nights: {wall:.2f} s, {cpu:.2f} s of a core "
            f"(target {REPORT_S:g} s), {wall / empty:.0f} x an empty Python"
        )
        lines.append(_page(runs[-1] / REPORT_HTML, "of the newest night"))
        (Path(folder) / HISTORY_FILE).unlink()
        for what in ("first", "again"):
            wall, cpu = _seconds([sys.executable, "-m", "calib", "report", *map(str, runs)])
            lines.append(
                f"calib report of all {len(runs)} run directories, {what}: {wall:.1f} s, {cpu:.1f} s "
                f"of a core, {wall / empty:.0f} x an empty Python"
            )
        lines.append(_page(Path(folder) / REPORT_HTML, "of all of them"))
    return lines


def _seconds(command: Sequence[str]) -> tuple[float, float]:
    """(wall, processor) seconds of a command, which must succeed."""
    before, start = os.times(), perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = perf_counter() - start, os.times()
    used = after.children_user + after.children_system
    return wall, used - before.children_user - before.children_system


def _parts(runs: Sequence[Path], empty: float) -> list[str]:
    """What the report of all run directories is made of, in one process: seconds of each part."""
    start = perf_counter()
    found = [scored(run) for run in runs]
    reading = perf_counter() - start
    points = sum(len(each.accuracies) for each in found)

    start = perf_counter()
    past, _ = remembered(found, None, record=True)
    recording = perf_counter() - start
    assert past is not None
    start = perf_counter()
    remembered(found[-1:], None, record=False)
    remembering = perf_counter() - start
    start = perf_counter()
    drift(past)
    judging = perf_counter() - start
    return [
        f"{what}: {seconds:.2f} s, {seconds / empty:.0f} x an empty Python"
        for what, seconds in (
            (f"read and score {points} runs ({1e3 * reading / points:.2f} ms each)", reading),
            (f"record {len(runs)} nights in SQLite, and read them", recording),
            ("read them again", remembering),
            ("find the steps", judging),
        )
    ]


def _page(page: Path, which: str) -> str:
    size = f"page {which}: {page.stat().st_size / 1e6:.2f} MB (target {PAGE_BYTES / 1e6:g} MB)"
    if not CHROMIUM:
        return f"{size}; chromium is not installed"
    times = opened(page, REPEATS)
    painted, loaded, first, every = (
        median(getattr(each, name) for each in times)
        for name in ("painted", "loaded", "first_plot", "all_plots")
    )
    return (
        f"{size}; in Chromium painted after {painted:.2f} s, loaded {loaded:.2f} s, first figure "
        f"{first:.2f} s (target {OPENING_S:g} s), all figures {every:.2f} s"
    )
